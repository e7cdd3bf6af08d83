/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "ipc/ipc.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

typedef struct Fixture {
        sd_event *event;
        IpcServer *server;
        char folder[32], path[64];
        IpcCall *held[8];        /* calls that Hold keeps */
        unsigned n_held, n_disconnects;
} Fixture;

static int on_echo(IpcCall *call, json_t *params, void *userdata) {
        return ipc_call_reply(call, json_incref(params));
}

static int on_fail(IpcCall *call, json_t *params, void *userdata) {
        return ipc_call_refuse(call, "BadInput", "no %s\x1b", "good");
}

static int on_errno(IpcCall *call, json_t *params, void *userdata) {
        return -ENOSPC;
}

static int on_forget(IpcCall *call, json_t *params, void *userdata) {
        return 0;
}

static int on_hold(IpcCall *call, json_t *params, void *userdata) {
        Fixture *f = userdata;

        f->held[f->n_held++] = ipc_call_ref(call);
        return 0;
}

static int on_count(IpcCall *call, json_t *params, void *userdata) {
        if (!ipc_call_wants_more(call))
                return ipc_call_error(call, "org.varlink.service.ExpectedMore", NULL);

        for (int i = 0; i < 3; i++)
                assert_int_equal(ipc_call_notify(call, json_pack("{s:i}", "i", i)), 0);
        return ipc_call_reply(call, json_pack("{s:i}", "i", 3));
}

/* Takes a descriptor, gives it back with another one. */
static int on_swap(IpcCall *call, json_t *params, void *userdata) {
        _cleanup_fd_ int fd = ipc_call_take_fd(call, 0), own = io_memfd("own", "own", 3);

        assert_true(fd >= 0);
        assert_int_equal(ipc_call_take_fd(call, 0), -EINVAL);
        assert_int_equal(ipc_call_push_fd(call, own), 0);
        (void) TAKE_FD(own);
        assert_int_equal(ipc_call_push_fd(call, fd), 1);
        (void) TAKE_FD(fd);
        return ipc_call_reply(call, NULL);
}

static const IpcMethod methods[] = {
        { "io.anchorhold.Test.Echo",    PEER_OTHER,   on_echo   },
        { "io.anchorhold.Test.Fail",    PEER_OTHER,   on_fail   },
        { "io.anchorhold.Test.Errno",   PEER_OTHER,   on_errno  },
        { "io.anchorhold.Test.Forget",  PEER_OTHER,   on_forget },
        { "io.anchorhold.Test.Hold",    PEER_OTHER,   on_hold   },
        { "io.anchorhold.Test.Count",   PEER_OTHER,   on_count  },
        { "io.anchorhold.Test.Swap",    PEER_OTHER,   on_swap   },
        { "io.anchorhold.Test.Anchord", PEER_ANCHORD, on_echo   },
        {}
};

static void on_disconnect(const Peer *peer, void *userdata) {
        Fixture *f = userdata;

        assert_int_equal(peer->uid, getuid());
        f->n_disconnects++;
}

static void server_start(Fixture *f) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd;

        (void) unlink(f->path);
        strcpy(address.sun_path, f->path);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(fd, (struct sockaddr *) &address, sizeof(address)), 0);
        assert_int_equal(listen(fd, 64), 0);
        assert_int_equal(ipc_server_new(&f->server, f->event, methods, f), 0);
        ipc_server_set_disconnect(f->server, on_disconnect);
        assert_int_equal(ipc_server_listen_fd(f->server, fd), 0);
}

static void drop_held(Fixture *f) {
        while (f->n_held > 0)
                (void) ipc_call_unref(f->held[--f->n_held]);
}

static int setup(void **state) {
        Fixture *f = calloc(1, sizeof(*f));

        strcpy(f->folder, "/tmp/test-ipc-XXXXXX");
        assert_non_null(mkdtemp(f->folder));
        (void) snprintf(f->path, sizeof(f->path), "%s/s", f->folder);
        assert_int_equal(sd_event_new(&f->event), 0);
        server_start(f);
        *state = f;
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;

        drop_held(f);
        (void) ipc_server_free(f->server);
        (void) sd_event_unref(f->event);
        (void) unlink(f->path);
        (void) rmdir(f->folder);
        free(f);
        return 0;
}

typedef struct Answers {
        unsigned n, n_more;
        char *error, *params;
        int fds[2];
        bool free_client;
        IpcClient **client;
} Answers;

static void answers_done(Answers *a) {
        free(a->error);
        free(a->params);
        *a = (Answers) {};
}

static void on_answer(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Answers *a = userdata;

        a->n++;
        a->n_more += more;
        free(a->error);
        free(a->params);
        a->error = error ? strdup(error) : NULL;
        a->params = json_canonical(params);
        a->fds[0] = ipc_client_take_fd(c, 0);
        a->fds[1] = ipc_client_take_fd(c, 1);
        if (a->free_client)
                *a->client = ipc_client_free(*a->client);
}

static void wait_for(Fixture *f, Answers *a, unsigned n) {
        uint64_t end = time_monotonic() + 5000000;

        while (a->n < n) {
                assert_true(sd_event_run(f->event, 100000) >= 0);
                assert_true(time_monotonic() < end);
        }
}

static void run_for(Fixture *f, uint64_t usec) {
        uint64_t end = time_monotonic() + usec;

        while (time_monotonic() < end)
                assert_true(sd_event_run(f->event, 5000) >= 0);
}

static void call(IpcClient *c, const char *method, json_t *params, bool more, uint64_t timeout, Answers *a) {
        assert_int_equal(ipc_client_call_async(c, method, params, NULL, 0, more, timeout, on_answer, a), 0);
}

static void test_reply_and_errors(void **state) {
        static const struct { const char *method, *error, *params; } expected[] = {
                { "io.anchorhold.Test.Echo",    NULL, "{\"a\":[1,\"x\"]}" },
                { "io.anchorhold.Test.Fail",    "io.anchorhold.Test.BadInput", "{\"reason\":\"no good\\\\x1b\"}" },
                { "io.anchorhold.Test.Errno",   "io.anchorhold.Test.Unavailable", "{\"reason\":\"No space left on device\"}" },
                { "io.anchorhold.Test.Forget",  "io.anchorhold.Test.Unavailable", "{\"reason\":\"The call was given up.\"}" },
                { "io.anchorhold.Test.Anchord", "org.varlink.service.PermissionDenied", "{}" },
                { "io.anchorhold.Test.None",    "org.varlink.service.MethodNotFound", "{\"method\":\"io.anchorhold.Test.None\"}" },
                { "io.anchorhold.Test.Count",   "org.varlink.service.ExpectedMore", "{}" },
                { "io.anchorhold.Test.Echo",    NULL, "{\"a\":[1,\"x\"]}" },
        };
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        Fixture *f = *state;

        assert_int_equal(ipc_client_new(&c, f->event, f->path), 0);
        for (size_t i = 0; i < ELEMENTSOF(expected); i++) {
                _cleanup_(answers_done) Answers a = {};

                call(c, expected[i].method, json_pack("{s:[i,s]}", "a", 1, "x"), false, 0, &a);
                wait_for(f, &a, 1);
                if (expected[i].error)
                        assert_string_equal(a.error, expected[i].error);
                else
                        assert_null(a.error);
                assert_string_equal(a.params, expected[i].params);
        }
}

static void test_more(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        _cleanup_(answers_done) Answers a = {};
        Fixture *f = *state;

        assert_int_equal(ipc_client_new(&c, f->event, f->path), 0);
        call(c, "io.anchorhold.Test.Count", NULL, true, 0, &a);
        wait_for(f, &a, 4);
        assert_int_equal(a.n, 4);
        assert_int_equal(a.n_more, 3);
        assert_string_equal(a.params, "{\"i\":3}");
        run_for(f, 20000);
        assert_int_equal(f->n_disconnects, 1); /* the dedicated connection */
}

static void test_descriptors(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        _cleanup_(answers_done) Answers a = {};
        _cleanup_fd_ int fd = io_memfd("mine", "mine", 4);
        Fixture *f = *state;
        char text[5] = "";

        assert_int_equal(ipc_client_new(&c, f->event, f->path), 0);
        assert_int_equal(ipc_client_call_async(c, "io.anchorhold.Test.Swap", NULL, &fd, 1, false, 0, on_answer, &a), 0);
        wait_for(f, &a, 1);
        assert_null(a.error);
        assert_true(a.fds[0] >= 0 && a.fds[1] >= 0);
        assert_int_equal(pread(a.fds[0], text, 4, 0), 3);
        assert_string_equal(text, "own");
        assert_int_equal(pread(a.fds[1], text, 4, 0), 4);
        assert_string_equal(text, "mine");
        (void) close(a.fds[0]);
        (void) close(a.fds[1]);
}

static unsigned n_fds(void) {
        DIR *d = opendir("/proc/self/fd");
        unsigned n = 0;

        assert_non_null(d);
        while (readdir(d))
                n++;
        (void) closedir(d);
        return n;
}

/* Holds a call that came with many descriptors: how many more are open then? */
static unsigned hold_with_fds(Fixture *f) {
        enum { MANY = 200 };
        static const char call[] = "{\"method\":\"io.anchorhold.Test.Hold\",\"parameters\":{}}";
        union { struct cmsghdr head; char room[CMSG_SPACE(MANY * sizeof(int))]; } control = {};
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        struct iovec iov = { .iov_base = (char *) call, .iov_len = sizeof(call) };
        struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        unsigned before = n_fds(), after;

        strcpy(address.sun_path, f->path);
        assert_int_equal(connect(fd, (struct sockaddr *) &address, sizeof(address)), 0);
        control.head = (struct cmsghdr) { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(MANY * sizeof(int)) };
        for (size_t i = 0; i < MANY; i++)
                memcpy(CMSG_DATA(&control.head) + i * sizeof(int), &(int) { STDERR_FILENO }, sizeof(int));
        assert_int_equal(sendmsg(fd, &m, MSG_NOSIGNAL), sizeof(call));
        while (f->n_held == 0)
                assert_true(sd_event_run(f->event, 5000000) > 0);
        after = n_fds();
        drop_held(f);
        return after - before;
}

/* What nobody asked for is not kept, where it is said that nobody will. */
static void test_no_descriptors(void **state) {
        Fixture *f = *state;

        assert_true(hold_with_fds(f) >= 200); /* the control */
        f->server = ipc_server_free(f->server);
        server_start(f);
        ipc_server_set_no_fds(f->server);
        assert_true(hold_with_fds(f) <= 4);
}

static void test_timeout_and_order(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        _cleanup_(answers_done) Answers late = {}, queued = {}, next = {};
        Fixture *f = *state;

        assert_int_equal(ipc_client_new(&c, f->event, f->path), 0);
        call(c, "io.anchorhold.Test.Hold", NULL, false, 100000, &late);
        call(c, "io.anchorhold.Test.Echo", NULL, false, 50000, &queued);
        call(c, "io.anchorhold.Test.Echo", NULL, false, 2000000, &next);

        wait_for(f, &queued, 1);
        assert_string_equal(queued.error, "io.anchorhold.Timeout");
        assert_int_equal(late.n, 0);
        assert_int_equal(next.n, 0); /* in order: behind the call that is held */

        wait_for(f, &next, 1);
        assert_string_equal(late.error, "io.anchorhold.Timeout");
        assert_null(next.error);

        assert_int_equal(f->n_held, 1);
        run_for(f, 20000);
        assert_false(ipc_call_is_live(f->held[0]));
        assert_int_equal(ipc_call_reply(f->held[0], NULL), -ENOTCONN);
}

static void test_parallel(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        _cleanup_(answers_done) Answers one = {}, two = {}, three = {};
        Fixture *f = *state;

        assert_int_equal(ipc_client_new(&c, f->event, f->path), 0);
        ipc_client_set_parallel(c, 2);
        call(c, "io.anchorhold.Test.Hold", json_pack("{s:i}", "n", 1), false, 0, &one);
        call(c, "io.anchorhold.Test.Hold", json_pack("{s:i}", "n", 2), false, 0, &two);
        call(c, "io.anchorhold.Test.Echo", NULL, false, 0, &three);
        while (f->n_held < 2)
                assert_true(sd_event_run(f->event, 100000) >= 0);
        run_for(f, 20000);
        assert_int_equal(three.n, 0);

        /* any order of answers */
        assert_int_equal(ipc_call_reply(f->held[1], json_pack("{s:i}", "held", 1)), 0);
        wait_for(f, &three, 1);
        assert_null(three.error);
        assert_int_equal(one.n + two.n, 1);
        assert_int_equal(ipc_call_reply(f->held[0], NULL), 0);
        while (one.n + two.n < 2)
                assert_true(sd_event_run(f->event, 100000) >= 0);
}

static void test_disconnect_and_reconnect(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        _cleanup_(answers_done) Answers a = {}, watch = {}, gone = {}, back = {};
        Fixture *f = *state;

        assert_int_equal(ipc_client_new(&c, f->event, f->path), 0);
        call(c, "io.anchorhold.Test.Hold", NULL, false, 0, &a);
        call(c, "io.anchorhold.Test.Hold", NULL, true, 0, &watch);
        while (f->n_held < 2)
                assert_true(sd_event_run(f->event, 100000) >= 0);

        f->server = ipc_server_free(f->server);
        assert_int_equal(ipc_call_reply(f->held[0], NULL), -ENOTCONN);
        (void) unlink(f->path);
        wait_for(f, &a, 1);
        wait_for(f, &watch, 1);
        assert_string_equal(a.error, "io.anchorhold.Disconnected");
        assert_string_equal(watch.error, "io.anchorhold.Disconnected");

        call(c, "io.anchorhold.Test.Echo", NULL, false, 0, &gone);
        assert_int_equal(gone.n, 0); /* never from inside the call */
        wait_for(f, &gone, 1);
        assert_string_equal(gone.error, "io.anchorhold.Disconnected");

        server_start(f);
        call(c, "io.anchorhold.Test.Echo", NULL, false, 0, &back);
        wait_for(f, &back, 1);
        assert_null(back.error);
}

/* A server restarted while the connection was idle costs no call. */
static void test_restart_while_idle(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        _cleanup_(answers_done) Answers a = {};
        Fixture *f = *state;

        assert_int_equal(ipc_client_new(&c, f->event, f->path), 0);
        call(c, "io.anchorhold.Test.Echo", NULL, false, 0, &a);
        wait_for(f, &a, 1);
        f->server = ipc_server_free(f->server);
        server_start(f);
        call(c, "io.anchorhold.Test.Echo", NULL, false, 0, &a);
        wait_for(f, &a, 2);
        assert_null(a.error);
}

static void test_free_in_handler(void **state) {
        static const char *const which[] = { "io.anchorhold.Test.Echo", "io.anchorhold.Test.Count" };
        Fixture *f = *state;

        for (size_t i = 0; i < ELEMENTSOF(which); i++) {
                _cleanup_(answers_done) Answers a = {};
                IpcClient *c = NULL;

                a.free_client = true;
                a.client = &c;
                assert_int_equal(ipc_client_new(&c, f->event, f->path), 0);
                call(c, which[i], NULL, i == 1, 1000000, &a);
                call(c, "io.anchorhold.Test.Echo", NULL, false, 0, &a);
                wait_for(f, &a, 1);
                run_for(f, 20000);
                assert_int_equal(a.n, 1);
                assert_null(c);
        }
}

static void test_connection_limit(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        _cleanup_(answers_done) Answers held = {}, refused = {};
        Fixture *f = *state;

        ipc_server_set_limits(f->server, 1, 1);
        assert_int_equal(ipc_client_new(&c, f->event, f->path), 0);
        ipc_client_set_parallel(c, 2);
        call(c, "io.anchorhold.Test.Hold", NULL, false, 0, &held);
        while (f->n_held < 1)
                assert_true(sd_event_run(f->event, 100000) >= 0);
        call(c, "io.anchorhold.Test.Echo", NULL, false, 500000, &refused);
        wait_for(f, &refused, 1);
        assert_non_null(refused.error);
        assert_int_equal(held.n, 0);
}

/* ---- the client without a loop, in a process of its own ---- */

static void count_up(void *userdata) {
        ++*(int *) userdata;
}

static void sync_client(const char *path) {
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        _cleanup_json_ json_t *params = NULL;
        _cleanup_free_ char *error = NULL;
        _cleanup_fd_ int fd = io_memfd("mine", "mine", 4);
        int fds[2], n = 0;

        assert_int_equal(ipc_client_new(&c, NULL, path), 0);
        assert_int_equal(ipc_client_call(c, "io.anchorhold.Test.Echo", json_pack("{s:i}", "x", 1), NULL, 0, 1000000, &params, NULL, NULL, 0), 0);
        assert_int_equal(json_integer_value(json_object_get(params, "x")), 1);
        params = json_unref(params);

        assert_int_equal(ipc_client_call(c, "io.anchorhold.Test.Fail", NULL, NULL, 0, 1000000, &params, &error, NULL, 0), -EREMOTEIO);
        assert_string_equal(error, "io.anchorhold.Test.BadInput");
        params = json_unref(params);

        assert_int_equal(ipc_client_call(c, "io.anchorhold.Test.Swap", NULL, &fd, 1, 1000000, NULL, NULL, fds, 2), 0);
        assert_true(fds[0] >= 0 && fds[1] >= 0);
        assert_true(fcntl(fds[0], F_GETFD) & FD_CLOEXEC);
        (void) close(fds[0]);
        (void) close(fds[1]);

        assert_int_equal(ipc_client_call(c, "io.anchorhold.Test.Hold", NULL, NULL, 0, 100000, NULL, NULL, NULL, 0), -ETIMEDOUT);
        assert_int_equal(ipc_client_call(c, "io.anchorhold.Test.Echo", NULL, NULL, 0, 1000000, NULL, NULL, NULL, 0), 0);

        assert_int_equal(ipc_client_observe(c, "io.anchorhold.Test.Count", NULL, NULL, 0), 0);
        for (int i = 0; i < 4; i++) {
                assert_int_equal(ipc_client_next(c, 1000000, &params, NULL), i < 3);
                assert_int_equal(json_integer_value(json_object_get(params, "i")), i);
                params = json_unref(params);
        }
        free(TAKE_PTR(error));
        assert_int_equal(ipc_client_observe(c, "io.anchorhold.Test.Fail", NULL, NULL, 0), 0);
        assert_int_equal(ipc_client_next(c, 1000000, NULL, &error), -EREMOTEIO);
        assert_string_equal(error, "io.anchorhold.Test.BadInput");
        assert_int_equal(ipc_client_observe(c, "io.anchorhold.Test.Hold", NULL, NULL, 0), 0);
        assert_int_equal(ipc_client_next(c, 50000, NULL, NULL), -ETIMEDOUT);

        /* who waits is told so, as often as wanted */
        assert_int_equal(ipc_client_set_waiting(c, 20000, count_up, &n), 0);
        assert_int_equal(ipc_client_call(c, "io.anchorhold.Test.Hold", NULL, NULL, 0, 150000, NULL, NULL, NULL, 0), -ETIMEDOUT);
        assert_true(n >= 2 && n <= 8);
        assert_int_equal(ipc_client_set_waiting(c, 0, NULL, NULL), 0);
        n = 0;
        assert_int_equal(ipc_client_call(c, "io.anchorhold.Test.Hold", NULL, NULL, 0, 60000, NULL, NULL, NULL, 0), -ETIMEDOUT);
        assert_int_equal(n, 0);
}

static int on_child(sd_event_source *s, const siginfo_t *si, void *userdata) {
        int *status = userdata;

        *status = si->si_code == CLD_EXITED ? si->si_status : -1;
        return sd_event_exit(sd_event_source_get_event(s), 0);
}

static void test_sync(void **state) {
        Fixture *f = *state;
        int status = -1;
        sigset_t mask;
        pid_t pid;

        (void) sigemptyset(&mask);
        (void) sigaddset(&mask, SIGCHLD);
        assert_int_equal(sigprocmask(SIG_BLOCK, &mask, NULL), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                sync_client(f->path);
                _exit(0);
        }
        assert_true(sd_event_add_child(f->event, NULL, pid, WEXITED, on_child, &status) >= 0);
        assert_int_equal(sd_event_loop(f->event), 0);
        assert_int_equal(status, 0);
}

int main(void) {
#define T(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
        const struct CMUnitTest tests[] = {
                T(test_reply_and_errors),
                T(test_more),
                T(test_descriptors),
                T(test_no_descriptors),
                T(test_timeout_and_order),
                T(test_parallel),
                T(test_disconnect_and_reconnect),
                T(test_restart_while_idle),
                T(test_free_in_handler),
                T(test_connection_limit),
                T(test_sync),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
