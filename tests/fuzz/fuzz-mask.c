/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The masker against a plain search in the whole text. Input: one byte for the number of needles, each
 * needle with a length byte before it, then the text, which is fed in pieces whose sizes come from the
 * text itself.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "inject/mask.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void naive(const MaskPair *pairs, size_t n, const uint8_t *p, size_t size, Buffer *out) {
        size_t i = 0;

        while (i < size) {
                const MaskPair *best = NULL;

                for (size_t k = 0; k < n; k++)
                        if (pairs[k].needle_size <= size - i && memcmp(pairs[k].needle, p + i, pairs[k].needle_size) == 0 &&
                            (!best || pairs[k].needle_size > best->needle_size))
                                best = &pairs[k];
                if (best) {
                        (void) buffer_append(out, best->replacement, best->replacement_size);
                        i += best->needle_size;
                } else
                        (void) buffer_append(out, p + i++, 1);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static const char *const replacements[] = { "", "<a>", "bb", "a longer replacement" };
        _cleanup_(masker_freep) Masker *m = NULL;
        Buffer expected = {}, got = {};
        MaskPair pairs[4];
        size_t n, at = 1;

        if (size < 1)
                return 0;
        n = data[0] % 4 + 1;
        for (size_t i = 0; i < n; i++) {
                size_t length;

                if (at >= size)
                        return 0;
                length = data[at++] % 24 + 1;
                if (length > size - at)
                        return 0;
                pairs[i] = (MaskPair) { data + at, length, replacements[i], strlen(replacements[i]) };
                at += length;
        }
        if (masker_new(&m, pairs, n) < 0)
                return 0;

        naive(pairs, n, data + at, size - at, &expected);
        while (at < size) {
                size_t piece = data[at] % 7 + 1;

                if (piece > size - at)
                        piece = size - at;
                if (masker_feed(m, data + at, piece, &got) < 0)
                        __builtin_trap();
                at += piece;
        }
        if (masker_finish(m, &got) < 0)
                __builtin_trap();

        if (buffer_size(&expected) != buffer_size(&got) ||
            (buffer_size(&got) > 0 && memcmp(buffer_data(&expected), buffer_data(&got), buffer_size(&got)) != 0))
                __builtin_trap();
        buffer_done(&expected);
        buffer_done(&got);
        return 0;
}
