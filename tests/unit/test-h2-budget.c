/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Model calls over HTTP/2 in a run that has a budget. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "budget-world.h"
#include "h2-world.h"

#define BODY "{\"max_tokens\" : 100,\"model\":\"m\"}"

static bool body_is(const Slot *slot, const char *text) {
        return buffer_size(&slot->body) == strlen(text) && memcmp(buffer_data(&slot->body), text, strlen(text)) == 0;
}

static void serve_usage(H2World *w, Slot *slot, bool ended) {
        if (!ended)
                return;
        origin_answer(w, slot, ":status: 200\ncontent-type: application/json\n", true);
        side_send(&w->origin, slot, "{\"model\":\"m\", \"usage\":{\"input_tokens\":3, \"output_tokens\":4}}", true);
}

static int begin(void **state) {
        H2World *w = h2_world_new(NULL);

        w->serve = serve_usage;
        budget_world_begin(&w->base);
        *state = w;
        return 0;
}

static int end(void **state) {
        H2World *w = *state;
        ExchangeContext *c = &w->base.context;
        Budget *budget = c->budget;

        h2_world_free(w); /* the streams first: they may have asked */
        budget_free(budget);
        return 0;
}

static Slot *ask(H2World *w, const char *text) {
        Slot *g = guest_ask(w, "POST", "/v1/messages", KEY, true);

        side_send(&w->guest, g, "", false);
        h2_run(w);
        assert_int_equal(w->origin.n_slots, 0); /* nothing leaves before all of it is there */
        side_send(&w->guest, g, text, true);
        h2_run(w);
        return g;
}

static void test_granted(void **state) {
        H2World *w = *state;
        Slot *g = ask(w, BODY);

        assert_true(has(g, ":status: 200\n"));
        assert_int_equal(w->origin.n_slots, 1);
        assert_true(has(&w->origin.slots[0], "content-length: 32\n"));
        assert_true(has(&w->origin.slots[0], "x-api-key: " SECRET "\n"));
        assert_true(body_is(&w->origin.slots[0], BODY));
        assert_int_equal(anchord.n_reserved, 1);
        assert_int_equal(w->base.context.gathered, 0);
        assert_int_equal(json_integer_value(json_object_get(w->base.usage, "output_tokens")), 4);
}

/* What the origin's windows leave here counts until it has left. */
static void test_slow_origin(void **state) {
        enum { LARGE = 1024 * 1024 };
        _cleanup_free_ char *text = malloc(LARGE + 1);
        H2World *w = *state;
        Slot *g, *o;

        memset(text, ' ', LARGE);
        text[LARGE] = 0;
        memcpy(text, "{\"max_tokens\" : 100,\"model\":\"m\"", 31);
        text[LARGE - 1] = '}';
        w->origin.holds = true;
        g = ask(w, text);
        o = &w->origin.slots[0];
        assert_true(o->n_bytes > 0 && o->n_bytes < LARGE);
        assert_int_equal(w->base.context.gathered, LARGE);

        w->origin.holds = false;
        (void) nghttp2_session_consume(w->origin.session, o->id, o->n_bytes);
        h2_run(w);
        assert_int_equal(o->n_bytes, LARGE);
        assert_int_equal(w->base.context.gathered, 0);
        assert_true(has(g, ":status: 200\n"));
}

static void test_made_smaller(void **state) {
        H2World *w = *state;

        anchord.room_tokens = 76;
        anchord.lower = true;
        assert_true(has(ask(w, BODY), ":status: 200\n"));
        assert_true(has(&w->origin.slots[0], "content-length: 31\n"));
        assert_true(body_is(&w->origin.slots[0], "{\"max_tokens\" : 60,\"model\":\"m\"}"));
}

static void test_refused(void **state) {
        H2World *w = *state;
        Slot *g;

        anchord.room_tokens = 50;
        g = ask(w, BODY);
        assert_true(has(g, ":status: 402\n"));
        assert_true(has(g, "x-should-retry: false\n"));
        assert_int_equal(w->origin.n_slots, 0);
        assert_int_equal(anchord.n_over, 1);
        assert_null(w->base.usage);
}

/* A body in one go, none at all, and one that cannot be counted. */
static void test_ends(void **state) {
        H2World *w = *state;
        Slot *none = guest_ask(w, "POST", "/v1/messages", KEY, false);

        h2_run(w);
        assert_true(has(none, ":status: 400\n"));
        assert_true(has(ask(w, "{\"max_tokens\":1,\"max_tokens\":2}"), ":status: 400\n"));
        assert_int_equal(w->origin.n_slots, 0);
        assert_int_equal(anchord.n_reserved, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
        const struct CMUnitTest tests[] = { TEST(test_granted), TEST(test_slow_origin), TEST(test_made_smaller), TEST(test_refused), TEST(test_ends) };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
