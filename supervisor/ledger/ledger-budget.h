/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Budgets: what model calls may use. Before a call its worst case is reserved; when it is reported (ledger_add_usage()) the reservation
 * goes and what it used counts. A run also has a block granted ahead of its reservations, out of which its enforcer may go on while
 * nobody answers. Blocks and reservations of all runs count against the caps that they share, so that no two spend the same.
 * How it is kept is at the top of ledger-budget.c.
 */

#include "ledger/ledger.h"

typedef struct LedgerAmount {
        int64_t requests, tokens, cost_microusd;
} LedgerAmount;

#define LEDGER_UNLIMITED INT64_MAX

typedef enum LedgerScope {
        LEDGER_SCOPE_RUN,
        LEDGER_SCOPE_ITEM,
        LEDGER_SCOPE_WORKFLOW, /* the calendar month (UTC) of one workflow */
        LEDGER_SCOPE_HOST,     /* the same of the host */
        _LEDGER_SCOPE_MAX,
} LedgerScope;
const char *ledger_scope_name(LedgerScope s); /* "run", "item", "workflow", "host" */

typedef struct LedgerCaps {
        LedgerAmount of[_LEDGER_SCOPE_MAX];
} LedgerCaps;

typedef struct LedgerReservation {
        const char *run;
        const char *life; /* of the enforcer; another than before: the one before is gone, and what it had reserved is charged */
        const char *call, *provider, *model, *price, *prices_version;
        int64_t input_tokens, output_tokens, cost_microusd;
        LedgerAmount keep; /* to stay free beside it */
        bool taken;        /* it left on the block's account already: recorded whatever the caps say */
        bool more_taken;   /* and there are others that are not recorded yet */
} LedgerReservation;

typedef struct LedgerBudget {
        LedgerAmount block;  /* what the run has beside its reservations and what it used */
        LedgerAmount room;   /* the least that any cap leaves for this call; LEDGER_UNLIMITED without one */
        LedgerScope scope;   /* which cap was nearest, or refused */
        const char *what;    /* static: "requests", "tokens", "cost" of it; NULL: there is no cap */
        unsigned percent;    /* of it, with this reservation if it was made */
        int64_t used, cap;   /* the same as numbers */
} LedgerBudget;

/* 0, LEDGER_E_OVER_BUDGET (nothing changed), LEDGER_E_NOT_FOUND; LEDGER_E_SETTLED: that call was given back, or the run is closed. For a call that is
 * reserved or reported already: 0, and nothing changes. */
int ledger_reserve(Ledger *l, const LedgerReservation *r, const LedgerCaps *caps, LedgerBudget *ret);
/* The call did not take place. Also before it is reserved: then it never will be. May be repeated. */
int ledger_unreserve(Ledger *l, const char *run, const char *call);

/* Whoever writes here was away while the run went on: until the same life is heard of again without anything pending, what
 * it has of its block counts as spent should it end. */
int ledger_budget_doubt(Ledger *l, const char *run);
/* The run is over: what it had reserved is charged, the rest of its block returns. May be repeated. */
int ledger_budget_close(Ledger *l, const char *run);
/* The same for every run whose lease is gone. */
int ledger_budget_close_stray(Ledger *l);

/* How many model calls of the run are on record. */
int ledger_count_calls(Ledger *l, const char *run, int64_t *ret);

/* Once for each key: 0; LEDGER_E_DUPLICATE from then on. */
int ledger_budget_say(Ledger *l, const char *key);

/* What was used of each scope that has a cap: {"item": {"requests": {"used", "cap"}, …}, …}; the caller's. */
int ledger_budget_show(Ledger *l, const char *item, const LedgerCaps *caps, json_t **ret);
