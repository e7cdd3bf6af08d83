/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchord dies and is started anew in the middle of a run: what goes on, what is done again, what is given up. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "manager-world.h"
#include "util/sqlite.h"

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

static unsigned n_shown(World *w, const char *item, const char *text) {
        _cleanup_free_ char *all = NULL;
        unsigned n = 0;

        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_ok(w);
        all = json_canonical(w->answer);
        for (const char *p = all; (p = strstr(p, text)); p++)
                n++;
        return n;
}

/* A run starts once, however often anchord does. */
static void test_started_once(void **state) {
        static const char accel[] = "{\"accel\": \"tcg\", \"reason\": \"it hung\"}";
        World *w = *state;
        char item[ID_LENGTH + 1];

        assert_int_equal(io_write_file_atomic(AT_FDCWD, "/run/anchorhold/accel", accel, strlen(accel), 0644), 0);
        submit_exec(w, item);
        (void) await_active(w, item, "work");
        for (unsigned i = 0; i < 3; i++) {
                UNTIL(w->event, outbox_is_empty(w->m));
                assert_int_equal(audited(w, "run.started"), 1);
                assert_int_equal(n_shown(w, item, "the microVM is emulated"), 1);
                end_life(w);
                begin_life(w);
                (void) await_active(w, item, "work");
        }
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED && outbox_is_empty(w->m));
        assert_int_equal(audited(w, "run.started"), 1);
}

/* The host has more units than anybody would think of, and this run's is the last in the list. */
static void test_resume_among_many(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1], unit[64], other[80];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        UNTIL(w->event, outbox_is_empty(w->m));
        end_life(w);
        (void) snprintf(unit, sizeof(unit), "anchor-run@%s.service", w->as_run);
        (void) fake_unit_set(&w->systemd, unit, "");
        for (unsigned i = 0; i < 900; i++) {
                (void) snprintf(other, sizeof(other), "anchor-vm@r%012u.service", i);
                (void) fake_unit_set(&w->systemd, other, "inactive");
        }
        (void) fake_unit_set(&w->systemd, unit, "active");
        begin_life(w);
        (void) await_active(w, item, "work");
        assert_int_equal(fake_told(&w->systemd, "StartUnit"), 1);
        assert_int_equal(fake_told(&w->systemd, "StopUnit"), 0);
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED);
}

/* Turns the loop until anchord has ended by itself; nothing can be done in that loop any more. */
static void await_end(World *w) {
        UNTIL(w->event, sd_event_get_state(w->event) == SD_EVENT_FINISHED);
        end_life(w);
}

static ItemState state_in_ledger(const char *item) {
        _cleanup_(ledger_closep) Ledger *l = NULL;
        _cleanup_item_ LedgerItem i = {};

        assert_int_equal(ledger_open(&l, LEDGER_PATH), 0);
        assert_int_equal(ledger_get(l, item, &i), 0);
        return i.state;
}

/* Which units there are cannot be learnt: nothing is known of the run then, least of all that it is gone. */
static void test_no_list(void **state) {
        static const char *const paths[] = { "/run/anchorhold/api.sock", "/run/anchorhold/run-api.sock", "/run/anchorhold/spec.sock" };
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        UNTIL(w->event, outbox_is_empty(w->m));
        end_life(w);
        w->systemd.list_fails = true;
        own_world_pass(paths, ELEMENTSOF(paths), "api:run-api:spec");
        assert_int_equal(manager_new(&w->m, w->event), 0);
        assert_int_equal(manager_start(w->m), 0);
        await_end(w);
        assert_int_equal(state_in_ledger(item), ITEM_RUNNING);
        assert_int_equal(fake_told(&w->systemd, "StopUnit"), 0);
}

/* What a review rests on cannot be put together: no review without it. */
static void test_no_evidence(void **state) {
        _cleanup_(db_closep) Db *db = NULL;
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        finish(w, "ok", "", "the guest's bundle");
        (void) await_active(w, item, "import");
        import(w, true, RESULT, true);
        (void) await_active(w, item, "verify");
        assert_int_equal(db_open(&db, LEDGER_PATH), 0);
        assert_int_equal(db_exec(db, "PRAGMA ignore_check_constraints = ON"), 0);
        assert_int_equal(db_run(db, "UPDATE run SET egress_digests = '{' WHERE id = ?", DB_ARGS(DB_TEXT(w->as_run))), 1);
        finish(w, "ok", "", NULL);
        await_end(w);
        assert_int_equal(state_in_ledger(item), ITEM_VERIFYING);
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

/* The same, and the slice of all runs was stopped meanwhile, or stopped and made anew. */
static void test_resume_slice_stopped(void **state) {
        World *w = *state;

        for (unsigned anew = 0; anew < 2; anew++) {
                char item[ID_LENGTH + 1], unit[64];
                FakeUnit *slice;

                submit_exec(w, item);
                (void) await_active(w, item, "work");
                UNTIL(w->event, outbox_is_empty(w->m));
                end_life(w);
                (void) snprintf(unit, sizeof(unit), "anchor-run@%s.service", w->as_run);
                (void) fake_unit_set(&w->systemd, unit, "");
                slice = fake_unit_set(&w->systemd, "anchorhold-runs.slice", anew ? "active" : "inactive");
                slice->active_realtime = time_realtime();
                begin_life(w);
                await_exhausted(w, item, "anchorhold-runs.slice was stopped: anchor-run ended while the supervisor was away");
                slice = fake_unit_set(&w->systemd, "anchorhold-runs.slice", "active");
                slice->active_realtime = 0;
        }
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

/* ---- what is said twice, and what an earlier life did not get to say ---- */

static void next_life(World *w, const char *item) {
        UNTIL(w->event, outbox_is_empty(w->m));
        end_life(w);
        begin_life(w);
        (void) await_active(w, item, "work");
}

static void read_logs(World *w, const char *item) {
        follow(w, w->operator, "io.anchorhold.Manager.Logs", json_pack("{s:s}", "item", item));
        UNTIL(w->event, w->followed);
}

static unsigned n_events(const World *w, const char *key, const char *value) {
        unsigned n = 0;

        for (size_t i = 0; i < json_array_size(w->events); i++)
                n += strcmp(event_text(w, i, key), value) == 0;
        return n;
}

/* Each state follows on the one before, in steps of the ledger's own. */
static void assert_no_state_is_missing(const World *w) {
        char last[32] = "";

        for (size_t i = 0; i < json_array_size(w->events); i++) {
                if (strcmp(event_text(w, i, "type"), "state") != 0)
                        continue;
                assert_string_equal(event_text(w, i, "from"), last);
                (void) snprintf(last, sizeof(last), "%s", event_text(w, i, "to"));
        }
}

/* anchord did what a call asked for and died before it answered: the same call comes again. */
static void test_said_twice(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        for (unsigned i = 0; i < 3; i++) {
                RUN(w, "Event", json_pack("{s:i, s:s, s:{s:s}}", "seq", 1, "kind", "booting", "data", "text", "first"));
                assert_ok(w);
                next_life(w, item);
        }
        for (unsigned i = 0; i < 3; i++) {
                RUN(w, "Event", json_pack("{s:i, s:s, s:{s:s}}", "seq", 2, "kind", "boot-retry", "data", "reason", "it hangs"));
                assert_ok(w);
                next_life(w, item);
        }
        for (unsigned i = 0; i < 3; i++) {
                RUN(w, "Event", json_pack("{s:i, s:s, s:{s:s}}", "seq", 3, "kind", "step-started", "data", "name", "exec"));
                assert_ok(w);
                next_life(w, item);
        }
        for (unsigned i = 0; i < 3; i++) {
                RUN(w, "Output", json_pack("{s:i, s:s, s:s, s:s}", "seq", 4, "stream", "stdout", "step", "exec", "data", "a line"));
                assert_ok(w);
                next_life(w, item);
        }
        RUN(w, "Output", json_pack("{s:i, s:s, s:s, s:s}", "seq", 5, "stream", "stdout", "step", "exec", "data", "a line"));
        assert_ok(w);

        read_logs(w, item);
        assert_int_equal(n_events(w, "kind", "booting"), 1);
        assert_int_equal(n_events(w, "kind", "boot-retry"), 1);
        assert_int_equal(n_events(w, "type", "step"), 1);
        assert_int_equal(n_events(w, "data", "a line"), 2);
        assert_no_state_is_missing(w);
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "\"boots\":1,"));
        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(audited(w, "run.boot_retry"), 1);
}

/* anchord died between its database and the file of events. */
static void test_not_said(void **state) {
        LedgerTold told = { .note = "guest-error", .text = "a sad guest" };
        _cleanup_(ledger_closep) Ledger *l = NULL;
        _cleanup_item_ LedgerItem i = {};
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        UNTIL(w->event, outbox_is_empty(w->m));
        end_life(w);
        assert_int_equal(ledger_open(&l, LEDGER_PATH), 0);
        assert_int_equal(ledger_run_tell(l, w->as_run, 7, &told), 0);
        assert_int_equal(ledger_add_note(l, item, NULL, "warning", "of no run"), 0);
        assert_int_equal(ledger_get(l, item, &i), 0);
        assert_int_equal(ledger_transition(l, &(LedgerChange) { .item = item, .revision = i.revision, .token = i.token, .to = ITEM_WAITING, .actor = "anchord" }, NULL), 0);
        assert_int_equal(ledger_transition(l, &(LedgerChange) { .item = item, .revision = i.revision + 1, .token = i.token, .to = ITEM_RUNNING, .actor = "anchord" }, NULL), 0);
        l = ledger_close(l);
        begin_life(w);
        (void) await_active(w, item, "work");
        RUN(w, "Event", json_pack("{s:i, s:s, s:{s:s}}", "seq", 7, "kind", "guest-error", "data", "text", "a sad guest"));
        assert_ok(w);
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED);

        read_logs(w, item);
        assert_int_equal(n_events(w, "text", "a sad guest"), 1);
        assert_int_equal(n_events(w, "text", "of no run"), 1);
        assert_int_equal(n_events(w, "to", "waiting"), 1);
        assert_int_equal(n_events(w, "to", "running"), 2);
        assert_no_state_is_missing(w);
        assert_int_equal(n_events(w, "to", "closed"), 1);
}

static bool answered_early;

static void on_early_answer(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        World *w = userdata;

        answered_early = !w->m->settled;
        w->answered = true;
}

/* A unit of a run that asks a new life is answered when that knows its runs: until then every run would be none. */
static void test_asked_before_settled(void **state) {
        static const char *const paths[] = { "/run/anchorhold/api.sock", "/run/anchorhold/run-api.sock", "/run/anchorhold/spec.sock" };
        _cleanup_(ipc_client_freep) IpcClient *unit = NULL, *operator= NULL;
        World *w = *state;

        for (unsigned i = 0; i < 2; i++) {
                const char *method = i == 0 ? "io.anchorhold.Run.GetSpec" : "io.anchorhold.Manager.Status";
                IpcClient **client = i == 0 ? &unit : &operator;

                end_life(w);
                own_world_pass(paths, ELEMENTSOF(paths), "api:run-api:spec");
                assert_int_equal(manager_new(&w->m, w->event), 0);
                assert_int_equal(manager_start(w->m), 0);
                assert_int_equal(ipc_client_new(client, w->event, paths[1 - i]), 0);
                forget_answer(w);
                assert_int_equal(ipc_client_call_async(*client, method, NULL, NULL, 0, false, 0, on_early_answer, w), 0);
                UNTIL(w->event, w->answered && w->m->settled);
                assert_int_equal(answered_early, i == 1);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_resume_alive, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_started_once, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_resume_among_many, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_list, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_evidence, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_resume_dead, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_resume_slice_stopped, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_resume_after_finish, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_resume_before_start, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_said_twice, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_not_said, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_asked_before_settled, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
