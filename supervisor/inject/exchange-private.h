/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Shared by exchange.c (life and phases), exchange-origin.c (connection to the origin), exchange-relay.c (the bytes of both
 * directions). What a request must pass is in request.c, for every version of HTTP. */

#include "inject/buffer.h"
#include "inject/exchange.h"
#include "inject/h2-pair.h"
#include "inject/http-message.h"
#include "inject/request.h"
#include "util/dial.h"

#define SECOND_USEC (1000ULL * 1000)
/* For the guest's handshake, most of which is the guest's own work: an emulated one with many at once takes its time. Who
 * says nothing holds no more by it than by a handshake without a request, which is waited for as long. */
#define HANDSHAKE_USEC (30 * SECOND_USEC)

/* Of HTTP/1.1: an idle connection to an origin is used again only while that can be expected to hold it open as well; then it
 * is closed. The guest's may wait longer. */
#define ORIGIN_IDLE_USEC (15 * SECOND_USEC)
#define GUEST_IDLE_USEC (75 * SECOND_USEC)

enum {
        EXCHANGE_PIECE = 16 * 1024,       /* read at once: one TLS record */
        EXCHANGE_BACKLOG_MAX = 64 * 1024, /* waits for one side before the other is not read any more */
        EXCHANGE_TEXT_MAX = 255,          /* of what the proxy says of a connection */
};

typedef enum Phase {
        PHASE_HANDSHAKE, /* TLS with the guest; if it offers HTTP/2, DECIDE, CONNECT and SECURE come in between */
        PHASE_HEAD,      /* a request's head is awaited; an idle connection to the origin may be at hand */
        PHASE_HOLD,      /* a body with a place for a credential is awaited, all of it */
        PHASE_DECIDE,    /* egressd was asked; then the audit log is to say that a credential is used */
        PHASE_CONNECT,   /* TCP to the granted addresses; the first that answers wins */
        PHASE_SECURE,    /* TLS with the origin */
        PHASE_RELAY,     /* request and response, both at once */
        PHASE_WEBSOCKET, /* frames, both ways */
        PHASE_H2,        /* streams of HTTP/2 */
        PHASE_DRAIN,     /* `late` waits until all of the request was read */
        PHASE_FLUSH,     /* what is left goes to the guest, then the end is said */
        PHASE_LINGER,    /* reading on, so that no reset overtakes what the guest has not read yet */
} Phase;

struct Exchange {
        ExchangeContext *context; /* borrowed */
        Exchange *next, **prev;
        Phase phase;
        char *name, *client, *rule; /* owned */
        uint16_t port;
        sd_event_source *deadline, *again; /* owned */

        TlsStream *guest, *origin; /* owned */
        HttpReader *requests, *responses; /* owned */
        Buffer from_guest, from_origin, to_guest, to_origin, late;
        bool guest_ended; /* nothing more will come from it */

        Request request; /* the one under way */
        bool head_request, guest_keeps_alive, request_over, head_passed, body_framed_as_chunks;

        Websocket *frames_up, *frames_down; /* owned; once the connection has switched */

        /* with HTTP/2 on offer, see exchange-h2.c */
        bool opening;              /* the guest's handshake waits for the connection to the origin */
        Refusal *postponed;        /* owned; there is none, and this says why to the first request. Else NULL */
        EgressQuestion *question;  /* owned; about the connection */
        H2Pair *pair;              /* owned */

        /* the connection to the origin */
        int64_t grant;
        bool covered;     /* it is for every request on the connection */
        uint64_t carried; /* which credentials it has carried, a bit each: it is for these only */
        bool fresh;       /* it was opened for the guest's handshake and has carried nothing */
        char *addresses[EGRESS_ADDRESSES_MAX]; /* owned */
        size_t n_addresses;
        Dial *dial; /* owned; while one of them is connected to */
        uint64_t opened_usec, bytes_in, bytes_out;
        uint64_t idle_usec; /* since when it waits for a request, and the guest's with it */
};

/*
 * Steps return 1 if they got something done, 0 if they could not, negative errno if the exchange is over. None of them
 * frees it; exchange_pump() does, and every callback ends by calling that.
 */
void exchange_pump(Exchange *x);
/* Ends the exchange if r is negative, else goes on. */
void exchange_continue(Exchange *x, int r);
void exchange_set_phase(Exchange *x, Phase phase, uint64_t timeout_usec);

/* Answers the guest with an error and closes; breaks off if a response has begun. */
int exchange_refuse(Exchange *x, unsigned status, const char *reason, const char *message);
int exchange_refuse_as(Exchange *x, const Refusal *refusal);
/* The same, and an audit record conn.deny. where may be NULL. */
int exchange_deny(Exchange *x, unsigned status, const char *reason, const char *where, const char *message);

/* exchange-origin.c */
int exchange_decide(Exchange *x);
int exchange_on_granted(const EgressAnswer *a, void *userdata);
int exchange_begin_connect(Exchange *x);
int exchange_secure_step(Exchange *x);
/* The connection to the origin carries what x->carried says from now on: so do the sessions of TLS that it gives. */
int exchange_settle_sessions(Exchange *x);
void exchange_drop_origin(Exchange *x);
/* Between requests an origin has nothing to say: whatever it does ends that connection. */
void exchange_check_idle_origin(Exchange *x);
/* A connection has waited for its next request for as long as it may: negative errno, or only the one to the origin is over. */
int exchange_idle_tick(Exchange *x);

/* exchange-relay.c */
int exchange_begin_relay(Exchange *x);
int exchange_relay_step(Exchange *x);
int exchange_read_guest(Exchange *x);
int exchange_read_origin(Exchange *x, bool *ret_ended);
int exchange_flush(TlsStream *s, Buffer *b, uint64_t *count);
/* One piece, if there is room. The end sets *ended; -EAGAIN is 0. */
int exchange_read_piece(TlsStream *s, Buffer *b, bool *ended, ssize_t *ret_size);

/* exchange-websocket.c */
int exchange_begin_websocket(Exchange *x);
int exchange_websocket_step(Exchange *x);

/* exchange-h2.c */
int exchange_open_first(Exchange *x);
int exchange_opened(Exchange *x);
int exchange_postpone(Exchange *x, const Refusal *refusal);
int exchange_begin_h2(Exchange *x);
int exchange_h2_step(Exchange *x);
int exchange_h2_tick(Exchange *x);
