/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The calling side of every local socket.
 *
 * A server answers the calls of one connection in order, so a call that takes long would hold up all
 * that follow it. The client therefore never sends a second call on a connection before the first was
 * answered. Calls wait in one queue, in the order in which they were made; up to `parallel` connections
 * (one, unless ipc_client_set_parallel() said otherwise) each take the next call as soon as they are free. With one,
 * calls arrive strictly in order. A `more` call has a connection of its own, outside that number.
 *
 * Every call is answered exactly once: by the server, by the end of its connection ("Disconnected"), by its
 * timer ("Timeout"), unless the client is freed first. A call that timed out takes its connection with
 * it, because what would come there next is the late answer; a call still in the queue just leaves it.
 * A call is never sent twice: whether it is safe to repeat is for the caller to know.
 *
 * Handlers may do anything, also free the client. So each handler runs as the last thing, on a call that
 * was taken out of all lists, with the client kept alive by a reference.
 */
#include "ipc/ipc.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "ipc/ipc-link.h"
#include "ipc/json-convert.h"
#include "util/json.h"
#include "util/text.h"

#define ERROR_DISCONNECTED "io.anchorhold.Disconnected"
#define ERROR_TIMEOUT "io.anchorhold.Timeout"

enum {
        CALL_FDS_MAX = 8,
        CALLS_MAX = 4096, /* queued and under way, of one client */
        PARALLEL_MAX = 64,
        TIMER_ACCURACY_USEC = 10 * 1000,
};

typedef struct Connection Connection;
typedef struct Call Call;

struct Call {
        IpcClient *client;          /* borrowed */
        Connection *connection;     /* borrowed; NULL while it is queued */
        Call *next;                 /* in the queue */
        char *method;               /* owned */
        sd_json_variant *params;    /* ref */
        int fds[CALL_FDS_MAX];      /* owned */
        size_t n_fds;
        bool more;
        sd_event_source *timer;     /* ref */
        sd_event_source *failure;   /* ref: delivers an error found at once, from the loop */
        IpcReply handler;
        void *userdata;
};

struct Connection {
        IpcClient *client;          /* borrowed */
        Connection *next;
        sd_varlink *link;           /* ref */
        Call *call;                 /* owned; NULL when idle */
        bool dedicated;             /* to a `more` call */
        bool resting;               /* its answer is being handled, and sd-varlink takes no call until that returned */
};

struct IpcClient {
        unsigned n_ref;
        bool freed;                 /* by its owner; no handler runs any more */
        sd_event *event;            /* ref, may be NULL */
        char *path;                 /* owned */
        unsigned parallel, n_shared, n_calls;
        Call *queue, **queue_end;   /* owned */
        Connection *connections;    /* owned */
        sd_varlink *current;        /* borrowed: whose answer is being handled */
        sd_event_source *pump;      /* ref: sends what waits, from the loop, after a handler returned */
        IpcSync *sync;              /* owned: for ipc_client_call() and _next() */
};

static Call *call_free(Call *call) {
        if (!call)
                return NULL;

        for (size_t i = 0; i < call->n_fds; i++)
                (void) fd_close(call->fds[i]);
        (void) sd_event_source_disable_unref(call->timer);
        (void) sd_event_source_disable_unref(call->failure);
        (void) sd_json_variant_unref(call->params);
        free(call->method);
        free(call);
        return NULL;
}
DEFINE_CLEANUP(Call *, call_free)

/* Takes the connection out of the client and frees it with its call, if it still has one. The link is the caller's, still open. */
static sd_varlink *connection_free(Connection *connection) {
        IpcClient *c = connection->client;
        sd_varlink *link = connection->link;

        for (Connection **p = &c->connections; *p; p = &(*p)->next)
                if (*p == connection) {
                        *p = connection->next;
                        break;
                }
        if (!connection->dedicated)
                c->n_shared--;

        (void) sd_varlink_set_userdata(link, NULL);
        (void) call_free(connection->call);
        free(connection);
        return link;
}

static void connection_drop(Connection *connection) {
        (void) sd_varlink_close_unref(connection_free(connection));
}

static IpcClient *client_unref(IpcClient *c) {
        if (--c->n_ref > 0)
                return NULL;

        (void) sd_event_source_disable_unref(c->pump);
        (void) ipc_sync_free(c->sync);
        (void) sd_event_unref(c->event);
        free(c->path);
        free(c);
        return NULL;
}

IpcClient *ipc_client_free(IpcClient *c) {
        if (!c)
                return NULL;

        /* The lists go at once, also when called from a handler. */
        c->freed = true;
        if (c->pump)
                (void) sd_event_source_set_enabled(c->pump, SD_EVENT_OFF);
        while (c->connections)
                connection_drop(c->connections);
        while (c->queue) {
                Call *call = c->queue;

                c->queue = call->next;
                (void) call_free(call);
        }
        return client_unref(c);
}

void ipc_client_set_parallel(IpcClient *c, unsigned n) {
        c->parallel = n < 1 ? 1 : n > PARALLEL_MAX ? PARALLEL_MAX : n;
}

/* Gives the call its one answer and frees it. `call` is in no list any more. */
static void call_answer(Call *call, const char *error, json_t *params, sd_varlink *link) {
        _cleanup_(call_freep) Call *owned = call;
        IpcClient *c = call->client;

        c->n_calls--;
        c->n_ref++;
        c->current = link;
        if (call->handler && !c->freed)
                call->handler(c, error, params, false, call->userdata);
        c->current = NULL;
        if (!c->freed)
                (void) sd_event_source_set_enabled(c->pump, SD_EVENT_ONESHOT);
        (void) client_unref(c);
}

/* Out of the queue or off its connection, which ends with it. */
static void call_detach(Call *call) {
        IpcClient *c = call->client;

        if (call->connection) {
                Connection *connection = call->connection;

                connection->call = NULL;
                call->connection = NULL;
                connection_drop(connection);
                return;
        }

        for (Call **p = &c->queue; *p; p = &(*p)->next)
                if (*p == call) {
                        *p = call->next;
                        if (!*p)
                                c->queue_end = p;
                        break;
                }
        call->next = NULL;
}

static void call_fail(Call *call, const char *error) {
        _cleanup_json_ json_t *params = json_object();

        call_detach(call);
        call_answer(call, error, params, NULL);
}

static int call_on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        call_fail(userdata, ERROR_TIMEOUT);
        return 0;
}

static int call_on_failure(sd_event_source *s, void *userdata) {
        call_fail(userdata, ERROR_DISCONNECTED);
        return 0;
}

/* The next of several answers. The handler may end the connection or free the client. */
static void connection_on_more(Connection *connection, json_t *params) {
        IpcClient *c = connection->client;
        Call *call = connection->call;

        c->n_ref++;
        c->current = connection->link;
        if (call->handler)
                call->handler(c, NULL, params, true, call->userdata);
        c->current = NULL;
        (void) client_unref(c);
}

static int connection_on_reply(sd_varlink *link, sd_json_variant *parameters, const char *error, sd_varlink_reply_flags_t flags, void *userdata) {
        Connection *connection = sd_varlink_get_userdata(link);
        _cleanup_(sd_varlink_unrefp) sd_varlink *guard = sd_varlink_ref(link);
        _cleanup_json_ json_t *params = NULL;
        Call *call;

        if (!connection || !connection->call)
                return 0;
        call = connection->call;

        if ((flags & SD_VARLINK_REPLY_LOCAL) || (parameters && json_from_variant(parameters, &params) < 0)) {
                call_fail(call, ERROR_DISCONNECTED);
                return 0;
        }
        if (!params)
                params = json_object();

        if (!error && (flags & SD_VARLINK_REPLY_CONTINUES)) {
                connection_on_more(connection, params);
                return 0;
        }

        connection->call = NULL;
        connection->resting = true;
        call->connection = NULL;
        if (connection->dedicated) {
                /* open until the handler had its chance to take descriptors */
                sd_varlink *last = connection_free(connection);

                call_answer(call, error, params, last);
                (void) sd_varlink_close_unref(last);
        } else
                call_answer(call, error, params, link);
        return 0;
}

static int connection_new(IpcClient *c, bool dedicated, Connection **ret) {
        _cleanup_(sd_varlink_unrefp) sd_varlink *link = NULL;
        Connection *connection;
        int r;

        r = ipc_link_connect(c->path, &link);
        if (r < 0)
                return r;

        connection = malloc(sizeof(*connection));
        if (!connection)
                return -ENOMEM;
        *connection = (Connection) {
                .client = c,
                .next = c->connections,
                .dedicated = dedicated,
        };

        (void) sd_varlink_set_userdata(link, connection);
        r = sd_varlink_bind_reply(link, connection_on_reply);
        if (r >= 0)
                r = sd_varlink_attach_event(link, c->event, SD_EVENT_PRIORITY_NORMAL);
        if (r < 0) {
                free(connection);
                return r;
        }

        connection->link = TAKE_PTR(link);
        c->connections = connection;
        if (!dedicated)
                c->n_shared++;
        *ret = connection;
        return 0;
}

static int connection_send(Connection *connection, Call *call) {
        int r;

        r = ipc_link_push_fds(connection->link, call->fds, call->n_fds);
        if (r < 0)
                return r;

        r = call->more ? sd_varlink_observe(connection->link, call->method, call->params)
                       : sd_varlink_invoke(connection->link, call->method, call->params);
        if (r < 0)
                return r;

        while (call->n_fds > 0)
                (void) fd_close(call->fds[--call->n_fds]);
        call->params = sd_json_variant_unref(call->params);
        return 0;
}

/* An idle connection, or a new one; NULL if as many as allowed are busy. Negative errno if the server is not there. */
static int client_find_connection(IpcClient *c, Connection **ret) {
        for (Connection *k = c->connections, *next; k; k = next) {
                next = k->next;
                if (k->dedicated || k->call || k->resting)
                        continue;
                if (!ipc_link_is_stale(k->link)) {
                        *ret = k;
                        return 0;
                }
                connection_drop(k);
        }

        *ret = NULL;
        return c->n_shared < c->parallel ? connection_new(c, false, ret) : 0;
}

/* Whoever called must not be called back before the call returned: the error comes from the loop. */
static int call_fail_later(Call *call) {
        return sd_event_add_defer(call->client->event, &call->failure, call_on_failure, call);
}

/* Puts a call on a connection; on failure the connection is gone and the call still the caller's. */
static int connection_start(Connection *connection, Call *call) {
        int r;

        r = connection_send(connection, call);
        if (r < 0) {
                connection_drop(connection);
                return r;
        }

        connection->call = call;
        call->connection = connection;
        return 0;
}

static void client_pump(IpcClient *c) {
        Connection *connection;
        int r;

        for (Call *call = c->queue, *next; call; call = next) {
                next = call->next;
                if (call->failure)
                        continue;

                r = client_find_connection(c, &connection);
                if (r >= 0 && !connection)
                        return;
                if (r >= 0) {
                        call_detach(call);
                        r = connection_start(connection, call);
                        if (r >= 0)
                                continue;
                        /* the call ends here: put it where call_detach() will look for it */
                        call->next = c->queue;
                        c->queue = call;
                        if (!call->next)
                                c->queue_end = &call->next;
                }

                (void) call_fail_later(call);
        }
}

static int client_on_pump(sd_event_source *s, void *userdata) {
        IpcClient *c = userdata;

        for (Connection *k = c->connections; k; k = k->next)
                k->resting = false;
        client_pump(c);
        return 0;
}

int ipc_client_new(IpcClient **ret, sd_event *event, const char *path) {
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        int r;

        c = malloc(sizeof(*c));
        if (!c)
                return -ENOMEM;
        *c = (IpcClient) {
                .n_ref = 1,
                .event = sd_event_ref(event),
                .path = strdup(path),
                .parallel = 1,
        };
        c->queue_end = &c->queue;
        if (!c->path)
                return -ENOMEM;

        if (event) {
                r = sd_event_add_defer(event, &c->pump, client_on_pump, c);
                if (r >= 0)
                        r = sd_event_source_set_enabled(c->pump, SD_EVENT_OFF);
                if (r < 0)
                        return r;
        }

        *ret = TAKE_PTR(c);
        return 0;
}

static int call_new(IpcClient *c, const char *method, json_t *params, const int *fds, size_t n_fds, Call **ret) {
        _cleanup_json_ json_t *owned = params ?: json_object();
        _cleanup_(call_freep) Call *call = NULL;
        int r;

        if (n_fds > CALL_FDS_MAX)
                return -EINVAL;

        call = calloc(1, sizeof(*call));
        if (!call || !owned)
                return -ENOMEM;
        *call = (Call) { .client = c, .method = strdup(method) };
        if (!call->method)
                return -ENOMEM;

        r = json_to_variant(owned, &call->params);
        if (r < 0)
                return r;

        for (; call->n_fds < n_fds; call->n_fds++) {
                call->fds[call->n_fds] = fcntl(fds[call->n_fds], F_DUPFD_CLOEXEC, 3);
                if (call->fds[call->n_fds] < 0)
                        return -errno;
        }

        *ret = TAKE_PTR(call);
        return 0;
}

int ipc_client_call_async(IpcClient *c, const char *method, json_t *params, const int *fds, size_t n_fds,
                          bool more, uint64_t timeout_usec, IpcReply handler, void *userdata) {
        _cleanup_(call_freep) Call *call = NULL;
        Connection *connection;
        int r;

        assert(c->event);

        r = call_new(c, method, params, fds, n_fds, &call);
        if (r < 0)
                return r;
        if (c->n_calls >= CALLS_MAX)
                return -EBUSY;

        call->more = more;
        call->handler = handler;
        call->userdata = userdata;
        if (timeout_usec > 0) {
                r = sd_event_add_time_relative(c->event, &call->timer, CLOCK_MONOTONIC, timeout_usec, TIMER_ACCURACY_USEC, call_on_timer, call);
                if (r < 0)
                        return r;
        }

        if (more) {
                r = connection_new(c, true, &connection);
                if (r >= 0)
                        r = connection_start(connection, call);
                if (r >= 0) {
                        c->n_calls++;
                        (void) TAKE_PTR(call);
                        return 0;
                }
                r = call_fail_later(call);
                if (r < 0)
                        return r;
        }

        c->n_calls++;
        *c->queue_end = call;
        c->queue_end = &call->next;
        (void) TAKE_PTR(call);
        client_pump(c);
        return 0;
}

bool ipc_error_is(const char *error, const char *name) {
        const char *dot = error ? strrchr(error, '.') : NULL;

        return dot && strcmp(dot + 1, name) == 0;
}

bool ipc_error_is_passing(const char *error) {
        return ipc_error_is(error, "Disconnected") || ipc_error_is(error, "Timeout") || ipc_error_is(error, "Unavailable");
}

int ipc_client_take_fd(IpcClient *c, unsigned i) {
        return c->current ? sd_varlink_take_fd(c->current, i) : -EINVAL;
}

/* ---- without an event loop: ipc-client-sync.c ---- */

static int client_sync(IpcClient *c, IpcSync **ret) {
        int r = 0;

        if (!c->sync)
                r = ipc_sync_new(&c->sync, c->path);
        if (r >= 0)
                *ret = c->sync;
        return r;
}

int ipc_client_set_waiting(IpcClient *c, uint64_t every_usec, IpcWaiting handler, void *userdata) {
        IpcSync *sync;
        int r;

        r = client_sync(c, &sync);
        if (r >= 0)
                ipc_sync_set_waiting(sync, every_usec, handler, userdata);
        return r;
}

int ipc_client_call(IpcClient *c, const char *method, json_t *params, const int *fds, size_t n_fds,
                    uint64_t timeout_usec, json_t **ret_params, char **ret_error,
                    int *ret_fds, size_t max_fds) {
        _cleanup_json_ json_t *owned = params ?: json_object();
        IpcSync *sync;
        int r;

        for (size_t i = 0; i < max_fds; i++)
                ret_fds[i] = -1;
        if (!owned)
                return -ENOMEM;

        r = client_sync(c, &sync);
        if (r < 0)
                return r;
        return ipc_sync_call(sync, method, owned, fds, n_fds, timeout_usec, ret_params, ret_error, ret_fds, max_fds);
}

int ipc_client_observe(IpcClient *c, const char *method, json_t *params, const int *fds, size_t n_fds) {
        _cleanup_json_ json_t *owned = params ?: json_object();
        IpcSync *sync;
        int r;

        if (!owned)
                return -ENOMEM;

        r = client_sync(c, &sync);
        if (r < 0)
                return r;
        return ipc_sync_observe(sync, method, owned, fds, n_fds);
}

int ipc_client_next(IpcClient *c, uint64_t timeout_usec, json_t **ret_params, char **ret_error) {
        return c->sync ? ipc_sync_next(c->sync, timeout_usec, ret_params, ret_error) : -ENOTCONN;
}
