/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Both directions of one request, as it comes: a piece is read, its framing taken off, looked at or masked, framed
 * anew and written, so that an event of a stream is on its way as soon as it is there.
 *
 * A response whose body is masked is always sent in chunks, because masking may change its length, and what
 * the length would be must not depend on the secret.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "inject/exchange-private.h"
#include "util/log.h"

/* Models think for minutes before the first byte comes. */
#define RELAY_USEC (15 * 60 * SECOND_USEC)

int exchange_flush(TlsStream *s, Buffer *b, uint64_t *count) {
        bool any = false;

        while (buffer_size(b) > 0) {
                ssize_t n = tls_stream_write(s, buffer_data(b), buffer_size(b));

                if (n == -EAGAIN)
                        break;
                if (n < 0)
                        return (int) n;
                buffer_consume(b, (size_t) n);
                if (count)
                        *count += (uint64_t) n;
                any = true;
        }
        return any;
}

int exchange_read_piece(TlsStream *s, Buffer *b, bool *ended, ssize_t *ret_size) {
        uint8_t *p;
        ssize_t n;

        *ret_size = 0;
        if (buffer_size(b) >= EXCHANGE_PIECE)
                return 0;
        p = buffer_reserve(b, EXCHANGE_PIECE);
        if (!p)
                return -ENOMEM;
        n = tls_stream_read(s, p, EXCHANGE_PIECE);
        if (n == -EAGAIN)
                return 0;
        if (n == 0)
                *ended = true;
        if (n < 0)
                return (int) n;
        buffer_commit(b, (size_t) n);
        *ret_size = n;
        return 1;
}

int exchange_read_guest(Exchange *x) {
        ssize_t size;
        int r;

        if (x->guest_ended)
                return 0;
        r = exchange_read_piece(x->guest, &x->from_guest, &x->guest_ended, &size);
        if (r == -ECONNRESET) { /* most clients just close */
                x->guest_ended = true;
                return 1;
        }
        return r;
}

/* Negative: it broke off. */
int exchange_read_origin(Exchange *x, bool *ret_ended) {
        ssize_t size;
        int r;

        r = exchange_read_piece(x->origin, &x->from_origin, ret_ended, &size);
        x->bytes_in += (uint64_t) size;
        return r;
}

/* ---- request ---- */

/* Frames what is in `scratch` as the head announced. last: the body is over, and the trailer's lines follow. */
static int write_body(Buffer *scratch, bool chunked, bool last, const Buffer *trailer, Buffer *out) {
        char line[32];
        int r = 0;

        if (buffer_size(scratch) > 0) {
                if (chunked) {
                        (void) snprintf(line, sizeof(line), "%zx\r\n", buffer_size(scratch));
                        r = buffer_append_text(out, line);
                }
                if (r >= 0)
                        r = buffer_append(out, buffer_data(scratch), buffer_size(scratch));
                if (r >= 0 && chunked)
                        r = buffer_append_text(out, "\r\n");
        }
        if (r < 0 || !chunked || !last)
                return r;
        if ((r = buffer_append_text(out, "0\r\n")) < 0 || (r = buffer_append(out, buffer_data(trailer), buffer_size(trailer))) < 0)
                return r;
        return buffer_append_text(out, "\r\n");
}

/* What was held of a body whose rest goes by. */
static int write_beginning(Exchange *x) {
        Buffer held = {}, no_trailer = {};
        int r;

        r = request_write_held(&x->request, &held);
        if (r >= 0)
                r = write_body(&held, x->request.head->framing == HTTP_FRAMING_CHUNKED, x->request_over, &no_trailer, &x->to_origin);
        buffer_done(&held);
        return r;
}

int exchange_begin_relay(Exchange *x) {
        int r;

        http_reader_set_head_request(x->responses, x->head_request);
        http_reader_set_websocket(x->responses, x->request.head->websocket);
        r = substitute_write(x->request.head, &x->request.plan, x->name, x->port, &x->to_origin);
        if (r >= 0 && request_holds_beginning(&x->request))
                r = write_beginning(x);
        else if (r >= 0 && request_holds_body(&x->request))
                r = request_write_held(&x->request, &x->to_origin);
        if (r < 0)
                return r;
        request_set_sent(&x->request);
        exchange_set_phase(x, PHASE_RELAY, RELAY_USEC);
        return 1;
}

static int append_line(Buffer *out, const char *name, const char *value) {
        int r;

        if ((r = buffer_append_text(out, name)) < 0 || (r = buffer_append_text(out, ": ")) < 0 || (r = buffer_append_text(out, value)) < 0)
                return r;
        return buffer_append_text(out, "\r\n");
}

static int pass_request_trailer(Exchange *x, Buffer *out, Refusal *ret) {
        const HttpField *fields;
        size_t n;
        int r = 0;

        fields = http_reader_trailers(x->requests, &n);
        for (size_t i = 0; i < n && r == 0; i++) {
                r = request_judge_trailer(&x->request, &fields[i], ret);
                if (r == 0 && http_field_may_trail(fields[i].name))
                        r = append_line(out, fields[i].name, fields[i].value);
        }
        return r;
}

/* A piece of the request's body, or its end. */
static int pass_request_body(Exchange *x, const uint8_t *data, size_t size, bool last, Refusal *ret) {
        bool chunked = http_reader_head(x->requests)->framing == HTTP_FRAMING_CHUNKED;
        Buffer scratch = {}, trailer = {};
        int r;

        r = request_feed_body(&x->request, data, size, last, &scratch, ret);
        if (r == 0 && last)
                r = pass_request_trailer(x, &trailer, ret);
        if (r == 0)
                r = write_body(&scratch, chunked, last, &trailer, &x->to_origin);
        buffer_done(&scratch);
        buffer_done(&trailer);
        return r;
}

static int relay_request(Exchange *x) {
        const uint8_t *body;
        size_t used, body_size;
        HttpEvent event;
        Refusal refusal;
        int r, got;

        if (buffer_size(&x->to_origin) >= EXCHANGE_BACKLOG_MAX)
                return 0;
        got = exchange_read_guest(x);
        if (got < 0 || x->request_over)
                return got;
        if (got > 0)
                exchange_set_phase(x, PHASE_RELAY, RELAY_USEC);

        /* the reader may have an event for no bytes at all, such as the end of a request without a body */
        do {
                r = http_reader_feed(x->requests, buffer_data(&x->from_guest), buffer_size(&x->from_guest), &used,
                                     &event, &body, &body_size);
                if (r < 0) {
                        if (r == -ENOMEM)
                                return r;
                        return exchange_deny(x, 400, "bad-request", "body", http_reader_error(x->requests));
                }
                if (event == HTTP_EVENT_BODY || event == HTTP_EVENT_END) {
                        x->request_over = event == HTTP_EVENT_END;
                        r = pass_request_body(x, body, body_size, x->request_over, &refusal);
                        if (r == REQUEST_E_REFUSED)
                                buffer_consume(&x->from_guest, used);
                        if (r != 0)
                                return r == REQUEST_E_REFUSED ? exchange_refuse_as(x, &refusal) : r;
                        got = 1;
                }
                buffer_consume(&x->from_guest, used);
        } while (event != HTTP_EVENT_MORE && !x->request_over);

        /* cut off in the middle: the origin must not take it for whole */
        if (x->guest_ended && !x->request_over)
                return -ECONNRESET;
        return got;
}

/* ---- response ---- */

static int pass_field(Exchange *x, const HttpField *field, Buffer *out) {
        int r;

        if ((r = request_mask_text(&x->request, field->name, out)) < 0 || (r = buffer_append_text(out, ": ")) < 0 ||
            (r = request_mask_text(&x->request, field->value, out)) < 0)
                return r;
        return buffer_append_text(out, "\r\n");
}

static int pass_fields(Exchange *x, const HttpHead *h) {
        int r = 0;

        for (size_t i = 0; i < h->n_fields && r >= 0; i++)
                if (request_passes_field(&x->request, h, h->fields[i].name))
                        r = pass_field(x, &h->fields[i], &x->to_guest);
        return r;
}

static int pass_response_trailer(Exchange *x, Buffer *out) {
        const HttpField *fields;
        size_t n;
        int r = 0;

        fields = http_reader_trailers(x->responses, &n);
        for (size_t i = 0; i < n && r >= 0; i++)
                if (request_passes_trailer(&x->request, fields[i].name))
                        r = pass_field(x, &fields[i], out);
        return r;
}

static int pass_status(Exchange *x, const HttpHead *h) {
        char line[32];
        int r;

        (void) snprintf(line, sizeof(line), "HTTP/1.1 %u ", h->status);
        if ((r = buffer_append_text(&x->to_guest, line)) < 0 || (r = request_mask_text(&x->request, h->reason, &x->to_guest)) < 0)
                return r;
        return buffer_append_text(&x->to_guest, "\r\n");
}

static int pass_framing(Exchange *x, const HttpHead *h) {
        char line[64] = "";

        x->body_framed_as_chunks = h->framing != HTTP_FRAMING_NONE && (h->framing != HTTP_FRAMING_LENGTH || x->context->n_credentials > 0);
        if (x->body_framed_as_chunks)
                strcpy(line, "Transfer-Encoding: chunked\r\n");
        else if (h->has_length && h->status != 204)
                (void) snprintf(line, sizeof(line), "Content-Length: %llu\r\n", (unsigned long long) h->length);
        return buffer_append_text(&x->to_guest, line);
}

/* From here on it is frames. */
static int pass_switch(Exchange *x, const HttpHead *h) {
        Refusal refusal;
        int r;

        r = request_begin_answer(&x->request, h, &refusal);
        if (r != 0)
                return r == REQUEST_E_REFUSED ? exchange_refuse_as(x, &refusal) : r;
        if ((r = pass_status(x, h)) < 0 || (r = pass_fields(x, h)) < 0 ||
            (r = buffer_append_text(&x->to_guest, "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")) < 0)
                return r;
        x->head_passed = true;
        return 0;
}

static int pass_head(Exchange *x) {
        const HttpHead *h = http_reader_head(x->responses);
        Refusal refusal;
        int r;

        if (h->websocket)
                return pass_switch(x, h);
        if (h->status < 200) { /* "go on", or hints */
                if ((r = pass_status(x, h)) < 0 || (r = pass_fields(x, h)) < 0)
                        return r;
                return buffer_append_text(&x->to_guest, "\r\n");
        }

        r = request_begin_answer(&x->request, h, &refusal);
        if (r != 0)
                return r == REQUEST_E_REFUSED ? exchange_refuse_as(x, &refusal) : r;
        if ((r = pass_status(x, h)) < 0 || (r = pass_fields(x, h)) < 0 || (r = pass_framing(x, h)) < 0)
                return r;
        /* what came before its turn is not read (see finish_request()): its sender should know */
        if (!x->guest_keeps_alive || !x->request_over || buffer_size(&x->from_guest) > 0)
                r = buffer_append_text(&x->to_guest, "Connection: close\r\n");
        if (r >= 0)
                r = buffer_append_text(&x->to_guest, "\r\n");
        x->head_passed = true;
        return r;
}

static int pass_response_body(Exchange *x, const uint8_t *data, size_t size, bool last) {
        Buffer scratch = {}, trailer = {};
        int r;

        r = request_feed_answer(&x->request, data, size, last, &scratch);
        if (r >= 0 && last)
                r = pass_response_trailer(x, &trailer);
        if (r >= 0)
                r = write_body(&scratch, x->body_framed_as_chunks, last, &trailer, &x->to_guest);
        buffer_done(&scratch);
        buffer_done(&trailer);
        return r;
}

/* The response is through: on to the next request, or to the end. */
static int finish_request(Exchange *x, bool origin_ended) {
        const HttpHead *h = http_reader_head(x->responses);
        bool keep_origin = h->keep_alive && h->framing != HTTP_FRAMING_CLOSE && x->request_over && !origin_ended &&
                           buffer_size(&x->from_origin) == 0 && buffer_size(&x->to_origin) == 0;
        /* bytes that came before their turn are not looked at: their sender has to start over */
        bool keep_guest = x->guest_keeps_alive && x->request_over && !x->guest_ended && buffer_size(&x->from_guest) == 0;

        request_finish(&x->request, true);
        x->head_passed = x->head_request = false;
        if (!keep_origin || !keep_guest)
                exchange_drop_origin(x);
        x->idle_usec = time_boottime();
        if (keep_guest)
                exchange_set_phase(x, PHASE_HEAD, x->origin ? ORIGIN_IDLE_USEC : GUEST_IDLE_USEC);
        else
                exchange_set_phase(x, PHASE_FLUSH, 10 * SECOND_USEC);
        return 1;
}

static int take_event(Exchange *x, HttpEvent event, const uint8_t *body, size_t body_size) {
        switch (event) {
        case HTTP_EVENT_HEAD:
                return pass_head(x);
        case HTTP_EVENT_BODY:
                return pass_response_body(x, body, body_size, false);
        case HTTP_EVENT_END:
                return x->head_passed && x->request.status >= 200 ? pass_response_body(x, NULL, 0, true) : 0; /* else of a 1xx */
        case HTTP_EVENT_MORE:
                break;
        }
        return 0;
}

static int relay_response(Exchange *x) {
        bool ended = false;
        const uint8_t *body;
        size_t used, body_size;
        HttpEvent event;
        int r, got;

        if (buffer_size(&x->to_guest) >= EXCHANGE_BACKLOG_MAX)
                return 0;
        got = exchange_read_origin(x, &ended);
        if (got < 0)
                return exchange_refuse(x, 502, "origin-closed", "The connection to the origin broke off.");
        if (got == 0)
                return 0;
        exchange_set_phase(x, PHASE_RELAY, RELAY_USEC);

        do {
                r = http_reader_feed(x->responses, buffer_data(&x->from_origin), buffer_size(&x->from_origin), &used,
                                     &event, &body, &body_size);
                if (r < 0) {
                        log_warning("the answer of %s is malformed: %s", x->name, http_reader_error(x->responses));
                        return exchange_deny(x, 502, "origin-malformed", NULL, http_reader_error(x->responses));
                }
                r = take_event(x, event, body, body_size);
                if (r < 0 || x->phase != PHASE_RELAY)
                        return r;
                buffer_consume(&x->from_origin, used);
                if (event == HTTP_EVENT_END && http_reader_head(x->responses)->websocket)
                        return exchange_begin_websocket(x);
                if (event == HTTP_EVENT_END && x->head_passed)
                        return finish_request(x, ended);
        } while (event != HTTP_EVENT_MORE);

        if (!ended)
                return 1;
        if (http_reader_eof(x->responses, &event) < 0 || event != HTTP_EVENT_END)
                return exchange_refuse(x, 502, "origin-closed", "The origin closed the connection before its answer was complete.");
        r = pass_response_body(x, NULL, 0, true);
        return r < 0 ? r : finish_request(x, true);
}

int exchange_relay_step(Exchange *x) {
        int request, response;

        request = relay_request(x);
        if (request < 0 || x->phase != PHASE_RELAY)
                return request;
        response = relay_response(x);
        return response < 0 ? response : request > 0 || response > 0;
}
