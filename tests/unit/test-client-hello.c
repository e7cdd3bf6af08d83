/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/ssl.h>
#include <string.h>

#include "proxy/client-hello.h"
#include "util/cleanup.h"

/* What OpenSSL itself sends for this name (NULL: none). */
static size_t make_hello(const char *name, uint8_t *buffer, size_t max) {
        SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
        SSL *ssl = SSL_new(ctx);
        BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
        int n;

        SSL_set_bio(ssl, in, out);
        if (name)
                (void) SSL_set_tlsext_host_name(ssl, name);
        assert_int_equal(SSL_connect(ssl), -1);
        n = BIO_read(out, buffer, (int) max);
        assert_true(n > 100);
        SSL_free(ssl);
        SSL_CTX_free(ctx);
        return (size_t) n;
}

/* The same hello in records of `piece` bytes. */
static size_t cut_records(const uint8_t *hello, size_t size, size_t piece, uint8_t *ret) {
        size_t n = 0;

        for (size_t at = 5; at < size; at += piece) {
                size_t m = size - at < piece ? size - at : piece;

                memcpy(ret + n, (uint8_t[]) { 22, 3, 1, (uint8_t) (m >> 8), (uint8_t) m }, 5);
                memcpy(ret + n + 5, hello + at, m);
                n += 5 + m;
        }
        return n;
}

/* Appends an extension to a hello made by OpenSSL, and corrects the four lengths around it. */
static size_t add_extension(uint8_t *hello, size_t size, uint16_t type, const void *data, size_t n) {
        size_t at = 5 + 4 + 2 + 32, ext;

        memcpy(hello + size, (uint8_t[]) { (uint8_t) (type >> 8), (uint8_t) type, (uint8_t) (n >> 8), (uint8_t) n }, 4);
        memcpy(hello + size + 4, data, n);
        n += 4;
        at += 1 + hello[at];
        at += 2 + (hello[at] << 8 | hello[at + 1]);
        at += 1 + hello[at];
        ext = (size_t) (hello[at] << 8 | hello[at + 1]) + n;
        hello[at] = (uint8_t) (ext >> 8);
        hello[at + 1] = (uint8_t) ext;
        hello[3] = (uint8_t) ((size + n - 5) >> 8);
        hello[4] = (uint8_t) (size + n - 5);
        hello[7] = (uint8_t) ((size + n - 9) >> 8);
        hello[8] = (uint8_t) (size + n - 9);
        return size + n;
}

static void test_name(void **state) {
        uint8_t hello[CLIENT_HELLO_MAX];
        ClientHello ret = {};
        size_t n;

        n = make_hello("api.example.org", hello, sizeof(hello));
        assert_int_equal(client_hello_parse(hello, n, &ret), CLIENT_HELLO_COMPLETE);
        assert_true(ret.has_sni);
        assert_false(ret.has_ech);
        assert_string_equal(ret.sni, "api.example.org");

        for (size_t i = 0; i < n; i++)
                assert_int_equal(client_hello_parse(hello, i, &ret), CLIENT_HELLO_MORE);

        n = make_hello(NULL, hello, sizeof(hello));
        assert_int_equal(client_hello_parse(hello, n, &ret), CLIENT_HELLO_COMPLETE);
        assert_false(ret.has_sni);
        assert_string_equal(ret.sni, "");
}

static void test_many_records(void **state) {
        uint8_t hello[2048], cut[CLIENT_HELLO_MAX];
        size_t n, n_cut;

        n = make_hello("api.example.org", hello, sizeof(hello));
        for (size_t piece = 1; piece < 64; piece++) {
                ClientHello ret = {};

                n_cut = cut_records(hello, n, piece, cut);
                assert_int_equal(client_hello_parse(cut, n_cut, &ret), CLIENT_HELLO_COMPLETE);
                assert_string_equal(ret.sni, "api.example.org");
                assert_int_equal(client_hello_parse(cut, n_cut - 1, &ret), CLIENT_HELLO_MORE);
        }
}

static void test_ech(void **state) {
        /* of the RFC and of each draft; then neighbours that are none */
        static const uint16_t hiding[] = { 0xfe0d, 0xfe0c, 0xfe0b, 0xfe0a, 0xfe09, 0xfe08, 0xff02, 0xffce },
                              plain[] = { 0xfe07, 0xfe0e, 0xff01, 0xff03, 0xffcd, 0xffcf };

        for (size_t i = 0; i < ELEMENTSOF(hiding) + ELEMENTSOF(plain); i++) {
                bool hides = i < ELEMENTSOF(hiding);
                uint8_t hello[4096];
                ClientHello ret = {};
                size_t n;

                n = make_hello("api.example.org", hello, sizeof(hello));
                n = add_extension(hello, n, hides ? hiding[i] : plain[i - ELEMENTSOF(hiding)], "\0\0\1\0\1\0\0\0\0\0", 10);
                assert_int_equal(client_hello_parse(hello, n, &ret), CLIENT_HELLO_COMPLETE);
                assert_int_equal(ret.has_ech, hides);
                assert_string_equal(ret.sni, "api.example.org");
        }
}

static void test_ambiguous(void **state) {
        static const char second[] = "\0\x06\0\0\x03"
                                     "a.b",
                          two[] = "\0\x0c\0\0\x03"
                                  "a.b\0\0\x03"
                                  "c.d",
                          zero[] = "\0\x06\0\0\x03"
                                   "a\0b",
                          space[] = "\0\x06\0\0\x03"
                                    "a b",
                          empty[] = "\0\x03\0\0\0", other[] = "\0\x06\1\0\x03"
                                                              "a.b",
                          behind[] = "\0\x06\0\0\x03"
                                     "a.bx";
        uint8_t hello[4096];
        ClientHello ret = {};
        size_t n;

        n = make_hello("api.example.org", hello, sizeof(hello));
        n = add_extension(hello, n, 0, second, sizeof(second) - 1);
        assert_int_equal(client_hello_parse(hello, n, &ret), CLIENT_HELLO_BROKEN);

        for (size_t i = 0; i < 6; i++) {
                const char *const bodies[] = { two, zero, space, empty, other, behind };
                const size_t sizes[] = { sizeof(two), sizeof(zero), sizeof(space), sizeof(empty), sizeof(other), sizeof(behind) };

                n = make_hello(NULL, hello, sizeof(hello));
                n = add_extension(hello, n, 0, bodies[i], sizes[i] - 1);
                assert_int_equal(client_hello_parse(hello, n, &ret), CLIENT_HELLO_BROKEN);
        }

        n = make_hello(NULL, hello, sizeof(hello));
        n = add_extension(hello, n, 0, second, sizeof(second) - 1);
        assert_int_equal(client_hello_parse(hello, n, &ret), CLIENT_HELLO_COMPLETE);
        assert_string_equal(ret.sni, "a.b");
}

static void test_other_protocols(void **state) {
        static const char *const texts[] = { "GET / HTTP/1.1\r\n", "SSH-2.0-x\r\n", "\x80\x2e\x01\x03\x01", "\x15\x03\x01\x00\x02", "\x16\x02\x01", "\x16\x03\x01\x00\x10\x02" };
        uint8_t hello[2048], cut[CLIENT_HELLO_MAX];
        ClientHello ret = {};
        size_t n;

        for (size_t i = 0; i < ELEMENTSOF(texts); i++)
                assert_int_equal(client_hello_parse((const uint8_t *) texts[i], i < 3 ? strlen(texts[i]) : i == 4 ? 3 : i == 3 ? 5 : 6, &ret),
                                 CLIENT_HELLO_NOT_TLS);

        /* an empty record, an alert between the pieces, a message that is too long, too many bytes */
        n = make_hello("a.b", hello, sizeof(hello));
        memcpy(cut, hello, 5);
        cut[3] = cut[4] = 0;
        memcpy(cut + 5, hello, n);
        assert_int_equal(client_hello_parse(cut, n + 5, &ret), CLIENT_HELLO_NOT_TLS);

        /* another message behind it in the same record, there already or still to come; a record of its own may follow */
        memcpy(cut, hello, n);
        memcpy(cut + n, "\1\0\0\0", 4);
        cut[3] = (uint8_t) ((n - 5 + 4) >> 8);
        cut[4] = (uint8_t) (n - 5 + 4);
        assert_int_equal(client_hello_parse(cut, n + 4, &ret), CLIENT_HELLO_BROKEN);
        assert_int_equal(client_hello_parse(cut, n, &ret), CLIENT_HELLO_BROKEN);
        memcpy(cut, hello, n);
        memcpy(cut + n, "\x17\3\3\0\1x", 6);
        assert_int_equal(client_hello_parse(cut, n + 6, &ret), CLIENT_HELLO_COMPLETE);

        n = cut_records(hello, n, 100, cut);
        cut[105] = 21;
        assert_int_equal(client_hello_parse(cut, n, &ret), CLIENT_HELLO_BROKEN);

        memcpy(cut, "\x16\x03\x01\x40\x00\x01\x00\x40\x00", 9);
        assert_int_equal(client_hello_parse(cut, 9, &ret), CLIENT_HELLO_BROKEN);
        memcpy(cut, "\x16\x03\x01\x3f\x00\x01\x00\x3e\xfc", 9);
        assert_int_equal(client_hello_parse(cut, 9, &ret), CLIENT_HELLO_MORE);
        memcpy(cut, "\x16\x03\x01\x00\x01\x01\x16\x03\x01\x3f\xff\x00\x3f\xf0", 14);
        assert_int_equal(client_hello_parse(cut, CLIENT_HELLO_MAX, &ret), CLIENT_HELLO_BROKEN);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_name),
                cmocka_unit_test(test_many_records),
                cmocka_unit_test(test_ech),
                cmocka_unit_test(test_ambiguous),
                cmocka_unit_test(test_other_protocols),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
