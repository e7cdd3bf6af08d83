/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/mask-sieve.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum { WINDOW = 1024, LANE = 16 };

typedef uint8_t Lane __attribute__((vector_size(LANE)));
typedef unsigned __int128 Product;

static Lane normal(Lane v) {
        v ^= (Lane) (v == '-') & ('-' ^ '+');
        return v ^ ((Lane) (v == '_') & ('_' ^ '/'));
}

/* '-' becomes '+', and '_' becomes '/'. out has room for a lane more than n. */
static void normalise(uint8_t *out, const uint8_t *text, size_t n) {
        size_t i;
        Lane v;

        for (i = 0; i + LANE <= n; i += LANE) {
                memcpy(&v, text + i, LANE);
                v = normal(v);
                memcpy(out + i, &v, LANE);
        }
        v = (Lane) {};
        memcpy(&v, text + i, n - i);
        v = normal(v);
        memcpy(out + i, &v, LANE);
}

static uint64_t load(const uint8_t *p) {
        uint64_t v;

        memcpy(&v, p, sizeof(v));
        return v;
}

static uint64_t mix(uint64_t a, uint64_t b) {
        Product p = (Product) a * b;

        return (uint64_t) p ^ (uint64_t) (p >> 64);
}

/* Of s->block characters, sixteen at least; the last step may overlap the one before. */
static uint64_t hash(const Sieve *s, const uint8_t *p) {
        uint64_t h = s->key[0];
        size_t i;

        for (i = 0; i + 16 < s->block; i += 16)
                h = mix(load(p + i) ^ h, load(p + i + 8) ^ s->key[1]);
        return mix(load(p + s->block - 16) ^ h, load(p + s->block - 8) ^ s->key[1]);
}

static bool bit(const Sieve *s, uint64_t h) {
        h %= SIEVE_BITS;
        return s->bits[h / 64] >> h % 64 & 1;
}

static void set_bit(Sieve *s, uint64_t h) {
        h %= SIEVE_BITS;
        s->bits[h / 64] |= UINT64_C(1) << h % 64;
}

void sieve_init(Sieve *s, size_t size, const uint64_t key[2]) {
        assert(size >= SIEVE_WORD_MIN && size <= SIEVE_WORD_MAX);
        *s = (Sieve) { .key = { key[0], key[1] }, .stride = size / 3, .block = size - size / 3 + 1 };
}

void sieve_add(Sieve *s, const uint8_t *word) {
        uint8_t text[SIEVE_WORD_MAX + LANE];

        normalise(text, word, s->block + s->stride - 1);
        for (size_t i = 0; i < s->stride; i++) {
                uint64_t h = hash(s, text + i);

                set_bit(s, h);
                set_bit(s, h >> 16);
                set_bit(s, h >> 32);
        }
        explicit_bzero(text, sizeof(text));
}

size_t sieve_next(const Sieve *s, const uint8_t *text, size_t n, size_t from) {
        uint8_t window[WINDOW + LANE];
        size_t found = SIZE_MAX;

        while (found == SIZE_MAX && from < n && s->block <= n - from) {
                size_t size = n - from < WINDOW ? n - from : WINDOW, at;

                normalise(window, text + from, size);
                for (at = 0; at + s->block <= size && found == SIZE_MAX; at += s->stride) {
                        uint64_t h = hash(s, window + at);

                        if (__builtin_expect(bit(s, h), 0) && bit(s, h >> 16) && bit(s, h >> 32))
                                found = from + at;
                }
                from += at;
        }
        explicit_bzero(window, sizeof(window));
        return found;
}
