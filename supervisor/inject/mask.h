/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Replaces given texts in a stream, wherever it is cut into pieces, also where they stand with percent-escapes or
 * escapes of JSON strings (any of their characters, in any case), in Base64 of either alphabet at any alignment, or in
 * Base64 with such escapes. Pure: bytes in, bytes out.
 */

#include <stddef.h>
#include <stdint.h>

#include "inject/buffer.h"
#include "util/cleanup.h"

typedef struct Masker Masker;
typedef struct Needles Needles; /* mask-needles.h */

typedef struct MaskPair {
        const void *needle; /* copied; visible ASCII (0x21 to 0x7e) only */
        size_t needle_size;
        const void *replacement; /* borrowed; may be empty */
        size_t replacement_size;
} MaskPair;

enum {
        MASK_PAIRS_MAX = 128,
        MASK_NEEDLE_MAX = 8192,
        MASK_ENCODED_MIN = 8, /* shorter ones are not looked for in Base64 */
        MASK_BEGINNING_MAX = 8, /* of a value, that a message's end may let go */
};

/* What the replacements point to must outlive the masker. -EINVAL for a needle that is empty, too long or has other
 * bytes. */
int masker_new(Masker **ret, const MaskPair *pairs, size_t n_pairs);
/* For texts that others mask as well; takes a reference. What the replacements point to must outlive the Needles then: those
 * of exchanges are kept by their context too, until exchange_close_all(). */
int masker_new_for(Masker **ret, Needles *needles);
Masker *masker_free(Masker *m);
DEFINE_CLEANUP(Masker *, masker_free)

/*
 * Appends to out what is certain by now. At each place the needle that takes the most bytes wins, from left to right. In Base64 the replacement
 * is cut to the needle's length, or repeated, and the digits that the needle shares with its neighbours keep their bits.
 */
int masker_feed(Masker *m, const void *data, size_t size, Buffer *out);

/* The stream is over: what was held back follows. The masker can then be used for another stream. */
int masker_finish(Masker *m, Buffer *out);

/*
 * What is held back goes on, since whoever waits for it may send nothing more before, and the stream is remembered: of a needle that began in what is let go
 * here and is complete later, the rest is replaced. 0, or 1 if nothing was let go, because it holds the beginning of a needle: one of those of `beginnings`
 * (NULL: none are spared), which are shorter.
 */
int masker_release(Masker *m, Masker *beginnings, Buffer *out);

/* Does one of m's needles stand in these bytes that begins left of `limit`? Negative errno, 0 or 1. m's stream is not touched. */
int masker_begins_before(Masker *m, const void *data, size_t size, size_t limit);

/* Goes on in place of `from`, in the middle of its stream, for other needles: what `from` holds back is m's now. For one that is new. Of a needle that only m
 * has, nothing is found of which a part was let go before. */
void masker_take_over(Masker *m, Masker *from);

/* Frees what only the text needed that went through, if nothing of it is held back. NULL is nothing. */
void masker_rest(Masker *m);

/* How many needles were replaced so far, and which one was the last (its number among the pairs; 0 if there was none). */
uint64_t masker_hits(const Masker *m);
size_t masker_last(const Masker *m);

/* Is a needle complete in what is held back, so that it would be replaced if the stream ended here? For whoever lets bytes go before
 * the masker does. Negative errno, 0, or 1 and its number. The stream goes on as if nobody had asked. */
int masker_has_pending(Masker *m, size_t *ret_number);
