/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* HTTP/2 through inject: a played guest, a played origin, stand-ins for egressd and auditd. What the two may do to the protocol, and floods, are
 * test-h2-abuse's. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "h2-world.h"

/* Each piece comes back at once. */
static void serve_echo(H2World *w, Slot *slot, bool ended) {
        if (!ended) {
                origin_answer(w, slot, ":status: 200\ncontent-type: application/x-echo\n", true);
                return;
        }
        slot->out_trailers = "x-end: " SECRET "\n";
        assert_int_equal(buffer_append(&slot->out, buffer_data(&slot->body), buffer_size(&slot->body)), 0);
        side_send(&w->origin, slot, "", true);
}

static void test_request(void **state) {
        H2World *w = *state;
        Slot *g, *o;

        w->serve = serve_plainly;
        g = guest_ask(w, "GET", "/v1/models?a=b", KEY "accept-encoding: gzip\nte: trailers\n", false);
        h2_run(w);

        assert_int_equal(w->origin.n_slots, 1);
        o = &w->origin.slots[0];
        assert_true(has(o, ":method: GET\n"));
        assert_true(has(o, ":path: /v1/models?a=b\n"));
        assert_true(has(o, ":authority: " NAME "\n"));
        assert_true(has(o, "x-api-key: " SECRET "\n"));
        assert_true(has(o, "te: trailers\n"));
        assert_false(has(o, "host:"));
        assert_false(has(o, SENTINEL));

        assert_true(has(g, ":status: 200\n"));
        assert_true(has(g, "x-echo: " SENTINEL "\n"));
        assert_false(has(g, "alt-svc"));
        assert_false(has(g, "content-length"));
        assert_true(body_has(g, "a " SENTINEL " b"));
        assert_false(body_has(g, SECRET));
        assert_true(g->closed);
        assert_int_equal(g->code, NGHTTP2_NO_ERROR);

        assert_int_equal(w->base.n_questions, 1);
        assert_int_equal(w->base.n_within, 1);
        assert_true(logged(&w->base, "\"event\":\"credential.used\""));
        assert_false(logged(&w->base, SECRET));
}

static void serve_rotated(H2World *w, Slot *slot, bool ended) {
        if (!ended)
                return;
        slot->out_trailers = "x-end: " ROTATED "\n";
        origin_answer(w, slot, ":status: 200\n", true);
        side_send(&w->origin, slot, "begun ghp_the-ro", false);
}

/* Another host's credential is rotated in the middle of an answer: the new value is masked from there on, also where a part of it had come. */
static void test_rotated_elsewhere(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_rotated;
        g = guest_ask(w, "GET", "/v1/models", "", false);
        h2_run(w);
        assert_true(body_has(g, "begun "));
        assert_false(g->closed);
        rotate_other(&w->base);
        side_send(&w->origin, &w->origin.slots[0], "tated-git-token", true);
        h2_run(w);
        assert_true(g->closed);
        assert_true(body_has(g, "begun " OTHER));
        assert_false(body_has(g, "ghp_the-"));
        assert_true(has(g, "x-end: " OTHER "\n"));
        inject_credential_done(&w->base.credentials[1]);
}

/* Where the policy weighs no requests, nobody is asked about any of them; the use of a credential is recorded all the same. */
static void test_covered(void **state) {
        H2World *w = *state;
        Slot *first, *second;

        w->pair->covered = true;
        w->serve = serve_plainly;
        first = guest_ask(w, "GET", "/v1/models", KEY, false);
        second = guest_ask(w, "GET", "/v1/b", "", false);
        h2_run(w);
        assert_true(has(first, ":status: 200\n") && has(second, ":status: 200\n"));
        assert_int_equal(w->base.n_questions, 0);
        assert_true(logged(&w->base, "\"event\":\"credential.used\""));
        assert_true(has(&w->origin.slots[0], "x-api-key: " SECRET "\n") || has(&w->origin.slots[1], "x-api-key: " SECRET "\n"));

        w->base.audit_refuses = true; /* used once already */
        first = guest_ask(w, "GET", "/v1/models", KEY, false);
        h2_run(w);
        assert_true(has(first, ":status: 200\n"));
}

#define GIT "private-token: " OTHER "\n"

/* Answers each stream when it is told to. */
static void serve_later(H2World *w, Slot *slot, bool ended) {
}

static size_t count_of(const H2World *w, const char *words) {
        size_t n = 0;

        for (size_t i = 0; i < w->origin.n_slots; i++)
                n += has(&w->origin.slots[i], words);
        return n;
}

/* The pair takes what the guest has to say, and says nothing yet. */
static void guest_speaks(H2World *w) {
        const uint8_t *data;
        nghttp2_ssize n;

        while ((n = nghttp2_session_mem_send2(w->guest.session, &data)) > 0)
                assert_int_equal(h2_pair_take_guest(w->pair, data, (size_t) n), 0);
}

/* A connection to the origin is for one credential: who carries another is told to go elsewhere, in the way in which clients do that by themselves. Those that are under way go on,
 * and those without any go along. */
static void test_two_credentials(void **state) {
        for (int first = 0; first < 2; first++) {
                const char *const fields[] = { KEY, GIT }, *const values[] = { SECRET, "ghp_the-real-git-token" };
                H2World *w = h2_world_new(NULL);
                Slot *before, *own, *again, *plain, *other, *late;

                w->base.credentials[1].hosts = w->base.credentials[0].hosts;
                w->base.credentials[1].ports = w->base.credentials[0].ports;
                w->serve = serve_later;
                before = guest_ask(w, "GET", "/v1/before", "", false);
                own = guest_ask(w, "GET", "/v1/own", fields[first], false);
                again = guest_ask(w, "GET", "/v1/again", fields[first], false);
                plain = guest_ask(w, "GET", "/v1/plain", "", false);
                h2_run(w);
                assert_int_equal(w->origin.n_slots, 4);
                assert_int_equal(count_of(w, values[first]), 2);
                assert_int_equal(w->guest.n_goaways, 0);

                other = guest_ask(w, "GET", "/v1/other", fields[1 - first], false);
                h2_run(w);
                assert_true(other->closed && other->code == NGHTTP2_REFUSED_STREAM && !has(other, ":status"));
                assert_true(w->guest.n_goaways == 1 && w->guest.goaway == NGHTTP2_NO_ERROR);
                assert_int_equal(w->origin.n_slots, 4); /* nothing of it has left */
                assert_int_equal(count_of(w, values[1 - first]), 0);
                assert_false(before->closed || own->closed || again->closed || plain->closed);

                for (size_t i = 0; i < 4; i++)
                        origin_answer(w, &w->origin.slots[i], ":status: 204\n", false);
                late = guest_ask(w, "GET", "/v1/late", fields[first], false); /* it has heard that it is to go */
                h2_run(w);
                assert_true(has(before, ":status: 204\n") && has(own, ":status: 204\n") && has(again, ":status: 204\n") && has(plain, ":status: 204\n"));
                assert_false(has(late, ":status"));
                h2_world_free(w);
        }
        (void) state;
}

/* What the guest sent before it heard that it is to go: each is judged by itself, until the connection ends for good. */
static void test_two_credentials_under_way(void **state) {
        H2World *w = *state;
        Slot *own, *other, *late, *late_other, *too_late;
        Buffer told = {};

        w->base.credentials[1].hosts = w->base.credentials[0].hosts;
        w->base.credentials[1].ports = w->base.credentials[0].ports;
        w->serve = serve_plainly;
        own = guest_ask(w, "GET", "/v1/own", KEY, false);
        other = guest_ask(w, "GET", "/v1/other", GIT, false);
        guest_speaks(w);
        assert_true(h2_pair_give_guest(w->pair, &told, 65536) >= 0);
        late = guest_ask(w, "GET", "/v1/late", KEY, false);
        late_other = guest_ask(w, "GET", "/v1/late-other", GIT, false);
        guest_speaks(w);
        (void) nghttp2_session_mem_recv2(w->guest.session, buffer_data(&told), buffer_size(&told));
        buffer_clear(&told);
        assert_true(w->guest.n_goaways == 1 && w->guest.goaway == NGHTTP2_NO_ERROR);
        h2_run(w);
        assert_true(has(own, ":status: 200\n") && has(late, ":status: 200\n"));
        assert_true(other->code == NGHTTP2_REFUSED_STREAM && late_other->code == NGHTTP2_REFUSED_STREAM);
        assert_int_equal(w->origin.n_slots, 2);
        assert_int_equal(count_of(w, "ghp_the-real-git-token"), 0);
        assert_int_equal(w->guest.n_goaways, 1);
        assert_false(h2_pair_is_over(w->pair));

        w->pair->dismissed_usec = 1;
        assert_int_equal(h2_pair_tick(w->pair), 0);
        h2_run(w);
        assert_true(h2_pair_is_over(w->pair));
        too_late = guest_ask(w, "GET", "/v1/too-late", KEY, false);
        h2_run(w);
        assert_false(has(too_late, ":status"));
        buffer_done(&told);
}

/* What a policy does not allow any more ends with the reason, or breaks off if it was answered already; the others go on. */
static void test_cut(void **state) {
        H2World *w = *state;
        Slot *answered, *waiting, *asked, *stays;

        w->serve = serve_later;
        answered = guest_ask(w, "GET", "/v1/answered", KEY, false);
        waiting = guest_ask(w, "POST", "/v1/waiting", KEY, true);
        stays = guest_ask(w, "POST", "/v1/stays", KEY, true);
        h2_run(w);
        assert_int_equal(w->origin.n_slots, 3);
        origin_answer(w, &w->origin.slots[0], ":status: 200\n", true);
        side_send(&w->origin, &w->origin.slots[0], "so far\n", false);
        h2_run(w);
        assert_true(body_has(answered, "so far\n"));
        w->base.audit_refuses = false;
        asked = guest_ask(w, "GET", "/v1/asked", KEY, false);
        assert_true(move_side(w, &w->guest, h2_pair_take_guest, h2_pair_give_guest)); /* egressd has not said yet */

        assert_int_equal(h2_pair_cut(w->pair, answered->id), 0);
        assert_int_equal(h2_pair_cut(w->pair, waiting->id), 0);
        assert_int_equal(h2_pair_cut(w->pair, asked->id), 0);
        assert_int_equal(h2_pair_cut(w->pair, asked->id), 0); /* once more */
        assert_int_equal(h2_pair_cut(w->pair, 99), 0);        /* that one is over */
        h2_run(w);
        assert_true(answered->closed && answered->code != NGHTTP2_NO_ERROR && !answered->ended);
        assert_true(has(waiting, ":status: 403\n") && has(waiting, "anchorhold-reason: policy-changed\n"));
        assert_true(has(asked, ":status: 403\n"));
        assert_true(w->origin.slots[0].closed && w->origin.slots[1].closed);
        assert_int_equal(w->origin.n_slots, 3);
        assert_true(logged(&w->base, "\"reason\":\"policy-changed\""));

        assert_false(stays->closed);
        side_send(&w->guest, stays, "more", true);
        h2_run(w);
        origin_answer(w, &w->origin.slots[2], ":status: 204\n", false);
        h2_run(w);
        assert_true(has(stays, ":status: 204\n"));
        assert_int_equal(w->guest.n_goaways, 0);
        stays = guest_ask(w, "GET", "/v1/next", KEY, false);
        h2_run(w);
        assert_int_equal(w->origin.n_slots, 4);
}

/* No audit record, no credential; without a credential nothing has to be recorded. */
static void test_audit_refuses(void **state) {
        H2World *w = *state;
        Slot *with, *without;

        w->serve = serve_plainly;
        w->base.audit_refuses = true;
        with = guest_ask(w, "GET", "/v1/a", KEY, false);
        without = guest_ask(w, "GET", "/v1/b", "", false);
        h2_run(w);
        assert_true(has(with, ":status: 503\n"));
        assert_true(has(without, ":status: 200\n"));
        assert_int_equal(w->origin.n_slots, 1);
}

/* A refusal is the answer of one stream. */
static void test_refusals(void **state) {
        static const struct {
                const char *method, *path, *fields, *status, *reason;
        } cases[] = {
                { "GET", "/v1/x", ":authority: other.example.org\n" KEY, "421", "fronting" },
                { "GET", "/v1/x", "host: other.example.org\n", "421", "fronting" },
                { "GET", "/v1/../x", KEY, "400", "path" },
                { "GET", "/v1/x", "cookie: a=" SENTINEL "\n", "403", "credential-misuse" },
                { "GET", "/v1/x?k=" SENTINEL, "", "403", "credential-misuse" },
                { "GET", "/v1/x", "x-api-key: sk-ant-my-own\n", "403", "foreign-credential" },
                { "DELETE", "/v1/x", KEY, "403", "credential-scope" },
                { "POST", "/v1/x", "x-http-method-override: DELETE\n", "400", "bad-request" },
                { "GET", "/v1/x", "x-forwarded-host: other.example.org\n", "400", "bad-request" },
                { "GET", "/v1/x", "forwarded: host=other.example.org\n", "400", "bad-request" },
                { "GET", "/v1/x", "x-envoy-original-path: /v2\n", "400", "bad-request" },
                { "GET", "/v1/denied", KEY, "403", "no-rule" },
        };
        H2World *w = *state;
        Slot *open, *last;

        w->serve = serve_echo;
        w->base.deny = "no-rule";
        w->base.deny_path = "/v1/denied";
        open = guest_ask(w, "POST", "/v1/open", KEY, true);
        side_send(&w->guest, open, "still here", false);
        h2_run(w);
        assert_int_equal(w->origin.n_slots, 1);

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                Slot *g = guest_ask(w, cases[i].method, cases[i].path, cases[i].fields, false);
                _cleanup_free_ char *status = text_format(":status: %s\n", cases[i].status);
                _cleanup_free_ char *reason = text_format("anchorhold-reason: %s\n", cases[i].reason);

                h2_run(w);
                assert_true(has(g, status));
                assert_true(has(g, reason));
                assert_int_equal(has(g, "anchorhold-rule: " INSPECT_RULE "\n"), i < 3 || strcmp(cases[i].reason, "bad-request") == 0);
                assert_true(body_has(g, cases[i].reason));
                assert_true(g->closed);
        }
        assert_int_equal(w->origin.n_slots, 1);
        assert_true(logged(&w->base, "\"event\":\"credential.misuse\""));
        assert_true(logged(&w->base, "\"reason\":\"fronting\""));
        assert_true(logged(&w->base, "\"detail\":\"other.example.org\""));
        assert_true(logged(&w->base, "\"rule\":\"" INSPECT_RULE "\""));

        /* the one beside them goes on, and a new one passes */
        side_send(&w->guest, open, "", true);
        h2_run(w);
        w->serve = serve_plainly;
        last = guest_ask(w, "GET", "/v1/x", "host: " NAME "\n", false);
        h2_run(w);
        assert_true(has(open, ":status: 200\n"));
        assert_true(body_has(open, "still here"));
        assert_true(has(last, ":status: 200\n"));
}

/* A HEAD that is refused gets no body. */
static void test_refused_head(void **state) {
        H2World *w = *state;
        Slot *g = guest_ask(w, "HEAD", "/v1/../x", "", false);

        h2_run(w);
        assert_true(has(g, ":status: 400\n"));
        assert_int_equal(g->n_bytes, 0);
}

static void test_misuse_in_body(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_echo;
        g = guest_ask(w, "POST", "/v1/x", "", true);
        side_send(&w->guest, g, "x ghp_AnotherSen", false);
        h2_run(w);
        side_send(&w->guest, g, "tinel0123456789 ", false);
        h2_run(w);
        assert_true(logged(&w->base, "\"event\":\"credential.misuse\""));
        assert_int_equal(w->origin.n_slots, 1);
        assert_false(body_has(&w->origin.slots[0], "Sentinel"));
        assert_true(w->origin.slots[0].closed);
        assert_false(w->origin.slots[0].ended);
        assert_true(g->closed);

        /* and in what stands behind a body */
        w->serve = NULL;
        g = guest_ask(w, "POST", "/v1/x", "", true);
        g->out_trailers = "x-late: " OTHER "\n";
        h2_run(w);
        side_send(&w->guest, g, "harmless", true);
        h2_run(w);
        assert_true(has(g, "credential-misuse"));
        assert_false(w->origin.slots[1].ended);
        assert_false(has(&w->origin.slots[1], OTHER));
}

/* Places in the path and in a body, which is held until it is whole. */
static void test_places(void **state) {
        H2World *w = *state;
        Slot *g, *o;

        w->serve = serve_plainly;
        (void) guest_ask(w, "GET", "/v1/feed?a=1&key=" SENTINEL "&b", "", false);
        h2_run(w);
        assert_true(has(&w->origin.slots[0], ":path: /v1/feed?a=1&key=" SECRET "&b\n"));

        g = guest_ask(w, "POST", "/v1/login", "content-type: application/json\nexpect: 100-continue\n", true);
        h2_run(w);
        assert_string_equal(g->head, "--\n:status: 100\n");
        side_send(&w->guest, g, "{\"key\":\"sk-", false);
        h2_run(w);
        assert_int_equal(w->origin.n_slots, 1); /* nothing leaves before it was judged */
        side_send(&w->guest, g, SENTINEL + 3, false);
        side_send(&w->guest, g, "\"}", true);
        h2_run(w);
        o = &w->origin.slots[1];
        assert_true(body_has(o, "{\"key\":\"" SECRET "\"}"));
        assert_int_equal(buffer_size(&o->body), strlen("{\"key\":\"\"}") + strlen(SECRET));
        {
                _cleanup_free_ char *length = text_format("content-length: %zu\n", buffer_size(&o->body));

                assert_true(has(o, length));
        }
        assert_false(has(o, "expect"));
        assert_true(o->ended);
        assert_true(has(g, ":status: 200\n"));

        g = guest_ask(w, "POST", "/v1/login", "content-type: application/json\n", true);
        side_send(&w->guest, g, "{\"key\":\"" SENTINEL "\",\"copy\":\"" SENTINEL "\"}", true);
        h2_run(w);
        assert_true(has(g, "credential-misuse"));
        g = guest_ask(w, "POST", "/v1/login", "content-type: text/plain\n", true);
        side_send(&w->guest, g, "key", true);
        h2_run(w);
        assert_true(has(g, ":status: 415\n"));
        assert_int_equal(w->origin.n_slots, 2);
}

/* What a run's streams hold together is bounded: one more is told to come again, and can when the others are through. */
static void test_held_bodies(void **state) {
        enum { SIZE = 200000, FITS = 16 * 1024 * 1024 / SIZE, N = FITS + 3 };
        static char text[SIZE + 1];
        H2World *w = *state;
        Slot *slots[N];

        w->serve = serve_plainly;
        memset(text, 'x', SIZE);
        memcpy(text, "{\"a\":\"", 6);
        for (unsigned i = 0; i < N; i++) {
                slots[i] = guest_ask(w, "POST", "/v1/login", "content-type: application/json\n", true);
                side_send(&w->guest, slots[i], text, false);
                h2_run(w);
                assert_int_equal(has(slots[i], "anchorhold-reason: busy\n"), i >= FITS);
        }
        assert_true(has(slots[N - 1], ":status: 503\n"));
        assert_true(w->base.context.held <= 16 * 1024 * 1024);
        assert_true(logged(&w->base, "\"reason\":\"busy\""));

        for (unsigned i = 0; i < FITS; i++)
                side_send(&w->guest, slots[i], "\"}", true);
        h2_run(w);
        for (unsigned i = 0; i < FITS; i++)
                assert_true(has(slots[i], ":status: 200\n"));
        assert_int_equal(w->base.context.held, 0);
        assert_int_equal(w->origin.n_slots, FITS);
}

static void test_trailers(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_echo;
        g = guest_ask(w, "POST", "/v1/x", KEY "te: trailers\n", true);
        g->out_trailers = "x-checksum: 17\n";
        side_send(&w->guest, g, "body", true);
        h2_run(w);
        assert_true(has(&w->origin.slots[0], "--\nx-checksum: 17\n"));
        assert_true(w->origin.slots[0].ended);
        assert_true(has(g, "--\nx-end: " SENTINEL "\n"));
        assert_true(body_has(g, "body"));
        assert_true(g->closed);
}

/* An answer that has only a head, which is its end: as gRPC's errors. */
static void serve_head_only(H2World *w, Slot *slot, bool ended) {
        if (ended)
                origin_answer(w, slot, ":status: 200\ngrpc-status: 5\n", false);
}

static void test_head_only(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_head_only;
        g = guest_ask(w, "POST", "/v1/x", "", true);
        side_send(&w->guest, g, "body", true);
        h2_run(w);
        assert_true(has(g, "grpc-status: 5\n"));
        assert_true(g->ended);
        assert_int_equal(g->n_bytes, 0);
}

static void test_both_ways(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_turns;
        g = guest_ask(w, "POST", "/v1/x", KEY, true);
        for (unsigned i = 0; i < 5; i++) {
                _cleanup_free_ char *up = text_format("question %u\n", i), *down = text_format("answer %u\n", i);

                side_send(&w->guest, g, up, false);
                h2_run(w);
                assert_true(body_has(&w->origin.slots[0], up));
                side_send(&w->origin, &w->origin.slots[0], down, false);
                h2_run(w);
                assert_true(body_has(g, down));
        }
        assert_false(g->ended);
        side_send(&w->guest, g, "", true);
        h2_run(w);
        assert_true(body_has(g, "bye\n"));
        assert_true(g->closed);
}

/* "Go on" and hints come before the head; the body only after them. */
static void serve_expecting(H2World *w, Slot *slot, bool ended) {
        static const char *const early[] = { ":status: 100\n", ":status: 103\nlink: " SECRET "\n" };

        if (ended) {
                origin_answer(w, slot, ":status: 204\n", false);
                return;
        }
        for (size_t i = 0; i < ELEMENTSOF(early); i++) {
                nghttp2_nv list[4];
                size_t n = make_list(early[i], list, ELEMENTSOF(list));

                assert_int_equal(nghttp2_submit_headers(w->origin.session, NGHTTP2_FLAG_NONE, slot->id, NULL, list, n, NULL), 0);
        }
}

static void test_early_heads(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_expecting;
        g = guest_ask(w, "POST", "/v1/x", "expect: 100-continue\n", true);
        h2_run(w);
        assert_true(has(&w->origin.slots[0], "expect: 100-continue\n"));
        assert_string_equal(g->head, "--\n:status: 100\n--\n:status: 103\nlink: " SENTINEL "\n");
        side_send(&w->guest, g, "body", true);
        h2_run(w);
        assert_true(has(g, "--\n:status: 204\n"));
        assert_true(g->closed);
        assert_true(body_has(&w->origin.slots[0], "body"));
}

/* ---- ends ---- */

static void test_guest_resets(void **state) {
        H2World *w = *state;
        Slot *g, *other;

        w->serve = serve_turns;
        g = guest_ask(w, "POST", "/v1/x", "", true);
        other = guest_ask(w, "POST", "/v1/y", "", true);
        h2_run(w);
        assert_int_equal(nghttp2_submit_rst_stream(w->guest.session, NGHTTP2_FLAG_NONE, g->id, NGHTTP2_CANCEL), 0);
        h2_run(w);
        assert_true(w->origin.slots[0].closed);
        assert_int_equal(w->origin.slots[0].code, NGHTTP2_CANCEL);
        assert_false(w->origin.slots[1].closed);
        assert_int_equal(w->pair->n_streams, 1);
        side_send(&w->guest, other, "", true);
        h2_run(w);
        assert_true(body_has(other, "bye\n"));
        assert_int_equal(w->pair->n_streams, 0);
}

/* Before egressd has answered: nothing reaches the origin. */
static void test_guest_resets_at_once(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_plainly;
        h2_run(w);
        g = guest_ask(w, "GET", "/v1/x", KEY, false);
        (void) move_side(w, &w->guest, h2_pair_take_guest, h2_pair_give_guest);
        assert_int_equal(nghttp2_submit_rst_stream(w->guest.session, NGHTTP2_FLAG_NONE, g->id, NGHTTP2_CANCEL), 0);
        h2_run(w);
        assert_int_equal(w->origin.n_slots, 0);
        assert_int_equal(w->pair->n_streams, 0);
}

static void serve_reset(H2World *w, Slot *slot, bool ended) {
        uint32_t code = strstr(slot->head, "/v1/refused") ? NGHTTP2_REFUSED_STREAM : NGHTTP2_ENHANCE_YOUR_CALM;

        if (ended)
                assert_int_equal(nghttp2_submit_rst_stream(w->origin.session, NGHTTP2_FLAG_NONE, slot->id, code), 0);
}

static void test_origin_resets(void **state) {
        H2World *w = *state;
        Slot *refused, *calm;

        w->serve = serve_reset;
        refused = guest_ask(w, "GET", "/v1/refused", "", false);
        calm = guest_ask(w, "GET", "/v1/calm", "", false);
        h2_run(w);
        assert_int_equal(refused->code, NGHTTP2_REFUSED_STREAM);
        assert_int_equal(calm->code, NGHTTP2_ENHANCE_YOUR_CALM);
        assert_int_equal(w->pair->n_streams, 0);
}

/* The origin answers without waiting for the body: the guest need not send the rest. */
static void serve_early(H2World *w, Slot *slot, bool ended) {
        if (!slot->out_over) {
                origin_answer(w, slot, ":status: 413\n", true);
                side_send(&w->origin, slot, "too much", true);
        }
}

static void test_early_answer(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_early;
        g = guest_ask(w, "POST", "/v1/x", "", true);
        side_send(&w->guest, g, "much", false);
        h2_run(w);
        assert_true(has(g, ":status: 413\n"));
        assert_true(body_has(g, "too much"));
        assert_true(g->ended);
        assert_true(g->closed);
        assert_int_equal(g->code, NGHTTP2_NO_ERROR);
        assert_int_equal(w->pair->n_streams, 0);
}

static void test_origin_leaves(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_turns;
        g = guest_ask(w, "POST", "/v1/x", "", true);
        h2_run(w);
        assert_int_equal(nghttp2_submit_goaway(w->origin.session, NGHTTP2_FLAG_NONE, w->origin.slots[0].id, NGHTTP2_NO_ERROR, NULL, 0), 0);
        h2_run(w);
        assert_int_equal(w->guest.n_goaways, 1);
        assert_int_equal(w->guest.goaway, NGHTTP2_NO_ERROR);
        assert_false(h2_pair_is_over(w->pair));
        side_send(&w->guest, g, "", true);
        h2_run(w);
        assert_true(body_has(g, "bye\n"));
        assert_true(h2_pair_is_over(w->pair));
}

static void test_origin_ends(void **state) {
        H2World *w = *state;
        Slot *answered, *waiting;

        w->serve = serve_turns;
        answered = guest_ask(w, "POST", "/v1/x", "", true);
        h2_run(w);
        w->serve = NULL;
        waiting = guest_ask(w, "POST", "/v1/y", "", true);
        h2_run(w);
        assert_int_equal(h2_pair_end_origin(w->pair), 0);
        h2_run(w);
        assert_int_equal(answered->code, NGHTTP2_INTERNAL_ERROR);
        assert_true(has(waiting, ":status: 502\n"));
        assert_true(has(waiting, "origin-closed"));
        assert_int_equal(w->guest.n_goaways, 1);
        assert_true(h2_pair_is_over(w->pair));
}

static void test_no_origin(void **state) {
        Refusal refusal;
        H2World *w;
        Slot *g;

        refusal_set(&refusal, 502, "origin-certificate", "default", "TLS with the origin failed: certificate has expired");
        w = h2_world_new(&refusal);
        *state = w;
        g = guest_ask(w, "GET", "/v1/x", KEY, false);
        h2_run(w);
        assert_true(has(g, ":status: 502\n"));
        assert_true(has(g, "origin-certificate"));
        assert_true(body_has(g, "has expired"));
        assert_int_equal(w->base.n_questions, 0);
}

static void test_deadlines(void **state) {
        H2World *w = *state;
        Slot *sent, *waiting;

        sent = guest_ask(w, "GET", "/v1/sent", "", false);
        h2_run(w);
        waiting = guest_ask(w, "GET", "/v1/waiting", "", false);
        (void) move_side(w, &w->guest, h2_pair_take_guest, h2_pair_give_guest);
        assert_int_equal(h2_pair_tick(w->pair), 0);
        for (H2Stream *s = w->pair->streams; s; s = s->next) {
                assert_false(s->answered);
                s->deadline_usec = 1;
        }
        assert_int_equal(h2_pair_tick(w->pair), 0);
        h2_run(w);
        assert_true(has(sent, ":status: 504\n"));
        assert_true(has(waiting, ":status: 503\n"));
        assert_int_equal(w->origin.n_slots, 1);
        assert_true(w->origin.slots[0].closed);

        w->pair->idle_usec = 1;
        assert_int_equal(h2_pair_tick(w->pair), 0);
        h2_run(w);
        assert_int_equal(w->guest.goaway, NGHTTP2_NO_ERROR);
        assert_true(h2_pair_is_over(w->pair));
}

/* ---- memory ---- */

enum { MUCH = 512 * 1024 };

static void serve_much(H2World *w, Slot *slot, bool ended) {
        origin_answer(w, slot, ":status: 200\n", true);
        slot->out_more = MUCH;
        side_send(&w->origin, slot, "", true);
}

/* Sixty-four large answers for a guest that does not read: what waits is bounded; and once it reads, everything comes. */
static void test_slow_reader(void **state) {
        enum { N = 64 };
        H2World *w = *state;

        side_settings(&w->guest, NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 4 * 1024 * 1024);
        w->serve = serve_much;
        w->guest.holds = true;
        for (unsigned i = 0; i < N; i++)
                (void) guest_ask(w, "GET", "/v1/x", KEY, false);
        h2_run(w);
        assert_true(w->most > 1024 * 1024);
        assert_true(w->most <= H2_BACKLOG_MAX + H2_WINDOW);

        w->guest.holds = false;
        for (unsigned i = 0; i < N; i++) {
                Slot *g = &w->guest.slots[i];

                (void) nghttp2_session_consume(w->guest.session, g->id, g->n_bytes);
        }
        h2_run(w);
        for (unsigned i = 0; i < N; i++) {
                assert_int_equal(w->guest.slots[i].n_bytes, MUCH);
                assert_true(w->guest.slots[i].closed);
        }
}

/* One slow stream does not stop another. */
static void test_slow_stream(void **state) {
        H2World *w = *state;
        Slot *slow, *fast;

        w->serve = serve_much;
        w->guest.holds = true;
        slow = guest_ask(w, "GET", "/v1/x", "", false);
        h2_run(w);
        assert_true(slow->n_bytes < MUCH);
        assert_int_equal(nghttp2_session_set_local_window_size(w->guest.session, NGHTTP2_FLAG_NONE, 0, 1 << 20), 0);
        w->guest.holds = false;
        fast = guest_ask(w, "GET", "/v1/y", "", false);
        h2_run(w);
        assert_int_equal(fast->n_bytes, MUCH);
        assert_true(slow->n_bytes < MUCH);
}

/* A large upload to an origin that reads now and then. */
static void test_slow_origin(void **state) {
        enum { MORE = 20 * 1024 * 1024 };
        H2World *w = *state;
        Slot *g, *o;

        w->serve = serve_turns;
        g = guest_ask(w, "POST", "/v1/x", KEY, true);
        g->out_more = MORE;
        side_send(&w->guest, g, "", true);
        w->origin.holds = true;
        h2_run(w);
        o = &w->origin.slots[0];
        assert_true(o->n_bytes < MORE);
        assert_true(w->most > 0 && w->most <= H2_STREAM_WINDOW);
        assert_true(w->pair->up_backlog <= H2_STREAM_WINDOW);

        w->origin.holds = false;
        (void) nghttp2_session_consume(w->origin.session, o->id, o->n_bytes);
        h2_run(w);
        assert_int_equal(o->n_bytes, MORE);
        assert_true(w->most <= H2_STREAM_WINDOW);
        assert_true(body_has(g, "bye\n"));
}

int main(void) {
#define T(test) cmocka_unit_test_setup_teardown(test, set_up_pair, tear_down_pair)
        const struct CMUnitTest tests[] = {
                T(test_request),
                T(test_rotated_elsewhere),
                T(test_covered),
                cmocka_unit_test(test_two_credentials),
                T(test_two_credentials_under_way),
                T(test_cut),
                T(test_audit_refuses),
                T(test_refusals),
                T(test_refused_head),
                T(test_misuse_in_body),
                T(test_places), T(test_held_bodies), T(test_trailers),
                T(test_head_only),
                T(test_both_ways),
                T(test_early_heads),
                T(test_guest_resets),
                T(test_guest_resets_at_once),
                T(test_origin_resets),
                T(test_early_answer),
                T(test_origin_leaves),
                T(test_origin_ends),
                cmocka_unit_test_teardown(test_no_origin, tear_down_pair),
                T(test_deadlines),
                T(test_slow_reader),
                T(test_slow_stream),
                T(test_slow_origin),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
