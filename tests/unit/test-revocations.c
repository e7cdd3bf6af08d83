/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What anchord does about tokens of runs that are over: with egressd, secretd and systemd played. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "manager-world.h"

#define OVER "r00000000over"
#define SECOND "r0000000over2"

static struct {
        const char *runs[3]; /* those with tokens */
        unsigned n_asked;
        char *repository;    /* owned; of the last registration with secretd */
        char *registered;    /* owned; the last run that egressd was told of */
        unsigned refuses_release; /* so many times */
} told;

static int on_egress_release(IpcCall *call, json_t *params, void *userdata) {
        if (told.refuses_release > 0) {
                told.refuses_release--;
                return ipc_call_refuse(call, "Unavailable", "not now");
        }
        return on_release(call, params, userdata);
}

static int on_outstanding(IpcCall *call, json_t *params, void *userdata) {
        json_t *runs = json_array();

        told.n_asked++;
        for (size_t i = 0; i < ELEMENTSOF(told.runs); i++)
                if (told.runs[i])
                        json_array_append_new(runs, json_pack("{s:s, s:s, s:s}", "run", told.runs[i], "item", "i0123456789ab", "workflow", "exec"));
        return ipc_call_reply(call, json_pack("{s:o}", "runs", runs));
}

static int on_secret_register(IpcCall *call, json_t *params, void *userdata) {
        free(told.repository);
        told.repository = strdup(json_string_value(json_object_get(params, "repository")) ?: "none");
        return on_register(call, params, userdata);
}

static int on_egress_register(IpcCall *call, json_t *params, void *userdata) {
        free(told.registered);
        told.registered = strdup(json_string_value(json_object_get(params, "run")));
        return on_register(call, params, userdata);
}

static const IpcMethod told_secret[] = {
        { "io.anchorhold.Secret.Ping", PEER_ROOT, on_ping },
        { "io.anchorhold.Secret.Register", PEER_ROOT, on_secret_register },
        { "io.anchorhold.Secret.Release", PEER_ROOT, on_release },
        { "io.anchorhold.Secret.Outstanding", PEER_ROOT, on_outstanding },
        {},
};
static const IpcMethod told_egress[] = {
        { "io.anchorhold.Egress.Ping", PEER_ROOT, on_ping },
        { "io.anchorhold.Egress.Register", PEER_ROOT, on_egress_register },
        { "io.anchorhold.Egress.Release", PEER_ROOT, on_egress_release },
        {},
};

static int set_up_told(void **state) {
        World *w;

        (void) set_up_world(state);
        w = *state;
        memset(told.runs, 0, sizeof(told.runs));
        told.n_asked = told.refuses_release = 0;
        ipc_server_free(w->secret);
        ipc_server_free(w->egress);
        w->secret = serve(w, told_secret, SECRET_SOCKET);
        w->egress = serve(w, told_egress, EGRESS_SOCKET);
        begin_life(w);
        return 0;
}

static int tear_down_told(void **state) {
        free(told.repository);
        free(told.registered);
        told.repository = told.registered = NULL;
        return tear_down(state);
}

/* Until it is there to be asked again. */
static void settle(World *w, unsigned n_released) {
        UNTIL(w->event, w->n_released == n_released && !revocation_has(w->m, OVER) && !revocation_has(w->m, SECOND));
        assert_int_equal(access(REVOKING_PATH, F_OK), -1);
        assert_int_equal(w->systemd.n_units, HOST_UNITS);
}

static void begin(World *w, const char *run) {
        char unit[64];

        (void) snprintf(unit, sizeof(unit), "anchor-inject@%s.service", run);
        UNTIL(w->event, (revocations_kick(w->m), fake_unit_find(&w->systemd, unit)));
        assert_true(revocation_has(w->m, run));
        assert_string_equal(told.registered, run);
        assert_int_equal(access(REVOKING_PATH, F_OK), 0);
}

static void test_one(void **state) {
        World *w = *state;
        unsigned asked;

        told.runs[0] = OVER;
        begin(w, OVER);
        revocations_kick(w->m); /* one at a time */
        told.runs[0] = NULL;
        fake_unit_changed(&w->systemd, "anchor-inject@" OVER ".service", "inactive", "success", 1, 0);
        settle(w, 1);
        assert_int_equal(fake_told(&w->systemd, "StartUnit anchor-inject@" OVER ".service"), 1);
        assert_int_equal(fake_told(&w->systemd, "StopUnit anchorhold-runs-" OVER ".slice"), 1);
        assert_int_equal(fake_told(&w->systemd, "StopUnit anchor-net@" OVER ".service"), 1);
        assert_int_equal(fake_told(&w->systemd, "StopUnit anchor-inject@" OVER ".socket"), 1);

        asked = told.n_asked;
        revocations_kick(w->m);
        UNTIL(w->event, told.n_asked > asked);
        assert_int_equal(fake_told(&w->systemd, "StartUnit"), 1); /* there is nothing left */
}

static void test_each_has_its_turn(void **state) {
        World *w = *state;

        told.runs[0] = SECOND;
        told.runs[1] = OVER;
        begin(w, OVER); /* its API says no: it stays on the list */
        fake_unit_changed(&w->systemd, "anchor-inject@" OVER ".service", "inactive", "success", 1, 0);
        UNTIL(w->event, revocation_has(w->m, SECOND) && fake_unit_find(&w->systemd, "anchor-inject@" SECOND ".service"));
        fake_unit_changed(&w->systemd, "anchor-inject@" SECOND ".service", "failed", "exit-code", 1, 1);
        settle(w, 2);
        begin(w, OVER); /* the next round, which a sweep begins */
        told.runs[0] = told.runs[1] = NULL;
        fake_unit_changed(&w->systemd, "anchor-inject@" OVER ".service", "inactive", "success", 1, 0);
        settle(w, 3);
}

static void test_does_not_start(void **state) {
        World *w = *state;

        told.runs[0] = OVER;
        w->systemd.start_error = SYSTEMD_NAME ".NoSuchUnit";
        revocations_kick(w->m);
        settle(w, 1);
        w->systemd.start_error = NULL;
        begin(w, OVER); /* the control */
        told.runs[0] = NULL;
        fake_unit_changed(&w->systemd, "anchor-inject@" OVER ".service", "inactive", "success", 1, 0);
        settle(w, 2);
}

/* systemd says nothing of the start: it is given up, and the next one is not taken for it. */
static void test_start_takes_too_long(void **state) {
        World *w = *state;

        told.runs[0] = OVER;
        w->systemd.silent = true;
        w->m->revocation_start_usec = 300 * 1000;
        UNTIL(w->event, (revocations_kick(w->m), fake_told(&w->systemd, "StartUnit anchor-inject@" OVER ".service") == 1));
        told.runs[0] = NULL;
        UNTIL(w->event, fake_told(&w->systemd, "StopUnit anchorhold-runs-" OVER ".slice") == 1);
        w->systemd.silent = false;
        settle(w, 1);
        w->m->revocation_start_usec = 30000000;
        told.runs[0] = SECOND;
        begin(w, SECOND);
        told.runs[0] = NULL;
        fake_unit_changed(&w->systemd, "anchor-inject@" SECOND ".service", "inactive", "success", 1, 0);
        settle(w, 2);
}

/* Until egressd has forgotten a run its name stays written down, and no other takes its place. */
static void test_not_released(void **state) {
        char text[64] = "";
        World *w = *state;
        FILE *f;

        told.runs[0] = OVER;
        told.runs[1] = SECOND;
        told.refuses_release = 1;
        begin(w, OVER);
        fake_unit_changed(&w->systemd, "anchor-inject@" OVER ".service", "inactive", "success", 1, 0);
        UNTIL(w->event, told.refuses_release == 0);
        revocations_kick(w->m);
        run_for(w->event, 100000);
        assert_true(revocation_has(w->m, OVER));
        f = fopen(REVOKING_PATH, "re");
        assert_non_null(f);
        assert_non_null(fgets(text, sizeof(text), f));
        (void) fclose(f);
        assert_string_equal(text, OVER);
        assert_int_equal(w->n_released, 0);
        UNTIL(w->event, w->n_released == 1 && revocation_has(w->m, SECOND) && fake_unit_find(&w->systemd, "anchor-inject@" SECOND ".service"));
        told.runs[0] = told.runs[1] = NULL;
        fake_unit_changed(&w->systemd, "anchor-inject@" SECOND ".service", "inactive", "success", 1, 0);
        settle(w, 2);
}

static void test_policy_is_gone(void **state) {
        World *w = *state;

        told.runs[0] = OVER;
        w->egress_refuses = "no such workflow";
        revocations_kick(w->m);
        settle(w, 1);
        assert_int_equal(fake_told(&w->systemd, "StartUnit"), 0);
        w->egress_refuses = NULL;
}

/* A run whose item is worked on is left alone: its id is that of the import as well. */
static void test_run_in_use(void **state) {
        char item[ID_LENGTH + 1];
        World *w = *state;
        unsigned asked;

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        told.runs[0] = w->as_run;
        asked = told.n_asked;
        revocations_kick(w->m);
        UNTIL(w->event, told.n_asked > asked);
        assert_false(revocation_has(w->m, w->as_run));
        told.runs[0] = NULL;
        finish(w, "ok", "", NULL);
        UNTIL(w->event, !w->m->flows);
}

/* anchord ended in the middle: egressd still knows the run. */
static void test_next_life(void **state) {
        World *w = *state;

        told.runs[0] = OVER;
        begin(w, OVER);
        end_life(w);
        told.runs[0] = NULL;
        begin_life(w);
        settle(w, 1);
}

/* Which repository, as it was said at the submission. */
static void test_upstream(void **state) {
        World *w = *state;

        OPERATOR(w, "Submit", json_pack("{s:s, s:[s], s:{s:s}}", "workflow", "exec", "command", "/bin/true", "options", "upstream", "widgets"));
        assert_refused(w, "BadInput");
        assert_true(answer_has(w, "/options/upstream"));
        OPERATOR(w, "Submit", json_pack("{s:s, s:[s], s:{s:s}}", "workflow", "exec", "command", "/bin/true", "options", "upstream", "acme/widgets"));
        assert_ok(w);
        (void) await_active(w, json_string_value(json_object_get(w->answer, "item")), "work");
        assert_string_equal(told.repository, "acme/widgets");
        finish(w, "ok", "", NULL);
        UNTIL(w->event, !w->m->flows);
        submit_exec(w, (char[ID_LENGTH + 1]) {});
        UNTIL(w->event, strcmp(told.repository, "none") == 0);
        UNTIL(w->event, w->m->flows && strcmp(flow_state_name(w->m->flows), "active") == 0);
        strcpy(w->as_run, flow_run(w->m->flows));
        finish(w, "ok", "", NULL);
        UNTIL(w->event, !w->m->flows);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_one, set_up_told, tear_down_told),
                cmocka_unit_test_setup_teardown(test_each_has_its_turn, set_up_told, tear_down_told),
                cmocka_unit_test_setup_teardown(test_does_not_start, set_up_told, tear_down_told),
                cmocka_unit_test_setup_teardown(test_start_takes_too_long, set_up_told, tear_down_told),
                cmocka_unit_test_setup_teardown(test_not_released, set_up_told, tear_down_told),
                cmocka_unit_test_setup_teardown(test_policy_is_gone, set_up_told, tear_down_told),
                cmocka_unit_test_setup_teardown(test_run_in_use, set_up_told, tear_down_told),
                cmocka_unit_test_setup_teardown(test_next_life, set_up_told, tear_down_told),
                cmocka_unit_test_setup_teardown(test_upstream, set_up_told, tear_down_told),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
