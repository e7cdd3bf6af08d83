/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Asks egressd, connects to what it grants, verifies who is there, asks once over HTTP/1.1, and reads the answer whole: strictly and bounded, as everything
 * that comes from an origin is read. Each step has the one timer.
 */

#include "inject/origin-call.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "inject/http-message.h"
#include "inject/substitute.h"
#include "util/dial.h"
#include "util/log.h"
#include "util/text.h"

#define CALL_USEC (8ULL * 1000 * 1000)

enum { PIECE = 16 * 1024, REASON_SIZE = 512 };

struct OriginCall {
        sd_event *event;          /* ref */
        EgressLink *egress;       /* borrowed */
        TlsSetup *tls;            /* borrowed */
        OriginCallDone done;
        void *userdata;
        char host[254], reason[REASON_SIZE];
        uint16_t port;
        const char *doing;        /* for the timer's reason */
        sd_event_source *timer;   /* owned */
        EgressQuestion *question; /* owned */
        Dial *dial;               /* owned */
        TlsStream *stream;        /* owned */
        HttpReader *reader;       /* owned */
        Buffer out, body;
        int64_t grant;
        EgressHolder holder;
        uint64_t opened_usec, bytes_in, bytes_out;
        unsigned status;
};

OriginCall *origin_call_free(OriginCall *c) {
        if (!c)
                return NULL;
        c->timer = sd_event_source_disable_unref(c->timer);
        c->question = egress_question_free(c->question);
        c->dial = dial_free(c->dial);
        c->stream = tls_stream_free(c->stream);
        c->reader = http_reader_free(c->reader);
        egress_link_release(&c->holder);
        if (c->grant > 0)
                egress_link_done(c->egress, c->grant, c->bytes_in, c->bytes_out, c->opened_usec ? time_boottime() - c->opened_usec : 0);
        buffer_done(&c->out);
        buffer_done(&c->body);
        sd_event_unref(c->event);
        free(c);
        return NULL;
}

/* The end: nothing may be touched after it. */
static void finish(OriginCall *c, int r) {
        c->timer = sd_event_source_disable_unref(c->timer);
        if (c->stream)
                tls_stream_end(c->stream);
        c->done(r, c->reason, c->status, &c->body, c->userdata);
}

static void fail(OriginCall *c, int r, const char *format, const char *detail) {
        _cleanup_free_ char *safe = text_escape(detail, strlen(detail), false);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void) snprintf(c->reason, sizeof(c->reason), format, c->host, c->port, safe ?: "");
#pragma GCC diagnostic pop
        finish(c, r);
}

static int call_on_timeout(sd_event_source *s, uint64_t usec, void *userdata) {
        OriginCall *c = userdata;

        fail(c, -ETIMEDOUT, "%s:%u did not answer in time (%s)", c->doing);
        return 0;
}

/* ---- the answer ---- */

/* 1: it is whole. 0: more is needed. */
static int take_event(OriginCall *c, HttpEvent event, const uint8_t *body, size_t size) {
        unsigned status = http_reader_head(c->reader)->status;

        switch (event) {
        case HTTP_EVENT_BODY:
                if (size > ORIGIN_CALL_BODY_MAX - buffer_size(&c->body))
                        return -EFBIG;
                return buffer_append(&c->body, body, size);
        case HTTP_EVENT_END:
                if (status < 200) /* 103, and the like */
                        return 0;
                c->status = status;
                return 1;
        case HTTP_EVENT_HEAD:
        case HTTP_EVENT_MORE:
                break;
        }
        return 0;
}

static int take_bytes(OriginCall *c, const uint8_t *data, size_t size) {
        HttpEvent event;

        do { /* an end comes by itself, behind the last byte */
                size_t used = 0, body_size = 0;
                const uint8_t *body = NULL;
                int r;

                r = http_reader_feed(c->reader, data, size, &used, &event, &body, &body_size);
                if (r < 0)
                        return r;
                r = take_event(c, event, body, body_size);
                if (r != 0)
                        return r;
                data += used;
                size -= used;
        } while (event != HTTP_EVENT_MORE);
        return 0;
}

static int read_piece(OriginCall *c, uint8_t *piece) {
        HttpEvent event;
        ssize_t n;
        int r;

        n = tls_stream_read(c->stream, piece, PIECE);
        if (n < 0)
                return (int) n;
        c->bytes_in += (uint64_t) n;
        if (n > 0)
                return take_bytes(c, piece, (size_t) n);

        r = http_reader_eof(c->reader, &event);
        if (r >= 0)
                r = event == HTTP_EVENT_END ? take_event(c, event, NULL, 0) : -ECONNRESET;
        return r == 0 ? -ECONNRESET : r;
}

static int read_some(OriginCall *c) {
        uint8_t piece[PIECE];
        int r;

        do
                r = read_piece(c, piece);
        while (r == 0);
        explicit_bzero(piece, sizeof(piece)); /* it may have had a token in it */
        return r == -EAGAIN ? 0 : r;
}

static int write_some(OriginCall *c) {
        while (buffer_size(&c->out) > 0) {
                ssize_t n = tls_stream_write(c->stream, buffer_data(&c->out), buffer_size(&c->out));

                if (n == -EAGAIN)
                        return 0;
                if (n < 0)
                        return (int) n;
                c->bytes_out += (uint64_t) n;
                buffer_consume(&c->out, (size_t) n);
        }
        return 0;
}

/* ---- the connection ---- */

static int step(OriginCall *c) {
        int r;

        if (!c->reader) {
                r = tls_stream_handshake(c->stream);
                if (r <= 0)
                        return r;
                r = http_reader_new(&c->reader, HTTP_KIND_RESPONSE);
                if (r < 0)
                        return r;
                c->doing = "its answer";
        }
        r = write_some(c);
        if (r >= 0)
                r = read_some(c);
        if (r == 0)
                r = tls_stream_want(c->stream, true, buffer_size(&c->out) > 0);
        return r;
}

static void call_on_stream(TlsStream *s, void *userdata) {
        OriginCall *c = userdata;
        int r = step(c);

        if (r == 0)
                return;
        if (r > 0)
                finish(c, 0);
        else if (!c->reader)
                fail(c, r, "TLS with %s:%u failed: %s", tls_stream_error(c->stream));
        else if (r == -EBADMSG || r == -EMSGSIZE)
                fail(c, r, "%s:%u does not answer with HTTP: %s", http_reader_error(c->reader));
        else
                fail(c, r, "%s:%u broke off: %s", r == -EFBIG ? "its answer has more than 64 KiB" : strerror(-r));
}

static void call_on_dialled(int fd, const char *failures, void *userdata) {
        OriginCall *c = userdata;
        int r;

        c->dial = dial_free(c->dial);
        if (fd < 0) {
                fail(c, fd, "%s:%u cannot be reached: %s", failures[0] ? failures : strerror(-fd));
                return;
        }
        r = tls_stream_connect(&c->stream, c->event, c->tls, fd, c->host, NULL, TLS_HTTP1, call_on_stream, c);
        if (r < 0) {
                (void) fd_close(fd);
                fail(c, r, "%s:%u cannot be reached: %s", strerror(-r));
                return;
        }
        c->opened_usec = time_boottime();
        c->doing = "TLS";
}

static void call_on_revoked(void *userdata) {
        OriginCall *c = userdata;

        c->dial = dial_free(c->dial);
        c->stream = tls_stream_free(c->stream); /* not another byte */
        fail(c, -EACCES, "the egress policy allows no such request to %s:%u (%s)", "policy-changed");
}

static void call_on_answer(const EgressAnswer *a, void *userdata) {
        OriginCall *c = userdata;
        int r;

        c->question = NULL;
        if (!a->pass) {
                fail(c, strcmp(a->reason, "unavailable") == 0 ? -EAGAIN : -EACCES, "the egress policy allows no such request to %s:%u (%s)", a->reason);
                return;
        }
        c->grant = a->grant;
        egress_link_hold(c->egress, &c->holder, c->grant, call_on_revoked, c);
        c->doing = "a connection";
        r = dial_new(&c->dial, c->event, a->addresses, a->n_addresses, c->port, call_on_dialled, c);
        if (r < 0)
                fail(c, r, "%s:%u cannot be reached: %s", strerror(-r));
}

/* ---- start ---- */

static int write_request(Buffer *out, const OriginRequest *q) {
        SecretView proof = secret_view(q->bearer);
        char authority[SUBSTITUTE_AUTHORITY_SIZE], length[96] = "";
        _cleanup_free_ char *head = NULL;
        int r;

        substitute_authority(q->host, q->port, authority);
        if (q->body)
                (void) snprintf(length, sizeof(length), "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(q->body));
        head = text_format("%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: anchorhold\r\nAccept: application/vnd.github+json\r\nX-GitHub-Api-Version: 2022-11-28\r\n"
                           "Connection: close\r\n%sAuthorization: Bearer ",
                           q->method, q->target, authority, length);
        if (!head)
                return -ENOMEM;
        if ((r = buffer_append_text(out, head)) < 0 || (r = buffer_append(out, proof.bytes, proof.size)) < 0)
                return r;
        r = buffer_append_text(out, "\r\n\r\n");
        return r < 0 || !q->body ? r : buffer_append_text(out, q->body);
}

int origin_call_new(OriginCall **ret, sd_event *event, EgressLink *egress, TlsSetup *tls, const OriginRequest *request, OriginCallDone done, void *userdata) {
        _cleanup_(origin_call_freep) OriginCall *c = NULL;
        int r;

        if (strlen(request->host) >= sizeof(c->host) || strpbrk(request->method, " \r\n") || strpbrk(request->target, " \r\n"))
                return -EINVAL;
        c = calloc(1, sizeof(*c));
        if (!c)
                return -ENOMEM;
        *c = (OriginCall) {
                .event = sd_event_ref(event),
                .egress = egress,
                .tls = tls,
                .done = done,
                .userdata = userdata,
                .port = request->port,
                .doing = "the host's decision",
        };
        strcpy(c->host, request->host);
        r = write_request(&c->out, request);
        if (r >= 0)
                r = sd_event_add_time_relative(event, &c->timer, CLOCK_BOOTTIME, CALL_USEC, 0, call_on_timeout, c);
        if (r >= 0)
                r = egress_link_ask(egress, c->host, c->port, request->method, request->target, false, NULL, call_on_answer, c, &c->question);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(c);
        return 0;
}
