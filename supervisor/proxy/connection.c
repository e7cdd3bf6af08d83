/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One connection of the guest:
 *
 *   HEAD      explicit proxy only: reading the request that says where to go
 *   LOOK      egressd is asked what the port carries, or denies; before the first cleartext HTTP of the run, secretd for its sentinels
 *   PEEK      waiting for as many first bytes as it takes to see what they are; nothing is taken from the socket. Who says nothing for a while may wait for the server to
 *             speak, and is not let wait if the name leads nowhere
 *   ASK       egressd decides
 *   DIAL      connecting to the addresses that were granted; the first that answers wins
 *   HAND      the connection, unread, is on its way to anchor-inject
 *   RELAY     bytes both ways; of cleartext HTTP each request is decided before its head goes on
 *   REFUSE    denied: waiting for a moment to see in which protocol to say so
 *   LINGER    said; until the guest has read it
 *
 * A sentinel of the run in cleartext HTTP is blocked here (connection-misuse.c). Otherwise nothing here decides, and nothing resolves: a name is what egressd made of a synthetic address or of a CONNECT, an address is what
 * egressd granted, and the kernel lets through no other. Bytes of the guest are looked at by the pure parsers only.
 *
 * A connection whose call to another process is under way cannot be freed: it is `dead` until the answer came.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "egress/egress-api.h"
#include "proxy/connection-private.h"
#include "util/json.h"
#include "util/log.h"

/* ---- life ---- */

void connection_quiet(Connection *c) {
        c->io = sd_event_source_disable_unref(c->io);
        c->timer = sd_event_source_disable_unref(c->timer);
        c->dial = dial_free(c->dial);
        c->defer = sd_event_source_disable_unref(c->defer);
}

static void connection_release(Connection *c) {
        free(c->host);
        free(c->method);
        free(c->path);
        free(c->reason);
        free(c->rule);
        free(c->name);
        free(c->prefix);
        free(c);
}

/* egressd hears about the end of every grant that it gave, however the connection ended. */
static void report_done(Connection *c) {
        if (c->grant == 0)
                return;

        held_grants_over(c->proxy->held, c->grant);
        grant_ends_add(c->proxy->ends, (int64_t) c->grant, c->relay ? relay_bytes_in(c->relay) : 0, c->relay ? relay_bytes_out(c->relay) : 0,
                       time_boottime() - c->began_usec);
        c->grant = 0;
}

Connection *connection_free(Connection *c) {
        Proxy *p = c->proxy;

        if (c->dead)
                return NULL;

        report_done(c);
        connection_quiet(c);
        c->relay = relay_free(c->relay);
        c->follower = http_follower_free(c->follower);
        c->content = tripwire_free(c->content);
        c->frames = tripwire_free(c->frames);
        c->fd = fd_close(c->fd);
        c->origin_fd = fd_close(c->origin_fd);

        *c->prev = c->next;
        if (c->next)
                c->next->prev = c->prev;
        p->n_connections--;
        proxy_on_connection_gone(p);

        c->dead = true;
        if (c->n_calls == 0) {
                connection_release(c);
                return NULL;
        }

        c->next = p->dead;
        c->prev = &p->dead;
        if (c->next)
                c->next->prev = &c->next;
        p->dead = c;
        return NULL;
}

void connection_reset(Connection *c) {
        struct linger now = { .l_onoff = 1 };

        if (c->fd >= 0)
                (void) setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        (void) connection_free(c);
}

static int on_timeout(sd_event_source *s, uint64_t usec, void *userdata);

int connection_set_timer(Connection *c, uint64_t usec) {
        c->timer = sd_event_source_disable_unref(c->timer);
        return sd_event_add_time_relative(c->proxy->event, &c->timer, CLOCK_MONOTONIC, usec, 10000, on_timeout, c);
}

/* ---- egressd's answers ---- */

void connection_replace(char **at, const char *s) {
        free(*at);
        *at = strdup(s);
}

/* False: there is none that can be used, and the connection is to be refused as "unavailable". */
bool connection_read_answer(Connection *c, const char *error, json_t *params, Answer *ret) {
        _cleanup_(json_reader_done) JsonReader reader = {};
        const char *reason = NULL, *rule = NULL, *name = NULL;

        *ret = (Answer) {};
        if (error) {
                log_debug("egressd: %s", error);
                return false;
        }
        (void) json_read_string(&reader, params, "", "verdict", JSON_F_REQUIRED, &ret->verdict);
        (void) json_read_string(&reader, params, "", "reason", JSON_F_REQUIRED, &reason);
        (void) json_read_string(&reader, params, "", "rule", JSON_F_REQUIRED, &rule);
        (void) json_read_string(&reader, params, "", "name", JSON_F_REQUIRED, &name);
        (void) json_read_string(&reader, params, "", "protocol", JSON_F_NULLABLE, &ret->protocol);
        if (reader.failed)
                return false;

        connection_replace(&c->reason, reason);
        connection_replace(&c->rule, rule);
        connection_replace(&c->name, name);
        return c->reason && c->rule && c->name;
}

int connection_call(Connection *c, IpcClient *client, const char *method, json_t *params, const int *fds, size_t n_fds,
                           uint64_t usec, IpcReply handler) {
        int r;

        if (!params)
                return -ENOMEM;
        r = ipc_client_call_async(client, method, params, fds, n_fds, false, usec, handler, c);
        if (r >= 0)
                c->n_calls++;
        return r;
}

/* An answer has come. False: the connection is gone. */
bool connection_called(Connection *c) {
        c->n_calls--;
        if (!c->dead)
                return true;

        if (c->n_calls == 0) {
                *c->prev = c->next;
                if (c->next)
                        c->next->prev = c->prev;
                connection_release(c);
        }
        return false;
}

int connection_remember_request(Connection *c, const HttpRequest *request) {
        connection_replace(&c->method, request->method);
        connection_replace(&c->path, request->target);
        c->second_path = request->second_path;
        free(c->host);
        c->host = request->host ? strdup(request->host) : NULL;
        return c->method && c->path && (c->host || !request->host) ? 0 : -ENOMEM;
}

/* ---- dial ---- */

static void on_dialled(int fd, const char *failures, void *userdata) {
        Connection *c = userdata;

        c->dial = dial_free(c->dial);
        if (fd < 0) {
                /* the fence knows nothing of what egressd says that it granted */
                log_line(fd == -EPERM ? LOG_WARNING : LOG_DEBUG, "%s:%u: %s", c->name, c->port, failures[0] ? failures : strerror(-fd));
                connection_refuse(c, "unreachable");
                return;
        }
        c->origin_fd = fd;
        connection_relay(c);
}

static void connection_dial(Connection *c, const char *const *addresses, size_t n) {
        c->state = STATE_DIAL;
        if (dial_new(&c->dial, c->proxy->event, addresses, n, c->port, on_dialled, c) < 0)
                connection_refuse(c, "unreachable");
}

/* ---- inject ---- */

static void on_taken(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        Connection *c = userdata;

        if (!connection_called(c))
                return;

        if (error && strcmp(error, "io.anchorhold.Timeout") == 0) {
                /* it may have taken it and be about to speak: not a word of ours in between */
                log_warning("%s:%u: anchor-inject does not answer", c->name, c->port);
                (void) connection_free(c);
                return;
        }
        if (error) {
                log_warning("%s:%u: anchor-inject does not take the connection: %s", c->name, c->port, error);
                connection_refuse(c, "unavailable");
                return;
        }
        (void) connection_free(c); /* it is inject's now */
}

static void connection_hand(Connection *c) {
        char client[INET_ADDRSTRLEN] = "", text[INET_ADDRSTRLEN + 6];
        int r;

        connection_quiet(c);
        c->state = STATE_HAND;
        (void) inet_ntop(AF_INET, &c->peer.sin_addr, client, sizeof(client));
        (void) snprintf(text, sizeof(text), "%s:%u", client, ntohs(c->peer.sin_port));

        r = connection_call(c, c->proxy->inject, "io.anchorhold.Inject.Take",
                            json_pack("{s:s, s:i, s:s, s:s*}", "name", c->name, "port", c->port, "client", text, "rule", c->rule), &c->fd, 1, HAND_USEC, on_taken);
        if (r < 0)
                connection_refuse(c, "unavailable");
}

/* ---- ask ---- */

/* The addresses that were granted, borrowed from params; their number, or negative errno. */
static ssize_t read_grant(Connection *c, json_t *params, const char *ret[static DIAL_ADDRESSES_MAX]) {
        json_t *list = json_object_get(params, "addresses");
        json_t *grant = json_object_get(params, "grant");
        size_t n = 0;

        if (!json_is_array(list) || !json_is_integer(grant) || json_integer_value(grant) <= 0)
                return -EBADMSG;

        for (size_t i = 0; i < json_array_size(list) && n < DIAL_ADDRESSES_MAX; i++) {
                ret[n] = json_string_value(json_array_get(list, i));
                if (!ret[n++])
                        return -EBADMSG;
        }
        return (ssize_t) n;
}

static void on_decided(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        const char *addresses[DIAL_ADDRESSES_MAX];
        json_int_t grant = error ? 0 : json_integer_value(json_object_get(params, "grant"));
        Connection *c = userdata;
        Proxy *p = c->proxy;
        ssize_t n;
        Answer a;
        bool holds = held_grants_answer(p->held, grant > 0 ? (uint64_t) grant : 0);

        if (!connection_called(c)) { /* it is over: what was granted to it nobody needs */
                if (grant > 0) {
                        held_grants_over(p->held, (uint64_t) grant);
                        grant_ends_add(p->ends, grant, 0, 0, 0);
                }
                return;
        }
        c->grant = grant > 0 ? (uint64_t) grant : 0;

        if (!holds || !connection_read_answer(c, error, params, &a))
                connection_refuse(c, "unavailable"); /* as if nothing had been decided: the policy was changed meanwhile, say */
        else if (strcmp(a.verdict, "inspect") == 0)
                connection_hand(c);
        else if (strcmp(a.verdict, "pass") != 0)
                connection_refuse(c, NULL);
        else if ((n = read_grant(c, params, addresses)) < 0)
                connection_refuse(c, "unavailable");
        else
                connection_dial(c, addresses, (size_t) n);
}

/* Left out if there is nothing to say. */
static json_t *true_or_none(bool value) {
        return value ? json_true() : NULL;
}

json_t *connection_params(const Connection *c) {
        static const char *const protocols[] = { [EGRESS_TLS] = "tls", [EGRESS_HTTP] = "http", [EGRESS_RAW] = "raw" };
        bool tls = c->seen == EGRESS_TLS && c->hello.has_sni;
        _cleanup_free_ char *host = NULL, *path = NULL;

        /* JSON carries text only. A byte that is not part of any becomes \xNN, and no name or path that has it is allowed. */
        host = c->host ? text_escape(c->host, strlen(c->host), false) : NULL;
        path = c->path ? text_escape(c->path, strlen(c->path), false) : NULL;
        if ((c->host && !host) || (c->path && !path))
                return NULL;

        return json_pack("{s:s*, s:s*, s:i, s:s, s:s*, s:b, s:s*, s:s*, s:s*, s:o*}",
                         "address", c->address[0] ? c->address : NULL, "name", c->address[0] ? NULL : c->asked_name, "port", c->port,
                         "protocol", protocols[c->seen], "sni", tls ? c->hello.sni : NULL, "ech", c->seen == EGRESS_TLS && c->hello.has_ech,
                         "host", host, "method", c->method, "path", path, "second_path", true_or_none(c->second_path));
}

void connection_ask(Connection *c) {
        int r;

        connection_quiet(c);
        c->state = STATE_ASK;
        r = connection_call(c, c->proxy->egress, EGRESS_INTERFACE ".Connect", connection_params(c), NULL, 0, ASK_USEC, on_decided);
        if (r < 0)
                connection_refuse(c, "unavailable");
        else
                held_grants_ask(c->proxy->held);
}

/* ---- look ---- */

static void on_looked(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        Connection *c = userdata;
        Answer a;

        if (!connection_called(c))
                return;

        if (!connection_read_answer(c, error, params, &a)) {
                connection_refuse(c, "unavailable");
                return;
        }
        if (strcmp(a.verdict, "deny") == 0 || !a.protocol) {
                connection_refuse(c, NULL);
                return;
        }

        c->expected = strcmp(a.protocol, "tls") == 0 ? EGRESS_TLS : strcmp(a.protocol, "http") == 0 ? EGRESS_HTTP : EGRESS_RAW;
        if (c->expected == EGRESS_HTTP)
                connection_arm(c);
        else
                connection_read(c);
}

void connection_read(Connection *c) {
        static const char ok[] = "HTTP/1.1 200 Connection established\r\n\r\n";

        if (c->absolute) {
                if (c->expected == EGRESS_RAW)
                        connection_refuse(c, "protocol"); /* there nothing would be compared, and who knows where a request ends */
                else if (c->expected == EGRESS_HTTP && connection_misuses_head(c, c->prefix, c->n_prefix))
                        connection_refuse(c, "credential-misuse");
                else
                        connection_ask(c);
                return;
        }
        if (c->by_proxy_head) {
                if (send(c->fd, ok, sizeof(ok) - 1, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(ok) - 1) {
                        connection_reset(c);
                        return;
                }
                c->by_proxy_head = false;
        }

        if (c->expected == EGRESS_RAW) {
                c->seen = EGRESS_RAW; /* whoever speaks first */
                connection_ask(c);
        } else
                connection_watch_first_bytes(c, STATE_PEEK, SILENT_USEC);
}

void connection_look(Connection *c) {
        json_t *params;
        int r;

        connection_quiet(c);
        c->state = STATE_LOOK;
        params = json_pack("{s:s*, s:s*, s:i}", "address", c->address[0] ? c->address : NULL,
                           "name", c->address[0] ? NULL : c->asked_name, "port", c->port);
        r = connection_call(c, c->proxy->egress, EGRESS_INTERFACE ".Look", params, NULL, 0, LOOK_USEC, on_looked);
        if (r < 0)
                connection_refuse(c, "unavailable");
}

/* ---- beginning, time, end ---- */

/* There is nothing to wait for any more: in the protocol of the port, then. */
static void refuse_silent(Connection *c, const char *reason) {
        c->seen = c->expected;
        c->has_seen = true;
        c->speaks_http = c->expected == EGRESS_HTTP;
        connection_refuse(c, reason);
}

static void on_looked_further(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        Connection *c = userdata;
        Answer a;

        if (!connection_called(c) || c->state != STATE_PEEK)
                return; /* it has spoken meanwhile, and is asked about for good */
        if (connection_read_answer(c, error, params, &a) && strcmp(a.verdict, "deny") == 0)
                refuse_silent(c, NULL);
}

static void look_further(Connection *c) {
        json_t *params = json_pack("{s:s*, s:s*, s:i, s:b}", "address", c->address[0] ? c->address : NULL,
                                   "name", c->address[0] ? NULL : c->asked_name, "port", c->port, "resolve", true);

        c->looked_further = true;
        (void) connection_call(c, c->proxy->egress, EGRESS_INTERFACE ".Look", params, NULL, 0, ASK_USEC, on_looked_further);
        if (connection_set_timer(c, FIRST_BYTES_USEC - SILENT_USEC) < 0)
                connection_reset(c);
}

static int on_timeout(sd_event_source *s, uint64_t usec, void *userdata) {
        Connection *c = userdata;

        switch (c->state) {
        case STATE_PEEK:
                if (!c->looked_further) {
                        look_further(c);
                        break;
                }
                refuse_silent(c, "timeout");
                break;
        case STATE_HEAD:
                refuse_silent(c, "timeout");
                break;
        case STATE_REFUSE:
                connection_reset(c);
                break;
        default:
                (void) connection_free(c);
                break;
        }
        return 0;
}

void connection_begin(Proxy *p, int fd, bool explicit_proxy, const struct sockaddr_in *local, const struct sockaddr_in *peer) {
        Connection *c;
        int one = 1;

        c = calloc(1, sizeof(*c));
        if (!c) {
                (void) fd_close(fd);
                return;
        }

        *c = (Connection) {
                .proxy = p,
                .fd = fd,
                .origin_fd = -1,
                .peer = *peer,
                .port = ntohs(local->sin_port),
                .by_proxy_head = explicit_proxy,
                .began_usec = time_boottime(),
        };
        c->next = p->connections;
        c->prev = &p->connections;
        if (c->next)
                c->next->prev = &c->next;
        p->connections = c;
        p->n_connections++;

        (void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        (void) setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
        if (explicit_proxy) {
                connection_watch_first_bytes(c, STATE_HEAD, FIRST_BYTES_USEC);
                return;
        }
        if (!inet_ntop(AF_INET, &local->sin_addr, c->address, sizeof(c->address)))
                connection_reset(c);
        else
                connection_look(c);
}

void connections_cut_all(Proxy *p, const char *reason) {
        if (p->connections)
                log_notice("%zu connections are cut: %s", p->n_connections, reason);
        while (p->connections)
                connection_reset(p->connections);
}

void connections_done(Proxy *p) {
        while (p->connections)
                connection_reset(p->connections);
        while (p->dead) {
                Connection *c = p->dead;

                p->dead = c->next;
                if (c->next)
                        c->next->prev = &p->dead;
                connection_release(c);
        }
}

void connections_cut_grant(Proxy *p, uint64_t grant) {
        for (Connection *c = p->connections; c; c = c->next)
                if (c->grant == grant) {
                        connection_reset(c);
                        return;
                }
}
