/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The serving side of every local socket.
 *
 * sd-varlink reads, frames and writes, driven by ipc-intake.c; this file decides who may call what, and translates. A connection
 * is one struct Connection: made when it is accepted, with the peer as the kernel knows it then, and kept
 * by reference as long as a call of it lives somewhere, even after the client has gone.
 *
 * varlink answers the calls of one connection in order: while a handler has not answered, the next message
 * of that connection is not read. So each connection has at most one call (Connection.current), an answer can
 * only belong to it, and a client that wants concurrency opens more connections.
 *
 * Invariant: a handler runs only after the peer's roles were compared with the method's. A call whose last
 * reference goes away without an answer is answered with <interface>.Unavailable, so that no client waits
 * for ever on a handler's mistake.
 *
 * sd-varlink does not tell a method callback which method it is for. Therefore there are METHODS_MAX
 * callbacks that differ in nothing but a number: the method's place in the table.
 */
#include "ipc/ipc.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-varlink.h>

#include "ipc/ipc-intake.h"
#include "ipc/json-convert.h"
#include "util/cgroup.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

enum {
        METHODS_MAX = 32,
        CALL_FDS_MAX = 8,
        CONNECTIONS_DEFAULT = 1024,
        CONNECTIONS_PER_UID_DEFAULT = 128,
};

typedef struct Connection Connection;

struct Connection {
        unsigned n_ref;
        IpcServer *server;     /* borrowed; NULL once the server or the client has gone */
        Connection *next, *previous; /* in the server's list, as long as it has a server */
        sd_varlink *link;      /* ref; NULL likewise */
        Intake *intake;        /* owned; NULL likewise */
        IpcCall *current;      /* borrowed: the call that is not yet answered */
        Peer peer;
        bool denied_before;
};

struct IpcCall {
        unsigned n_ref;
        Connection *connection; /* ref */
        const IpcMethod *method;
        bool more;
        bool answered;
        int fds[CALL_FDS_MAX];  /* owned: came with the call */
};

struct IpcServer {
        sd_event *event;        /* ref */
        sd_varlink_server *server; /* ref */
        const IpcMethod *methods;
        void *userdata;
        void (*disconnect)(const Peer *peer, void *userdata);
        int cgroup_root;        /* owned */
        IntakeShare *intake;    /* owned */
        bool no_fds;
        Connection *connections; /* each holds a reference to itself while it is here */
};

static Connection *connection_unref(Connection *c) {
        if (!c || --c->n_ref > 0)
                return NULL;

        peer_done(&c->peer);
        free(c);
        return NULL;
}
DEFINE_CLEANUP(Connection *, connection_unref)

/* The client has gone, or the server goes: calls that still exist can no longer answer. */
static void connection_detach(Connection *c) {
        if (c->next)
                c->next->previous = c->previous;
        if (c->previous)
                c->previous->next = c->next;
        else
                c->server->connections = c->next;
        c->next = c->previous = NULL;

        c->server = NULL;
        c->current = NULL;
        c->intake = intake_free(c->intake);
        c->link = sd_varlink_unref(c->link);
}

IpcCall *ipc_call_ref(IpcCall *c) {
        c->n_ref++;
        return c;
}

static bool call_can_answer(const IpcCall *c) {
        return !c->answered && c->connection->link && c->connection->current == c;
}

/* "<interface of the method>.<error>" unless the error is a full name already. */
static char *call_error_name(const IpcCall *c, const char *error) {
        const char *dot = strrchr(c->method->name, '.');

        if (strchr(error, '.') || !dot)
                return strdup(error);

        return text_format("%.*s.%s", (int) (dot - c->method->name), c->method->name, error);
}

IpcCall *ipc_call_unref(IpcCall *c) {
        if (!c || c->n_ref > 1) {
                if (c)
                        c->n_ref--;
                return NULL;
        }

        /* still with its last reference, so that the answer can be given */
        if (call_can_answer(c))
                (void) ipc_call_refuse(c, "Unavailable", "The call was given up.");
        if (c->connection->current == c)
                c->connection->current = NULL;

        for (size_t i = 0; i < CALL_FDS_MAX; i++)
                (void) fd_close(c->fds[i]);
        (void) connection_unref(c->connection);
        free(c);
        return NULL;
}

Peer *ipc_call_peer(IpcCall *c) {
        return &c->connection->peer;
}

const char *ipc_call_method(IpcCall *c) {
        return c->method->name;
}

bool ipc_call_wants_more(IpcCall *c) {
        return c->more;
}

bool ipc_call_is_live(IpcCall *c) {
        return call_can_answer(c);
}

bool ipc_call_is_backed_up(IpcCall *c) {
        int events;

        if (!call_can_answer(c))
                return false;

        events = sd_varlink_get_events(c->connection->link);
        return events > 0 && (events & EPOLLOUT);
}

void ipc_call_hang_up(IpcCall *c) {
        if (c->connection->link)
                (void) sd_varlink_close(c->connection->link);
}

int ipc_call_take_fd(IpcCall *c, unsigned i) {
        if (i >= CALL_FDS_MAX || c->fds[i] < 0)
                return -EINVAL;

        return TAKE_FD(c->fds[i]);
}

int ipc_call_push_fd(IpcCall *c, int fd) {
        if (!call_can_answer(c))
                return -ENOTCONN;

        return sd_varlink_push_fd(c->connection->link, fd);
}

static int params_to_variant(json_t *params, sd_json_variant **ret) {
        _cleanup_json_ json_t *owned = params ?: json_object();

        return owned ? json_to_variant(owned, ret) : -ENOMEM;
}

/* Marks the call answered; the connection is free for the next one. */
static void call_finish(IpcCall *c) {
        c->answered = true;
        c->connection->current = NULL;
}

int ipc_call_reply(IpcCall *c, json_t *params) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        int r;

        r = params_to_variant(params, &v);
        if (r < 0)
                return r;
        if (!call_can_answer(c))
                return -ENOTCONN;

        r = sd_varlink_reply(c->connection->link, v);
        if (r < 0)
                return r;

        call_finish(c);
        return 0;
}

int ipc_call_notify(IpcCall *c, json_t *params) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        int r;

        r = params_to_variant(params, &v);
        if (r < 0)
                return r;
        if (!c->more)
                return -EINVAL;
        if (!call_can_answer(c))
                return -ENOTCONN;

        r = sd_varlink_notify(c->connection->link, v);
        return r < 0 ? r : 0;
}

int ipc_call_error(IpcCall *c, const char *error, json_t *params) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        _cleanup_free_ char *name = NULL;
        int r;

        r = params_to_variant(params, &v);
        if (r < 0)
                return r;
        if (!call_can_answer(c))
                return -ENOTCONN;

        name = call_error_name(c, error);
        if (!name)
                return -ENOMEM;

        /* sd_varlink_error() returns the errno that the error means to it, also on success */
        (void) sd_varlink_error(c->connection->link, name, v);
        call_finish(c);
        return 0;
}

int ipc_call_refuse(IpcCall *c, const char *error, const char *format, ...) {
        _cleanup_free_ char *reason = NULL;
        json_t *params;
        va_list ap;
        int n;

        va_start(ap, format);
        n = vasprintf(&reason, format, ap);
        va_end(ap);
        if (n < 0) {
                reason = NULL;
                return -ENOMEM;
        }

        /* A reason may quote what a stranger sent: it must still be text. */
        _cleanup_free_ char *text = text_escape(reason, strlen(reason), true);
        params = json_pack("{s:s}", "reason", text ?: "");
        if (!params)
                return -ENOMEM;

        return ipc_call_error(c, error, params);
}

static void log_denied(Connection *c, const IpcMethod *method) {
        char name[64];

        if (c->denied_before)
                return;

        c->denied_before = true;
        log_notice("%s (pid %d, cgroup %s) may not call %s", peer_name(&c->peer, name), (int) c->peer.pid,
                   c->peer.cgroup, method->name);
}

static IpcCall *call_new(Connection *connection, const IpcMethod *method, bool more) {
        IpcCall *call = malloc(sizeof(*call));

        if (!call)
                return NULL;

        *call = (IpcCall) {
                .n_ref = 1,
                .connection = connection,
                .method = method,
                .more = more,
        };
        connection->n_ref++;
        connection->current = call;
        for (size_t i = 0; i < CALL_FDS_MAX; i++) {
                int fd = sd_varlink_take_fd(connection->link, i);

                call->fds[i] = fd < 0 ? -1 : fd;
        }
        return call;
}

static int connection_dispatch(Connection *c, const IpcMethod *method, sd_json_variant *parameters, bool more) {
        /* the handler may free the server, or find the client gone */
        _cleanup_(connection_unrefp) Connection *guard = c;
        _cleanup_(ipc_call_unrefp) IpcCall *call = NULL;
        _cleanup_json_ json_t *params = NULL;
        int r;

        c->n_ref++;
        if (!(c->peer.roles & method->roles)) {
                log_denied(c, method);
                return sd_varlink_error(c->link, SD_VARLINK_ERROR_PERMISSION_DENIED, NULL);
        }

        r = parameters ? json_from_variant(parameters, &params) : 0;
        if (r < 0)
                return sd_varlink_error(c->link, SD_VARLINK_ERROR_INVALID_PARAMETER, NULL);
        if (!params)
                params = json_object();

        call = call_new(c, method, more);
        if (!call || !params)
                return -ENOMEM;

        r = method->handler(call, params, c->server->userdata);
        if (r < 0 && call_can_answer(call))
                (void) ipc_call_refuse(call, "Unavailable", "%s", strerror(-r));

        return 0;
}

static int server_on_method(sd_varlink *link, sd_json_variant *parameters, sd_varlink_method_flags_t flags, size_t index) {
        Connection *c = sd_varlink_get_userdata(link);

        if (!c || !c->server)
                return 0;
        intake_call_begins(c->intake);
        /* Nobody waits for a one-way call's answer, so nobody would learn that it was refused. */
        if (flags & SD_VARLINK_METHOD_ONEWAY)
                return 0;

        return connection_dispatch(c, &c->server->methods[index], parameters, flags & SD_VARLINK_METHOD_MORE);
}

#define CALLBACK(i)                                                                                                  \
        static int server_on_method_##i(sd_varlink *link, sd_json_variant *parameters, sd_varlink_method_flags_t flags, void *userdata) { \
                return server_on_method(link, parameters, flags, 0x##i);                                             \
        }
#define CALLBACKS(M) \
        M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(a) M(b) M(c) M(d) M(e) M(f) \
        M(10) M(11) M(12) M(13) M(14) M(15) M(16) M(17) M(18) M(19) M(1a) M(1b) M(1c) M(1d) M(1e) M(1f)
#define ENTRY(i) server_on_method_##i,

CALLBACKS(CALLBACK)

static const sd_varlink_method_t callbacks[METHODS_MAX] = { CALLBACKS(ENTRY) };

static int server_on_connect(sd_varlink_server *vs, sd_varlink *link, void *userdata) {
        _cleanup_(connection_unrefp) Connection *c = NULL;
        IpcServer *s = userdata;
        int r;

        c = malloc(sizeof(*c));
        if (!c)
                return -ENOMEM;
        *c = (Connection) { .n_ref = 1, .server = s, .peer = PEER_NULL };

        r = peer_from_socket(sd_varlink_get_fd(link), s->cgroup_root, &c->peer);
        if (r < 0) {
                log_debug("Refusing a connection whose peer cannot be found out: %s", strerror(-r));
                return r;
        }

        r = sd_varlink_set_allow_fd_passing_input(link, !s->no_fds);
        if (r >= 0)
                r = sd_varlink_set_allow_fd_passing_output(link, true);
        if (r < 0)
                return r;

        sd_varlink_detach_event(link);
        r = intake_new(&c->intake, s->intake, link, &c->peer);
        if (r < 0)
                return r;

        c->link = sd_varlink_ref(link);
        c->next = s->connections;
        if (c->next)
                c->next->previous = c;
        s->connections = c;
        (void) sd_varlink_set_userdata(link, TAKE_PTR(c));
        return 0;
}

static void server_on_disconnect(sd_varlink_server *vs, sd_varlink *link, void *userdata) {
        Connection *c = sd_varlink_get_userdata(link);
        IpcServer *s = userdata;

        /* a connection that was refused in server_on_connect() has none */
        if (!c || !c->link)
                return;

        (void) sd_varlink_set_userdata(link, NULL);
        connection_detach(c);
        if (s->disconnect)
                s->disconnect(&c->peer, s->userdata);
        (void) connection_unref(c);
}

static int server_bind(IpcServer *s) {
        size_t n;
        int r;

        for (n = 0; s->methods[n].name; n++) {
                assert(n < METHODS_MAX);

                r = sd_varlink_server_bind_method(s->server, s->methods[n].name, callbacks[n]);
                if (r < 0)
                        return r;
        }

        (void) sd_varlink_server_set_userdata(s->server, s);
        r = sd_varlink_server_bind_connect(s->server, server_on_connect);
        if (r < 0)
                return r;

        return sd_varlink_server_bind_disconnect(s->server, server_on_disconnect);
}

int ipc_server_new(IpcServer **ret, sd_event *event, const IpcMethod *methods, void *userdata) {
        _cleanup_(ipc_server_freep) IpcServer *s = NULL;
        int r;

        s = malloc(sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (IpcServer) {
                .event = sd_event_ref(event),
                .methods = methods,
                .userdata = userdata,
                .cgroup_root = cgroup_open_root(),
        };

        r = intake_share_new(&s->intake, event);
        if (r < 0)
                return r;
        r = sd_varlink_server_new(&s->server, SD_VARLINK_SERVER_ACCOUNT_UID);
        if (r < 0)
                return r;

        (void) sd_varlink_server_set_description(s->server, "ipc");
        r = sd_varlink_server_set_info(s->server, "Anchorhold", program_invocation_short_name, "1", NULL);
        if (r < 0)
                return r;

        r = server_bind(s);
        if (r < 0)
                return r;

        ipc_server_set_limits(s, CONNECTIONS_DEFAULT, CONNECTIONS_PER_UID_DEFAULT);
        r = sd_varlink_server_attach_event(s->server, event, SD_EVENT_PRIORITY_NORMAL);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(s);
        return 0;
}

IpcServer *ipc_server_free(IpcServer *s) {
        if (!s)
                return NULL;

        /* each connection holds a reference to sd-varlink's server, and comes through server_on_disconnect() */
        s->disconnect = NULL;
        while (s->connections)
                (void) sd_varlink_close(s->connections->link);
        if (s->server)
                (void) sd_varlink_server_shutdown(s->server);
        (void) sd_varlink_server_unref(s->server);
        (void) intake_share_free(s->intake);
        (void) sd_event_unref(s->event);
        (void) fd_close(s->cgroup_root);
        free(s);
        return NULL;
}

int ipc_server_listen_fd(IpcServer *s, int fd) {
        int r;

        r = sd_varlink_server_listen_fd(s->server, fd);
        return r < 0 ? r : 0;
}

int ipc_server_listen_systemd(IpcServer *s, const char *fd_name) {
        char **names = NULL;
        int n, r = 0, added = 0;

        n = sd_listen_fds_with_names(false, &names);
        if (n < 0)
                return n;

        for (int i = 0; i < n; i++) {
                if (r >= 0 && strcmp(names[i], fd_name) == 0) {
                        r = ipc_server_listen_fd(s, SD_LISTEN_FDS_START + i);
                        added += r >= 0;
                }
                free(names[i]);
        }
        free(names);

        if (r < 0)
                return r;
        return added > 0 ? added : -ENOENT;
}

void ipc_server_set_disconnect(IpcServer *s, void (*handler)(const Peer *peer, void *userdata)) {
        s->disconnect = handler;
}

void ipc_server_set_limits(IpcServer *s, unsigned connections, unsigned per_uid) {
        (void) sd_varlink_server_set_connections_max(s->server, connections);
        (void) sd_varlink_server_set_connections_per_uid_max(s->server, per_uid);
}

void ipc_server_set_message_max(IpcServer *s, size_t bytes) {
        intake_set_message_max(s->intake, bytes);
}

void ipc_server_set_no_fds(IpcServer *s) {
        s->no_fds = true;
}
