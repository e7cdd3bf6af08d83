/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a run may take, of time and of output, and how often it may boot. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "run-world.h"

static void exec_nothing(World *w, uint32_t stream, const char *name, json_t *request) {
}

/* TERM is enough for this one. */
static void die_of_term(World *w, uint32_t stream, int number) {
        guest_text(w, CHANNEL_EXIT, stream, "{\"signal\":15}");
}

static void test_step_timeout(void **state) {
        World *w = *state;

        w->spec = parse(HEAD(LIMITS) "\"steps\":[{\"name\":\"exec\",\"kind\":\"exec\",\"argv\":[\"/bin/sleep\"],\"timeout_s\":1}]}");
        w->exec = exec_nothing;
        w->signalled = die_of_term;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "failed", "time limit");
        assert_int_equal(finish_fact(w, "exit_status"), 124);
        assert_string_equal(w->signals, "15\n");
}

static void test_run_timeout(void **state) {
        World *w = *state;

        w->spec = parse(HEAD("\"boot_s\":5,\"run_s\":1,\"output_bytes\":100000") EXEC);
        w->exec = exec_nothing;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "failed", "time limit of 1 s");
        assert_string_equal(w->signals, "9\n");
}

static void exec_chatty(World *w, uint32_t stream, const char *name, json_t *request) {
        char text[60000];

        memset(text, 'x', sizeof(text));
        guest_say(w, CHANNEL_STDOUT, stream, text, sizeof(text));
        guest_say(w, CHANNEL_STDERR, stream, text, sizeof(text));
}

static void test_output_limit(void **state) {
        World *w = *state;

        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_chatty;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "failed", "output-limit: more than 97.7K of output");
        assert_true(finish_fact(w, "output_bytes") <= 100000);
        assert_string_equal(w->signals, "9\n");
}

/* ---- boots ---- */

static void test_second_boot(void **state) {
        World *w = *state;

        w->n_dead = 1;
        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_good;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "ok", "");
        assert_int_equal(finish_fact(w, "boots"), 2);
        assert_true(has(w->calls, "boot-retry"));
}

static void test_no_boot(void **state) {
        World *w = *state;

        w->n_dead = 5;
        w->spec = parse(HEAD(LIMITS) EXEC);
        assert_int_equal(drive(w), 0);
        assert_finish(w, "error", "did not boot");
        assert_int_equal(w->n_boots, 2); /* one retry, no more */
}

/* One that says nothing is asked for its console and told to quit. */
static void test_hanging_boot(void **state) {
        World *w = *state;

        w->n_hung = 1;
        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_good;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "ok", "");
        assert_int_equal(finish_fact(w, "boots"), 2);
        assert_int_equal(w->n_qmp, 1);
        assert_true(has(w->calls, "no hello from the guest within 1 s"));
        assert_true(has(w->calls, "\"stream\":\"console\""));
        assert_true(has(w->calls, "Kernel panic"));
        assert_null(strchr(w->calls, 0x1b));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_step_timeout, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_run_timeout, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_output_limit, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_second_boot, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_boot, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_hanging_boot, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
