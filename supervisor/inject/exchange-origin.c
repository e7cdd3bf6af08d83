/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* From a request that was judged to a verified connection that may carry it. */

#include <errno.h>
#include <string.h>

#include "inject/exchange-private.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define DECIDE_USEC (20 * SECOND_USEC)
#define RECORD_USEC (10 * SECOND_USEC)
#define CONNECT_USEC (15 * SECOND_USEC) /* longer than the dial itself takes */
#define SECURE_USEC (10 * SECOND_USEC)
/* An idle connection is used again only while the origin can be expected to hold it open as well. */
#define IDLE_USEC (15 * SECOND_USEC)

static void drop_addresses(Exchange *x) {
        for (size_t i = 0; i < x->n_addresses; i++)
                free(x->addresses[i]);
        x->n_addresses = 0;
}

/* Whatever there is of it, also a question, a record or an attempt under way, and the grant. */
void exchange_drop_origin(Exchange *x) {
        x->question = egress_question_free(x->question);
        if (x->record)
                x->record->exchange = NULL;
        x->record = NULL;
        x->dial = dial_free(x->dial);
        drop_addresses(x);
        x->origin = tls_stream_free(x->origin);
        x->responses = http_reader_free(x->responses);
        buffer_done(&x->from_origin);
        buffer_done(&x->to_origin);
        if (x->grant > 0)
                egress_link_done(x->context->egress, x->grant, x->bytes_in, x->bytes_out,
                                 x->opened_usec ? time_boottime() - x->opened_usec : 0);
        x->grant = 0;
        x->opened_usec = x->idle_usec = x->bytes_in = x->bytes_out = 0;
}

/* ---- TCP and TLS ---- */

static void exchange_on_origin(TlsStream *s, void *userdata) {
        exchange_pump(userdata);
}

/* Takes fd over. */
static int start_tls(Exchange *x, int connected) {
        _cleanup_fd_ int fd = connected;
        int r;

        r = tls_stream_connect(&x->origin, x->context->event, x->context->tls, fd, x->name, exchange_on_origin, x);
        if (r < 0)
                return exchange_refuse(x, 502, "unreachable", "No connection to the origin could be made.");
        TAKE_FD(fd);
        x->opened_usec = time_boottime();
        exchange_set_phase(x, PHASE_SECURE, SECURE_USEC);
        return 1;
}

static void exchange_on_dialled(int fd, const char *failures, void *userdata) {
        Exchange *x = userdata;
        int r;

        x->dial = dial_free(x->dial);
        if (fd < 0) {
                log_info("cannot connect to %s: %s", x->name, failures[0] ? failures : strerror(-fd));
                r = exchange_refuse(x, 502, "unreachable", "No connection to the origin could be made.");
        } else
                r = start_tls(x, fd);
        exchange_continue(x, r);
}

static int begin_connect(Exchange *x) {
        int r;

        r = dial_new(&x->dial, x->context->event, (const char *const *) x->addresses, x->n_addresses, x->port, exchange_on_dialled, x);
        if (r == -ENOMEM)
                return r;
        if (r < 0)
                return exchange_refuse(x, 502, "unreachable", "No connection to the origin could be made.");
        exchange_set_phase(x, PHASE_CONNECT, CONNECT_USEC);
        return 1;
}

int exchange_secure_step(Exchange *x) {
        _cleanup_free_ char *message = NULL;
        int r;

        r = tls_stream_handshake(x->origin);
        if (r == 0)
                return 0;
        if (r > 0) {
                r = http_reader_new(&x->responses, HTTP_KIND_RESPONSE);
                return r < 0 ? r : exchange_begin_relay(x);
        }

        log_warning("no TLS with %s: %s", x->name, tls_stream_error(x->origin));
        message = text_format("TLS with the origin failed: %s", tls_stream_error(x->origin));
        if (!message)
                return -ENOMEM;
        return r == -EKEYREJECTED ? exchange_deny(x, 502, "origin-certificate", NULL, message)
                                  : exchange_refuse(x, 502, "origin-tls", message);
}

/* ---- the audit log, before a credential leaves ---- */

static int go_on(Exchange *x) {
        if (x->origin)
                return exchange_begin_relay(x);
        return begin_connect(x);
}

static int record_use(Exchange *x);

static void exchange_on_recorded(int r, void *userdata) {
        _cleanup_free_ RecordWait *wait = userdata;
        Exchange *x = wait->exchange;

        if (!x)
                return;
        x->record = NULL;
        if (r < 0) {
                log_error_errno(r, "the use of a credential could not be recorded: it is not used");
                r = exchange_refuse(x, 503, "unavailable", "The audit log did not take the record.");
        } else {
                x->context->used[wait->credential] = true;
                r = record_use(x); /* a request may carry more than one */
        }
        exchange_continue(x, r);
}

/* The first credential of the plan whose use is not in the log yet, or -1. */
static ssize_t find_unrecorded(const Exchange *x) {
        for (size_t i = 0; i < x->plan.n_items; i++) {
                size_t k = (size_t) (x->plan.items[i].credential - x->context->credentials);

                if (!x->context->used[k])
                        return (ssize_t) k;
        }
        return -1;
}

static int record_use(Exchange *x) {
        const HttpHead *h = http_reader_head(x->requests);
        ssize_t k = find_unrecorded(x);
        _cleanup_free_ char *path = NULL;
        RecordWait *wait;
        int r;

        if (k < 0)
                return go_on(x);

        path = exchange_record_path(h);
        wait = malloc(sizeof(*wait));
        if (!wait || !path) {
                free(wait);
                return -ENOMEM;
        }
        *wait = (RecordWait) { .exchange = x, .credential = (size_t) k };

        r = audit_append(x->context->audit, "credential.used", x->context->run, NULL, NULL,
                         json_pack("{s:s, s:s, s:i, s:s, s:s}", "credential", x->context->credentials[k].source->name,
                                   "name", x->name, "port", (int) x->port, "method", h->method, "path", path),
                         exchange_on_recorded, wait);
        if (r < 0) {
                free(wait);
                return exchange_refuse(x, 503, "unavailable", "The audit log did not take the record.");
        }
        x->record = wait;
        exchange_set_phase(x, PHASE_RECORD, RECORD_USEC);
        return 1;
}

/* ---- egressd ---- */

static int take_answer(Exchange *x, const EgressAnswer *a) {
        bool again = x->origin;

        if (!a->pass) {
                _cleanup_free_ char *message = text_format("Not allowed by policy (%s, %s).", a->reason, a->rule);

                if (!message)
                        return -ENOMEM;
                return strcmp(a->reason, "unavailable") == 0 ? exchange_refuse(x, 503, a->reason, "The host did not decide.")
                                                             : exchange_refuse_by(x, 403, a->reason, a->rule, message);
        }

        if (again) { /* the question was about the connection at hand */
                if (a->grant > 0 && a->grant != x->grant)
                        egress_link_done(x->context->egress, a->grant, 0, 0, 0);
                return record_use(x);
        }

        x->grant = a->grant;
        for (size_t i = 0; i < a->n_addresses; i++) {
                x->addresses[i] = strdup(a->addresses[i]);
                if (!x->addresses[i])
                        return -ENOMEM;
                x->n_addresses = i + 1;
        }
        return record_use(x);
}

static void exchange_on_answer(const EgressAnswer *a, void *userdata) {
        Exchange *x = userdata;
        int r;

        x->question = NULL;
        r = take_answer(x, a);
        exchange_continue(x, r);
}

int exchange_decide(Exchange *x) {
        const HttpHead *h = http_reader_head(x->requests);
        int r;

        if (x->origin && time_boottime() - x->idle_usec > IDLE_USEC)
                exchange_drop_origin(x);

        r = egress_link_ask(x->context->egress, x->name, x->port, h->method, h->target, x->origin ? x->grant : 0,
                            exchange_on_answer, x, &x->question);
        if (r == -ENOTCONN || r == -EBUSY)
                return exchange_refuse(x, 503, "unavailable", "The host decides nothing at the moment.");
        if (r < 0)
                return r;
        exchange_set_phase(x, PHASE_DECIDE, DECIDE_USEC);
        return 1;
}
