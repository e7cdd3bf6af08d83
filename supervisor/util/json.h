/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What jansson lacks: cleanup, bounded parsing, and reading an object's members with the JSON pointer
 * (RFC 6901) of whatever is wrong with them. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/cleanup.h"

static inline json_t *json_unref(json_t *j) {
        if (j)
                json_decref(j);
        return NULL;
}
DEFINE_CLEANUP(json_t *, json_unref)
#define _cleanup_json_ _cleanup_(json_unrefp)

/* Parses exactly one JSON value. Duplicate keys, trailing data and nesting deeper than jansson allows
 * are errors. On failure ret_reason (may be NULL) gets a text with line and column, the caller's. */
int json_parse(const char *data, size_t size, json_t **ret, char **ret_reason);

/* Has this object a key that is not `key`, but that a reader takes for it to whom case does not matter (Go, .NET)? Such a reader may heed
 * that one's value; what is judged by `key` must have none. `key` is ASCII. */
bool json_has_lookalike(const json_t *object, const char *key);

/* Canonical form: sorted keys, no white space, ASCII only. The text is the caller's, NULL if out of memory. */
char *json_canonical(const json_t *j);

/* SHA-256 of the canonical form, in hexadecimal. */
int json_digest(const json_t *j, char ret_hex[static 65]);

/* One finding about an input. */
typedef struct JsonReader {
        const char *file;  /* borrowed; for messages */
        char *pointer;     /* owned; of the first thing that was wrong */
        char *reason;      /* owned */
        bool failed;
} JsonReader;

static inline void json_reader_done(JsonReader *r) {
        free(r->pointer);
        free(r->reason);
        *r = (JsonReader) {};
}

typedef enum JsonFlags {
        JSON_F_REQUIRED = 1 << 0,
        JSON_F_NULLABLE = 1 << 1, /* null counts as missing */
} JsonFlags;

/*
 * Readers of one member of an object. `base` is the pointer of the object ("" for the document).
 * If the member is missing and not required, *ret is left as it is and false is returned; true means
 * it was there and right. The first error is kept in the reader; later calls go on harmlessly.
 * Strings and containers are borrowed from the document.
 */
bool json_read_string(JsonReader *r, const json_t *object, const char *base, const char *key, JsonFlags flags, const char **ret);
bool json_read_uint(JsonReader *r, const json_t *object, const char *base, const char *key, JsonFlags flags, uint64_t min, uint64_t max, uint64_t *ret);
bool json_read_bool(JsonReader *r, const json_t *object, const char *base, const char *key, JsonFlags flags, bool *ret);
bool json_read_object(JsonReader *r, const json_t *object, const char *base, const char *key, JsonFlags flags, json_t **ret);
bool json_read_array(JsonReader *r, const json_t *object, const char *base, const char *key, JsonFlags flags, json_t **ret);

/* Every key of object must be in the NULL-terminated list. */
void json_check_keys(JsonReader *r, const json_t *object, const char *base, const char *const *known);

/* Records an error at base + "/" + key (key may be NULL), unless one is recorded already. */
void json_reader_fail(JsonReader *r, const char *base, const char *key, const char *format, ...)
        __attribute__((__format__(__printf__, 4, 5)));
