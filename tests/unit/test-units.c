/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What anchord asks systemd, against one that the test plays. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/units.h"
#include "fake-systemd.h"

#define RUN "r0123456789ab"
#define UNIT "anchor-run@" RUN ".service"

typedef struct World {
        sd_event *event;
        FakeSystemd systemd;
        Units *units;
        char folder[32], path[48];
        unsigned n_lost, n_changed, n_done, n_listed;
        char unit[80], active[16], why[96]; /* of the last change */
        unsigned jobs[2], job;              /* over and queued; of the last */
        int r;                              /* of the last answer */
        char result[64];
        size_t n;
        UnitState first;
        char last[80]; /* of the list */
        UnitSince since;
} World;

static void on_changed(const char *unit, const char *active, const char *why, void *userdata) {
        World *w = userdata;

        w->n_changed++;
        (void) snprintf(w->unit, sizeof(w->unit), "%s", unit);
        (void) snprintf(w->active, sizeof(w->active), "%s", active);
        (void) snprintf(w->why, sizeof(w->why), "%s", why ?: "");
}

static void on_job(const char *unit, uint32_t job, bool queued, void *userdata) {
        World *w = userdata;

        assert_int_equal(strncmp(unit, "anchor", 6), 0);
        w->jobs[queued]++;
        w->job = job;
}

static void on_lost(void *userdata) {
        World *w = userdata;

        w->n_lost++;
}

static void on_done(int r, const char *result, void *userdata) {
        World *w = userdata;

        w->n_done++;
        w->r = r;
        (void) snprintf(w->result, sizeof(w->result), "%s", result);
}

static void on_listed(int r, const UnitState *units, size_t n, void *userdata) {
        World *w = userdata;

        w->n_listed++;
        w->r = r;
        w->n = n;
        if (n > 0) {
                assert_int_equal(strncmp(units[0].name, "anchor", 6), 0);
                w->first.job = units[0].job;
                (void) snprintf(w->active, sizeof(w->active), "%s", units[0].active);
                (void) snprintf(w->last, sizeof(w->last), "%s", units[n - 1].name);
        }
}

static void on_since(int r, const UnitSince *since, void *userdata) {
        World *w = userdata;

        w->n_done++;
        w->r = r;
        w->since = *since;
}

static int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        strcpy(w->folder, "/tmp/test-units-XXXXXX");
        assert_non_null(mkdtemp(w->folder));
        (void) snprintf(w->path, sizeof(w->path), "%s/bus", w->folder);
        assert_int_equal(sd_event_new(&w->event), 0);
        fake_systemd_start(&w->systemd, w->event, w->path);
        assert_int_equal(units_new(&w->units, w->event, on_changed, on_job, on_lost, w), 0);
        UNTIL(w->event, fake_told(&w->systemd, "Subscribe"));
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        units_free(w->units);
        fake_systemd_stop(&w->systemd);
        sd_event_unref(w->event);
        (void) unlink(w->path);
        (void) rmdir(w->folder);
        free(w);
        return 0;
}

/* A start is over when its job is, not when it was accepted. */
static void test_start(void **state) {
        World *w = *state;

        assert_int_equal(units_start(w->units, UNIT, on_done, w), 0);
        UNTIL(w->event, w->n_done == 1);
        assert_int_equal(w->r, 0);
        assert_string_equal(w->result, "done");
        assert_int_equal(w->n_changed, 1);
        assert_string_equal(w->unit, UNIT);
        assert_string_equal(w->active, "active");

        w->systemd.start_result = "dependency";
        assert_int_equal(units_start(w->units, UNIT, on_done, w), 0);
        UNTIL(w->event, w->n_done == 2);
        assert_true(w->r < 0);
        assert_string_equal(w->result, "dependency");

        w->systemd.start_error = "org.freedesktop.DBus.Error.AccessDenied";
        assert_int_equal(units_start(w->units, UNIT, on_done, w), 0);
        UNTIL(w->event, w->n_done == 3);
        assert_int_equal(w->r, -EACCES);

        /* a queued stop is told apart: the caller asks again */
        w->systemd.n_destructive = 1;
        assert_int_equal(units_start(w->units, UNIT, on_done, w), 0);
        UNTIL(w->event, w->n_done == 4);
        assert_int_equal(w->r, -EBUSY);

        /* a start of what is not there is a failure; a stop, kill or reset of it is done */
        w->systemd.start_error = "org.freedesktop.systemd1.NoSuchUnit";
        assert_int_equal(units_start(w->units, UNIT, on_done, w), 0);
        UNTIL(w->event, w->n_done == 5);
        assert_true(w->r < 0);
}

static void test_forget(void **state) {
        World *w = *state, *other = calloc(1, sizeof(*other));

        assert_int_equal(units_start(w->units, UNIT, on_done, w), 0);
        assert_int_equal(units_start(w->units, UNIT, on_done, other), 0);
        assert_int_equal(units_list(w->units, (const char *const[]) { "anchor-*", NULL }, on_listed, other), 0);
        units_forget(w->units, other);
        free(other);
        UNTIL(w->event, w->n_done == 1);
        run_for(w->event, 20000);
        assert_int_equal(w->n_done, 1);
        assert_int_equal(w->systemd.n_lists, 1); /* it was asked, only nobody is told */
}

static void test_stop_kill_reset(void **state) {
        World *w = *state;

        (void) fake_unit_set(&w->systemd, UNIT, "active");
        (void) fake_unit_set(&w->systemd, "anchor-vm@" RUN ".service", "failed");
        assert_int_equal(units_kill(w->units, UNIT, SIGKILL), 0);
        assert_int_equal(units_stop(w->units, "anchor-proxy@" RUN ".socket"), 0);
        assert_int_equal(units_reset_failed(w->units, "anchor-vm@" RUN ".service"), 0);
        UNTIL(w->event, fake_told(&w->systemd, "ResetFailedUnit anchor-vm@" RUN ".service"));
        assert_int_equal(fake_told(&w->systemd, "KillUnit " UNIT), 1);
        assert_int_equal(fake_told(&w->systemd, "StopUnit anchor-proxy@" RUN ".socket"), 1);
        assert_int_equal(w->systemd.n_units, 0);
}

/* Who looks often asks often: systemd gets it once until it has answered, and the bus allows only so many replies to be pending. */
static void test_asked_once_until_answered(void **state) {
        static const char *const other = "anchor-vm@" RUN ".service";
        World *w = *state;

        fake_unit_set(&w->systemd, UNIT, "active")->sticky = true;
        (void) fake_unit_set(&w->systemd, other, "failed");
        for (size_t i = 0; i < 200; i++) {
                assert_int_equal(units_stop(w->units, UNIT), 0);
                assert_int_equal(units_reset_failed(w->units, other), 0);
        }
        assert_int_equal(units_stop(w->units, other), 0); /* another verb, another unit: not the same */
        assert_int_equal(units_reset_failed(w->units, UNIT), 0);
        UNTIL(w->event, fake_told(&w->systemd, "ResetFailedUnit " UNIT));
        run_for(w->event, 20000);
        assert_int_equal(fake_told(&w->systemd, "StopUnit"), 2);
        assert_int_equal(fake_told(&w->systemd, "ResetFailedUnit"), 2);

        /* answered: asked anew */
        assert_int_equal(units_stop(w->units, UNIT), 0);
        UNTIL(w->event, fake_told(&w->systemd, "StopUnit " UNIT) == 2);
}

static void test_list(void **state) {
        static const char *const patterns[] = { "anchor-*@" RUN ".*", "anchorhold-runs-*.slice", NULL };
        World *w = *state;

        assert_int_equal(units_list(w->units, patterns, on_listed, w), 0);
        UNTIL(w->event, w->n_listed == 1);
        assert_int_equal(w->r, 0);
        assert_int_equal(w->n, 0);

        (void) fake_unit_set(&w->systemd, UNIT, "failed");
        (void) fake_unit_set(&w->systemd, "anchor-run@r000000000000.service", "active");
        (void) fake_unit_set(&w->systemd, "anchorhold-runs-r000000000000.slice", "active");
        assert_int_equal(units_list(w->units, patterns, on_listed, w), 0);
        UNTIL(w->event, w->n_listed == 2);
        assert_int_equal(w->n, 2);
        assert_string_equal(w->active, "failed");
        assert_false(w->first.job);
}

/* However many there are: what is left out would be taken for gone. */
static void test_long_list(void **state) {
        World *w = *state;
        char name[80];

        for (unsigned i = 0; i < 1000; i++) {
                (void) snprintf(name, sizeof(name), "anchor-vm@r%012u.service", i);
                (void) fake_unit_set(&w->systemd, name, "active");
        }
        assert_int_equal(units_list(w->units, (const char *const[]) { "anchor-*", NULL }, on_listed, w), 0);
        UNTIL(w->event, w->n_listed == 1);
        assert_int_equal(w->r, 0);
        assert_int_equal(w->n, 1000);
        assert_string_equal(w->last, name);

        /* no list is another thing than an empty one */
        w->systemd.list_fails = true;
        assert_int_equal(units_list(w->units, (const char *const[]) { "anchor-*", NULL }, on_listed, w), 0);
        UNTIL(w->event, w->n_listed == 2);
        assert_true(w->r < 0);
}

static void test_since(void **state) {
        World *w = *state;
        FakeUnit *slice;

        assert_int_equal(units_since(w->units, "anchorhold-runs.slice", 0, on_since, w), 0);
        UNTIL(w->event, w->n_done == 1);
        assert_int_equal(w->r, 0);
        assert_string_equal(w->since.active, "inactive");

        slice = fake_unit_set(&w->systemd, "anchorhold-runs.slice", "active");
        slice->job = 7;
        slice->active_monotonic = 11;
        slice->active_realtime = 12;
        assert_int_equal(units_since(w->units, "anchorhold-runs.slice", 0, on_since, w), 0);
        UNTIL(w->event, w->n_done == 2);
        assert_int_equal(w->r, 0);
        assert_string_equal(w->since.active, "active");
        assert_true(w->since.job);
        assert_int_equal(w->since.active_monotonic, 11);
        assert_int_equal(w->since.active_realtime, 12);

        /* later: as it is then */
        assert_int_equal(units_since(w->units, "anchorhold-runs.slice", 20000, on_since, w), 0);
        slice->active_monotonic = 13;
        UNTIL(w->event, w->n_done == 3);
        assert_int_equal(w->since.active_monotonic, 13);

        /* whoever waits is told also when there will be no answer */
        assert_int_equal(units_since(w->units, "anchorhold-runs.slice", 0, on_since, w), 0);
        assert_int_equal(units_since(w->units, "anchorhold-runs.slice", 20000, on_since, w), 0);
        w->units = units_free(w->units);
        assert_int_equal(w->n_done, 5);
        assert_int_equal(w->r, -ECANCELED);
}

/* Jobs of ours are told with their numbers; nobody else's. */
static void test_jobs(void **state) {
        World *w = *state;

        assert_int_equal(units_start(w->units, UNIT, on_done, w), 0);
        UNTIL(w->event, w->n_done == 1);
        assert_int_equal(w->jobs[false], 1);
        assert_int_equal(w->jobs[true], 0);
        fake_signal_job_new(&w->systemd, 7, "ssh.service");
        fake_signal_job_new(&w->systemd, 8, UNIT);
        UNTIL(w->event, w->jobs[true] == 1);
        assert_int_equal(w->job, 8);
        fake_signal_job(&w->systemd, 8, UNIT, "done");
        UNTIL(w->event, w->jobs[false] == 2);
        assert_int_equal(w->job, 8);
}

/* How a service ended comes with its change of state. */
static void test_why(void **state) {
        static const struct { const char *unit, *result; int code, status; const char *why; } ends[] = {
                { UNIT, "success", 1, 0, "exit status 0" },
                { UNIT, "success", 2, 15, "signal 15" },
                { UNIT, "success", 0, 0, "" },
                { UNIT, "signal", 0, 0, "killed in its first step" },
                { UNIT, "exit-code", 1, 3, "exit status 3" },
                { UNIT, "exit-code", 0, 0, "its first step failed, anchor-fence or its credentials" },
                { UNIT, "signal", 2, 9, "signal 9" },
                { UNIT, "core-dump", 3, 11, "signal 11" },
                { UNIT, "start-limit-hit", 1, 1, "start-limit-hit" },
                { "anchor-net@" RUN ".service", "exit-code", 0, 0,
                  "the eBPF programs are not in force (anchor-fence); see systemctl status anchor-bpf" },
        };
        World *w = *state;
        unsigned n = 0;

        for (size_t i = 0; i < ELEMENTSOF(ends); i++) {
                fake_unit_changed(&w->systemd, ends[i].unit, "failed", ends[i].result, ends[i].code, ends[i].status);
                n++;
                UNTIL(w->event, w->n_changed == n);
                assert_string_equal(w->unit, ends[i].unit);
                assert_string_equal(w->why, ends[i].why);
        }

        /* that of one unit is not another's, and nobody else's units are told about */
        fake_unit_changed(&w->systemd, "anchor-vm@" RUN ".service", "inactive", NULL, 0, 0);
        fake_unit_changed(&w->systemd, "ssh.service", "failed", "signal", 2, 9);
        UNTIL(w->event, w->n_changed == n + 1);
        assert_string_equal(w->unit, "anchor-vm@" RUN ".service");
        assert_string_equal(w->why, "");
        run_for(w->event, 10000);
        assert_int_equal(w->n_changed, n + 1);
}

static void test_lost(void **state) {
        World *w = *state;

        assert_int_equal(units_start(w->units, UNIT, NULL, NULL), 0);
        fake_systemd_hang_up(&w->systemd);
        UNTIL(w->event, w->n_lost == 1);
}

static void test_too_many(void **state) {
        World *w = *state;
        unsigned n = 0;

        while (units_kill(w->units, UNIT, SIGKILL) == 0)
                assert_true(++n <= 2000);
        assert_int_equal(units_start(w->units, UNIT, on_done, w), -EBUSY);
        UNTIL(w->event, w->systemd.n_calls == n + 1); /* with Subscribe */
        run_for(w->event, 10000);
        assert_int_equal(units_start(w->units, UNIT, on_done, w), 0);
}

static void test_unit_name_run(void **state) {
        static const char *const wrong[] = {
                "", "anchor-run", "anchor-run@.service", "anchor-run@" RUN, "anchor-run@R0123456789ab.service", "anchor-run@i0123456789ab.service",
                "anchor-run@r0123456789a.service", "anchor-run@r0123456789abc.service", "ssh@" RUN ".service", "x-anchor-run@" RUN ".service",
        };
        char run[14];

        assert_true(unit_name_run(UNIT, NULL, run));
        assert_string_equal(run, RUN);
        assert_true(unit_name_run(UNIT, "anchor-run", run));
        assert_false(unit_name_run(UNIT, "anchor-ru", run));
        assert_false(unit_name_run(UNIT, "anchor-run@", run));
        assert_false(unit_name_run("anchor-vm@" RUN ".socket", "anchor-run", run));
        for (size_t i = 0; i < ELEMENTSOF(wrong); i++)
                assert_false(unit_name_run(wrong[i], NULL, run));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_start, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_forget, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stop_kill_reset, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_asked_once_until_answered, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_list, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_long_list, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_since, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_jobs, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_why, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_lost, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_too_many, set_up, tear_down),
                cmocka_unit_test(test_unit_name_run),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
