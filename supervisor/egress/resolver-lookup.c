/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A Lookup is one question on its way: over UDP with a socket of its own (connected, so that the kernel drops what comes from
 * elsewhere, and with a port that the kernel chose at random) and a random id; to the next server after a timeout, an
 * error or a refusal; over TCP after a truncated answer; without EDNS if the server does not know it; and on to the end of a
 * chain of aliases, whose names no policy need list: what counts is the address at its end. All of that is bounded by TRIES_MAX
 * tries that failed and ALIASES_MAX answers that were but aliases (so a circle ends), and in time by the query.
 */

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "egress/resolver-private.h"
#include "util/text.h"

enum {
        TRIES_MAX = 4,
        ALIASES_MAX = 4, /* answers that end in an alias; a single answer may have DNS_REPLY_CHAIN_MAX of them */
};

void lookup_close(Lookup *l) {
        l->io = sd_event_source_disable_unref(l->io);
        l->timer = sd_event_source_disable_unref(l->timer);
        l->fd = fd_close(l->fd);
        free(l->answer);
        l->answer = NULL;
        l->n_answer = l->n_sent = 0;
}

static void lookup_finish(Lookup *l, int result) {
        lookup_close(l);
        l->busy = false;
        l->result = result;
        lookup_finished(l);
}

/* Whoever asks next need not find out again that this one does not answer. (One that answers with an error is not to
 * blame: that may be due to the name, and names are a guest's choice.) */
static void lookup_pass_over_server(Lookup *l, int error) {
        Resolver *r = l->query->resolver;

        if (error != -EBADMSG && r->n_servers > 0 && r->current == l->server)
                r->current = (l->server + 1) % r->n_servers;
        l->server = r->n_servers > 0 ? (l->server + 1) % r->n_servers : 0;
        l->no_edns = false;
}

static void lookup_try_next(Lookup *l, int error) {
        lookup_close(l);
        l->tcp = false;
        lookup_pass_over_server(l, error);
        if (++l->tries >= TRIES_MAX)
                lookup_finish(l, error);
        else
                lookup_start(l);
}

/* The same server once more, in another way. Bounded like everything else. */
static void lookup_again(Lookup *l) {
        lookup_close(l);
        if (++l->tries >= TRIES_MAX)
                lookup_finish(l, -EBADMSG);
        else
                lookup_start(l);
}

static void lookup_on_answer(Lookup *l, const uint8_t *data, size_t size) {
        DnsReply reply = {};

        switch (dns_reply_read(data, size, l->name, l->type, l->id, &reply)) {
        case DNS_REPLY_ADDRESSES:
                memcpy(l->addresses, reply.addresses, sizeof(l->addresses));
                l->n_addresses = reply.n_addresses;
                l->ttl = reply.ttl < l->ttl ? reply.ttl : l->ttl;
                lookup_finish(l, 0);
                return;

        case DNS_REPLY_ALIAS:
                if (++l->aliases > ALIASES_MAX || reply.name[0] == '\0') {
                        lookup_finish(l, -ELOOP);
                        return;
                }
                strcpy(l->name, reply.name);
                l->ttl = reply.ttl < l->ttl ? reply.ttl : l->ttl;
                lookup_close(l);
                l->tcp = false;
                lookup_start(l);
                return;

        case DNS_REPLY_NOTHING:
                l->ttl = reply.ttl < l->ttl ? reply.ttl : l->ttl;
                lookup_finish(l, -ENOENT);
                return;

        case DNS_REPLY_TRUNCATED:
                if (l->tcp) {
                        lookup_try_next(l, -EBADMSG);
                        return;
                }
                lookup_close(l);
                l->tcp = true;
                lookup_start(l);
                return;

        case DNS_REPLY_NO_EDNS:
                if (l->no_edns) {
                        lookup_try_next(l, -EBADMSG);
                        return;
                }
                l->no_edns = true;
                lookup_again(l);
                return;

        case DNS_REPLY_FAILED:
                lookup_try_next(l, -EBADMSG);
                return;

        case DNS_REPLY_FOREIGN:
                if (l->tcp)
                        lookup_try_next(l, -EBADMSG);
                return; /* over UDP: somebody guesses; wait for the real one */
        }
}

static int lookup_on_udp(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Lookup *l = userdata;
        uint8_t data[4096];
        ssize_t n;

        n = recv(fd, data, sizeof(data), MSG_DONTWAIT);
        if (n < 0) {
                if (errno != EAGAIN && errno != EINTR)
                        lookup_try_next(l, -errno); /* nobody listens there */
                return 0;
        }

        lookup_on_answer(l, data, (size_t) n);
        return 0;
}

/* Sends the question, then collects two bytes of length and as many as they say. */
static int lookup_on_tcp(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Lookup *l = userdata;
        size_t wanted;
        ssize_t n;

        if (l->n_sent < l->n_question) {
                n = send(fd, l->question + l->n_sent, l->n_question - l->n_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
                if (n < 0) {
                        if (errno != EAGAIN && errno != EINTR)
                                lookup_try_next(l, -errno);
                        return 0;
                }
                l->n_sent += (size_t) n;
                if (l->n_sent == l->n_question)
                        (void) sd_event_source_set_io_events(s, EPOLLIN);
                return 0;
        }

        wanted = l->n_answer < 2 ? 2 : 2 + ((size_t) l->answer[0] << 8 | l->answer[1]);
        n = recv(fd, l->answer + l->n_answer, wanted - l->n_answer, MSG_DONTWAIT);
        if (n <= 0) {
                if (n == 0 || (errno != EAGAIN && errno != EINTR))
                        lookup_try_next(l, n == 0 ? -ECONNRESET : -errno);
                return 0;
        }

        l->n_answer += (size_t) n;
        if (l->n_answer >= 2 && l->n_answer == 2 + ((size_t) l->answer[0] << 8 | l->answer[1]))
                lookup_on_answer(l, l->answer + 2, l->n_answer - 2);
        return 0;
}

static int lookup_on_timeout(sd_event_source *s, uint64_t usec, void *userdata) {
        lookup_try_next(userdata, -ETIMEDOUT);
        return 0;
}

static int lookup_connect(Lookup *l, const ResolverServer *server) {
        struct sockaddr_in in4 = { .sin_family = AF_INET, .sin_port = htobe16(server->port) };
        struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htobe16(server->port) };
        bool v4 = server->address.family == AF_INET;
        int r;

        memcpy(&in4.sin_addr, server->address.bytes, sizeof(in4.sin_addr));
        memcpy(&in6.sin6_addr, server->address.bytes, sizeof(in6.sin6_addr));

        l->fd = socket(server->address.family, (l->tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (l->fd < 0)
                return -errno;
        r = connect(l->fd, v4 ? (struct sockaddr *) &in4 : (struct sockaddr *) &in6, v4 ? sizeof(in4) : sizeof(in6));
        if (r < 0 && errno != EINPROGRESS)
                return -errno;
        return 0;
}

static int lookup_send(Lookup *l) {
        Resolver *r = l->query->resolver;
        int k, n;

        if (r->n_servers == 0)
                return -ENOTCONN;
        if (l->tries == 0)
                l->server = r->current;
        if (l->server >= r->n_servers)
                l->server = 0; /* there are other servers now */
        if (getrandom(&l->id, sizeof(l->id), 0) != sizeof(l->id))
                return -EIO;

        n = dns_question_write(l->name, l->type, l->id, !l->no_edns, l->question + 2);
        if (n < 0)
                return n;
        l->question[0] = (uint8_t) (n >> 8);
        l->question[1] = (uint8_t) n;
        l->n_question = (size_t) n + 2;

        k = lookup_connect(l, &r->servers[l->server]);
        if (k < 0)
                return k;

        if (l->tcp) {
                l->answer = malloc(2 + DNS_REPLY_MAX);
                if (!l->answer)
                        return -ENOMEM;
        } else if (send(l->fd, l->question + 2, (size_t) n, MSG_NOSIGNAL) < 0)
                return -errno;

        k = sd_event_add_io(r->event, &l->io, l->fd, l->tcp ? EPOLLOUT : EPOLLIN, l->tcp ? lookup_on_tcp : lookup_on_udp, l);
        if (k < 0)
                return k;

        return sd_event_add_time_relative(r->event, &l->timer, CLOCK_MONOTONIC, RESOLVER_TRY_MSEC * 1000ULL, 1000,
                                          lookup_on_timeout, l);
}

/* Asks the next server; one that cannot even be sent to is passed over. */
void lookup_start(Lookup *l) {
        int r;

        for (;;) {
                r = lookup_send(l);
                if (r >= 0)
                        return;
                lookup_close(l);
                lookup_pass_over_server(l, r);
                if (++l->tries >= TRIES_MAX) {
                        lookup_finish(l, r);
                        return;
                }
        }
}
