/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What is held back must not depend on the needles' values. A masker that held back exactly what could
 * still become a needle would tell, by what it delays, how far a guess is right: an agent that gets an
 * origin to echo guesses would learn a secret byte by byte. So the rule knows only lengths and
 * the alphabet: held back is the longest tail of visible ASCII characters, at most one byte less
 * than the longest needle. A blank, a line end or any other byte releases everything before it, so
 * that the events of a stream, which end with an empty line, are never late.
 *
 * A needle that starts left of the tail is complete or impossible: either enough bytes follow it, or a
 * byte that no needle has. Hence deciding only left of the tail gives what a search in the whole
 * stream would give, however it was cut. fuzz-mask compares the two.
 *
 * Candidates are found with a rolling hash under a random base and compared in constant time: the time
 * depends on the number of bytes, not on how much of a needle they match.
 */

#include "inject/mask.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>

struct Masker {
        MaskPair pairs[MASK_PAIRS_MAX];
        uint64_t hashes[MASK_PAIRS_MAX]; /* of the needles */
        uint64_t powers[MASK_PAIRS_MAX]; /* base ** (needle_size - 1) */
        size_t n_pairs, longest;
        uint64_t base, hits;
        Buffer held;
};

static bool is_visible(uint8_t c) {
        return c >= 0x21 && c <= 0x7e;
}

static uint64_t hash_of(const Masker *m, const uint8_t *p, size_t size) {
        uint64_t h = 0;

        for (size_t i = 0; i < size; i++)
                h = h * m->base + p[i];
        return h;
}

int masker_new(Masker **ret, const MaskPair *pairs, size_t n_pairs) {
        _cleanup_(masker_freep) Masker *m = NULL;

        if (n_pairs > MASK_PAIRS_MAX)
                return -E2BIG;

        m = calloc(1, sizeof(*m));
        if (!m)
                return -ENOMEM;

        if (getrandom(&m->base, sizeof(m->base), 0) != sizeof(m->base))
                return -EIO;
        m->base |= 1;

        for (size_t i = 0; i < n_pairs; i++) {
                const MaskPair *pair = &pairs[i];

                if (pair->needle_size == 0)
                        return -EINVAL;
                for (size_t k = 0; k < pair->needle_size; k++)
                        if (!is_visible(((const uint8_t *) pair->needle)[k]))
                                return -EINVAL;

                m->pairs[i] = *pair;
                m->hashes[i] = hash_of(m, pair->needle, pair->needle_size);
                m->powers[i] = 1;
                for (size_t k = 1; k < pair->needle_size; k++)
                        m->powers[i] *= m->base;
                if (pair->needle_size > m->longest)
                        m->longest = pair->needle_size;
        }
        m->n_pairs = n_pairs;

        *ret = TAKE_PTR(m);
        return 0;
}

Masker *masker_free(Masker *m) {
        if (!m)
                return NULL;
        buffer_done(&m->held);
        explicit_bzero(m, sizeof(*m));
        free(m);
        return NULL;
}

/* Where the tail starts that has to wait for more. */
static size_t tail_start(const Masker *m, const uint8_t *p, size_t size) {
        size_t i = size;

        while (i > 0 && size - i < m->longest - 1 && is_visible(p[i - 1]))
                i--;
        return i;
}

/* The hashes of the windows that start at i; a window that does not fit counts as 0. */
static void windows_start(const Masker *m, const uint8_t *p, size_t size, size_t i, uint64_t *windows) {
        for (size_t k = 0; k < m->n_pairs; k++)
                windows[k] = m->pairs[k].needle_size <= size - i ? hash_of(m, p + i, m->pairs[k].needle_size) : 0;
}

static void windows_advance(const Masker *m, const uint8_t *p, size_t size, size_t i, uint64_t *windows) {
        for (size_t k = 0; k < m->n_pairs; k++) {
                size_t n = m->pairs[k].needle_size;

                if (i + n < size)
                        windows[k] = (windows[k] - p[i] * m->powers[k]) * m->base + p[i + n];
        }
}

/* The longest needle at i, or NULL. */
static const MaskPair *match_at(const Masker *m, const uint8_t *p, size_t size, size_t i, const uint64_t *windows) {
        const MaskPair *best = NULL;

        for (size_t k = 0; k < m->n_pairs; k++) {
                const MaskPair *pair = &m->pairs[k];

                if (pair->needle_size <= size - i && windows[k] == m->hashes[k] &&
                    (!best || pair->needle_size > best->needle_size) &&
                    CRYPTO_memcmp(p + i, pair->needle, pair->needle_size) == 0)
                        best = pair;
        }
        return best;
}

static int masker_scan(Masker *m, size_t limit, Buffer *out) {
        const uint8_t *p = buffer_data(&m->held);
        size_t size = buffer_size(&m->held), i = 0, done = 0;
        uint64_t windows[MASK_PAIRS_MAX];
        int r;

        if (limit > 0)
                windows_start(m, p, size, 0, windows);
        while (i < limit) {
                const MaskPair *pair = match_at(m, p, size, i, windows);

                if (!pair) {
                        windows_advance(m, p, size, i++, windows);
                        continue;
                }

                r = buffer_append(out, p + done, i - done);
                if (r < 0)
                        return r;
                r = buffer_append(out, pair->replacement, pair->replacement_size);
                if (r < 0)
                        return r;
                m->hits++;
                done = i += pair->needle_size;
                if (i < limit)
                        windows_start(m, p, size, i, windows);
        }

        r = buffer_append(out, p + done, i - done);
        if (r < 0)
                return r;
        buffer_consume(&m->held, i);
        return 0;
}

int masker_feed(Masker *m, const void *data, size_t size, Buffer *out) {
        int r;

        if (m->n_pairs == 0)
                return buffer_append(out, data, size);

        r = buffer_append(&m->held, data, size);
        if (r < 0)
                return r;
        return masker_scan(m, tail_start(m, buffer_data(&m->held), buffer_size(&m->held)), out);
}

int masker_finish(Masker *m, Buffer *out) {
        return masker_scan(m, buffer_size(&m->held), out);
}

uint64_t masker_hits(const Masker *m) {
        return m->hits;
}
