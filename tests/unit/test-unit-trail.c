/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Which unit of a run was the first to go, from what systemd tells, in the orders in which it does. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "api/unit-trail.h"

#define RUN "r0123456789ab"
#define NET "anchor-net@" RUN ".service"
#define OWN "anchor-run@" RUN ".service"
#define VM "anchor-vm@" RUN ".service"
#define CHECK "anchor-check@" RUN ".service"
#define PROBE "anchor-probe@" RUN ".service"

static void start(UnitTrail *t, const char *unit, uint32_t job) {
        unit_trail_on_state(t, unit, "inactive", NULL, false); /* that it has a job now is a change as well */
        unit_trail_on_job(t, unit, job, true);
        unit_trail_on_state(t, unit, "activating", NULL, false);
        unit_trail_on_state(t, unit, "active", NULL, false);
        unit_trail_on_job(t, unit, job, false);
}

/* Stopped by its job, which is told already. */
static void go(UnitTrail *t, const char *unit, uint32_t job, const char *why) {
        unit_trail_on_state(t, unit, "deactivating", NULL, true);
        unit_trail_on_state(t, unit, "inactive", why, true);
        unit_trail_on_job(t, unit, job, false);
}

static void assert_stopped(const UnitTrail *t, const char *unit) {
        const TrailUnit *u = unit_trail_first(t);

        assert_non_null(u);
        assert_string_equal(u->name, unit);
        assert_false(u->died);
}

static void assert_died(const UnitTrail *t, const char *unit, const char *why) {
        const TrailUnit *u = unit_trail_first(t);

        assert_non_null(u);
        assert_string_equal(u->name, unit);
        assert_true(u->died);
        assert_string_equal(u->why, why);
}

static void start_all(UnitTrail *t) {
        *t = (UnitTrail) {};
        start(t, NET, 11);
        start(t, PROBE, 12);
        start(t, CHECK, 13);
        start(t, VM, 14);
        start(t, OWN, 10);
        assert_null(unit_trail_first(t));
}

/* What was named goes last, for the others depend on it; its job is the first. */
static void test_named_goes_last(void **state) {
        UnitTrail t;

        start_all(&t);
        unit_trail_on_job(&t, OWN, 22, true);
        unit_trail_on_job(&t, CHECK, 21, true);
        unit_trail_on_job(&t, NET, 20, true);
        go(&t, OWN, 22, "exit status 0");
        assert_stopped(&t, NET);
        go(&t, CHECK, 21, NULL);
        go(&t, NET, 20, NULL);
        assert_stopped(&t, NET);
}

/* The run itself was named; what it needed is then stopped because nobody needs it. */
static void test_named_goes_first(void **state) {
        UnitTrail t;

        start_all(&t);
        unit_trail_on_job(&t, OWN, 20, true);
        go(&t, OWN, 20, "exit status 0");
        unit_trail_on_job(&t, NET, 21, true);
        go(&t, NET, 21, NULL);
        assert_stopped(&t, OWN);
}

/* A death comes before the stops that follow from it. */
static void test_death(void **state) {
        UnitTrail t;

        start_all(&t);
        unit_trail_on_state(&t, PROBE, "failed", "signal 9", true);
        unit_trail_on_job(&t, CHECK, 20, true);
        unit_trail_on_job(&t, OWN, 21, true);
        go(&t, OWN, 21, "exit status 0");
        go(&t, CHECK, 20, "exit status 0");
        assert_died(&t, PROBE, "signal 9");

        start_all(&t);
        unit_trail_on_state(&t, OWN, "failed", "signal 9", true);
        unit_trail_on_job(&t, NET, 20, true);
        go(&t, NET, 20, NULL);
        assert_died(&t, OWN, "signal 9");
}

/* A microVM that is booted again is no end of anything. */
static void test_started_again(void **state) {
        UnitTrail t;

        start_all(&t);
        unit_trail_on_state(&t, VM, "failed", "signal 9", true);
        assert_died(&t, VM, "signal 9");
        assert_true(unit_trail_is_gone(&t, VM));
        assert_false(unit_trail_is_gone(&t, OWN));
        start(&t, VM, 20);
        assert_null(unit_trail_first(&t));
        unit_trail_on_state(&t, VM, "inactive", "exit status 0", true);
        assert_died(&t, VM, "exit status 0");
}

/* Stopped while it starts: the start is canceled, the stop another job. Killed while it starts: the start's job is there all the while. */
static void test_while_starting(void **state) {
        UnitTrail t = {};

        unit_trail_on_job(&t, OWN, 10, true);
        unit_trail_on_state(&t, OWN, "activating", NULL, false);
        unit_trail_on_job(&t, OWN, 10, false);
        unit_trail_on_job(&t, OWN, 20, true);
        go(&t, OWN, 20, NULL);
        assert_stopped(&t, OWN);

        /* the same, told in the other order: that its job is another comes as a change of the unit, and only then as a job */
        t = (UnitTrail) {};
        unit_trail_on_job(&t, OWN, 10, true);
        unit_trail_on_state(&t, OWN, "activating", NULL, false);
        unit_trail_on_job(&t, OWN, 10, false);
        unit_trail_on_state(&t, OWN, "activating", NULL, false);
        unit_trail_on_job(&t, OWN, 20, true);
        go(&t, OWN, 20, NULL);
        assert_stopped(&t, OWN);

        t = (UnitTrail) {};
        unit_trail_on_state(&t, OWN, "activating", NULL, false);
        unit_trail_on_job(&t, OWN, 10, true);
        unit_trail_on_state(&t, OWN, "failed", "killed in its first step", false);
        unit_trail_on_job(&t, OWN, 10, false);
        assert_died(&t, OWN, "killed in its first step");

        /* not started for want of another: it has not gone, for it was never there */
        t = (UnitTrail) {};
        unit_trail_on_job(&t, OWN, 10, true);
        unit_trail_on_job(&t, NET, 11, true);
        unit_trail_on_state(&t, NET, "activating", NULL, false);
        unit_trail_on_state(&t, NET, "failed", "exit status 1", false);
        unit_trail_on_state(&t, OWN, "inactive", NULL, false);
        unit_trail_on_job(&t, OWN, 10, false);
        assert_died(&t, NET, "exit status 1");
}

/* A run goes on without these; and more units than there can be are forgotten, not written anywhere. */
static void test_others(void **state) {
        UnitTrail t;
        char unit[64];

        start_all(&t);
        unit_trail_on_state(&t, "anchor-proxy@" RUN ".service", "failed", "signal 9", true);
        unit_trail_on_job(&t, "anchor-inject@" RUN ".socket", 20, true);
        unit_trail_on_state(&t, "anchor-inject@" RUN ".socket", "inactive", NULL, true);
        assert_null(unit_trail_first(&t));

        for (int i = 0; i < 2 * UNIT_TRAIL_MAX; i++) {
                (void) snprintf(unit, sizeof(unit), "anchor-net@%d", i);
                unit_trail_on_job(&t, unit, 30, true);
        }
        assert_int_equal(t.n_units, UNIT_TRAIL_MAX);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_named_goes_last),
                cmocka_unit_test(test_named_goes_first),
                cmocka_unit_test(test_death),
                cmocka_unit_test(test_started_again),
                cmocka_unit_test(test_while_starting),
                cmocka_unit_test(test_others),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
