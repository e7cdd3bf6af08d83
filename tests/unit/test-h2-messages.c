/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Streams of messages over HTTP/2: gRPC, and WebSocket by extended CONNECT. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "h2-world.h"

/* ---- gRPC ---- */

static void send_message(Side *side, Slot *slot, uint8_t flags, const char *text) {
        uint8_t head[5] = { flags, 0, 0, 0, (uint8_t) strlen(text) };

        assert_int_equal(buffer_append(&slot->out, head, sizeof(head)), 0);
        side_send(side, slot, text, false);
}

static void serve_grpc(H2World *w, Slot *slot, bool ended) {
        if (!ended)
                origin_answer(w, slot, ":status: 200\ncontent-type: application/grpc\n", true);
        else {
                slot->out_trailers = "grpc-status: 0\ngrpc-message: " SECRET "\n";
                side_send(&w->origin, slot, "", true);
        }
}

/* A message passes when it is whole, although a value could begin with a few characters at its end; and values in it are masked. One that ends in more
 * of a value's beginning waits for what follows (test-exchange-messages.c). */
static void test_grpc(void **state) {
        H2World *w = *state;
        Slot *g, *o;

        w->serve = serve_grpc;
        g = guest_ask(w, "POST", "/v1/Echo", KEY "content-type: application/grpc+proto\ngrpc-accept-encoding: gzip\nte: trailers\n", true);
        send_message(&w->guest, g, 0, "ends-in-what-could-be-ghp_An");
        h2_run(w);
        o = &w->origin.slots[0];
        assert_true(body_has(o, "could-be-ghp_An"));
        assert_false(has(o, "grpc-accept-encoding"));
        send_message(&w->origin, o, 0, "and-so-does-this-sk-ant-t");
        h2_run(w);
        assert_true(body_has(g, "so-does-this-sk-ant-t"));
        send_message(&w->origin, o, 0, SECRET);
        h2_run(w);
        assert_true(body_has(g, SENTINEL));
        assert_false(body_has(g, SECRET));
        side_send(&w->guest, g, "", true);
        h2_run(w);
        assert_true(has(g, "grpc-status: 0\n"));
        assert_true(has(g, "grpc-message: " SENTINEL "\n"));
        assert_true(g->closed);
}

static void test_grpc_misuse(void **state) {
        H2World *w = *state;
        Slot *g;

        g = guest_ask(w, "POST", "/v1/Echo", "content-type: application/grpc\n", true);
        send_message(&w->guest, g, 0, OTHER);
        h2_run(w);
        assert_true(has(g, "credential-misuse"));
        assert_false(body_has(&w->origin.slots[0], OTHER));
}

/* What is compressed cannot be read, and was not asked for. */
static void test_grpc_compressed(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_grpc;
        g = guest_ask(w, "POST", "/v1/Echo", "content-type: application/grpc\n", true);
        h2_run(w);
        send_message(&w->origin, &w->origin.slots[0], 1, "zzzz");
        h2_run(w);
        assert_true(g->closed);
        assert_int_equal(g->code, NGHTTP2_INTERNAL_ERROR);
        assert_false(body_has(g, "zzzz"));
}

/* Of anything else the end waits until it cannot become a value any more. */
static void test_held_back(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_turns;
        g = guest_ask(w, "POST", "/v1/x", "", true);
        h2_run(w);
        side_send(&w->origin, &w->origin.slots[0], "tail-sk-ant-the-re", false);
        h2_run(w);
        assert_false(body_has(g, "the-re"));
        side_send(&w->origin, &w->origin.slots[0], "al-one-0123\n", false);
        h2_run(w);
        assert_true(body_has(g, "tail-" SENTINEL "\n"));
}

/* ---- WebSocket (RFC 8441) ---- */

/* Frames of a server's come back for frames of a client's: the text in capitals is the origin's. */
static void serve_websocket(H2World *w, Slot *slot, bool ended) {
        if (!ended)
                origin_answer(w, slot, ":status: 200\nsec-websocket-protocol: chat\n", true);
}

#define CONNECT ":protocol: websocket\nsec-websocket-version: 13\nsec-websocket-extensions: permessage-deflate\n"
#define TOKEN "private-token: " OTHER "\n"

/* A frame with the mask "\0\0\0\0", which is one. */
static void send_masked(H2World *w, Slot *slot, const char *text) {
        uint8_t head[6] = { 0x81, (uint8_t) (0x80 | strlen(text)) };

        assert_int_equal(buffer_append(&slot->out, head, sizeof(head)), 0);
        side_send(&w->guest, slot, text, false);
}

static void use_token(H2World *w) {
        w->base.credentials[1].hosts = json_pack("[s]", NAME);
        w->base.credentials[1].ports = json_pack("[i]", H2_PORT);
}

static void done_token(H2World *w) {
        json_decref((json_t *) w->base.credentials[1].hosts);
        json_decref((json_t *) w->base.credentials[1].ports);
        inject_credential_done(&w->base.credentials[1]);
}

static void test_websocket(void **state) {
        H2World *w = *state;
        Slot *g, *o;

        use_token(w);
        w->serve = serve_websocket;
        side_settings(&w->origin, NGHTTP2_SETTINGS_ENABLE_CONNECT_PROTOCOL, 1);
        h2_run(w);
        assert_int_equal(nghttp2_session_get_remote_settings(w->guest.session, NGHTTP2_SETTINGS_ENABLE_CONNECT_PROTOCOL), 1);
        g = guest_ask(w, "CONNECT", "/v1/ws", CONNECT TOKEN, true);
        h2_run(w);
        assert_true(has(g, ":status: 200\n"));
        assert_int_equal(w->base.n_questions, 1);
        o = &w->origin.slots[0];
        assert_true(has(o, ":method: CONNECT\n"));
        assert_true(has(o, ":protocol: websocket\n"));
        assert_true(has(o, "private-token: ghp_the-real-git-token\n"));
        assert_false(has(o, "extensions"));

        send_masked(w, g, "hello");
        h2_run(w);
        assert_int_equal(buffer_size(&o->body), 11);
        assert_int_equal(buffer_data(&o->body)[0], 0x81);
        assert_int_equal(buffer_data(&o->body)[1], 0x85);

        side_send(&w->origin, o, "\x81\x1aYOU ghp_the-real-git-token", false);
        h2_run(w);
        assert_true(body_has(g, "\x81\x21YOU " OTHER));

        /* a value that came later is masked as well, here that of another connection's credential */
        rotate_other(&w->base);
        side_send(&w->origin, o, "\x89\x19" ROTATED "\x81\x19" ROTATED, false);
        h2_run(w);
        assert_true(body_has(g, "\x89\x1d" OTHER "\x81\x1d" OTHER));
        assert_false(body_has(g, ROTATED));

        /* what is no frame ends the stream, and nothing else */
        side_send(&w->guest, g, "no mask", false);
        h2_run(w);
        assert_true(g->closed);
        assert_true(o->closed);
        assert_true(logged(&w->base, "\"where\":\"frame\""));
        w->serve = serve_plainly;
        g = guest_ask(w, "GET", "/v1/x", "", false);
        h2_run(w);
        assert_true(has(g, ":status: 200\n"));
        done_token(w);
}

static void test_websocket_refused(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_websocket;
        side_settings(&w->origin, NGHTTP2_SETTINGS_ENABLE_CONNECT_PROTOCOL, 1);
        h2_run(w);

        /* its provider's calls are counted, and these could not be */
        g = guest_ask(w, "CONNECT", "/v1/ws", CONNECT KEY, true);
        h2_run(w);
        assert_true(has(g, ":status: 403\n"));
        assert_true(has(g, "anchorhold-reason: unmetered\n"));
        g = guest_ask(w, "CONNECT", "/v1/ws", ":protocol: websocket\nsec-websocket-version: 8\n", true);
        h2_run(w);
        assert_true(has(g, ":status: 400\n"));
        assert_int_equal(w->origin.n_slots, 0);

        /* a sentinel of another host, within a frame */
        g = guest_ask(w, "CONNECT", "/v1/ws", CONNECT, true);
        h2_run(w);
        send_masked(w, g, "x " OTHER " x");
        h2_run(w);
        assert_true(g->closed);
        assert_int_equal(buffer_size(&w->origin.slots[0].body), 0);
        assert_true(logged(&w->base, "\"event\":\"credential.misuse\""));
}

int main(void) {
#define T(test) cmocka_unit_test_setup_teardown(test, set_up_pair, tear_down_pair)
        const struct CMUnitTest tests[] = {
                T(test_grpc),
                T(test_grpc_misuse),
                T(test_grpc_compressed),
                T(test_held_back),
                T(test_websocket),
                T(test_websocket_refused),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
