/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* From a request that was judged to a verified connection that may carry it, and what becomes of that between two requests. */

#include <errno.h>
#include <string.h>

#include "inject/exchange-private.h"
#include "util/log.h"
#include "util/text.h"

#define DECIDE_USEC (30 * SECOND_USEC) /* of egressd, then of the audit log */
#define CONNECT_USEC (15 * SECOND_USEC) /* longer than the dial itself takes */
#define SECURE_USEC (10 * SECOND_USEC)

static void drop_addresses(Exchange *x) {
        for (size_t i = 0; i < x->n_addresses; i++)
                free(x->addresses[i]);
        x->n_addresses = 0;
}

/* Whatever there is of it, also a question or an attempt under way, and the grant. */
void exchange_drop_origin(Exchange *x) {
        x->question = egress_question_free(x->question);
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
        x->covered = false;
        x->opened_usec = x->idle_usec = x->bytes_in = x->bytes_out = 0;
}

/* ---- between two requests ---- */

/* Between two requests the connection to the origin goes first, whoever ends it. The guest's stays as long as it may, from
 * when both began to wait. */
static void outlast_origin(Exchange *x) {
        uint64_t waited = time_boottime() - x->idle_usec;

        exchange_drop_origin(x);
        exchange_set_phase(x, PHASE_HEAD, waited < GUEST_IDLE_USEC ? GUEST_IDLE_USEC - waited : 0);
}

void exchange_check_idle_origin(Exchange *x) {
        uint8_t byte;

        if (!x->origin || tls_stream_read(x->origin, &byte, 1) == -EAGAIN)
                return;
        if (x->fresh) /* the guest's first request is awaited, as if there had been none */
                exchange_drop_origin(x);
        else
                outlast_origin(x);
}

/* The origin's connection has half of the memory, and a grant. One that was opened for the guest's handshake and has carried
 * nothing ends with the guest's. */
int exchange_idle_tick(Exchange *x) {
        if (!x->origin || x->fresh)
                return -ETIMEDOUT;
        outlast_origin(x);
        return 0;
}

/* ---- TCP and TLS ---- */

static void exchange_on_origin(TlsStream *s, void *userdata) {
        exchange_pump(userdata);
}

/* What carries one credential and what carries another have no session in common. */
static char *session_key(const Exchange *x) {
        return text_format("%s %u %llx", x->name, x->port, (unsigned long long) x->carried);
}

int exchange_settle_sessions(Exchange *x) {
        _cleanup_free_ char *key = session_key(x);

        return key ? tls_stream_settle_sessions(x->origin, key) : -ENOMEM;
}

/* Takes fd over. */
static int start_tls(Exchange *x, int connected) {
        _cleanup_fd_ int fd = connected;
        _cleanup_free_ char *key = session_key(x);
        int r;

        if (!key)
                return -ENOMEM;
        r = tls_stream_connect(&x->origin, x->context->event, x->context->tls, fd, x->name, key,
                               x->opening ? tls_stream_offer(x->guest) : TLS_HTTP1, exchange_on_origin, x);
        if (r < 0)
                return exchange_refuse(x, 502, "unreachable", "No connection to the origin could be made.");
        TAKE_FD(fd);
        if (x->opening)
                tls_stream_postpone_sessions(x->origin);
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

int exchange_begin_connect(Exchange *x) {
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
                if (r < 0)
                        return r;
                return x->opening ? exchange_opened(x) : exchange_begin_relay(x);
        }

        log_warning("no TLS with %s: %s", x->name, tls_stream_error(x->origin));
        message = text_format("TLS with the origin failed: %s", tls_stream_error(x->origin));
        if (!message)
                return -ENOMEM;
        return r == -EKEYREJECTED ? exchange_deny(x, 502, "origin-certificate", NULL, message)
                                  : exchange_refuse(x, 502, "origin-tls", message);
}

/* ---- the decision ---- */

int exchange_on_granted(const EgressAnswer *a, void *userdata) {
        Exchange *x = userdata;

        if (x->origin) { /* the question was about the connection at hand */
                if (a->grant > 0 && a->grant != x->grant)
                        egress_link_done(x->context->egress, a->grant, 0, 0, 0);
                return 0;
        }

        x->grant = a->grant;
        x->covered = a->covers;
        for (size_t i = 0; i < a->n_addresses; i++) {
                x->addresses[i] = strdup(a->addresses[i]);
                if (!x->addresses[i])
                        return -ENOMEM;
                x->n_addresses = i + 1;
        }
        return 0;
}

static void exchange_on_cleared(int r, const Refusal *refusal, void *userdata) {
        Exchange *x = userdata;

        if (r == REQUEST_E_REFUSED)
                r = exchange_refuse_as(x, refusal);
        else if (r == 0)
                r = x->origin ? exchange_begin_relay(x) : exchange_begin_connect(x);
        exchange_continue(x, r);
}

int exchange_decide(Exchange *x) {
        EgressWithin within = {};
        uint64_t carries = request_carried(&x->request);
        Refusal refusal;
        int r;

        if (x->origin && (time_boottime() - x->idle_usec > ORIGIN_IDLE_USEC || (!x->fresh && carries != x->carried)))
                exchange_drop_origin(x);
        x->carried = carries;
        r = x->origin && x->fresh ? exchange_settle_sessions(x) : 0;
        x->fresh = false;
        if (r < 0)
                return r;

        within.grant = x->grant;
        r = request_clear(&x->request, x->origin ? &within : NULL, x->covered, exchange_on_granted, exchange_on_cleared, x, &refusal);
        if (r == REQUEST_E_REFUSED)
                return exchange_refuse_as(x, &refusal);
        if (r == REQUEST_E_CLEARED)
                return exchange_begin_relay(x);
        if (r < 0)
                return r;
        exchange_set_phase(x, PHASE_DECIDE, DECIDE_USEC);
        return 1;
}
