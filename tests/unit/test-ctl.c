/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchorctl as a whole against a small anchord of our own, over its socket. What its output is made of is test-ctl-format's. */

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "ctl/ctl-drain.h"
#include "ctl/ctl.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

#define ITEM "iaaaaaaaaaaaa"
#define ITEM_FAILS "ibbbbbbbbbbbb"
#define ITEM_HANGS "icccccccccccc"
#define ITEM_DROPS "idddddddddddd"
#define ITEM_SLOW "ieeeeeeeeeeee"
#define ITEM_WAITS "iffffffffffff"
#define RUN "raaaaaaaaaaaa"

/* ---- the other side ---- */

static sd_event *server_event;
static IpcCall *follower; /* ref; of the item that waits */

/* A file beside the socket, by which a test tells the server what to be like. */
static bool is_set(void *dump, const char *flag) {
        _cleanup_free_ char *path = text_format("%s-%s", (char *) dump, flag);

        return access(path, F_OK) == 0;
}

static int on_submit(IpcCall *call, json_t *params, void *userdata) {
        const char *workflow = ctl_string(params, "workflow"), *item = ITEM;

        if (strcmp(workflow, "nothing") == 0)
                return ipc_call_error(call, "NoSuchWorkflow", json_pack("{s:s}", "workflow", workflow));
        if (strcmp(workflow, "broken") == 0)
                return ipc_call_error(call, "BadInput", json_pack("{s:s, s:s, s:s}", "file", "/etc/x.json", "pointer", "/a", "reason", "bad\033[2J"));
        if (strcmp(workflow, "unfit") == 0)
                return ipc_call_error(call, "BadInput", json_pack("{s:s}", "reason", "the workflow needs a task"));
        if (strcmp(workflow, "hold") == 0)
                return ipc_call_refuse(call, "Conflict", "on hold");
        if (strcmp(workflow, "denied") == 0)
                return ipc_call_refuse(call, "Denied", "not you");
        if (strcmp(workflow, "twice") == 0)
                return ipc_call_reply(call, json_pack("{s:s, s:s, s:s}", "item", ITEM, "state", "duplicate", "reason", "item " ITEM_FAILS " with\033"));
        if (strcmp(workflow, "fails") == 0)
                item = ITEM_FAILS;
        if (strcmp(workflow, "waits") == 0)
                item = ITEM_WAITS;

        /* what a test looks at afterwards */
        if (strcmp(workflow, "code") == 0) {
                _cleanup_fd_ int fd = ipc_call_take_fd(call, 0), copy = -1;

                copy = open(userdata, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
                (void) io_copy(fd, copy, UINT64_MAX, NULL);
        }
        if (strcmp(workflow, "echo") == 0) {
                _cleanup_free_ char *text = json_canonical(params);
                _cleanup_fd_ int copy = open(userdata, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

                (void) io_write_full(copy, text, strlen(text));
        }
        return ipc_call_reply(call, json_pack("{s:s}", "item", item));
}

static json_t *an_item(const char *id, const char *state) {
        return json_pack("{s:{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:[{s:s, s:s, s:i, s:i, s:s, s:s, s:s}], s:[{s:s, s:s, s:s}]}}", "item",
                         "id", id, "state", state, "workflow", "code-fix", "task", "Fix \033[31mthe\n test",
                         "created", "2026-01-31T12:00:00.000Z", "attempt", 1, "max_attempts", 3, "cost_microusd", 4200,
                         "runs", "id", RUN, "stage", "work", "attempt", 1, "boots", 1, "created", "2026-01-31T12:00:00.000Z",
                         "finished", "2026-01-31T12:03:20.000Z", "outcome", "ok",
                         "history", "time", "2026-01-31T12:00:00.000Z", "to", state, "actor", "anchord.service");
}

enum { MANY = 1200 };

/* A page of many items, the numbers of which are their ids. */
static int list_many(IpcCall *call, json_t *params) {
        const char *after = ctl_string(params, "after");
        unsigned first = after ? (unsigned) atoi(after + 1) : 0, n = (unsigned) json_integer_value(json_object_get(params, "limit"));
        json_t *last;
        char id[16];

        if (n == 0 || n > 1000 || first >= MANY)
                return ipc_call_reply(call, NULL);
        if (n > 300)
                n = 300; /* it has too many bytes for more */
        for (unsigned i = first + 1; i < first + n && i < MANY; i++) {
                (void) snprintf(id, sizeof(id), "i%012u", i);
                (void) ipc_call_notify(call, an_item(id, "merged"));
        }
        (void) snprintf(id, sizeof(id), "i%012u", first + n < MANY ? first + n : MANY);
        last = an_item(id, "merged");
        if (first + n < MANY)
                (void) json_object_set_new(last, "truncated", json_true());
        return ipc_call_reply(call, last);
}

static int on_list(IpcCall *call, json_t *params, void *userdata) {
        if (strcmp(json_string_value(json_array_get(json_object_get(params, "states"), 0)) ?: "", "merged") == 0)
                return list_many(call, params);
        if (json_array_size(json_object_get(params, "states")) == 1 && strcmp(json_string_value(json_array_get(json_object_get(params, "states"), 0)), "submitted") == 0)
                return ipc_call_reply(call, an_item(ITEM, "queued"));
        if (json_array_size(json_object_get(params, "states")) == 1)
                return ipc_call_reply(call, NULL);
        (void) ipc_call_notify(call, an_item(ITEM, "running"));
        return ipc_call_reply(call, an_item(ITEM_FAILS, "failed"));
}

static int on_show(IpcCall *call, json_t *params, void *userdata) {
        json_t *reply, *item;

        if (strcmp(ctl_string(params, "item"), ITEM) != 0)
                return ipc_call_error(call, "NoSuchItem", NULL);
        reply = an_item(ITEM, "in_review");
        item = json_object_get(reply, "item");
        (void) json_object_set_new(item, "requester", json_string("uid 0"));
        (void) json_object_set_new(item, "evidence", json_pack("{s:s, s:s, s:{s:[ss]}, s:[{s:s, s:s, s:s, s:{s:i, s:{s:s}}}], s:b}", "run", RUN, "commit", "abcdef",
                                                               "egress", RUN, "d1", "d2", "facts", "name", "checks", "source", "guest", "outcome", "ok",
                                                               "reported", "exit_status", 0, "guest", "kernel", "6.12\033[31m", "anew", 1));
        return ipc_call_reply(call, reply);
}

/* Says what it was asked, in the rows. */
static int on_cost(IpcCall *call, json_t *params, void *userdata) {
        const char *by = ctl_string(params, "by");
        json_int_t since = json_integer_value(json_object_get(params, "since_usec"));

        if (strcmp(by, "day") == 0 && since == 0)
                return ipc_call_reply(call, json_pack("{s:s, s:b, s:[]}", "by", by, "truncated", 0, "rows"));
        return ipc_call_reply(call, json_pack("{s:s, s:b, s:[{s:s, s:s?, s:i, s:s, s:s, s:s, s:I, s:i, s:i, s:i, s:i, s:i}]}", "by", by, "truncated", 0, "rows",
                                              "day", "2026-01-31", "item", ctl_string(params, "item"), "attempt", 1, "run", RUN, "stage", "work",
                                              "model", "m\033[2J", "since", since, "calls", 1200, "failed", 2, "estimated", 1, "input_tokens", 34567, "cost_microusd", 1250000));
}

static int on_die(sd_event_source *s, uint64_t usec, void *userdata) {
        _exit(0);
}

static int on_follow(IpcCall *call, json_t *params, void *userdata) {
        const char *item = ctl_string(params, "item");
        json_int_t from = json_integer_value(json_object_get(params, "from"));

        if (strcmp(item, ITEM_DROPS) == 0 && from <= 1) {
                (void) ipc_call_notify(call, json_pack("{s:{s:i, s:s, s:s, s:s}}", "event", "seq", 1, "type", "output", "stream", "stdout",
                                                       "data", "one\n"));
                (void) ipc_call_ref(call);
                return sd_event_add_time_relative(server_event, NULL, CLOCK_MONOTONIC, 50 * 1000, 0, on_die, NULL);
        }
        if (strcmp(item, ITEM_HANGS) == 0) {
                (void) ipc_call_ref(call);
                return kill(ipc_call_peer(call)->pid, SIGINT);
        }

        if (strcmp(item, ITEM_WAITS) == 0) {
                follower = ipc_call_ref(call);
                return ipc_call_notify(call, json_pack("{s:{s:i, s:s, s:s}}", "event", "seq", 1, "type", "state", "to", "queued"));
        }

        (void) ipc_call_notify(call, json_pack("{s:{s:i, s:s, s:s, s:s, s:s}}", "event", "seq", 2, "time", "2026-01-31T12:34:56.789Z",
                                               "type", "state", "to", "running", "run", RUN));
        (void) ipc_call_notify(call, json_pack("{s:{s:i, s:s, s:s, s:s, s:s, s:s}}", "event", "seq", 3, "type", "output", "stream",
                                               "stdout", "step", "exec", "run", RUN, "data", "hello \033]0;x\a\n"));
        (void) ipc_call_notify(call, json_pack("{s:{s:i, s:s, s:s, s:s, s:s}}", "event", "seq", 4, "type", "output", "stream", "stderr",
                                               "step", "exec", "data", "oops\n"));
        (void) ipc_call_notify(call, json_pack("{s:{s:i, s:s, s:s, s:s, s:{s:i, s:s}}}", "event", "seq", 1, "type", "note", "kind", "booting",
                                               "text", "{}", "data", "boots", 1, "accel", "tcg\033"));
        (void) ipc_call_notify(call, json_pack("{s:{s:i, s:s, s:s, s:s, s:i}}", "event", "seq", 5, "type", "step", "name", "exec", "phase",
                                               "finished", "status", 3));
        if (strcmp(item, ITEM_FAILS) == 0)
                (void) ipc_call_notify(call, json_pack("{s:{s:i, s:s, s:s, s:s}}", "event", "seq", 6, "type", "state", "to", "exhausted", "reason", "stopped by uid 0"));
        if (strcmp(item, ITEM_FAILS) == 0)
                return ipc_call_reply(call, json_pack("{s:{s:s, s:s, s:s}}", "event", "type", "end", "state", "exhausted", "reason", "x"));
        return ipc_call_reply(call, json_pack("{s:{s:s, s:s}}", "event", "type", "end", "state", "in_review"));
}

static int on_result(IpcCall *call, json_t *params, void *userdata) {
        _cleanup_fd_ int fd = io_memfd("diff", "+a\033[2Jb\n", 8);

        assert_true(ipc_call_push_fd(call, fd) == 0);
        (void) TAKE_FD(fd);
        return ipc_call_reply(call, NULL);
}

static int on_answer_later(sd_event_source *s, uint64_t usec, void *userdata) {
        _cleanup_(ipc_call_unrefp) IpcCall *call = userdata;

        return ipc_call_reply(call, NULL);
}

static int on_stop(IpcCall *call, json_t *params, void *userdata) {
        if (strcmp(ctl_string(params, "item"), ITEM_SLOW) != 0)
                return ipc_call_reply(call, NULL);
        return sd_event_add_time_relative(server_event, NULL, CLOCK_MONOTONIC, 1300 * 1000, 0, on_answer_later, ipc_call_ref(call));
}

static int on_stop_all(IpcCall *call, json_t *params, void *userdata) {
        return ipc_call_reply(call, json_pack("{s:[s]}", "stopped", json_is_true(json_object_get(params, "hold")) ? ITEM : ITEM_FAILS));
}

static int on_hold(IpcCall *call, json_t *params, void *userdata) {
        return is_set(userdata, "operator") ? ipc_call_reply(call, NULL) : ipc_call_error(call, "org.varlink.service.PermissionDenied", NULL);
}

static int on_accept(IpcCall *call, json_t *params, void *userdata) {
        return ipc_call_reply(call, NULL);
}

/* Who waited was told why, and goes on. */
static int on_waited(sd_event_source *s, uint64_t usec, void *userdata) {
        _cleanup_(ipc_call_unrefp) IpcCall *call = TAKE_PTR(follower);

        return call ? ipc_call_reply(call, json_pack("{s:{s:s, s:s}}", "event", "type", "end", "state", "in_review")) : 0;
}

static char drained_for[32];
static unsigned n_asked; /* since the drain began */

/* While there is a drain, nothing runs, except while one "for long". One "for nobody" is replaced by another's at once. In one "over a restart"
 * the first answer is of an anchord that does not know its runs yet, and the second has one. */
static int on_drain(IpcCall *call, json_t *params, void *userdata) {
        const char *reason = ctl_string(params, "reason");

        n_asked = 0;
        (void) snprintf(drained_for, sizeof(drained_for), "%s", strcmp(reason, "nobody") == 0 ? "another" : reason);
        return ipc_call_reply(call, NULL);
}

static int on_undrain(IpcCall *call, json_t *params, void *userdata) {
        *drained_for = '\0';
        return ipc_call_reply(call, NULL);
}

static int on_status(IpcCall *call, json_t *params, void *userdata) {
        bool restart = strcmp(drained_for, "over a restart") == 0;

        n_asked++;
        if (follower)
                (void) sd_event_add_time_relative(server_event, NULL, CLOCK_MONOTONIC, 300 * 1000, 0, on_waited, NULL);
        if (is_set(userdata, "stranger"))
                return ipc_call_error(call, "org.varlink.service.PermissionDenied", NULL);
        if (is_set(userdata, "moved"))
                return ipc_call_reply(call, json_pack("{s:{s:b, s:s, s:s}}", "site_policy", "waits", 1, "digest", "d2", "previous", "d1"));
        if (strcmp(drained_for, "long") == 0 || (restart && n_asked == 2))
                return ipc_call_reply(call, json_pack("{s:b, s:[{s:s}], s:{s:s, s:s, s:i}}", "ready", 1, "runs", "run", RUN, "drain", "actor", "uid 0",
                                                      "reason", drained_for, "left_s", 60));
        if (*drained_for)
                return ipc_call_reply(call, json_pack("{s:b, s:[], s:{s:s, s:s, s:i}}", "ready", !restart || n_asked > 1, "runs", "drain", "actor", "uid 0",
                                                      "reason", drained_for, "left_s", 60));
        if (is_set(userdata, "full") || is_set(userdata, "verifying"))
                return ipc_call_reply(call, json_pack("{s:b, s:[{}, {}], s:i, s:i}", "ready", 1, "runs", "max_runs", is_set(userdata, "free") ? 3 : 2,
                                                      "verify_waiting", is_set(userdata, "verifying")));
        if (is_set(userdata, "free"))
                return ipc_call_reply(call, json_pack("{s:b, s:b, s:{s:s}, s:{s:s, s:s, s:i, s:i}}", "ready", 1, "hold", 0, "enforcers", "auditd", "ok",
                                                      "accelerator", "configured", "auto", "accel", "kvm", "probe_ms", 10001,
                                                      "boot_timeout_s", is_set(userdata, "patient") ? 16 : 15));
        return ipc_call_reply(call, json_pack("{s:{s:I, s:I, s:s}, s:s, s:{}, s:[], s:[{s:s, s:s, s:s, s:s}], s:b, s:{s:s, s:s}, s:{s:s, s:s, s:s}}", "space", "free", (json_int_t) 80156082176, "reserve", (json_int_t) 0, "of", "uid 0",
                                              "hold_reason", "stopped by uid 0", "counts", "templates", "runs", "run",
                                              "raaaaaaaaaaaa", "item", ITEM, "stage", "work", "phase", "running", "hold", 1, "enforcers", "egressd", "ok", "auditd",
                                              "lost", "accelerator", "configured", "auto", "accel", "tcg", "reason", "no hello"));
}

static const IpcMethod methods[] = {
        { "io.anchorhold.Manager.Submit", PEER_OTHER, on_submit },   { "io.anchorhold.Manager.List", PEER_OTHER, on_list },
        { "io.anchorhold.Manager.Show", PEER_OTHER, on_show },       { "io.anchorhold.Manager.Follow", PEER_OTHER, on_follow },
        { "io.anchorhold.Manager.Cost", PEER_OTHER, on_cost },       { "io.anchorhold.Manager.AcceptPolicy", PEER_OTHER, on_accept },
        { "io.anchorhold.Manager.Logs", PEER_OTHER, on_follow },     { "io.anchorhold.Manager.Result", PEER_OTHER, on_result },
        { "io.anchorhold.Manager.StopAll", PEER_OTHER, on_stop_all }, { "io.anchorhold.Manager.Stop", PEER_OTHER, on_stop },
        { "io.anchorhold.Manager.Drain", PEER_OTHER, on_drain },     { "io.anchorhold.Manager.Undrain", PEER_OTHER, on_undrain },
        { "io.anchorhold.Manager.Hold", PEER_OTHER, on_hold },  { "io.anchorhold.Manager.Status", PEER_OTHER, on_status },
        {},
};

/* Never outlives its parent, also if that is gone already; and holds nothing of whoever runs the test. */
static void bind_to_parent(pid_t parent, int keep_fd) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
                _exit(1);
        if (keep_fd > 3)
                (void) close_range(3, (unsigned) keep_fd - 1, 0);
        (void) close_range((unsigned) keep_fd + 1, ~0U, 0);
}

static void serve(int listen_fd, char *dump) {
        IpcServer *server = NULL;

        if (sd_event_new(&server_event) < 0 ||
            ipc_server_new(&server, server_event, methods, dump) < 0 || ipc_server_listen_fd(server, listen_fd) < 0)
                _exit(1);
        (void) sd_event_loop(server_event);
        _exit(0);
}

typedef struct Fixture {
        char folder[32], path[64], dump[64];
        pid_t server;
        char *out, *err; /* owned; of the last call */
} Fixture;

static Fixture fixture;

/* The keeper starts a new server whenever one died, as systemd does. */
static int setup(void **state) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        pid_t test;
        int fd;

        fixture = (Fixture) { .folder = "/tmp/anchorctl-XXXXXX" };
        assert_non_null(mkdtemp(fixture.folder));
        (void) snprintf(fixture.path, sizeof(fixture.path), "%s/api.sock", fixture.folder);
        (void) snprintf(fixture.dump, sizeof(fixture.dump), "%s/dump", fixture.folder);

        strcpy(address.sun_path, fixture.path);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(fd, (struct sockaddr *) &address, sizeof(address)), 0);
        assert_int_equal(listen(fd, 64), 0);

        test = getpid();
        fixture.server = fork();
        assert_true(fixture.server >= 0);
        if (fixture.server == 0) {
                (void) setpgid(0, 0);
                bind_to_parent(test, fd);
                for (;;) {
                        pid_t keeper = getpid(), pid = fork();

                        if (pid == 0) {
                                bind_to_parent(keeper, fd);
                                serve(fd, fixture.dump);
                        }
                        (void) waitpid(pid, NULL, 0);
                }
        }
        (void) setpgid(fixture.server, fixture.server);
        (void) close(fd);
        return 0;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        return remove(path);
}

static int teardown(void **state) {
        (void) kill(-fixture.server, SIGKILL); /* its group: the server of the moment as well */
        (void) waitpid(fixture.server, NULL, 0);
        (void) nftw(fixture.folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
        free(fixture.out);
        free(fixture.err);
        return 0;
}

/* Runs "anchorctl ARGS…"; out and err are then in the fixture. */
#define CTL(...) run_ctl((char *[]) { (char *) "anchorctl", __VA_ARGS__, NULL }, (Ctl) {})
#define CTL_TTY(...) run_ctl((char *[]) { (char *) "anchorctl", __VA_ARGS__, NULL }, (Ctl) { .out_tty = true })
#define CTL_REDRAW(...) run_ctl((char *[]) { (char *) "anchorctl", __VA_ARGS__, NULL }, (Ctl) { .err_tty = true, .err_redraw = true })

/* With that as standard output, or error. */
#define CTL_INTO(out_file, err_file, ...) run_ctl((char *[]) { (char *) "anchorctl", __VA_ARGS__, NULL }, (Ctl) { .out = out_file, .err = err_file })

static CtlExit run_ctl(char **argv, Ctl ctl) {
        size_t out_size, err_size;
        char *copy[32] = {};
        int argc = 0;
        CtlExit r;

        ctl.api_path = fixture.path;
        while (argv[argc]) {
                copy[argc] = argv[argc];
                argc++;
        }
        free(fixture.out);
        free(fixture.err);
        fixture.out = fixture.err = NULL;
        if (!ctl.out)
                ctl.out = open_memstream(&fixture.out, &out_size);
        if (!ctl.err)
                ctl.err = open_memstream(&fixture.err, &err_size);
        ctl.o.no_pager = true;
        r = ctl_run(&ctl, argc, copy);
        (void) fclose(ctl.out);
        (void) fclose(ctl.err);
        return r;
}

#define S(text) ((char *) (text))

static void set(const char *flag, bool on) {
        _cleanup_free_ char *path = text_format("%s-%s", fixture.dump, flag);

        if (on)
                assert_int_equal(io_write_file_atomic(AT_FDCWD, path, "", 0, 0644), 0);
        else
                assert_int_equal(unlink(path), 0);
}

static void assert_lacks(const char *text, const char *part) {
        if (strstr(text, part))
                fail_msg("\"%s\" is in:\n%s", part, text);
}

static void assert_has(const char *text, const char *part) {
        if (!strstr(text, part))
                fail_msg("\"%s\" is not in:\n%s", part, text);
}

static void shell(const char *format, ...) {
        _cleanup_free_ char *command = NULL;
        va_list ap;

        va_start(ap, format);
        assert_true(vasprintf(&command, format, ap) > 0);
        va_end(ap);
        assert_int_equal(system(command), 0);
}

#define GIT_AS "git -c user.name=t -c user.email=t@example.org -c init.defaultBranch=main "

/* ---- tests ---- */

static void test_usage(void **state) {
        assert_int_equal(CTL(NULL), CTL_USAGE);
        assert_has(fixture.err, "A verb is missing");
        assert_int_equal(CTL(S("frobnicate")), CTL_USAGE);
        assert_has(fixture.err, "no verb \"frobnicate\"");
        assert_int_equal(CTL(S("frobnicate"), S("x")), CTL_USAGE);
        assert_has(fixture.err, "no verb \"frobnicate\".");
        assert_int_equal(CTL(S("policy")), CTL_USAGE);
        assert_has(fixture.err, "check, explain, test, import, log, allow, deny, reload, accept.");
        assert_int_equal(CTL(S("audit")), CTL_USAGE);
        assert_has(fixture.err, "one of: export, verify.");
        assert_int_equal(CTL(S("help"), S("policy"), S("nothing")), CTL_USAGE);
        assert_has(fixture.err, "check, explain,");
        assert_int_equal(CTL(S("policy"), S("nothing")), CTL_USAGE);
        assert_has(fixture.err, "policy nothing");
        assert_int_equal(CTL(S("list"), S("--nothing")), CTL_USAGE);
        assert_has(fixture.err, "no option --nothing");
        assert_int_equal(CTL(S("list"), S("-x")), CTL_USAGE);
        assert_has(fixture.err, "no option -x");
        assert_int_equal(CTL(S("list"), S("--repo=x")), CTL_USAGE);
        assert_has(fixture.err, "\"list\" has no option --repo");
        assert_has(fixture.err, "anchorctl list --help");
        assert_int_equal(CTL(S("list"), S("--limit")), CTL_USAGE);
        assert_has(fixture.err, "--limit needs a value");
        assert_int_equal(CTL(S("list"), S("--all=yes")), CTL_USAGE);
        assert_has(fixture.err, "--all takes no value");
        assert_int_equal(CTL(S("list"), S("--limit=0")), CTL_USAGE);
        assert_int_equal(CTL(S("list"), S("--limit=-1")), CTL_USAGE);
        assert_int_equal(CTL(S("list"), S("--json=xml")), CTL_USAGE);
        assert_int_equal(CTL(S("list"), S("--state=sleeping")), CTL_USAGE);
        assert_int_equal(CTL(S("list"), S("--all"), S("--state=queued")), CTL_USAGE);
        assert_int_equal(CTL(S("show")), CTL_USAGE);
        assert_int_equal(CTL(S("show"), S("x")), CTL_USAGE);
        assert_has(fixture.err, "is no item");
        assert_int_equal(CTL(S("logs"), S(ITEM), S(ITEM)), CTL_USAGE);
        assert_int_equal(CTL(S("stop")), CTL_USAGE);
        assert_int_equal(CTL(S("stop"), S("--hold"), S(ITEM)), CTL_USAGE);
        assert_int_equal(CTL(S("stop"), S("--all"), S(ITEM)), CTL_USAGE);
        assert_int_equal(CTL(S("submit"), S("--task=x")), CTL_USAGE);
        assert_has(fixture.err, "--workflow= is missing");
        assert_int_equal(CTL(S("submit"), S("--workflow=x"), S("--")), CTL_USAGE);
        assert_int_equal(CTL(S("submit"), S("--workflow=x"), S("--base=HEAD")), CTL_USAGE);
        assert_int_equal(CTL(S("submit"), S("--workflow=x"), S("--task=a"), S("--task-file=b")), CTL_USAGE);
        assert_int_equal(CTL(S("submit"), S("--workflow=x"), S("--workflow=y")), CTL_USAGE);
        assert_int_equal(CTL(S("host"), S("drain"), S("--within=soon")), CTL_USAGE);
        assert_has(fixture.err, "takes a time");
        assert_int_equal(CTL(S("host"), S("drain"), S("now")), CTL_USAGE);
        assert_int_equal(CTL(S("host"), S("undrain"), S("--within=1s")), CTL_USAGE);
        assert_int_equal(CTL(S("host")), CTL_USAGE);
        assert_has(fixture.err, "drain, undrain");
        assert_int_equal(CTL(S("policy"), S("log"), S("x")), CTL_USAGE);
        assert_int_equal(CTL(S("policy"), S("explain"), S("x"), S("host")), CTL_USAGE);
        assert_int_equal(CTL(S("policy"), S("explain"), S("x"), S("host:0")), CTL_USAGE);
        assert_int_equal(CTL(S("policy"), S("explain"), S("x"), S("192.0.2.1.1:443")), CTL_USAGE);
        assert_has(fixture.err, "is no host name");
        assert_has(fixture.err, "anchorctl policy explain --help");
        assert_int_equal(CTL(S("policy"), S("log"), S("--follow"), S(ITEM)), CTL_USAGE);
        assert_int_equal(CTL(S("policy"), S("log"), S("--follow"), S("--suggest"), S(RUN)), CTL_USAGE);
}

static void test_help(void **state) {
        assert_int_equal(CTL(S("--help")), CTL_OK);
        for (CtlVerb v = 0; v < _VERBS; v++) {
                char name[32], *space;

                assert_has(fixture.out, ctl_verbs[v].name);
                (void) snprintf(name, sizeof(name), "%s", ctl_verbs[v].name);
                space = strchr(name, ' ');
                if (space)
                        *space = '\0';
                /* operands do not matter with --help */
                if (space)
                        assert_int_equal(CTL(name, space + 1, S("-h")), CTL_OK);
                else
                        assert_int_equal(CTL(name, S("-h")), CTL_OK);
                assert_has(fixture.out, ctl_verbs[v].summary);
                assert_int_equal(CTL(S("--help")), CTL_OK);
        }
        assert_int_equal(CTL(S("help"), S("policy"), S("log")), CTL_OK);
        assert_has(fixture.out, "--blocked");
        assert_int_equal(CTL(S("help"), S("policy")), CTL_OK);
        assert_has(fixture.out, "anchorctl policy VERB");
        assert_has(fixture.out, "  policy log RUN|ITEM ");
        assert_lacks(fixture.out, "\n  host ");
        assert_int_equal(CTL(S("policy"), S("--help")), CTL_OK);
        assert_has(fixture.out, "anchorctl policy VERB");
        assert_int_equal(CTL(S("help"), S("nothing")), CTL_USAGE);
        assert_int_equal(CTL(S("--version")), CTL_OK);
        assert_has(fixture.out, "anchorhold ");
}

/* Options on either side of the verb, and what follows "--". */
static void test_submit(void **state) {
        _cleanup_free_ char *text = NULL;

        assert_int_equal(CTL(S("-w"), S("echo"), S("submit"), S("--task"), S("do it"), S("--"), S("ls"), S("--task"), S("--")), CTL_OK);
        assert_string_equal(fixture.out, ITEM "\n");
        assert_int_equal(io_read_file(AT_FDCWD, fixture.dump, 4096, &text, &(size_t) {}), 0);
        assert_string_equal(text, "{\"command\":[\"ls\",\"--task\",\"--\"],\"options\":{},\"task\":\"do it\",\"workflow\":\"echo\"}");

        assert_int_equal(CTL(S("submit"), S("--workflow=echo"), S("--json=short")), CTL_OK);
        assert_string_equal(fixture.out, "{\"item\":\"" ITEM "\"}\n");

        assert_int_equal(CTL(S("submit"), S("--workflow=echo"), S("--task-file=/nonexistent/x")), CTL_NOT_FOUND);
        assert_int_equal(CTL(S("submit"), S("--workflow=echo"), S("--task=\xff")), CTL_USAGE);
        assert_has(fixture.err, "UTF-8");
}

static void test_exit_codes(void **state) {
        assert_int_equal(CTL(S("submit"), S("--workflow=nothing")), CTL_NOT_FOUND);
        assert_has(fixture.err, "there is no workflow \"nothing\"");
        assert_int_equal(CTL(S("submit"), S("--workflow=broken")), CTL_REFUSED);
        assert_has(fixture.err, "/etc/x.json: /a: bad\\x1b[2J");
        assert_int_equal(CTL(S("submit"), S("--workflow=unfit")), CTL_USAGE);
        assert_int_equal(CTL(S("submit"), S("--workflow=hold")), CTL_CONFLICT);
        assert_int_equal(CTL(S("submit"), S("--workflow=denied")), CTL_REFUSED);
        assert_int_equal(CTL(S("submit"), S("--workflow=twice"), S("--source=x")), CTL_CONFLICT);
        assert_string_equal(fixture.out, ITEM "\n");
        assert_has(fixture.err, ITEM " is a duplicate, and nothing is done for it: item " ITEM_FAILS " with\\x1b.");
        assert_int_equal(CTL(S("submit"), S("--workflow=twice"), S("--source=x"), S("--json=short")), CTL_CONFLICT);
        assert_has(fixture.out, "\"duplicate\":\"item " ITEM_FAILS);
        assert_int_equal(CTL(S("show"), S(ITEM_FAILS)), CTL_NOT_FOUND);
        assert_int_equal(CTL(S("release")), CTL_REFUSED);
        assert_has(fixture.err, "anchorhold-operators");

        assert_int_equal(ctl_exit_of_state("in_review", NULL), CTL_OK);
        assert_int_equal(ctl_exit_of_state("closed", "nothing to review"), CTL_OK);
        assert_int_equal(ctl_exit_of_state("failed", NULL), CTL_FAILED);
        assert_int_equal(ctl_exit_of_state("exhausted", NULL), CTL_FAILED);
        assert_int_equal(ctl_exit_of_state("exhausted", "over budget: $5"), CTL_OVER_BUDGET);
        assert_int_equal(ctl_exit_of_state("cancelled", NULL), CTL_FAILED);
        assert_int_equal(ctl_exit_of_state("rejected", NULL), CTL_REFUSED);
        assert_int_equal(ctl_exit_of_state("duplicate", NULL), CTL_CONFLICT);
        assert_int_equal(ctl_exit_of_state("", NULL), CTL_FAILED);

        (void) unlink(fixture.path);
        assert_int_equal(CTL(S("status")), CTL_FAILED);
        assert_has(fixture.err, "systemctl start anchord.socket");
        assert_int_equal(CTL(S("stop"), S("--all")), CTL_FAILED);
        assert_has(fixture.err, "anchorhold-runs.slice");
        assert_int_equal(CTL(S("logs"), S("-f"), S(ITEM)), CTL_FAILED);
        assert_has(fixture.err, "anchord.socket is not running");
}

/* What a user who is not root gets: the exit status, if `text` is said, or 255. */
static int as_nobody(char **argv, const char *text) {
        pid_t pid = fork();
        int status = -1;

        if (pid == 0) {
                CtlExit r;

                if (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0)
                        _exit(255);
                r = run_ctl(argv, (Ctl) {});
                if (!strstr(fixture.err, text) && !strstr(fixture.out, text))
                        (void) dprintf(STDERR_FILENO, "%s: %s\n", argv[1], fixture.err);
                else
                        _exit((int) r);
                _exit(255);
        }
        assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        return WEXITSTATUS(status);
}

#define AS_NOBODY(text, ...) as_nobody((char *[]) { (char *) "anchorctl", __VA_ARGS__, NULL }, text)

/* "Permission denied" is the same status wherever it comes from, and what is not there another. */
static void test_file_statuses(void **state) {
        static const char *const parts[] = { "shut", "unreadable/.git", "bare/objects" };
        _cleanup_free_ char *shut = text_format("%s/shut", fixture.folder), *inside = text_format("%s/x", shut), *file = text_format("%s/file", fixture.folder),
                            *missing = text_format("%s/none", fixture.folder), *below = text_format("%s/none", file), *from = NULL;
        const char *const denied[] = { inside, file }, *const absent[] = { missing, below };

        if (getuid() != 0)
                fail_msg("this test is root's");
        assert_return_code(chmod(fixture.folder, 0755), errno);
        shell("cd '%s' && mkdir shut && echo x >shut/x && " GIT_AS "init -q unreadable && " GIT_AS "init -q --bare bare && echo x >file && chmod 000 file", fixture.folder);
        for (size_t i = 0; i < ELEMENTSOF(parts); i++)
                shell("chmod 700 '%s/%s'", fixture.folder, parts[i]);

        for (unsigned k = 0; k < 2; k++)
                for (size_t i = 0; i < ELEMENTSOF(denied); i++) {
                        const char *path = (k == 0 ? denied : absent)[i], *said = k > 0 ? "o" : "ermission denied";
                        int expected = k == 0 ? CTL_REFUSED : CTL_NOT_FOUND;

                        assert_int_equal(AS_NOBODY(said, S("submit"), S("--workflow=echo"), S("--task-file"), S(path)), expected);
                        assert_int_equal(AS_NOBODY(said, S("submit"), S("--workflow=code"), S("--repo"), S(path)), expected);
                        assert_int_equal(AS_NOBODY(said, S("policy"), S("check"), S(path)), k == 0 ? CTL_REFUSED : CTL_FAILED);
                        assert_int_equal(AS_NOBODY(said, S("policy"), S("check"), S(path), S("-j")), k == 0 ? CTL_REFUSED : CTL_FAILED);
                        assert_int_equal(AS_NOBODY(said, S("policy"), S("test"), S(path), S("/dev/null")), expected);
                        assert_int_equal(AS_NOBODY(said, S("policy"), S("import"), S(path)), expected);
                        assert_int_equal(AS_NOBODY(said, S("policy"), S("check"), S("--root"), S(path)), expected);
                        assert_int_equal(AS_NOBODY(said, S("audit"), S("verify"), S("--file"), S(path)), expected);
                }
        for (size_t i = 0; i < ELEMENTSOF(parts); i++) {
                free(from);
                from = text_format("--repo=%s/%.*s", fixture.folder, (int) strcspn(parts[i], "/"), parts[i]);
                assert_int_equal(AS_NOBODY("ermission denied", S("submit"), S("--workflow=code"), from), CTL_REFUSED);
        }

        free(from);
        from = text_format("--bundle=%s/x", missing);
        assert_int_equal(CTL(S("result"), S(ITEM), from), CTL_NOT_FOUND);
}

static void test_cost(void **state) {
        assert_int_equal(CTL(S("cost"), S(ITEM)), CTL_OK);
        assert_has(fixture.out, "ATTEMPT");
        assert_has(fixture.out, RUN);
        assert_has(fixture.out, "34,567");
        assert_has(fixture.out, "$1.25 in 1,200 calls, 1 of them estimated.");
        assert_null(strchr(fixture.out, 033));
        assert_int_equal(CTL(S("cost"), S("--by=day"), S("--since=1970-01-02"), S("--json=short")), CTL_OK);
        assert_has(fixture.out, "\"since\":86400000000");
        assert_int_equal(CTL(S("cost"), S("--by=day"), S("--since=1970-01-01T00:00:01Z"), S("--no-legend")), CTL_OK);
        assert_has(fixture.out, "2026-01-31");
        assert_null(strstr(fixture.out, "DAY"));
        assert_int_equal(CTL(S("cost"), S("--by=day")), CTL_OK);
        assert_has(fixture.out, "$0.00 in 0 calls.");
        assert_int_equal(CTL(S("cost"), S("--since=7d"), S("--by=workflow")), CTL_OK);
        assert_int_equal(CTL(S("cost"), S("--by=hour")), CTL_USAGE);
        assert_has(fixture.err, "day or model");
        assert_int_equal(CTL(S("cost"), S("--since=yesterday")), CTL_USAGE);
        assert_int_equal(CTL(S("cost"), S("x")), CTL_USAGE);
        assert_int_equal(CTL(S("list"), S("--by=day")), CTL_USAGE);
}

static void test_list_and_show(void **state) {
        assert_int_equal(CTL(S("list")), CTL_OK);
        assert_has(fixture.out, ITEM "  running  code-fix");
        assert_has(fixture.out, "$0.0042  Fix \\x1b[31mthe\\x0a test");
        assert_has(fixture.out, "2 items listed.");
        assert_int_equal(CTL(S("list"), S("--no-legend")), CTL_OK);
        assert_null(strstr(fixture.out, "listed"));
        assert_null(strstr(fixture.out, "WORKFLOW"));
        assert_int_equal(CTL(S("list"), S("--state=queued"), S("-j")), CTL_OK);
        assert_string_equal(fixture.out, "[]\n");

        /* each reason why nothing starts, and no other line for the item than one */
        assert_int_equal(CTL(S("list"), S("--state=submitted")), CTL_OK);
        assert_has(fixture.out, "\nNo run starts: auditd: lost");
        assert_has(fixture.out, "\nNo run starts: on hold: stopped by root (uid 0); \"anchorctl release\" ends that.\n");
        assert_int_equal(CTL(S("list"), S("--state=submitted"), S("--no-legend")), CTL_OK);
        assert_ptr_equal(strchr(fixture.out, '\n'), fixture.out + strlen(fixture.out) - 1);

        /* more than anchord tells at once */
        assert_int_equal(CTL(S("list"), S("--state=merged")), CTL_OK);
        assert_has(fixture.out, "i000000000001  merged");
        assert_has(fixture.out, "i000000001200  merged");
        assert_has(fixture.out, "1200 items listed.");
        assert_int_equal(CTL(S("list"), S("--state=merged"), S("--limit=700")), CTL_OK);
        assert_null(strstr(fixture.out, "i000000000701"));
        assert_has(fixture.out, "700 items listed.");

        assert_int_equal(CTL(S("show"), S(ITEM)), CTL_OK);
        assert_has(fixture.out, ITEM " in_review\n");
        assert_has(fixture.out, "3min 20s");
        assert_null(strchr(fixture.out, '\033'));
        assert_has(fixture.out, "   Requester: root (uid 0)\n");
        assert_has(fixture.out, "\nEvidence\n         Run: " RUN "\n      Commit: abcdef\n        Fact: checks: ok\n     Seen by: guest\n");
        assert_has(fixture.out, "    Reported: exit_status: 0\n");
        assert_has(fixture.out, "    Reported: guest kernel: 6.12\\x1b[31m\n");
        assert_has(fixture.out, "      Policy: " RUN ": d1, d2\n");
        assert_has(fixture.out, "     Further: anew: true\n");
        assert_null(strchr(strstr(fixture.out, "Evidence"), '{'));
        assert_int_equal(CTL(S("show"), S(ITEM), S("--json=short")), CTL_OK);
        assert_has(fixture.out, "\"requester\":\"uid 0\"");
        assert_has(fixture.out, "\"reported\":{\"");
        assert_null(strchr(fixture.out, '\033'));

        assert_int_equal(CTL(S("status")), CTL_OK);
        assert_has(fixture.out, "enforcers auditd: lost");
        assert_has(fixture.out, "space free: 74.7G\n");
        assert_has(fixture.out, "space reserve: 0B\n");
        assert_has(fixture.out, "hold_reason: stopped by root (uid 0)\n");
        assert_has(fixture.out, "counts: none\n");
        assert_has(fixture.out, "templates: none\n");
        assert_has(fixture.out, "runs: raaaaaaaaaaaa of " ITEM ", work: running\n");
        assert_int_equal(CTL(S("doctor")), CTL_FAILED);
        assert_has(fixture.out, "auditd: lost");
        assert_has(fixture.out, "tcg, without KVM: no hello");
        assert_has(fixture.out, "anchorctl release");

        set("free", true);
        (void) CTL(S("doctor"));
        assert_has(fixture.out, "warning  accelerator  kvm, but the guest that tried it answered after 10.0 s, and a boot has 15 s\n");
        set("patient", true);
        (void) CTL(S("doctor"));
        assert_has(fixture.out, "good     accelerator  kvm\n");
        set("patient", false);
        set("free", false);
}

static void test_follow(void **state) {
        assert_int_equal(CTL(S("run"), S("--workflow=echo")), CTL_OK);
        assert_string_equal(fixture.out, "hello \\x1b]0;x\\x07\n");
        assert_has(fixture.err, "12:34:56 running\n");
        assert_has(fixture.err, "oops\n");
        assert_has(fixture.err, "step exec: exit status 3");
        assert_has(fixture.err, "booting: boots 1, accel tcg\\x1b\n");

        assert_int_equal(CTL(S("run"), S("--workflow=fails"), S("-q")), CTL_FAILED);
        assert_string_equal(fixture.err, "oops\n");

        assert_int_equal(CTL(S("run"), S("--workflow=fails")), CTL_FAILED);
        assert_has(fixture.err, "exhausted: stopped by root (uid 0)\n");

        assert_int_equal(CTL(S("logs"), S(ITEM), S("--json=short")), CTL_OK);
        assert_has(fixture.out, "\"seq\":2");
        assert_int_equal(CTL(S("logs"), S(ITEM), S("--run=rbbbbbbbbbbbb"), S("-q")), CTL_OK);
        assert_string_equal(fixture.out, "");

        /* Ctrl-C leaves the run alone */
        assert_int_equal(CTL(S("logs"), S("-f"), S(ITEM_HANGS)), CTL_INTERRUPTED);
        assert_has(fixture.err, "anchorctl stop " ITEM_HANGS);

        /* anchord dies in the middle: we go on behind what we had */
        if (CTL(S("logs"), S("-f"), S(ITEM_DROPS)) != CTL_OK)
                fail_msg("%s", fixture.err);
        assert_string_equal(fixture.out, "one\nhello \\x1b]0;x\\x07\n");
        assert_has(fixture.err, "anchord went away");
}

static FILE *full(bool buffered) {
        FILE *f = fopen("/dev/full", "we");

        assert_non_null(f);
        if (!buffered)
                setbuf(f, NULL); /* as standard error */
        return f;
}

/* Whatever verb writes: output that went nowhere is no success, and is said once. */
static void test_lost_output(void **state) {
        static const char *const calls[][6] = {
                { "run", "--workflow=echo" }, { "run", "--workflow=echo", "--json=short" }, { "run", "--workflow=echo", "-q" },
                { "submit", "--workflow=echo" }, { "submit", "--workflow=echo", "-j" },
                { "list" }, { "list", "-j" }, { "list", "--state=merged" }, { "show", ITEM }, { "show", ITEM, "-j" }, { "cost" }, { "cost", "-j" },
                { "logs", ITEM }, { "logs", ITEM, "-j" }, { "logs", "-f", ITEM }, { "logs", "-f", "-j", ITEM }, { "logs", "-f", ITEM_DROPS },
                { "result", ITEM }, { "result", ITEM, "-j" }, { "result", ITEM, "--diff" }, { "stop", "--all", "-j" },
                { "policy", "check", "srt.json" }, { "policy", "import", "srt.json" }, { "credential", "list" },
                { "status" }, { "status", "-j" }, { "doctor" }, { "doctor", "-j" }, { "version" }, { "version", "-j" }, { "--version" },
                { "help" }, { "help", "list" }, { "--help" }, { "list", "--help" },
        };
        _cleanup_free_ char *settings = text_format("%s/srt.json", fixture.folder);

        assert_int_equal(io_write_file_atomic(AT_FDCWD, settings, "{\"a\": 1}", 8, 0600), 0);
        for (size_t i = 0; i < ELEMENTSOF(calls); i++) {
                char *a[6] = {}, *argv[8] = { S("anchorctl") };
                const char *said;
                CtlExit good;

                for (size_t k = 0; calls[i][k]; k++)
                        a[k] = argv[k + 1] = strcmp(calls[i][k], "srt.json") == 0 ? settings : S(calls[i][k]);
                good = run_ctl(argv, (Ctl) {});
                if (!*fixture.out || strstr(fixture.err, "Cannot write"))
                        fail_msg("%s %s: nothing on standard output, or: %s", a[0], a[1] ?: "", fixture.err);

                if (run_ctl(argv, (Ctl) { .out = full(true) }) != (good == CTL_OK ? CTL_FAILED : good))
                        fail_msg("%s %s: that its output is lost is no failure", a[0], a[1] ?: "");
                said = strstr(fixture.err, "Cannot write: No space left on device\n");
                if (!said || strstr(said + 1, "Cannot write"))
                        fail_msg("%s %s says of its lost output: %s", a[0], a[1] ?: "", fixture.err);
        }

        /* what a program wrote to standard error is output as well; what is only told is not */
        assert_int_equal(CTL_INTO(NULL, full(false), S("run"), S("--workflow=echo")), CTL_FAILED);
        assert_int_equal(CTL_INTO(NULL, full(false), S("stop"), S("--all")), CTL_OK);
}

static void test_stop(void **state) {
        assert_int_equal(CTL(S("stop"), S(ITEM), S(ITEM_FAILS)), CTL_OK);
        assert_int_equal(CTL(S("stop"), S("--all"), S("--hold")), CTL_OK);
        assert_has(fixture.err, "1 item stopped. No run starts");
        assert_int_equal(CTL(S("stop"), S("--all"), S("--hold"), S("--json=short")), CTL_OK);
        assert_string_equal(fixture.out, "{\"stopped\":[\"" ITEM "\"]}\n");
}

/* That runs start again is said when nothing else is in the way, and otherwise what is. */
static void test_what_keeps_runs(void **state) {
        static const struct {
                const char *words[3], *ended, *again;
        } calls[] = {
                { { "release" }, "The hold is released.", "Runs start again." },
                { { "host", "undrain" }, "The drain is ended.", "Items are leased again." },
        };

        set("operator", true);
        for (size_t i = 0; i < ELEMENTSOF(calls); i++) {
                assert_int_equal(CTL(S(calls[i].words[0]), S(calls[i].words[1])), CTL_OK);
                assert_has(fixture.err, calls[i].ended);
                assert_has(fixture.err, "\nNo run starts: on hold: stopped by root (uid 0); \"anchorctl release\" ends that.\n");
                assert_has(fixture.err, "\nNo run starts: auditd: lost.\n");
                assert_lacks(fixture.err, "again.");
                set("free", true);
                assert_int_equal(CTL(S(calls[i].words[0]), S(calls[i].words[1])), CTL_OK);
                assert_int_equal(strncmp(fixture.err, calls[i].again, strlen(calls[i].again)), 0);
                assert_lacks(fixture.err, "No run");
                set("free", false);
        }

        set("moved", true);
        assert_int_equal(CTL(S("policy"), S("accept")), CTL_OK);
        assert_has(fixture.err, "in place of d1.\nNo run starts: the policy in /etc/anchorhold");
        set("moved", false);

        /* doctor agrees with itself, and does not take a closed door for an empty house */
        assert_int_equal(CTL(S("doctor"), S("--json=short")), CTL_FAILED);
        assert_has(fixture.out, "{\"check\":\"hold\",\"health\":\"bad\"");
        set("stranger", true);
        assert_int_equal(CTL(S("doctor")), CTL_FAILED);
        assert_has(fixture.out, "unknown  anchord      this user may not ask it");
        assert_lacks(fixture.out, "does not answer");
}

/* A verification that waits is a reason if it has the place of a run; the control is that one of the others has it, or there is another place. */
static void test_verification_has_the_place(void **state) {
        static const char says[] = "\nNo run starts: 1 of the 2 runs that this host has, as many as it may, is a verification that cannot begin yet; their items' notes say for what.\n";

        set("verifying", true);
        assert_int_equal(CTL(S("list"), S("--state=submitted")), CTL_OK);
        assert_has(fixture.out, says);
        set("free", true);
        assert_int_equal(CTL(S("list"), S("--state=submitted")), CTL_OK);
        assert_lacks(fixture.out, "No run starts");
        set("free", false);
        set("verifying", false);
        set("full", true);
        assert_int_equal(CTL(S("list"), S("--state=submitted")), CTL_OK);
        assert_lacks(fixture.out, "No run starts");
        set("full", false);
}

/* Who follows what is queued is told why it does not start, once. */
static void test_queued(void **state) {
        const char *said;

        assert_int_equal(CTL(S("run"), S("--workflow=waits")), CTL_OK);
        said = strstr(fixture.err, "\nNo run starts: on hold: stopped by root (uid 0); \"anchorctl release\" ends that.\n");
        assert_non_null(said);
        assert_null(strstr(said + 1, "\nNo run starts: on hold"));

        set("free", true);
        assert_int_equal(CTL(S("run"), S("--workflow=waits")), CTL_OK);
        assert_lacks(fixture.err, "No run starts");
}

/* A wait of more than a second: a status line that is taken back on a terminal, nothing yet anywhere else. */
static void test_progress(void **state) {
        const char *line, *gone;

        assert_int_equal(CTL_REDRAW(S("stop"), S(ITEM_SLOW)), CTL_OK);
        line = strstr(fixture.err, "\u2026 Stopping " ITEM_SLOW ": 1 s");
        assert_non_null(line);
        gone = strstr(line, "\r\033[K");
        assert_non_null(gone);
        assert_string_equal(gone, "\r\033[K"); /* and nothing behind it */
        assert_string_equal(fixture.out, "");

        assert_int_equal(CTL_REDRAW(S("stop"), S("-q"), S(ITEM_SLOW)), CTL_OK);
        assert_string_equal(fixture.err, "");
        assert_int_equal(CTL(S("stop"), S(ITEM_SLOW)), CTL_OK);
        assert_string_equal(fixture.err, "");
        assert_int_equal(CTL_REDRAW(S("stop"), S(ITEM)), CTL_OK);
        assert_string_equal(fixture.err, ""); /* quick things need none */
}

static void test_result(void **state) {
        _cleanup_free_ char *path = text_format("--bundle=%s/bundle", fixture.folder), *data = NULL;
        size_t size;

        assert_int_equal(CTL(S("result"), S(ITEM), S("--diff")), CTL_OK);
        assert_string_equal(fixture.out, "+a\033[2Jb\n"); /* to a pipe: as it is */
        assert_int_equal(CTL_TTY(S("result"), S(ITEM), S("--diff"), S("--no-pager")), CTL_OK);
        assert_string_equal(fixture.out, "+a\\x1b[2Jb\n");
        assert_int_equal(CTL(S("result"), S(ITEM), path), CTL_OK);
        assert_int_equal(io_read_file(AT_FDCWD, path + strlen("--bundle="), 100, &data, &size), 0);
        assert_int_equal(size, 8);
        assert_int_equal(CTL_TTY(S("result"), S(ITEM), S("--bundle=-"), S("--no-pager")), CTL_USAGE);
        assert_int_equal(CTL(S("result"), S(ITEM)), CTL_OK);
        assert_has(fixture.out, "in_review");
}

/* ---- seed bundle ---- */

static void test_seed(void **state) {
        _cleanup_free_ char *repo = text_format("%s/repo:x", fixture.folder), *option = text_format("--repo=%s", repo),
                            *sub = text_format("--repo=%s/deep", repo), *bare = text_format("--repo=%s/bare.git", fixture.folder),
                            *folder = text_format("--repo=%s", fixture.folder), *missing = text_format("--repo=%s/none", fixture.folder),
                            *shallow = text_format("--repo=%s/shallow", fixture.folder), *path = NULL;

        assert_int_equal(CTL(S("submit"), S("--workflow=code"), missing), CTL_NOT_FOUND);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), folder), CTL_NOT_FOUND);
        assert_has(fixture.err, "not a git repository");

        shell(GIT_AS "init -q '%s' && mkdir '%s/deep'", repo, repo);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option), CTL_NOT_FOUND);
        assert_has(fixture.err, "There is no commit in");

        shell("cd '%s' && echo one >a && " GIT_AS "add a && " GIT_AS "commit -qm one && " GIT_AS "tag -m t v1 && echo two >a && "
              GIT_AS "commit -qam two", repo);
        /* what must not run, and what must not matter */
        shell("cd '%s' && git config core.fsmonitor 'touch %s/ran; false' && git config core.pager 'touch %s/ran' && "
              "git config uploadpack.packObjectsHook 'touch %s/ran' && git config pack.packSizeLimit 1", repo, fixture.folder, fixture.folder,
              fixture.folder);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option, S("--base=v2")), CTL_NOT_FOUND);
        assert_has(fixture.err, "There is no commit \"v2\"");
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option, S("--base=--help")), CTL_USAGE);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option, S("--base=HEAD:a")), CTL_NOT_FOUND);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option, S("--base=0123456789012345678901234567890123456789")), CTL_NOT_FOUND);

        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option, S("--base=v1")), CTL_OK);
        assert_string_equal(fixture.err, "");
        shell("cd '%s' && test \"$(git bundle list-heads '%s')\" = \"$(git rev-parse v1^{}) refs/anchorhold/base\" && "
              "git init -q --bare '%s/out.git' && git -C '%s/out.git' fetch -q '%s' refs/anchorhold/base && "
              "git -C '%s/out.git' fsck --strict", repo, fixture.dump, fixture.folder, fixture.folder, fixture.dump, fixture.folder);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), sub), CTL_OK);
        shell("cd '%s' && git bundle list-heads '%s' | grep -q $(git rev-parse HEAD)", repo, fixture.dump);
        assert_int_equal(access("ran", F_OK), -1);
        shell("test ! -e '%s/ran'", fixture.folder);

        /* a bare one, a linked worktree, a repository of somebody else, another object format, a shallow one */
        shell("git clone -q --bare '%s' '%s/bare.git' && git -C '%s' worktree add -q '%s/tree'", repo, fixture.folder, repo, fixture.folder);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), bare), CTL_OK);
        free(bare);
        bare = text_format("--repo=%s/tree", fixture.folder);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), bare), CTL_OK);
        if (getuid() == 0)
                shell("chown -R 65534:65534 '%s'", repo);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option), CTL_OK);
        shell("chown -R %u '%s'", getuid(), repo);

        shell("git clone -q --depth 1 'file://%s' '%s/shallow' 2>/dev/null", repo, fixture.folder);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), shallow), CTL_FAILED);
        assert_has(fixture.err, "is shallow");

        shell("rm -rf '%s/shallow' && " GIT_AS "init -q --object-format=sha256 '%s/shallow' && cd '%s/shallow' && "
              GIT_AS "commit -q --allow-empty -m x", fixture.folder, fixture.folder, fixture.folder);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), shallow), CTL_OK);
        shell("cd '%s/shallow' && git bundle list-heads '%s' | grep -Eq '^[0-9a-f]{64} refs/anchorhold/base$'", fixture.folder, fixture.dump);

        /* no place for the bundle is no missing git; a missing git is one */
        assert_int_equal(setenv("TMPDIR", "/nonexistent", 1), 0);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option), CTL_FAILED);
        assert_has(fixture.err, "Cannot make a folder in /nonexistent, ");
        assert_lacks(fixture.err, "git");
        assert_int_equal(unsetenv("TMPDIR"), 0);
        path = strdup(getenv("PATH"));
        assert_int_equal(setenv("PATH", "/nonexistent", 1), 0);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option), CTL_FAILED);
        assert_has(fixture.err, "Cannot run git: ");
        assert_int_equal(setenv("PATH", path, 1), 0);

        shell("test -z \"$(find /tmp -maxdepth 1 -name 'anchorctl-*' ! -path '%s' -newer '%s')\"", fixture.folder, fixture.path);
}

static CtlExit comes_about(Ctl *ctl) {
        return CTL_OK;
}

/* The reboot: does anything run now? */
static CtlExit finds_none(Ctl *ctl) {
        _cleanup_json_ json_t *status = NULL;

        assert_int_equal(ctl_call(ctl, "ask", "Status", json_object(), NULL, 0, &status, NULL, 0), CTL_OK);
        return json_is_true(json_object_get(status, "ready")) && json_array_size(json_object_get(status, "runs")) == 0 ? CTL_OK : CTL_FAILED;
}

static CtlExit is_refused(Ctl *ctl) {
        ctl_error(ctl, "refused");
        return CTL_FAILED;
}

/* What the host is drained for afterwards, or NULL; err is then in the fixture. */
static char *after_drain_for(const char *reason, CtlExit (*then)(Ctl *ctl), CtlExit expected) {
        _cleanup_json_ json_t *status = NULL;
        const char *left;
        size_t err_size;
        Ctl ctl = { .api_path = fixture.path };

        free(fixture.err);
        ctl.out = ctl.err = open_memstream(&fixture.err, &err_size);
        assert_int_equal(ctl_drain_for(&ctl, 1, reason, then), expected);
        assert_int_equal(ctl_call(&ctl, "ask", "Status", json_object(), NULL, 0, &status, NULL, 0), CTL_OK);
        (void) fclose(ctl.err);
        left = ctl_string(json_object_get(status, "drain"), "reason");
        return left ? strdup(left) : NULL;
}

static char *after_signal(const char *reason) {
        sigset_t signals, mask;
        char *left;

        (void) sigemptyset(&signals);
        (void) sigaddset(&signals, SIGTERM);
        assert_return_code(sigprocmask(SIG_BLOCK, &signals, &mask), errno);
        assert_return_code(raise(SIGTERM), errno);
        left = after_drain_for(reason, comes_about, CTL_FAILED);
        assert_return_code(sigprocmask(SIG_SETMASK, &mask, NULL), errno); /* kills, if nobody took it */
        return left;
}

static void test_drain_for(void **state) {
        _cleanup_free_ char *reboots = NULL, *over = NULL, *refused = NULL, *stopped = NULL, *theirs = NULL, *before = NULL;

        reboots = after_drain_for("upgrade", comes_about, CTL_OK);
        assert_string_equal(reboots, "upgrade");

        /* anchord is started anew meanwhile: that it lists no run says nothing */
        over = after_drain_for("over a restart", finds_none, CTL_OK);
        assert_string_equal(over, "over a restart");

        /* one that was there before stays, whatever comes of this */
        before = after_drain_for("rollback", is_refused, CTL_FAILED);
        assert_string_equal(before, "rollback");
        assert_int_equal(CTL(S("host"), S("undrain")), CTL_OK);

        refused = after_drain_for("upgrade", is_refused, CTL_FAILED);
        assert_null(refused);
        assert_has(fixture.err, "is ended.\nNo run starts: auditd: lost.\n");
        assert_lacks(fixture.err, "again");
        set("free", true);
        refused = after_drain_for("upgrade", is_refused, CTL_FAILED);
        assert_null(refused);
        assert_has(fixture.err, "is ended.\nItems are leased again.\n");
        set("free", false);

        /* as the unit that takes too long is, or a person does */
        stopped = after_signal("long");
        assert_null(stopped);
        assert_has(fixture.err, "Told to end");

        theirs = after_drain_for("nobody", is_refused, CTL_FAILED);
        assert_string_equal(theirs, "another");
        assert_int_equal(CTL(S("host"), S("undrain")), CTL_OK);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_usage, setup, teardown),
                cmocka_unit_test_setup_teardown(test_drain_for, setup, teardown),
                cmocka_unit_test_setup_teardown(test_help, setup, teardown),
                cmocka_unit_test_setup_teardown(test_submit, setup, teardown),
                cmocka_unit_test_setup_teardown(test_exit_codes, setup, teardown),
                cmocka_unit_test_setup_teardown(test_file_statuses, setup, teardown),
                cmocka_unit_test_setup_teardown(test_list_and_show, setup, teardown),
                cmocka_unit_test_setup_teardown(test_cost, setup, teardown),
                cmocka_unit_test_setup_teardown(test_follow, setup, teardown),
                cmocka_unit_test_setup_teardown(test_lost_output, setup, teardown),
                cmocka_unit_test_setup_teardown(test_stop, setup, teardown),
                cmocka_unit_test_setup_teardown(test_what_keeps_runs, setup, teardown),
                cmocka_unit_test_setup_teardown(test_verification_has_the_place, setup, teardown),
                cmocka_unit_test_setup_teardown(test_queued, setup, teardown),
                cmocka_unit_test_setup_teardown(test_progress, setup, teardown),
                cmocka_unit_test_setup_teardown(test_result, setup, teardown),
                cmocka_unit_test_setup_teardown(test_seed, setup, teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
