/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The whole of egressd: what those hear who hold grants. What they make of it is in test-held-grants.c. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "egressd-world.h"
#include "util/sqlite.h"

typedef struct Watching {
        IpcClient *client; /* owned */
        unsigned n, n_beats, n_lost; /* messages; with a heartbeat; with what was lost, */
        unsigned n_both;             /* and both */
        bool over;
        json_t *first;     /* ref; the first message */
} Watching;

static void on_message(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        bool beats = json_is_integer(json_object_get(params, "heartbeat")), lost = json_object_get(params, "revoked") || json_object_get(params, "streams");
        Watching *g = userdata;

        if (error || !more) {
                g->over = true;
                return;
        }
        if (g->n++ == 0)
                g->first = json_incref(params);
        g->n_beats += beats;
        g->n_lost += lost;
        g->n_both += beats && lost;
}

static void watch(World *w, Watching *ret) {
        *ret = (Watching) {};
        assert_int_equal(ipc_client_new(&ret->client, w->event, API), 0);
        assert_int_equal(ipc_client_call_async(ret->client, "io.anchorhold.Egress.Watch", NULL, NULL, 0, true, 0, on_message, ret), 0);
        UNTIL(w->event, ret->n > 0);
}

static void watch_no_more(Watching *g) {
        ipc_client_free(g->client);
        json_decref(g->first);
}

static void assert_listed(const Watching *g, const char *grants, json_int_t latest) {
        _cleanup_free_ char *text = json_canonical(json_object_get(g->first, "grants"));

        assert_string_equal(text, grants);
        assert_int_equal(json_integer_value(json_object_get(g->first, "latest")), latest);
}

static json_int_t grant_to_good(World *w) {
        call(w, "Connect", json_pack("{s:s, s:i, s:s, s:s}", "name", "good.example.org", "port", 443, "protocol", "tls", "sni", "good.example.org"));
        assert_null(w->error);
        return json_integer_value(json_object_get(w->answer, "grant"));
}

/* Whoever begins to watch hears first what there is: its own, and nobody else's. What was revoked meanwhile is not in it, also after a restart. */
static void test_first_message(void **state) {
        World *w = *state;
        Watching g;

        register_run(w, RUN);
        watch(w, &g);
        assert_listed(&g, "[]", 0);
        watch_no_more(&g);
        assert_int_equal(grant_to_good(w), 1);
        w->as_run = OTHER;
        register_run(w, OTHER);
        assert_int_equal(grant_to_good(w), 2);
        w->as_run = RUN;
        watch(w, &g);
        assert_listed(&g, "[1]", 2);
        watch_no_more(&g);

        w->e = egressd_free(w->e);
        begin_life(w);
        assert_int_equal(grant_to_good(w), 3);
        call(w, "Done", json_pack("{s:I, s:i, s:i, s:i}", "grant", (json_int_t) 3, "bytes_in", 1, "bytes_out", 2, "duration_us", 3));
        watch(w, &g);
        assert_listed(&g, "[1]", 3);
        watch_no_more(&g);
        call(w, "Amend", json_pack("{s:s, s:b, s:s}", "run", RUN, "allow", 0, "rule", "good.example.org"));
        assert_int_equal(json_integer_value(json_object_get(w->answer, "cut")), 1);
        w->e = egressd_free(w->e);
        begin_life(w);
        watch(w, &g);
        assert_listed(&g, "[]", 3);
        watch_no_more(&g);
}

/* An egressd of another version knows neither the run nor how far the numbers came: whoever holds a grant is to hear that it is none. */
static void test_grant_of_another_version(void **state) {
        _cleanup_(db_closep) Db *db = NULL;
        World *w = *state;
        Watching g;

        register_run(w, RUN);
        assert_int_equal(grant_to_good(w), 1);
        w->e = egressd_free(w->e);
        assert_int_equal(db_open(&db, EGRESSD_STATE_DIR "/egress.db"), 0);
        assert_true(db_exec(db, "PRAGMA user_version = 1") >= 0);
        db = db_close(db);
        begin_life(w);
        watch(w, &g);
        assert_listed(&g, "[]", INT64_MAX);
        watch_no_more(&g);
}

/* That is no heartbeat while auditd does not answer. */
static void test_first_message_without_auditd(void **state) {
        World *w = *state;
        Watching g;

        UNTIL(w->event, w->e->n_beats > 0);
        watch(w, &g);
        assert_true(json_is_integer(json_object_get(g.first, "heartbeat")));
        watch_no_more(&g);
        egressd_note_audit(w->e, -ETIMEDOUT);
        watch(w, &g);
        assert_listed(&g, "[]", INT64_MAX);
        assert_null(json_object_get(g.first, "heartbeat"));
        watch_no_more(&g);
}

/* Nor is any message that something is lost, whether auditd answers or nobody knows yet that it does not: else such messages would keep open for longer what
 * has to end. */
static void test_lost_grants_are_no_heartbeats(void **state) {
        _cleanup_json_ json_t *numbers = json_pack("[i]", 1);
        Watching g, late;
        World *w = *state;
        EgressRun *run;

        register_run(w, RUN);
        for (unsigned i = 0; i < 4; i++)
                (void) grant_to_good(w);
        run = egress_state_find(w->e->state, RUN);
        UNTIL(w->event, w->e->n_beats > 0);
        watch(w, &g);
        assert_true(egressd_cut_streams(w->e, run->grants, numbers));
        egressd_cut(w->e, run->grants, "policy-changed");
        UNTIL(w->event, g.n_lost == 2 && g.n_beats >= 2); /* the control: true ones come */

        w->auditd.frozen = true;
        UNTIL(w->event, w->auditd.pinging);
        g.n_beats = 0;
        assert_true(w->e->audit_works);
        assert_true(egressd_cut_streams(w->e, run->grants, numbers));
        egressd_cut(w->e, run->grants, "policy-changed");
        egressd_revoke(w->e, run, 0, "over-budget");
        UNTIL(w->event, g.n_lost == 6);
        assert_int_equal(g.n_beats, 0);
        assert_int_equal(g.n_both, 0);

        /* an old one is not told to whoever comes now */
        w->e->audit_works = true;
        w->e->beat_usec = time_boottime() - EGRESSD_BEAT_FRESH_USEC - 1;
        watch(w, &late);
        assert_null(json_object_get(late.first, "heartbeat"));
        watch_no_more(&late);
        watch_no_more(&g);
}

/* One that cannot be told, since it does not read, is let go: it watches anew when it does. */
static void test_watcher_that_does_not_read(void **state) {
        _cleanup_json_ json_t *numbers = json_array();
        Watching lazy, fine;
        World *w = *state;
        EgressGrant *g;

        register_run(w, RUN);
        (void) grant_to_good(w);
        g = egress_state_find(w->e->state, RUN)->grants;
        watch(w, &lazy);
        for (unsigned i = 0; i < 10000; i++)
                assert_int_equal(json_array_append_new(numbers, json_integer(INT64_MAX)), 0);
        for (unsigned i = 0; i < 10; i++) /* the control */
                assert_true(egressd_cut_streams(w->e, g, numbers));
        for (unsigned i = 0; i < 1000 && egressd_cut_streams(w->e, g, numbers); i++)
                ;
        assert_false(egressd_cut_streams(w->e, g, numbers));
        assert_null(w->e->watchers);
        UNTIL(w->event, lazy.over);
        watch(w, &fine);
        assert_listed(&fine, "[1]", 1);
        assert_int_equal(json_array_clear(numbers), 0);
        assert_true(egressd_cut_streams(w->e, g, numbers));
        watch_no_more(&lazy);
        watch_no_more(&fine);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_first_message, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_grant_of_another_version, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_first_message_without_auditd, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_lost_grants_are_no_heartbeats, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_watcher_that_does_not_read, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
