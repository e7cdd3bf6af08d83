/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Java's store of a bundle, read here as Java's own documentation of the form says it; that Java reads it is seen in test_credential_clients. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/sha.h>

#include "guest/java-store.h"
#include "secret/run-ca.h"
#include "util/cleanup.h"
#include "util/secret.h"
#include "util/text.h"

#define NOW 1790000000123ULL

typedef struct Store {
        uint8_t *data;
        size_t size, at;
} Store;

static uint64_t number(Store *s, unsigned bytes) {
        uint64_t value = 0;

        assert_true(s->at + bytes <= s->size);
        while (bytes-- > 0)
                value = value << 8 | s->data[s->at++];
        return value;
}

static void expect_text(Store *s, const char *text) {
        size_t n = number(s, 2);

        assert_int_equal(n, strlen(text));
        assert_true(s->at + n <= s->size);
        assert_memory_equal(s->data + s->at, text, n);
        s->at += n;
}

static void expect_entry(Store *s, const char *name, const void *der, size_t size) {
        assert_int_equal(number(s, 4), 2);
        expect_text(s, name);
        assert_true(number(s, 8) == NOW);
        expect_text(s, "X.509");
        assert_int_equal(number(s, 4), size);
        assert_true(s->at + size <= s->size);
        assert_memory_equal(s->data + s->at, der, size);
        s->at += size;
}

/* Its head; n entries are to follow. */
static Store open_store(const char *pem, size_t n) {
        Store s = {};

        assert_int_equal(java_store_make(pem, strlen(pem), NOW, &s.data, &s.size), 0);
        assert_true(number(&s, 4) == 0xfeedfeed);
        assert_int_equal(number(&s, 4), 2);
        assert_int_equal(number(&s, 4), n);
        return s;
}

/* Nothing but the digest is left, and it is right by another program's arithmetic. */
static void close_store(Store *s) {
        static const char prefix[] = "\0c\0h\0a\0n\0g\0e\0i\0tMighty Aphrodite";
        uint8_t *all = malloc(sizeof(prefix) - 1 + s->at), digest[SHA_DIGEST_LENGTH];

        memcpy(all, prefix, sizeof(prefix) - 1);
        memcpy(all + sizeof(prefix) - 1, s->data, s->at);
        assert_int_equal(s->size, s->at + sizeof(digest));
        (void) SHA1(all, sizeof(prefix) - 1 + s->at, digest);
        assert_memory_equal(s->data + s->at, digest, sizeof(digest));
        free(all);
        free(s->data);
}

static char *to_pem(const void *der, size_t size) {
        BIO *bio = BIO_new(BIO_s_mem());
        BUF_MEM *mem;
        char *text;

        assert_true(PEM_write_bio(bio, "CERTIFICATE", "", der, (long) size) > 0);
        (void) BIO_get_mem_ptr(bio, &mem);
        text = strndup(mem->data, mem->length);
        BIO_free(bio);
        return text;
}

/* The run's own CA, behind another, with what such files have between them. */
static void test_bundle(void **state) {
        static const char *const names[] = { "api.example.org" };
        _cleanup_free_ char *one = NULL, *two = NULL, *bundle = NULL;
        uint64_t from = 1789000000ULL * 1000000;
        unsigned char *der[2] = {};
        int size[2];
        Store s;

        for (size_t i = 0; i < 2; i++) {
                _cleanup_(secret_freep) Secret *key = NULL;
                char **pem = i == 0 ? &one : &two;
                BIO *bio;
                X509 *cert;

                assert_int_equal(run_ca_make(i == 0 ? "r0123456789ab" : "r0123456789cd", names, 1, from, from + 3600000000ULL, pem, &key), 0);
                bio = BIO_new_mem_buf(*pem, -1);
                cert = PEM_read_bio_X509(bio, NULL, NULL, NULL);
                size[i] = i2d_X509(cert, &der[i]);
                assert_true(size[i] > 0);
                X509_free(cert);
                BIO_free(bio);
        }
        bundle = text_format("# some CA\n%s\r\nanything\n%s", one, two);
        s = open_store(bundle, 2);
        expect_entry(&s, "ca-1", der[0], (size_t) size[0]);
        expect_entry(&s, "ca-2", der[1], (size_t) size[1]);
        close_store(&s);
        OPENSSL_free(der[0]);
        OPENSSL_free(der[1]);
}

/* Whatever the length: both of Base64's ends, and every place in a block of the digest where the text may end. */
static void test_sizes(void **state) {
        uint8_t der[200];

        for (size_t i = 0; i < sizeof(der); i++)
                der[i] = (uint8_t) (i * 37);
        for (size_t size = 1; size <= sizeof(der); size++) {
                _cleanup_free_ char *pem = to_pem(der, size);
                Store s = open_store(pem, 1);

                expect_entry(&s, "ca-1", der, size);
                close_store(&s);
        }
}

/* What is no certificate is left out, and what is beside it stays. */
static void test_broken(void **state) {
#define GOOD "-----BEGIN CERTIFICATE-----\nZ29vZA==\n-----END CERTIFICATE-----\n"
        static const struct {
                const char *text;
                size_t n;
        } cases[] = {
                { "", 0 },
                { "-----BEGIN CERTIFICATE-----", 0 },
                { "-----BEGIN CERTIFICATE-----\nZ29v", 0 },
                { "-----BEGIN CERTIFICATE----------END CERTIFICATE-----", 0 },
                { "-----BEGIN PRIVATE KEY-----\nZ29vZA==\n-----END PRIVATE KEY-----\n" GOOD, 1 },
                { "-----BEGIN CERTIFICATE-----\nZ2*vZA==\n-----END CERTIFICATE-----\n" GOOD, 1 },
                { GOOD "-----BEGIN CERTIFICATE-----\nZ29vZA==\n", 1 },
                { GOOD "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", 1 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                Store s = open_store(cases[i].text, cases[i].n);

                if (cases[i].n > 0)
                        expect_entry(&s, "ca-1", "good", 4);
                close_store(&s);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_bundle),
                cmocka_unit_test(test_sizes),
                cmocka_unit_test(test_broken),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
