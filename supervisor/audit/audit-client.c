/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Writing audit events.
 *
 * auditd answers the calls of one connection in order, each after a commit. So that a burst of one run does
 * not hold up the events of another, there are LANES connections. As long as events of a run (else of an item) are under way,
 * its further ones take the same lane, so they stay in the order in which they were appended; one that has none under
 * way takes the emptiest lane. auditd commits what arrives on all lanes together.
 */
#include "audit/audit.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "audit/audit-api.h"
#include "ipc/ipc.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

enum { LANES = 8, AGAIN_USEC = 200 * 1000 };

/* Whose events are under way, and on which lane. */
typedef struct Stream {
        char *name;          /* owned; of the run, else of the item, else "" */
        size_t lane, n_appends;
} Stream;

typedef struct Append {
        AuditClient *client; /* borrowed */
        Stream *stream;      /* borrowed; NULL for a ping */
        AuditDone done;
        void *userdata;
        char *event;         /* owned; for the log */
} Append;

struct AuditClient {
        IpcClient *lanes[LANES]; /* owned */
        IpcClient *ping;         /* owned: answers about health do not queue behind events */
        size_t load[LANES];      /* appends under way */
        Stream **streams;        /* owned array; each has an append */
        size_t n_streams;
        Append **appends;        /* owned array of those under way, so that freeing the client frees them */
        size_t n_appends, n_allocated;
};

int audit_client_new(AuditClient **ret, sd_event *event) {
        _cleanup_(audit_client_freep) AuditClient *c = NULL;
        int r;

        c = calloc(1, sizeof(*c));
        if (!c)
                return -ENOMEM;

        for (size_t i = 0; i < LANES; i++) {
                r = ipc_client_new(&c->lanes[i], event, AUDIT_SOCKET);
                if (r < 0)
                        return r;
        }
        r = ipc_client_new(&c->ping, event, AUDIT_SOCKET);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(c);
        return 0;
}

static Stream *stream_free(Stream *s) {
        if (s)
                free(s->name);
        free(s);
        return NULL;
}
DEFINE_CLEANUP(Stream *, stream_free)

static Append *append_free(Append *a) {
        if (a)
                free(a->event);
        free(a);
        return NULL;
}
DEFINE_CLEANUP(Append *, append_free)

AuditClient *audit_client_free(AuditClient *c) {
        if (!c)
                return NULL;

        for (size_t i = 0; i < LANES; i++)
                (void) ipc_client_free(c->lanes[i]);
        (void) ipc_client_free(c->ping);
        for (size_t i = 0; i < c->n_appends; i++)
                (void) append_free(c->appends[i]);
        free(c->appends);
        for (size_t i = 0; i < c->n_streams; i++)
                (void) stream_free(c->streams[i]);
        free(c->streams);
        free(c);
        return NULL;
}

/* The errors that interfaces.md lists, as errno. */
static int audit_error_to_errno(const char *error) {
        static const struct { const char *name; int r; } table[] = {
                { AUDIT_INTERFACE ".BadInput",             -EINVAL    },
                { AUDIT_INTERFACE ".Denied",               -EACCES    },
                { AUDIT_INTERFACE ".Unavailable",          -EHOSTDOWN },
                { "io.anchorhold.Disconnected",            -ENOTCONN  },
                { "io.anchorhold.Timeout",                 -ETIMEDOUT },
                { "org.varlink.service.InvalidParameter",  -EINVAL    },
                { "org.varlink.service.PermissionDenied",  -EACCES    },
        };

        for (size_t i = 0; i < ELEMENTSOF(table); i++)
                if (strcmp(error, table[i].name) == 0)
                        return table[i].r;

        return -EREMOTEIO;
}

/* Loud where nobody else hears of it, and where it is for good: then there is a mistake, and only auditd knows which. */
static void log_failure(const char *event, int r, json_t *params, bool told) {
        const char *reason = json_string_value(json_object_get(params, "reason"));

        if (told && r != -EINVAL && r != -EACCES)
                log_debug("Audit event %s was not recorded (%s)%s%s", event, strerror(-r), reason ? ": " : "", reason ?: "");
        else
                log_error_errno(r, "Audit event %s was not recorded%s%s", event, reason ? ": " : "", reason ?: "");
}

/* ---- streams ---- */

static size_t emptiest_lane(const AuditClient *c) {
        size_t best = 0;

        for (size_t i = 1; i < LANES; i++)
                if (c->load[i] < c->load[best])
                        best = i;
        return best;
}

/* There are as many as runs and items have something under way: few. */
static int stream_get(AuditClient *c, const char *name, Stream **ret) {
        _cleanup_(stream_freep) Stream *s = NULL;
        Stream **grown;

        for (size_t i = 0; i < c->n_streams; i++)
                if (strcmp(c->streams[i]->name, name) == 0) {
                        *ret = c->streams[i];
                        return 0;
                }

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        s->lane = emptiest_lane(c);
        s->name = strdup(name);
        grown = reallocarray(c->streams, c->n_streams + 1, sizeof(*grown));
        if (grown)
                c->streams = grown;
        if (!grown || !s->name)
                return -ENOMEM;

        *ret = c->streams[c->n_streams++] = TAKE_PTR(s);
        return 0;
}

static void stream_begin(AuditClient *c, Append *a) {
        if (!a->stream)
                return;
        a->stream->n_appends++;
        c->load[a->stream->lane]++;
}

/* One of its appends ended, or could not begin. */
static void stream_end(AuditClient *c, Append *a) {
        Stream *s = TAKE_PTR(a->stream);

        if (!s)
                return;
        c->load[s->lane]--;
        if (--s->n_appends > 0)
                return;

        for (size_t i = 0; i < c->n_streams; i++)
                if (c->streams[i] == s) {
                        c->streams[i] = c->streams[--c->n_streams];
                        break;
                }
        (void) stream_free(s);
}

/* ---- calls ---- */

/* The list is short: what is under way, at most a few thousand. */
static void client_forget(AuditClient *c, Append *a) {
        stream_end(c, a);
        for (size_t i = 0; i < c->n_appends; i++)
                if (c->appends[i] == a) {
                        c->appends[i] = c->appends[--c->n_appends];
                        return;
                }
}

static int client_remember(AuditClient *c, Append *a) {
        if (c->n_appends == c->n_allocated) {
                size_t n = c->n_allocated ? 2 * c->n_allocated : 16;
                Append **grown = realloc(c->appends, n * sizeof(grown[0]));

                if (!grown)
                        return -ENOMEM;
                c->appends = grown;
                c->n_allocated = n;
        }

        c->appends[c->n_appends++] = a;
        return 0;
}

static void append_on_reply(IpcClient *ipc, const char *error, json_t *params, bool more, void *userdata) {
        _cleanup_(append_freep) Append *a = userdata;
        int r = error ? audit_error_to_errno(error) : 0;

        client_forget(a->client, a);
        if (r < 0 && a->event)
                log_failure(a->event, r, params, a->done);
        if (a->done)
                a->done(r, a->userdata); /* may free the client */
}

/* NULL without data: whoever could not make them (no memory, bytes that are no text) would get a record that says nothing. */
static json_t *append_params(const char *key, const char *event, const char *run, const char *item, const char *actor, json_t *data) {
        _cleanup_json_ json_t *owned = data, *params = NULL;

        /* jansson leaves out what is NULL with "*" */
        if (owned)
                params = json_pack("{s:s, s:s*, s:s*, s:s*, s:s*, s:O}", "event", event, "run", run, "item", item, "actor", actor, "key", key, "data", owned);
        if (!params)
                log_failure(event, -ENOMEM, NULL, true); /* the caller gets it */
        return TAKE_PTR(params);
}

/* `name` NULL: a ping. */
static int client_call(AuditClient *c, const char *name, const char *method, json_t *params, const char *event,
                       AuditDone done, void *userdata) {
        _cleanup_json_ json_t *owned = params;
        _cleanup_(append_freep) Append *a = NULL;
        IpcClient *lane = c->ping;
        int r;

        a = calloc(1, sizeof(*a));
        if (!a || !owned)
                return -ENOMEM;
        *a = (Append) { .client = c, .done = done, .userdata = userdata, .event = event ? strdup(event) : NULL };
        if (event && !a->event)
                return -ENOMEM;

        if (name) {
                r = stream_get(c, name, &a->stream);
                if (r < 0)
                        return r;
                lane = c->lanes[a->stream->lane];
        }
        stream_begin(c, a);
        r = client_remember(c, a);
        if (r >= 0)
                r = ipc_client_call_async(lane, method, TAKE_PTR(owned), NULL, 0, false, AUDIT_TIMEOUT_USEC, append_on_reply, a);
        if (r < 0) {
                client_forget(c, a);
                return r;
        }

        (void) TAKE_PTR(a);
        return 0;
}

int audit_append(AuditClient *c, const char *event, const char *run, const char *item, const char *actor,
                 json_t *data, AuditDone done, void *userdata) {
        return audit_append_once(c, NULL, event, run, item, actor, data, done, userdata);
}

int audit_append_once(AuditClient *c, const char *key, const char *event, const char *run, const char *item, const char *actor,
                      json_t *data, AuditDone done, void *userdata) {
        return client_call(c, run ?: item ?: "", AUDIT_INTERFACE ".Append", append_params(key, event, run, item, actor, data), event, done, userdata);
}

size_t audit_pending(const AuditClient *c, const char *name) {
        for (size_t i = 0; i < c->n_streams; i++)
                if (strcmp(c->streams[i]->name, name) == 0)
                        return c->streams[i]->n_appends;
        return 0;
}

int audit_ping(AuditClient *c, AuditDone done, void *userdata) {
        return client_call(c, NULL, AUDIT_INTERFACE ".Ping", json_object(), NULL, done, userdata);
}

static int append_sync(json_t *request, uint64_t timeout_usec) {
        _cleanup_json_ json_t *params = request, *answer = NULL;
        _cleanup_(ipc_client_freep) IpcClient *ipc = NULL;
        _cleanup_free_ char *error = NULL;
        int r;

        if (!params)
                return -ENOMEM;
        r = ipc_client_new(&ipc, NULL, AUDIT_SOCKET);
        if (r < 0)
                return r;

        r = ipc_client_call(ipc, AUDIT_INTERFACE ".Append", json_incref(params), NULL, 0, timeout_usec, &answer, &error, NULL, 0);
        if (r == -EREMOTEIO && error) {
                r = audit_error_to_errno(error);
                log_failure(json_string_value(json_object_get(params, "event")), r, answer, true);
        }
        return r;
}

int audit_append_sync(const char *event, const char *run, const char *item, const char *actor, json_t *data) {
        return append_sync(append_params(NULL, event, run, item, actor, data), AUDIT_TIMEOUT_USEC);
}

int audit_append_sync_until(const char *key, const char *event, const char *run, json_t *data, uint64_t until_usec) {
        _cleanup_json_ json_t *params = append_params(key, event, run, NULL, NULL, data);
        uint64_t now;
        int r;

        for (;;) {
                now = time_monotonic();
                r = now >= until_usec ? -ETIMEDOUT : append_sync(json_incref(params), until_usec - now < AUDIT_TIMEOUT_USEC ? until_usec - now : AUDIT_TIMEOUT_USEC);
                if (r >= 0 || !key || r == -EINVAL || r == -EACCES || r == -ENOMEM || time_monotonic() + AGAIN_USEC >= until_usec)
                        return r;
                (void) usleep(AGAIN_USEC);
        }
}
