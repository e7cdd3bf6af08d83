/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Java trusts what is in a key store of its own, not what is in the system's bundle. Every version of it reads this form ("JKS"), in which numbers are
 * big endian, and a text is its length in two bytes and then its bytes:
 *
 *     0xfeedfeed, 2 (the version), how many entries
 *     for each: 2 (a certificate that is trusted), its name, when it was made in milliseconds (8 bytes), "X.509", its size, itself (DER)
 *     SHA-1 over the password in UTF-16, "Mighty Aphrodite", and all of the above
 *
 * The password is the one that everybody uses for this store; what needs no secrecy needs no better one. Programs that read the store without
 * asking for it, as Java itself does, do not look at the digest; keytool does.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guest/java-store.h"

#define BEGIN "-----BEGIN CERTIFICATE-----"
#define END "-----END CERTIFICATE-----"

enum { DIGEST_SIZE = 20, BLOCK_SIZE = 64, NAME_SIZE = 16, ENTRY_SIZE = 4 + 2 + NAME_SIZE + 8 + 2 + 5 + 4 };

/* ---- SHA-1 (FIPS 180-4) ---- */

typedef struct Digest {
        uint32_t state[5];
        uint64_t size;
        uint8_t block[BLOCK_SIZE];
} Digest;

static uint32_t rotate(uint32_t x, unsigned n) {
        return x << n | x >> (32 - n);
}

static uint32_t mix(unsigned t, uint32_t b, uint32_t c, uint32_t d) {
        if (t < 20)
                return ((b & c) | (~b & d)) + 0x5a827999;
        if (t < 40)
                return (b ^ c ^ d) + 0x6ed9eba1;
        if (t < 60)
                return ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc;
        return (b ^ c ^ d) + 0xca62c1d6;
}

static void digest_block(Digest *s) {
        uint32_t w[80], v[5];

        for (unsigned t = 0; t < 16; t++) {
                const uint8_t *p = s->block + 4 * (size_t) t;

                w[t] = (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16 | (uint32_t) p[2] << 8 | p[3];
        }
        for (unsigned t = 16; t < 80; t++)
                w[t] = rotate(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);

        memcpy(v, s->state, sizeof(v));
        for (unsigned t = 0; t < 80; t++) {
                uint32_t next = rotate(v[0], 5) + mix(t, v[1], v[2], v[3]) + v[4] + w[t];

                v[4] = v[3];
                v[3] = v[2];
                v[2] = rotate(v[1], 30);
                v[1] = v[0];
                v[0] = next;
        }
        for (unsigned i = 0; i < 5; i++)
                s->state[i] += v[i];
}

static void digest_feed(Digest *s, const void *data, size_t size) {
        const uint8_t *p = data;

        for (size_t i = 0; i < size; i++) {
                s->block[s->size++ % BLOCK_SIZE] = p[i];
                if (s->size % BLOCK_SIZE == 0)
                        digest_block(s);
        }
}

/* ---- what is written ---- */

typedef struct Out {
        uint8_t *data;
        size_t size;
} Out;

static void put_number(Out *out, uint64_t value, unsigned bytes) {
        while (bytes-- > 0)
                out->data[out->size++] = (uint8_t) (value >> 8 * bytes);
}

static void put_text(Out *out, const char *text) {
        size_t n = strlen(text);

        put_number(out, n, 2);
        memcpy(out->data + out->size, text, n);
        out->size += n;
}

static void put_digest(Out *out) {
        static const char password[] = "\0c\0h\0a\0n\0g\0e\0i\0t", salt[] = "Mighty Aphrodite";
        Digest s = { .state = { 0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0 } };
        uint8_t length[8];
        uint64_t bits;

        digest_feed(&s, password, sizeof(password) - 1);
        digest_feed(&s, salt, sizeof(salt) - 1);
        digest_feed(&s, out->data, out->size);
        bits = s.size * 8;
        for (unsigned i = 0; i < sizeof(length); i++)
                length[i] = (uint8_t) (bits >> 8 * (7 - i));
        digest_feed(&s, "\x80", 1);
        while (s.size % BLOCK_SIZE != BLOCK_SIZE - sizeof(length))
                digest_feed(&s, "", 1);
        digest_feed(&s, length, sizeof(length));
        for (unsigned i = 0; i < 5; i++)
                put_number(out, s.state[i], 4);
}

/* ---- what is read ---- */

static int digit_value(char c) {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        const char *p = c ? strchr(digits, c) : NULL;

        return p ? (int) (p - digits) : -1;
}

/* Base64 with line ends, straight behind what is there: the number of bytes, or 0 if it is none. */
static size_t put_base64(Out *out, const char *p, const char *end) {
        size_t before = out->size, n = 0;
        uint32_t bits = 0;

        for (; p < end && *p != '='; p++) {
                int value = digit_value(*p);

                if (value >= 0) {
                        bits = bits << 6 | (uint32_t) value;
                        if (++n % 4 != 1)
                                out->data[out->size++] = (uint8_t) (bits >> (6 - 2 * ((n - 1) % 4)));
                } else if (*p != '\n' && *p != '\r') {
                        out->size = before;
                        return 0;
                }
        }
        return out->size - before;
}

static void put_certificate(Out *out, uint32_t number, uint64_t now_ms, const char *begin, const char *end, uint32_t *n) {
        size_t before = out->size, at, size;
        char name[NAME_SIZE];

        (void) snprintf(name, sizeof(name), "ca-%u", number);
        put_number(out, 2, 4);
        put_text(out, name);
        put_number(out, now_ms, 8);
        put_text(out, "X.509");
        at = out->size;
        put_number(out, 0, 4);
        size = put_base64(out, begin, end);
        if (size == 0) {
                out->size = before;
                return;
        }
        put_number(&(Out) { out->data, at }, size, 4);
        (*n)++;
}

int java_store_make(const char *pem, size_t size, uint64_t now_ms, uint8_t **ret, size_t *ret_size) {
        const char *p = pem, *end = pem + size;
        uint32_t n = 0;
        Out out = {};

        /* Base64 is longer than what it stands for, and PEM's two lines than all else of an entry */
        _Static_assert(sizeof(BEGIN) + sizeof(END) > ENTRY_SIZE, "an entry could be longer than what it is made of");
        out.data = malloc(12 + size + DIGEST_SIZE);
        if (!out.data)
                return -ENOMEM;

        put_number(&out, 0xfeedfeed, 4);
        put_number(&out, 2, 4);
        put_number(&out, 0, 4);
        while ((p = memmem(p, (size_t) (end - p), BEGIN, strlen(BEGIN)))) {
                const char *begin = p + strlen(BEGIN);

                p = memmem(begin, (size_t) (end - begin), END, strlen(END));
                if (!p)
                        break;
                put_certificate(&out, n + 1, now_ms, begin, p, &n);
        }
        put_number(&(Out) { out.data, 8 }, n, 4);
        put_digest(&out);

        *ret = out.data;
        *ret_size = out.size;
        return 0;
}
