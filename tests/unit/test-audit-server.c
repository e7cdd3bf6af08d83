/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * auditd on a real socket, without a journal: what is acknowledged is in the outbox, whatever happens to the process. The test
 * must be root, as operators are known by group on the image only.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "audit/audit-api.h"
#include "audit/audit-outbox.h"
#include "audit/audit-server.h"
#include "ipc/ipc.h"
#include "util/json.h"
#include "util/text.h"

#define APPEND AUDIT_INTERFACE ".Append"

static char folder[32], path[64];
static int *fuse; /* shared with the daemon: it is killed when it has made its next commit durable, and can answer nobody */

/* In the place of libc's, for SQLite. */
int fdatasync(int fd) {
        int r = (int) syscall(SYS_fdatasync, fd);

        if (fuse && *fuse) {
                *fuse = 0;
                (void) kill(getpid(), SIGKILL);
        }
        return r;
}

static int setup(void **state) {
        strcpy(folder, "/tmp/test-auditd-XXXXXX");
        assert_non_null(mkdtemp(folder));
        (void) snprintf(path, sizeof(path), "%s/socket", folder);
        return 0;
}

static int teardown(void **state) {
        static const char *const names[] = { "socket", AUDIT_OUTBOX, AUDIT_OUTBOX "-wal", AUDIT_PRIVATE_KEY, AUDIT_PUBLIC_KEY };

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                char name[96];

                (void) snprintf(name, sizeof(name), "%s/%s", folder, names[i]);
                (void) unlink(name);
        }
        return rmdir(folder);
}

/* The daemon, in a process of its own that dies with us. */
static void serve(int listen_fd) {
        AuditServerOptions options = { .state_dir = folder, .journal_socket = "/nowhere/socket", .journal_dir = "/nowhere" };
        sd_event *event = NULL;
        AuditServer *server = NULL;
        int r;

        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        r = sd_event_new(&event);
        if (r >= 0)
                r = audit_server_new(&server, event, &options);
        if (r >= 0)
                r = audit_server_listen_fd(server, listen_fd);
        if (r >= 0)
                r = sd_event_loop(event);
        _exit(r < 0);
}

static pid_t start(void) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        pid_t pid;

        (void) unlink(path);
        strcpy(address.sun_path, path);
        assert_int_equal(bind(fd, (struct sockaddr *) &address, sizeof(address)), 0);
        assert_int_equal(listen(fd, 64), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
                serve(fd);
        (void) close(fd);
        return pid;
}

static void kill_and_wait(pid_t pid) {
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static json_t *approval(unsigned n) {
        return json_pack("{s:s, s:s, s:{s:s, s:i}}", "event", "approval.recorded", "item", "i3k9x0a1b2c3d", "data", "verdict", "approved", "n", n);
}

static int append(IpcClient *c, json_t *params, uint64_t *ret_seq, char **ret_error) {
        _cleanup_json_ json_t *answer = NULL;
        int r;

        r = ipc_client_call(c, APPEND, params, NULL, 0, 5000000, &answer, ret_error, NULL, 0);
        if (r >= 0 && ret_seq)
                *ret_seq = (uint64_t) json_integer_value(json_object_get(answer, "seq"));
        return r;
}

static int count(AuditRecord *r, const char *text, size_t size, void *userdata) {
        ++*(uint64_t *) userdata;
        return 0;
}

static void test_refusals(void **state) {
        static const struct { const char *params, *error; } cases[] = {
                { "{\"event\":\"run.leased\",\"run\":\"r3k9x0a1b2c3d\",\"item\":\"i3k9x0a1b2c3d\",\"data\":{}}", AUDIT_INTERFACE ".Denied" },
                { "{\"event\":\"audit.started\",\"data\":{}}", AUDIT_INTERFACE ".Denied" },
                { "{\"event\":\"approval.recorded\",\"item\":\"x\",\"data\":{}}", AUDIT_INTERFACE ".BadInput" },
                { "{\"event\":\"approval.recorded\",\"data\":{}}", AUDIT_INTERFACE ".BadInput" },
        };
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        uint64_t seq = 0;
        pid_t pid = start();

        assert_int_equal(ipc_client_new(&c, NULL, path), 0);
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *error = NULL;
                json_t *params = NULL;

                assert_int_equal(json_parse(cases[i].params, strlen(cases[i].params), &params, NULL), 0);
                assert_int_equal(append(c, params, NULL, &error), -EREMOTEIO);
                assert_string_equal(error, cases[i].error);
        }

        /* none of them took a number: audit.started has the first */
        assert_int_equal(append(c, approval(1), &seq, NULL), 0);
        assert_int_equal(seq, 2);
        assert_int_equal(ipc_client_call(c, AUDIT_INTERFACE ".Ping", NULL, NULL, 0, 5000000, NULL, NULL, NULL, 0), 0);
        kill_and_wait(pid);
}

static void test_killed(void **state) {
        _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;
        char file[96];
        uint64_t seq = 0, last = 0, waiting = 0;

        for (unsigned life = 0; life < 5; life++) {
                _cleanup_(ipc_client_freep) IpcClient *c = NULL;
                pid_t pid = start();

                assert_int_equal(ipc_client_new(&c, NULL, path), 0);
                for (unsigned n = 0; n < 20; n++) {
                        assert_int_equal(append(c, approval(n), &seq, NULL), 0);
                        assert_true(seq > last);
                        last = seq;
                }
                kill_and_wait(pid);
        }

        (void) snprintf(file, sizeof(file), "%s/" AUDIT_OUTBOX, folder);
        assert_int_equal(audit_outbox_open(&o, file), 0);
        assert_int_equal(audit_outbox_head(o)->seq, last);
        assert_int_equal(audit_outbox_foreach(o, count, &waiting), 0);
        assert_int_equal(waiting, last); /* no journal kept any */
}

static int count_twos(AuditRecord *r, const char *text, size_t size, void *userdata) {
        *(uint64_t *) userdata += strstr(r->value[AUDIT_DATA], "\"n\":2") != NULL;
        return 0;
}

static json_t *keyed(const char *key, unsigned n) {
        json_t *j = approval(n);

        assert_int_equal(json_object_set_new(j, "key", json_string(key)), 0);
        return j;
}

/* A record that was written and whose answer was lost, since the daemon was killed between the two, is sent again: there is one. */
static void test_killed_before_the_answer(void **state) {
        _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;
        _cleanup_(ipc_client_freep) IpcClient *c = NULL, *again = NULL;
        uint64_t first = 0, lost = 0, seq = 0, waiting = 0;
        int status = 0;
        char file[96];
        pid_t pid = start();

        assert_int_equal(ipc_client_new(&c, NULL, path), 0);
        assert_int_equal(append(c, keyed("k1", 1), &first, NULL), 0);
        *fuse = 1;
        assert_true(append(c, keyed("k2", 2), NULL, NULL) < 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

        pid = start();
        assert_int_equal(ipc_client_new(&again, NULL, path), 0);
        assert_int_equal(append(again, keyed("k2", 2), &lost, NULL), 0);
        assert_int_equal(lost, first + 1); /* before this life's audit.started */
        assert_int_equal(append(again, keyed("k1", 1), &seq, NULL), 0);
        assert_int_equal(seq, first);

        /* the control: equal events that both happened are two, and so is what has the key of another */
        seq = lost;
        for (unsigned i = 0; i < 4; i++) {
                uint64_t last = seq;

                assert_int_equal(append(again, i == 0 ? keyed("k3", 2) : i == 1 ? keyed("k3", 3) : approval(2), &seq, NULL), 0);
                assert_true(seq > last);
        }
        kill_and_wait(pid);

        (void) snprintf(file, sizeof(file), "%s/" AUDIT_OUTBOX, folder);
        assert_int_equal(audit_outbox_open(&o, file), 0);
        assert_int_equal(audit_outbox_foreach(o, count_twos, &waiting), 0);
        assert_int_equal(waiting, 4); /* under k2, k3, and twice under none */
}

/* Not a limit of time, only printed: one append waits for one commit. */
static void test_latency(void **state) {
        enum { CALLS = 300 };
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        uint64_t before, after;
        pid_t pid = start();

        assert_int_equal(ipc_client_new(&c, NULL, path), 0);
        assert_int_equal(append(c, approval(0), NULL, NULL), 0);
        before = time_monotonic();
        for (unsigned n = 0; n < CALLS; n++)
                assert_int_equal(append(c, approval(n), NULL, NULL), 0);
        after = time_monotonic();
        print_message("one append: %llu us\n", (unsigned long long) (after - before) / CALLS);
        kill_and_wait(pid);
}

int main(void) {
#define T(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
        const struct CMUnitTest tests[] = { T(test_refusals), T(test_killed), T(test_killed_before_the_answer), T(test_latency) };

        fuse = mmap(NULL, sizeof(*fuse), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (fuse == MAP_FAILED)
                return 1;

        return cmocka_run_group_tests(tests, NULL, NULL);
}
