/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Tells at little cost where in a long text one of a few given words cannot be. Pure.
 *
 * A word of n characters that stands anywhere in a text covers one of the blocks of n - stride + 1 characters that begin at
 * multiples of `stride`, and that block is one of `stride` parts of the word. Hashes of the parts of all words are kept in a Bloom
 * filter under a random key; a text is asked for one block per stride (the idea of Karp and Rabin, with steps as in Wu and Manber).
 *
 * A block is two thirds of a word: how long a text takes tells no more than whether that many characters in a row are a word's.
 * The two alphabets of Base64 (RFC 4648, 4 and 5) count as one, in words and in texts.
 */

#include <stddef.h>
#include <stdint.h>

enum {
        SIEVE_WORD_MIN = 32, /* of shorter ones two thirds would be too few to be sure that nobody guesses them */
        SIEVE_WORD_MAX = 256,
        SIEVE_BITS = 4096,
};

typedef struct Sieve {
        uint64_t key[2];
        size_t stride, block; /* 0: no word yet */
        uint64_t bits[SIEVE_BITS / 64];
} Sieve;

/* For words of `size` characters at least, from SIEVE_WORD_MIN to SIEVE_WORD_MAX; key: random. */
void sieve_init(Sieve *s, size_t size, const uint64_t key[2]);

/* Of the word, which has s's size at least, the first `size` characters count. */
void sieve_add(Sieve *s, const uint8_t *word);

/*
 * The first place in [from, n) of the text, a multiple of s->stride, whose block a word may cover: it would begin at most stride - 1 before
 * it. SIZE_MAX if there is none. from: a multiple of s->stride.
 */
size_t sieve_next(const Sieve *s, const uint8_t *text, size_t n, size_t from);
