/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A question is an object from its arrival until egressd has answered: who asked, at which address, and the parsed
 * question. Over UDP the answer leaves from the address that was asked (IP_PKTINFO), since a guest may ask any
 * resolver it likes. Over TCP a connection has one question at a time; the next one is read after the answer, so that a
 * client that sends many at once gets its answers in order.
 *
 * A broken packet is answered at once, or not at all; everything else goes to egressd, also what is always refused (other types, names that no
 * host has), so that the attempt is in the log. So that a flood neither keeps egressd busy nor fills the log, what
 * exceeds a rate, broken packets included, or the number of questions that may wait, is refused here. egressd is told once a second how many those were, and how many were
 * broken (refused-log.c).
 */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "egress/egress-api.h"
#include "proxy/dns-answer.h"
#include "proxy/dns-server.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

enum { RESOLVE_TIMEOUT_USEC = 5 * 1000 * 1000, RCODE_REFUSED = 5, DNS_PORT = 53 };

typedef struct Stream Stream;

typedef struct Pending {
        struct Pending *next, **prev;
        DnsServer *server;           /* borrowed */
        DnsQuestion question;
        int udp_fd;                  /* borrowed; UDP */
        struct sockaddr_in client, asked;
        Stream *stream;              /* borrowed; TCP: NULL when it is gone */
} Pending;

struct Stream {
        Stream *next, **prev;
        DnsServer *server;           /* borrowed */
        int fd;                      /* owned */
        sd_event_source *io, *timer; /* owned */
        uint8_t in[2 + DNS_QUERY_MAX], out[2 + DNS_ANSWER_MAX];
        size_t n_in, n_out, n_sent;
        Pending *pending;            /* borrowed */
};

struct DnsServer {
        sd_event *event;             /* ref */
        IpcClient *client;           /* borrowed */
        RefusedLog *refused;         /* borrowed */
        int udp_fd, tcp_fd;          /* owned */
        sd_event_source *udp, *tcp;  /* owned */
        Pending *pending;            /* owned */
        Stream *streams;             /* owned */
        size_t n_pending, n_streams;
        uint64_t tokens, filled_usec;
};

int dns_server_new(DnsServer **ret, sd_event *event, IpcClient *client, RefusedLog *refused) {
        DnsServer *s;

        s = malloc(sizeof(*s));
        if (!s)
                return -ENOMEM;

        *s = (DnsServer) {
                .event = sd_event_ref(event),
                .client = client,
                .refused = refused,
                .udp_fd = -1,
                .tcp_fd = -1,
                .tokens = 2 * DNS_RATE,
                .filled_usec = time_monotonic(),
        };
        *ret = s;
        return 0;
}

static bool take_token(DnsServer *s) {
        uint64_t now = time_monotonic(), new = (now - s->filled_usec) * DNS_RATE / 1000000;

        if (new > 0) {
                s->tokens = s->tokens + new > 2 * DNS_RATE ? 2 * DNS_RATE : s->tokens + new;
                s->filled_usec = now;
        }
        if (s->tokens == 0)
                return false;
        s->tokens--;
        return true;
}

/* ---- what is refused here ---- */

static void note_refused(DnsServer *s, const char *reason) {
        refused_log_add(s->refused, &(RefusedKind) { .event = "dns", .reason = reason, .port = DNS_PORT }, false);
}

/* What is no question at all. Beyond the rate it is one of too many. */
static void note_dropped(DnsServer *s, const char *reason) {
        note_refused(s, take_token(s) ? reason : "rate");
}

/* ---- streams ---- */

static Stream *stream_free(Stream *t) {
        if (!t)
                return NULL;

        if (t->pending)
                t->pending->stream = NULL;
        sd_event_source_disable_unref(t->io);
        sd_event_source_disable_unref(t->timer);
        (void) fd_close(t->fd);
        *t->prev = t->next;
        if (t->next)
                t->next->prev = t->prev;
        t->server->n_streams--;
        if (t->server->tcp)
                (void) sd_event_source_set_enabled(t->server->tcp, SD_EVENT_ON);
        free(t);
        return NULL;
}

static int stream_flush(Stream *t) {
        while (t->n_sent < t->n_out) {
                ssize_t n = send(t->fd, t->out + t->n_sent, t->n_out - t->n_sent, MSG_DONTWAIT | MSG_NOSIGNAL);

                if (n < 0)
                        return errno == EAGAIN || errno == EINTR ? sd_event_source_set_io_events(t->io, EPOLLOUT) : -errno;
                t->n_sent += (size_t) n;
        }
        t->n_out = t->n_sent = 0;
        return sd_event_source_set_io_events(t->io, EPOLLIN);
}

static void stream_answer(Stream *t, const uint8_t *data, size_t size) {
        t->out[0] = (uint8_t) (size >> 8);
        t->out[1] = (uint8_t) size;
        memcpy(t->out + 2, data, size);
        t->n_out = size + 2;
        t->n_sent = t->n_in = 0;
        if (stream_flush(t) < 0 || sd_event_source_set_time_relative(t->timer, DNS_STREAM_SEC * 1000000ULL) < 0)
                (void) stream_free(t);
}

/* ---- questions ---- */

static Pending *pending_free(Pending *p) {
        if (!p)
                return NULL;

        if (p->stream)
                p->stream->pending = NULL;
        *p->prev = p->next;
        if (p->next)
                p->next->prev = p->prev;
        p->server->n_pending--;
        free(p);
        return NULL;
}

static void send_from(int fd, const struct sockaddr_in *to, const struct sockaddr_in *from, const uint8_t *data, size_t size) {
        union {
                struct cmsghdr header;
                uint8_t space[CMSG_SPACE(sizeof(struct in_pktinfo))];
        } control = {};
        struct iovec iov = { .iov_base = (void *) data, .iov_len = size };
        struct msghdr message = {
                .msg_name = (void *) to, .msg_namelen = sizeof(*to), .msg_iov = &iov, .msg_iovlen = 1,
                .msg_control = &control, .msg_controllen = sizeof(control),
        };
        struct in_pktinfo info = { .ipi_spec_dst = from->sin_addr };

        control.header = (struct cmsghdr) { .cmsg_level = IPPROTO_IP, .cmsg_type = IP_PKTINFO, .cmsg_len = CMSG_LEN(sizeof(info)) };
        memcpy(CMSG_DATA(&control.header), &info, sizeof(info));
        if (sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
                log_debug("an answer could not be sent: %s", strerror(errno)); /* the guest asks again */
}

static void send_answer(const Pending *p, DnsVerdict verdict, uint32_t address, uint32_t ttl, const char *why) {
        uint8_t wire[DNS_ANSWER_MAX];
        size_t n;

        n = dns_answer_write(&p->question, verdict, address, ttl, why, wire);
        if (p->udp_fd >= 0)
                send_from(p->udp_fd, &p->client, &p->asked, wire, n);
        else if (p->stream)
                stream_answer(p->stream, wire, n);
}

static void pending_answer(Pending *p, DnsVerdict verdict, uint32_t address, uint32_t ttl, const char *why) {
        Pending copy = *p; /* a stream that ends with its answer must not find its question any more */

        (void) pending_free(p);
        send_answer(&copy, verdict, address, ttl, why);
}

static bool read_allowed(json_t *params, const DnsQuestion *q, uint32_t *ret_address, uint32_t *ret_ttl) {
        const char *verdict = NULL, *text = NULL;
        _cleanup_(json_reader_done) JsonReader reader = {};
        uint64_t ttl = 0;
        struct in_addr a;

        (void) json_read_string(&reader, params, "", "verdict", JSON_F_REQUIRED, &verdict);
        (void) json_read_uint(&reader, params, "", "ttl", 0, 0, 86400, &ttl);
        (void) json_read_string(&reader, params, "", "address", JSON_F_NULLABLE, &text);
        if (reader.failed || strcmp(verdict, "allow") != 0)
                return false;

        *ret_ttl = (uint32_t) ttl;
        if (!q->address_wanted)
                return true;
        if (!text || inet_pton(AF_INET, text, &a) != 1)
                return false;
        *ret_address = ntohl(a.s_addr);
        return true;
}

/* "no-rule (default)": the reason and the rule, as in the log. */
static void pending_refuse(Pending *p, json_t *params) {
        const char *reason = json_string_value(json_object_get(params, "reason")), *rule = json_string_value(json_object_get(params, "rule"));
        _cleanup_free_ char *why = NULL;

        why = text_format("%s (%s)", reason ?: "refused", rule ?: "default");
        pending_answer(p, DNS_REFUSED, 0, 0, why);
}

static void on_resolved(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Pending *p = userdata;
        uint32_t address = 0, ttl = 0;

        if (error)
                pending_answer(p, DNS_FAILED, 0, 0, "unavailable");
        else if (read_allowed(params, &p->question, &address, &ttl))
                pending_answer(p, DNS_ALLOWED, address, ttl, NULL);
        else
                pending_refuse(p, params);
}

/* Answers now or asks egressd. `p` is on the stack. */
static void server_ask(DnsServer *s, const Pending *p) {
        const DnsQuestion *q = &p->question;
        Pending *copy = NULL;
        char type[16];
        int r = 0;

        if (!take_token(s)) {
                note_refused(s, "rate");
                send_answer(p, DNS_REFUSED, 0, 0, "rate");
                return;
        }
        if (q->kind == DNS_REPLY && q->rcode != RCODE_REFUSED) {
                note_refused(s, "malformed");
                send_answer(p, DNS_REFUSED, 0, 0, NULL);
                return;
        }
        if (s->n_pending < DNS_PENDING_MAX)
                copy = malloc(sizeof(*copy));
        if (!copy) {
                note_refused(s, "rate");
                send_answer(p, DNS_FAILED, 0, 0, "rate");
                return;
        }

        *copy = *p;
        copy->next = s->pending;
        copy->prev = &s->pending;
        if (copy->next)
                copy->next->prev = &copy->next;
        s->pending = copy;
        s->n_pending++;
        if (copy->stream)
                copy->stream->pending = copy;

        r = ipc_client_call_async(s->client, EGRESS_INTERFACE ".Resolve",
                                  json_pack("{s:s, s:s}", "name", q->name, "qtype", dns_type_name(q, type)),
                                  NULL, 0, false, RESOLVE_TIMEOUT_USEC, on_resolved, copy);
        if (r < 0)
                pending_answer(copy, DNS_FAILED, 0, 0, "unavailable");
}

/* ---- UDP ---- */

/* *ret_size is more than max if it did not fit. */
static bool receive(int fd, uint8_t *data, size_t max, size_t *ret_size, Pending *p) {
        union {
                struct cmsghdr header;
                uint8_t space[CMSG_SPACE(sizeof(struct in_pktinfo)) + CMSG_SPACE(64)];
        } control;
        struct iovec iov = { .iov_base = data, .iov_len = max };
        struct msghdr message = {
                .msg_name = &p->client, .msg_namelen = sizeof(p->client), .msg_iov = &iov, .msg_iovlen = 1,
                .msg_control = &control, .msg_controllen = sizeof(control),
        };
        ssize_t n;

        n = recvmsg(fd, &message, MSG_DONTWAIT);
        if (n < 0)
                return false;

        *ret_size = message.msg_flags & MSG_TRUNC ? max + 1 : (size_t) n;
        if (p->client.sin_family != AF_INET)
                *ret_size = 0;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
                if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
                        struct in_pktinfo info;

                        memcpy(&info, CMSG_DATA(c), sizeof(info));
                        p->asked.sin_addr = info.ipi_addr;
                }
        return true;
}

static int server_on_udp(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        DnsServer *s = userdata;

        /* A bounded number at a time: the streams and the connections want their turn. */
        for (int i = 0; i < 32; i++) {
                Pending p = { .server = s, .udp_fd = fd };
                uint8_t data[DNS_QUERY_MAX];
                size_t size;

                if (!receive(fd, data, sizeof(data), &size, &p))
                        return 0;
                dns_question_parse(data, size, &p.question);
                if (p.question.kind != DNS_DROP)
                        server_ask(s, &p);
                else
                        note_dropped(s, size > sizeof(data) ? "too-large" : "malformed");
        }
        return 0;
}

int dns_server_add_udp(DnsServer *s, int fd) {
        int one = 1, r;

        if (setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &one, sizeof(one)) < 0)
                return -errno;
        r = io_set_nonblock(fd, 1);
        if (r < 0)
                return r;
        r = sd_event_add_io(s->event, &s->udp, fd, EPOLLIN, server_on_udp, s);
        if (r < 0)
                return r;
        s->udp_fd = fd;
        return 0;
}

/* ---- TCP ---- */

static int stream_on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        Pending p = { .udp_fd = -1 };
        Stream *t = userdata;
        size_t wanted;
        ssize_t n;

        if (t->n_out > 0) {
                if (stream_flush(t) < 0)
                        (void) stream_free(t);
                return 0;
        }

        wanted = t->n_in < 2 ? 2 : 2 + ((size_t) t->in[0] << 8 | t->in[1]);
        n = recv(fd, t->in + t->n_in, wanted - t->n_in, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return 0;
        if (n <= 0) {
                (void) stream_free(t);
                return 0;
        }

        t->n_in += (size_t) n;
        if (t->n_in >= 2 && 2 + ((size_t) t->in[0] << 8 | t->in[1]) > sizeof(t->in)) {
                note_dropped(t->server, "too-large");
                (void) stream_free(t); /* longer than any question */
                return 0;
        }
        if (t->n_in < 2 || t->n_in < 2 + ((size_t) t->in[0] << 8 | t->in[1]))
                return 0;

        p.server = t->server;
        p.stream = t;
        dns_question_parse(t->in + 2, t->n_in - 2, &p.question);
        if (p.question.kind == DNS_DROP) {
                note_dropped(t->server, "malformed");
                (void) stream_free(t);
                return 0;
        }

        /* Nothing more is read until the answer is out. */
        (void) sd_event_source_set_io_events(t->io, 0);
        server_ask(t->server, &p);
        return 0;
}

static int stream_on_timeout(sd_event_source *source, uint64_t usec, void *userdata) {
        (void) stream_free(userdata);
        return 0;
}

static int server_on_tcp(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        DnsServer *s = userdata;
        Stream *t;
        int client;

        if (s->n_streams >= DNS_STREAMS_MAX)
                return sd_event_source_set_enabled(source, SD_EVENT_OFF); /* until one of them ends */

        client = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (client < 0) {
                if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
                        return 0;
                return sd_event_source_set_enabled(source, SD_EVENT_OFF); /* until the next tick */
        }
        t = calloc(1, sizeof(*t));
        if (!t) {
                (void) fd_close(client);
                return 0;
        }

        t->server = s;
        t->fd = client;
        t->next = s->streams;
        t->prev = &s->streams;
        if (t->next)
                t->next->prev = &t->next;
        s->streams = t;
        s->n_streams++;

        if (sd_event_add_io(s->event, &t->io, client, EPOLLIN, stream_on_io, t) < 0 ||
            sd_event_add_time_relative(s->event, &t->timer, CLOCK_MONOTONIC, DNS_STREAM_SEC * 1000000ULL, 100000, stream_on_timeout, t) < 0)
                (void) stream_free(t);
        return 0;
}

void dns_server_tick(DnsServer *s) {
        if (s->tcp && s->n_streams < DNS_STREAMS_MAX)
                (void) sd_event_source_set_enabled(s->tcp, SD_EVENT_ON);
}

int dns_server_add_tcp(DnsServer *s, int fd) {
        int r;

        r = io_set_nonblock(fd, 1);
        if (r < 0)
                return r;
        r = sd_event_add_io(s->event, &s->tcp, fd, EPOLLIN, server_on_tcp, s);
        if (r < 0)
                return r;
        s->tcp_fd = fd;
        return 0;
}

DnsServer *dns_server_free(DnsServer *s) {
        if (!s)
                return NULL;

        s->udp = sd_event_source_disable_unref(s->udp);
        s->tcp = sd_event_source_disable_unref(s->tcp);
        while (s->streams)
                (void) stream_free(s->streams);
        while (s->pending)
                (void) pending_free(s->pending);
        (void) fd_close(s->udp_fd);
        (void) fd_close(s->tcp_fd);
        sd_event_unref(s->event);
        free(s);
        return NULL;
}
