/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * An exchange is what this process exists for, and the one place where bytes of the guest and real secrets meet:
 *
 *   guest ═TLS═ request reader → judged → head rewritten → ═TLS═ origin
 *   guest ═TLS═ head and body masked ← response reader ←   ═TLS═ origin
 *
 * Once a request has passed what request.c asks of it, a connection to the origin is opened (or the last one used again) and the
 * secret written, into a buffer that is zeroed as it empties.
 *
 * That is HTTP/1.1; a guest that offers HTTP/2 is exchange-h2.c's. One request at a time: the next one is read when the last response is through, and bytes that come earlier end
 * the connection after it. A refusal is an answer of ours and the end of the connection. If a response has
 * begun already, the connection breaks off instead, so that the guest sees it truncated.
 *
 * Memory is bounded: a reader's head, one piece read and not yet used on either side, and a backlog above which
 * the side that causes it is not read. Each phase has a deadline. The exchange owns everything it uses but the
 * context; its end, from whatever cause, gives its grant back and reports a model call that was begun.
 */

#include "inject/exchange.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "inject/exchange-private.h"
#include "inject/mask-needles.h"
#include "util/io.h"
#include "util/log.h"
#include "util/text.h"

#define HOLD_USEC (30 * SECOND_USEC)

enum { ROUNDS_MAX = 16 };

static Exchange *exchange_free(Exchange *x) {
        if (!x)
                return NULL;

        if (x->request.context) /* else there was no memory to begin with */
                request_done(&x->request);
        h2_pair_free(x->pair);
        exchange_drop_origin(x);
        x->guest = tls_stream_free(x->guest);
        x->deadline = sd_event_source_disable_unref(x->deadline);
        x->again = sd_event_source_disable_unref(x->again);
        http_reader_free(x->requests);
        websocket_free(x->frames_up);
        websocket_free(x->frames_down);
        buffer_done(&x->from_guest);
        buffer_done(&x->to_guest);
        buffer_done(&x->late);
        free(x->postponed);
        free(x->name);
        free(x->client);
        free(x->rule);
        if (x->prev) {
                *x->prev = x->next;
                if (x->next)
                        x->next->prev = x->prev;
                x->context->n_exchanges--;
        }
        free(x);
        return NULL;
}
DEFINE_CLEANUP(Exchange *, exchange_free)

void exchange_set_phase(Exchange *x, Phase phase, uint64_t timeout_usec) {
        x->phase = phase;
        /* these fail only for arguments that are wrong */
        (void) sd_event_source_set_time_relative(x->deadline, timeout_usec);
        (void) sd_event_source_set_enabled(x->deadline, SD_EVENT_ONESHOT);
}

/* ---- refusals ---- */

static const char *status_text(unsigned status) {
        switch (status) {
        case 200: /* a refusal in a protocol that HTTP carries */
                return "OK";
        case 400:
                return "Bad Request";
        case 402:
                return "Payment Required";
        case 403:
                return "Forbidden";
        case 413:
                return "Content Too Large";
        case 415:
                return "Unsupported Media Type";
        case 417:
                return "Expectation Failed";
        case 421:
                return "Misdirected Request";
        case 422:
                return "Unprocessable Content";
        case 429:
                return "Too Many Requests";
        case 502:
                return "Bad Gateway";
        case 503:
                return "Service Unavailable";
        default:
                return "Gateway Timeout";
        }
}

int exchange_refuse(Exchange *x, unsigned status, const char *reason, const char *message) {
        Refusal refusal;

        refusal_set(&refusal, status, reason, "default", message);
        return exchange_refuse_as(x, &refusal);
}

static int write_answer(Exchange *x, const Refusal *refusal, const RefusalAnswer *a, Buffer *out) {
        _cleanup_free_ char *head = NULL;
        int r;

        head = text_format("HTTP/1.1 %u %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-cache\r\n"
                           "Anchorhold-Reason: %s\r\nAnchorhold-Rule: %s\r\n%sConnection: close\r\n\r\n",
                           a->status, status_text(a->status), a->type, buffer_size(&a->body), refusal->reason, refusal->rule,
                           refusal->final ? "X-Should-Retry: false\r\n" : "");
        r = head ? buffer_append_text(out, head) : -ENOMEM;
        return r < 0 || x->head_request ? r : buffer_append(out, buffer_data(&a->body), buffer_size(&a->body));
}

int exchange_refuse_as(Exchange *x, const Refusal *refusal) {
        RefusalAnswer answer;
        bool drains;
        int r;

        r = request_answer_refusal(&x->request, refusal, &answer);
        request_finish(&x->request, false);
        exchange_drop_origin(x);
        if (r >= 0 && x->opening)
                r = exchange_postpone(x, refusal);
        else if (r >= 0 && x->head_passed)
                r = -ECONNABORTED;
        else if (r >= 0) {
                drains = answer.late && !x->request_over;
                r = write_answer(x, refusal, &answer, drains ? &x->late : &x->to_guest);
                if (r >= 0) {
                        exchange_set_phase(x, drains ? PHASE_DRAIN : PHASE_FLUSH, drains ? HOLD_USEC : 10 * SECOND_USEC);
                        r = 1;
                }
        }
        buffer_done(&answer.body);
        return r;
}

int exchange_deny(Exchange *x, unsigned status, const char *reason, const char *where, const char *message) {
        Refusal refusal;

        request_deny(&x->request, http_reader_head(x->requests), status, reason, where, message, &refusal);
        return exchange_refuse_as(x, &refusal);
}

/* ---- phases ---- */

static int handshake_step(Exchange *x) {
        int r;

        r = tls_stream_handshake(x->guest);
        if (r < 0) {
                log_info("no TLS with the guest for %s: %s", x->name, tls_stream_error(x->guest));
                return r;
        }
        if (r == TLS_E_OFFER)
                return exchange_open_first(x);
        if (r == TLS_E_DONE && tls_stream_version(x->guest) == TLS_HTTP2)
                return exchange_begin_h2(x);
        if (r == TLS_E_DONE)
                exchange_set_phase(x, PHASE_HEAD, 30 * SECOND_USEC);
        return r;
}

/* The body comes first. Who waits to be asked for it is asked here: the origin hears of the request when that is judged. */
static int begin_hold(Exchange *x) {
        int r = 0;

        if (request_expects_continue(&x->request))
                r = buffer_append_text(&x->to_guest, "HTTP/1.1 100 Continue\r\n\r\n");
        exchange_set_phase(x, PHASE_HOLD, HOLD_USEC);
        return r < 0 ? r : 1;
}

static int judge_request(Exchange *x) {
        const HttpHead *h = http_reader_head(x->requests);
        Refusal refusal;
        int r;

        x->head_request = strcmp(h->method, "HEAD") == 0;
        x->guest_keeps_alive = h->keep_alive;
        x->request_over = x->head_passed = x->body_framed_as_chunks = false;

        if (x->postponed)
                return exchange_refuse_as(x, x->postponed);
        r = request_begin(&x->request, h, &refusal);
        if (r != 0)
                return r == REQUEST_E_REFUSED ? exchange_refuse_as(x, &refusal) : r;
        return request_holds_body(&x->request) ? begin_hold(x) : exchange_decide(x);
}

static int hold_step(Exchange *x) {
        const uint8_t *body;
        size_t used, body_size;
        HttpEvent event;
        Refusal refusal;
        int r, got;

        got = exchange_read_guest(x);
        if (got < 0)
                return got;
        if (got > 0)
                exchange_set_phase(x, PHASE_HOLD, HOLD_USEC);
        do {
                r = http_reader_feed(x->requests, buffer_data(&x->from_guest), buffer_size(&x->from_guest), &used, &event, &body, &body_size);
                if (r < 0)
                        return exchange_deny(x, 400, "bad-request", "body", http_reader_error(x->requests));
                x->request_over = event == HTTP_EVENT_END;
                if (event == HTTP_EVENT_BODY || x->request_over) {
                        r = request_hold_body(&x->request, body, event == HTTP_EVENT_BODY ? body_size : 0, x->request_over, &refusal);
                        buffer_consume(&x->from_guest, used);
                        if (r == REQUEST_E_HELD)
                                return exchange_decide(x);
                        if (r != 0)
                                return r == REQUEST_E_REFUSED ? exchange_refuse_as(x, &refusal) : r;
                } else
                        buffer_consume(&x->from_guest, used);
        } while (event != HTTP_EVENT_MORE && !x->request_over);

        if (x->request_over)
                return exchange_decide(x);
        return x->guest_ended ? -ECONNRESET : got;
}

static int head_step(Exchange *x) {
        const uint8_t *body;
        size_t used, body_size;
        HttpEvent event = HTTP_EVENT_MORE;
        int r;

        exchange_check_idle_origin(x);
        r = exchange_read_guest(x);
        if (r < 0)
                return r;

        while (buffer_size(&x->from_guest) > 0 && event == HTTP_EVENT_MORE) {
                int rc = http_reader_feed(x->requests, buffer_data(&x->from_guest), buffer_size(&x->from_guest), &used,
                                          &event, &body, &body_size);

                if (rc == -EMSGSIZE)
                        return exchange_deny(x, 400, "head-too-large", NULL, http_reader_error(x->requests));
                if (rc == -EBADMSG)
                        return exchange_deny(x, 400, "bad-request", NULL, http_reader_error(x->requests));
                if (rc < 0)
                        return rc;
                buffer_consume(&x->from_guest, used);
                r = 1;
        }
        if (event == HTTP_EVENT_HEAD) {
                if (x->origin) /* its end may have come in this very turn of the loop */
                        tls_stream_look(x->origin);
                exchange_check_idle_origin(x);
                return judge_request(x);
        }
        return x->guest_ended ? -ESHUTDOWN : r;
}

/* What the guest still sends of its request leads nowhere. */
static int drain_step(Exchange *x) {
        const uint8_t *body;
        size_t used, body_size;
        HttpEvent event;
        int r, got;

        got = exchange_read_guest(x);
        if (got < 0)
                return got;
        if (got > 0)
                exchange_set_phase(x, PHASE_DRAIN, HOLD_USEC);
        do {
                r = http_reader_feed(x->requests, buffer_data(&x->from_guest), buffer_size(&x->from_guest), &used, &event, &body, &body_size);
                if (r < 0)
                        return r;
                buffer_consume(&x->from_guest, used);
        } while (event != HTTP_EVENT_MORE && event != HTTP_EVENT_END);

        if (event != HTTP_EVENT_END)
                return x->guest_ended ? -ECONNRESET : got;
        x->request_over = true;
        r = buffer_append(&x->to_guest, buffer_data(&x->late), buffer_size(&x->late));
        buffer_done(&x->late);
        exchange_set_phase(x, PHASE_FLUSH, 10 * SECOND_USEC);
        return r < 0 ? r : 1;
}

static int flush_step(Exchange *x) {
        if (buffer_size(&x->to_guest) > 0)
                return 0;
        tls_stream_end(x->guest);
        exchange_set_phase(x, PHASE_LINGER, 2 * SECOND_USEC);
        return 1;
}

static int linger_step(Exchange *x) {
        int r;

        buffer_clear(&x->from_guest);
        r = exchange_read_guest(x);
        return x->guest_ended ? -ESHUTDOWN : r;
}

static int phase_step(Exchange *x) {
        switch (x->phase) {
        case PHASE_HANDSHAKE:
                return handshake_step(x);
        case PHASE_HEAD:
                return head_step(x);
        case PHASE_HOLD:
                return hold_step(x);
        case PHASE_DECIDE:
        case PHASE_CONNECT:
                return 0;
        case PHASE_SECURE:
                return exchange_secure_step(x);
        case PHASE_RELAY:
                return exchange_relay_step(x);
        case PHASE_WEBSOCKET:
                return exchange_websocket_step(x);
        case PHASE_H2:
                return exchange_h2_step(x);
        case PHASE_DRAIN:
                return drain_step(x);
        case PHASE_FLUSH:
                return flush_step(x);
        case PHASE_LINGER:
                return linger_step(x);
        }
        assert(false);
        return -EINVAL;
}

/* Does what is in the buffers flow? */
static bool is_flowing(const Exchange *x) {
        return x->phase == PHASE_RELAY || x->phase == PHASE_WEBSOCKET || x->phase == PHASE_H2;
}

static int round_of(Exchange *x) {
        bool progress = false;
        int r;

        r = exchange_flush(x->guest, &x->to_guest, NULL);
        if (r < 0)
                return r;
        progress = progress || r > 0;
        if (x->origin && is_flowing(x)) {
                r = exchange_flush(x->origin, &x->to_origin, &x->bytes_out);
                /* an origin that stops reading may still answer, or have answered already */
                if (r < 0)
                        buffer_clear(&x->to_origin);
                if (buffer_size(&x->to_origin) == 0 && request_is_leaving(&x->request)) {
                        buffer_done(&x->to_origin); /* it was as large as that body */
                        request_set_left(&x->request);
                }
                progress = progress || r > 0;
        }
        r = phase_step(x);
        if (r < 0)
                return r;
        return progress || r > 0;
}

/* A connection that waits needs no memory for what it carried. */
static void rest(Exchange *x) {
        Buffer *buffers[] = { &x->from_guest, &x->from_origin, &x->to_guest, &x->to_origin };

        for (size_t i = 0; i < ELEMENTSOF(buffers); i++)
                if (buffer_size(buffers[i]) == 0)
                        buffer_done(buffers[i]);
        http_reader_rest(x->requests);
        http_reader_rest(x->responses);
        masker_rest(x->request.mask);
        masker_rest(x->request.tripwire);
}

static int set_interest(Exchange *x) {
        bool read_guest, read_origin;
        int r;

        if (x->phase == PHASE_HEAD || x->phase == PHASE_H2)
                rest(x);

        switch (x->phase) {
        case PHASE_HEAD:
        case PHASE_H2:
        case PHASE_HOLD:
        case PHASE_DRAIN:
        case PHASE_LINGER:
                read_guest = !x->guest_ended;
                break;
        case PHASE_RELAY:
        case PHASE_WEBSOCKET:
                read_guest = !x->guest_ended && buffer_size(&x->from_guest) == 0 && buffer_size(&x->to_origin) < EXCHANGE_BACKLOG_MAX;
                break;
        default:
                read_guest = false;
        }
        r = tls_stream_want(x->guest, read_guest, buffer_size(&x->to_guest) > 0);
        if (r < 0 || !x->origin)
                return r;

        /* an idle connection is watched for its end */
        read_origin = x->phase == PHASE_HEAD || x->phase == PHASE_H2 || (is_flowing(x) && buffer_size(&x->to_guest) < EXCHANGE_BACKLOG_MAX);
        return tls_stream_want(x->origin, read_origin, is_flowing(x) && buffer_size(&x->to_origin) > 0);
}

void exchange_pump(Exchange *x) {
        int r = 1;

        for (unsigned i = 0; i < ROUNDS_MAX && r > 0; i++)
                r = round_of(x);
        if (r > 0) /* others want their turn */
                r = sd_event_source_set_enabled(x->again, SD_EVENT_ONESHOT);
        if (r >= 0)
                r = set_interest(x);
        if (r < 0) {
                log_debug("connection to %s from %s ended: %s", x->name, x->client, strerror(-r));
                exchange_free(x);
        }
}

void exchange_continue(Exchange *x, int r) {
        if (r >= 0)
                exchange_pump(x);
        else {
                log_debug("connection to %s from %s ended: %s", x->name, x->client, strerror(-r));
                exchange_free(x);
        }
}

/* ---- callbacks ---- */

static void exchange_on_guest(TlsStream *s, void *userdata) {
        exchange_pump(userdata);
}

static int exchange_on_again(sd_event_source *s, void *userdata) {
        exchange_pump(userdata);
        return 0;
}

static int exchange_on_deadline(sd_event_source *s, uint64_t usec, void *userdata) {
        Exchange *x = userdata;
        int r;

        switch (x->phase) {
        case PHASE_HANDSHAKE:
                log_info("no TLS with the guest for %s: not done after %llu seconds", x->name,
                         HANDSHAKE_USEC / SECOND_USEC);
                r = -ETIMEDOUT;
                break;
        case PHASE_DECIDE:
                r = exchange_refuse(x, 503, "unavailable", "The host did not decide in time.");
                break;
        case PHASE_CONNECT:
        case PHASE_SECURE:
        case PHASE_RELAY:
                r = exchange_refuse(x, 504, "origin-timeout", "The origin did not answer in time.");
                break;
        case PHASE_H2:
                r = exchange_h2_tick(x);
                break;
        case PHASE_HEAD:
                r = exchange_idle_tick(x);
                break;
        default:
                r = -ETIMEDOUT;
        }

        exchange_continue(x, r);
        return 0;
}

/* ---- start and end ---- */

static int make_parts(Exchange *x) {
        int r;

        r = http_reader_new(&x->requests, HTTP_KIND_REQUEST);
        if (r < 0)
                return r;
        r = request_init(&x->request, x->context, x->name, x->port, x->rule);
        if (r < 0)
                return r;
        r = sd_event_add_time_relative(x->context->event, &x->deadline, CLOCK_BOOTTIME, HANDSHAKE_USEC, 0,
                                       exchange_on_deadline, x);
        if (r < 0)
                return r;
        r = sd_event_add_defer(x->context->event, &x->again, exchange_on_again, x);
        if (r < 0)
                return r;
        /* from the loop, so that the owner sees no exchange vanish within exchange_start() */
        return sd_event_source_set_enabled(x->again, SD_EVENT_ONESHOT);
}

int exchange_start(ExchangeContext *c, int fd, const char *name, uint16_t port, const char *client, const char *rule) {
        _cleanup_(exchange_freep) Exchange *x = NULL;
        EVP_PKEY *key;
        X509 *cert;
        int r;

        if (c->n_exchanges >= EXCHANGES_MAX)
                return -EBUSY;
        if (!c->leaves)
                return -EACCES;
        r = leaf_maker_get(c->leaves, name, &cert, &key);
        if (r < 0)
                return r;

        x = calloc(1, sizeof(*x));
        if (!x)
                return -ENOMEM;
        x->context = c;
        x->port = port;
        x->name = strdup(name);
        x->client = strndup(client, EXCHANGE_TEXT_MAX);
        x->rule = strndup(rule, EXCHANGE_TEXT_MAX);
        if (!x->name || !x->client || !x->rule)
                return -ENOMEM;

        r = make_parts(x);
        if (r < 0)
                return r;
        r = io_set_nonblock(fd, true);
        if (r < 0)
                return r;
        r = tls_stream_accept(&x->guest, c->event, c->tls, fd, name, cert, key, exchange_on_guest, x);
        if (r < 0)
                return r;

        x->next = c->exchanges;
        x->prev = &c->exchanges;
        if (x->next)
                x->next->prev = &x->next;
        c->exchanges = x;
        c->n_exchanges++;
        TAKE_PTR(x);
        return 0;
}

void exchange_close_all(ExchangeContext *c) {
        while (c->exchanges)
                exchange_free(c->exchanges);
        c->answers = mask_needles_unref(c->answers);
        c->beginnings = masker_free(c->beginnings);
        c->strays = mask_needles_unref(c->strays);
}

void exchange_close_grant(ExchangeContext *c, int64_t grant) {
        for (Exchange *x = c->exchanges, *next; x; x = next) {
                next = x->next;
                if (x->grant == grant)
                        exchange_free(x);
        }
}

void exchange_cut_stream(ExchangeContext *c, int64_t grant, int32_t stream) {
        for (Exchange *x = c->exchanges; x; x = x->next)
                if (x->grant == grant && x->pair) {
                        exchange_continue(x, h2_pair_cut(x->pair, stream));
                        return;
                }
}

void exchange_credential_changed(ExchangeContext *c, const InjectCredential *credential) {
        c->generation++;
        for (Exchange *x = c->exchanges, *next; x; x = next) {
                next = x->next;
                if (inject_credential_covers_host(credential, x->name, x->port))
                        exchange_free(x);
        }
}
