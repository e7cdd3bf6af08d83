/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The serving side of LoadCredential=.
 *
 * Each connection is one request and is over in a moment: check the peer, ask the handler, send the blob,
 * close. Nothing is ever read. The check compares two statements about the peer: its abstract address, which
 * it chose itself, and its pidfd's unit, which the kernel knows (peer.c); the child of PID 1 that loads a unit's credentials
 * runs in that unit's cgroup already. A root process elsewhere cannot get a run's credential by bearing the
 * right name, and a run's process cannot because it is not uid 0.
 *
 * A blob that does not fit into the socket's buffer is sent as the reader reads, within SEND_TIMEOUT_USEC; at
 * most REQUESTS_MAX of them at a time. Blobs are zeroed before they are freed.
 */
#include "ipc/credential-server.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "util/cgroup.h"
#include "util/io.h"
#include "util/log.h"

enum {
        REQUESTS_MAX = 64,
        SEND_TIMEOUT_USEC = 10 * 1000 * 1000,
        TIMER_ACCURACY_USEC = 100 * 1000,
};

typedef struct Request Request;

struct Request {
        CredentialServer *server;  /* borrowed */
        Request *next;
        int fd;                    /* owned */
        char *blob;                /* owned, secret */
        size_t size, sent;
        sd_event_source *io, *timer; /* ref */
};

struct CredentialServer {
        sd_event *event;           /* ref */
        sd_event_source *source;   /* ref; owns listen_fd once it exists */
        int cgroup_root;           /* owned */
        CredentialHandler handler;
        CredentialDenied denied;
        void *userdata;
        Request *requests;         /* owned */
        unsigned n_requests;
};

static void request_drop(Request *q) {
        CredentialServer *s = q->server;

        for (Request **p = &s->requests; *p; p = &(*p)->next)
                if (*p == q) {
                        *p = q->next;
                        s->n_requests--;
                        break;
                }

        (void) sd_event_source_disable_unref(q->io);
        (void) sd_event_source_disable_unref(q->timer);
        (void) fd_close(q->fd);
        if (q->blob)
                explicit_bzero(q->blob, q->size);
        free(q->blob);
        free(q);
}

/* 1 when all was sent, 0 when the socket is full, negative errno. */
static int request_send(Request *q) {
        while (q->sent < q->size) {
                ssize_t n = send(q->fd, q->blob + q->sent, q->size - q->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

                if (n < 0) {
                        if (errno == EINTR)
                                continue;
                        return errno == EAGAIN ? 0 : -errno;
                }
                q->sent += (size_t) n;
        }

        return 1;
}

static int request_on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        Request *q = userdata;

        if (request_send(q) != 0)
                request_drop(q);
        return 0;
}

static int request_on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        log_warning("A unit did not read its credential within ten seconds.");
        request_drop(userdata);
        return 0;
}

/*
 * "\0<random>/unit/<unit>/<id>": unit and id in place, or false. Neither may hold a slash, and neither is
 * believed yet.
 */
static bool parse_address(char *address, size_t size, const char **ret_unit, const char **ret_id) {
        char *unit, *id;

        if (size < 2 || address[0] != '\0' || memchr(address + 1, '\0', size - 1))
                return false;
        address[size] = '\0';

        unit = strchr(address + 1, '/');
        if (!unit || strncmp(unit, "/unit/", strlen("/unit/")) != 0)
                return false;
        unit += strlen("/unit/");
        id = strchr(unit, '/');
        if (!id || id == unit || id[1] == '\0' || strchr(id + 1, '/'))
                return false;

        *id++ = '\0';
        *ret_unit = unit;
        *ret_id = id;
        return true;
}

/* NULL if the request counts, else why not. */
static const char *check_request(const Peer *peer, const char *unit) {
        static const unsigned run_roles = PEER_VM | PEER_PROXY | PEER_INJECT | PEER_RUN | PEER_IMPORT | PEER_PUBLISH;

        if (peer->uid != 0)
                return "the peer is not uid 0";
        if (!(peer->roles & run_roles))
                return "the peer is in no unit of a run";
        if (strcmp(peer->unit, unit) != 0)
                return "the peer is not in the unit that it names";
        return NULL;
}

static void server_deny(CredentialServer *s, const Peer *peer, const char *claimed, const char *reason) {
        log_warning("Refused a credential to pid %d, uid %u, cgroup %s: %s", (int) peer->pid, (unsigned) peer->uid,
                    peer->cgroup ?: "unknown", reason);
        if (s->denied)
                s->denied(peer, claimed, reason, s->userdata);
}

/* Checks the peer of fd and gets the blob. Negative errno: close without a byte. */
static int server_decide(CredentialServer *s, int fd, char **ret_blob, size_t *ret_size) {
        union {
                struct sockaddr_un un;
                char bytes[sizeof(struct sockaddr_un) + 1];
        } address = {};
        socklen_t size = sizeof(address.un);
        _cleanup_(peer_done) Peer peer = PEER_NULL;
        const char *unit, *id, *reason;
        int r;

        r = peer_from_socket(fd, s->cgroup_root, &peer);
        if (r < 0)
                return r;
        if (getpeername(fd, (struct sockaddr *) &address.un, &size) < 0)
                return -errno;

        if (size <= offsetof(struct sockaddr_un, sun_path) || size > sizeof(address.un) ||
            !parse_address(address.un.sun_path, size - offsetof(struct sockaddr_un, sun_path), &unit, &id)) {
                server_deny(s, &peer, "", "the peer's address does not name a unit and a credential");
                return -EACCES;
        }

        reason = check_request(&peer, unit);
        if (reason) {
                server_deny(s, &peer, unit, reason);
                return -EACCES;
        }

        return s->handler(&peer, id, ret_blob, ret_size, s->userdata);
}

static int request_wait(Request *q) {
        int r;

        r = sd_event_add_io(q->server->event, &q->io, q->fd, EPOLLOUT, request_on_io, q);
        if (r < 0)
                return r;

        return sd_event_add_time_relative(q->server->event, &q->timer, CLOCK_MONOTONIC, SEND_TIMEOUT_USEC,
                                          TIMER_ACCURACY_USEC, request_on_timer, q);
}

static int server_accept(CredentialServer *s, int listen_fd) {
        _cleanup_fd_ int fd = -1;
        Request *q;
        int r;

        fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
                return errno == EAGAIN || errno == ECONNABORTED || errno == EINTR ? 0 : -errno;
        if (s->n_requests >= REQUESTS_MAX)
                return -EBUSY;

        q = malloc(sizeof(*q));
        if (!q)
                return -ENOMEM;
        *q = (Request) { .server = s, .next = s->requests, .fd = TAKE_FD(fd) };
        s->requests = q;
        s->n_requests++;

        r = server_decide(s, q->fd, &q->blob, &q->size);
        if (r >= 0)
                r = request_send(q);
        if (r == 0)
                r = request_wait(q);
        else
                r = r < 0 ? r : 1;
        if (r != 0)
                request_drop(q);

        return r < 0 ? r : 0;
}

static int server_on_accept(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        int r;

        r = server_accept(userdata, fd);
        if (r < 0)
                log_debug("A request for a credential ended without one: %s", strerror(-r));
        return 0;
}

int credential_server_new(CredentialServer **ret, sd_event *event, int listen_fd,
                          CredentialHandler handler, CredentialDenied denied, void *userdata) {
        _cleanup_(credential_server_freep) CredentialServer *s = NULL;
        int r;

        s = malloc(sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (CredentialServer) {
                .event = sd_event_ref(event),
                .cgroup_root = cgroup_open_root(),
                .handler = handler,
                .denied = denied,
                .userdata = userdata,
        };

        r = io_set_nonblock(listen_fd, 1);
        if (r < 0)
                return r;
        r = sd_event_add_io(event, &s->source, listen_fd, EPOLLIN, server_on_accept, s);
        if (r < 0)
                return r;
        r = sd_event_source_set_io_fd_own(s->source, true);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(s);
        return 0;
}

CredentialServer *credential_server_free(CredentialServer *s) {
        if (!s)
                return NULL;

        while (s->requests)
                request_drop(s->requests);
        (void) sd_event_source_disable_unref(s->source);
        (void) sd_event_unref(s->event);
        (void) fd_close(s->cgroup_root);
        free(s);
        return NULL;
}
