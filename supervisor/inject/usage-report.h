/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Tells anchord, and the audit log, what each model call used. */

#include <jansson.h>
#include <systemd/sd-event.h>

#include "audit/audit.h"
#include "inject/usage-price.h"
#include "util/cleanup.h"

enum {
        USAGE_REPORTS_MAX = 256,  /* wait for anchord or the audit log; beyond that the oldest is given up */
        USAGE_CALLS_MAX = 50000, /* of one run, also if inject began anew: each is a record in the audit log and a row in the ledger */
};

typedef struct UsageReport UsageReport;

typedef struct UsageCall {
        const char *id;                           /* borrowed; what it was reserved under, NULL: it gets one */
        const char *provider, *host, *credential; /* borrowed; credential NULL: none was used */
        Usage usage;
        UsagePrice price;
        const char *prices_version; /* borrowed */
        uint64_t cost_microusd, latency_usec;
        unsigned status; /* HTTP; 0: no answer came */
        bool complete;   /* the answer was read to its end */
} UsageCall;

/* Fills usage, price and cost from what was read of the answer (reader may be NULL), by the provider's file; status and complete are there already. */
void usage_call_conclude(UsageCall *call, const json_t *provider, UsageReader *reader, uint64_t prompt_bytes);

/* Of a call that was reserved: a number that its answer never said, or of output one that it may not have said last, is not taken to be less than what was
 * reserved for it; nor is the cost, if none was said. */
void usage_call_settle(UsageCall *call, const json_t *provider, uint64_t input_tokens, uint64_t output_tokens, uint64_t cost_microusd);

/* audit and run are borrowed. */
int usage_report_new(UsageReport **ret, sd_event *event, AuditClient *audit, const char *run, const char *socket_path);
UsageReport *usage_report_free(UsageReport *u);
DEFINE_CLEANUP(UsageReport *, usage_report_free)

/* An id that no other call of this run has. */
void usage_report_new_id(UsageReport *u, char ret[static 48]);

/* How many are not with anchord and in the audit log yet. */
size_t usage_report_waiting(const UsageReport *u);

/* Sent until anchord and the audit log took it, however long they are away; only who is there and refuses it is not asked for longer than a minute. Never fails; a lost report is
 * logged. */
void usage_report_add(UsageReport *u, const UsageCall *call);

/* How long to wait between two tries; for tests. */
void usage_report_set_again(UsageReport *u, uint64_t usec);

/* At the end of the process, when the loop does not turn any more: says all that was not taken, and waits until then (CLOCK_MONOTONIC). */
void usage_report_tell_last(UsageReport *u, uint64_t until_usec);
