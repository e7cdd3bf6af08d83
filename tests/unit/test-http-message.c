/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "inject/http-message.h"

/* Reads a text in pieces and writes down what came: "H" head, the body's bytes in brackets, "E" end, "!"
 * an error. Heads of the last message stay in the reader. */
static char *trace(HttpReader *r, const char *text, size_t size, size_t piece, bool eof) {
        Buffer out = {}, body = {};
        bool failed = false;
        HttpEvent event;
        char *copy;

        for (size_t at = 0; at < size && !failed;) {
                size_t n = size - at < piece ? size - at : piece, used, body_size;
                const uint8_t *p;

                do {
                        if (http_reader_feed(r, text + at, n, &used, &event, &p, &body_size) < 0) {
                                failed = true;
                                break;
                        }
                        assert_true(used <= n);
                        at += used;
                        n -= used;
                        if (event == HTTP_EVENT_BODY)
                                assert_int_equal(buffer_append(&body, p, body_size), 0);
                        if (event == HTTP_EVENT_END && buffer_size(&body) > 0) {
                                (void) buffer_append_text(&out, "[");
                                (void) buffer_append(&out, buffer_data(&body), buffer_size(&body));
                                (void) buffer_append_text(&out, "]");
                                buffer_clear(&body);
                        }
                        if (event == HTTP_EVENT_HEAD)
                                (void) buffer_append_text(&out, "H");
                        if (event == HTTP_EVENT_END)
                                (void) buffer_append_text(&out, "E");
                } while (event != HTTP_EVENT_MORE);
        }
        if (!failed && eof) {
                failed = http_reader_eof(r, &event) < 0;
                if (!failed && event == HTTP_EVENT_END) {
                        (void) buffer_append_text(&out, "[");
                        (void) buffer_append(&out, buffer_data(&body), buffer_size(&body));
                        (void) buffer_append_text(&out, "]E");
                }
        }
        if (failed)
                (void) buffer_append_text(&out, "!");
        (void) buffer_append(&out, "", 1);
        copy = strdup((const char *) buffer_data(&out));
        buffer_done(&out);
        buffer_done(&body);
        return copy;
}

static void check_size(HttpKind kind, bool head, const char *text, size_t size, bool eof, const char *expected) {
        for (size_t piece = 1; piece <= size; piece++) {
                _cleanup_(http_reader_freep) HttpReader *r = NULL;
                _cleanup_free_ char *got = NULL;

                assert_int_equal(http_reader_new(&r, kind), 0);
                http_reader_set_head_request(r, head);
                got = trace(r, text, size, piece, eof);
                if (strcmp(got, expected) != 0)
                        fail_msg("piece %zu of %s: %s instead of %s (%s)", piece, text, got, expected, http_reader_error(r));
        }
}

static void check(HttpKind kind, const char *text, const char *expected) {
        check_size(kind, false, text, strlen(text), false, expected);
}

#define GET "GET /a HTTP/1.1\r\nHost: h\r\n"
#define POST "POST /a HTTP/1.1\r\nHost: h\r\n"
#define OK "HTTP/1.1 200 OK\r\n"

static void test_requests(void **state) {
        check(HTTP_KIND_REQUEST, GET "\r\n", "HE");
        check(HTTP_KIND_REQUEST, GET "\r\n" GET "\r\n", "HEHE");
        check(HTTP_KIND_REQUEST, POST "Content-Length: 5\r\n\r\nhello", "H[hello]E");
        check(HTTP_KIND_REQUEST, POST "Content-Length: 0\r\n\r\n", "HE");
        check(HTTP_KIND_REQUEST, POST "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n02\r\nde\r\n0\r\nT: v\r\n\r\n", "H[abcde]E");
        check(HTTP_KIND_REQUEST, POST "Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", "HE");
        check(HTTP_KIND_REQUEST, POST "Content-Length: 5\r\nConnection: close\r\n\r\nhello", "H[hello]E");
        check(HTTP_KIND_REQUEST, GET "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n" GET "\r\n", "HEHE");
}

static void test_bad_requests(void **state) {
        static const char *const texts[] = {
                POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
                POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n",
                POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
                POST "Content-Length: 5, 5\r\n\r\n",
                POST "Content-Length: +5\r\n\r\n",
                POST "Content-Length: 0x5\r\n\r\n",
                POST "Content-Length: 5 5\r\n\r\n",
                POST "Content-Length: -1\r\n\r\n",
                POST "Content-Length: 99999999999999999999\r\n\r\n",
                POST "Transfer-Encoding: gzip, chunked\r\n\r\n",
                POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
                POST "Transfer-Encoding: identity\r\n\r\n",
                POST "Transfer-Encoding: xchunked\r\n\r\n",
                POST "Transfer-Encoding: \"chunked\"\r\n\r\n",
                POST "Transfer-Encoding : chunked\r\n\r\n",
                GET "X: a\r\n b\r\n\r\n",
                GET "X: a\r\n\tb\r\n\r\n",
                GET " X: a\r\n\r\n",
                GET "X : a\r\n\r\n",
                GET "X: a\nY: b\r\n\r\n",
                GET "X: a\rY: b\r\n\r\n",
                GET "X: a\n\n",
                GET "X: a\001b\r\n\r\n",
                GET "X: a\177b\r\n\r\n",
                GET ": a\r\n\r\n",
                GET "noname\r\n\r\n",
                "GET /a HTTP/1.1\nHost: h\r\n\r\n",
                "GET /a HTTP/1.0\r\nHost: h\r\n\r\n",
                "GET /a HTTP/2.0\r\nHost: h\r\n\r\n",
                "GET /a HTTP/1.1 \r\nHost: h\r\n\r\n",
                "GET /a\r\n\r\n",
                "GET /a\tb HTTP/1.1\r\n\r\n",
                "GET /\303\244 HTTP/1.1\r\n\r\n",
                "CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n",
                "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                "BREW /a HTTP/1.1\r\nHost: h\r\n\r\n",
                "get /a HTTP/1.1\r\nHost: h\r\n\r\n",
                "\026\003\001\002\001",
        };

        for (size_t i = 0; i < ELEMENTSOF(texts); i++)
                check(HTTP_KIND_REQUEST, texts[i], "!");
        check_size(HTTP_KIND_REQUEST, false, GET "X: a\0b\r\n\r\n", sizeof(GET "X: a\0b\r\n\r\n") - 1, false, "!");
        check(HTTP_KIND_REQUEST, POST "Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", "H!");
        check(HTTP_KIND_REQUEST, POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", "H!");
        check(HTTP_KIND_REQUEST, POST "Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n", "H!");
        check(HTTP_KIND_REQUEST, POST "Transfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n0\r\n\r\n", "H!");
        check(HTTP_KIND_REQUEST, POST "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", "H!");
}

static void test_responses(void **state) {
        const char *closing = OK "\r\nthe rest";

        check(HTTP_KIND_RESPONSE, OK "Content-Length: 2\r\n\r\nok", "H[ok]E");
        check(HTTP_KIND_RESPONSE, OK "Content-Length: 0\r\n\r\n", "HE");
        check(HTTP_KIND_RESPONSE, OK "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", "H[a]E");
        check(HTTP_KIND_RESPONSE, "HTTP/1.1 100 Continue\r\n\r\n" OK "Content-Length: 2\r\n\r\nok", "HEH[ok]E");
        check(HTTP_KIND_RESPONSE, "HTTP/1.1 204 No Content\r\n\r\n", "HE");
        check(HTTP_KIND_RESPONSE, "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", "HE");
        check_size(HTTP_KIND_RESPONSE, true, OK "Content-Length: 10\r\n\r\n", sizeof(OK "Content-Length: 10\r\n\r\n") - 1, false, "HE");
        check_size(HTTP_KIND_RESPONSE, true, OK "Transfer-Encoding: chunked\r\n\r\n",
                   sizeof(OK "Transfer-Encoding: chunked\r\n\r\n") - 1, false, "HE");
        check_size(HTTP_KIND_RESPONSE, false, closing, strlen(closing), true, "H[the rest]E");
        check_size(HTTP_KIND_RESPONSE, false, OK "Content-Length: 9\r\n\r\nthe", sizeof(OK "Content-Length: 9\r\n\r\nthe") - 1, true, "H!");
        check_size(HTTP_KIND_RESPONSE, false, OK "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
                   sizeof(OK "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n") - 1, true, "H!");
        check(HTTP_KIND_RESPONSE, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "!");
        check(HTTP_KIND_RESPONSE, OK "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", "!");
        check(HTTP_KIND_RESPONSE, OK "Content-Length: 2\r\nContent-Length: 3\r\n\r\n", "!");
        check(HTTP_KIND_RESPONSE, OK "X: a\nY: b\r\n\r\n", "!");
}

static void test_head(void **state) {
        const char *text = "POST /v1/messages?beta=true HTTP/1.1\r\nHost: api.example.org\r\nX-Api-Key:  sk-1 \t\r\nEmpty:\r\n"
                           "Content-Length: 7\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\r\n";
        _cleanup_(http_reader_freep) HttpReader *r = NULL;
        const char *value = NULL;
        const HttpHead *h;
        const uint8_t *body;
        size_t used, body_size;
        HttpEvent event;

        assert_int_equal(http_reader_new(&r, HTTP_KIND_REQUEST), 0);
        assert_int_equal(http_reader_feed(r, text, strlen(text), &used, &event, &body, &body_size), 0);
        assert_int_equal(event, HTTP_EVENT_HEAD);
        h = http_reader_head(r);
        assert_string_equal(h->method, "POST");
        assert_string_equal(h->target, "/v1/messages?beta=true");
        assert_int_equal(h->n_fields, 6);
        assert_int_equal(http_head_find(h, "x-api-key", &value), 1);
        assert_string_equal(value, "sk-1");
        assert_int_equal(http_head_find(h, "empty", &value), 1);
        assert_string_equal(value, "");
        assert_int_equal(h->framing, HTTP_FRAMING_LENGTH);
        assert_int_equal(h->length, 7);
        assert_false(h->keep_alive);
        assert_true(http_field_is_hop_by_hop(h, "X-Hop"));
        assert_true(http_field_is_hop_by_hop(h, "Connection"));
        assert_false(http_field_is_hop_by_hop(h, "x-api-key"));
        assert_int_equal(http_head_find(h, "nope", &value), 0);
}

static void test_bounds(void **state) {
        _cleanup_(http_reader_freep) HttpReader *r = NULL, *s = NULL, *t = NULL;
        const uint8_t *body;
        size_t used, body_size;
        HttpEvent event;
        int rc = 0;

        assert_int_equal(http_reader_new(&r, HTTP_KIND_REQUEST), 0);
        rc = http_reader_feed(r, GET "X: ", sizeof(GET "X: ") - 1, &used, &event, &body, &body_size);
        for (int i = 0; i < 2 * HTTP_HEAD_MAX / 16 && rc >= 0; i++)
                rc = http_reader_feed(r, "aaaaaaaaaaaaaaaa", 16, &used, &event, &body, &body_size);
        assert_int_equal(rc, -EMSGSIZE);
        assert_int_equal(http_reader_feed(r, "\r\n", 2, &used, &event, &body, &body_size), -EMSGSIZE);

        /* full to the byte: the next field has no room, although what counted it stands beyond the maximum */
        assert_int_equal(http_reader_new(&t, HTTP_KIND_REQUEST), 0);
        rc = http_reader_feed(t, GET "X: ", sizeof(GET "X: ") - 1, &used, &event, &body, &body_size);
        for (size_t i = sizeof("GET") + sizeof("/a") + sizeof("Host") + sizeof("h") + sizeof("X"); i < HTTP_HEAD_MAX && rc >= 0; i++)
                rc = http_reader_feed(t, "a", 1, &used, &event, &body, &body_size);
        assert_int_equal(rc, 0);
        assert_int_equal(http_reader_feed(t, "\r\nY: ", 5, &used, &event, &body, &body_size), -EMSGSIZE);

        assert_int_equal(http_reader_new(&s, HTTP_KIND_REQUEST), 0);
        rc = http_reader_feed(s, GET, sizeof(GET) - 1, &used, &event, &body, &body_size);
        for (int i = 0; i < 2 * HTTP_FIELDS_MAX && rc >= 0; i++)
                rc = http_reader_feed(s, "a: b\r\n", 6, &used, &event, &body, &body_size);
        assert_int_equal(rc, -EMSGSIZE);
}

/* Between messages a rest takes all that was read of the last one; in the middle of one it takes nothing. */
static void test_rest(void **state) {
        static const char text[] = "GET /a HTTP/1.1\r\nHost: a\r\nX: 1\r\n\r\nPOST /b HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: 1\r\n\r\n";
        _cleanup_(http_reader_freep) HttpReader *r = NULL;
        size_t used, body_size, n_ended = 0, n_trailers;
        const uint8_t *body;
        HttpEvent event;

        assert_int_equal(http_reader_new(&r, HTTP_KIND_REQUEST), 0);
        http_reader_rest(r);
        assert_int_equal(http_reader_head(r)->n_fields, 0);
        for (size_t at = 0; at < sizeof(text) - 1; at += used) {
                http_reader_rest(r);
                assert_int_equal(http_reader_feed(r, text + at, 1, &used, &event, &body, &body_size), 0);
                while (event != HTTP_EVENT_MORE) {
                        const HttpHead *h = http_reader_head(r);
                        bool ended = event == HTTP_EVENT_END;
                        size_t more;

                        n_ended += ended;
                        assert_string_equal(h->target, n_ended + !ended == 1 ? "/a" : "/b");
                        assert_string_equal(h->fields[0].value, h->target + 1);
                        assert_int_equal(h->n_fields, 2);
                        if (ended)
                                break;
                        http_reader_rest(r);
                        assert_ptr_equal(http_reader_head(r), h);
                        assert_int_equal(http_reader_feed(r, text + at + used, 1 - used, &more, &event, &body, &body_size), 0);
                        used += more;
                }
        }
        assert_int_equal(n_ended, 2);
        assert_int_equal(http_reader_trailers(r, &n_trailers)[0].value[0], '1');
        assert_int_equal(n_trailers, 1);

        http_reader_rest(r);
        assert_int_equal(http_reader_head(r)->n_fields, 0);
        (void) http_reader_trailers(r, &n_trailers);
        assert_int_equal(n_trailers, 0);
        assert_int_equal(http_reader_eof(r, &event), 0);
        assert_int_equal(event, HTTP_EVENT_MORE);

        /* one that failed stays so */
        assert_int_equal(http_reader_feed(r, "\x01", 1, &used, &event, &body, &body_size), -EBADMSG);
        http_reader_rest(r);
        assert_int_equal(http_reader_feed(r, "G", 1, &used, &event, &body, &body_size), -EBADMSG);
}

static void test_targets(void **state) {
        static const char *const plain[] = { "/", "/v1/messages?x=../..", "/a.b/..c/...", "/@s%2fname", "/a//b", "/%3f/x", "/a?%2e%2e/" };
        static const char *const crooked[] = { "", "*", "http://h/", "a", "/..", "/v1/../x", "/v1/%2e%2E/x", "/.", "/a/./b", "/a/.?x",
                                               "/v1/..%2fx", "/v1/..\\x", "/v1/..%5cx", "/a#b", "/a%00", "/%2e" };

        for (size_t i = 0; i < ELEMENTSOF(plain); i++)
                assert_true(http_target_is_plain(plain[i]));
        for (size_t i = 0; i < ELEMENTSOF(crooked); i++)
                assert_false(http_target_is_plain(crooked[i]));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_requests),
                cmocka_unit_test(test_bad_requests),
                cmocka_unit_test(test_responses),
                cmocka_unit_test(test_head),
                cmocka_unit_test(test_bounds),
                cmocka_unit_test(test_rest),
                cmocka_unit_test(test_targets),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
