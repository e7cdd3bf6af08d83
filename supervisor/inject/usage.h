/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Reads what a model call used out of a provider's answer. Pure. What it costs: usage-price.h. */

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/cleanup.h"

enum { USAGE_MODEL_SIZE = 128 };

typedef struct Usage {
        char model[USAGE_MODEL_SIZE];
        /* input_tokens are those that were not read from a cache, whatever the provider's own words for it are */
        uint64_t input_tokens, output_tokens, cache_read_tokens, cache_write_tokens;
        bool found;     /* any of the numbers was there */
        bool estimated; /* a part of them is worked out from bytes */
        bool input_unsaid, output_unsaid; /* no number was there (of the output: no last one), although the provider may have done the work */
} Usage;

typedef enum UsageFormat {
        USAGE_FORMAT_NONE,   /* nothing that can be read */
        USAGE_FORMAT_JSON,   /* one document */
        USAGE_FORMAT_EVENTS, /* text/event-stream, JSON in its data lines */
} UsageFormat;

UsageFormat usage_format_of(const char *content_type);

typedef enum UsageKind {
        USAGE_ELSEWHERE, /* not the provider's host */
        USAGE_CALL,      /* costs money; also a path of which it cannot be said what it means */
        USAGE_FREE,      /* listed as costing nothing */
        USAGE_UNKNOWN,   /* the provider's host, in neither list */
} UsageKind;

/* What kind of request is this for the provider? provider is its file, checked. */
UsageKind usage_kind(const json_t *provider, const char *host, const char *method, const char *target);
bool usage_is_call(const json_t *provider, const char *host, const char *method, const char *target);

/* RFC 6901 as far as providers' files use it. NULL: nothing is there. Borrowed from j. */
const json_t *usage_pointer(const json_t *j, const char *pointer);
/* Is there, on the way to that place, a key that some readers take for one of the pointer's (json_has_lookalike())? */
bool usage_pointer_is_disguised(const json_t *j, const char *pointer);
/* The first of an array of pointers that leads somewhere. */
const json_t *usage_find(const json_t *pointers, const json_t *document);

/* How many tokens so many bytes are worth by the provider's "estimate", rounded up; 4 bytes a token if it has none. */
uint64_t usage_estimate(const json_t *provider, uint64_t bytes);

typedef struct UsageReader UsageReader;

/* provider must outlive the reader. */
int usage_reader_new(UsageReader **ret, const json_t *provider, UsageFormat format);
UsageReader *usage_reader_free(UsageReader *r);
DEFINE_CLEANUP(UsageReader *, usage_reader_free)

/* Never fails: what is too long or no JSON is passed over. */
void usage_reader_feed(UsageReader *r, const void *data, size_t size);

/* What the caller knows about a call beside its answer. */
typedef struct UsageFacts {
        uint64_t prompt_bytes; /* of the request's body, as sent */
        unsigned status;       /* HTTP; 0: no answer came */
        bool complete;         /* the answer was read to its end */
} UsageFacts;

/* Sums the call up. r NULL: no answer that could be read. */
void usage_conclude(const json_t *provider, UsageReader *r, const UsageFacts *facts, Usage *ret);
