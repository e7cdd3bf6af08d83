/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* This process's side of a run's budget: asks anchord before each model call, and goes on from what was granted ahead while it is away. */

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"

typedef struct Budget Budget;
typedef struct BudgetAsk BudgetAsk;

enum { BUDGET_CALL_SIZE = 48 };
#define BUDGET_NO_CAP UINT64_MAX

/* The worst case of one call. */
typedef struct BudgetNeed {
        char call[BUDGET_CALL_SIZE]; /* its id, under which it is reported as well */
        const char *provider, *model, *price, *prices_version; /* borrowed for the time of budget_reserve() */
        uint64_t input_tokens, output_tokens, cost_microusd;
        uint64_t summary_tokens, summary_cost_microusd; /* of what should stay free for a last call; 0: nothing */
        bool summary;                                   /* this is the last call */
} BudgetNeed;

typedef enum BudgetVerdict {
        BUDGET_GRANTED,
        BUDGET_REFUSED,     /* over a cap */
        BUDGET_UNAVAILABLE, /* nobody could be asked, and what was granted ahead does not do */
} BudgetVerdict;

typedef struct BudgetAnswer {
        BudgetVerdict verdict;
        char cap[64];                     /* "run cost", … */
        char reason[256];                 /* a sentence */
        uint64_t room_tokens, room_cost;  /* what a call might have; BUDGET_NO_CAP */
        bool lower;                       /* a call may be made smaller to fit */
        uint64_t summary_tokens;          /* not 0: one last call with so much output may be made */
} BudgetAnswer;

typedef void (*BudgetDone)(const BudgetAnswer *a, void *userdata);

int budget_new(Budget **ret, sd_event *event, const char *socket_path);
Budget *budget_free(Budget *b);
DEFINE_CLEANUP(Budget *, budget_free)

/* Must calls be reserved? True as long as it is not known. */
bool budget_applies(const Budget *b);
/* Is it known that there is a cap? Then what is not metered must not leave. */
bool budget_is_capped(const Budget *b);
/* For how long a last call may be; 0: none, or not known. */
uint64_t budget_summary_tokens(const Budget *b);

/* How many calls the run had made before this process began, as anchord has them; 0 as long as it is not known. */
uint64_t budget_earlier_calls(const Budget *b);

/* Asks; `done` is called once, from the loop, unless the ask is freed. */
int budget_reserve(Budget *b, const BudgetNeed *need, BudgetDone done, void *userdata, BudgetAsk **ret);
BudgetAsk *budget_ask_free(BudgetAsk *a);

/* A call was refused for good: anchord brings the run to its end. */
void budget_over(Budget *b, const char *reason);

/* A call that was reserved did not leave. */
void budget_release(Budget *b, const char *call);
