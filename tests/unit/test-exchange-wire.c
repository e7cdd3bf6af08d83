/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* HTTP/1.1 to the letter, in both directions: what is carried, what is changed, what is refused. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <zlib.h>

#include <cmocka.h>

#include "exchange-world.h"

/* ---- the origin ---- */

#define BODY "{\"key\":\"" SECRET "\", \"words\":\"and so on, and so on, and so on\"}"

static bool send_gzip(SSL *ssl, const char *fields, const void *data, size_t size, size_t cut) {
        _cleanup_free_ char *head = NULL;
        uint8_t *encoded;
        z_stream z = {};
        bool good;

        if (deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
                return false;
        encoded = malloc(deflateBound(&z, size));
        z.next_in = (Bytef *) data;
        z.avail_in = (uInt) size;
        z.next_out = encoded;
        z.avail_out = (uInt) deflateBound(&z, size);
        (void) deflate(&z, Z_FINISH);
        (void) deflateEnd(&z);
        head = text_format("HTTP/1.1 200 OK\r\n%sContent-Length: %lu\r\n\r\n", fields, z.total_out - cut);
        good = origin_send(ssl, head) && SSL_write(ssl, encoded, (int) (z.total_out - cut)) > 0;
        free(encoded);
        return good;
}

static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        static const char zeros[4 * 1024 * 1024];

        if (strstr(w->seen, " /v1/gzip"))
                return send_gzip(ssl, "Content-Encoding: gzip\r\nContent-MD5: abc\r\nRepr-Digest: x\r\nX-Kept: 1\r\n", BODY, strlen(BODY), 0);
        if (strstr(w->seen, " /v1/x-gzip"))
                return send_gzip(ssl, "Content-Encoding: X-GZIP\r\n", BODY, strlen(BODY), 0);
        if (strstr(w->seen, " /v1/cut-gzip"))
                return send_gzip(ssl, "Content-Encoding: gzip\r\n", BODY, strlen(BODY), 4);
        if (strstr(w->seen, " /v1/bomb"))
                return send_gzip(ssl, "Content-Encoding: gzip\r\n", zeros, sizeof(zeros), 0);
        if (strstr(w->seen, " /v1/br"))
                return origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nzz");
        if (strstr(w->seen, " /v1/twice"))
                return origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nzz");
        if (strstr(w->seen, " /v1/part"))
                return origin_send(ssl, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/24\r\nContent-Length: 4\r\n\r\nsk-a");
        if (strstr(w->seen, " /v1/fields"))
                return origin_send(ssl, "HTTP/1.1 200 " SECRET "\r\nAlt-Svc: h3=\":443\"\r\nSet-Cookie: k=" SECRET "; Path=/\r\n"
                                        "Location: https://h/?k=sk%2Dant-the-real-one-0123\r\nX-Basic: dTpzay1hbnQtdGhlLXJlYWwtb25lLTAxMjM=\r\n"
                                        "Content-Length: 0\r\n\r\n");
        return origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

/* ---- encoded answers ---- */

CLIENT(client_of_gzip, GET("/v1/gzip") KEY "Accept-Encoding: gzip, br\r\nConnection: close\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 200 "));
       EXPECT(strstr(text, "{\"key\":\"" SENTINEL "\", \"words\":\"and so on, and so on, and so "));
       EXPECT(strstr(text, "X-Kept: 1\r\n")); EXPECT(!strstr(text, "Content-Encoding")); EXPECT(!strstr(text, "MD5")); EXPECT(!strstr(text, "Digest"));
       EXPECT(strstr(text, "0\r\n\r\n")); EXPECT(!strstr(text, SECRET)); EXPECT(proper);)
CLIENT(client_of_x_gzip, GET("/v1/x-gzip") "Accept-Encoding: gzip\r\nConnection: close\r\n\r\n", EXPECT(strstr(text, SENTINEL)); EXPECT(proper);)
CLIENT(client_of_cut_gzip, GET("/v1/cut-gzip") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 200 ")); EXPECT(!strstr(text, "0\r\n\r\n")); EXPECT(!proper);)
CLIENT(client_of_br, GET("/v1/br") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 502 ")); EXPECT(strstr(text, "encoded-response"));)
CLIENT(client_of_twice, GET("/v1/twice") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 502 ")); EXPECT(strstr(text, "encoded-response"));)

static void client_of_bomb(World *w) {
        SSL *ssl = client_connect(w, NAME);
        static char scrap[65536];
        size_t size = 0;
        int n;

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, GET("/v1/bomb") KEY "\r\n"));
        while ((n = SSL_read(ssl, scrap, sizeof(scrap))) > 0)
                size += (size_t) n;
        EXPECT(size < 2 * 1024 * 1024);
        EXPECT(!(SSL_get_shutdown(ssl) & SSL_RECEIVED_SHUTDOWN));
        SSL_free(ssl);
        ERR_clear_error();
}

static void test_encoded(void **state) {
        World *w = *state;

        play(w, client_of_gzip);
        assert_non_null(strstr(w->seen, "Accept-Encoding: identity\r\n")); /* beside a secret */
        play(w, client_of_x_gzip);
        assert_non_null(strstr(w->seen, "Accept-Encoding: gzip\r\n"));
        play(w, client_of_cut_gzip);
        play(w, client_of_br);
        play(w, client_of_twice);
        play(w, client_of_bomb);
        assert_true(logged(w, "\"reason\":\"encoded-response\""));
}

/* ---- parts and reflections ---- */

CLIENT(client_of_range, GET("/v1/x") KEY "Range: bytes=0-9\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 422 ")); EXPECT(strstr(text, "cannot-substitute"));)
CLIENT(client_of_if_range, GET("/v1/x") KEY "IF-RANGE: \"a\"\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 422 ")); EXPECT(strstr(text, "cannot-substitute"));)
CLIENT(client_of_trace, "TRACE /v1/x HTTP/1.1\r\nHost: " NAME "\r\n" KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 422 ")); EXPECT(strstr(text, "cannot-substitute"));)
CLIENT(client_of_part, GET("/v1/part") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 502 ")); EXPECT(strstr(text, "partial-response")); EXPECT(!strstr(text, "sk-a"));)
CLIENT(client_of_plain_range, GET("/v1/x") "Range: bytes=0-9\r\nConnection: close\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 200 "));)
CLIENT(client_of_plain_part, GET("/v1/part") "Connection: close\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 206 ")); EXPECT(strstr(text, "sk-a"));)

static void test_parts(void **state) {
        static void (*const refused[])(World *) = { client_of_range, client_of_if_range, client_of_trace };
        json_t *methods = json_pack("[ss]", "GET", "TRACE");
        World *w = *state;

        w->credentials[0].methods = methods;
        for (size_t i = 0; i < ELEMENTSOF(refused); i++)
                play(w, refused[i]);
        assert_int_equal(w->n_accepted, 0);
        play(w, client_of_part);
        assert_true(logged(w, "\"reason\":\"partial-response\""));

        /* without a credential they are as good as any other */
        play(w, client_of_plain_range);
        assert_non_null(strstr(w->seen, "Range: bytes=0-9\r\n"));
        play(w, client_of_plain_part);
        json_decref(methods);
}

CLIENT(client_of_fields, GET("/v1/fields") KEY "Connection: close\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 200 " SENTINEL "\r\n")); EXPECT(!strcasestr(text, "alt-svc")); EXPECT(strstr(text, "Set-Cookie: k=" SENTINEL "; Path=/\r\n"));
       EXPECT(strstr(text, "Location: https://h/?k=" SENTINEL "\r\n")); EXPECT(strstr(text, "X-Basic: dTpzay1hbnQtYXBpMDMtU2VudGluZWww"));)

static void test_answer_fields(void **state) {
        play(*state, client_of_fields);
}

static int set_up_origin(void **state) {
        int r = set_up(state);

        ((World *) *state)->answer = origin_answer;
        return r;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_origin, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_encoded),
                TEST(test_parts),
                TEST(test_answer_fields),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
