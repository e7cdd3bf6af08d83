/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-import and an anchord that is away, that cannot just now, or that takes its time. */

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "import/import-call.h"
#include "ipc/ipc.h"
#include "own-world.h"
#include "util/io.h"
#include "util/json.h"

#define SOCKET "/run/test-runs.sock"
#define IMPORTED "io.anchorhold.Run.Imported"

typedef struct World {
        sd_event *event;
        IpcServer *server;
        const char *error; /* `n_errors` calls are refused with that */
        unsigned n_errors, n_calls;
        bool fd_missing;
        int status; /* of the process that called; -1: not ended */
} World;

static int on_imported(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;
        int fd = ipc_call_take_fd(call, 0);

        w->n_calls++;
        w->fd_missing |= fd < 0;
        (void) fd_close(fd);
        if (w->n_errors > 0) {
                w->n_errors--;
                return ipc_call_refuse(call, w->error, "not now");
        }
        return ipc_call_reply(call, json_incref(params));
}

static const IpcMethod methods[] = { { IMPORTED, PEER_ROOT, on_imported }, {} };

static int on_child(sd_event_source *s, const siginfo_t *si, void *userdata) {
        World *w = userdata;

        w->status = si->si_code == CLD_EXITED ? si->si_status : 255;
        return 0;
}

/* What import_call() came to, in a process of its own: 0 or a positive errno. */
static int call(World *w, uint64_t total_usec) {
        const ImportPatience patience = { SOCKET, 1000 * 1000, total_usec };
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
                _cleanup_json_ json_t *params = json_pack("{s:i}", "x", 1), *answer = NULL;
                int fd = io_memfd("bundle", "x", 1), r;

                r = import_call(&patience, IMPORTED, params, &fd, 1, &answer, NULL, 0);
                _exit(r < 0 ? -r : json_equal(answer, params) ? 0 : 254);
        }
        w->status = -1;
        assert_true(sd_event_add_child(w->event, NULL, pid, WEXITED, on_child, w) >= 0);
        UNTIL(w->event, w->status >= 0);
        assert_false(w->fd_missing); /* it comes with each of them */
        return w->status;
}

static void test_answered(void **state) {
        World *w = *state;

        assert_int_equal(call(w, 300 * 1000), 0);
        assert_int_equal(w->n_calls, 1);
        w->error = "BadInput";
        w->n_errors = 1;
        assert_int_equal(call(w, 300 * 1000), EREMOTEIO);
        assert_int_equal(w->n_calls, 2);
}

/* Six times a quarter of a second: far beyond its patience. */
static void test_storing(void **state) {
        World *w = *state;

        w->error = "Storing";
        w->n_errors = 6;
        assert_int_equal(call(w, 300 * 1000), 0);
        assert_int_equal(w->n_calls, 7);
}

static void test_unavailable(void **state) {
        World *w = *state;

        w->error = "Unavailable";
        w->n_errors = 2;
        assert_int_equal(call(w, 3000 * 1000), 0);
        assert_int_equal(w->n_calls, 3);
        w->n_errors = 20;
        assert_int_equal(call(w, 300 * 1000), EREMOTEIO);
        assert_true(w->n_errors > 0);
}

static void test_away(void **state) {
        World *w = *state;

        w->server = ipc_server_free(w->server);
        assert_int_equal(unlink(SOCKET), 0);
        assert_int_not_equal(call(w, 100 * 1000), 0);
        assert_int_equal(w->n_calls, 0);
}

static int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        assert_int_equal(sd_event_new(&w->event), 0);
        assert_int_equal(ipc_server_new(&w->server, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(w->server, own_world_listen(SOCKET)) >= 0);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        ipc_server_free(w->server);
        sd_event_unref(w->event);
        free(w);
        return 0;
}

static int enter(void **state) {
        sigset_t mask;

        own_world_enter(0);
        (void) sigemptyset(&mask);
        (void) sigaddset(&mask, SIGCHLD);
        return sigprocmask(SIG_BLOCK, &mask, NULL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_answered, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_storing, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_unavailable, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_away, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter, NULL);
}
