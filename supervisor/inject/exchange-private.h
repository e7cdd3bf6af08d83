/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Shared by exchange.c (life and phases), exchange-origin.c (decision and connection to the origin),
 * exchange-relay.c (the bytes of both directions). */

#include "inject/buffer.h"
#include "inject/exchange.h"
#include "inject/http-message.h"
#include "inject/mask.h"
#include "inject/substitute.h"
#include "inject/usage.h"
#include "util/dial.h"

#define SECOND_USEC (1000ULL * 1000)

enum {
        EXCHANGE_PIECE = 16 * 1024,       /* read at once: one TLS record */
        EXCHANGE_BACKLOG_MAX = 64 * 1024, /* waits for one side before the other is not read any more */
};

typedef enum Phase {
        PHASE_HANDSHAKE, /* TLS with the guest */
        PHASE_HEAD,      /* a request's head is awaited; an idle connection to the origin may be at hand */
        PHASE_DECIDE,    /* egressd was asked */
        PHASE_RECORD,    /* the audit log is to say first that a credential is used */
        PHASE_CONNECT,   /* TCP to the granted addresses; the first that answers wins */
        PHASE_SECURE,    /* TLS with the origin */
        PHASE_RELAY,     /* request and response, both at once */
        PHASE_FLUSH,     /* what is left goes to the guest, then the end is said */
        PHASE_LINGER,    /* reading on, so that no reset overtakes what the guest has not read yet */
} Phase;

/* Waits for the audit log; outlives an exchange that goes first. */
typedef struct RecordWait {
        Exchange *exchange; /* borrowed; NULL once it is gone */
        size_t credential;  /* its number */
} RecordWait;

struct Exchange {
        ExchangeContext *context; /* borrowed */
        Exchange *next, **prev;
        Phase phase;
        char name[254], client[64];
        uint16_t port;
        sd_event_source *deadline, *again; /* owned */

        TlsStream *guest, *origin; /* owned */
        HttpReader *requests, *responses; /* owned */
        Buffer from_guest, from_origin, to_guest, to_origin;
        bool guest_ended; /* nothing more will come from it */

        /* the request under way */
        SubstitutePlan plan;      /* borrows from the request's head */
        Masker *mask, *tripwire;  /* owned; the first works on the response, the second finds sentinels in the request's body */
        UsageReader *usage;       /* owned; NULL unless this is a model call */
        const InjectCredential *metered; /* borrowed; whose provider it is */
        uint64_t started_usec;
        unsigned status;
        bool head_request, guest_keeps_alive, request_over, head_passed, body_framed_as_chunks, sent;
        EgressQuestion *question; /* owned */
        RecordWait *record;       /* owned by the audit log's callback */

        /* the connection to the origin */
        int64_t grant;
        char *addresses[EGRESS_ADDRESSES_MAX]; /* owned */
        size_t n_addresses;
        Dial *dial; /* owned; while one of them is connected to */
        uint64_t opened_usec, idle_usec, bytes_in, bytes_out;
};

/*
 * Steps return 1 if they got something done, 0 if they could not, negative errno if the exchange is over. None of them
 * frees it; exchange_pump() does, and every callback ends by calling that.
 */
void exchange_pump(Exchange *x);
/* Ends the exchange if r is negative, else goes on. */
void exchange_continue(Exchange *x, int r);
void exchange_set_phase(Exchange *x, Phase phase, uint64_t timeout_usec);

/* For records: the target's path, without a query, escaped and not too long. The caller's; NULL: out of memory. */
char *exchange_record_path(const HttpHead *h);

/* Answers the guest with an error and closes; breaks off if a response has begun. */
int exchange_refuse(Exchange *x, unsigned status, const char *reason, const char *message);
int exchange_refuse_by(Exchange *x, unsigned status, const char *reason, const char *rule, const char *message);
/* The same, and an audit record conn.deny. where may be NULL. */
int exchange_deny(Exchange *x, unsigned status, const char *reason, const char *where, const char *message);
/* A sentinel on a wrong way: recorded and refused. */
int exchange_misuse(Exchange *x, const InjectCredential *credential, const char *where);

/* exchange-origin.c */
int exchange_decide(Exchange *x);
int exchange_secure_step(Exchange *x);
void exchange_drop_origin(Exchange *x);

/* exchange-relay.c */
int exchange_begin_relay(Exchange *x);
int exchange_relay_step(Exchange *x);
int exchange_read_guest(Exchange *x);
int exchange_flush(TlsStream *s, Buffer *b, uint64_t *count);
/* Reports a model call that was begun; complete says whether its answer was read to the end. */
void exchange_finish_usage(Exchange *x, bool complete);
