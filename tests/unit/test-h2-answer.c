/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Answers over HTTP/2 to requests with a credential: none in parts, and nothing about the value in the pieces in which they come. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "h2-world.h"

/* ---- parts ---- */

static void serve_part(H2World *w, Slot *slot, bool ended) {
        if (!ended)
                return;
        origin_answer(w, slot, ":status: 206\ncontent-range: bytes 0-3/24\n", true);
        side_send(&w->origin, slot, "sk-a", true);
}

/* Who asks for a part of an answer, or for an echo of the request, could have the value in pieces that nobody recognises. */
static void test_parts(void **state) {
        static const struct {
                const char *method, *fields;
        } cases[] = {
                { "GET", KEY "range: bytes=0-9\n" },
                { "GET", KEY "if-range: \"a\"\n" },
                { "TRACE", KEY },
        };
        _cleanup_json_ json_t *methods = json_pack("[ss]", "GET", "TRACE");
        H2World *w = *state;
        Slot *g;

        w->base.credentials[0].methods = methods;
        w->serve = serve_plainly;
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                g = guest_ask(w, cases[i].method, "/v1/x", cases[i].fields, false);
                h2_run(w);
                assert_true(has(g, ":status: 422\n"));
                assert_true(has(g, "anchorhold-reason: cannot-substitute\n"));
        }
        assert_int_equal(w->origin.n_slots, 0);

        w->serve = serve_part;
        g = guest_ask(w, "GET", "/v1/x", KEY, false);
        h2_run(w);
        assert_true(has(g, ":status: 502\n"));
        assert_true(has(g, "anchorhold-reason: partial-response\n"));
        assert_false(body_has(g, "sk-a"));

        /* the control: without a credential they are as good as any other */
        g = guest_ask(w, "GET", "/v1/x", "range: bytes=0-9\n", false);
        h2_run(w);
        assert_true(has(&w->origin.slots[w->origin.n_slots - 1], "range: bytes=0-9\n"));
        assert_true(has(g, ":status: 206\n"));
        assert_true(body_has(g, "sk-a"));
}

/* ---- digests ---- */

static void serve_digests(H2World *w, Slot *slot, bool ended) {
        if (!ended)
                return;
        slot->out_trailers = "digest: sha-256=TRAIL\nx-end: 1\n";
        origin_answer(w, slot, ":status: 200\ncontent-md5: HEAD\ncontent-digest: sha-256=:HEAD:\nrepr-digest: sha-256=:HEAD:\ndigest: sha-256=HEAD\netag: \"tag\"\n", true);
        side_send(&w->origin, slot, "a body with " SECRET, true);
}

/* What the value can be tested against without asking anybody does not reach the guest. */
static void test_digests(void **state) {
        H2World *w = *state;
        Slot *g;

        w->serve = serve_digests;
        for (size_t i = 0; i < 2; i++) { /* with the credential in the request, and without: it may be in any answer */
                g = guest_ask(w, "GET", "/v1/x", i == 0 ? KEY : "", false);
                h2_run(w);
                assert_true(body_has(g, "a body with " SENTINEL));
                assert_true(has(g, "etag: \"tag\"\n"));
                assert_true(has(g, "x-end: 1\n"));
                assert_false(has(g, "HEAD"));
                assert_false(has(g, "TRAIL"));
        }

        /* the control: nothing is masked in a run without credentials */
        w->base.context.n_credentials = 0;
        g = guest_ask(w, "GET", "/v1/x", "", false);
        h2_run(w);
        assert_true(has(g, "content-md5: HEAD\ncontent-digest: sha-256=:HEAD:\nrepr-digest: sha-256=:HEAD:\ndigest: sha-256=HEAD\n"));
        assert_true(has(g, "digest: sha-256=TRAIL\n"));
}

/* ---- what a guess tells ---- */

/* The sizes of the frames that come while the origin pauses in the midst of the guess, "|", and of those that come then. */
static char *pieces_of(H2World *w, const char *guess, Slot **ret) {
        Slot *g = guest_ask(w, "GET", "/v1/x", KEY, false), *o;
        size_t half = strlen(guess) / 2;
        _cleanup_free_ char *one = text_format("it is: %.*s", (int) half, guess), *two = text_format("%s and\n", guess + half), *before = NULL;

        h2_run(w);
        o = &w->origin.slots[w->origin.n_slots - 1];
        side_send(&w->origin, o, one, false);
        h2_run(w);
        before = strdup(g->sizes ?: "");
        side_send(&w->origin, o, two, true);
        h2_run(w);
        assert_true(g->closed);
        *ret = g;
        return text_format("%s|%s", before, g->sizes + strlen(before));
}

static void serve_head(H2World *w, Slot *slot, bool ended) {
        if (ended)
                origin_answer(w, slot, ":status: 200\n", true);
}

/* A guess that is right but for its end comes in the same frames as one that is wrong from its beginning, in whatever form. */
static void test_guesses(void **state) {
        static const char *const guesses[][3] = {
                { "sk-ant-the-real-one-012x", "sk-ant-the-reaX-one-0123", "xxxxxxxxxxxxxxxxxxxxxxxx" },
                { "c2stYW50LXRoZS1yZWFsLW9uZS0wMTIy", "c2stYW50LXRoZS1yZWFsLW9uZS0wMTAw", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" },
                { "sk%2Dant-the-real%2Done-0122", "xx%2Dant-the-real%2Done-0122", "xx%2Exxxxxxxxxxxx%2Exxxxxxxx" },
        };
        H2World *w = *state;
        Slot *g;

        w->serve = serve_head;
        for (size_t i = 0; i < ELEMENTSOF(guesses); i++) {
                _cleanup_free_ char *first = NULL;

                for (size_t k = 0; k < ELEMENTSOF(guesses[i]); k++) {
                        _cleanup_free_ char *pieces = pieces_of(w, guesses[i][k], &g);

                        assert_true(body_has(g, guesses[i][k]));
                        if (first)
                                assert_string_equal(pieces, first);
                        else
                                first = TAKE_PTR(pieces);
                }
        }

        /* the control: there was something to be told */
        free(pieces_of(w, SECRET, &g));
        assert_true(body_has(g, "it is: " SENTINEL " and\n"));
        assert_false(body_has(g, SECRET));
}

int main(void) {
#define T(test) cmocka_unit_test_setup_teardown(test, set_up_pair, tear_down_pair)
        const struct CMUnitTest tests[] = {
                T(test_parts),
                T(test_digests),
                T(test_guesses),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
