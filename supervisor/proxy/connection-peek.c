/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a connection is, from its first bytes: peeked at, and taken from the socket only if they are a request to the explicit proxy. */

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "proxy/connection-private.h"

/* ---- explicit proxy ---- */

/* "GET http://name/path": the origin gets an ordinary request, and it is the only one of this connection, since the next one could be
 * for anybody. */
static int take_absolute(Connection *c, const char *head, size_t size, const HttpRequest *request) {
        char authority[HTTP_HOST_MAX + 1];
        const char *path;

        if (request->upgrade || !http_split_absolute(request->target, authority, &path) ||
            !http_split_authority(authority, 80, c->asked_name, &c->port))
                return -EBADMSG;

        c->prefix = (uint8_t *) http_rewrite_head(head, size, request, path, &c->n_prefix);
        connection_replace(&c->method, request->method);
        connection_replace(&c->path, path);
        c->second_path = request->second_path;
        free(c->host);
        c->host = request->host ? strdup(request->host) : NULL;
        if (!c->prefix || !c->method || !c->path || (request->host && !c->host))
                return -ENOMEM;

        c->absolute = true;
        c->seen = EGRESS_HTTP;
        c->has_seen = c->speaks_http = true;
        return 0;
}

static void connection_read_proxy_head(Connection *c, const uint8_t *data, size_t size) {
        uint8_t taken_off[PEEK_MAX];
        const HttpRequest *request;
        HttpOutcome o;
        size_t n;
        int r;

        /* A fresh follower each time: the bytes are peeked at from the first one on. */
        c->follower = http_follower_free(c->follower);
        if (http_follower_new(&c->follower) < 0) {
                connection_reset(c);
                return;
        }

        o = http_follower_feed(c->follower, (const char *) data, size, &n);
        if (o == HTTP_NEED_MORE && size < PEEK_MAX)
                return;
        if (o != HTTP_HEAD_END) {
                connection_refuse(c, o == HTTP_NEED_MORE ? "too-large" : "malformed");
                return;
        }

        request = http_follower_request(c->follower);
        if (strcmp(request->method, "CONNECT") == 0) /* a port is part of its target (RFC 9110, 9.3.6) */
                r = http_split_authority(request->target, 0, c->asked_name, &c->port) ? 0 : -EBADMSG;
        else
                r = take_absolute(c, (const char *) data, n, request);

        /* The head is ours; what is behind it is not. */
        if (r >= 0 && recv(c->fd, taken_off, n, MSG_DONTWAIT) != (ssize_t) n)
                r = -EIO;
        if (r < 0)
                connection_refuse(c, "malformed");
        else
                connection_look(c);
}

/* ---- first bytes ---- */

typedef enum Peeked { PEEKED_MORE, PEEKED_KNOWN, PEEKED_TOO_LARGE, PEEKED_MISUSE } Peeked;

static Peeked peek_http(Connection *c, const uint8_t *data, size_t size) {
        _cleanup_(http_follower_freep) HttpFollower *f = NULL;
        const HttpRequest *request;
        HttpOutcome o;
        size_t taken;

        c->seen = EGRESS_HTTP;
        c->has_seen = true;
        if (http_follower_new(&f) < 0)
                return PEEKED_TOO_LARGE;

        o = http_follower_feed(f, (const char *) data, size, &taken);
        if (o == HTTP_NEED_MORE)
                return size >= PEEK_MAX ? PEEKED_TOO_LARGE : PEEKED_MORE;

        request = http_follower_request(f);
        if (o != HTTP_HEAD_END || !http_request_is_plain(request))
                c->seen = EGRESS_RAW; /* nothing that may go on over a port that carries HTTP */
        else if (connection_remember_request(c, request) < 0)
                return PEEKED_TOO_LARGE;
        return o == HTTP_HEAD_END && connection_misuses_head(c, data, taken) ? PEEKED_MISUSE : PEEKED_KNOWN;
}

static Peeked peek(Connection *c, const uint8_t *data, size_t size) {
        switch (client_hello_parse(data, size, &c->hello)) {
        case CLIENT_HELLO_COMPLETE:
                c->seen = EGRESS_TLS;
                c->has_seen = true;
                return PEEKED_KNOWN;
        case CLIENT_HELLO_MORE:
                return PEEKED_MORE;
        case CLIENT_HELLO_BROKEN:
                c->speaks_tls = true;
                c->seen = EGRESS_RAW;
                c->has_seen = true;
                return PEEKED_KNOWN;
        case CLIENT_HELLO_NOT_TLS:
                break;
        }

        switch (http_looks_like(data, size)) {
        case HTTP_LOOK_MAYBE:
                return PEEKED_MORE;
        case HTTP_LOOK_YES:
                c->speaks_http = true;
                if (c->expected == EGRESS_HTTP && c->state == STATE_PEEK)
                        return peek_http(c, data, size);
                c->seen = EGRESS_HTTP;
                break;
        case HTTP_LOOK_NO:
                c->seen = EGRESS_RAW;
                break;
        }
        c->has_seen = true;
        return PEEKED_KNOWN;
}

static int on_first_bytes(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Connection *c = userdata;
        uint8_t data[PEEK_MAX];
        ssize_t n;

        n = recv(fd, data, sizeof(data), MSG_PEEK | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return 0;
        if (n <= 0) {
                (void) connection_free(c);
                return 0;
        }

        if (c->state == STATE_HEAD) {
                connection_read_proxy_head(c, data, (size_t) n);
                return 0;
        }

        switch (peek(c, data, (size_t) n)) {
        case PEEKED_MORE:
                if (revents & (EPOLLRDHUP | EPOLLHUP))
                        (void) connection_free(c); /* there will not be more */
                return 0;
        case PEEKED_TOO_LARGE:
                connection_refuse(c, "too-large");
                return 0;
        case PEEKED_MISUSE:
                connection_refuse(c, "credential-misuse");
                return 0;
        case PEEKED_KNOWN:
                if (c->state == STATE_REFUSE)
                        connection_say_no(c);
                else
                        connection_ask(c);
                return 0;
        }
        return 0;
}

/* Edge-triggered: what was peeked at and is not enough stays in the socket, and must not wake us again. */
void connection_watch_first_bytes(Connection *c, State state, uint64_t usec) {
        connection_quiet(c);
        c->state = state;
        if (sd_event_add_io(c->proxy->event, &c->io, c->fd, EPOLLIN | EPOLLRDHUP | EPOLLET, on_first_bytes, c) < 0 ||
            connection_set_timer(c, usec) < 0)
                connection_reset(c);
}
