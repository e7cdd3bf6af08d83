/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * auditd on a real socket, without a journal: what is acknowledged is in the outbox, whatever happens to the process. The test
 * must be root, as operators are known by group on the image only.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
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
#include "audit/audit-share.h"
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

/* "as" in the parameters names the unit that calls, in the place of the kernel's word. */
static int on_call(IpcCall *call, json_t *params, void *userdata) {
        static const struct { const char *prefix; PeerRole role; } roles[] = { { "anchor-run@", PEER_RUN }, { "anchor-net@", PEER_NET } };
        const char *as = json_string_value(json_object_get(params, "as"));
        Peer *peer = ipc_call_peer(call);

        for (size_t i = 0; as && i < ELEMENTSOF(roles); i++)
                if (strncmp(as, roles[i].prefix, strlen(roles[i].prefix)) == 0) {
                        free(peer->unit);
                        peer->unit = strdup(as);
                        peer->roles = PEER_ROOT | roles[i].role; /* root: the next call of this connection comes here as well */
                        (void) snprintf(peer->run, sizeof(peer->run), "%.*s", ID_LENGTH, strchr(as, '@') + 1);
                }
        (void) json_object_del(params, "as");
        for (const IpcMethod *m = audit_server_methods; m->name; m++)
                if (strcmp(m->name, ipc_call_method(call)) == 0)
                        return m->handler(call, params, userdata);
        return -ENOSYS;
}

static const IpcMethod played[] = {
        { APPEND, PEER_ROOT, on_call },
        { AUDIT_INTERFACE ".Ping", PEER_ROOT, on_call },
        {}
};

/* The daemon, in a process of its own that dies with us. */
static void serve(int listen_fd) {
        AuditServerOptions options = { .state_dir = folder, .journal_socket = "/nowhere/socket", .journal_dir = "/nowhere" };
        sd_event *event = NULL;
        AuditServer *server = NULL;
        IpcServer *ipc = NULL;
        int r;

        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        r = sd_event_new(&event);
        if (r >= 0)
                r = audit_server_new(&server, event, &options);
        if (r >= 0)
                r = ipc_server_new(&ipc, event, played, server);
        if (r >= 0) {
                ipc_server_set_disconnect(ipc, audit_server_on_gone);
                r = ipc_server_listen_fd(ipc, listen_fd);
        }
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

/* ---- shares ---- */

#define RUN_A "anchor-run@r3k9x0a1b2c3d.service"
#define NET_A "anchor-net@r3k9x0a1b2c3d.service"
#define RUN_B "anchor-run@r3k9x0a1b2c3e.service"

static json_t *as_unit(const char *unit, size_t size) {
        const char *event = strcmp(unit, NET_A) == 0 ? "egress.totals" : "run.guest";
        _cleanup_free_ char *text = malloc(size + 1);

        memset(text, 'x', size);
        text[size] = 0;
        return json_pack("{s:s, s:s, s:{s:s, s:s, s:i, s:i}}", "as", unit, "event", event, "data", "kind", "x", "text", text, "rejected", 1, "logged", 1);
}

typedef struct Written {
        uint64_t a, b, limited_a, limited_all;
} Written;

static int count_written(AuditRecord *r, const char *text, size_t size, void *userdata) {
        bool limited = strcmp(r->value[AUDIT_EVENT], "audit.limited") == 0;
        Written *w = userdata;

        w->a += strcmp(r->value[AUDIT_SOURCE], RUN_A) == 0 || strcmp(r->value[AUDIT_SOURCE], NET_A) == 0;
        w->b += strcmp(r->value[AUDIT_SOURCE], RUN_B) == 0;
        w->limited_all += limited;
        w->limited_a += limited && strcmp(r->value[AUDIT_RUN], "r3k9x0a1b2c3d") == 0;
        return 0;
}

static Written written(void) {
        _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;
        Written w = {};
        char file[96];

        (void) snprintf(file, sizeof(file), "%s/" AUDIT_OUTBOX, folder);
        assert_int_equal(audit_outbox_open(&o, file), 0);
        assert_int_equal(audit_outbox_foreach(o, count_written, &w), 0);
        return w;
}

/* What a unit of a run writes in all has an end, also across a restart, and it is that unit's alone. */
static void test_total(void **state) {
        enum { SIZE = 40 * 1024 };
        uint64_t most = audit_share_total(PEER_NET) / SIZE + 1, n = 0;
        _cleanup_free_ char *error = NULL, *again = NULL, *other = NULL;
        _cleanup_(ipc_client_freep) IpcClient *c = NULL, *d = NULL;
        pid_t pid = start();
        Written w;

        assert_int_equal(ipc_client_new(&c, NULL, path), 0);
        while (append(c, as_unit(NET_A, SIZE), NULL, &error) == 0)
                assert_true(++n <= most);
        assert_string_equal(error, AUDIT_INTERFACE ".Unavailable");
        assert_true(n >= most / 2);
        kill_and_wait(pid);

        pid = start();
        assert_int_equal(ipc_client_new(&d, NULL, path), 0);
        assert_int_equal(append(d, as_unit(NET_A, 1), NULL, &again), -EREMOTEIO);
        assert_string_equal(again, AUDIT_INTERFACE ".Unavailable");
        /* the controls: another unit of that run, another run, and who is of no run */
        assert_int_equal(append(d, as_unit(RUN_A, SIZE), NULL, &other), 0);
        assert_int_equal(append(d, as_unit(RUN_B, SIZE), NULL, &other), 0);
        kill_and_wait(pid);

        w = written();
        assert_int_equal(w.a, n + 1);
        assert_int_equal(w.b, 1);
        assert_true(w.limited_a >= 1 && w.limited_a <= 2 && w.limited_all == w.limited_a); /* once in each life */
}

static json_t *as_unit_keyed(const char *unit, const char *key) {
        json_t *j = as_unit(unit, 1);

        assert_int_equal(json_object_set_new(j, "key", json_string(key)), 0);
        return j;
}

/* What is sent again and was written already takes nothing of a share. */
static void test_again_is_free(void **state) {
        enum { SIZE = 40 * 1024 };
        uint64_t most = audit_share_total(PEER_NET) / SIZE + 1, first = 0, seq = 0;
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        _cleanup_free_ char *error = NULL;
        pid_t pid = start();
        json_t *params;

        assert_int_equal(ipc_client_new(&c, NULL, path), 0);
        for (uint64_t n = 0; n < 2 * most; n++) {
                params = as_unit(NET_A, SIZE);
                assert_int_equal(json_object_set_new(params, "key", json_string("k")), 0);
                assert_int_equal(append(c, params, &seq, NULL), 0);
                first = first ?: seq;
                assert_int_equal(seq, first);
        }
        /* the control: what is another does */
        for (uint64_t n = 0; append(c, as_unit(NET_A, SIZE), NULL, &error) == 0; n++)
                assert_true(n <= most);
        kill_and_wait(pid);
}

/* What one run sends again is known, however much another has sent meanwhile. */
static void test_told_by_runs(void **state) {
        enum { MANY = AUDIT_OUTBOX_TOLD_MAX + 300 };
        _cleanup_(ipc_client_freep) IpcClient *a = NULL, *b = NULL;
        uint64_t first = 0, again = 0, last = 0;
        pid_t pid = start();
        char key[16];

        assert_int_equal(ipc_client_new(&a, NULL, path), 0);
        assert_int_equal(ipc_client_new(&b, NULL, path), 0);
        assert_int_equal(append(b, as_unit_keyed(RUN_B, "k"), &first, NULL), 0);
        for (unsigned i = 0; i < MANY;) {
                _cleanup_free_ char *error = NULL;

                (void) snprintf(key, sizeof(key), "k%u", i);
                if (append(a, as_unit_keyed(RUN_A, key), &last, &error) == 0)
                        i++;
                else /* it was too fast: that took a second, in which it may send more */
                        assert_string_equal(error, AUDIT_INTERFACE ".Unavailable");
        }
        assert_int_equal(append(b, as_unit_keyed(RUN_B, "k"), &again, NULL), 0);
        assert_int_equal(again, first);
        /* the controls: its own last is known as well, and another's key is another */
        assert_int_equal(append(a, as_unit_keyed(RUN_A, key), &again, NULL), 0);
        assert_int_equal(again, last);
        assert_int_equal(append(b, as_unit_keyed(RUN_B, key), &again, NULL), 0);
        assert_true(again > last);
        kill_and_wait(pid);
}

/* Until it has had so many answers, of whatever kind. */
static void on_flooded(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        enum { ANSWERS = 600 };
        unsigned *n = userdata;

        if (++*n == ANSWERS)
                _exit(0);
        assert_int_equal(ipc_client_call_async(c, APPEND, as_unit(RUN_A, 45000), NULL, 0, false, 0, on_flooded, n), 0);
}

static pid_t flood(void) {
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
                IpcClient *c = NULL;
                sd_event *event = NULL;
                unsigned n = 0;

                (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
                if (sd_event_new(&event) < 0 || ipc_client_new(&c, event, path) < 0)
                        _exit(1);
                ipc_client_set_parallel(c, 60);
                for (unsigned i = 0; i < 60; i++)
                        on_flooded(c, NULL, NULL, false, &n);
                (void) sd_event_loop(event);
                _exit(1);
        }
        return pid;
}

static void test_flood(void **state) {
        enum { CALLS = 1000, WEIGHT = 45000 };
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        uint64_t began = time_monotonic(), longest = 0, took, before, after;
        pid_t pid = start(), flooder = flood();
        int status;
        Written w;

        assert_int_equal(ipc_client_new(&c, NULL, path), 0);
        for (unsigned n = 0; n < CALLS; n++) {
                before = time_monotonic();
                assert_int_equal(append(c, as_unit(RUN_B, 100), NULL, NULL), 0);
                after = time_monotonic();
                longest = after - before > longest ? after - before : longest;
        }
        assert_int_equal(waitpid(flooder, &status, 0), flooder);
        assert_int_equal(status, 0);
        kill_and_wait(pid);
        took = time_monotonic() - began;
        print_message("the longest append beside a flood: %llu us\n", (unsigned long long) longest);

        w = written();
        assert_int_equal(w.b, CALLS);
        assert_true(w.a >= AUDIT_SHARE_BURST / (WEIGHT + 4096)); /* what it is due it got */
        assert_true(w.a <= (AUDIT_SHARE_BURST + took * AUDIT_SHARE_PER_SECOND / 1000000) / WEIGHT + AUDIT_SHARE_UNDER_WAY_MAX + 1);
        assert_true(w.limited_a >= 1 && w.limited_a <= 2 && w.limited_all == w.limited_a); /* its rate, its total, or both */
}

static unsigned n_fds(pid_t pid) {
        unsigned n = 0;
        char name[32];
        DIR *d;

        (void) snprintf(name, sizeof(name), "/proc/%d/fd", (int) pid);
        d = opendir(name);
        assert_non_null(d);
        while (readdir(d))
                n++;
        (void) closedir(d);
        return n;
}

/* Sends an Append with descriptors, on a connection of its own, and returns when the daemon has read it. */
static int send_append(const char *unit) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_json_ json_t *call = json_pack("{s:s, s:o}", "method", APPEND, "parameters", as_unit(unit, 1));
        _cleanup_free_ char *text = json_dumps(call, JSON_COMPACT);
        union { struct cmsghdr head; char room[CMSG_SPACE(8 * sizeof(int))]; } control = {};
        struct iovec iov = { .iov_base = text, .iov_len = strlen(text) + 1 };
        struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), unread = 1, passed = STDERR_FILENO;

        strcpy(address.sun_path, path);
        assert_int_equal(connect(fd, (struct sockaddr *) &address, sizeof(address)), 0);
        control.head = (struct cmsghdr) { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(8 * sizeof(int)) };
        for (size_t i = 0; i < 8; i++)
                memcpy(CMSG_DATA(&control.head) + i * sizeof(int), &passed, sizeof(int));
        assert_int_equal(sendmsg(fd, &m, MSG_NOSIGNAL), (ssize_t) iov.iov_len);
        while (unread > 0)
                assert_int_equal(ioctl(fd, SIOCOUTQ, &unread), 0);
        return fd;
}

/* Who is refused, and comes again on another connection at once, takes nobody's descriptors. */
static void test_refused_and_gone(void **state) {
        enum { TIMES = 200, KEPT = AUDIT_SHARE_HELD_MAX + 10, SLACK = 12 };
        _cleanup_(ipc_client_freep) IpcClient *c = NULL, *other = NULL;
        unsigned before, n, n_refused = 0;
        pid_t pid = start();
        int kept[KEPT];

        assert_int_equal(ipc_client_new(&c, NULL, path), 0);
        for (int r = 0; r >= 0;) {
                _cleanup_free_ char *error = NULL;

                r = append(c, as_unit(NET_A, 40 * 1024), NULL, &error);
        }
        assert_int_equal(ipc_client_new(&other, NULL, path), 0);
        assert_int_equal(append(other, approval(0), NULL, NULL), 0);
        before = n_fds(pid);
        for (size_t i = 0; i < TIMES; i++)
                (void) close(send_append(NET_A));
        assert_int_equal(append(other, approval(1), NULL, NULL), 0);
        assert_true(n_fds(pid) <= before + SLACK);

        /* of those that stay, so many hear a second later that they were refused, and the rest are hung up */
        for (size_t i = 0; i < KEPT; i++)
                kept[i] = send_append(NET_A);
        n = n_fds(pid);
        assert_true(n <= before + 2 * AUDIT_SHARE_HELD_MAX + SLACK); /* a socket and a pidfd each */
        for (size_t i = 0; i < KEPT; i++) {
                char answer[512];
                ssize_t size = recv(kept[i], answer, sizeof(answer) - 1, 0);

                answer[size > 0 ? size : 0] = 0;
                n_refused += strstr(answer, "Unavailable") != NULL;
                assert_true(size <= 0 || strstr(answer, "Unavailable"));
                (void) close(kept[i]);
        }
        assert_int_equal(n_refused, AUDIT_SHARE_HELD_MAX);
        kill_and_wait(pid);
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
        const struct CMUnitTest tests[] = { T(test_refusals), T(test_killed), T(test_killed_before_the_answer), T(test_total), T(test_again_is_free), T(test_told_by_runs), T(test_flood),
                                              T(test_refused_and_gone), T(test_latency) };

        fuse = mmap(NULL, sizeof(*fuse), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (fuse == MAP_FAILED)
                return 1;

        return cmocka_run_group_tests(tests, NULL, NULL);
}
