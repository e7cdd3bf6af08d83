/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The whole of egressd: a run that has caused too many records loses egress, and so does an owner of grants that cannot be told anything. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "egressd-world.h"

static EgressRun *run_of(World *w, const char *run) {
        EgressRun *r = egress_state_find(w->e->state, run);

        assert_non_null(r);
        return r;
}

static json_int_t connect_to(World *w, const char *name) {
        call(w, "Connect", json_pack("{s:s, s:i, s:s, s:s}", "name", name, "port", 443, "protocol", "tls", "sni", name));
        assert_null(w->error);
        return json_integer_value(json_object_get(w->answer, "grant"));
}

static void look_up(World *w, const char *name) {
        call(w, "Resolve", json_pack("{s:s, s:s}", "name", name, "qtype", "A"));
        assert_null(w->error);
}

/* The clock of what egressd does every two seconds is the test's: one now, and until it is through. */
static void beat(World *w) {
        uint64_t before = w->e->n_beats;

        assert_true(sd_event_source_set_time_relative(w->e->beat, 0) >= 0);
        UNTIL(w->event, w->e->n_beats > before);
}

/* ---- records ---- */

/* The last record that a run may cause is written, and nothing that it asks for afterwards is allowed. Others go on. */
static void test_over_budget(void **state) {
        World *w = *state;

        register_run(w, RUN);
        run_of(w, RUN)->n_records = EGRESSD_RECORDS_MAX - 2;
        look_up(w, "good.example.org");
        assert_string_equal(get(w, "verdict"), "allow");
        assert_true(connect_to(w, "good.example.org") > 0);
        assert_int_equal(run_of(w, RUN)->n_records, EGRESSD_RECORDS_MAX);

        look_up(w, "good.example.org"); /* though it has that name already */
        assert_string_equal(get(w, "verdict"), "refused");
        assert_string_equal(get(w, "reason"), "record-budget");
        look_up(w, "fine.example.org");
        assert_string_equal(get(w, "reason"), "record-budget");
        assert_int_equal(connect_to(w, "good.example.org"), 0);
        assert_denied(w, "record-budget");
        call(w, "Look", json_pack("{s:s, s:i}", "name", "good.example.org", "port", 443));
        assert_denied(w, "record-budget");
        UNTIL(w->event, strstr(w->auditd.records, "record-budget")); /* one record says so */

        w->as_run = OTHER;
        register_run(w, OTHER);
        look_up(w, "good.example.org");
        assert_string_equal(get(w, "verdict"), "allow");
        assert_true(connect_to(w, "good.example.org") > 0);
}

typedef struct Watched {
        size_t n;
        json_int_t revoked[8];
} Watched;

static void on_watched(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        const json_t *revoked = json_object_get(params, "revoked");
        Watched *v = userdata;

        for (size_t i = 0; i < json_array_size(revoked) && v->n < ELEMENTSOF(v->revoked); i++)
                v->revoked[v->n++] = json_integer_value(json_array_get(revoked, i));
}

static void watch(World *w, Watched *v) {
        Watcher *before = w->e->watchers;

        assert_int_equal(ipc_client_call_async(w->watcher, "io.anchorhold.Egress.Watch", NULL, NULL, 0, true, 0, on_watched, v), 0);
        UNTIL(w->event, w->e->watchers != before);
}

/* What it has is taken from it as well: the kernel shuts it, its owner is told, and says what went over it. */
static void test_over_budget_loses_connections(void **state) {
        json_int_t first, second;
        Watched v = {};
        World *w = *state;

        register_run(w, RUN);
        watch(w, &v);
        first = connect_to(w, "good.example.org");
        second = connect_to(w, "good.example.org");
        w->as_run = OTHER;
        register_run(w, OTHER);
        assert_true(connect_to(w, "fine.example.org") > 0);
        w->as_run = RUN;

        run_of(w, RUN)->n_records = EGRESSD_RECORDS_MAX - 1; /* the control */
        beat(w);
        assert_int_equal(n_live(), 2);
        run_of(w, RUN)->n_records = EGRESSD_RECORDS_MAX;
        beat(w);
        assert_int_equal(n_live(), 1);
        assert_null(run_of(w, RUN)->grants);
        UNTIL(w->event, v.n == 2);
        assert_int_equal(v.revoked[0] + v.revoked[1], first + second);
        for (json_int_t grant = first; grant <= second; grant++)
                call(w, "Done", json_pack("{s:I, s:i, s:i, s:i}", "grant", grant, "bytes_in", 100, "bytes_out", 20, "duration_us", 3));
        UNTIL(w->event, strstr(w->auditd.records, "\"reason\":\"over-budget\""));
        assert_non_null(strstr(w->auditd.records, "\"bytes_in\":200,\"bytes_out\":40,\"count\":2,"));
        w->as_run = OTHER;
        assert_non_null(run_of(w, OTHER)->grants);
        beat(w);
        assert_non_null(run_of(w, OTHER)->grants);
}

/* The count outlives egressd, orderly (to the last one) and otherwise (as of the last beat). */
static void test_count_over_a_restart(void **state) {
        World *w = *state;

        register_run(w, RUN);
        run_of(w, RUN)->n_records = EGRESSD_RECORDS_MAX - 1;
        beat(w);
        w->e = egressd_free(w->e);
        begin_life(w);
        assert_int_equal(run_of(w, RUN)->n_records, EGRESSD_RECORDS_MAX - 1);
        assert_true(connect_to(w, "good.example.org") > 0); /* the control */
        assert_int_equal(connect_to(w, "good.example.org"), 0);
        assert_denied(w, "record-budget");

        beat(w);
        w->e = egressd_free(w->e);
        begin_life(w);
        assert_true(egressd_over_budget(run_of(w, RUN)));
        assert_int_equal(connect_to(w, "good.example.org"), 0);
        assert_denied(w, "record-budget");

        /* in order: no beat is needed */
        w->as_run = OTHER;
        register_run(w, OTHER);
        run_of(w, OTHER)->n_records = EGRESSD_RECORDS_MAX;
        assert_true(egressd_stop(w->e) >= 0);
        assert_int_equal(run_of(w, OTHER)->n_records_saved, EGRESSD_RECORDS_MAX);
}

/* ---- owners ---- */

/* Sets back since when nobody has watched from there, as if so much more time had passed. */
static void wait_for_watcher(World *w, uint64_t usec) {
        EgressGrant *g = run_of(w, RUN)->grants;

        beat(w);
        assert_non_null(g);
        if (g->unwatched_usec > 0)
                g->unwatched_usec -= usec;
        beat(w);
}

/* A grant whose owner has had no watcher for ten seconds ends, since nobody could tell it. */
static void test_unwatched(void **state) {
        Watched v = {};
        World *w = *state;

        register_run(w, RUN);
        w->as_run = OTHER;
        register_run(w, OTHER);
        watch(w, &v);                                       /* somebody else's is none */
        w->as_run = RUN;
        assert_true(connect_to(w, "good.example.org") > 0);
        wait_for_watcher(w, EGRESSD_UNWATCHED_USEC - 1000000);
        assert_int_equal(n_live(), 1);
        assert_null(strstr(w->auditd.records, "unwatched"));
        wait_for_watcher(w, 1000000);
        assert_int_equal(n_live(), 0);
        UNTIL(w->event, strstr(w->auditd.records, "\"reason\":\"unwatched\""));
        assert_int_equal(v.n, 0);
}

/* One that watches keeps it; and one that begins again in time has ten seconds anew. */
static void test_watched(void **state) {
        Watched v = {};
        World *w = *state;

        register_run(w, RUN);
        watch(w, &v);
        assert_true(connect_to(w, "good.example.org") > 0);
        wait_for_watcher(w, EGRESSD_UNWATCHED_USEC);
        assert_int_equal(run_of(w, RUN)->grants->unwatched_usec, 0);
        assert_int_equal(n_live(), 1);

        w->watcher = ipc_client_free(w->watcher);
        assert_int_equal(ipc_client_new(&w->watcher, w->event, API), 0);
        UNTIL(w->event, (beat(w), run_of(w, RUN)->grants->unwatched_usec > 0));
        wait_for_watcher(w, EGRESSD_UNWATCHED_USEC - 1000000);
        watch(w, &v);
        beat(w);
        assert_int_equal(run_of(w, RUN)->grants->unwatched_usec, 0);
        wait_for_watcher(w, EGRESSD_UNWATCHED_USEC);
        assert_int_equal(n_live(), 1);
        assert_null(strstr(w->auditd.records, "unwatched"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_over_budget, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_over_budget_loses_connections, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_count_over_a_restart, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_unwatched, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_watched, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
