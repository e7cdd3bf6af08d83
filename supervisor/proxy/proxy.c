/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchor-proxy serves one run. systemd makes its listeners inside the run's network namespace, transparent, and
 * starts this process in the host's: so whatever the guest connects to ends here, and whatever leaves the host leaves from
 * here, under the fence of this unit's cgroup.
 *
 *   TCP 15001   every connection to a synthetic address (TPROXY); its local address is where the guest wanted to go
 *   UDP/TCP 53  every DNS question, whatever resolver it was meant for (dns-server.c)
 *   TCP 3128    an ordinary HTTP proxy, for programs that want one
 *
 * It holds nothing worth having: no secret, no policy, no resolver; the run's sentinels, which the guest has as well. Everything it asks of
 * egressd, and it does nothing that was not allowed. It watches egressd: without a heartbeat for ten seconds every connection is cut, and the
 * kernel does the same on its own (packets are dropped without a fresh heartbeat).
 *
 * If it dies, its connections die with it and systemd starts a new one at the guest's next connection; names stay
 * as they were, since egressd knows them.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include "egress/egress-api.h"
#include "proxy/proxy-private.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"

#define SYNTHETIC_NETWORK UINT32_C(0xc6120000) /* 198.18.0.0/15 */
#define SYNTHETIC_MASK UINT32_C(0xfffe0000)

enum {
        TICK_USEC = 1000 * 1000,
        WATCH_AGAIN_USEC = 200 * 1000, /* meanwhile nobody is told that a connection is to be cut */
        CALLS_PARALLEL = 32,
        NAMES_PARALLEL = 8,
        INJECT_PARALLEL = 8,
        ACCEPTS_AT_ONCE = 16,
};

/* ---- listeners ---- */

/* A transparent listener takes connections to any address: only synthetic ones stand for a name. */
static bool is_for_us(const Listener *l, const struct sockaddr_in *local) {
        if (local->sin_family != AF_INET)
                return false;
        return l->explicit_proxy || (ntohl(local->sin_addr.s_addr) & SYNTHETIC_MASK) == SYNTHETIC_NETWORK;
}

static void refuse_socket(int fd) {
        struct linger now = { .l_onoff = 1 };

        (void) setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        (void) fd_close(fd);
}

static int listener_on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Listener *l = userdata;
        Proxy *p = l->proxy;

        for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
                struct sockaddr_in local = {}, peer = {};
                socklen_t n_local = sizeof(local), n_peer = sizeof(peer);
                int client;

                if (p->n_connections >= PROXY_CONNECTIONS_MAX)
                        return sd_event_source_set_enabled(s, SD_EVENT_OFF); /* until one of them is gone */

                client = accept4(fd, (struct sockaddr *) &peer, &n_peer, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (client < 0) {
                        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
                                return 0;
                        return sd_event_source_set_enabled(s, SD_EVENT_OFF); /* no descriptor, no memory: until the next tick */
                }
                if (getsockname(client, (struct sockaddr *) &local, &n_local) < 0 || !is_for_us(l, &local))
                        refuse_socket(client);
                else
                        connection_begin(p, client, l->explicit_proxy, &local, &peer);
        }
        return 0;
}

void proxy_on_connection_gone(Proxy *p) {
        if (p->transparent.io)
                (void) sd_event_source_set_enabled(p->transparent.io, SD_EVENT_ON);
        if (p->explicit_proxy.io)
                (void) sd_event_source_set_enabled(p->explicit_proxy.io, SD_EVENT_ON);
}

static int listener_init(Listener *l, Proxy *p, int fd, bool explicit_proxy) {
        int r;

        if (l->fd >= 0)
                return -EEXIST;

        r = io_set_nonblock(fd, 1);
        if (r < 0)
                return r;
        r = sd_event_add_io(p->event, &l->io, fd, EPOLLIN, listener_on_io, l);
        if (r < 0)
                return r;
        l->proxy = p;
        l->explicit_proxy = explicit_proxy;
        l->fd = fd;
        return 0;
}

/* systemd's names are of the unit, not of the socket: type and port tell them apart. */
static int take_socket(Proxy *p, int fd) {
        struct sockaddr_in local = {};
        socklen_t n = sizeof(local);
        int type;
        socklen_t n_type = sizeof(type);

        if (getsockname(fd, (struct sockaddr *) &local, &n) < 0 || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n_type) < 0)
                return -errno;
        if (local.sin_family != AF_INET)
                return -EAFNOSUPPORT;

        switch (ntohs(local.sin_port)) {
        case PROXY_TRANSPARENT_PORT:
                return type == SOCK_STREAM ? listener_init(&p->transparent, p, fd, false) : -EPROTOTYPE;
        case PROXY_EXPLICIT_PORT:
                return type == SOCK_STREAM ? listener_init(&p->explicit_proxy, p, fd, true) : -EPROTOTYPE;
        case PROXY_DNS_PORT:
                return type == SOCK_DGRAM ? dns_server_add_udp(p->dns, fd) : dns_server_add_tcp(p->dns, fd);
        default:
                return -EADDRNOTAVAIL;
        }
}

static int take_sockets(Proxy *p) {
        int n, r;

        n = sd_listen_fds(true);
        if (n < 0)
                return n;

        for (int i = 0; i < n; i++) {
                r = take_socket(p, SD_LISTEN_FDS_START + i);
                if (r < 0)
                        return log_error_errno(r, "descriptor %d is no socket of anchor-proxy@.socket", SD_LISTEN_FDS_START + i);
        }
        if (p->transparent.fd < 0)
                return log_error_errno(-ENOENT, "no listening sockets from systemd (anchor-proxy@.socket)");
        return 0;
}

/* ---- egressd's heartbeat ---- */

static void start_watch(Proxy *p);

static void on_beat(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        Proxy *p = userdata;

        if (error || !more) {
                p->watching = false; /* the tick begins anew */
                (void) sd_event_source_set_time_relative(p->tick, WATCH_AGAIN_USEC);
                return;
        }

        if (json_is_integer(json_object_get(params, "heartbeat")))
                p->beat_usec = time_boottime();
        held_grants_read(p->held, params);
}

static void on_revoked(uint64_t grant, void *userdata) {
        connections_cut_grant(userdata, grant);
}

static void start_watch(Proxy *p) {
        if (p->watching)
                return;
        p->watching = ipc_client_call_async(p->watch, EGRESS_INTERFACE ".Watch", json_object(), NULL, 0, true, 0, on_beat, p) >= 0;
}

static int on_tick(sd_event_source *s, uint64_t usec, void *userdata) {
        Proxy *p = userdata;
        int r;

        start_watch(p);
        if (p->n_connections < PROXY_CONNECTIONS_MAX)
                proxy_on_connection_gone(p);
        dns_server_tick(p->dns);
        if (time_boottime() - p->beat_usec > EGRESS_HEARTBEAT_LOST_USEC)
                connections_cut_all(p, "no heartbeat from egressd");

        r = sd_event_source_set_time_relative(s, TICK_USEC);
        if (r >= 0)
                r = sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
        return r < 0 ? sd_event_exit(p->event, r) : 0;
}

/* ---- start and end ---- */

static int open_clients(Proxy *p) {
        _cleanup_free_ char *inject = NULL;
        int r;

        inject = text_format("/run/anchorhold/run/%s/inject", p->run);
        if (!inject)
                return -ENOMEM;

        r = ipc_client_new(&p->egress, p->event, EGRESS_SOCKET);
        if (r >= 0)
                r = held_grants_new(&p->held, on_revoked, p);
        if (r >= 0)
                r = grant_ends_new(&p->ends, p->event, EGRESS_SOCKET);
        if (r >= 0)
                r = refused_log_new(&p->refused, p->event, EGRESS_SOCKET);
        if (r >= 0)
                r = ipc_client_new(&p->names, p->event, EGRESS_SOCKET);
        if (r >= 0)
                r = ipc_client_new(&p->watch, p->event, EGRESS_SOCKET);
        if (r >= 0)
                r = ipc_client_new(&p->inject, p->event, inject);
        if (r >= 0)
                r = ipc_client_new(&p->secretd, p->event, "/run/anchorhold/secret-api.sock");
        if (r >= 0)
                r = audit_client_new(&p->audit, p->event);
        if (r >= 0)
                r = notes_new(&p->notes, p->event, p->audit, p->run, "/run/anchorhold/run-api.sock");
        if (r < 0)
                return r;

        ipc_client_set_parallel(p->egress, CALLS_PARALLEL);
        ipc_client_set_parallel(p->names, NAMES_PARALLEL);
        ipc_client_set_parallel(p->inject, INJECT_PARALLEL);
        return 0;
}

int proxy_new(Proxy **ret, sd_event *event, const char *run) {
        _cleanup_(proxy_freep) Proxy *p = NULL;
        int r;

        p = calloc(1, sizeof(*p));
        if (!p)
                return -ENOMEM;
        p->event = sd_event_ref(event);
        p->transparent.fd = p->explicit_proxy.fd = -1;
        p->beat_usec = time_boottime();
        strcpy(p->run, run);

        r = open_clients(p);
        if (r < 0)
                return r;
        r = dns_server_new(&p->dns, event, p->names, p->refused);
        if (r < 0)
                return r;
        r = take_sockets(p);
        if (r < 0)
                return r;
        r = sd_event_add_time_relative(event, &p->tick, CLOCK_MONOTONIC, 0, 10000, on_tick, p);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(p);
        return 0;
}

static void listener_done(Listener *l) {
        l->io = sd_event_source_disable_unref(l->io);
        l->fd = fd_close(l->fd);
}

Proxy *proxy_free(Proxy *p) {
        uint64_t until_usec;

        if (!p)
                return NULL;

        sd_event_source_disable_unref(p->tick);
        listener_done(&p->transparent);
        listener_done(&p->explicit_proxy);
        connections_cut_all(p, "the proxy ends");
        until_usec = time_monotonic() + LAST_WORDS_USEC;
        grant_ends_tell_last(p->ends, until_usec - LAST_WORDS_USEC * 2ULL / 3);
        refused_log_tell_last(p->refused, until_usec - LAST_WORDS_USEC / 3);
        notes_tell_last(p->notes, until_usec);
        ipc_client_free(p->egress);
        held_grants_free(p->held);
        grant_ends_free(p->ends);
        ipc_client_free(p->names);
        ipc_client_free(p->watch);
        ipc_client_free(p->inject);
        ipc_client_free(p->secretd);
        audit_client_free(p->audit);
        notes_free(p->notes);
        sentinels_done(&p->sentinels);
        connections_done(p);
        dns_server_free(p->dns);
        refused_log_free(p->refused);
        sd_event_unref(p->event);
        free(p);
        return NULL;
}
