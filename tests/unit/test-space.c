/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchord and the disk: the reserve below which nothing is leased, and what is pruned of items that have ended. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "manager-world.h"

static const char vendor[] = "{}", impossible[] = "{\"reserve\": {\"size\": \"1000T\"}}";

/* What host.json says of space from here on. anchord reads it for the next submission, and every two seconds while something waits for space. */
static void set_space(const char *space) {
        _cleanup_free_ char *text = text_format("{\"space\": %s}", space);

        assert_int_equal(io_write_file_atomic(AT_FDCWD, "/usr/lib/anchorhold/host.json", text, strlen(text), 0644), 0);
}

static int set_up_space(void **state) {
        set_space(vendor);
        return set_up(state);
}

static bool is_there(const char *item, const char *name) {
        _cleanup_free_ char *path = text_format("/var/lib/anchorhold/items/%s%s%s", item, name ? "/" : "", name ?: "");

        return access(path, F_OK) == 0;
}

static bool says_why(World *w, const char *item, const char *text) {
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        return strstr(json_string_value(json_object_get(json_object_get(w->answer, "item"), "space")) ?: "", text);
}

/* ---- the reserve ---- */

static void test_reserve(void **state) {
        _cleanup_fd_ int seed = file_of(SEED);
        World *w = *state;
        char first[ID_LENGTH + 1], second[ID_LENGTH + 1], fix[ID_LENGTH + 1];

        set_space(impossible);
        submit_exec(w, first);
        UNTIL(w->event, audited(w, "space.low") == 1);
        submit_exec(w, second);
        run_for(w->event, 50000);
        assert_int_equal(state_of(w, first), ITEM_QUEUED);
        assert_int_equal(w->m->n_flows, 0);
        assert_true(says_why(w, first, "MiB are free in /var/lib/anchorhold/"));
        assert_true(says_why(w, second, "kept in reserve"));
        OPERATOR(w, "Status", NULL);
        assert_true(json_is_true(json_object_get(json_object_get(w->answer, "space"), "low")));
        assert_true(answer_has(w, "1048576000 are kept in reserve")); /* 1000T in MiB */

        /* a seed would take of the reserve as well */
        call_with(w, w->operator, "io.anchorhold.Manager.Submit", json_pack("{s:s, s:s, s:s}", "workflow", "code-fix", "task", "t", "base", BASE), &seed, 1, false);
        assert_refused(w, "Unavailable");
        assert_true(answer_has(w, "no room for the seed"));

        /* said once, whoever restarts */
        end_life(w);
        begin_life(w);
        run_for(w->event, 50000);
        assert_int_equal(audited(w, "space.low"), 1);
        assert_int_equal(audited(w, "space.back"), 0);

        /* enough again: found without being told */
        set_space(vendor);
        (void) await_active(w, first, "work");
        (void) await_active(w, second, "work");
        UNTIL(w->event, audited(w, "space.back") == 1);
        OPERATOR(w, "Show", json_pack("{s:s}", "item", first));
        assert_null(json_object_get(json_object_get(w->answer, "item"), "space"));
        submit_fix(w, fix);
        OPERATOR(w, "StopAll", NULL);
        assert_int_equal(audited(w, "space.low"), 1);
}

/* The disks of microVMs together; "exec" has one of 4 GiB. */
static void test_scratch(void **state) {
        World *w = *state;
        char first[ID_LENGTH + 1], second[ID_LENGTH + 1];

        set_space("{\"scratch\": {\"size\": \"5G\"}}");
        submit_exec(w, first);
        submit_exec(w, second);
        (void) await_active(w, first, "work");
        run_for(w->event, 50000);
        assert_int_equal(w->m->n_flows, 1);
        assert_true(says_why(w, second, "may take 5120 MiB, those that run have 4096"));
        OPERATOR(w, "Status", NULL);
        assert_false(json_is_true(json_object_get(json_object_get(w->answer, "space"), "low")));

        finish(w, "ok", "", NULL);
        (void) await_active(w, second, "work");
        assert_int_equal(state_of(w, first), ITEM_CLOSED);

        set_space("{\"scratch\": {\"size\": \"9G\"}}");
        submit_exec(w, first); /* the control: now there is room for two */
        (void) await_active(w, first, "work");
        assert_int_equal(w->m->n_flows, 2);
        OPERATOR(w, "StopAll", NULL);
}

/* What runs has the disk that it began with, whatever its workflow says by now. */
static void test_scratch_of_edited(void **state) {
        static const char smaller[] = "{\"template\": \"base\", \"repository\": false, \"limits\": {\"disk\": \"3G\", \"attempts\": 1},"
                                      " \"steps\": [{\"name\": \"exec\", \"kind\": \"exec\", \"timeout\": \"1h\"}]}";
        World *w = *state;
        char first[ID_LENGTH + 1], second[ID_LENGTH + 1];
        Tree image = {};

        set_space("{\"scratch\": {\"size\": \"6G\"}}");
        submit_exec(w, first);
        (void) await_active(w, first, "work");
        tree_put(&image, "usr/lib/anchorhold/policy/workflows/exec.json", smaller);
        submit_exec(w, second);
        run_for(w->event, 50000);
        assert_int_equal(w->m->n_flows, 1);
        assert_true(says_why(w, second, "may take 6144 MiB, those that run have 4096"));
        finish(w, "ok", "", NULL);
        (void) await_active(w, second, "work");
        tree_copy(&image, "policy/workflows/exec.json", "usr/lib/anchorhold/policy/workflows/exec.json");
        OPERATOR(w, "StopAll", NULL);
}

/* ---- pruning ---- */

/* One item that has ended and one that has not, each with a seed and a log. */
static void two_items(World *w, char ended[static ID_LENGTH + 1], char live[static ID_LENGTH + 1]) {
        OPERATOR(w, "Hold", json_pack("{s:b}", "on", true));
        submit_fix(w, ended);
        submit_fix(w, live);
        OPERATOR(w, "Stop", json_pack("{s:s}", "item", ended));
        assert_ok(w);
        assert_int_equal(state_of(w, ended), ITEM_CANCELLED);
        assert_true(is_there(ended, STORE_SEED) && is_there(ended, STORE_EVENTS));
}

static size_t n_listed(const World *w) {
        return json_array_size(json_object_get(w->answer, "items"));
}

static void test_prune(void **state) {
        World *w = *state;
        char ended[ID_LENGTH + 1], live[ID_LENGTH + 1];

        two_items(w, ended, live);
        OPERATOR(w, "Prune", json_pack("{s:b}", "dry_run", true));
        assert_ok(w);
        assert_int_equal(n_listed(w), 0); /* neither old nor much */
        OPERATOR(w, "Prune", NULL);
        assert_int_equal(n_listed(w), 0);
        OPERATOR(w, "Prune", json_pack("{s:b, s:i}", "dry_run", true, "age_s", 3600));
        assert_int_equal(n_listed(w), 0);
        OPERATOR(w, "Prune", json_pack("{s:b, s:i}", "dry_run", true, "age_s", 0));
        assert_int_equal(n_listed(w), 2);
        assert_true(answer_has(w, "asked") && answer_has(w, ended));
        assert_true(is_there(ended, STORE_SEED) && is_there(ended, STORE_EVENTS));
        assert_int_equal(audited(w, "space.pruned"), 0);

        OPERATOR(w, "Prune", json_pack("{s:i}", "age_s", 0));
        assert_ok(w);
        assert_int_equal(n_listed(w), 2);
        assert_false(is_there(ended, NULL)); /* it is answered when it is done */
        assert_int_equal(audited(w, "space.pruned"), 1);

        /* whoever asks for it is told */
        OPERATOR(w, "Result", json_pack("{s:s, s:s}", "item", ended, "what", "bundle"));
        assert_refused(w, "Conflict");
        assert_true(answer_has(w, "were pruned on 20"));
        call_with(w, w->operator, "io.anchorhold.Manager.Logs", json_pack("{s:s}", "item", ended), NULL, 0, true);
        assert_refused(w, "Conflict");
        assert_true(answer_has(w, "the logs of"));
        assert_false(is_there(ended, NULL));
        OPERATOR(w, "Show", json_pack("{s:s}", "item", ended));
        assert_int_equal(json_array_size(json_object_get(json_object_get(w->answer, "item"), "pruned")), 2);

        /* what has not ended has all that it had */
        assert_true(is_there(live, STORE_SEED) && is_there(live, STORE_EVENTS));
        OPERATOR(w, "Result", json_pack("{s:s, s:s}", "item", live, "what", "bundle"));
        assert_refused(w, "Conflict");
        assert_true(answer_has(w, "has no checked result"));

        OPERATOR(w, "Prune", json_pack("{s:i}", "age_s", 0)); /* nothing twice */
        assert_int_equal(n_listed(w), 0);
        OPERATOR(w, "Prune", json_pack("{s:i}", "age_s", -1));
        assert_refused(w, "BadInput");
        OPERATOR(w, "Prune", json_pack("{s:s}", "age_s", "1d"));
        assert_refused(w, "BadInput");
}

/* Over a quota what ended first goes first, and no more than must; by time, without being asked. */
static void test_quota(void **state) {
        World *w = *state;
        char items[3][ID_LENGTH + 1], live[ID_LENGTH + 1];

        two_items(w, items[0], live);
        for (unsigned i = 1; i < 3; i++) {
                submit_fix(w, items[i]);
                OPERATOR(w, "Stop", json_pack("{s:s}", "item", items[i]));
        }
        /* each seed is one block of 4 KiB; that of what has not ended counts */
        set_space("{\"bundles\": {\"size\": \"8K\"}, \"logs\": {\"age\": \"1h\"}}");
        prune_soon(w->m);
        UNTIL(w->event, audited(w, "space.pruned") == 1 && !w->m->pruning);
        assert_false(is_there(items[0], STORE_SEED) || is_there(items[1], STORE_SEED));
        assert_true(is_there(items[2], STORE_SEED) && is_there(live, STORE_SEED));
        assert_true(is_there(items[0], STORE_EVENTS));

        /* a limit that what lives alone is over takes all the rest and nothing of it */
        set_space("{\"bundles\": {\"size\": \"1B\"}}");
        OPERATOR(w, "Prune", NULL);
        assert_true(answer_has(w, "quota") && answer_has(w, items[2]));
        assert_int_equal(n_listed(w), 1);
        assert_true(is_there(live, STORE_SEED));
}

/* Nothing goes before it is with auditd, and nothing is forgotten if anchord dies in between. */
static void test_not_before_the_record(void **state) {
        World *w = *state;
        char ended[ID_LENGTH + 1], live[ID_LENGTH + 1];

        two_items(w, ended, live);
        UNTIL(w->event, outbox_is_empty(w->m));
        w->audit_refuses = true;
        forget_answer(w);
        assert_int_equal(ipc_client_call_async(w->operator, "io.anchorhold.Manager.Prune", json_pack("{s:i}", "age_s", 0), NULL, 0, false, 0, on_answer, w), 0);
        UNTIL(w->event, !outbox_is_empty(w->m));
        run_for(w->event, 50000);
        assert_false(w->answered);
        assert_true(is_there(ended, STORE_SEED) && is_there(ended, STORE_EVENTS));

        end_life(w);
        begin_life(w);
        run_for(w->event, 50000);
        assert_true(is_there(ended, STORE_SEED) && is_there(ended, STORE_EVENTS));

        w->audit_refuses = false;
        UNTIL(w->event, !is_there(ended, NULL));
        assert_int_equal(audited(w, "space.pruned"), 1);
        assert_true(is_there(live, STORE_SEED));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_reserve, set_up_space, tear_down),
                cmocka_unit_test_setup_teardown(test_scratch, set_up_space, tear_down),
                cmocka_unit_test_setup_teardown(test_scratch_of_edited, set_up_space, tear_down),
                cmocka_unit_test_setup_teardown(test_prune, set_up_space, tear_down),
                cmocka_unit_test_setup_teardown(test_quota, set_up_space, tear_down),
                cmocka_unit_test_setup_teardown(test_not_before_the_record, set_up_space, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
