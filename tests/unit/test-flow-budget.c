/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A run's budget as anchord sees it: what is granted, and how an item ends that has used it up. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "manager-world.h"

/* The vendor's code-fix with a budget. */
static void with_budget(const char *budget) {
        _cleanup_json_ json_t *workflow = json_load_file("/usr/lib/anchorhold/policy/workflows/code-fix.json", 0, NULL);
        _cleanup_free_ char *text = NULL;
        Tree root = {};

        assert_non_null(workflow);
        assert_int_equal(json_object_set_new(workflow, "budget", json_loads(budget, 0, NULL)), 0);
        text = json_dumps(workflow, 0);
        tree_put(&root, "usr/lib/anchorhold/policy/workflows/code-fix.json", text);
}

static void ask(World *w, const char *call, json_int_t cost, bool summary) {
        RUN(w, "Reserve", json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:I, s:i, s:i, s:b}", "life", "a", "call", call, "provider", "anthropic",
                                    "model", "m\x1b", "price", "default", "prices_version", "1", "input_tokens", 10, "output_tokens", 10, "cost_microusd", cost,
                                    "summary_tokens", 20, "summary_cost", 100, "summary", (int) summary));
}

static void reserve(World *w, const char *call, json_int_t cost, bool summary) {
        ask(w, call, cost, summary);
        assert_ok(w);
}

static bool granted(World *w) {
        return json_is_true(json_object_get(w->answer, "granted"));
}

static void report(World *w, const char *call, json_int_t cost) {
        RUN(w, "AddUsage", json_pack("{s:s, s:s, s:s, s:i, s:I, s:i}", "call", call, "provider", "anthropic", "model", "m", "output_tokens", 5, "cost_microusd", cost,
                                     "status", 200));
        assert_ok(w);
}

static void test_no_caps(void **state) {
        char item[ID_LENGTH + 1];
        World *w = *state;

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        RUN(w, "GetBudget", NULL);
        assert_ok(w);
        assert_true(json_is_false(json_object_get(w->answer, "capped")));
        reserve(w, "c1", 1000000, false);
        assert_true(granted(w));
        RUN(w, "OverBudget", json_pack("{s:s}", "reason", "over budget"));
        assert_refused(w, "NoSuchRun");
        finish(w, "ok", "", NULL);
}

static void test_caps_and_events(void **state) {
        char item[ID_LENGTH + 1];
        World *w = *state;

        with_budget("{\"run\": {\"cost\": \"0.001 USD\"}, \"soft\": 60, \"lower_max_tokens\": true}");
        submit_fix(w, item);
        (void) await_active(w, item, "work");
        RUN(w, "GetBudget", NULL);
        assert_true(json_is_true(json_object_get(w->answer, "capped")));
        assert_int_equal(json_integer_value(json_object_get(w->answer, "calls")), 0);
        reserve(w, "c1", 500, false);
        assert_true(granted(w));
        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(audited(w, "budget.soft"), 0);

        reserve(w, "c2", 501, false);
        assert_false(granted(w));
        assert_int_equal(json_integer_value(json_object_get(w->answer, "room_cost")), 500);
        assert_true(json_is_true(json_object_get(w->answer, "lower")));
        assert_true(answer_has(w, "over budget: the run's cap of 0.0010 USD"));
        report(w, "c1", 100);
        RUN(w, "GetBudget", NULL); /* as an inject that was started anew asks */
        assert_int_equal(json_integer_value(json_object_get(w->answer, "calls")), 1);
        reserve(w, "c2", 600, false);
        assert_true(granted(w));
        RUN(w, "Unreserve", json_pack("{s:s}", "call", "c2"));
        assert_ok(w);
        ask(w, "c2", 600, false); /* a try that was on its way */
        assert_refused(w, "BadInput");
        reserve(w, "c3", 900, false);
        assert_true(granted(w));
        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(audited(w, "budget.soft"), 1);

        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "\"budget\":{\"run\":{\"cost\":{\"cap\":1000,\"used\":100}}}"));

        /* bad words of its own process */
        RUN(w, "Reserve", json_pack("{s:s, s:s, s:i}", "life", "a", "call", "c9", "cost_microusd", -1));
        assert_refused(w, "BadInput");
        RUN(w, "Reserve", json_pack("{s:s}", "life", "a"));
        assert_refused(w, "BadInput");
        RUN(w, "Unreserve", NULL);
        assert_refused(w, "BadInput");
        finish(w, "failed", "enough", NULL);
}

/* What was made goes through import; then the item is exhausted, whatever attempts it has left. */
static void test_over_budget(void **state) {
        char item[ID_LENGTH + 1], unit[64];
        World *w = *state;
        _cleanup_item_ LedgerItem i = {};

        with_budget("{\"run\": {\"requests\": 1}}");
        submit_fix(w, item);
        (void) await_active(w, item, "work");
        reserve(w, "c1", 1, false);
        assert_true(granted(w));
        reserve(w, "c2", 1, false);
        assert_false(granted(w));
        assert_true(json_is_false(json_object_get(w->answer, "lower")));
        RUN(w, "OverBudget", json_pack("{s:s}", "reason", json_string_value(json_object_get(w->answer, "reason"))));
        assert_ok(w);
        (void) snprintf(unit, sizeof(unit), "KillUnit anchor-run@%s.service", w->as_run);
        UNTIL(w->event, fake_told(&w->systemd, unit) == 1);
        report(w, "c1", 1);
        reserve(w, "c3", 0, false);
        assert_false(granted(w));

        finish(w, "failed", "over budget", "the guest's bundle");
        assert_ok(w);
        (void) await_active(w, item, "import");
        import(w, true, RESULT, true);
        assert_ok(w);
        UNTIL(w->event, state_of(w, item) == ITEM_EXHAUSTED && !w->m->flows);
        assert_true(reason_is(w, item, "over budget: the run's cap of 1 requests"));
        assert_int_equal(ledger_get(w->m->ledger, item, &i), 0);
        assert_int_equal(i.attempt, 1);
        assert_true(i.max_attempts > 1);
        assert_string_equal(i.result_commit, RESULT);
        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(audited(w, "budget.exceeded"), 1);
        OPERATOR(w, "Result", json_pack("{s:s, s:s}", "item", item, "what", "bundle"));
        assert_ok(w);
}

static void test_nothing_was_made(void **state) {
        char item[ID_LENGTH + 1];
        World *w = *state;

        with_budget("{\"item\": {\"tokens\": 30}}");
        submit_fix(w, item);
        (void) await_active(w, item, "work");
        reserve(w, "c1", 1, false);
        RUN(w, "OverBudget", json_pack("{s:s}", "reason", "what a guest might say"));
        assert_ok(w);
        finish(w, "failed", "over budget", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_EXHAUSTED && !w->m->flows);
        assert_true(reason_is(w, item, "over budget"));
        /* what was under way is charged */
        OPERATOR(w, "Cost", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "\"estimated\":1"));
}

static void test_last_call(void **state) {
        char item[ID_LENGTH + 1];
        World *w = *state;

        with_budget("{\"run\": {\"cost\": \"0.001 USD\"}, \"summary_tokens\": 5}");
        submit_fix(w, item);
        (void) await_active(w, item, "work");
        RUN(w, "GetBudget", NULL);
        assert_int_equal(json_integer_value(json_object_get(w->answer, "summary_tokens")), 5);
        reserve(w, "c1", 901, false); /* its own last call would not fit any more */
        assert_false(granted(w));
        reserve(w, "c1", 900, false);
        assert_true(granted(w));
        reserve(w, "c2", 1, false);
        assert_false(granted(w));
        assert_int_equal(json_integer_value(json_object_get(w->answer, "summary_tokens")), 5);
        reserve(w, "c2", 100, true);
        assert_true(granted(w));
        report(w, "c1", 0);
        report(w, "c2", 0);
        reserve(w, "c3", 1, true);
        assert_false(granted(w));
        reserve(w, "c3", 1, false);
        assert_false(granted(w));
        assert_true(answer_has(w, "the last model call was made"));
        finish(w, "failed", "x", NULL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_no_caps, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_caps_and_events, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_over_budget, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_nothing_was_made, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_last_call, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
