/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchord towards the units of a run: what is refused, what is bounded, and what of it the audit log gets. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "manager-world.h"

static void test_run_input(void **state) {
        _cleanup_free_ char *big = malloc(48 * 1024 * 4 + 2);
        World *w = *state;
        char item[ID_LENGTH + 1];

        memset(big, 'x', 48 * 1024 * 4 + 1);
        big[48 * 1024 * 4 + 1] = 0;
        submit_exec(w, item);
        (void) await_active(w, item, "work");
        RUN(w, "Output", json_pack("{s:s, s:s, s:s}", "stream", "stdin", "step", "exec", "data", "x"));
        assert_refused(w, "BadInput");
        RUN(w, "Output", json_pack("{s:s, s:s}", "stream", "stdout", "data", "x"));
        assert_refused(w, "BadInput");
        RUN(w, "Output", json_pack("{s:s, s:s, s:s}", "stream", "stdout", "step", "exec", "data", big));
        assert_refused(w, "BadInput");
        big[48 * 1024 * 4] = 0;
        RUN(w, "Output", json_pack("{s:s, s:s, s:s}", "stream", "stdout", "step", "exec", "data", big));
        assert_ok(w);
        RUN(w, "Event", json_pack("{s:s, s:{}}", "kind", "../x", "data"));
        assert_refused(w, "BadInput");
        RUN(w, "Event", json_pack("{s:s, s:i}", "kind", "booted", "data", 1));
        assert_refused(w, "BadInput");
        RUN(w, "Event", json_pack("{s:s, s:{s:s}}", "kind", "guest-error", "data", "text", "\x1b]0;owned\a"));
        assert_ok(w);
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "x1b]0;owned"));
        finish(w, "triumph", "", NULL);
        assert_refused(w, "BadInput");
        RUN(w, "Imported", json_pack("{s:b, s:s}", "ok", 1, "commit", RESULT)); /* from a run's unit: it has no import under way */
        assert_ok(w);
        assert_int_equal(state_of(w, item), ITEM_RUNNING);

        /* of no run that is known, or of another's */
        strcpy(w->as_run, "r00000000none");
        finish(w, "ok", "", NULL);
        assert_refused(w, "NoSuchRun");
        RUN(w, "GetSpec", NULL);
        assert_refused(w, "NoSuchRun");
        assert_int_equal(state_of(w, item), ITEM_RUNNING);
}

static void test_output_limit(void **state) {
        _cleanup_free_ char *much = malloc(150 * 1024 + 1);
        World *w = *state;
        char item[ID_LENGTH + 1];
        uint64_t size;
        Tree root = {};

        tree_put(&root, "usr/lib/anchorhold/policy/workflows/small.json",
                 "{\"template\": \"base\", \"repository\": false, \"limits\": {\"memory\": \"512M\", \"vcpus\": 1, \"disk\": \"1G\", \"run\": \"1h\","
                 " \"attempts\": 1, \"output\": \"1M\"}, \"steps\": [{\"name\": \"exec\", \"kind\": \"exec\", \"timeout\": \"1h\"}]}");
        memset(much, 'x', 150 * 1024);
        much[150 * 1024] = 0;
        OPERATOR(w, "Submit", json_pack("{s:s, s:[s]}", "workflow", "small", "command", "/bin/true"));
        assert_ok(w);
        (void) snprintf(item, sizeof(item), "%s", json_string_value(json_object_get(w->answer, "item")));
        (void) await_active(w, item, "work");
        for (unsigned i = 0; i < 10; i++) {
                RUN(w, "Output", json_pack("{s:s, s:s, s:s}", "stream", "stdout", "step", "exec", "data", much));
                assert_ok(w); /* the guest is never held up */
        }
        size = event_log_output_size(manager_log(w->m, item), w->as_run);
        assert_true(size >= 1024 * 1024 && size < 1024 * 1024 + 160 * 1024);
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "output.limit"));
        assert_int_equal(unlink("/usr/lib/anchorhold/policy/workflows/small.json"), 0);
}

static void test_usage(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        for (unsigned i = 0; i < 2; i++) { /* a repeated report counts once */
                RUN(w, "AddUsage", json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i}", "call", "c1", "provider", "p", "model", "m\x1b", "input_tokens", 11,
                                             "output_tokens", 22, "cost_microusd", 333, "status", 200));
                assert_ok(w);
        }
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_int_equal(json_integer_value(json_object_get(json_object_get(w->answer, "item"), "cost_microusd")), 333);
        RUN(w, "AddUsage", json_pack("{s:s, s:s, s:s}", "call", "", "provider", "p", "model", "m"));
        assert_refused(w, "BadInput");
        RUN(w, "AddUsage", json_pack("{s:s, s:s, s:s}", "call", "0123456789012345678901234567890123456789012345678901234567890123x", "provider", "p", "model", "m"));
        assert_refused(w, "BadInput");
        RUN(w, "AddUsage", json_pack("{s:s, s:s, s:s}", "call", "0123456789012345678901234567890123456789012345678901234567890123", "provider", "p", "model", "m"));
        assert_ok(w);
        RUN(w, "AddUsage", json_pack("{s:s, s:s, s:s, s:i}", "call", "c2", "provider", "p", "model", "m", "cost_microusd", -5));
        assert_refused(w, "BadInput");
        RUN(w, "AddUsage", json_pack("{s:s, s:s, s:s, s:I}", "call", "c2", "provider", "p", "model", "m", "input_tokens", (json_int_t) 100 * 1000 * 1000 + 1));
        assert_refused(w, "BadInput");
        RUN(w, "AddUsage", json_pack("{s:s, s:s, s:s, s:I}", "call", "c2", "provider", "p", "model", "m", "cost_microusd", (json_int_t) 1000 * 1000 * 1000 + 1));
        assert_refused(w, "BadInput");
}

/* Rows of the ledger that one run can make are bounded. */
static void test_usage_limit(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];
        sqlite3 *db = NULL;

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        RUN(w, "AddUsage", json_pack("{s:s, s:s, s:s, s:i}", "call", "c1", "provider", "p", "model", "m", "cost_microusd", 5));
        assert_int_equal(sqlite3_open(LEDGER_PATH, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, "UPDATE spent SET requests = 200000 WHERE scope = 'run'", NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_changes(db), 1);
        assert_int_equal(sqlite3_close(db), SQLITE_OK);

        RUN(w, "AddUsage", json_pack("{s:s, s:s, s:s, s:i}", "call", "c2", "provider", "p", "model", "m", "cost_microusd", 5));
        assert_ok(w);
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_int_equal(json_integer_value(json_object_get(json_object_get(w->answer, "item"), "cost_microusd")), 5);
        assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(json_object_get(w->answer, "item"), "notes"), 0), "kind")), "usage.limit");
}

/* PID 1 asks for a VM's specification; only the VM of a run under way has one. */
static void test_vm_credential(void **state) {
        World *w = *state;
        Peer peer = { .roles = PEER_VM };
        char item[ID_LENGTH + 1];
        char *blob = NULL;
        size_t size;

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        strcpy(peer.run, w->as_run);
        assert_int_equal(run_api_credential(&peer, "vm", &blob, &size, w->m), 0);
        assert_int_equal(size, strlen(blob));
        assert_non_null(strstr(blob, "\"accel\":\"kvm\""));
        free(blob);
        assert_int_equal(run_api_credential(&peer, "guest", &blob, &size, w->m), -EACCES);
        peer.roles = PEER_RUN;
        assert_int_equal(run_api_credential(&peer, "vm", &blob, &size, w->m), -EACCES);
        peer.roles = PEER_VM;
        strcpy(peer.run, "r00000000none");
        assert_int_equal(run_api_credential(&peer, "vm", &blob, &size, w->m), -EACCES);
        strcpy(peer.run, w->as_run);
        finish(w, "ok", "", NULL);
        assert_int_equal(run_api_credential(&peer, "vm", &blob, &size, w->m), -EACCES); /* it is being cleaned up */
        run_api_credential_denied(NULL, "a\nb", "no", w->m);
}

/* Nothing that a run says is more than auditd takes in a record: one such event would hold up every lease of the host. */
static void test_more_than_a_record(void **state) {
        _cleanup_free_ char *big = malloc(4 * 1024 + 1);
        json_t *facts, *steps = json_array();
        World *w = *state;
        char item[ID_LENGTH + 1], next[ID_LENGTH + 1];

        memset(big, 'x', 4 * 1024);
        big[4 * 1024] = 0;
        for (unsigned i = 0; i < 20; i++)
                assert_int_equal(json_array_append_new(steps, json_string(big)), 0);
        submit_exec(w, item);
        (void) await_active(w, item, "work");
        facts = json_pack("{s:i, s:o}", "boots", 1, "steps", json_incref(steps));
        RUN(w, "Event", json_pack("{s:s, s:{s:s, s:O}}", "kind", "boot-retry", "data", "reason", "it hung", "more", steps));
        assert_ok(w);
        RUN(w, "Finish", json_pack("{s:s, s:s, s:o}", "outcome", "ok", "reason", "", "facts", facts));
        assert_ok(w);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED && outbox_is_empty(w->m));
        assert_false(w->audit_found_large);
        assert_int_equal(audited(w, "run.boot_retry"), 1);
        assert_int_equal(audited(w, "run.finished"), 1);
        assert_int_equal(json_integer_value(json_object_get(json_object_get(w->finished, "facts"), "bytes")), 20 * (4 * 1024 + 3) + 21);
        assert_int_equal(json_string_length(json_object_get(json_object_get(w->finished, "facts"), "sha256")), 64);
        assert_string_equal(json_string_value(json_object_get(w->finished, "outcome")), "ok");
        assert_non_null(json_object_get(w->finished, "key"));

        /* the ledger has all of it */
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, big));

        submit_exec(w, next);
        (void) await_active(w, next, "work");
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, next) == ITEM_CLOSED && outbox_is_empty(w->m));
        assert_true(json_is_integer(json_object_get(json_object_get(w->finished, "facts"), "boots"))); /* what fits is there as it is */
        json_decref(steps);
}

/* Deeper than what shows it could carry. */
static void test_deep_facts(void **state) {
        json_t *deep = json_object();
        World *w = *state;
        char item[ID_LENGTH + 1];

        for (unsigned i = 0; i < 100; i++)
                deep = json_pack("{s:o}", "a", deep);
        submit_exec(w, item);
        (void) await_active(w, item, "work");
        RUN(w, "Event", json_pack("{s:s, s:O}", "kind", "booted", "data", deep));
        assert_refused(w, "BadInput");
        RUN(w, "Finish", json_pack("{s:s, s:s, s:o}", "outcome", "ok", "reason", "", "facts", deep));
        assert_ok(w);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED && outbox_is_empty(w->m));
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_ok(w);
}

static unsigned n_lines(const char *item) {
        _cleanup_free_ char *path = text_format("/var/lib/anchorhold/items/%s/" STORE_EVENTS, item), *text = NULL;
        unsigned n = 0;
        size_t size;

        assert_int_equal(io_read_file(AT_FDCWD, path, 64 * 1024 * 1024, &text, &size), 0);
        for (const char *p = text; (p = strchr(p, '\n')); p++)
                n++;
        return n;
}

static void test_event_limit(void **state) {
        _cleanup_free_ char *big = malloc(200 * 1024 + 1);
        World *w = *state;
        char item[ID_LENGTH + 1];
        unsigned n;

        memset(big, 'x', 200 * 1024);
        big[200 * 1024] = 0;
        submit_exec(w, item);
        (void) await_active(w, item, "work");
        for (unsigned i = 0; i < 40; i++) {
                RUN(w, "Event", json_pack("{s:s, s:{s:s}}", "kind", "booted", "data", "text", big));
                assert_ok(w);
        }
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_false(answer_has(w, "event.limit"));
        for (unsigned i = 0; i < 3; i++) {
                RUN(w, "Event", json_pack("{s:s, s:{s:s}}", "kind", "booted", "data", "text", big));
                assert_ok(w); /* whoever tells is not held up */
        }
        n = n_lines(item);
        RUN(w, "Event", json_pack("{s:s, s:{s:s}}", "kind", "guest-error", "data", "text", "x"));
        assert_ok(w);
        assert_int_equal(n_lines(item), n);
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "event.limit"));
        assert_false(answer_has(w, "guest-error"));
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_run_input, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_output_limit, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_usage, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_usage_limit, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_vm_credential, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_more_than_a_record, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_deep_facts, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_event_limit, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
