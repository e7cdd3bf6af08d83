/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Replaces given byte strings in a stream, wherever it is cut into pieces. Pure: bytes in, bytes out. */

#include <stddef.h>
#include <stdint.h>

#include "inject/buffer.h"
#include "util/cleanup.h"

typedef struct Masker Masker;

typedef struct MaskPair {
        const void *needle; /* borrowed; visible ASCII (0x21 to 0x7e) only */
        size_t needle_size;
        const void *replacement; /* borrowed; may be empty */
        size_t replacement_size;
} MaskPair;

enum { MASK_PAIRS_MAX = 32 };

/* What the pairs point to must outlive the masker. -EINVAL for an empty needle or one with other bytes. */
int masker_new(Masker **ret, const MaskPair *pairs, size_t n_pairs);
Masker *masker_free(Masker *m);
DEFINE_CLEANUP(Masker *, masker_free)

/* Appends to out what is certain by now. At each place the longest needle wins, from left to right. */
int masker_feed(Masker *m, const void *data, size_t size, Buffer *out);

/* The stream is over: what was held back follows. The masker can then be used for another stream. */
int masker_finish(Masker *m, Buffer *out);

/* How many needles were replaced so far. */
uint64_t masker_hits(const Masker *m);
