/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Where sentinels are found, and when: with the byte that completes one, wherever the stream is cut. */

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zlib.h>

#include "inject/tripwire-api.h"

#define KEY "sk-test-0123456789abcdefABCDEFxyz"
#define TOKEN "ghp_zyxwvutsrqponmlkjihgfedcba9876543210"

static const char *const sentinels[] = { KEY, TOKEN };

static const struct {
        const char *text; /* ends with the sentinel's last byte */
        size_t number;
} streams[] = {
        { KEY, 0 },
        { TOKEN, 1 },
        { "some words, and then a=" TOKEN, 1 },
        { "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" KEY, 0 },
        { "a=sk%2Dtest-012345678%39abcdefABCDEFxyz", 0 },
        { "{\"a\":\"sk\\u002dtest\\u002D0123456789abcdefABCDEFxyz", 0 },
        { "c2stdGVzdC0wMTIzNDU2Nzg5YWJjZGVmQUJDREVGeHl6", 0 },          /* Base64 */
        { "bWU6c2stdGVzdC0wMTIzNDU2Nzg5YWJjZGVmQUJDREVGeHl6", 0 },      /* of "me:" and it */
        { KEY "\n" TOKEN, 0 },                                          /* the first one counts, wherever the end is */
};

static void test_streams(void **state) {
        for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
                size_t n = i + 1 < sizeof(streams) / sizeof(streams[0]) ? strlen(streams[i].text) : strlen(KEY);

                for (size_t cut = 0; cut <= n; cut++) {
                        _cleanup_(tripwire_freep) Tripwire *t = NULL;
                        size_t number = 99;

                        assert_int_equal(tripwire_new(&t, sentinels, 2), 0);
                        assert_int_equal(tripwire_feed(t, streams[i].text, cut, false, &number), cut == n);
                        assert_int_equal(tripwire_feed(t, streams[i].text + cut, n - cut, false, &number), 1);
                        assert_int_equal(number, streams[i].number);
                }
                for (int last = 0; last < 2; last++) { /* byte by byte: not one too early, not one too late */
                        _cleanup_(tripwire_freep) Tripwire *t = NULL;
                        size_t number = 99;

                        assert_int_equal(tripwire_new(&t, sentinels, 2), 0);
                        for (size_t k = 0; k < n; k++)
                                assert_int_equal(tripwire_feed(t, streams[i].text + k, 1, last && k + 1 == n, &number), k + 1 == n);
                }
        }
}

/* What only looks like one: also across the end of one stream and the beginning of the next. */
static void test_streams_without(void **state) {
        static const char *const texts[] = { "sk-test-0123456789abcdefABCDEFxy", "sk-test-0123456789abcdef ABCDEFxyz", "c2stdGVzdC0wMTIzNDU2Nzg5YWJjZGVmQUJDREVGeHl_", "" };
        _cleanup_(tripwire_freep) Tripwire *t = NULL;
        size_t number = 99;

        assert_int_equal(tripwire_new(&t, sentinels, 2), 0);
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
                assert_int_equal(tripwire_feed(t, texts[i], strlen(texts[i]), true, &number), 0);
        assert_int_equal(tripwire_feed(t, KEY, 20, true, &number), 0);
        assert_int_equal(tripwire_feed(t, KEY + 20, strlen(KEY) - 20, true, &number), 0);
        assert_int_equal(number, 99);
        assert_int_equal(tripwire_feed(t, TOKEN, strlen(TOKEN), true, &number), 1); /* and it still works */
        assert_int_equal(number, 1);
}

/* As gzip does: one member. */
static size_t compress_text(const void *text, size_t size, uint8_t *to, size_t max) {
        z_stream z = { .next_in = (Bytef *) text, .avail_in = (uInt) size, .next_out = to, .avail_out = (uInt) max };

        assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        assert_int_equal(deflateEnd(&z), Z_OK);
        return max - z.avail_out;
}

static int feed_all(Tripwire *t, const uint8_t *data, size_t size, size_t piece, size_t *ret) {
        for (size_t at = 0; at < size; at += piece) {
                size_t n = size - at < piece ? size - at : piece;
                int r = tripwire_feed(t, data + at, n, at + n == size, ret);

                if (r != 0)
                        return r;
        }
        return 0;
}

/* However it is cut; one stream after the other on one wire; of the text in it, and of its second member. */
static void test_gzip(void **state) {
        static const char *const texts[] = { "note=" TOKEN " and more", "note=ghp_zyxwvutsrqponmlkjihgfedcba987654321_", "bWU6c2stdGVzdC0wMTIzNDU2Nzg5YWJjZGVmQUJDREVGeHl6" };
        static const int found[] = { 1, 0, 1 };
        uint8_t data[1024];

        for (size_t piece = 1; piece < 100; piece++)
                for (size_t i = 0; i < 3; i++) {
                        _cleanup_(tripwire_freep) Tripwire *t = NULL;
                        size_t number = 99, n;

                        assert_int_equal(tripwire_new(&t, sentinels, 2), 0);
                        n = compress_text(texts[1], strlen(texts[1]), data, sizeof(data));
                        assert_int_equal(feed_all(t, data, n, piece, &number), 0);
                        n += compress_text(texts[i], strlen(texts[i]), data + n, sizeof(data) - n);
                        assert_int_equal(feed_all(t, data, n, piece, &number), found[i]);
                        assert_int_equal(number, i == 1 ? 99 : i == 0);
                }
        (void) state;
}

/* No gzip, gzip that is cut or goes on as something else, and what swells beyond what is opened: they pass, and the stream as it is goes on being searched. */
static void test_gzip_that_is_none(void **state) {
        enum { LARGE = TRIPWIRE_OPENED_MAX + 1024 * 1024 };
        uint8_t *data = malloc(LARGE / 8);
        char *large = malloc(LARGE);
        size_t n, number = 99;

        assert_true(data && large);
        for (int way = 0; way < 5; way++) {
                _cleanup_(tripwire_freep) Tripwire *t = NULL;

                assert_int_equal(tripwire_new(&t, sentinels, 2), 0);
                memcpy(large, "note=" TOKEN, sizeof("note=" TOKEN));
                if (way == 3) { /* behind as much as is opened */
                        for (size_t i = 0; i < LARGE; i++)
                                large[i] = i % 64 ? 'a' : (char) ('a' + (i / 64 * 2654435761U >> 8) % 23);
                        memcpy(large + LARGE - sizeof(TOKEN), TOKEN, sizeof(TOKEN));
                }
                n = compress_text(large, way == 3 ? LARGE : sizeof("note=" TOKEN), data, LARGE / 8);
                if (way == 0) /* not the second byte of a member */
                        data[1] = 0;
                else if (way == 1) /* cut before the text */
                        n = 12;
                else if (way == 2) /* not before its end, but broken before the text */
                        memset(data + 3, 0xff, n - 3);
                else if (way == 4) { /* twice */
                        memcpy(large, data, n);
                        n = compress_text(large, n, data, LARGE / 8);
                }
                assert_int_equal(feed_all(t, data, n, 700, &number), 0);
                assert_int_equal(tripwire_feed(t, "\x1f" KEY, sizeof(KEY), true, &number), 1);
                assert_int_equal(number, 0);
        }

        /* the control of what swells: the same, had it been there earlier */
        for (size_t i = 0; i < LARGE; i++)
                large[i] = i % 64 ? 'a' : (char) ('a' + (i / 64 * 2654435761U >> 8) % 23);
        for (unsigned early = 0; early < 2; early++) {
                _cleanup_(tripwire_freep) Tripwire *t = NULL;

                assert_int_equal(tripwire_new(&t, sentinels, 2), 0);
                if (early)
                        memcpy(large + TRIPWIRE_OPENED_MAX / 2, TOKEN, strlen(TOKEN));
                n = compress_text(large, LARGE, data, LARGE / 8);
                assert_int_equal(feed_all(t, data, n, 700, &number), (int) early);
        }
        free(large);
        free(data);
        (void) state;
}

/* Streams that swell and then stall, as many as a guest may have open: what is kept of each is bounded, whatever its text needs while it is searched. */
static void test_gzip_memory(void **state) {
        enum { STREAMS = 64, LARGE = 1024 * 1024, KEPT = 256 * 1024 };
        TripwireGzip open[STREAMS] = {};
        char *large = malloc(LARGE);
        uint8_t data[8192];
        size_t n, before, number;

        assert_non_null(large);
        for (size_t i = 0; i < LARGE; i++)
                large[i] = "aaaaaaaaaaaaa%\\a"[i % 16];
        n = compress_text(large, LARGE, data, sizeof(data));
        free(large);
        before = mallinfo2().uordblks + mallinfo2().hblkhd;
        for (size_t i = 0; i < STREAMS; i++)
                assert_int_equal(tripwire_gzip_feed(&open[i], sentinels, 2, data, n - 8, false, &number), 0);
        for (size_t i = 0; i < STREAMS; i++)
                assert_non_null(open[i].gunzip); /* it goes on */
        assert_true(mallinfo2().uordblks + mallinfo2().hblkhd - before < STREAMS * (size_t) KEPT);
        for (size_t i = 0; i < STREAMS; i++)
                tripwire_gzip_done(&open[i]);
        (void) state;
}

static void test_heads(void **state) {
        static const struct {
                const char *head, *where; /* NULL: none */
                ssize_t number;
        } heads[] = {
                { "GET /?a=" KEY " HTTP/1.1\r\nHost: a\r\n\r\n", "target", 0 },
                { "\r\nGET /%73k-test-0123456789abcdefABCDEFxyz HTTP/1.1\r\nHost: a\r\n\r\n", "target", 0 },
                { "GET / HTTP/1.1\r\nHost: a\r\nX-Key:" TOKEN "\r\n\r\n", "X-Key", 1 },
                { "GET / HTTP/1.1\r\nHost: a\r\nAuthorization:  Basic  bWU6U0stVEVTVC0wMTIzNDU2Nzg5QUJDREVGYWJjZGVmWFla \r\n\r\n", "Authorization", 0 },
                { "GET / HTTP/1.1\nHost: a\nX: GHP_ZYXWVUTSRQPONMLKJIHGFEDCBA9876543210\n\n", "X", 1 },
                { "GET / HTTP/1.1\r\nX-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa: " KEY, "X-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 0 },
                { "GET / HTTP/1.1\r\nHost: a\r\nX-Key: sk-test-0123456789abcdefABCDEFxy\r\nzX: y\r\n\r\n", NULL, -1 },
                { "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic bWU6eW91\r\n\r\n", NULL, -1 },
                { "", NULL, -1 },
        };

        for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
                char where[TRIPWIRE_WHERE_SIZE] = "";

                assert_int_equal(tripwire_find_in_head(heads[i].head, strlen(heads[i].head), sentinels, 2, where), heads[i].number);
                assert_string_equal(where, heads[i].where ? heads[i].where : "");
        }
        assert_int_equal(tripwire_find_in_head(heads[0].head, strlen(heads[0].head), NULL, 0, (char[TRIPWIRE_WHERE_SIZE]) {}), -1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_streams),
                cmocka_unit_test(test_streams_without),
                cmocka_unit_test(test_gzip),
                cmocka_unit_test(test_gzip_that_is_none),
                cmocka_unit_test(test_gzip_memory),
                cmocka_unit_test(test_heads),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
