/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchord dies and is started anew in the middle of a run: what goes on, what is done again, what is given up. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "manager-world.h"

/* anchord dies, the run goes on. */
static void test_resume_alive(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1], run[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        UNTIL(w->event, outbox_is_empty(w->m));
        strcpy(run, w->as_run);
        end_life(w);
        begin_life(w);
        (void) await_active(w, item, "work");
        assert_string_equal(w->as_run, run);
        assert_int_equal(fake_told(&w->systemd, "StartUnit"), 1);
        assert_int_equal(fake_told(&w->systemd, "StopUnit"), 0);
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED);
}

static void test_resume_dead(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1], unit[64];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        UNTIL(w->event, outbox_is_empty(w->m));
        end_life(w);
        (void) snprintf(unit, sizeof(unit), "anchor-run@%s.service", w->as_run);
        (void) fake_unit_set(&w->systemd, unit, "");
        (void) fake_unit_set(&w->systemd, "anchor-vm@r00000stray00.service", "active");
        (void) fake_unit_set(&w->systemd, "anchor-proxy@r00000stray00.service", "failed");
        begin_life(w);
        await_exhausted(w, item, "while the supervisor was away");
        /* what no ledger knows is stopped, what failed of it reset */
        assert_int_equal(fake_told(&w->systemd, "StopUnit anchor-vm@r00000stray00.service"), 1);
        assert_int_equal(fake_told(&w->systemd, "ResetFailedUnit anchor-proxy@r00000stray00.service"), 1);
}

/* The outcome was recorded, what it leads to was not done. */
static void test_resume_after_finish(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        finish(w, "ok", "", "the guest's bundle");
        assert_ok(w);
        assert_string_equal(flow_state_name(w->m->flows), "cleaning");
        UNTIL(w->event, outbox_is_empty(w->m));
        end_life(w);
        begin_life(w);
        (void) await_active(w, item, "import");
        import(w, true, RESULT, true);
        assert_ok(w);
        UNTIL(w->event, outbox_is_empty(w->m));
        end_life(w); /* the import is recorded, its units still there */
        begin_life(w);
        (void) await_active(w, item, "verify");
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_IN_REVIEW && !w->m->flows);
        assert_int_equal(w->systemd.n_units, HOST_UNITS);
}

/* Leased, but nothing was started: not the item's fault, no attempt is lost. */
static void test_resume_before_start(void **state) {
        World *w = *state;
        _cleanup_item_ LedgerItem i = {};
        char item[ID_LENGTH + 1];

        w->audit_refuses = true;
        submit_exec(w, item);
        UNTIL(w->event, w->m->flows);
        UNTIL(w->event, w->m->outbox_failed || w->m->outbox_flying == 0);
        end_life(w);
        w->audit_refuses = false;
        begin_life(w);
        (void) await_active(w, item, "work");
        assert_int_equal(ledger_get(w->m->ledger, item, &i), 0);
        assert_int_equal(i.attempt, 1);
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_resume_alive, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_resume_dead, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_resume_after_finish, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_resume_before_start, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
