/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a guest or an origin may do to HTTP/2: malformed heads, frames that carry nothing in numbers, pushes. Each beside what is still admitted. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "h2-world.h"

static void serve_ok(H2World *w, Slot *slot, bool ended) {
        if (!ended)
                return;
        origin_answer(w, slot, ":status: 200\n", true);
        side_send(&w->origin, slot, "ok", true);
}

static int set_up_ok(void **state) {
        H2World *w = h2_world_new(NULL);

        w->serve = serve_ok;
        *state = w;
        return 0;
}

/* A request like any other, which must pass. */
static void expect_well(H2World *w) {
        Slot *g = guest_ask(w, "GET", "/v1/well", KEY, false);

        h2_run(w);
        assert_true(has(g, ":status: 200\n"));
        assert_true(g->closed);
}

static void raw_frame(H2World *w, uint8_t type, uint8_t flags, uint32_t id, const void *data, size_t size) {
        uint8_t frame[9 + 256] = { 0, (uint8_t) (size >> 8), (uint8_t) size, type, flags,
                                   (uint8_t) (id >> 24), (uint8_t) (id >> 16), (uint8_t) (id >> 8), (uint8_t) id };

        assert_true(size <= 256);
        if (size > 0)
                memcpy(frame + 9, data, size);
        assert_int_equal(h2_pair_take_guest(w->pair, frame, 9 + size), 0);
}

/* ---- heads ---- */

/* nghttp2 finds these by itself: the stream is reset, which leaves no room for an answer, and that is on record. */
static void test_malformed_streams(void **state) {
        static const char *const cases[] = {
                "connection: close\n",
                "transfer-encoding: chunked\n",
                "upgrade: h2c\n",
                "keep-alive: 5\n",
                "te: gzip\n",
                ":path: /v1/y\n",
                ":status: 200\n",
                ":authority: other.example.org\n:authority: third.example.org\n",
                ":method: POST\n",
                ":scheme: http\n",
                ":unknown: x\n",
                "x-a: b\n:late: c\n",
                "proxy-connection: close\n",
                "host: other.example.org\nhost: third.example.org\n",
                "content-length: 5\ncontent-length: 6\n",
                "content-length: -5\n",
                ":protocol: websocket\n",
        };
        H2World *w = *state;

        for (size_t i = 0; i <= ELEMENTSOF(cases); i++) {
                const char *what = i < ELEMENTSOF(cases) ? cases[i] : "*";
                Slot *g = guest_ask(w, "GET", i < ELEMENTSOF(cases) ? "/v1/x" : what, i < ELEMENTSOF(cases) ? what : "", false);

                h2_run(w);
                if (!g->closed || g->code != NGHTTP2_PROTOCOL_ERROR || *g->head || !logged(&w->base, "\"reason\":\"bad-request\""))
                        fail_msg("%s: closed %d, code %u, %s", what, g->closed, g->code, g->head);
        }
        assert_int_equal(w->origin.n_slots, 0);
        assert_int_equal(w->base.n_questions, 0);
        expect_well(w);
}

/* These it leaves to us: they are answered. */
static void test_malformed_heads(void **state) {
        static const struct {
                const char *method, *path, *fields;
        } cases[] = {
                { "GET", "/v1/x", "x-a: b\x01" "c\n" },
                { "GET", "/v1/\x80", "" },
                { "get", "/v1/x", "" },
                { "GET", "/v1/x", "x a: b\n" },
        };
        H2World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                Slot *g = guest_ask(w, cases[i].method, cases[i].path, cases[i].fields, false);

                h2_run(w);
                if (!g->closed || !has(g, ":status: 400\n") || g->code != NGHTTP2_NO_ERROR)
                        fail_msg("%s %s %s: closed %d, code %u, %s", cases[i].method, cases[i].path, cases[i].fields, g->closed, g->code, g->head);
        }
        assert_true(logged(&w->base, "\"reason\":\"bad-request\""));
        assert_int_equal(w->origin.n_slots, 0);
        assert_int_equal(w->base.n_questions, 0);
        expect_well(w);
}

static void test_connect(void **state) {
        H2World *w = *state;
        nghttp2_nv list[8];
        Slot *g;
        size_t n;

        n = make_list(":method: CONNECT\n:authority: " NAME "\n", list, ELEMENTSOF(list));
        g = slot_of(&w->guest, nghttp2_submit_request2(w->guest.session, NULL, list, n, NULL, NULL), true);
        h2_run(w);
        assert_true(g->closed);
        assert_true(has(g, ":status: 400\n"));
        assert_int_equal(w->origin.n_slots, 0);
}

static void test_length_lies(void **state) {
        H2World *w = *state;
        Slot *g = guest_ask(w, "POST", "/v1/x", "content-length: 5\n", true);

        side_send(&w->guest, g, "123456", true);
        h2_run(w);
        assert_true(g->closed);
        assert_int_equal(g->code, NGHTTP2_PROTOCOL_ERROR);
        for (size_t i = 0; i < w->origin.n_slots; i++)
                assert_false(w->origin.slots[i].ended);

        g = guest_ask(w, "POST", "/v1/x", "content-length: 5\n", true);
        side_send(&w->guest, g, "12345", true);
        h2_run(w);
        assert_true(has(g, ":status: 200\n"));
}

static void test_large_heads(void **state) {
        H2World *w = *state;
        char *fields = calloc(1, 200 * 1024);
        Slot *g;

        /* in number */
        for (unsigned i = 0; i < 129; i++)
                strcat(fields, "a: b\n");
        g = guest_ask(w, "GET", "/v1/x", fields, false);
        h2_run(w);
        assert_true(has(g, ":status: 400\n"));

        /* in size */
        *fields = 0;
        for (unsigned i = 0; i < 9; i++) {
                size_t n = strlen(fields);

                (void) sprintf(fields + n, "x-%u: ", i);
                n = strlen(fields);
                memset(fields + n, 'a' + (int) i, 7700);
                strcpy(fields + n + 7700, "\n");
        }
        g = guest_ask(w, "GET", "/v1/x", fields, false);
        h2_run(w);
        assert_true(has(g, ":status: 400\n"));
        assert_int_equal(w->origin.n_slots, 0);
        free(fields);
        expect_well(w);
}

/* ---- floods ---- */

static void expect_flood_ended(H2World *w) {
        h2_run(w);
        assert_int_equal(w->guest.n_goaways, 1);
        assert_int_equal(w->guest.goaway, NGHTTP2_ENHANCE_YOUR_CALM);
        assert_true(h2_pair_is_over(w->pair));
        assert_true(logged(&w->base, "\"reason\":\"flood\""));
}

static void test_ping_flood(void **state) {
        H2World *w = *state;

        h2_run(w);
        for (unsigned i = 0; i < 100; i++) {
                raw_frame(w, NGHTTP2_PING, 0, 0, "12345678", 8);
                if (i % 50 == 0)
                        h2_run(w);
        }
        expect_well(w);
        for (unsigned i = 0; i < 2000; i++)
                raw_frame(w, NGHTTP2_PING, 0, 0, "12345678", 8);
        expect_flood_ended(w);
}

/* Also if each is answered before the next. */
static void test_slow_ping_flood(void **state) {
        H2World *w = *state;

        h2_run(w);
        for (unsigned i = 0; i < 2000; i++) {
                raw_frame(w, NGHTTP2_PING, 0, 0, "12345678", 8);
                (void) move_side(w, &w->guest, h2_pair_take_guest, h2_pair_give_guest);
        }
        expect_flood_ended(w);
}

static void test_settings_flood(void **state) {
        H2World *w = *state;

        h2_run(w);
        for (unsigned i = 0; i < 20; i++) {
                side_settings(&w->guest, 0, 0);
                h2_run(w);
        }
        expect_well(w);
        for (unsigned i = 0; i < 1000; i++)
                raw_frame(w, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
        expect_flood_ended(w);
}

static void test_empty_data_flood(void **state) {
        H2World *w = *state;
        Slot *g = guest_ask(w, "POST", "/v1/x", "", true);

        h2_run(w);
        for (unsigned i = 0; i < 10000; i++)
                raw_frame(w, NGHTTP2_DATA, 0, (uint32_t) g->id, NULL, 0);
        expect_flood_ended(w);
}

static void test_priority_flood(void **state) {
        H2World *w = *state;

        h2_run(w);
        for (unsigned i = 0; i < 10000; i++)
                raw_frame(w, NGHTTP2_PRIORITY, 0, 1 + 2 * (i % 100), "\0\0\0\0\1", 5);
        expect_flood_ended(w);
}

/* CVE-2023-44487: streams that are opened and reset at once. */
static void test_rapid_reset(void **state) {
        H2World *w = *state;
        unsigned i;

        h2_run(w);
        for (i = 0; i < 3000 && !w->pair->broken; i++) {
                /* HEADERS: GET, https, /, host from the static table */
                static const uint8_t head[] = { 0x82, 0x87, 0x84, 0x41, 0x01, 'h' };
                uint32_t id = 1 + 2 * i;

                raw_frame(w, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, id, head, sizeof(head));
                raw_frame(w, NGHTTP2_RST_STREAM, 0, id, "\0\0\0\10", 4);
        }
        assert_true(i < 300);
        assert_true(w->pair->n_streams <= H2_STREAMS_MAX);
        expect_flood_ended(w);
        assert_int_equal(w->origin.n_slots, 0);
}

/* CVE-2024-27316 and its kind: a head that does not end. */
static void test_continuation_flood(void **state) {
        H2World *w = *state;

        h2_run(w);
        raw_frame(w, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_STREAM, 1, "\x82\x87\x84", 3);
        for (unsigned i = 0; i < 10000; i++)
                raw_frame(w, NGHTTP2_CONTINUATION, 0, 1, "\x40\x01"
                                                         "a\x01"
                                                         "b",
                          5);
        h2_run(w);
        assert_int_equal(w->guest.n_goaways, 1);
        assert_int_not_equal(w->guest.goaway, NGHTTP2_NO_ERROR);
        assert_true(h2_pair_is_over(w->pair));
        assert_int_equal(w->origin.n_slots, 0);
        assert_true(logged(&w->base, "\"event\":\"conn.deny\""));
}

static void test_many_streams(void **state) {
        enum { N = 120 };
        H2World *w = *state;

        w->serve = NULL;
        h2_run(w);
        for (unsigned i = 0; i < N; i++) { /* past what the client's library would send */
                static const uint8_t head[] = { 0x82, 0x87, 0x84, 0x41, 0x0f, 'a', 'p', 'i', '.', 'e', 'x', 'a', 'm', 'p', 'l', 'e', '.', 'o', 'r', 'g' };

                raw_frame(w, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, 1 + 2 * i, head, sizeof(head));
        }
        assert_int_equal(w->pair->n_streams, H2_STREAMS_MAX);
}

static void test_garbage(void **state) {
        H2World *w = *state;

        h2_run(w);
        assert_int_equal(h2_pair_take_guest(w->pair, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27), 0);
        h2_run(w);
        assert_int_not_equal(w->guest.goaway, NGHTTP2_NO_ERROR);
        assert_true(h2_pair_is_over(w->pair));
        assert_true(logged(&w->base, "\"reason\":\"bad-request\""));
}

/* ---- origins ---- */

/* It was told not to; its library would know, so the frame is made by hand. */
static void test_push(void **state) {
        H2World *w = *state;
        uint8_t frame[] = { 0, 0, 5, NGHTTP2_PUSH_PROMISE, NGHTTP2_FLAG_END_HEADERS, 0, 0, 0, 1, 0, 0, 0, 2, 0x82 };
        Slot *g;

        w->serve = NULL;
        g = guest_ask(w, "GET", "/v1/x", "", false);
        h2_run(w);
        assert_int_equal(w->origin.n_slots, 1);
        assert_int_equal(h2_pair_take_origin(w->pair, frame, sizeof(frame)), 0);
        h2_run(w);
        assert_true(has(g, ":status: 502\n"));
        assert_int_equal(w->guest.n_slots, 1);
        assert_true(h2_pair_is_over(w->pair));
}

/* Ways elsewhere do not pass. */
static void test_altsvc_frame(void **state) {
        H2World *w = *state;
        static const uint8_t altsvc[] = { 0, 0, 9, 0xa, 0, 0, 0, 0, 0, 0, 1, 'a', 'h', '2', '=', '"', ':', '"' },
                             origin[] = { 0, 0, 3, 0xc, 0, 0, 0, 0, 0, 0, 1, 'a' };
        Buffer out = {};

        h2_run(w);
        assert_int_equal(h2_pair_take_origin(w->pair, altsvc, sizeof(altsvc)), 0);
        assert_int_equal(h2_pair_take_origin(w->pair, origin, sizeof(origin)), 0);
        assert_int_equal(h2_pair_give_guest(w->pair, &out, 65536), 0);
        assert_int_equal(buffer_size(&out), 0);
        buffer_done(&out);
        expect_well(w);
}

static void serve_malformed(H2World *w, Slot *slot, bool ended) {
        static const char *const heads[] = {
                ":status: 200\nconnection: close\n",
                ":status: 99\n",
                "x-a: b\n",
                ":status: 200\n:path: /x\n",
                ":status: 101\n",
        };

        if (ended)
                origin_answer(w, slot, heads[slot->id / 2 % ELEMENTSOF(heads)], false);
}

static void test_malformed_answers(void **state) {
        H2World *w = *state;

        w->serve = serve_malformed;
        for (unsigned i = 0; i < 5; i++) {
                Slot *g = guest_ask(w, "GET", "/v1/x", "", false);

                h2_run(w);
                assert_true(has(g, ":status: 502\n"));
                assert_true(has(g, "origin-malformed"));
        }
        w->serve = serve_ok;
        expect_well(w);
}

int main(void) {
#define T(test) cmocka_unit_test_setup_teardown(test, set_up_ok, tear_down_pair)
        const struct CMUnitTest tests[] = {
                T(test_malformed_streams),
                T(test_malformed_heads),
                T(test_connect),
                T(test_length_lies),
                T(test_large_heads),
                T(test_ping_flood),
                T(test_slow_ping_flood),
                T(test_settings_flood),
                T(test_empty_data_flood),
                T(test_priority_flood),
                T(test_rapid_reset),
                T(test_continuation_flood),
                T(test_many_streams),
                T(test_garbage),
                T(test_push),
                T(test_altsvc_frame),
                T(test_malformed_answers),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
