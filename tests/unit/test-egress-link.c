/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* inject's link to egressd: of a grant that is revoked it hears, whenever that was. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "egress/egress-api.h"
#include "inject/egress-link.h"
#include "ipc/ipc.h"
#include "own-world.h"
#include "util/json.h"

enum { GRANT = 7 };

typedef struct World {
        sd_event *event;
        IpcServer *server;
        IpcCall *watch, *question;  /* ref */
        EgressLink *link;
        EgressQuestion *asked;      /* borrowed by nobody once it is answered */
        bool answered, pass;
        char reason[32];
        int64_t grant, revoked;
        unsigned n_done, n_disagreements;
} World;

static int on_connect(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        w->question = ipc_call_ref(call);
        return 0;
}

static int on_watch(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        (void) ipc_call_unref(w->watch);
        w->watch = ipc_call_ref(call);
        return 0;
}

static int on_done(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        assert_int_equal(json_integer_value(json_object_get(params, "grant")), GRANT);
        w->n_done++;
        return ipc_call_reply(call, NULL);
}

static const IpcMethod methods[] = {
        { EGRESS_INTERFACE ".Connect", PEER_ROOT, on_connect },
        { EGRESS_INTERFACE ".Watch", PEER_ROOT, on_watch },
        { EGRESS_INTERFACE ".Done", PEER_ROOT, on_done },
        {},
};

static void on_lost(void *userdata) {
        fail();
}

static void on_revoked(int64_t grant, int64_t stream, void *userdata) {
        World *w = userdata;

        assert_int_equal(stream, 0);
        w->revoked = grant;
        egress_link_done(w->link, grant, 1, 2, 3);
}

static int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        assert_return_code(sd_event_new(&w->event), 0);
        assert_return_code(ipc_server_new(&w->server, w->event, methods, w), 0);
        assert_return_code(ipc_server_listen_fd(w->server, own_world_listen(EGRESS_SOCKET)), 0);
        assert_return_code(egress_link_new(&w->link, w->event, EGRESS_SOCKET, on_lost, on_revoked, w), 0);
        UNTIL(w->event, w->watch);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        egress_link_free(w->link);
        (void) ipc_call_unref(w->watch);
        (void) ipc_call_unref(w->question);
        ipc_server_free(w->server);
        sd_event_unref(w->event);
        free(w);
        return 0;
}

static void on_answer(const EgressAnswer *a, void *userdata) {
        World *w = userdata;

        w->answered = true;
        w->pass = a->pass;
        w->grant = a->grant;
        (void) snprintf(w->reason, sizeof(w->reason), "%s", a->reason);
}

static void ask(World *w) {
        w->answered = false;
        assert_return_code(egress_link_ask(w->link, "api.example.org", 443, "GET", "/", false, NULL, on_answer, w, &w->asked), 0);
        UNTIL(w->event, w->question);
}

static void grant(World *w) {
        assert_return_code(ipc_call_reply(w->question, json_pack("{s:s, s:s, s:s, s:s, s:i, s:[s]}", "verdict", "pass", "reason", "allowed", "rule", "test", "name",
                                                                 "api.example.org", "grant", GRANT, "addresses", "127.0.0.9")),
                           0);
        w->question = ipc_call_unref(w->question);
        UNTIL(w->event, w->answered);
}

/* Nothing else says that it was read: what comes behind it does. */
static void tell(World *w, json_t *message) {
        assert_return_code(ipc_call_notify(w->watch, message), 0);
        for (unsigned i = 0; i < 10; i++)
                assert_true(sd_event_run(w->event, 1000) >= 0);
}

static void test_revoked_before_it_is_known(void **state) {
        World *w = *state;

        ask(w);
        tell(w, json_pack("{s:i, s:[i]}", "heartbeat", 1, "revoked", GRANT));
        grant(w);
        assert_false(w->pass);
        assert_int_equal(w->grant, 0);
        assert_string_equal(w->reason, "unavailable");
        UNTIL(w->event, w->n_done == 1);

        /* the control: another one was */
        ask(w);
        tell(w, json_pack("{s:i, s:[i]}", "heartbeat", 2, "revoked", GRANT - 1));
        grant(w);
        assert_true(w->pass);
        assert_int_equal(w->grant, GRANT);
        assert_int_equal(w->revoked, 0);

        tell(w, json_pack("{s:i, s:[i]}", "heartbeat", 3, "revoked", GRANT));
        UNTIL(w->event, w->revoked == GRANT && w->n_done == 2);
}

static void test_revoked_while_nobody_listened(void **state) {
        World *w = *state;

        ask(w);
        grant(w);
        for (unsigned listed = 2; listed-- > 0;) {
                w->watch = ipc_call_unref(w->watch); /* which ends it */
                UNTIL(w->event, w->watch);
                tell(w, listed ? json_pack("{s:[i], s:i}", "grants", GRANT, "latest", GRANT) : json_pack("{s:[], s:i}", "grants", "latest", GRANT));
                assert_int_equal(w->revoked, listed ? 0 : GRANT);
        }
}

static void on_disagreement(const char *name, uint16_t port, const char *workflow, const char *stage, void *userdata) {
        World *w = userdata;

        assert_string_equal(name, "api.example.org");
        assert_int_equal(port, 443);
        w->n_disagreements++;
}

static void grant_as(World *w, const char *workflow, const char *stage) {
        assert_return_code(ipc_call_reply(w->question, json_pack("{s:s, s:s, s:s, s:s, s:i, s:[s], s:s*, s:s*}", "verdict", "pass", "reason", "allowed", "rule", "test",
                                                                 "name", "api.example.org", "grant", GRANT, "addresses", "127.0.0.9", "workflow", workflow, "stage", stage)),
                           0);
        w->question = ipc_call_unref(w->question);
        UNTIL(w->event, w->answered);
}

/* What egressd allows to another workflow or stage than secretd knows the run as is denied, and given back. */
static void test_disagreement(void **state) {
        static const struct { const char *workflow, *stage; } others[] = { { "exec", "work" }, { "code-fix", "verify" }, { NULL, "work" }, { "code-fix", NULL } };
        World *w = *state;

        egress_link_expect(w->link, "code-fix", "work", on_disagreement);
        for (unsigned i = 0; i < ELEMENTSOF(others); i++) {
                ask(w);
                grant_as(w, others[i].workflow, others[i].stage);
                assert_false(w->pass);
                assert_string_equal(w->reason, "disagreement");
                assert_int_equal(w->grant, 0);
                assert_int_equal(w->n_disagreements, i + 1);
                UNTIL(w->event, w->n_done == i + 1);
        }
        ask(w);
        grant_as(w, "code-fix", "work"); /* the control */
        assert_true(w->pass);
        assert_int_equal(w->grant, GRANT);
        assert_int_equal(w->n_disagreements, ELEMENTSOF(others));
}

/* A further question on the connection brings no grant, and ends nothing that is held. */
static void test_within(void **state) {
        EgressWithin within = { .grant = GRANT };
        World *w = *state;

        ask(w);
        grant(w);
        assert_return_code(egress_link_ask(w->link, "api.example.org", 443, "GET", "/2", false, &within, on_answer, w, &w->asked), 0);
        w->answered = false;
        UNTIL(w->event, w->question);
        grant(w);
        tell(w, json_pack("{s:i, s:[i]}", "heartbeat", 3, "revoked", GRANT));
        UNTIL(w->event, w->revoked == GRANT && w->n_done == 1);
}

/* The process ends: what is over is told without the loop. (By a process of its own, since this one answers.) */
static void test_last_words(void **state) {
        World *w = *state;
        pid_t child;
        int status;

        ask(w);
        grant(w);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
                egress_link_done(w->link, w->grant, 1, 2, 3);
                egress_link_tell_last(w->link, time_monotonic() + 1500000);
                _exit(0);
        }
        UNTIL(w->event, waitpid(child, &status, WNOHANG) == child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_int_equal(w->n_done, 1);
        egress_link_tell_last(NULL, 0);
}

static int enter_world(void **state) {
        own_world_enter(0);
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_revoked_before_it_is_known, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_revoked_while_nobody_listened, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_disagreement, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_within, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_last_words, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
