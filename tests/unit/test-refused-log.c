/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What the proxy refuses by itself, told to an egressd that is there, busy, gone, or back. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "ipc/ipc.h"
#include "own-world.h"
#include "proxy/refused-log.h"
#include "util/json.h"

#define EGRESS "/run/egress.sock"

typedef struct World {
        sd_event *event;
        IpcServer *egress;
        RefusedLog *log;
        const char *refuses; /* with this error */
        uint64_t n_told, n_calls;
        char last[512];
        bool floods, heard_other; /* one more of a kind whenever that is told; and a timeout was told */
} World;

static void add(World *w, const char *reason, const char *name, uint16_t port) {
        refused_log_add(w->log, &(RefusedKind) { .event = "connection", .reason = reason, .name = name, .port = port }, true);
}

static int on_refused(IpcCall *call, json_t *params, void *userdata) {
        _cleanup_free_ char *text = json_canonical(params);
        World *w = userdata;

        w->n_calls++;
        if (w->refuses)
                return ipc_call_refuse(call, w->refuses, "no");
        (void) snprintf(w->last, sizeof(w->last), "%s", text);
        w->n_told += (uint64_t) json_integer_value(json_object_get(params, "count"));
        w->heard_other = w->heard_other || strcmp(json_string_value(json_object_get(params, "reason")), "timeout") == 0;
        if (w->floods)
                add(w, "malformed", "", 0);
        return ipc_call_reply(call, NULL);
}

static const IpcMethod methods[] = { { "io.anchorhold.Egress.Refused", PEER_ROOT, on_refused }, {} };

static void serve(World *w) {
        assert_int_equal(ipc_server_new(&w->egress, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(w->egress, own_world_listen(EGRESS)) >= 0);
}

static int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        assert_true(sd_event_new(&w->event) >= 0);
        serve(w);
        assert_int_equal(refused_log_new(&w->log, w->event, EGRESS), 0);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        refused_log_free(w->log);
        ipc_server_free(w->egress);
        sd_event_unref(w->event);
        free(w);
        return 0;
}

static void test_told(void **state) {
        World *w = *state;

        add(w, "malformed", "", 0);
        UNTIL(w->event, w->n_told == 1);
        assert_string_equal(w->last, "{\"count\":1,\"event\":\"connection\",\"reason\":\"malformed\"}");
        add(w, "timeout", "a.example.org", 80);
        UNTIL(w->event, w->n_told == 2);
        assert_string_equal(w->last, "{\"count\":1,\"event\":\"connection\",\"name\":\"a.example.org\",\"port\":80,\"reason\":\"timeout\"}");
}

/* Busy, and gone: told when it is there again, with what came meanwhile; and only what it will never take is not. */
static void test_again(void **state) {
        World *w = *state;

        w->refuses = "Unavailable";
        add(w, "protocol", "a.example.org", 80);
        UNTIL(w->event, w->n_calls == 1);
        add(w, "protocol", "a.example.org", 80);
        w->egress = ipc_server_free(w->egress);
        add(w, "protocol", "b.example.org", 80);
        run_for(w->event, 100000);
        assert_int_equal(w->n_told, 0);

        w->refuses = NULL;
        serve(w);
        UNTIL(w->event, w->n_told == 3);
        run_for(w->event, 1200000);
        assert_int_equal(w->n_told, 3);

        w->refuses = "BadInput";
        w->n_calls = 0;
        add(w, "protocol", "c.example.org", 80);
        UNTIL(w->event, w->n_calls == 1);
        w->refuses = NULL;
        run_for(w->event, 1200000);
        assert_int_equal(w->n_told, 3);
}

/* A guest may name as many as it likes. */
static void test_many(void **state) {
        char name[32];
        World *w = *state;

        w->egress = ipc_server_free(w->egress);
        for (unsigned i = 0; i < 3 * REFUSED_LOG_KINDS; i++) {
                (void) snprintf(name, sizeof(name), "n%u.example.org", i);
                add(w, i % 2 ? "timeout" : "protocol", name, 80);
        }
        serve(w);
        UNTIL(w->event, w->n_told == 3 * REFUSED_LOG_KINDS);
        assert_int_equal(w->n_calls, REFUSED_LOG_KINDS + 2);
}

/* One kind that never ends does not keep the others from the log. */
static void test_turns(void **state) {
        World *w = *state;

        w->floods = true;
        add(w, "malformed", "", 0);
        add(w, "timeout", "a.example.org", 80);
        UNTIL(w->event, w->heard_other || w->n_calls > 20);
        assert_true(w->heard_other);
        w->floods = false;
}

/* egressd in a process of its own; its exit status is what it was told. */
static pid_t serve_apart(unsigned until) {
        int fd = own_world_listen(EGRESS);
        pid_t pid = fork();

        if (pid == 0) {
                World w = {};
                uint64_t end = time_monotonic() + 5000000;

                (void) (sd_event_new(&w.event) + ipc_server_new(&w.egress, w.event, methods, &w) + ipc_server_listen_fd(w.egress, fd));
                while (w.n_told < until && time_monotonic() < end)
                        (void) sd_event_run(w.event, 20000);
                (void) sd_event_run(w.event, 20000); /* the answer */
                _exit((int) w.n_told);
        }
        (void) close(fd);
        return pid;
}

/* At the end of the run nothing is left over, not even what was to be told in a second. */
static void test_last(void **state) {
        World *w = *state;
        uint64_t begin;
        int status;
        pid_t pid;

        w->egress = ipc_server_free(w->egress);
        add(w, "timeout", "a.example.org", 80); /* in vain */
        run_for(w->event, 50000);
        for (int i = 0; i < 20; i++)
                refused_log_add(w->log, &(RefusedKind) { .event = "dns", .reason = "rate", .port = 53 }, false);
        pid = serve_apart(21);
        refused_log_tell_last(w->log, time_monotonic() + 1500000);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 21);

        /* nothing to tell, nobody there, and no log */
        begin = time_monotonic();
        refused_log_tell_last(w->log, time_monotonic() + 1500000);
        w->log = refused_log_free(w->log);
        assert_int_equal(refused_log_new(&w->log, w->event, EGRESS), 0);
        add(w, "timeout", "a.example.org", 80);
        refused_log_tell_last(w->log, time_monotonic() + 1500000);
        refused_log_tell_last(NULL, 0);
        assert_true(time_monotonic() - begin < 2000000);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_told, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_again, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_many, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_turns, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_last, set_up, tear_down),
        };

        own_world_enter(0);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
