/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A run says how it ended, and storing what it sends takes longer than anybody waits for an answer. The disk is played: fsync() of what is being
 * copied waits for the test, and fails if the test wants so.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include "api/flow-internal.h"
#include "manager-world.h"

static struct {
        pthread_mutex_t lock;
        pthread_cond_t changed;
        bool shut;      /* copies do not come to their end */
        int error;      /* how they end */
        unsigned n_waiting, n_synced;
        unsigned n_no_eventfd; /* so many are refused for want of descriptors */
} disk = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* In the place of libc's. */
int fsync(int fd) {
        char path[64], name[256] = "";
        int error = 0;

        (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        if (readlink(path, name, sizeof(name) - 1) > 0 && strstr(name, ".bundle.")) {
                (void) pthread_mutex_lock(&disk.lock);
                disk.n_waiting++;
                while (disk.shut)
                        (void) pthread_cond_wait(&disk.changed, &disk.lock);
                disk.n_waiting--;
                disk.n_synced++;
                error = disk.error;
                (void) pthread_mutex_unlock(&disk.lock);
        }
        if (error) {
                errno = error;
                return -1;
        }
        return (int) syscall(SYS_fsync, fd);
}

int eventfd(unsigned count, int flags) {
        if (disk.n_no_eventfd > 0) {
                disk.n_no_eventfd--;
                errno = EMFILE;
                return -1;
        }
        return (int) syscall(SYS_eventfd2, count, flags);
}

static void disk_shut(void) {
        (void) pthread_mutex_lock(&disk.lock);
        disk.shut = true;
        disk.error = 0;
        disk.n_synced = 0;
        (void) pthread_mutex_unlock(&disk.lock);
}

static void disk_open(int error) {
        (void) pthread_mutex_lock(&disk.lock);
        disk.shut = false;
        disk.error = error;
        (void) pthread_cond_broadcast(&disk.changed);
        (void) pthread_mutex_unlock(&disk.lock);
}

static unsigned disk_waiting(void) {
        unsigned n;

        (void) pthread_mutex_lock(&disk.lock);
        n = disk.n_waiting;
        (void) pthread_mutex_unlock(&disk.lock);
        return n;
}

/* ---- callers of their own ---- */

typedef struct Caller {
        IpcClient *client; /* owned */
        bool answered;
        char error[80];
} Caller;

static void on_told(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Caller *caller = userdata;

        caller->answered = true;
        (void) snprintf(caller->error, sizeof(caller->error), "%s", error ?: "");
}

static void tell(Caller *c, World *w, const char *method, json_t *params, size_t n_fds) {
        int fds[2] = { file_of("a bundle"), file_of("a diff") };

        c->answered = false;
        if (!c->client)
                assert_int_equal(ipc_client_new(&c->client, w->event, RUN_SOCKET), 0);
        assert_int_equal(ipc_client_call_async(c->client, method, params, fds, n_fds, false, 0, on_told, c), 0);
        (void) close(fds[0]);
        (void) close(fds[1]);
}

static void tell_finish(Caller *c, World *w) {
        tell(c, w, "io.anchorhold.Run.Finish", json_pack("{s:s, s:s, s:{s:i}}", "outcome", "ok", "reason", "", "facts", "bundle_bytes", 8), 1);
}

static void tell_imported(Caller *c, World *w) {
        tell(c, w, "io.anchorhold.Run.Imported", json_pack("{s:b, s:s, s:s}", "ok", true, "reason", "", "commit", RESULT), 2);
}

static void caller_done(Caller *c) {
        c->client = ipc_client_free(c->client);
}

static size_t n_partial(const char *item) {
        _cleanup_free_ char *path = text_format("/var/lib/anchorhold/items/%s", item);
        _cleanup_dir_ DIR *dir = opendir(path);
        struct dirent *e;
        size_t n = 0;

        assert_non_null(dir);
        while ((e = readdir(dir)))
                n += strstr(e->d_name, ".new") != NULL;
        return n;
}

/* Of a run whose last word is here: its own unit. */
static void unit_ends(World *w, const char *kind) {
        const Flow *f = flow_find_run(w->m, w->as_run);
        char unit[64];

        assert_true(f && f->storing && !f->gone);
        (void) snprintf(unit, sizeof(unit), "anchor-%s@%s.service", kind, w->as_run);
        fake_unit_changed(&w->systemd, unit, "failed", "exit-code", 1, 1);
        UNTIL(w->event, f->gone);
}

/* Another unit of the run: it dies, or is stopped by that job. */
static void other_goes(World *w, const char *kind, unsigned job) {
        char unit[64];

        (void) snprintf(unit, sizeof(unit), "anchor-%s@%s.service", kind, w->as_run);
        if (job > 0)
                fake_signal_job_new(&w->systemd, job, unit);
        fake_unit_changed(&w->systemd, unit, job > 0 ? "inactive" : "failed", "signal", 2, job > 0 ? 15 : 9);
        UNTIL(w->event, unit_trail_is_gone(&flow_find_run(w->m, w->as_run)->trail, unit));
}

static void tell_mismatch(Caller *c, World *w) {
        tell(c, w, "io.anchorhold.Run.Mismatch", json_pack("{s:s}", "reason", "layer nftables allowed it"), 0);
        UNTIL(w->event, c->answered || flow_mismatch(flow_find_run(w->m, w->as_run)));
}

static void await_lost(World *w, const char *item, const char *reason) {
        UNTIL(w->event, state_of(w, item) == ITEM_FAILED || state_of(w, item) == ITEM_QUEUED || state_of(w, item) == ITEM_VERIFYING);
        assert_int_not_equal(state_of(w, item), ITEM_VERIFYING);
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, reason));
}

/* ---- the tests ---- */

/* Both kinds: said four times, stored once, everybody answered when it is. */
static void test_said_again(void **state) {
        World *w = *state;
        Caller callers[4] = {};
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        for (unsigned import = 0; import < 2; import++) {
                (void) await_active(w, item, import ? "import" : "work");
                disk_shut();
                for (size_t i = 0; i < ELEMENTSOF(callers); i++) {
                        (import ? tell_imported : tell_finish)(&callers[i], w);
                        UNTIL(w->event, disk_waiting() == 1);
                        run_for(w->event, 20000);
                        assert_int_equal(n_partial(item), 1);
                }
                for (size_t i = 0; i < ELEMENTSOF(callers); i++)
                        assert_false(callers[i].answered);
                disk_open(0);
                for (size_t i = 0; i < ELEMENTSOF(callers); i++) {
                        UNTIL(w->event, callers[i].answered);
                        assert_string_equal(callers[i].error, "");
                }
                assert_int_equal(disk.n_synced, 1);
                assert_int_equal(n_partial(item), 0);
        }
        (void) await_active(w, item, "verify");
        for (size_t i = 0; i < ELEMENTSOF(callers); i++)
                caller_done(&callers[i]);
}

/* Whoever waits is told that it goes on, before his time is over; nothing else happens meanwhile. */
static void test_told_that_it_goes_on(void **state) {
        World *w = *state;
        Caller c = {};
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        disk_shut();
        for (unsigned i = 0; i < 2; i++) {
                tell_finish(&c, w);
                UNTIL(w->event, c.answered);
                assert_string_equal(c.error, "io.anchorhold.Run.Storing");
                assert_int_equal(disk_waiting(), 1);
                assert_int_equal(state_of(w, item), ITEM_RUNNING);
        }
        tell_finish(&c, w);
        run_for(w->event, 20000);
        disk_open(0);
        UNTIL(w->event, c.answered);
        assert_string_equal(c.error, "");
        (void) await_active(w, item, "import");
        caller_done(&c);
}

/* Whoever said it has ended, for want of patience or by a signal: its word counts. */
static void test_unit_ends_meanwhile(void **state) {
        World *w = *state;
        Caller c = {};
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        for (unsigned import = 0; import < 2; import++) {
                (void) await_active(w, item, import ? "import" : "work");
                disk_shut();
                (import ? tell_imported : tell_finish)(&c, w);
                UNTIL(w->event, disk_waiting() == 1);
                caller_done(&c);
                unit_ends(w, import ? "import" : "run");
                assert_string_equal(flow_state_name(w->m->flows), "active");
                disk_open(0);
        }
        (void) await_active(w, item, "verify");
}

/* Not stored for a reason that passes, and nobody is left to say it again: that run is lost, and was not before. */
static void test_unit_ends_in_vain(void **state) {
        World *w = *state;
        Caller c = {};
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        disk_shut();
        tell_finish(&c, w);
        UNTIL(w->event, disk_waiting() == 1);
        caller_done(&c);
        unit_ends(w, "run");
        assert_string_equal(flow_state_name(w->m->flows), "active");
        disk_open(ENOMEM);
        UNTIL(w->event, state_of(w, item) == ITEM_FAILED || state_of(w, item) == ITEM_QUEUED);
        disk_open(0);
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "ended without a result: exit status 1"));
}

/* What passes is no end of the run: the same is said again, and is heard. What does not pass, is. */
static void test_error_that_passes(void **state) {
        World *w = *state;
        Caller c = {};
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");

        disk.n_no_eventfd = 1;
        tell_finish(&c, w);
        UNTIL(w->event, c.answered);
        assert_string_equal(c.error, "io.anchorhold.Run.Unavailable");

        disk_open(ENOMEM);
        tell_finish(&c, w);
        UNTIL(w->event, c.answered);
        assert_string_equal(c.error, "io.anchorhold.Run.Unavailable");
        assert_int_equal(state_of(w, item), ITEM_RUNNING);
        assert_string_equal(flow_state_name(w->m->flows), "active");
        assert_int_equal(n_partial(item), 0);

        disk_open(ENOSPC);
        tell_finish(&c, w);
        UNTIL(w->event, c.answered);
        assert_string_equal(c.error, "");
        disk_open(0);
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "No space left on device"));
        UNTIL(w->event, !w->m->flows);
        caller_done(&c);
}

static void on_other(int r, void *userdata) {
        ++*(unsigned *) userdata;
}

/* More is being stored than may wait: that is no reason to lose a run, nor for its caller to give up. */
static void test_full_queue(void **state) {
        World *w = *state;
        Caller c = {};
        char item[ID_LENGTH + 1], name[32];
        unsigned n = 0, n_done = 0;

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        disk_shut();
        do
                (void) snprintf(name, sizeof(name), "x%u.bundle", n);
        while (store_copy(w->m->store, "i00000000fill", name, file_of("x"), 10, on_other, &n_done) == 0 && ++n < 1000);
        assert_in_range(n, 1, 999);
        tell_finish(&c, w);
        UNTIL(w->event, c.answered);
        assert_string_equal(c.error, "io.anchorhold.Run.Storing");
        assert_int_equal(state_of(w, item), ITEM_RUNNING);
        disk_open(0);
        UNTIL(w->event, n_done == n);
        tell_finish(&c, w);
        UNTIL(w->event, c.answered);
        assert_string_equal(c.error, "");
        (void) await_active(w, item, "import");
        caller_done(&c);
}

/* anchord ends in the middle of a copy, or dies: the same is said to the next life, and nothing half-made is left. */
static void test_next_life(void **state) {
        _cleanup_free_ char *left = NULL;
        World *w = *state;
        Caller c = {};
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        UNTIL(w->event, outbox_is_empty(w->m));
        disk_shut();
        tell_finish(&c, w);
        UNTIL(w->event, disk_waiting() == 1);
        disk_open(EIO); /* what it had copied counts for nothing */
        end_life(w);
        UNTIL(w->event, c.answered);
        assert_string_equal(c.error, "io.anchorhold.Run.Unavailable");
        disk_open(0);

        left = text_format("/var/lib/anchorhold/items/%s/.result.bundle.77.new", item);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, left, "half", 4, 0600), 0);
        begin_life(w);
        assert_int_equal(n_partial(item), 0);
        (void) await_active(w, item, "work");
        tell_finish(&c, w);
        UNTIL(w->event, c.answered);
        assert_string_equal(c.error, "");
        (void) await_active(w, item, "import");
        caller_done(&c);
}

/* An operator's stop does not wait for a disk. A drain does: what is stored has ended by itself. */
static void test_stop_and_drain(void **state) {
        World *w = *state;
        Caller c = {};
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        disk_shut();
        tell_finish(&c, w);
        UNTIL(w->event, disk_waiting() == 1);
        flow_hand_back(w->m->flows, "drained");
        assert_string_equal(flow_state_name(w->m->flows), "active");
        OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
        assert_ok(w);
        UNTIL(w->event, state_of(w, item) == ITEM_CANCELLED && !w->m->flows);
        disk_open(0);
        UNTIL(w->event, c.answered);
        assert_string_equal(c.error, "io.anchorhold.Run.NoSuchRun");
        caller_done(&c);
}

/* The control of that drain: a run that has not ended by itself is handed back. */
static void test_drain(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        flow_hand_back(w->m->flows, "drained");
        UNTIL(w->event, state_of(w, item) == ITEM_QUEUED);
}

/* That its enforcers disagree is proven, and what led to it not known yet: what a run says of itself until then does not count, good or bad. */
static void test_mismatch_meanwhile(void **state) {
        static const char *const outcomes[] = { "ok", "failed" };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(outcomes); i++) {
                Caller c = {}, check = {};
                char item[ID_LENGTH + 1];
                Flow *f;

                submit_fix(w, item);
                f = await_active(w, item, "work");
                disk_shut();
                /* the one that failed for want of a budget comes with a result as well, which would be imported */
                if (i > 0)
                        assert_non_null(f->over_budget = strdup(LEDGER_OVER_BUDGET));
                tell(&c, w, "io.anchorhold.Run.Finish", json_pack("{s:s, s:s}", "outcome", outcomes[i], "reason", i > 0 ? LEDGER_OVER_BUDGET : ""), 1);
                UNTIL(w->event, disk_waiting() == 1);
                w->systemd.holds = true;
                tell_mismatch(&check, w);
                assert_false(check.answered);
                disk_open(0);
                UNTIL(w->event, c.answered);
                assert_string_equal(c.error, "");
                await_lost(w, item, "\"reason\":\"enforcement.mismatch: layer nftables allowed it\"");
                fake_let_go(&w->systemd);
                UNTIL(w->event, check.answered);
                assert_string_equal(check.error, "");
                OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
                assert_ok(w);
                caller_done(&c);
                caller_done(&check);
        }
}

/* The control: what was complete before stays as it is. */
static void test_mismatch_too_late(void **state) {
        World *w = *state;
        Caller c = {}, check = {};
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        tell_finish(&c, w);
        UNTIL(w->event, c.answered);
        assert_string_equal(c.error, "");
        tell_mismatch(&check, w);
        assert_string_equal(check.error, "io.anchorhold.Run.NoSuchRun");
        (void) await_active(w, item, "import");
        caller_done(&c);
        caller_done(&check);
}

/* Nor does a drain hand back what cannot be trusted, and the next life of anchord knows of it. */
static void test_mismatch_next_life(void **state) {
        World *w = *state;
        Caller check = {};
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        UNTIL(w->event, outbox_is_empty(w->m));
        w->systemd.holds = true;
        tell_mismatch(&check, w);
        flow_hand_back(w->m->flows, "drained");
        assert_string_equal(flow_state_name(w->m->flows), "active");
        end_life(w);
        caller_done(&check);
        begin_life(w);
        await_lost(w, item, "\"reason\":\"enforcement.mismatch: layer nftables allowed it\"");
}

/* The run was lost before it was said, and systemd knows why: the reason has both, whichever question is answered first. */
static void test_mismatch_of_lost_run(void **state) {
        World *w = *state;
        Caller check = {};
        char item[ID_LENGTH + 1], unit[64];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        w->systemd.holds = true;
        (void) snprintf(unit, sizeof(unit), "anchor-run@%s.service", w->as_run);
        fake_unit_changed(&w->systemd, unit, "failed", "signal", 2, 15);
        UNTIL(w->event, w->systemd.n_held == 1);
        tell_mismatch(&check, w);
        UNTIL(w->event, w->systemd.n_held == 2);
        fake_unit_set(&w->systemd, "anchorhold-runs.slice", "active")->job = 7;
        fake_let_go(&w->systemd);
        await_lost(w, item, "\"reason\":\"anchorhold-runs.slice was stopped: enforcement.mismatch: layer nftables allowed it\"");
        UNTIL(w->event, check.answered);
        assert_string_equal(check.error, "");
        caller_done(&check);
}

/* An operator's stop stays one, and its reason has both. */
static void test_mismatch_and_stop(void **state) {
        World *w = *state;
        Caller check = {};
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        w->systemd.holds = true;
        tell_mismatch(&check, w);
        OPERATOR(w, "Stop", json_pack("{s:s, s:s}", "item", item, "reason", "enough"));
        assert_ok(w);
        UNTIL(w->event, state_of(w, item) == ITEM_CANCELLED && !w->m->flows);
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "enough; enforcement.mismatch: layer nftables allowed it"));
        caller_done(&check);
}

/* The check went, or its probe, and with it the run: nobody knows what it would have said, so the result is not taken. The controls: the check goes because the run did,
 * or with everything else. */
static void test_check_goes_meanwhile(void **state) {
        static const struct { const char *first, *then; unsigned job; const char *slice, *reason; } cases[] = {
                { "check", NULL, 0, NULL, "anchor-check@%s.service ended: signal 9, before the result was taken up" },
                { "probe", "check", 0, NULL, "anchor-probe@%s.service ended: signal 9, before the result was taken up" },
                { "check", NULL, 50, NULL, "anchor-check@%s.service was stopped, before the result was taken up" },
                { "check", NULL, 0, "anchorhold-runs.slice", "anchorhold-runs.slice was stopped, before the result was taken up" }, /* it was gone before the slice was */
                { NULL, "check", 60, NULL, NULL },
                { "check", "probe", 50, "anchorhold-runs.slice", NULL },
        };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char item[ID_LENGTH + 1], reason[160];
                Caller c = {};

                submit_fix(w, item);
                (void) await_active(w, item, "work");
                disk_shut();
                tell_finish(&c, w);
                UNTIL(w->event, disk_waiting() == 1);
                if (cases[i].first)
                        other_goes(w, cases[i].first, cases[i].job);
                unit_ends(w, "run");
                if (cases[i].then)
                        other_goes(w, cases[i].then, 60);
                if (cases[i].slice)
                        fake_unit_set(&w->systemd, cases[i].slice, "active")->job = 49;
                disk_open(0);
                UNTIL(w->event, c.answered);
                assert_string_equal(c.error, "");
                if (cases[i].slice)
                        fake_unit_set(&w->systemd, cases[i].slice, "active")->job = 0;
                if (cases[i].reason) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                        (void) snprintf(reason, sizeof(reason), cases[i].reason, w->as_run);
#pragma GCC diagnostic pop
                        await_lost(w, item, reason);
                        OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
                        assert_ok(w);
                } else {
                        (void) await_active(w, item, "import");
                        OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
                }
                UNTIL(w->event, !w->m->flows);
                caller_done(&c);
        }
}

static int end(void **state) {
        disk_open(0);
        return tear_down(state);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_said_again, set_up, end),
                cmocka_unit_test_setup_teardown(test_told_that_it_goes_on, set_up, end),
                cmocka_unit_test_setup_teardown(test_unit_ends_meanwhile, set_up, end),
                cmocka_unit_test_setup_teardown(test_unit_ends_in_vain, set_up, end),
                cmocka_unit_test_setup_teardown(test_error_that_passes, set_up, end),
                cmocka_unit_test_setup_teardown(test_full_queue, set_up, end),
                cmocka_unit_test_setup_teardown(test_next_life, set_up, end),
                cmocka_unit_test_setup_teardown(test_stop_and_drain, set_up, end),
                cmocka_unit_test_setup_teardown(test_mismatch_meanwhile, set_up, end),
                cmocka_unit_test_setup_teardown(test_mismatch_too_late, set_up, end),
                cmocka_unit_test_setup_teardown(test_mismatch_next_life, set_up, end),
                cmocka_unit_test_setup_teardown(test_mismatch_of_lost_run, set_up, end),
                cmocka_unit_test_setup_teardown(test_mismatch_and_stop, set_up, end),
                cmocka_unit_test_setup_teardown(test_check_goes_meanwhile, set_up, end),
                cmocka_unit_test_setup_teardown(test_drain, set_up, end),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
