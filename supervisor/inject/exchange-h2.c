/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A guest that offers HTTP/2. Between two HTTP versions nothing is translated: so before the guest is told what this connection speaks, the
 * connection to the origin is opened, offered what the guest offers, and asked:
 *
 *   the guest's first message → egressd grants a connection to the name → TCP → TLS with the origin → the guest's handshake goes on,
 *   with what the origin chose: HTTP/2 (h2-pair.c has the streams), or HTTP/1.1 with the connection at hand (exchange.c has the rest)
 *
 * That decision is about the connection; each request is decided by itself, within its grant. If there is no origin to be had, the
 * guest's handshake is finished nevertheless, and its first request learns why.
 */

#include <errno.h>
#include <stdlib.h>

#include "inject/exchange-private.h"
#include "util/log.h"
#include "util/text.h"

#define DECIDE_USEC (20 * SECOND_USEC)
#define TICK_USEC (2 * SECOND_USEC)

/* ---- which version ---- */

static int answer_hello(Exchange *x, unsigned version) {
        x->opening = false;
        tls_stream_choose(x->guest, version);
        exchange_set_phase(x, PHASE_HANDSHAKE, HANDSHAKE_USEC);
        return 1;
}

/* The refusal waits for the first request. */
int exchange_postpone(Exchange *x, const Refusal *refusal) {
        x->postponed = malloc(sizeof(*x->postponed));
        if (!x->postponed)
                return -ENOMEM;
        *x->postponed = *refusal;
        return answer_hello(x, tls_stream_offer(x->guest) & TLS_HTTP1 ? TLS_HTTP1 : TLS_HTTP2);
}

int exchange_opened(Exchange *x) {
        unsigned version = tls_stream_version(x->origin);

        if (!(version & tls_stream_offer(x->guest)))
                return exchange_deny(x, 502, "origin-version", NULL, "The origin does not speak HTTP/2, and this client offers nothing else.");
        x->idle_usec = time_boottime();
        x->fresh = true;
        return answer_hello(x, version);
}

static void exchange_on_connection_decided(const EgressAnswer *a, void *userdata) {
        Exchange *x = userdata;
        Refusal refusal;
        int r;

        x->question = NULL;
        if (request_read_answer(a, &refusal) == REQUEST_E_REFUSED)
                r = exchange_refuse_as(x, &refusal);
        else {
                r = exchange_on_granted(a, x);
                if (r >= 0)
                        r = exchange_begin_connect(x);
        }
        exchange_continue(x, r);
}

int exchange_open_first(Exchange *x) {
        int r;

        x->opening = true;
        r = egress_link_ask(x->context->egress, x->name, x->port, NULL, NULL, false, NULL, exchange_on_connection_decided, x, &x->question);
        if (r == -ENOTCONN || r == -EBUSY)
                return exchange_refuse(x, 503, "unavailable", "The host decides nothing at the moment.");
        if (r < 0)
                return r;
        exchange_set_phase(x, PHASE_DECIDE, DECIDE_USEC);
        return 1;
}

/* ---- HTTP/2 ---- */

static void exchange_on_wake(void *userdata) {
        exchange_pump(userdata);
}

int exchange_begin_h2(Exchange *x) {
        const H2Origin origin = { x->name, x->rule, x->port, x->grant, x->covered, x->postponed };
        int r;

        r = h2_pair_new(&x->pair, x->context, &origin, exchange_on_wake, x);
        if (r < 0)
                return r;
        exchange_set_phase(x, PHASE_H2, TICK_USEC);
        return 1;
}

/* Control frames must be read whatever waits; how much can wait is bounded by windows, and by what the pair admits. */
static int take_guest(Exchange *x) {
        int r, k;

        r = exchange_read_guest(x);
        if (r < 0)
                return r;
        if (buffer_size(&x->from_guest) > 0) {
                k = h2_pair_take_guest(x->pair, buffer_data(&x->from_guest), buffer_size(&x->from_guest));
                buffer_clear(&x->from_guest);
                if (k < 0)
                        return k;
        }
        return x->guest_ended ? -ESHUTDOWN : r;
}

static int take_origin(Exchange *x) {
        bool ended = false;
        int r, k = 0;

        if (!x->origin)
                return 0;
        r = exchange_read_origin(x, &ended);
        if (buffer_size(&x->from_origin) > 0) {
                k = h2_pair_take_origin(x->pair, buffer_data(&x->from_origin), buffer_size(&x->from_origin));
                buffer_clear(&x->from_origin);
        }
        if (k >= 0 && (r < 0 || ended)) {
                k = h2_pair_end_origin(x->pair);
                exchange_drop_origin(x);
                r = 1;
        }
        return k < 0 ? k : r;
}

/* A request with a credential is on its way: before it leaves. */
static int settle_origin(Exchange *x) {
        if (!x->origin || h2_pair_carried(x->pair) == x->carried)
                return 0;
        x->carried = h2_pair_carried(x->pair);
        return exchange_settle_sessions(x);
}

int exchange_h2_step(Exchange *x) {
        int guest, origin, r;

        origin = take_origin(x);
        if (origin < 0)
                return origin;
        guest = take_guest(x);
        if (guest < 0)
                return guest;
        r = settle_origin(x);
        if (r < 0)
                return r;

        r = h2_pair_give_guest(x->pair, &x->to_guest, EXCHANGE_BACKLOG_MAX);
        if (r < 0)
                return r;
        guest = guest > 0 || r > 0;
        if (x->origin) {
                r = h2_pair_give_origin(x->pair, &x->to_origin, EXCHANGE_BACKLOG_MAX);
                if (r < 0)
                        return r;
                origin = origin > 0 || r > 0;
        }

        if (h2_pair_is_over(x->pair)) {
                exchange_drop_origin(x);
                exchange_set_phase(x, PHASE_FLUSH, 10 * SECOND_USEC);
                return 1;
        }
        return guest > 0 || origin > 0;
}

int exchange_h2_tick(Exchange *x) {
        int r;

        r = h2_pair_tick(x->pair);
        if (r >= 0)
                exchange_set_phase(x, PHASE_H2, TICK_USEC);
        return r;
}
