/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* For tests of anchorctl as a whole: a small anchord of our own, over its socket, and what anchorctl says to it. It defines functions: one file of a
 * program includes it. */

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
static inline bool is_set(void *dump, const char *flag) {
        _cleanup_free_ char *path = text_format("%s-%s", (char *) dump, flag);

        return access(path, F_OK) == 0;
}

static inline int on_submit(IpcCall *call, json_t *params, void *userdata) {
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

static inline json_t *an_item(const char *id, const char *state) {
        return json_pack("{s:{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:[{s:s, s:s, s:i, s:i, s:s, s:s, s:s}], s:[{s:s, s:s, s:s}]}}", "item",
                         "id", id, "state", state, "workflow", "code-fix", "task", "Fix \033[31mthe\n test",
                         "created", "2026-01-31T12:00:00.000Z", "attempt", 1, "max_attempts", 3, "cost_microusd", 4200,
                         "runs", "id", RUN, "stage", "work", "attempt", 1, "boots", 1, "created", "2026-01-31T12:00:00.000Z",
                         "finished", "2026-01-31T12:03:20.000Z", "outcome", "ok",
                         "history", "time", "2026-01-31T12:00:00.000Z", "to", state, "actor", "anchord.service");
}

enum { MANY = 1200 };

/* A page of many items, the numbers of which are their ids. */
static inline int list_many(IpcCall *call, json_t *params) {
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

static inline int on_list(IpcCall *call, json_t *params, void *userdata) {
        if (strcmp(json_string_value(json_array_get(json_object_get(params, "states"), 0)) ?: "", "merged") == 0)
                return list_many(call, params);
        if (json_array_size(json_object_get(params, "states")) == 1 && strcmp(json_string_value(json_array_get(json_object_get(params, "states"), 0)), "submitted") == 0)
                return ipc_call_reply(call, an_item(ITEM, "queued"));
        if (json_array_size(json_object_get(params, "states")) == 1)
                return ipc_call_reply(call, NULL);
        (void) ipc_call_notify(call, an_item(ITEM, "running"));
        return ipc_call_reply(call, an_item(ITEM_FAILS, "failed"));
}

static inline int on_show(IpcCall *call, json_t *params, void *userdata) {
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
static inline int on_cost(IpcCall *call, json_t *params, void *userdata) {
        const char *by = ctl_string(params, "by");
        json_int_t since = json_integer_value(json_object_get(params, "since_usec"));

        if (strcmp(by, "day") == 0 && since == 0)
                return ipc_call_reply(call, json_pack("{s:s, s:b, s:[]}", "by", by, "truncated", 0, "rows"));
        return ipc_call_reply(call, json_pack("{s:s, s:b, s:[{s:s, s:s?, s:i, s:s, s:s, s:s, s:I, s:i, s:i, s:i, s:i, s:i}]}", "by", by, "truncated", 0, "rows",
                                              "day", "2026-01-31", "item", ctl_string(params, "item"), "attempt", 1, "run", RUN, "stage", "work",
                                              "model", "m\033[2J", "since", since, "calls", 1200, "failed", 2, "estimated", 1, "input_tokens", 34567, "cost_microusd", 1250000));
}

static inline int on_die(sd_event_source *s, uint64_t usec, void *userdata) {
        _exit(0);
}

static inline int on_follow(IpcCall *call, json_t *params, void *userdata) {
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

static inline int on_result(IpcCall *call, json_t *params, void *userdata) {
        _cleanup_fd_ int fd = io_memfd("diff", "+a\033[2Jb\n", 8);

        assert_true(ipc_call_push_fd(call, fd) == 0);
        (void) TAKE_FD(fd);
        return ipc_call_reply(call, NULL);
}

static inline int on_answer_later(sd_event_source *s, uint64_t usec, void *userdata) {
        _cleanup_(ipc_call_unrefp) IpcCall *call = userdata;

        return ipc_call_reply(call, NULL);
}

static inline int on_stop(IpcCall *call, json_t *params, void *userdata) {
        if (strcmp(ctl_string(params, "item"), ITEM_SLOW) != 0)
                return ipc_call_reply(call, NULL);
        return sd_event_add_time_relative(server_event, NULL, CLOCK_MONOTONIC, 1300 * 1000, 0, on_answer_later, ipc_call_ref(call));
}

static inline int on_stop_all(IpcCall *call, json_t *params, void *userdata) {
        return ipc_call_reply(call, json_pack("{s:[s]}", "stopped", json_is_true(json_object_get(params, "hold")) ? ITEM : ITEM_FAILS));
}

static inline int on_hold(IpcCall *call, json_t *params, void *userdata) {
        return is_set(userdata, "operator") ? ipc_call_reply(call, NULL) : ipc_call_error(call, "org.varlink.service.PermissionDenied", NULL);
}

static inline int on_accept(IpcCall *call, json_t *params, void *userdata) {
        return ipc_call_reply(call, NULL);
}

/* Who waited was told why, and goes on. */
static inline int on_waited(sd_event_source *s, uint64_t usec, void *userdata) {
        _cleanup_(ipc_call_unrefp) IpcCall *call = TAKE_PTR(follower);

        return call ? ipc_call_reply(call, json_pack("{s:{s:s, s:s}}", "event", "type", "end", "state", "in_review")) : 0;
}

static char drained_for[32];
static unsigned n_asked; /* since the drain began */

/* While there is a drain, nothing runs, except while one "for long". One "for nobody" is replaced by another's at once. In one "over a restart"
 * the first answer is of an anchord that does not know its runs yet, and the second has one. */
static inline int on_drain(IpcCall *call, json_t *params, void *userdata) {
        const char *reason = ctl_string(params, "reason");

        n_asked = 0;
        (void) snprintf(drained_for, sizeof(drained_for), "%s", strcmp(reason, "nobody") == 0 ? "another" : reason);
        return ipc_call_reply(call, NULL);
}

static inline int on_undrain(IpcCall *call, json_t *params, void *userdata) {
        *drained_for = '\0';
        return ipc_call_reply(call, NULL);
}

static inline int on_status(IpcCall *call, json_t *params, void *userdata) {
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
static inline void bind_to_parent(pid_t parent, int keep_fd) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
                _exit(1);
        if (keep_fd > 3)
                (void) close_range(3, (unsigned) keep_fd - 1, 0);
        (void) close_range((unsigned) keep_fd + 1, ~0U, 0);
}

static inline void serve(int listen_fd, char *dump) {
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
static inline int setup(void **state) {
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

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        return remove(path);
}

static inline int teardown(void **state) {
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

static inline CtlExit run_ctl(char **argv, Ctl ctl) {
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

static inline void set(const char *flag, bool on) {
        _cleanup_free_ char *path = text_format("%s-%s", fixture.dump, flag);

        if (on)
                assert_int_equal(io_write_file_atomic(AT_FDCWD, path, "", 0, 0644), 0);
        else
                assert_int_equal(unlink(path), 0);
}

static inline void assert_lacks(const char *text, const char *part) {
        if (strstr(text, part))
                fail_msg("\"%s\" is in:\n%s", part, text);
}

static inline void assert_has(const char *text, const char *part) {
        if (!strstr(text, part))
                fail_msg("\"%s\" is not in:\n%s", part, text);
}

static inline void shell(const char *format, ...) {
        _cleanup_free_ char *command = NULL;
        va_list ap;

        va_start(ap, format);
        assert_true(vasprintf(&command, format, ap) > 0);
        va_end(ap);
        assert_int_equal(system(command), 0);
}

#define GIT_AS "git -c user.name=t -c user.email=t@example.org -c init.defaultBranch=main "
