/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A grant that is revoked is not used, in whichever order its holder hears of the two, and whether or not it was listening. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "egress/held-grants-api.h"
#include "util/json.h"

static HeldGrants *held;
static unsigned n_revoked;
static uint64_t revoked[16];

/* As a holder does: it cuts the connection, which is over then. */
static void on_revoked(uint64_t grant, void *userdata) {
        assert_ptr_equal(userdata, &held);
        assert_true(n_revoked < 16);
        revoked[n_revoked++] = grant;
        held_grants_over(held, grant);
}

static int set_up(void **state) {
        n_revoked = 0;
        return held_grants_new(&held, on_revoked, &held);
}

static int tear_down(void **state) {
        held = held_grants_free(held);
        return 0;
}

static void hear(json_t *message) {
        _cleanup_json_ json_t *m = message;

        assert_non_null(m);
        held_grants_read(held, m);
}

static void get(uint64_t grant) {
        held_grants_ask(held);
        assert_true(held_grants_answer(held, grant));
}

static void test_revoked(void **state) {
        get(1);
        get(2);
        get(3);
        hear(json_pack("{s:i}", "heartbeat", 1));
        assert_int_equal(n_revoked, 0);
        hear(json_pack("{s:[iii]}", "revoked", 1, 3, 9));
        assert_int_equal(n_revoked, 2);
        assert_int_equal(revoked[0] + revoked[1], 4);
        hear(json_pack("{s:[iii]}", "revoked", 1, 2, 3)); /* one is over already */
        assert_int_equal(n_revoked, 3);
        assert_int_equal(revoked[2], 2);
        get(4);
}

/* The message overtakes the answer. */
static void test_revoked_before_the_answer(void **state) {
        held_grants_ask(held);
        held_grants_ask(held);
        held_grants_ask(held);
        hear(json_pack("{s:[i]}", "revoked", 5));
        hear(json_pack("{s:i}", "heartbeat", 1));
        assert_true(held_grants_answer(held, 4)); /* the control: another one */
        assert_false(held_grants_answer(held, 5));
        assert_true(held_grants_answer(held, 0)); /* a denial */
        assert_int_equal(n_revoked, 0);

        /* more than anybody has: then no answer to what was asked before is believed, and what is asked afterwards is */
        held_grants_ask(held);
        for (int i = 0; i < 9000; i++)
                hear(json_pack("{s:[i]}", "revoked", 100 + i));
        assert_false(held_grants_answer(held, 99));
        get(98);
}

static void test_listed(void **state) {
        for (uint64_t i = 1; i <= 6; i++)
                get(i);
        held_grants_ask(held);
        held_grants_ask(held);
        held_grants_ask(held);
        hear(json_pack("{s:[iii], s:i}", "grants", 2, 5, 8, "latest", 8));
        assert_int_equal(n_revoked, 4); /* 1, 3, 4, 6 */
        assert_int_equal(revoked[0] + revoked[1] + revoked[2] + revoked[3], 14);
        assert_false(held_grants_answer(held, 7)); /* given and revoked before that list */
        assert_true(held_grants_answer(held, 8));
        assert_true(held_grants_answer(held, 9)); /* given afterwards */
        get(3);                                   /* nobody remembers, since no question was open */

        /* what was given after the list was made is not in it */
        get(12);
        hear(json_pack("{s:[], s:i}", "grants", "latest", 11));
        assert_int_equal(n_revoked, 4 + 5); /* 2, 3, 5, 8, 9 */
        hear(json_pack("{s:[], s:i}", "grants", "latest", 12));
        assert_int_equal(n_revoked, 4 + 6);
        hear(json_pack("{s:[], s:i}", "grants", "latest", 12));
        assert_int_equal(n_revoked, 4 + 6);
}

/* Listed, and revoked before its answer comes. */
static void test_listed_and_then_revoked(void **state) {
        held_grants_ask(held);
        hear(json_pack("{s:[i], s:i}", "grants", 1, "latest", 1));
        hear(json_pack("{s:[i]}", "revoked", 1));
        assert_false(held_grants_answer(held, 1));
        held_grants_ask(held);
        hear(json_pack("{s:[i], s:i}", "grants", 2, "latest", 2));
        assert_true(held_grants_answer(held, 2));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_revoked, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_revoked_before_the_answer, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_listed, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_listed_and_then_revoked, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
