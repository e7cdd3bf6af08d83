/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A secretd with its sockets, between a played auditd and a client whose word on who calls is the test's. */

#include <unistd.h>

#include "audit/audit-api.h"
#include "own-world.h"
#include "policy-tree.h"
#include "secret/bundle-api.h"
#include "secret/secretd-private.h"
#include "util/json.h"

#define RUN "r0123456789ab"
#define ITEM "i0123456789ab"
#define API "/run/test-secret.sock"
#define MINUTE (60ULL * 1000 * 1000)

typedef struct World {
        sd_event *event;
        Secretd *d;
        IpcServer *audit, *server;
        IpcClient *client, *watcher;
        const char *caller; /* whose inject it is that calls */
        bool audit_refuses, audit_waits, no_credentials;
        IpcCall *waiting;
        char *audited;      /* owned: one record a line */
        bool answered;
        char *error;        /* owned */
        json_t *answer;     /* owned */
        Secret *given;      /* owned: what came with the answer */
        char *watched;      /* owned: every reply to Watch, one a line */
        unsigned n_watched;
} World;

static inline void append(char **to, const char *text) {
        char *more = text_format("%s%s\n", *to ?: "", text);

        free(*to);
        *to = more;
}

static inline int on_append(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;
        _cleanup_free_ char *text = json_canonical(params);

        if (w->audit_refuses)
                return ipc_call_refuse(call, "Unavailable", "full");
        append(&w->audited, text);
        if (w->audit_waits) {
                w->waiting = ipc_call_ref(call);
                return 0;
        }
        return ipc_call_reply(call, json_pack("{s:i, s:s}", "seq", 1, "hash", "00"));
}

static const IpcMethod audit_methods[] = { { AUDIT_INTERFACE ".Append", PEER_ROOT, on_append }, {} };

/* The real handlers. */
static inline int on_call(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        strcpy(ipc_call_peer(call)->run, w->caller);
        for (const IpcMethod *m = secretd_methods; m->name; m++)
                if (strcmp(m->name, ipc_call_method(call)) == 0)
                        return m->handler(call, params, w->d);
        return -ENOSYS;
}

static inline IpcServer *serve(World *w, const IpcMethod *methods, const char *path) {
        IpcServer *s = NULL;

        assert_int_equal(ipc_server_new(&s, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(s, own_world_listen(path)) >= 0);
        return s;
}

static inline void begin_life(World *w) {
        static const char *const paths[] = { "/run/anchorhold/secret-api.sock", "/run/anchorhold/secret.sock" };
        const SecretdPaths where = {
                .credentials = w->no_credentials ? NULL : "/run/credentials", .state = "/run/state", .key = "/run/key", .policy_root = "",
                .upstream_ca = "/run/upstream-ca",
        };

        own_world_pass(paths, 2, "secret-api:secret");
        assert_int_equal(secretd_new(&w->d, w->event, &where), 0);
}

static inline void end_life(World *w) {
        w->d = secretd_free(w->d);
}

static inline int set_up(void **state) {
        static IpcMethod played[16];
        World *w = calloc(1, sizeof(*w));

        own_world_reserve(2);
        assert_int_equal(system("rm -rf /run/state /run/key /run/upstream-ca; mkdir -m 700 /run/state /run/key /run/upstream-ca"), 0);
        w->caller = RUN;
        assert_int_equal(sd_event_new(&w->event), 0);
        w->audit = serve(w, audit_methods, AUDIT_SOCKET);
        for (size_t i = 0; secretd_methods[i].name; i++) {
                assert_true(i + 1 < ELEMENTSOF(played));
                played[i] = (IpcMethod) { secretd_methods[i].name, PEER_ROOT, on_call };
        }
        w->server = serve(w, played, API);
        assert_int_equal(ipc_client_new(&w->client, w->event, API), 0);
        assert_int_equal(ipc_client_new(&w->watcher, w->event, API), 0);
        begin_life(w);
        *state = w;
        return 0;
}

static inline int tear_down(void **state) {
        World *w = *state;

        ipc_client_free(w->client);
        ipc_client_free(w->watcher);
        secretd_free(w->d);
        ipc_call_unref(w->waiting);
        ipc_server_free(w->server);
        ipc_server_free(w->audit);
        sd_event_unref(w->event);
        json_decref(w->answer);
        secret_free(w->given);
        free(w->error);
        free(w->audited);
        free(w->watched);
        free(w);
        return 0;
}

/* ---- calls ---- */

static inline void on_answer(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        World *w = userdata;
        int fd;

        w->answered = true;
        w->error = error ? strdup(error) : NULL;
        w->answer = json_incref(params);
        fd = error ? -1 : ipc_client_take_fd(c, 0);
        if (fd >= 0) {
                assert_int_equal(secret_read_fd(&w->given, fd), 0);
                close(fd);
        }
}

/* With a descriptor, unless it is -1. */
static inline void ask_with(World *w, const char *method, json_t *params, int fd) {
        json_decref(w->answer);
        free(w->error);
        w->given = secret_free(w->given);
        w->answer = NULL;
        w->error = NULL;
        w->answered = false;
        assert_int_equal(ipc_client_call_async(w->client, method, params, &fd, fd >= 0, false, 0, on_answer, w), 0);
}

static inline void ask(World *w, const char *method, json_t *params) {
        ask_with(w, method, params, -1);
}

static inline void call_with(World *w, const char *method, json_t *params, int fd) {
        ask_with(w, method, params, fd);
        UNTIL(w->event, w->answered);
}

static inline void call(World *w, const char *method, json_t *params) {
        call_with(w, method, params, -1);
}

static inline void is_refused(World *w, const char *error, const char *reason) {
        const char *given = json_string_value(json_object_get(w->answer, "reason")) ?: "";

        assert_non_null(w->error);
        assert_string_equal(strrchr(w->error, '.') + 1, error);
        if (!strstr(given, reason))
                fail_msg("expected \"%s\", got \"%s\"", reason, given);
}

static inline void refused(World *w, const char *method, json_t *params, const char *error, const char *reason) {
        call(w, method, params);
        is_refused(w, error, reason);
}
