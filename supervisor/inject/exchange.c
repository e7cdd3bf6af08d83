/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * An exchange is what this process exists for, and the one place where bytes of the guest and real secrets meet:
 *
 *   guest ═TLS═ request reader → judged → head rewritten → ═TLS═ origin
 *   guest ═TLS═ head and body masked ← response reader ←   ═TLS═ origin
 *
 * What each request must pass, in this order: it parses strictly; its Host is the name that the connection was opened for; its target
 * means one path; its sentinels are in their places; egressd allows name, method and path; the audit log has
 * that a credential is used. Only then a connection to the origin is opened (or the last one used again) and the
 * secret written, into a buffer that is zeroed as it empties.
 *
 * One request at a time: the next one is read when the last response is through, and bytes that come earlier end
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
#include <stdio.h>
#include <string.h>

#include "egress/agreement.h"
#include "inject/exchange-private.h"
#include "policy/policy.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

enum { ROUNDS_MAX = 16 };

static Exchange *exchange_free(Exchange *x) {
        if (!x)
                return NULL;

        exchange_finish_usage(x, false);
        exchange_drop_origin(x);
        x->guest = tls_stream_free(x->guest);
        x->deadline = sd_event_source_disable_unref(x->deadline);
        x->again = sd_event_source_disable_unref(x->again);
        http_reader_free(x->requests);
        masker_free(x->mask);
        masker_free(x->tripwire);
        buffer_done(&x->from_guest);
        buffer_done(&x->to_guest);
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
        case 400:
                return "Bad Request";
        case 403:
                return "Forbidden";
        case 421:
                return "Misdirected Request";
        case 431:
                return "Request Header Fields Too Large";
        case 502:
                return "Bad Gateway";
        case 503:
                return "Service Unavailable";
        default:
                return "Gateway Timeout";
        }
}

int exchange_refuse(Exchange *x, unsigned status, const char *reason, const char *message) {
        return exchange_refuse_by(x, status, reason, "default", message);
}

int exchange_refuse_by(Exchange *x, unsigned status, const char *reason, const char *rule, const char *message) {
        _cleanup_json_ json_t *body = NULL;
        _cleanup_free_ char *text = NULL, *head = NULL;
        int r;

        exchange_finish_usage(x, false);
        exchange_drop_origin(x);
        if (x->head_passed)
                return -ECONNABORTED;

        /* the form that clients of the model APIs show to their user */
        body = json_pack("{s:s, s:{s:s, s:s, s:s, s:s}}", "type", "error", "error", "type", "anchorhold_refused", "reason", reason, "rule", rule,
                         "message", message);
        text = body ? json_dumps(body, JSON_COMPACT) : NULL;
        if (!text)
                return -ENOMEM;
        head = text_format("HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                           "Anchorhold-Reason: %s\r\nAnchorhold-Rule: %s\r\nConnection: close\r\n\r\n",
                           status, status_text(status), strlen(text), reason, rule);
        if (!head)
                return -ENOMEM;

        r = buffer_append_text(&x->to_guest, head);
        if (r >= 0 && !x->head_request)
                r = buffer_append_text(&x->to_guest, text);
        if (r < 0)
                return r;
        exchange_set_phase(x, PHASE_FLUSH, 10 * SECOND_USEC);
        return 1;
}

char *exchange_record_path(const HttpHead *h) {
        size_t n = h->target ? strcspn(h->target, "?") : 0;

        return text_escape(h->target ? h->target : "", n < 256 ? n : 256, false);
}

static json_t *describe_request(const Exchange *x, const char *reason, const char *where) {
        const HttpHead *h = http_reader_head(x->requests);
        _cleanup_free_ char *path = exchange_record_path(h), *safe = NULL;

        safe = where ? text_escape(where, strnlen(where, 64), false) : NULL;
        return json_pack("{s:s, s:i, s:s, s:s?, s:s?, s:s?}", "name", x->name, "port", (int) x->port, "reason", reason,
                         "method", h->method, "path", path, "where", safe);
}

int exchange_deny(Exchange *x, unsigned status, const char *reason, const char *where, const char *message) {
        _cleanup_free_ char *key = text_format("%s %s %u", reason, x->name, x->port);

        log_info("refused a request for %s: %s", x->name, reason);
        if (key)
                notes_add(x->context->notes, "conn.deny", key, describe_request(x, reason, where));
        return exchange_refuse(x, status, reason, message);
}

int exchange_misuse(Exchange *x, const InjectCredential *credential, const char *where) {
        _cleanup_free_ char *key = text_format("%s %s %u", credential->source->name, x->name, x->port);
        json_t *data = describe_request(x, "misuse", where);

        log_warning("blocked the sentinel of credential %s on its way to %s", credential->source->name, x->name);
        if (data)
                (void) json_object_set_new(data, "credential", json_string(credential->source->name));
        if (key)
                notes_add(x->context->notes, "credential.misuse", key, data);
        else
                json_unref(data);
        return exchange_refuse(x, 403, "credential-misuse",
                               "This request carries a credential to where it does not belong. It was blocked and recorded.");
}

/* ---- phases ---- */

static int handshake_step(Exchange *x) {
        int r;

        r = tls_stream_handshake(x->guest);
        if (r < 0) {
                log_info("no TLS with the guest for %s: %s", x->name, tls_stream_error(x->guest));
                return r;
        }
        if (r > 0)
                exchange_set_phase(x, PHASE_HEAD, 30 * SECOND_USEC);
        return r;
}

/* Is the Host of the request the name that the connection is for, with its port or none? */
static bool host_agrees(const Exchange *x, const HttpHead *h) {
        const char *value = NULL, *colon;
        char name[254];

        if (http_head_find(h, "host", &value) != 1)
                return false;
        colon = strrchr(value, ':');
        if (colon) {
                _cleanup_free_ char *expected = text_format("%u", x->port), *bare = strndup(value, (size_t) (colon - value));

                if (!expected || !bare || strcmp(colon + 1, expected) != 0 || egress_normalise_name(bare, name) < 0)
                        return false;
        } else if (egress_normalise_name(value, name) < 0)
                return false;
        return strcmp(name, x->name) == 0;
}

static void begin_metering(Exchange *x, const HttpHead *h) {
        for (size_t i = 0; i < x->context->n_credentials; i++) {
                const InjectCredential *c = &x->context->credentials[i];

                if (c->source->provider && usage_is_call(c->source->provider, x->name, h->method, h->target))
                        x->metered = c;
        }
}

static int judge_request(Exchange *x) {
        const HttpHead *h = http_reader_head(x->requests);
        const SubstitutePlan *plan = &x->plan;

        x->started_usec = time_boottime();
        x->head_request = strcmp(h->method, "HEAD") == 0;
        x->guest_keeps_alive = h->keep_alive;
        x->request_over = x->head_passed = x->body_framed_as_chunks = x->sent = false;
        x->status = 0;
        x->metered = NULL;

        if (!host_agrees(x, h))
                return exchange_deny(x, 421, "fronting", "Host", "The request's Host is not the name that this connection was opened for.");
        if (!http_target_is_plain(h->target))
                return exchange_deny(x, 400, "path", "target", "The request's target is not in origin form, or has dot segments.");

        for (size_t i = 0; i < h->n_fields; i++)
                if (agreement_field_overrides(h->fields[i].name))
                        return exchange_deny(x, 400, "bad-request", h->fields[i].name, "A header field names another method or target than the request.");

        substitute_plan(x->context->credentials, x->context->n_credentials, x->name, x->port, h, &x->plan);
        switch (plan->verdict) {
        case SUBSTITUTE_MISUSE:
                return exchange_misuse(x, plan->credential, plan->where);
        case SUBSTITUTE_FOREIGN:
                return exchange_deny(x, 403, "foreign-credential", plan->where, "This host may be used with this run's own credential only.");
        case SUBSTITUTE_NOT_HERE:
                return exchange_deny(x, 403, "credential-scope", plan->where, "The credential may not be used with this method and path.");
        case SUBSTITUTE_REVOKED:
                return exchange_deny(x, 403, "credential-revoked", plan->where, "The credential was revoked.");
        case SUBSTITUTE_PLAIN:
        case SUBSTITUTE_REPLACE:
                break;
        }

        begin_metering(x, h);
        return exchange_decide(x);
}

/* Between requests an origin has nothing to say: whatever it does ends that connection. */
static void check_idle_origin(Exchange *x) {
        uint8_t byte;

        if (x->origin && tls_stream_read(x->origin, &byte, 1) != -EAGAIN)
                exchange_drop_origin(x);
}

static int head_step(Exchange *x) {
        const uint8_t *body;
        size_t used, body_size;
        HttpEvent event = HTTP_EVENT_MORE;
        int r;

        check_idle_origin(x);
        r = exchange_read_guest(x);
        if (r < 0)
                return r;

        while (buffer_size(&x->from_guest) > 0 && event == HTTP_EVENT_MORE) {
                int rc = http_reader_feed(x->requests, buffer_data(&x->from_guest), buffer_size(&x->from_guest), &used,
                                          &event, &body, &body_size);

                if (rc == -EMSGSIZE)
                        return exchange_deny(x, 431, "head-too-large", NULL, http_reader_error(x->requests));
                if (rc == -EBADMSG)
                        return exchange_deny(x, 400, "bad-request", NULL, http_reader_error(x->requests));
                if (rc < 0)
                        return rc;
                buffer_consume(&x->from_guest, used);
                r = 1;
        }
        if (event == HTTP_EVENT_HEAD)
                return judge_request(x);
        return x->guest_ended ? -ESHUTDOWN : r;
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
        case PHASE_DECIDE:
        case PHASE_RECORD:
        case PHASE_CONNECT:
                return 0;
        case PHASE_SECURE:
                return exchange_secure_step(x);
        case PHASE_RELAY:
                return exchange_relay_step(x);
        case PHASE_FLUSH:
                return flush_step(x);
        case PHASE_LINGER:
                return linger_step(x);
        }
        assert(false);
        return -EINVAL;
}

static int round_of(Exchange *x) {
        bool progress = false;
        int r;

        r = exchange_flush(x->guest, &x->to_guest, NULL);
        if (r < 0)
                return r;
        progress = progress || r > 0;
        if (x->origin && x->phase == PHASE_RELAY) {
                r = exchange_flush(x->origin, &x->to_origin, &x->bytes_out);
                /* an origin that stops reading may still answer, or have answered already */
                if (r < 0)
                        buffer_clear(&x->to_origin);
                progress = progress || r > 0;
        }
        r = phase_step(x);
        if (r < 0)
                return r;
        return progress || r > 0;
}

static int set_interest(Exchange *x) {
        bool read_guest, read_origin;
        int r;

        switch (x->phase) {
        case PHASE_HEAD:
        case PHASE_LINGER:
                read_guest = !x->guest_ended;
                break;
        case PHASE_RELAY:
                read_guest = !x->guest_ended && buffer_size(&x->from_guest) == 0 && buffer_size(&x->to_origin) < EXCHANGE_BACKLOG_MAX;
                break;
        default:
                read_guest = false;
        }
        r = tls_stream_want(x->guest, read_guest, buffer_size(&x->to_guest) > 0);
        if (r < 0 || !x->origin)
                return r;

        /* an idle connection is watched for its end */
        read_origin = x->phase == PHASE_HEAD || (x->phase == PHASE_RELAY && buffer_size(&x->to_guest) < EXCHANGE_BACKLOG_MAX);
        return tls_stream_want(x->origin, read_origin, x->phase == PHASE_RELAY && buffer_size(&x->to_origin) > 0);
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
        case PHASE_DECIDE:
        case PHASE_RECORD:
                r = exchange_refuse(x, 503, "unavailable", "The host did not decide in time.");
                break;
        case PHASE_CONNECT:
        case PHASE_SECURE:
        case PHASE_RELAY:
                r = exchange_refuse(x, 504, "origin-timeout", "The origin did not answer in time.");
                break;
        default:
                r = -ETIMEDOUT;
        }

        exchange_continue(x, r);
        return 0;
}

/* ---- start and end ---- */

static int make_maskers(Exchange *x) {
        MaskPair secrets[RUN_CREDENTIALS_MAX], sentinels[RUN_CREDENTIALS_MAX];
        size_t n_secrets = 0, n_sentinels = 0;
        int r;

        for (size_t i = 0; i < x->context->n_credentials; i++) {
                const InjectCredential *c = &x->context->credentials[i];
                const char *sentinel = c->source->sentinel;

                if (c->source->secret) {
                        SecretView v = secret_view(c->source->secret);

                        secrets[n_secrets++] = (MaskPair) { v.bytes, v.size, sentinel, strlen(sentinel) };
                }
                if (!inject_credential_covers_host(c, x->name, x->port))
                        sentinels[n_sentinels++] = (MaskPair) { sentinel, strlen(sentinel), "", 0 };
        }

        r = masker_new(&x->mask, secrets, n_secrets);
        return r < 0 ? r : masker_new(&x->tripwire, sentinels, n_sentinels);
}

static int make_timers(Exchange *x) {
        int r;

        r = sd_event_add_time_relative(x->context->event, &x->deadline, CLOCK_BOOTTIME, 10 * SECOND_USEC, 0, exchange_on_deadline, x);
        if (r < 0)
                return r;
        r = sd_event_add_defer(x->context->event, &x->again, exchange_on_again, x);
        if (r < 0)
                return r;
        /* from the loop, so that the owner sees no exchange vanish within exchange_start() */
        return sd_event_source_set_enabled(x->again, SD_EVENT_ONESHOT);
}

int exchange_start(ExchangeContext *c, int fd, const char *name, uint16_t port, const char *client) {
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
        (void) snprintf(x->name, sizeof(x->name), "%s", name);
        (void) snprintf(x->client, sizeof(x->client), "%s", client);

        if ((r = http_reader_new(&x->requests, HTTP_KIND_REQUEST)) < 0 || (r = make_maskers(x)) < 0 || (r = make_timers(x)) < 0)
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
}

void exchange_close_grant(ExchangeContext *c, int64_t grant) {
        for (Exchange *x = c->exchanges, *next; x; x = next) {
                next = x->next;
                if (x->grant == grant)
                        exchange_free(x);
        }
}

void exchange_close_credential(ExchangeContext *c, const InjectCredential *credential) {
        for (Exchange *x = c->exchanges, *next; x; x = next) {
                bool carries = false;

                next = x->next;
                for (size_t i = 0; i < x->plan.n_items; i++)
                        carries = carries || x->plan.items[i].credential == credential;
                if (carries)
                        exchange_free(x);
        }
}
