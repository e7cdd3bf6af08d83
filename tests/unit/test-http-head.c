/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "proxy/http-head.h"

/* What the follower saw, in pieces of `piece` bytes: "[head-bytes:METHOD target host]" "{body and end bytes}". */
static const char *follow(const char *data, size_t piece) {
        static char out[4096];
        _cleanup_(http_follower_freep) HttpFollower *f = NULL;
        size_t size = strlen(data), since = 0, n = 0;

        assert_return_code(http_follower_new(&f), 0);
        out[0] = '\0';
        for (size_t at = 0; at < size;) {
                size_t m = size - at < piece ? size - at : piece, taken;
                HttpOutcome o = http_follower_feed(f, data + at, m, &taken);
                const HttpRequest *q = http_follower_request(f);

                assert_true(taken <= m);
                at += taken;
                since += taken;
                switch (o) {
                case HTTP_NEED_MORE:
                        assert_int_equal(taken, m);
                        break;
                case HTTP_HEAD_END:
                        n += (size_t) snprintf(out + n, sizeof(out) - n, "[%zu:%s %s %s%s%s]", since, q->method, q->target, q->host ?: "-", q->upgrade ? " upgrade" : "",
                                               q->second_path ? " second" : "");
                        since = 0;
                        break;
                case HTTP_MESSAGE_END:
                        n += (size_t) snprintf(out + n, sizeof(out) - n, "{%zu}", since);
                        since = 0;
                        break;
                case HTTP_REFUSED:
                        (void) snprintf(out + n, sizeof(out) - n, "!");
                        assert_int_equal(http_follower_feed(f, data, size, &taken), HTTP_REFUSED);
                        return out;
                }
        }
        return out;
}

static void check(const char *data, const char *expected) {
        for (size_t piece = 1; piece < 100; piece++)
                assert_string_equal(follow(data, piece), expected);
}

static void test_requests(void **state) {
        check("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", "[35:GET / a.example]");
        check("GET / HTTP/1.1\r\nhost:a.example:80  \r\nX: y\r\n\r\n", "[45:GET / a.example:80]");
        check("GET / HTTP/1.0\r\n\r\n", "[18:GET / -]");
        check("GET / HTTP/1.0\r\n\r\nGET /x HTTP/1.1\r\nHost: b\r\n\r\n", "[18:GET / -]{0}!"); /* nothing may follow it */
        check("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /y HTTP/1.1\r\nHost: b\r\n\r\n",
              "[48:POST /x a]{5}[28:GET /y b]");
        check("PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /y HTTP/1.1\r\nHost: b\r\n\r\n",
              "[56:PUT /x a]{13}[28:GET /y b]");
}

/* The body of one request may look like another: it is none. */
static void test_smuggling(void **state) {
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 28\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\nX", "[48:POST / a]{28}");
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "!");
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nX:\r\nHost: b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n Host: b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost : a\r\n\r\n", "!");
        check("GET / HTTP/1.1\nHost: a\n\n", "!");
        check("GET / HTTP/2.0\r\nHost: a\r\n\r\n", "!");
        check("SSH-2.0-x\r\n", "!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", "!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", "!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n", "!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n", "!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\x0b\r\n\r\n", "!");
        check("POST / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n", "!"); /* no such thing in 1.0 */
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked \r\n\r\n", "!"); /* some read this, some do not */
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:  Chunked\r\n\r\n", "[57:POST / a]");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nX\r\n0\r\n\r\n", "[56:POST / a]!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\nX\r\n0\r\n\r\n", "[56:POST / a]!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nXY\r\n0\r\n\r\n", "[56:POST / a]!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1 \r\nX\r\n0\r\n\r\n", "[56:POST / a]!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\nX\r\n0\r\n\r\n", "[56:POST / a]!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\nX\r\n0\r\n\r\n", "[56:POST / a]!");
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: b\r\n\r\n", "[56:POST / a]!");
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nX", "!");
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\nX", "!");
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551617\r\n\r\nX", "!");
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", "!");
        check("X:\r\n", "!");
        check("GET / HTTP/1.1\r\nX:\r\nHost: a\r\nX:\r\nY:\r\nHost: b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nX:\r\nHost: a\r\n\r\n", "[31:GET / a]");
        check("GET / HTTP/1.1\r\nHost:\r\nX: a\r\n\r\n", "[31:GET / ]");
        check("GET / HTTP/1.1\r\nHost: a\r\nHost\xc2\xa0: b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nX: y\rHost: b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nX: y\nHost: b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\n\rGET / HTTP/1.1\r\nHost: b\r\n\r\n", "!");
        check("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", "!");
        check("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", "!");
        check("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\n Host: b\r\nHost: a\r\n\r\n", "!");
        check("GET /\r\n\r\n", "!"); /* HTTP/0.9 */
        check("DESCRIBE / RTSP/1.0\r\nHost: a\r\n\r\n", "!");
        check("OPTIONS / RTSP/1.0\r\nHost: a\r\n\r\n", "!");
        check("SOURCE / ICE/1.0\r\nHost: a\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", "[62:GET / a upgrade]");
        check("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n", "[55:CONNECT a.example:443 a.example:443 upgrade]");
}

/* Not every server reads the body of a GET. */
static void test_get_with_body(void **state) {
        check("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 28\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n", "!");
        check("HEAD / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "!");
        check("GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", "[65:GET / a]{1}");
        check("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "[46:GET / a]");
}

/* Another path in a field: of that request alone, and not after its head. */
static void test_second_path(void **state) {
        check("MOVE /a HTTP/1.1\r\nHost: a\r\nDestination: /b\r\n\r\nGET /c HTTP/1.1\r\nHost: a\r\n\r\n", "[46:MOVE /a a second]{0}[28:GET /c a]");
        check("GET / HTTP/1.1\r\nHost: a\r\nX_Amz_Copy_Source:\r\n\r\n", "[47:GET / a second]");
        check("GET / HTTP/1.1\r\nHost: a\r\nDestinations: /b\r\n\r\n", "[45:GET / a]");
        check("COPY /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nDestination: /b\r\n\r\n", "[57:COPY /x a]!");
        check("COPY /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nDestinations: /b\r\n\r\n", "[57:COPY /x a]{23}");
}

/* Some servers take another method, or another path, than the first line has. */
static void test_overrides(void **state) {
        check("POST / HTTP/1.1\r\nHost: a\r\nX-HTTP-Method-Override: DELETE\r\n\r\n", "!");
        check("POST / HTTP/1.1\r\nHost: a\r\nx-http-method: DELETE\r\n\r\n", "!");
        check("POST / HTTP/1.1\r\nX-Method-Override:\r\nHost: a\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nX-Original-URL: /b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nX-ReWrite-Url: /b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nX-Original-URLs: /b\r\n\r\n", "[48:GET / a]");
        check("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Host: b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nForwarded: host=b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nX_Original_URI: /b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nX-Envoy-Original-Method: b\r\n\r\n", "!");
        check("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: b\r\n\r\n", "[47:GET / a]");
}

static void test_plain(void **state) {
        static const struct {
                const char *target;
                bool upgrade, plain;
        } cases[] = {
                { "/", false, true }, { "*", false, true }, { "//b.example/", false, true }, { "/", true, false }, { "*/", false, false },
                { "http://b.example/", false, false }, { "http://a@b.example/", false, false }, { "b.example:443", false, false },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                HttpRequest request = { .method = "GET", .target = cases[i].target, .host = "a.example", .upgrade = cases[i].upgrade };

                assert_int_equal(http_request_is_plain(&request), cases[i].plain);
        }
}

static void test_long_head(void **state) {
        _cleanup_(http_follower_freep) HttpFollower *f = NULL;
        const char *start = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
        char fill[1000];
        HttpOutcome o = HTTP_NEED_MORE;
        size_t taken;

        memset(fill, 'x', sizeof(fill));
        assert_return_code(http_follower_new(&f), 0);
        assert_int_equal(http_follower_feed(f, start, strlen(start), &taken), HTTP_NEED_MORE);
        for (int i = 0; i < 17; i++)
                o = http_follower_feed(f, fill, sizeof(fill), &taken);
        assert_int_equal(o, HTTP_REFUSED);
}

static void test_look(void **state) {
        static const struct {
                const char *text;
                HttpLook look;
        } cases[] = {
                { "GET / HTTP/1.1", HTTP_LOOK_YES }, { "GET", HTTP_LOOK_MAYBE }, { "G", HTTP_LOOK_MAYBE }, { "M-SEARCH *", HTTP_LOOK_YES },
                { "get /", HTTP_LOOK_NO }, { "SSH-2.0-x", HTTP_LOOK_NO }, { " GET", HTTP_LOOK_NO }, { "\x16\x03\x01", HTTP_LOOK_NO },
                { "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", HTTP_LOOK_NO },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_int_equal(http_looks_like((const uint8_t *) cases[i].text, strlen(cases[i].text)), cases[i].look);
}

static void test_split(void **state) {
        char host[HTTP_HOST_MAX + 1];
        const char *path;
        uint16_t port;

        assert_true(http_split_authority("a.example:8443", 443, host, &port));
        assert_string_equal(host, "a.example");
        assert_int_equal(port, 8443);
        assert_true(http_split_authority("a.example", 443, host, &port));
        assert_int_equal(port, 443);
        assert_true(http_split_authority("[::1]:80", 443, host, &port));
        assert_string_equal(host, "[::1]");
        assert_true(http_split_authority("[::1]", 443, host, &port));
        assert_int_equal(port, 443);
        assert_false(http_split_authority("a:", 443, host, &port));
        assert_false(http_split_authority("a:0", 443, host, &port));
        assert_false(http_split_authority("a:65536", 443, host, &port));
        assert_false(http_split_authority("a:+80", 443, host, &port));
        assert_false(http_split_authority(":80", 443, host, &port));
        assert_false(http_split_authority("", 443, host, &port));
        assert_false(http_split_authority("a.example", 0, host, &port));
        assert_false(http_split_authority("[::1]", 0, host, &port));
        assert_true(http_split_authority("a.example:1", 0, host, &port));

        assert_true(http_split_absolute("http://a.example:81/x?y", host, &path));
        assert_string_equal(host, "a.example:81");
        assert_string_equal(path, "/x?y");
        assert_true(http_split_absolute("HTTP://a.example", host, &path));
        assert_string_equal(path, "/");
        assert_false(http_split_absolute("http://u:p@a.example/", host, &path));
        assert_false(http_split_absolute("https://a.example/", host, &path));
        assert_false(http_split_absolute("http:///x", host, &path));
        assert_false(http_split_absolute("http://a?x", host, &path));
        assert_false(http_split_absolute("/x", host, &path));
}

static void test_rewrite_behind_empty_lines(void **state) {
        static const char head[] = "\r\n\r\nGET http://a.example/ HTTP/1.0\r\nHost: a.example\r\n\r\n";
        static const char expected[] = "GET / HTTP/1.0\r\nHost: a.example\r\nConnection: close\r\n\r\n";
        _cleanup_(http_follower_freep) HttpFollower *f = NULL;
        _cleanup_free_ char *out = NULL;
        size_t taken, n;

        assert_return_code(http_follower_new(&f), 0);
        assert_int_equal(http_follower_feed(f, head, sizeof(head) - 1, &taken), HTTP_HEAD_END);
        out = http_rewrite_head(head, taken, http_follower_request(f), "/", &n);
        assert_int_equal(n, sizeof(expected) - 1);
        assert_memory_equal(out, expected, n);
}

static void test_rewrite(void **state) {
        static const struct {
                const char *fields, *expected;
        } cases[] = {
                { "Host: a.example\r\nProxy-Connection: keep-alive\r\nproxy-authorization: x\r\nConnection: keep-alive, X-Y\r\nContent-Length: 5\r\n",
                  "Host: a.example\r\nContent-Length: 5\r\n" },
                /* what a Connection header names goes, wherever it stands, but not what says who is asked and where the message ends */
                { "X-Y: 1\r\nHost: a.example\r\nConnection: x-y\r\nCONNECTION:\tHost ,content-length,TRANSFER-encoding,X-Z\r\nX-Z: 2\r\nx-zz: 3\r\nContent-Length: 5\r\n",
                  "Host: a.example\r\nx-zz: 3\r\nContent-Length: 5\r\n" },
                { "Host: a.example\r\nTE: trailers\r\nKeep-Alive: timeout=5\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n",
                  "Host: a.example\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n" },
                { "Host: a.example\r\nConnection:\r\nX-Y:\r\nAuthorization: Bearer x\r\n", "Host: a.example\r\nX-Y:\r\nAuthorization: Bearer x\r\n" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_(http_follower_freep) HttpFollower *f = NULL;
                _cleanup_free_ char *out = NULL;
                char head[1024], expected[1024];
                size_t taken, n;

                n = (size_t) snprintf(head, sizeof(head), "POST http://a.example/x HTTP/1.1\r\n%s\r\n", cases[i].fields);
                (void) snprintf(expected, sizeof(expected), "POST /x HTTP/1.1\r\n%sConnection: close\r\n\r\n", cases[i].expected);
                assert_return_code(http_follower_new(&f), 0);
                assert_int_equal(http_follower_feed(f, head, n, &taken), HTTP_HEAD_END);
                assert_int_equal(taken, n);
                out = http_rewrite_head(head, taken, http_follower_request(f), "/x", &n);
                assert_non_null(out);
                assert_int_equal(n, strlen(expected));
                assert_memory_equal(out, expected, n);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_requests),
                cmocka_unit_test(test_smuggling),
                cmocka_unit_test(test_get_with_body),
                cmocka_unit_test(test_overrides),
                cmocka_unit_test(test_second_path),
                cmocka_unit_test(test_plain), cmocka_unit_test(test_long_head),
                cmocka_unit_test(test_look),
                cmocka_unit_test(test_split),
                cmocka_unit_test(test_rewrite),
                cmocka_unit_test(test_rewrite_behind_empty_lines),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
