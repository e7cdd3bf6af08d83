/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* One connection of the guest whose TLS ends here, with the requests on it. */

#include "audit/notes.h"
#include "inject/budget.h"
#include "inject/credential.h"
#include "inject/egress-link.h"
#include "inject/leaf.h"
#include "inject/mask.h"
#include "inject/minter.h"
#include "inject/tally.h"
#include "inject/tls.h"
#include "inject/usage-report.h"

typedef struct Exchange Exchange;

enum { EXCHANGES_MAX = 256 };

/* What all exchanges of a process share; everything is borrowed from the owner, which outlives them. */
typedef struct ExchangeContext {
        sd_event *event;
        const char *run;
        InjectCredential *credentials;
        size_t n_credentials;
        LeafMaker *leaves;
        TlsSetup *tls;
        EgressLink *egress;
        AuditClient *audit;
        Notes *notes;
        Tally *tally;
        UsageReport *usage;
        Budget *budget;  /* NULL: model calls are not reserved */
        Minter *minter;
        uint64_t generation; /* of the credentials' values: counted up when one is minted or changes, so that what masks answers is made anew */
        Needles *answers, *strays; /* ref; what maskers were made for last (request_make_masker()), */
        Masker *beginnings; /* owned; of all values, to be found at the end of a message (request-answer.c); made with `answers` */
        bool wary;          /* one was found */
        uint64_t answers_generation, strays_foreign; /* and when; which credentials' */
        size_t n_metered; /* model calls under way, */
        uint64_t n_calls; /* and of all time */
        size_t gathered; /* bytes of bodies that had to be there first, until they have left */
        size_t held;     /* bytes of bodies with a place that wait to be judged, and of what they stand for */
        Exchange *exchanges; /* the list */
        size_t n_exchanges;
        size_t h2_backlog; /* bytes that wait for slow readers, of all connections of HTTP/2 */
        bool used[RUN_CREDENTIALS_MAX]; /* credential.used is in the audit log */
} ExchangeContext;

/* Starts with a connection of which nothing was read; takes fd over on success. name is normalised, and
 * rule is what egressd had it inspected for. It frees itself at its end.
 * -EBUSY, -EACCES (the CA may not sign for that name). */
int exchange_start(ExchangeContext *c, int fd, const char *name, uint16_t port, const char *client, const char *rule);

/* Ends all of them, and gives back what the context had on their behalf. */
void exchange_close_all(ExchangeContext *c);
void exchange_close_grant(ExchangeContext *c, int64_t grant);
/* One request on a connection of HTTP/2; the others go on. */
void exchange_cut_stream(ExchangeContext *c, int64_t grant, int32_t stream);
/* Its value is another one, or is gone. Connections to the hosts that it is for end, since they may carry the one before; in all others the new one is masked
 * from here on, also in an answer that has begun. */
void exchange_credential_changed(ExchangeContext *c, const InjectCredential *credential);
