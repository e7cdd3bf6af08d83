/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Items on their way through anchord: each stage, and each way to fail. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "manager-world.h"

/* ---- how it goes ---- */

static void test_exec(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1], unit[64];
        json_t *spec;

        submit_exec(w, item);
        follow(w, w->operator, "io.anchorhold.Manager.Follow", json_pack("{s:s}", "item", item));
        (void) await_active(w, item, "work");
        assert_int_equal(w->n_registered, 2);
        (void) snprintf(unit, sizeof(unit), "StartUnit anchor-run@%s.service", w->as_run);
        assert_int_equal(fake_told(&w->systemd, unit), 1);
        assert_int_equal(state_of(w, item), ITEM_RUNNING);

        RUN(w, "GetSpec", NULL);
        assert_ok(w);
        spec = json_object_get(w->answer, "spec");
        assert_string_equal(json_string_value(json_object_get(spec, "run")), w->as_run);
        assert_string_equal(json_string_value(json_object_get(spec, "item")), item);
        assert_true(w->fds[0] < 0); /* there is no repository */

        RUN(w, "Event", json_pack("{s:s, s:{}}", "kind", "booting", "data"));
        assert_ok(w);
        RUN(w, "Output", json_pack("{s:s, s:s, s:s}", "stream", "stdout", "step", "exec", "data", "hello\n"));
        assert_ok(w);
        finish(w, "ok", "", NULL);
        assert_ok(w);
        UNTIL(w->event, w->followed);
        assert_int_equal(state_of(w, item), ITEM_CLOSED); /* nothing to review */
        assert_null(w->m->flows);
        assert_int_equal(w->n_released, 2);
        assert_int_equal(w->systemd.n_units, HOST_UNITS);

        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(audited(w, "item.submitted"), 1);
        assert_int_equal(audited(w, "run.leased"), 1);
        assert_int_equal(audited(w, "run.started"), 1);
        assert_int_equal(audited(w, "run.finished"), 1);
        assert_int_equal(audited(w, "item.transition closed"), 1);

        /* the follower saw all of it, in order, once */
        for (size_t i = 0; i + 1 < json_array_size(w->events); i++)
                assert_int_equal(json_integer_value(json_object_get(json_array_get(w->events, i), "seq")), i + 1);
        assert_string_equal(event_text(w, 0, "to"), "submitted");
        assert_string_equal(event_text(w, json_array_size(w->events) - 1, "type"), "end");
        assert_string_equal(event_text(w, json_array_size(w->events) - 1, "state"), "closed");

        /* the answer to Finish got lost: the same words again change nothing */
        finish(w, "failed", "", NULL);
        assert_refused(w, "NoSuchRun");
        assert_int_equal(state_of(w, item), ITEM_CLOSED);
}

/* The first run's good word counts for nothing; a second run, with an id of its own, gets the checked bundle. */
static void test_fix(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1], first[ID_LENGTH + 1], unit[64];
        _cleanup_item_ LedgerItem i = {};
        char head[16] = {};

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        strcpy(first, w->as_run);
        RUN(w, "GetSpec", NULL);
        assert_ok(w);
        assert_int_equal(pread(w->fds[0], head, 15, 0), 15);
        assert_string_equal(head, "# v2 git bundle");
        RUN(w, "GetImport", NULL);
        assert_refused(w, "NoSuchRun"); /* not yet */

        finish(w, "ok", "", "the guest's bundle");
        assert_ok(w);
        (void) await_active(w, item, "import");
        assert_string_equal(w->as_run, first);
        assert_int_equal(state_of(w, item), ITEM_VERIFYING);
        assert_int_equal(w->n_released, 2); /* before anything reads what the guest made */
        (void) snprintf(unit, sizeof(unit), "StartUnit anchor-import@%s.service", first);
        assert_int_equal(fake_told(&w->systemd, unit), 1);
        RUN(w, "GetSpec", NULL);
        assert_refused(w, "NoSuchRun");
        RUN(w, "GetImport", NULL);
        assert_ok(w);
        assert_string_equal(json_string_value(json_object_get(w->answer, "base")), BASE);
        assert_true(w->fds[0] >= 0 && w->fds[1] >= 0);

        import(w, true, "main", true);
        assert_refused(w, "BadInput");
        import(w, true, RESULT, false);
        assert_refused(w, "BadInput");
        import(w, true, RESULT, true);
        assert_ok(w);

        (void) await_active(w, item, "verify");
        assert_string_not_equal(w->as_run, first);
        RUN(w, "GetSpec", NULL);
        assert_ok(w);
        memset(head, 0, sizeof(head));
        assert_int_equal(pread(w->fds[0], head, 15, 0), 7);
        assert_string_equal(head, "checked");
        assert_string_equal(json_string_value(json_object_get(json_object_get(json_object_get(w->answer, "spec"), "repository"), "base")), RESULT);
        assert_int_equal(state_of(w, item), ITEM_VERIFYING);
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_IN_REVIEW && !w->m->flows);
        assert_int_equal(ledger_get(w->m->ledger, item, &i), 0);
        assert_string_equal(i.result_commit, RESULT);
        assert_int_equal(w->n_registered, 4);
        assert_int_equal(w->n_released, 4);
        assert_int_equal(w->systemd.n_units, HOST_UNITS);

        OPERATOR(w, "Result", json_pack("{s:s, s:s}", "item", item, "what", "bundle"));
        assert_ok(w);
        memset(head, 0, sizeof(head));
        assert_int_equal(pread(w->fds[0], head, 15, 0), 7);
        assert_string_equal(head, "checked"); /* never the guest's own */
}

/* ---- ways to fail ---- */

static void test_verify_fails(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];
        _cleanup_item_ LedgerItem i = {};

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        finish(w, "ok", "", "the guest's bundle");
        (void) await_active(w, item, "import");
        import(w, true, RESULT, true);
        (void) await_active(w, item, "verify");
        finish(w, "failed", "check failed", NULL);
        UNTIL(w->event, !w->m->flows);
        assert_int_equal(ledger_get(w->m->ledger, item, &i), 0);
        assert_int_equal(i.state, ITEM_QUEUED); /* of three attempts one is gone */
        assert_int_equal(i.attempt, 2);
        assert_int_equal(audited(w, "item.transition in_review"), 0);
}

static void test_import_refuses(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        finish(w, "ok", "", "a bomb");
        (void) await_active(w, item, "import");
        import(w, false, NULL, false);
        assert_ok(w);
        UNTIL(w->event, !w->m->flows);
        assert_int_equal(state_of(w, item), ITEM_QUEUED);
        OPERATOR(w, "Result", json_pack("{s:s, s:s}", "item", item, "what", "bundle"));
        assert_refused(w, "Conflict");
}

static void test_no_commit(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_fix(w, item);
        (void) await_active(w, item, "work");
        finish(w, "ok", "done, trust me", NULL);
        UNTIL(w->event, !w->m->flows);
        assert_int_equal(state_of(w, item), ITEM_QUEUED);
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "no commit was made"));
}

static void test_guest_fails(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        finish(w, "failed", "exit status 3\x1b[31m", NULL);
        await_exhausted(w, item, "exit status 3\\x1b[31m"); /* a guest's words, made harmless */
        assert_int_equal(audited(w, "item.transition exhausted"), 1);
}

static void test_registration_refused(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        w->egress_refuses = "no such policy";
        submit_exec(w, item);
        await_exhausted(w, item, "registration refused: no such policy");
        assert_int_equal(fake_told(&w->systemd, "StartUnit"), 0);
}

static void test_start_fails(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        w->systemd.start_result = "dependency";
        submit_exec(w, item);
        await_exhausted(w, item, "did not start: dependency");
        assert_int_equal(w->n_released, 2);
        assert_int_equal(audited(w, "run.started"), 0);
}

/* A stop that is still queued in the slice: anchord asks again. */
static void test_start_again(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        w->systemd.n_destructive = 2;
        submit_exec(w, item);
        (void) await_active(w, item, "work");
        assert_int_equal(fake_told(&w->systemd, "StartUnit"), 3);
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED);
}

static void test_unit_dies(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1], unit[64];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        /* another unit of the run is a note, the run itself decides */
        (void) snprintf(unit, sizeof(unit), "anchor-proxy@%s.service", w->as_run);
        fake_unit_changed(&w->systemd, unit, "failed", "signal", 2, 11);
        /* nor does a listener that somebody stops end it */
        (void) snprintf(unit, sizeof(unit), "anchor-inject@%s.socket", w->as_run);
        fake_unit_changed(&w->systemd, unit, "inactive", NULL, 0, 0);
        run_for(w->event, 20000);
        assert_int_equal(state_of(w, item), ITEM_RUNNING);
        (void) snprintf(unit, sizeof(unit), "anchor-run@%s.service", w->as_run);
        fake_unit_changed(&w->systemd, unit, "failed", "signal", 2, 9);
        await_exhausted(w, item, "ended without a result: signal 9");
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "failed: signal 11"));
        assert_true(answer_has(w, "was stopped: nothing goes out through it"));
}

/* A run that is lost because its slice was stopped says so, in whichever state the slice is by then; the control is test_unit_dies. */
static void test_slice_stopped(void **state) {
        static const struct { const char *slice, *active; unsigned job; bool anew, by_word; } cases[] = {
                { "anchorhold-runs.slice", "", 0, false, false },
                { "anchorhold-runs.slice", "deactivating", 0, false, true },
                { "anchorhold-runs.slice", "active", 7, false, true },    /* the stop waits for the units in it */
                { "anchorhold-runs.slice", "active", 0, true, false },    /* made anew */
                { NULL, "active", 7, false, true },                       /* the run's own */
        };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char item[ID_LENGTH + 1], unit[64], slice[64], reason[160];
                FakeUnit *u;

                submit_exec(w, item);
                (void) await_active(w, item, "work");
                (void) snprintf(unit, sizeof(unit), "anchor-run@%s.service", w->as_run);
                (void) snprintf(slice, sizeof(slice), "anchorhold-runs-%s.slice", w->as_run);
                if (cases[i].slice)
                        (void) snprintf(slice, sizeof(slice), "%s", cases[i].slice);
                u = fake_unit_set(&w->systemd, slice, cases[i].active);
                if (u) {
                        u->job = cases[i].job;
                        u->active_monotonic = cases[i].anew ? time_monotonic() : 0;
                }
                if (cases[i].by_word) {
                        finish(w, "error", "vm-gone: the virtual machine has ended", NULL);
                        assert_ok(w);
                } else
                        fake_unit_changed(&w->systemd, unit, "failed", "signal", 2, 15);
                (void) snprintf(reason, sizeof(reason), "%s was stopped: %s", slice, cases[i].by_word ? "vm-gone: the virtual machine has ended" : unit);
                UNTIL(w->event, state_of(w, item) == ITEM_EXHAUSTED && !w->m->flows);
                assert_true(reason_is(w, item, reason));
                UNTIL(w->event, outbox_is_empty(w->m));
                assert_non_null(strstr(json_string_value(json_object_get(w->finished, "reason")), reason));
                *fake_unit_set(&w->systemd, "anchorhold-runs.slice", "active") = (FakeUnit) { .name = "anchorhold-runs.slice", .active = "active" };
        }

        /* the control: nothing happened to a slice */
        char item[ID_LENGTH + 1];
        _cleanup_item_ LedgerItem ended = {};

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        finish(w, "error", "vm-gone: the virtual machine has ended", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_EXHAUSTED && !w->m->flows);
        assert_int_equal(ledger_get(w->m->ledger, item, &ended), 0);
        assert_string_equal(ended.reason, "vm-gone: the virtual machine has ended");
}

/* A unit of the run was stopped or died, and anchor-run went first, or said that something is wrong: the reason names that unit. The control is test_unit_dies. */
static void test_other_unit_goes(void **state) {
        static const struct { const char *kind; bool killed, by_word; const char *reason; } cases[] = {
                { "net", false, false, "anchor-net@%s.service was stopped: anchor-run@%s.service ended without a result: exit status 0" },
                { "run", false, false, "anchor-run@%s.service was stopped" },
                { "check", true, false, "anchor-check@%s.service ended: signal 9: anchor-run@%s.service ended without a result: exit status 0" },
                { "vm", true, true, "anchor-vm@%s.service ended: signal 9: vm-gone: the virtual machine has ended" },
                { "vm", false, true, "anchor-vm@%s.service was stopped: vm-gone: the virtual machine has ended" },
        };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char item[ID_LENGTH + 1], unit[64], own[64], reason[192];
                _cleanup_item_ LedgerItem ended = {};

                submit_exec(w, item);
                (void) await_active(w, item, "work");
                (void) snprintf(own, sizeof(own), "anchor-run@%s.service", w->as_run);
                (void) snprintf(unit, sizeof(unit), "anchor-%s@%s.service", cases[i].kind, w->as_run);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                (void) snprintf(reason, sizeof(reason), cases[i].reason, w->as_run, w->as_run);
#pragma GCC diagnostic pop
                if (cases[i].killed)
                        fake_unit_changed(&w->systemd, unit, "failed", "signal", 2, 9);
                else {
                        fake_signal_job_new(&w->systemd, 50, unit);
                        fake_unit_changed(&w->systemd, unit, "deactivating", NULL, 0, 0);
                }
                if (cases[i].by_word)
                        finish(w, "error", "vm-gone: the virtual machine has ended", NULL);
                else {
                        if (strcmp(unit, own) != 0)
                                fake_signal_job_new(&w->systemd, 51, own);
                        fake_unit_changed(&w->systemd, own, "inactive", "success", 1, 0);
                }
                UNTIL(w->event, state_of(w, item) == ITEM_EXHAUSTED && !w->m->flows);
                assert_int_equal(ledger_get(w->m->ledger, item, &ended), 0);
                assert_string_equal(ended.reason, reason);
                (void) fake_unit_set(&w->systemd, unit, "");
        }
}

/* A run whose listeners cannot be had would start, and reach nothing. */
static void test_no_listener(void **state) {
        static const struct { const char *becomes[3], *reason; } cases[] = {
                { { "activating", "failed" }, ".socket failed: its program cannot be run" },
                { { "activating", "active", "inactive" }, ".socket was stopped: nothing would go out through it" },
                { { "activating", "inactive" }, ".socket was stopped: nothing would go out through it" },
        };
        char item[ID_LENGTH + 1];
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                memcpy(w->systemd.listener, cases[i].becomes, sizeof(w->systemd.listener));
                submit_exec(w, item);
                await_exhausted(w, item, cases[i].reason);
                assert_int_equal(audited(w, "run.started"), 0);
        }

        /* the control: systemd says of a unit that it is inactive when its job is queued */
        memcpy(w->systemd.listener, ((const char *[3]) { "inactive", "activating", "active" }), sizeof(w->systemd.listener));
        submit_exec(w, item);
        (void) await_active(w, item, "work");
}

/* The listeners need the run's network: if that ends while the run starts, they go as well, and that is not the cause. The control is test_no_listener. */
static void test_network_goes_first(void **state) {
        World *w = *state;

        w->systemd.silent = true;
        for (unsigned fenced = 2; fenced-- > 0;) {
                char item[ID_LENGTH + 1], net[64], listener[64], slice[64], reason[256];
                _cleanup_item_ LedgerItem ended = {};
                Flow *f;

                submit_exec(w, item);
                UNTIL(w->event, (f = flow_find_item(w->m, item)) && strcmp(flow_state_name(f), "starting") == 0);
                (void) snprintf(net, sizeof(net), "anchor-net@%s.service", flow_run(f));
                (void) snprintf(listener, sizeof(listener), "anchor-proxy@%s.socket", flow_run(f));
                (void) snprintf(reason, sizeof(reason), "anchor-run@%s.service did not start: dependency, %s: %s", flow_run(f), net,
                                fenced ? "exit status 3" : UNITS_NOT_FENCED);
                (void) snprintf(slice, sizeof(slice), "anchorhold-runs-%s.slice", flow_run(f));
                (void) fake_unit_set(&w->systemd, slice, "active");
                fake_unit_changed(&w->systemd, listener, "activating", NULL, 0, 0);
                fake_unit_changed(&w->systemd, net, "failed", "exit-code", fenced, fenced ? 3 : 0);
                fake_unit_changed(&w->systemd, listener, "inactive", NULL, 0, 0);
                UNTIL(w->event, state_of(w, item) != ITEM_LEASED && !w->m->flows);
                assert_int_equal(ledger_get(w->m->ledger, item, &ended), 0);
                assert_string_equal(ended.reason, reason);
                assert_int_equal(ended.state, fenced ? ITEM_EXHAUSTED : ITEM_QUEUED); /* it has one attempt: that the host is not whole costs none */
        }
}

/* A unit that does not stop when its slice does is killed as soon as an operator wants it dead: whichever it is, within five seconds. */
static void test_stop(void **state) {
        static const char *const kinds[] = { "vm", "proxy", "inject", "check", "probe", "netlog", "net" };
        World *w = *state;
        uint64_t begin;
        char item[ID_LENGTH + 1], unit[64];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        for (size_t i = 0; i < ELEMENTSOF(kinds); i++) {
                (void) snprintf(unit, sizeof(unit), "anchor-%s@%s.service", kinds[i], w->as_run);
                fake_unit_set(&w->systemd, unit, "active")->sticky = true;
        }
        begin = time_monotonic();
        OPERATOR(w, "Stop", json_pack("{s:s, s:s}", "item", item, "reason", "enough\n"));
        assert_ok(w);
        UNTIL(w->event, fake_told(&w->systemd, "KillUnit anchor-probe@") > 0);
        assert_int_equal(fake_told(&w->systemd, "KillUnit anchor-net"), 0); /* they have something to do at the end */
        assert_int_equal(fake_told(&w->systemd, "KillUnit anchor-proxy@") + fake_told(&w->systemd, "KillUnit anchor-inject@"), 0);
        UNTIL(w->event, fake_told(&w->systemd, "KillUnit anchor-netlog@") > 0);
        assert_true(time_monotonic() - begin >= 2900000);
        UNTIL(w->event, state_of(w, item) == ITEM_CANCELLED && !w->m->flows);
        assert_true(time_monotonic() - begin < 5000000);
        for (size_t i = 0; i < ELEMENTSOF(kinds); i++) {
                (void) snprintf(unit, sizeof(unit), "KillUnit anchor-%s@", kinds[i]);
                assert_int_equal(fake_told(&w->systemd, unit), 1);
        }
        assert_true(reason_is(w, item, "enough"));
        assert_int_equal(w->systemd.n_units, HOST_UNITS);
        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(audited(w, "run.stopped"), 1);

        OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
        assert_refused(w, "Conflict");
        RUN(w, "Output", json_pack("{s:s, s:s, s:s}", "stream", "stdout", "step", "exec", "data", "still here"));
        assert_refused(w, "NoSuchRun");
}

/* Nothing happens for a run whose lease is not on record. */
static void test_audit_refuses(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        w->audit_refuses = true;
        submit_exec(w, item);
        run_for(w->event, 150000);
        assert_int_equal(w->n_registered, 0);
        assert_int_equal(fake_told(&w->systemd, "StartUnit"), 0);
        assert_false(outbox_is_empty(w->m));

        w->audit_refuses = false;
        (void) await_active(w, item, "work"); /* tried again after a second */
        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(audited(w, "item.submitted"), 1);
        /* with the key that it had before, in case auditd has it */
        assert_true(w->refused[0]);
        assert_string_equal(w->repeated, w->refused);
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED);
}

/* A workflow that changed between submission and lease is not run. */
static void test_changed_policy(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];
        Tree root = {};

        OPERATOR(w, "Hold", json_pack("{s:b}", "on", true));
        submit_exec(w, item);
        tree_copy(&root, "/usr/lib/anchorhold/policy/workflows/exec.json", "run/exec.json");
        tree_put(&root, "usr/lib/anchorhold/policy/workflows/exec.json",
                 "{\"template\": \"base\", \"repository\": false, \"steps\": [{\"name\": \"exec\", \"kind\": \"exec\", \"timeout\": \"2h\"}]}");
        OPERATOR(w, "Hold", json_pack("{s:b}", "on", false));
        UNTIL(w->event, item_state_is_end(state_of(w, item)) && !w->m->flows);
        tree_copy(&root, "/run/exec.json", "usr/lib/anchorhold/policy/workflows/exec.json");
        assert_true(reason_is(w, item, "workflow exec"));
        assert_int_equal(w->n_registered, 0);
}

/* The host runs another image by the time of the lease: the item is worked on with the template that is there, and that is on record. */
static void test_other_template(void **state) {
        World *w = *state;
        _cleanup_item_ LedgerItem i = {};
        char item[ID_LENGTH + 1], digest[HEX_SHA256_SIZE];

        OPERATOR(w, "Hold", json_pack("{s:b}", "on", true));
        submit_exec(w, item);
        signed_template_write(template_key, "/usr/lib/anchorhold/templates/base",
                              json_pack("{s:s, s:{s:s}}", "name", "base", "files", "root.erofs", "bb"), digest);
        OPERATOR(w, "Hold", json_pack("{s:b}", "on", false));
        (void) await_active(w, item, "work");
        assert_int_equal(ledger_get(w->m->ledger, item, &i), 0);
        assert_string_equal(i.template_digest, digest);
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED && outbox_is_empty(w->m));
        assert_int_equal(audited(w, "item.template"), 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_exec, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_fix, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_verify_fails, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_import_refuses, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_commit, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_guest_fails, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_registration_refused, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_start_fails, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_start_again, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_unit_dies, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_other_unit_goes, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_slice_stopped, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_listener, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_network_goes_first, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stop, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_audit_refuses, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_changed_policy, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_other_template, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
