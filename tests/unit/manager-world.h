/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * For tests of anchord: the whole of it in the test's event loop, with a ledger, policy and template in a mount namespace of
 * their own, and egressd, secretd, auditd and systemd played by the test. A run's units are played as well: their calls are
 * answered by the real handlers, only the kernel's word on which run it is that calls is the test's.
 */

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "api/manager-internal.h"
#include "audit/audit-api.h"
#include "fake-systemd.h"
#include "net/warden.h"
#include "policy-tree.h"
#include "signed-template.h"
#include "util/json.h"

#define BASE "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define RESULT "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define SEED "# v2 git bundle\n" BASE " refs/anchorhold/base\n\nPACK"
#define RUN_SOCKET "/run/test-runs.sock"

typedef struct World {
        sd_event *event;
        FakeSystemd systemd;
        Manager *m;
        IpcServer *egress, *secret, *audit, *runs;
        IpcClient *operator, * run_client;
        const char *egress_refuses;   /* reason, or NULL */
        const char *egress_error;     /* that error; NULL: Denied */
        bool egress_holds;            /* it does not answer: */
        IpcCall *held[4];             /* refs */
        unsigned n_held;
        json_t *asked_secret;         /* ref; what secretd was asked to register last */
        unsigned n_otherwise;         /* and that of the same run otherwise */
        bool audit_refuses, ping_refused;
        bool audit_found_large;       /* auditd was sent more than it takes, and refused it */
        json_t *finished;             /* owned; data of the last run.finished */
        unsigned n_registered, n_released, n_early, n_refused;
        char *audited;                /* owned; "EVENT STATE\n"… */
        char refused[96], repeated[96]; /* "EVENT KEY" of what auditd refused last, and of what it took with the same */
        char as_run[ID_LENGTH + 1];
        PeerRole as_role;

        bool answered;
        char *error;                  /* owned; of the last call */
        json_t *answer;               /* owned */
        int fds[2];
        json_t *events;               /* owned; of Follow */
        bool followed;
} World;

/* ---- the other daemons ---- */

static inline int on_ping(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        return w->ping_refused ? ipc_call_refuse(call, "Unavailable", "no") : ipc_call_reply(call, NULL);
}

/* Has auditd everything that the ledger has of this run? What others do meanwhile is no matter. */
static inline bool is_on_record(World *w, const char *run) {
        int64_t after = 0;

        for (;;) {
                _cleanup_(ledger_event_done) LedgerEvent e = {};
                int r = ledger_outbox_next(w->m->ledger, after, &e);

                assert_true(r >= 0 && run);
                if (r != 0)
                        return true;
                if (e.run && strcmp(e.run, run) == 0)
                        return false;
                after = e.id;
        }
}

static inline int on_register(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;
        const char *reason = w->egress_refuses;

        /* what the ledger did for this run is with auditd before anybody else hears of it */
        w->n_early += !is_on_record(w, json_string_value(json_object_get(params, "run")));
        if (w->egress_holds && strstr(ipc_call_method(call), "Egress")) {
                assert_true(w->n_held < ELEMENTSOF(w->held));
                w->held[w->n_held++] = ipc_call_ref(call);
                return 0;
        }
        if (reason && strstr(ipc_call_method(call), "Egress")) {
                w->n_refused++;
                return ipc_call_refuse(call, w->egress_error ?: "Denied", "%s", reason);
        }
        if (!strstr(ipc_call_method(call), "Egress")) {
                w->n_otherwise += w->asked_secret && json_equal(json_object_get(w->asked_secret, "run"), json_object_get(params, "run")) &&
                                  !json_equal(w->asked_secret, params);
                json_decref(w->asked_secret);
                w->asked_secret = json_incref(params);
        }
        w->n_registered++;
        return ipc_call_reply(call, json_pack("{s:s}", "digest", "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"));
}

static inline int on_release(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        w->n_released++;
        return ipc_call_reply(call, NULL);
}

static inline int on_append(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;
        json_t *data = json_object_get(params, "data");
        const char *state = json_string_value(json_object_get(data, "to"));
        _cleanup_free_ char *text = json_canonical(data);
        char *more;

        char keyed[96];

        assert_non_null(json_string_value(json_object_get(params, "key")));
        (void) snprintf(keyed, sizeof(keyed), "%s %s", json_string_value(json_object_get(params, "event")), json_string_value(json_object_get(params, "key")));
        if (w->audit_refuses) {
                strcpy(w->refused, keyed);
                return ipc_call_refuse(call, "Unavailable", "the disk is full");
        }
        if (strcmp(keyed, w->refused) == 0)
                strcpy(w->repeated, keyed);
        assert_non_null(text);
        if (strlen(text) > AUDIT_DATA_MAX) {
                w->audit_found_large = true;
                return ipc_call_refuse(call, "BadInput", "The data is too large.");
        }
        if (strcmp(json_string_value(json_object_get(params, "event")), "run.finished") == 0) {
                json_decref(w->finished);
                w->finished = json_incref(data);
        }
        assert_true(asprintf(&more, "%s%s %s\n", w->audited ?: "", json_string_value(json_object_get(params, "event")), state ?: "") > 0);
        free(w->audited);
        w->audited = more;
        return ipc_call_reply(call, json_pack("{s:i, s:s}", "seq", 1, "hash", "00"));
}

static const IpcMethod egress_methods[] = {
        { "io.anchorhold.Egress.Ping", PEER_ROOT, on_ping },
        { "io.anchorhold.Egress.Register", PEER_ROOT, on_register },
        { "io.anchorhold.Egress.Release", PEER_ROOT, on_release },
        {},
};
static const IpcMethod secret_methods[] = {
        { "io.anchorhold.Secret.Ping", PEER_ROOT, on_ping },
        { "io.anchorhold.Secret.Register", PEER_ROOT, on_register },
        { "io.anchorhold.Secret.Release", PEER_ROOT, on_release },
        {},
};
static const IpcMethod audit_methods[] = {
        { AUDIT_INTERFACE ".Ping", PEER_ROOT, on_ping },
        { AUDIT_INTERFACE ".Append", PEER_ROOT, on_append },
        {},
};

static inline unsigned audited(const World *w, const char *what) {
        unsigned n = 0;

        for (const char *p = w->audited; p && (p = strstr(p, what)); p += strlen(what))
                n++;
        return n;
}

/* ---- the run's units ---- */

static inline int on_run_call(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        strcpy(ipc_call_peer(call)->run, w->as_run);
        for (const IpcMethod *method = run_methods; method->name; method++)
                if (strcmp(method->name, ipc_call_method(call)) == 0)
                        return method->handler(call, params, w->m);
        return -ENOSYS;
}

static IpcMethod played_run_methods[16];

static inline IpcServer *serve(World *w, const IpcMethod *methods, const char *path) {
        IpcServer *s = NULL;

        assert_int_equal(ipc_server_new(&s, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(s, own_world_listen(path)) >= 0);
        return s;
}

/* ---- calls ---- */

static inline void on_answer(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        World *w = userdata;

        if (more)
                return; /* List: the last one is enough here */
        w->answered = true;
        free(w->error);
        json_decref(w->answer);
        w->error = error ? strdup(error) : NULL;
        w->answer = json_incref(params);
        for (unsigned i = 0; i < 2; i++)
                w->fds[i] = ipc_client_take_fd(c, i);
}

static inline void forget_answer(World *w) {
        free(w->error);
        json_decref(w->answer);
        (void) fd_close(w->fds[0]);
        (void) fd_close(w->fds[1]);
        w->error = NULL;
        w->answer = NULL;
        w->fds[0] = w->fds[1] = -1;
        w->answered = false;
}

static inline void call_with(World *w, IpcClient *c, const char *method, json_t *params, const int *fds, size_t n, bool more) {
        forget_answer(w);
        assert_int_equal(ipc_client_call_async(c, method, params, fds, n, more, 0, on_answer, w), 0);
        UNTIL(w->event, w->answered);
}

#define OPERATOR(w, method, params) call_with(w, (w)->operator, "io.anchorhold.Manager." method, params, NULL, 0, false)
#define RUN(w, method, params) call_with(w, (w)->run_client, "io.anchorhold.Run." method, params, NULL, 0, false)

/* Is this text anywhere in the last answer? */
static inline bool answer_has(const World *w, const char *text) {
        _cleanup_free_ char *all = json_canonical(w->answer);

        if (!all || !strstr(all, text))
                print_error("%s\n", all ?: "no answer");
        return all && strstr(all, text);
}

#define assert_ok(w)                                                  \
        do {                                                          \
                if ((w)->error)                                       \
                        fail_msg("%s", (w)->error);                   \
        } while (0)
#define assert_refused(w, name)                     \
        do {                                        \
                assert_non_null((w)->error);        \
                assert_non_null(strstr((w)->error, name)); \
        } while (0)

static inline int file_of(const char *text) {
        int fd = memfd_create("test", MFD_CLOEXEC);

        /* not a memfd with seals, but what anchorctl sends is a plain file as well */
        assert_int_equal(write(fd, text, strlen(text)), strlen(text));
        return fd;
}

static inline void submit_exec(World *w, char item[static ID_LENGTH + 1]) {
        OPERATOR(w, "Submit", json_pack("{s:s, s:[s]}", "workflow", "exec", "command", "/bin/true"));
        assert_ok(w);
        (void) snprintf(item, ID_LENGTH + 1, "%s", json_string_value(json_object_get(w->answer, "item")));
}

static inline void submit_fix(World *w, char item[static ID_LENGTH + 1]) {
        _cleanup_fd_ int fd = file_of(SEED);

        call_with(w, w->operator, "io.anchorhold.Manager.Submit",
                  json_pack("{s:s, s:s, s:s, s:s}", "workflow", "code-fix", "task", "mend it", "base", BASE, "repo", "/r"), &fd, 1, false);
        assert_ok(w);
        (void) snprintf(item, ID_LENGTH + 1, "%s", json_string_value(json_object_get(w->answer, "item")));
}

static inline ItemState state_of(World *w, const char *item) {
        _cleanup_item_ LedgerItem i = {};

        assert_int_equal(ledger_get(w->m->ledger, item, &i), 0);
        return i.state;
}

/* Does the item's reason begin so? */
static inline bool reason_is(World *w, const char *item, const char *text) {
        _cleanup_item_ LedgerItem i = {};

        assert_int_equal(ledger_get(w->m->ledger, item, &i), 0);
        if (!i.reason || !strstr(i.reason, text))
                print_error("reason: %s\n", i.reason ?: "none");
        return i.reason && strstr(i.reason, text);
}

/* Waits until the item's run, of that stage, is active; the calls of units come from it from now on. */
static inline Flow *await_active(World *w, const char *item, const char *stage) {
        Flow *f;

        UNTIL(w->event, (f = flow_find_item(w->m, item)) && strcmp(flow_state_name(f), "active") == 0 && strcmp(flow_stage(f), stage) == 0);
        strcpy(w->as_run, flow_run(f));
        return f;
}

static inline void finish(World *w, const char *outcome, const char *reason, const char *bundle) {
        _cleanup_fd_ int fd = bundle ? file_of(bundle) : -1;

        call_with(w, w->run_client, "io.anchorhold.Run.Finish", json_pack("{s:s, s:s, s:{s:i}}", "outcome", outcome, "reason", reason, "facts", "boots", 1),
                  &fd, bundle ? 1 : 0, false);
}

static inline void on_event(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        World *w = userdata;

        (void) json_array_append(w->events, json_object_get(params, "event"));
        w->followed |= !more;
}

static inline void follow(World *w, IpcClient *c, const char *method, json_t *params) {
        json_decref(w->events);
        w->events = json_array();
        w->followed = false;
        assert_int_equal(ipc_client_call_async(c, method, params, NULL, 0, true, 0, on_event, w), 0);
}

static inline const char *event_text(const World *w, size_t i, const char *key) {
        return json_string_value(json_object_get(json_array_get(w->events, i), key)) ?: "";
}

/* anchor-import@'s last words. */
static inline void import(World *w, bool ok, const char *commit, bool with_bundle) {
        int fds[2] = { file_of("checked"), file_of("diff") };

        call_with(w, w->run_client, "io.anchorhold.Run.Imported", json_pack("{s:b, s:s, s:s?}", "ok", ok, "reason", ok ? "" : "not a bundle", "commit", commit),
                  fds, with_bundle ? 2 : 0, false);
        (void) close(fds[0]);
        (void) close(fds[1]);
}

static inline void warden_says(const char *text) {
        assert_int_equal(io_write_file_atomic(AT_FDCWD, WARDEN_STATE, text, strlen(text), 0644), 0);
}

enum { HOST_UNITS = 3 }; /* those of the fence, and the slice of all runs; nothing else is there but a run's */

/* What an item with one attempt ends with. */
static inline void await_exhausted(World *w, const char *item, const char *reason) {
        UNTIL(w->event, state_of(w, item) == ITEM_EXHAUSTED && !w->m->flows);
        assert_true(reason_is(w, item, reason));
        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(w->systemd.n_units, HOST_UNITS);
}

/* ---- lives of anchord ---- */

static inline void begin_life(World *w) {
        static const char *const paths[] = { "/run/anchorhold/api.sock", "/run/anchorhold/run-api.sock", "/run/anchorhold/spec.sock" };

        own_world_pass(paths, ELEMENTSOF(paths), "api:run-api:spec");
        assert_int_equal(manager_new(&w->m, w->event), 0);
        assert_int_equal(manager_start(w->m), 0);
        UNTIL(w->event, w->m->settled && (w->ping_refused || enforcers_ok(w->m, NULL)));
}

static inline void end_life(World *w) {
        w->m = manager_free(w->m);
}

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        return ftw->level == 0 ? 0 : remove(path);
}

static inline int set_up_world(void **state) {
        World *w = calloc(1, sizeof(*w));
        static const char accel[] = "{\"accel\": \"kvm\", \"reason\": \"\"}";

        assert_int_equal(nftw("/var/lib/anchorhold", remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
        assert_int_equal(mkdir("/var/lib/anchorhold/ledger", 0700) | mkdir("/var/lib/anchorhold/items", 0700), 0);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, "/run/anchorhold/accel", accel, strlen(accel), 0644), 0);
        own_world_reserve(3);
        w->fds[0] = w->fds[1] = -1;
        assert_int_equal(sd_event_new(&w->event), 0);
        fake_systemd_start(&w->systemd, w->event, "/run/test-bus");
        (void) fake_unit_set(&w->systemd, "anchor-bpf.service", "active");
        (void) fake_unit_set(&w->systemd, "anchor-warden.service", "active");
        (void) fake_unit_set(&w->systemd, "anchorhold-runs.slice", "active");
        warden_says("{\"ok\": true, \"reason\": \"\"}");
        w->egress = serve(w, egress_methods, EGRESS_SOCKET);
        w->secret = serve(w, secret_methods, SECRET_SOCKET);
        w->audit = serve(w, audit_methods, AUDIT_SOCKET);
        for (size_t i = 0; run_methods[i].name; i++) {
                assert_true(i + 1 < ELEMENTSOF(played_run_methods));
                played_run_methods[i] = (IpcMethod) { run_methods[i].name, PEER_ROOT, on_run_call };
        }
        w->runs = serve(w, played_run_methods, RUN_SOCKET);
        assert_int_equal(ipc_client_new(&w->operator, w->event, "/run/anchorhold/api.sock"), 0);
        assert_int_equal(ipc_client_new(&w->run_client, w->event, RUN_SOCKET), 0);
        *state = w;
        return 0;
}

static inline int set_up(void **state) {
        (void) set_up_world(state);
        begin_life(*state);
        return 0;
}

static inline int tear_down(void **state) {
        World *w = *state;

        assert_int_equal(w->n_early, 0);
        forget_answer(w);
        json_decref(w->events);
        ipc_client_free(w->operator);
        ipc_client_free(w->run_client);
        ipc_server_free(w->runs);
        end_life(w);
        while (w->n_held > 0)
                ipc_call_unref(w->held[--w->n_held]);
        ipc_server_free(w->egress);
        ipc_server_free(w->secret);
        ipc_server_free(w->audit);
        fake_systemd_stop(&w->systemd);
        sd_event_unref(w->event);
        free(w->audited);
        json_decref(w->finished);
        json_decref(w->asked_secret);
        free(w);
        return 0;
}

static EVP_PKEY *template_key; /* signed what is installed; lives as long as the test */

static inline int enter_world(void **state) {
        Tree image = {};

        own_world_enter(0);
        own_world_cover("/usr/lib");
        own_world_cover("/var/lib");
        tree_add_vendor(&image);
        tree_put(&image, "usr/lib/anchorhold/templates/base/agents/pi.erofs", "");
        assert_true(mkdir("/usr/lib/anchorhold/keys", 0755) == 0 || errno == EEXIST);
        template_key = signed_template_make_key("/usr/lib/anchorhold/keys");
        signed_template_write(template_key, "/usr/lib/anchorhold/templates/base",
                              json_pack("{s:s, s:{s:s}}", "name", "base", "files", "root.erofs", "aa"), NULL);
        return mkdir("/var/lib/anchorhold", 0700);
}
