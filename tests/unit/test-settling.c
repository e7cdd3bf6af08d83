/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchord was started anew, and an operator wants something done before it knows its runs; or had it done just before anchord went. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "manager-world.h"

/* A new life that does not settle before the test lets it: systemd does not say yet which units there are. */
static void begin_unsettled(World *w) {
        static const char *const paths[] = { "/run/anchorhold/api.sock", "/run/anchorhold/run-api.sock", "/run/anchorhold/spec.sock" };

        w->systemd.list_holds = true;
        own_world_pass(paths, ELEMENTSOF(paths), "api:run-api:spec");
        assert_int_equal(manager_new(&w->m, w->event), 0);
        assert_int_equal(manager_start(w->m), 0);
}

static void settle(World *w) {
        assert_false(w->m->settled);
        fake_let_lists_go(&w->systemd);
        UNTIL(w->event, w->m->settled);
}

static void end_quietly(World *w) {
        UNTIL(w->event, outbox_is_empty(w->m));
        end_life(w);
}

static void ask(World *w, IpcClient *c, const char *method, json_t *params, const int *fds, size_t n) {
        forget_answer(w);
        assert_int_equal(ipc_client_call_async(c, method, params, fds, n, false, 0, on_answer, w), 0);
}

static void assert_waits(World *w) {
        run_for(w->event, 20000);
        assert_false(w->m->settled);
        assert_false(w->answered);
}

static bool is_held(World *w) {
        bool held;

        assert_int_equal(ledger_hold_get(w->m->ledger, &held, NULL), 0);
        return held;
}

/* ---- what is asked before all is settled ---- */

/* "Nothing is stopped" is no answer while nobody knows what runs. A hold is set at once, and what only reads is answered at once. */
static void test_stop_all(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *other = NULL;
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        end_quietly(w);
        begin_unsettled(w);
        ask(w, w->operator, "io.anchorhold.Manager.StopAll", json_pack("{s:b}", "hold", true), NULL, 0);
        UNTIL(w->event, is_held(w));
        assert_waits(w);

        assert_int_equal(ipc_client_new(&other, w->event, "/run/anchorhold/api.sock"), 0);
        call_with(w, other, "io.anchorhold.Manager.Status", NULL, NULL, 0, false);
        assert_ok(w);
        assert_true(json_is_false(json_object_get(w->answer, "ready")) && json_is_true(json_object_get(w->answer, "hold")));

        forget_answer(w);
        settle(w);
        UNTIL(w->event, w->answered);
        assert_ok(w);
        assert_true(answer_has(w, item));
        assert_null(w->m->flows);
        assert_int_equal(state_of(w, item), ITEM_CANCELLED);
        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(audited(w, "run.stopped"), 1);
        assert_int_equal(audited(w, "hold.set"), 1);
        assert_int_equal(w->systemd.n_units, HOST_UNITS);
}

/* Of a run that is stopped the record says so, not of its item alone. */
static void test_stop(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        end_quietly(w);
        begin_unsettled(w);
        ask(w, w->operator, "io.anchorhold.Manager.Stop", json_pack("{s:s}", "item", item), NULL, 0);
        assert_waits(w);
        assert_int_equal(state_of(w, item), ITEM_RUNNING);
        settle(w);
        UNTIL(w->event, w->answered && state_of(w, item) == ITEM_CANCELLED && !w->m->flows);
        assert_ok(w);
        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(audited(w, "run.stopped"), 1);
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "\"outcome\":\"stopped\""));
}

/* A seed is none of what an earlier life left. */
static void test_submit(void **state) {
        World *w = *state;
        _cleanup_fd_ int fd = file_of(SEED), seed = -1;
        char item[ID_LENGTH + 1];

        end_life(w);
        begin_unsettled(w);
        ask(w, w->operator, "io.anchorhold.Manager.Submit", json_pack("{s:s, s:s, s:s, s:s}", "workflow", "code-fix", "task", "mend it", "base", BASE, "repo", "/r"),
            &fd, 1);
        assert_waits(w);
        settle(w);
        UNTIL(w->event, w->answered);
        assert_ok(w);
        (void) snprintf(item, sizeof(item), "%s", json_string_value(json_object_get(w->answer, "item")));
        (void) await_active(w, item, "work");
        seed = store_open_file(w->m->store, item, STORE_SEED);
        assert_true(seed >= 0);
}

/* A drain holds at once, and is answered when what runs too long was handed back. */
static void test_drain(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        end_quietly(w);
        begin_unsettled(w);
        ask(w, w->operator, "io.anchorhold.Manager.Drain", json_pack("{s:i}", "within_s", 0), NULL, 0);
        assert_waits(w);
        settle(w);
        UNTIL(w->event, w->answered);
        assert_ok(w);
        assert_string_equal(flow_state_name(w->m->flows), "cleaning");
        UNTIL(w->event, !w->m->flows);
        assert_int_equal(state_of(w, item), ITEM_QUEUED);
}

/* In the order in which they came: what is stopped was submitted before, as far as anybody could know. */
static void test_order(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *gone = NULL, *other = NULL;
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        end_quietly(w);
        begin_unsettled(w);
        assert_int_equal(ipc_client_new(&gone, w->event, "/run/anchorhold/api.sock"), 0);
        assert_int_equal(ipc_client_new(&other, w->event, "/run/anchorhold/api.sock"), 0);
        ask(w, gone, "io.anchorhold.Manager.Submit", json_pack("{s:s, s:[s]}", "workflow", "exec", "command", "/bin/true"), NULL, 0);
        UNTIL(w->event, w->m->operator_waits);
        ask(w, other, "io.anchorhold.Manager.Drain", json_pack("{s:i}", "within_s", 0), NULL, 0);
        assert_waits(w);
        gone = ipc_client_free(gone); /* nobody heard that it was submitted, and it is not */
        run_for(w->event, 20000);
        ask(w, w->operator, "io.anchorhold.Manager.Stop", json_pack("{s:s}", "item", item), NULL, 0);
        assert_waits(w);
        settle(w);
        UNTIL(w->event, state_of(w, item) == ITEM_CANCELLED && !w->m->flows); /* a stop of what is being handed back is a stop */
        call_with(w, other, "io.anchorhold.Manager.List", NULL, NULL, 0, true);
        assert_ok(w);
        assert_true(answer_has(w, item)); /* the last one of the list */
}

/* Nobody waits for ever. */
static void test_wait_is_bounded(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        end_quietly(w);
        begin_unsettled(w);
        w->m->settle_wait_usec = 1000;
        OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
        assert_refused(w, "Unavailable");
        assert_true(answer_has(w, "has not yet settled"));
        assert_null(w->m->operator_waits);
        settle(w);
        (void) await_active(w, item, "work"); /* what was refused is not done */
}

/* It ends before it has settled: whoever waits learns that nothing was done. */
static void test_end_before_settled(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        end_quietly(w);
        begin_unsettled(w);
        ask(w, w->operator, "io.anchorhold.Manager.Stop", json_pack("{s:s}", "item", item), NULL, 0);
        assert_waits(w);
        end_life(w);
        UNTIL(w->event, w->answered);
        assert_non_null(w->error);
        fake_let_lists_go(&w->systemd);
        begin_life(w);
        (void) await_active(w, item, "work");
}

/* ---- what was decided just before ---- */

/* Its unit resists, so that cleaning up takes until the test says otherwise. */
static void unit_resists(World *w, const char *kind) {
        char unit[64];

        (void) snprintf(unit, sizeof(unit), "anchor-%s@%s.service", kind, w->as_run);
        assert_non_null(fake_unit_find(&w->systemd, unit));
        fake_unit_find(&w->systemd, unit)->sticky = true;
}

/* The same in the next life, which finds the unit still there, and gone a moment later. */
static void next_life(World *w, const char *kind) {
        char unit[64];

        assert_string_equal(flow_state_name(w->m->flows), "cleaning");
        end_quietly(w);
        begin_life(w);
        (void) snprintf(unit, sizeof(unit), "anchor-%s@%s.service", kind, w->as_run);
        if (fake_unit_find(&w->systemd, unit))
                fake_unit_changed(&w->systemd, unit, "inactive", NULL, 0, 0);
        UNTIL(w->event, !w->m->flows);
}

/* Handed back, in either of the stages that have a unit: queued with the attempt that it had, however often anchord is started anew while it is cleaned up. */
static void test_handed_back(void **state) {
        World *w = *state;

        for (unsigned import = 0; import < 2; import++) {
                const char *unit = import ? "import" : "run";
                _cleanup_item_ LedgerItem i = {};
                char item[ID_LENGTH + 1];

                submit_fix(w, item);
                (void) await_active(w, item, "work");
                if (import) {
                        finish(w, "ok", "", "the guest's bundle");
                        assert_ok(w);
                        (void) await_active(w, item, "import");
                }
                unit_resists(w, unit);
                OPERATOR(w, "Drain", json_pack("{s:i}", "within_s", 0));
                assert_ok(w);
                assert_string_equal(flow_state_name(w->m->flows), "cleaning");
                end_quietly(w);
                begin_life(w);
                next_life(w, unit);
                assert_int_equal(ledger_get(w->m->ledger, item, &i), 0);
                assert_int_equal(i.state, ITEM_QUEUED);
                assert_int_equal(i.attempt, 1);
                assert_true(reason_is(w, item, "handed back: the host is drained"));
                OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
                assert_ok(w);
                OPERATOR(w, "Undrain", NULL);
        }
}

/* The decision is in the ledger, what it leads to is not: anchord died in between. */
static void test_hand_back_decided(void **state) {
        _cleanup_(ledger_closep) Ledger *l = NULL;
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        end_quietly(w);
        assert_int_equal(ledger_open(&l, LEDGER_PATH), 0);
        assert_int_equal(ledger_drain_set(l, "of another boot", 1, "uid 0", NULL), 0);
        assert_int_equal(ledger_add_note(l, item, w->as_run, "run.handed_back", "handed back: the host is drained"), 0);
        l = ledger_close(l);
        begin_life(w);
        UNTIL(w->event, state_of(w, item) == ITEM_QUEUED);
        assert_true(reason_is(w, item, "handed back"));
        (void) await_active(w, item, "work");
}

/* The control: what an operator stopped stays so. */
static void test_stopped(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        unit_resists(w, "run");
        assert_int_equal(flow_stop(w->m->flows, "stopped by a test"), 0);
        end_quietly(w);
        begin_life(w);
        next_life(w, "run");
        assert_int_equal(state_of(w, item), ITEM_CANCELLED);
        assert_true(reason_is(w, item, "stopped by a test"));
}

/* Where an item may be when it is stopped, and no outcome of a run says so. */
enum { AT_WORK_ENDED, AT_IMPORT, AT_IMPORTED, AT_VERIFIED, N_PLACES };

/* What a run's end leads to does not come: systemd does not say what is left of it. */
static void bring_to(World *w, const char *item, unsigned place) {
        (void) await_active(w, item, "work");
        w->systemd.list_holds = place == AT_WORK_ENDED;
        finish(w, "ok", "", "the guest's bundle");
        assert_ok(w);
        if (place == AT_WORK_ENDED)
                return;
        (void) await_active(w, item, "import");
        w->systemd.list_holds = place <= AT_IMPORTED;
        if (place == AT_IMPORT)
                return;
        import(w, true, RESULT, true);
        assert_ok(w);
        if (place == AT_IMPORTED)
                return;
        (void) await_active(w, item, "verify");
        w->systemd.list_holds = true;
        finish(w, "ok", "", NULL);
        assert_ok(w);
}

/* Whoever was told that it is stopped can rely on it, wherever it was: nothing of the item begins after that, in no life of anchord. */
static void test_stop_is_kept(void **state) {
        World *w = *state;

        for (unsigned place = 0; place < N_PLACES; place++) {
                char item[ID_LENGTH + 1];
                unsigned n;

                submit_fix(w, item);
                bring_to(w, item, place);
                OPERATOR(w, "Stop", json_pack("{s:s, s:s}", "item", item, "reason", "by a test"));
                assert_ok(w);
                assert_string_equal(flow_state_name(w->m->flows), "cleaning");
                n = fake_told(&w->systemd, "StartUnit");
                for (unsigned i = 0; i < 2; i++) {
                        end_quietly(w);
                        fake_let_lists_go(&w->systemd);
                        w->systemd.list_holds = i == 0;
                        begin_unsettled(w);
                        settle(w);
                        w->systemd.list_holds = i == 0;
                        UNTIL(w->event, i == 0 ? w->systemd.n_held_lists > 0 : !w->m->flows);
                }
                assert_int_equal(state_of(w, item), ITEM_CANCELLED);
                assert_true(reason_is(w, item, "stopped by uid 0: by a test"));
                assert_int_equal(fake_told(&w->systemd, "StartUnit"), n);
        }
}

/* The control: without it, each of them goes on where it was. */
static void test_goes_on(void **state) {
        static const char *const next[] = { "import", "import", "verify" };
        World *w = *state;

        for (unsigned place = 0; place < N_PLACES; place++) {
                char item[ID_LENGTH + 1];

                submit_fix(w, item);
                bring_to(w, item, place);
                end_quietly(w);
                fake_let_lists_go(&w->systemd);
                begin_life(w);
                if (place < ELEMENTSOF(next))
                        (void) await_active(w, item, next[place]);
                else
                        UNTIL(w->event, state_of(w, item) == ITEM_IN_REVIEW);
                OPERATOR(w, "StopAll", NULL);
        }
}

/* All of them, in the same way. */
static void test_stop_all_is_kept(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        bring_to(w, item, AT_IMPORT);
        ask(w, w->operator, "io.anchorhold.Manager.StopAll", json_pack("{s:b}", "hold", true), NULL, 0);
        UNTIL(w->event, flow_is_stopping(w->m->flows));
        assert_int_equal(fake_told(&w->systemd, "StartUnit anchor-import"), 1);
        end_quietly(w);
        fake_let_lists_go(&w->systemd);
        begin_life(w);
        UNTIL(w->event, !w->m->flows);
        assert_int_equal(state_of(w, item), ITEM_CANCELLED);
        assert_int_equal(fake_told(&w->systemd, "StartUnit anchor-import"), 1);
}

/* A run that was not fenced, or had not started when anchord went, costs no attempt: not either if anchord goes once more while that is cleaned up. */
static void test_not_its_fault(void **state) {
        World *w = *state;

        for (unsigned fenced = 0; fenced < 2; fenced++) {
                _cleanup_item_ LedgerItem i = {};
                char item[ID_LENGTH + 1];
                Flow *f;

                if (!fenced) {
                        w->systemd.start_result = "dependency";
                        w->systemd.start_needs = "anchor-net";
                } else
                        w->systemd.silent = true;
                submit_exec(w, item);
                UNTIL(w->event, (f = flow_find_item(w->m, item)) && strcmp(flow_state_name(f), fenced ? "starting" : "cleaning") == 0);
                strcpy(w->as_run, flow_run(f));
                OPERATOR(w, "Hold", json_pack("{s:b}", "on", true));
                if (fenced) {
                        end_quietly(w);
                        begin_life(w);
                }
                next_life(w, "run");
                assert_int_equal(ledger_get(w->m->ledger, item, &i), 0);
                assert_int_equal(i.state, ITEM_QUEUED);
                assert_int_equal(i.attempt, 1);
                w->systemd.start_result = w->systemd.start_needs = NULL;
                w->systemd.silent = false;
                OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
                OPERATOR(w, "Hold", json_pack("{s:b}", "on", false));
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_stop_all, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stop, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_submit, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_drain, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_order, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_wait_is_bounded, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_end_before_settled, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_handed_back, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_hand_back_decided, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stopped, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stop_is_kept, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_goes_on, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stop_all_is_kept, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_not_its_fault, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
