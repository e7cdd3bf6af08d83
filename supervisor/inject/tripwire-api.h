/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Finds sentinels where they have no business: in heads, and in bodies wherever these are cut into pieces. Pure. One piece of code for
 * whoever can read what a guest sends: inject, and the proxy for cleartext HTTP.
 *
 * Looked for are the text itself, whatever its case where it stands in a head, with percent-escapes or escapes of JSON, in Base64 at any alignment, and
 * in Basic authorization. In a stream that begins as gzip does (RFC 1952, 2.3.1), also in what that stands for, as far as TRIPWIRE_OPENED_MAX; other
 * codings are not opened. A sentinel is worth nothing: this is no boundary but a trip wire.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "inject/gunzip.h"
#include "inject/mask.h"
#include "util/cleanup.h"

/* Is this text, or what is encoded in it, or in a part of it, that sentinel? Upper and lower case are one. */
bool tripwire_text_has(const char *text, size_t size, const char *sentinel);

enum { TRIPWIRE_WHERE_SIZE = 65 };

/* Which of these sentinels is in that head of HTTP/1, as it came: its number and, in ret_where, "target" or the field's name (its beginning, if that is
 * long); -1: none. What cannot be looked at has the first one in it. */
ssize_t tripwire_find_in_head(const char *head, size_t size, const char *const *sentinels, size_t n_sentinels, char ret_where[static TRIPWIRE_WHERE_SIZE]);

/* One stream of bytes. */
typedef struct Tripwire Tripwire;

/* The sentinels are borrowed, and must outlive it. */
int tripwire_new(Tripwire **ret, const char *const *sentinels, size_t n_sentinels);
Tripwire *tripwire_free(Tripwire *t);
DEFINE_CLEANUP(Tripwire *, tripwire_free)

/* Is there one in what came so far, to its last byte? 1 and its number in *ret, 0, or negative errno. With `last` the stream is over, and another one may begin. */
int tripwire_feed(Tripwire *t, const void *data, size_t size, bool last, size_t *ret);

enum { TRIPWIRE_OPENED_MAX = 16 * 1024 * 1024 };

/* The same for what stands in gzip only, beside another search of the stream as it is. Embedded; zero before the first byte. */
typedef struct TripwireGzip {
        bool begun;
        Gunzip *gunzip;    /* owned; NULL unless the stream is one, and could be opened so far */
        Masker *text;      /* owned; searches what it stands for, once: gzip in gzip is not opened */
        uint64_t n_opened; /* bytes of that */
} TripwireGzip;

void tripwire_gzip_done(TripwireGzip *g);

/* As tripwire_feed(). The sentinels are taken from the first call of a stream that has a byte, and not looked at once it has begun. */
int tripwire_gzip_feed(TripwireGzip *g, const char *const *sentinels, size_t n_sentinels, const void *data, size_t size, bool last, size_t *ret);
