/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "secret/sentinel.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <zlib.h>

#include "util/cleanup.h"

enum { SENTINEL_MAX = 4096, SENTINEL_BITS = 128, CHECKSUM_LENGTH = 6 };

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

static const struct {
        const char *name, *characters;
        double bits; /* of one character */
} alphabets[] = {
        { "hex", DIGITS "abcdef", 4.0 },
        { "lower-alnum", DIGITS LOWER, 5.169 },
        { "upper-alnum", DIGITS UPPER, 5.169 },
        { "base32", UPPER "234567", 5.0 },
        { "alnum", DIGITS UPPER LOWER, 5.954 },
        { "base64", DIGITS UPPER LOWER "+/", 6.0 },
        { "base64url", DIGITS UPPER LOWER "-_", 6.0 },
};

/* One unbiased choice out of n: bytes at and above the largest multiple of n are thrown away. */
static int pick(size_t n, uint8_t *pool, size_t pool_size, size_t *used, size_t *ret) {
        size_t limit = 256 / n * n;

        for (;;) {
                if (*used == pool_size) {
                        ssize_t k = getrandom(pool, pool_size, 0);

                        if (k < 0 && errno == EINTR)
                                continue;
                        if (k < 0)
                                return -errno;
                        *used = pool_size - (size_t) k;
                        memmove(pool + *used, pool, (size_t) k);
                        continue;
                }
                if (pool[*used] < limit) {
                        *ret = pool[(*used)++] % n;
                        return 0;
                }
                (*used)++;
        }
}

/* Of text, whose last six characters it becomes. */
static void write_checksum(char *text, size_t prefix_size, size_t length) {
        static const char base62[] = DIGITS UPPER LOWER;
        size_t end = length - CHECKSUM_LENGTH;
        unsigned long sum = crc32(0, (const Bytef *) text + prefix_size, (uInt) (end - prefix_size));

        for (size_t i = length; i > end; sum /= 62)
                text[--i] = base62[sum % 62];
}

int sentinel_make(const char *prefix, const char *alphabet, size_t length, const char *checksum, char **ret) {
        size_t prefix_size = strlen(prefix), n_fixed = prefix_size + (checksum ? CHECKSUM_LENGTH : 0), n_characters, used;
        _cleanup_free_ char *text = NULL;
        const char *characters = NULL;
        uint8_t pool[128];
        double bits = 0;
        int r;

        for (size_t i = 0; i < ELEMENTSOF(alphabets); i++)
                if (strcmp(alphabets[i].name, alphabet) == 0) {
                        characters = alphabets[i].characters;
                        bits = alphabets[i].bits;
                }

        if (!characters || length > SENTINEL_MAX || length < n_fixed || (double) (length - n_fixed) * bits < SENTINEL_BITS ||
            (checksum && strcmp(checksum, "crc32-base62") != 0))
                return -EINVAL;

        text = malloc(length + 1);
        if (!text)
                return -ENOMEM;

        memcpy(text, prefix, prefix_size);
        n_characters = strlen(characters);
        used = sizeof(pool);
        for (size_t i = prefix_size; i < length; i++) {
                size_t k = 0;

                r = pick(n_characters, pool, sizeof(pool), &used, &k);
                if (r < 0)
                        return r;
                text[i] = characters[k];
        }
        text[length] = 0;
        if (checksum)
                write_checksum(text, prefix_size, length);

        *ret = TAKE_PTR(text);
        return 0;
}
