/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Policy is edited while an item is worked on: that concerns what is leased later, and neither the run that goes on nor the verification of what it made. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/flow-internal.h"
#include "manager-world.h"

#define POLICY "/usr/lib/anchorhold/policy/"

static void put(const char *path, const char *text) {
        assert_int_equal(io_write_file_atomic(AT_FDCWD, path, text, strlen(text), 0644), 0);
}

/* Another limit, other steps: a workflow that could be used, and is another one. */
static void edit_workflow(void) {
        _cleanup_json_ json_t *j = json_load_file(POLICY "workflows/code-fix.json", 0, NULL);
        _cleanup_free_ char *text = NULL;
        json_t *verify = json_object_get(j, "verify");

        (void) json_object_set_new(json_object_get(j, "limits"), "run", json_string("7min"));
        (void) json_object_set_new(j, "budget", json_pack("{s:{s:i}}", "run", "requests", 3));
        (void) json_object_set_new(json_array_get(json_object_get(verify, "steps"), 0), "argv", json_pack("[s]", "true"));
        text = json_canonical(j);
        assert_non_null(text);
        put(POLICY "workflows/code-fix.json", text);
}

static void break_workflow(void) {
        put(POLICY "workflows/code-fix.json", "{ \"template\": \"base\",");
}

static void remove_workflow(void) {
        assert_int_equal(unlink(POLICY "workflows/code-fix.json"), 0);
}

static void edit_egress(void) {
        put(POLICY "egress/anthropic.json", "{\"rules\": [{\"host\": \"elsewhere.example\"}]}");
}

static void break_harness(void) {
        put(POLICY "harness/pi.json", "{");
}

/* The operator insists on KVM, and the probe is being made anew. */
static void forget_accel(void) {
        put("/usr/lib/anchorhold/host.json", "{\"accel\": \"kvm\"}");
        assert_int_equal(unlink("/run/anchorhold/accel"), 0);
}

static void (*const edits[])(void) = { edit_workflow, break_workflow, remove_workflow, edit_egress, break_harness, forget_accel };

static const char accel[] = "{\"accel\": \"kvm\", \"reason\": \"\"}";

static void mend(void) {
        Tree image = {};

        tree_add_vendor(&image);
        put("/run/anchorhold/accel", accel);
}

static int tear_down_mended(void **state) {
        mend();
        return tear_down(state);
}

static void next_life(World *w) {
        UNTIL(w->event, outbox_is_empty(w->m));
        end_life(w);
        begin_life(w);
}

static json_t *spec_of_active(World *w, const char *item, const char *stage) {
        const Flow *f = await_active(w, item, stage);
        json_t *specs = json_pack("{s:O, s:O}", "run", flow_spec(f), "vm", flow_vm_spec(f));

        assert_non_null(specs);
        return specs;
}

static void assert_old_verification(World *w, const char *item) {
        _cleanup_json_ json_t *specs = spec_of_active(w, item, "verify");
        const json_t *spec = json_object_get(specs, "run"), *repository = json_object_get(spec, "repository");
        _cleanup_free_ char *steps = json_canonical(json_object_get(spec, "steps"));

        assert_non_null(strstr(steps, "\"argv\":[\"make\",\"check\"]"));
        assert_int_equal(json_integer_value(json_object_get(json_object_get(spec, "limits"), "run_s")), 3600);
        assert_string_equal(json_string_value(json_object_get(spec, "run")), w->as_run);
        assert_string_equal(json_string_value(json_object_get(spec, "stage")), "verify");
        assert_string_equal(json_string_value(json_object_get(repository, "base")), RESULT);
        assert_string_equal(json_string_value(json_object_get(repository, "ref")), REF_RESULT);
        assert_null(json_string_value(json_object_get(spec, "agent")));
        assert_string_equal(json_string_value(json_object_get(json_object_get(specs, "vm"), "accel")), "kvm");
}

/* A new life of anchord finds the run alive and the policy another, or none: it goes on as it began, to the end. */
static void test_run_goes_on(void **state) {
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(edits); i++) {
                _cleanup_json_ json_t *before = NULL, *after = NULL;
                char item[ID_LENGTH + 1], run[ID_LENGTH + 1];

                submit_fix(w, item);
                before = spec_of_active(w, item, "work");
                strcpy(run, w->as_run);
                edits[i]();
                next_life(w);
                after = spec_of_active(w, item, "work");
                assert_string_equal(w->as_run, run);
                assert_true(json_equal(before, after));
                assert_false(flow_find_run(w->m, run)->capped);
                RUN(w, "GetSpec", NULL);
                assert_ok(w);
                finish(w, "ok", "", "the guest's bundle");
                assert_ok(w);
                (void) await_active(w, item, "import");
                next_life(w);
                (void) await_active(w, item, "import");
                import(w, true, RESULT, true);
                assert_ok(w);
                assert_old_verification(w, item);
                next_life(w);
                assert_old_verification(w, item);
                finish(w, "ok", "", NULL);
                UNTIL(w->event, state_of(w, item) == ITEM_IN_REVIEW && !w->m->flows);
                mend();
        }
}

/* The same without a new life: what was made is not thrown away. */
static void test_verified_as_it_began(void **state) {
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(edits); i++) {
                char item[ID_LENGTH + 1];

                submit_fix(w, item);
                (void) await_active(w, item, "work");
                edits[i]();
                finish(w, "ok", "", "the guest's bundle");
                (void) await_active(w, item, "import");
                import(w, true, RESULT, true);
                assert_old_verification(w, item);
                finish(w, "ok", "", NULL);
                UNTIL(w->event, state_of(w, item) == ITEM_IN_REVIEW && !w->m->flows);
                mend();
        }
}

/* The control: what waits in the queue is not worked on by a policy that nobody had in mind for it; what is leased later has the new one. */
static void test_queued_and_later(void **state) {
        World *w = *state;
        char queued[ID_LENGTH + 1], later[ID_LENGTH + 1];
        Flow *f;

        OPERATOR(w, "Hold", json_pack("{s:b}", "on", true));
        submit_fix(w, queued);
        edit_workflow();
        OPERATOR(w, "Hold", json_pack("{s:b}", "on", false));
        UNTIL(w->event, state_of(w, queued) == ITEM_QUEUED && reason_is(w, queued, "next attempt")); /* which fails as well */
        OPERATOR(w, "Show", json_pack("{s:s}", "item", queued));
        assert_true(answer_has(w, "submit it again"));

        submit_fix(w, later);
        f = await_active(w, later, "work");
        assert_int_equal(json_integer_value(json_object_get(json_object_get(flow_spec(f), "limits"), "run_s")), 7 * 60);
        assert_true(f->capped && f->budget.run.requests == 3 && f->budget.run.tokens == POLICY_NO_CAP);
        put(POLICY "workflows/code-fix.json", "{");
        next_life(w);
        f = await_active(w, later, "work"); /* and keeps that */
        assert_true(f->capped && f->budget.run.requests == 3 && f->budget.run.tokens == POLICY_NO_CAP && f->budget.item.cost_microusd == POLICY_NO_CAP);
        assert_int_equal(f->budget.soft_percent, 80);
        assert_int_equal(f->budget.wrap_up_s, 60);
}

/* ---- registering a verification ---- */

/* An item whose result is there, and egressd refuses what it is asked to register from then on. */
static void bring_to_verification(World *w, char item[static ID_LENGTH + 1], const char *error) {
        submit_fix(w, item);
        (void) await_active(w, item, "work");
        finish(w, "ok", "", "the guest's bundle");
        (void) await_active(w, item, "import");
        w->egress_refuses = "workflow code-fix: it cannot be read";
        w->egress_error = error;
        import(w, true, RESULT, true);
        assert_ok(w);
}

static unsigned n_waits(World *w, const char *item) {
        _cleanup_free_ char *all = NULL;
        unsigned n = 0;

        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_ok(w);
        all = json_canonical(w->answer);
        for (const char *p = all; (p = strstr(p, "\"kind\":\"verify.waits\"")); p++)
                n++;
        return n;
}

/* Somebody is editing the file just then: the verification waits until it can be used, over a new life of anchord, and nothing is done twice. */
static void test_verification_waits(void **state) {
        static const char *const errors[] = { "BadInput", "Unavailable" };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(errors); i++) {
                _cleanup_item_ LedgerItem now = {};
                char item[ID_LENGTH + 1];
                unsigned n_started = fake_told(&w->systemd, "StartUnit anchor-run@"), n_refused = w->n_refused;

                w->m->register_again_usec = 1000;
                bring_to_verification(w, item, errors[i]);
                UNTIL(w->event, w->n_refused >= n_refused + 3);
                assert_int_equal(state_of(w, item), ITEM_VERIFYING);
                assert_int_equal(n_waits(w, item), 1);
                next_life(w);
                w->m->register_again_usec = 1000;
                n_refused = w->n_refused;
                UNTIL(w->event, w->n_refused >= n_refused + 3);
                assert_int_equal(state_of(w, item), ITEM_VERIFYING);
                assert_int_equal(fake_told(&w->systemd, "StartUnit anchor-run@"), n_started + 1);

                w->egress_refuses = NULL;
                assert_old_verification(w, item);
                finish(w, "ok", "", NULL);
                UNTIL(w->event, state_of(w, item) == ITEM_IN_REVIEW && !w->m->flows);
                assert_int_equal(fake_told(&w->systemd, "StartUnit anchor-run@"), n_started + 2);
                assert_int_equal(ledger_get(w->m->ledger, item, &now), 0);
                assert_int_equal(now.attempt, 1);
        }
}

/* secretd keeps what it was asked first, and refuses another word while it works on that: every try says the same, and what it keeps lasts for the wait and the run. */
static void test_waits_with_one_word(void **state) {
        World *w = *state;
        uint64_t expires, now;
        char item[ID_LENGTH + 1];
        unsigned n;

        w->m->register_again_usec = 1000;
        bring_to_verification(w, item, "Unavailable");
        n = w->n_registered;
        UNTIL(w->event, w->n_registered >= n + 4);
        assert_int_equal(w->n_otherwise, 0);
        expires = (uint64_t) json_integer_value(json_object_get(w->asked_secret, "expires_usec"));
        now = time_realtime();
        assert_true(expires > now + w->m->register_wait_usec + w->m->flows->run_s * USEC_PER_SEC);
        assert_true(expires < now + w->m->register_wait_usec + (w->m->flows->run_s + 3600) * USEC_PER_SEC);

        /* the control: what does not wait lasts for the run */
        OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
        UNTIL(w->event, state_of(w, item) == ITEM_CANCELLED && !w->m->flows);
        w->egress_refuses = NULL;
        submit_fix(w, item);
        (void) await_active(w, item, "work");
        expires = (uint64_t) json_integer_value(json_object_get(w->asked_secret, "expires_usec"));
        assert_true(expires > now + w->m->flows->run_s * USEC_PER_SEC && expires < now + (w->m->flows->run_s + 3600) * USEC_PER_SEC);
}

static unsigned verify_waiting(World *w) {
        OPERATOR(w, "Status", NULL);
        assert_ok(w);
        assert_int_equal(json_integer_value(json_object_get(w->answer, "max_runs")), policy_host(w->m->policy)->max_runs);
        return (unsigned) json_integer_value(json_object_get(w->answer, "verify_waiting"));
}

/* It has one of the host's places meanwhile: whoever asks is told. */
static void test_waiting_is_told(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        w->m->register_again_usec = 1000;
        bring_to_verification(w, item, "Unavailable");
        UNTIL(w->event, w->n_refused >= 2);
        assert_int_equal(verify_waiting(w), 1);
        w->egress_refuses = NULL;
        (void) await_active(w, item, "verify");
        assert_int_equal(verify_waiting(w), 0);
}

/* The time for an answer is over: sooner than the test has it. */
static void time_is_up(World *w, const char *item) {
        Flow *f;

        UNTIL(w->event, (f = flow_find_item(w->m, item)) && f->state == FLOW_REGISTERING && f->pending == 1);
        assert_int_equal(sd_event_source_set_time_relative(f->timer, 0), 0);
}

/* Nobody answers what a verification asks: it waits as well. An answer that comes after that, to what was asked before, is not taken for one to what is asked then. */
static void test_no_answer(void **state) {
        World *w = *state;

        for (unsigned refused = 0; refused < 2; refused++) {
                char item[ID_LENGTH + 1];
                unsigned held = w->n_held;
                Flow *f;

                w->m->register_again_usec = 1000;
                submit_fix(w, item);
                (void) await_active(w, item, "work");
                finish(w, "ok", "", "the guest's bundle");
                (void) await_active(w, item, "import");
                w->egress_holds = true;
                import(w, true, RESULT, true);
                assert_ok(w);
                UNTIL(w->event, w->n_held == held + 1);
                time_is_up(w, item);
                UNTIL(w->event, (f = flow_find_item(w->m, item)) && f->state == FLOW_AUDITING);
                UNTIL(w->event, f->state == FLOW_REGISTERING && f->pending == 1);
                assert_int_equal(n_waits(w, item), 1);
                if (refused)
                        assert_int_equal(ipc_call_refuse(w->held[held], "Denied", "no"), 0);
                else
                        assert_int_equal(ipc_call_reply(w->held[held], json_pack("{s:s}", "digest", "ff")), 0);
                UNTIL(w->event, w->n_held == held + 2); /* that goes to egressd one after the other */
                run_for(w->event, 30000);
                assert_true(f == flow_find_item(w->m, item) && f->state == FLOW_REGISTERING && f->pending == 1);
                assert_string_equal(f->egress_digest, "");

                assert_int_equal(ipc_call_reply(w->held[held + 1], json_pack("{s:s}", "digest", "ee")), 0);
                assert_string_equal(await_active(w, item, "verify")->egress_digest, "ee");
                w->egress_holds = false;
                finish(w, "ok", "", NULL);
                UNTIL(w->event, state_of(w, item) == ITEM_IN_REVIEW && !w->m->flows);
        }
}

/* The control: what has not begun does not wait, nor does a verification for ever. */
static void test_no_answer_ends(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        for (unsigned verify = 0; verify < 2; verify++) {
                w->m->register_wait_usec = verify ? 0 : 3600 * USEC_PER_SEC;
                w->egress_holds = !verify;
                submit_fix(w, item);
                if (verify) {
                        (void) await_active(w, item, "work");
                        finish(w, "ok", "", "the guest's bundle");
                        (void) await_active(w, item, "import");
                        w->egress_holds = true;
                        import(w, true, RESULT, true);
                }
                time_is_up(w, item);
                UNTIL(w->event, w->m->flows->state == FLOW_RELEASING);
                assert_int_equal(ipc_call_reply(w->held[w->n_held - 1], NULL), 0);
                UNTIL(w->event, state_of(w, item) == ITEM_QUEUED && !w->m->flows);
                assert_int_equal(n_waits(w, item), 0);
                assert_true(reason_is(w, item, "next attempt"));
                OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
                assert_true(answer_has(w, verify ? "verify: egressd or secretd did not answer the registration" : "\"reason\":\"egressd or secretd did not answer the registration"));
                OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
                UNTIL(w->event, state_of(w, item) == ITEM_CANCELLED && !w->m->flows);
        }
}

/* A verification that had not started when anchord went, however often that was, is begun anew; the work is not. */
static void test_verification_never_ran(void **state) {
        World *w = *state;

        for (unsigned n_lives = 1; n_lives < 4; n_lives++) {
                _cleanup_item_ LedgerItem now = {};
                char item[ID_LENGTH + 1];
                Flow *f;

                submit_fix(w, item);
                (void) await_active(w, item, "work");
                finish(w, "ok", "", "the guest's bundle");
                (void) await_active(w, item, "import");
                w->systemd.silent = true;
                import(w, true, RESULT, true);
                UNTIL(w->event, (f = flow_find_item(w->m, item)) && f->stage == STAGE_VERIFY && f->state == FLOW_STARTING);
                for (unsigned i = 0; i < n_lives; i++)
                        next_life(w);
                w->systemd.silent = false;
                assert_old_verification(w, item);
                finish(w, "ok", "", NULL);
                UNTIL(w->event, state_of(w, item) == ITEM_IN_REVIEW && !w->m->flows);
                assert_int_equal(ledger_get(w->m->ledger, item, &now), 0);
                assert_int_equal(now.leases, 1);
                assert_int_equal(now.attempt, 1);
        }
}

/* An operator need not wait with it. */
static void test_waiting_is_stopped(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        w->m->register_again_usec = 1000;
        bring_to_verification(w, item, "BadInput");
        UNTIL(w->event, w->n_refused >= 2);
        OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
        assert_ok(w);
        UNTIL(w->event, state_of(w, item) == ITEM_CANCELLED && !w->m->flows);
        w->egress_refuses = NULL;
}

/* It does not wait for ever, nor for what will not change; and what has not begun does not wait at all. */
static void test_does_not_wait(void **state) {
        World *w = *state;

        for (unsigned i = 0; i < 3; i++) {
                char item[ID_LENGTH + 1];

                w->m->register_wait_usec = i == 0 ? 0 : 3600 * USEC_PER_SEC;
                if (i < 2)
                        bring_to_verification(w, item, i == 0 ? "BadInput" : "Denied");
                else {
                        w->egress_refuses = "workflow code-fix: it cannot be read";
                        w->egress_error = "BadInput";
                        submit_fix(w, item);
                }
                UNTIL(w->event, state_of(w, item) == ITEM_QUEUED && !w->m->flows);
                OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
                assert_true(answer_has(w, i < 2 ? "verify: registration refused: workflow code-fix" : "\"reason\":\"registration refused: workflow code-fix"));
                assert_int_equal(n_waits(w, item), 0);
                w->egress_refuses = w->egress_error = NULL;
                OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
                UNTIL(w->event, state_of(w, item) == ITEM_CANCELLED && !w->m->flows);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_run_goes_on, set_up, tear_down_mended),
                cmocka_unit_test_setup_teardown(test_verified_as_it_began, set_up, tear_down_mended),
                cmocka_unit_test_setup_teardown(test_queued_and_later, set_up, tear_down_mended),
                cmocka_unit_test_setup_teardown(test_verification_waits, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_verification_never_ran, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_waiting_is_told, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_answer, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_answer_ends, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_waits_with_one_word, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_waiting_is_stopped, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_does_not_wait, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
