/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Everything that knows what is to be done, is being done, and was done: the work items and their
 * states. The database (see the head of ledger-schema.c) refuses what must not happen; this is its
 * only writer. Every function is one transaction: when it returns 0 the change is on disk, with its audit event in the
 * outbox; when it fails nothing changed.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/cleanup.h"
#include "util/text.h"

typedef struct Ledger Ledger;

enum {
        _LEDGER_E_SUCCESS,
        LEDGER_E_NOT_FOUND, /* no such item or run */
        LEDGER_E_CONFLICT,  /* the revision is not the item's any more */
        LEDGER_E_ILLEGAL,   /* the schema refuses the change: no such transition, no attempts left, … */
        LEDGER_E_STALE,     /* the lease is not this token's any more */
        LEDGER_E_NO_WORK,   /* nothing claimable */
        LEDGER_E_HELD,      /* leases are on hold, or this boot is drained, or the site's policy waits to be accepted */
        LEDGER_E_OVER_BUDGET, /* a cap does not leave that much */
        LEDGER_E_SETTLED,   /* the call was given back, or its run's account is closed */
        LEDGER_E_DUPLICATE, /* the item is there, in state `duplicate` */
};

typedef enum ItemState {
        ITEM_SUBMITTED,
        ITEM_QUEUED,
        ITEM_LEASED,
        ITEM_RUNNING,
        ITEM_WAITING,
        ITEM_VERIFYING,
        ITEM_IN_REVIEW,
        ITEM_APPROVED,
        ITEM_AUTHORIZED,
        ITEM_PUBLISHING,
        ITEM_PUBLISH_FAILED,
        ITEM_PUBLISHED,
        ITEM_FAILED,
        ITEM_DUPLICATE,
        ITEM_REJECTED,
        ITEM_CANCELLED,
        ITEM_EXHAUSTED,
        ITEM_MERGED,
        ITEM_CLOSED,
        _ITEM_STATE_MAX,
} ItemState;

/* Does a reason say that a budget was used up? Then there is no next attempt. */
#define LEDGER_OVER_BUDGET "over budget"
bool ledger_reason_is_over_budget(const char *reason);

const char *item_state_name(ItemState s);
int item_state_from_name(const char *name); /* the state, or -EINVAL */
bool item_state_is_end(ItemState s);
/* Is there nothing for the host itself to do next? Then `Follow` ends. */
bool item_state_is_resting(ItemState s);

/* An item as the scheduler needs it; all text is owned, NULL where the row has NULL. */
typedef struct LedgerItem {
        char id[ID_LENGTH + 1];
        char run[ID_LENGTH + 1]; /* the latest run, or "" */
        ItemState state;
        int64_t revision;
        int64_t attempt, max_attempts, leases;
        int64_t token; /* of its lease; 0: none */
        char *workflow, *workflow_digest, *base, *task, *command, *template_name, *template_digest, *agent, *stage;
        char *result_commit, *reason;
        char *options; /* JSON */
        bool repository;
} LedgerItem;

void ledger_item_done(LedgerItem *i);
#define _cleanup_item_ _cleanup_(ledger_item_done)

typedef struct LedgerSubmission {
        const char *id;        /* made by the caller, so that bundles can be on disk first */
        const char *requester; /* also the actor */
        const char *source, *workflow, *workflow_digest, *repository, *base, *task, *command, *options;
        const char *template_name, *template_digest, *agent;
        int64_t max_attempts;
} LedgerSubmission;

/* One change of an item. `revision` is what the caller saw; a `token` other than 0 must be that of the live lease. Members
 * left NULL keep what is there. */
typedef struct LedgerChange {
        const char *item;
        int64_t revision;
        int64_t token;
        ItemState to; /* the present state: no transition, the rest still applies */
        const char *actor, *reason;
        const char *stage;
        const char *result_commit;   /* voids review, approvals and authorization */
        const char *reviewed_commit;
        const char *evidence;        /* JSON text */
        const char *approvals, *authorization;
        int64_t not_before_usec;     /* with ITEM_QUEUED: CLOCK_REALTIME */
} LedgerChange;

typedef struct LedgerUsage {
        const char *call; /* NULL: not repeatable */
        const char *provider, *model;
        const char *price, *prices_version; /* what the cost is by: "model", "default" or "none", and of which table; may be NULL */
        int64_t input_tokens, output_tokens, cache_read_tokens, cache_write_tokens;
        int64_t cost_microusd, status, latency_us;
        bool estimated;
} LedgerUsage;

typedef struct LedgerRun {
        char id[ID_LENGTH + 1], item[ID_LENGTH + 1];
        bool verify;        /* stage `verify`; else `work` */
        bool started, finished, released;
        uint64_t started_usec; /* CLOCK_REALTIME; 0: it was not */
        int64_t attempt, token;
        char *outcome, *reason, *facts; /* owned; NULL until finished */
} LedgerRun;

void ledger_run_done(LedgerRun *r);

typedef struct LedgerEvent {
        int64_t id;
        uint64_t time_usec; /* when it was queued */
        char *event, *run, *item, *actor, *data; /* owned */
} LedgerEvent;

void ledger_event_done(LedgerEvent *e);

/* Opens or makes the file. */
int ledger_open(Ledger **ret, const char *path);
Ledger *ledger_close(Ledger *l);
DEFINE_CLEANUP(Ledger *, ledger_close)

/* What the database said about the last failure. Borrowed. */
const char *ledger_error(Ledger *l);

/* ---- items ---- */

/* The item as `submitted`. With a source of which an item is still live: as `duplicate`, LEDGER_E_DUPLICATE. */
int ledger_submit(Ledger *l, const LedgerSubmission *s);
int ledger_get(Ledger *l, const char *item, LedgerItem *ret);

/* 0, or LEDGER_E_{NOT_FOUND,CONFLICT,ILLEGAL,STALE}. Entering `queued` from `failed`, `in_review` or `published` begins the
 * next attempt. ret_revision (may be NULL) is the new one. */
int ledger_transition(Ledger *l, const LedgerChange *c, int64_t *ret_revision);

/* What ledger_claim_next() would lease, were it not for a hold; LEDGER_E_NO_WORK. */
int ledger_peek_next(Ledger *l, uint64_t now_realtime_usec, LedgerItem *ret);

/* Leases the oldest claimable item to run: item and run row, lease with a new token, events
 * item.transition and run.leased, all or nothing. */
int ledger_claim_next(Ledger *l, const char *run, const char *boot, uint64_t expires_boottime_usec,
                      uint64_t now_realtime_usec, LedgerItem *ret);

/* When the next item that waits for its time becomes claimable (CLOCK_REALTIME); LEDGER_E_NO_WORK if none. */
int ledger_next_time(Ledger *l, uint64_t *ret_usec);

/* What the runs of that lease are made from, as the caller writes it (JSON), until the lease ends. Once: LEDGER_E_DUPLICATE; LEDGER_E_STALE: there is no
 * such lease. */
int ledger_freeze(Ledger *l, int64_t token, const char *plan);
/* The caller's; LEDGER_E_NOT_FOUND: nothing was frozen. */
int ledger_frozen(Ledger *l, int64_t token, char **ret);

/* The host runs another image by now: the leased item is worked on with that one's template. Queues `item.template`. LEDGER_E_CONFLICT: the item has
 * changed since it was read. */
int ledger_item_rebind(Ledger *l, LedgerItem *i, const char *template_digest);

int ledger_lease_extend(Ledger *l, const char *item, int64_t token, uint64_t expires_boottime_usec);
/* Expired leases of this boot: calls back with each item. */
typedef int (*LedgerItemHandler)(const LedgerItem *item, void *userdata);
int ledger_lease_expired(Ledger *l, const char *boot, uint64_t now_boottime_usec, LedgerItemHandler handler, void *userdata);

/*
 * After a start. Leases of another boot cannot be alive: an item that an operator had stopped is `cancelled`, the others go back to `queued` with their
 * attempt kept, or to `failed` once they were leased LEDGER_LEASES_PER_ATTEMPT times an attempt, since then
 * the item itself may be what brings the host down. Failed items with attempts left are queued, others exhausted; items that stopped at
 * `submitted` are queued. Then the handler gets every item with a lease of this boot, to compare with the units.
 */
int ledger_recover(Ledger *l, const char *boot, LedgerItemHandler handler, void *userdata);
enum { LEDGER_LEASES_PER_ATTEMPT = 4 };

/* ---- runs ---- */

/* A further run (stage `verify`) under the item's lease, which then names it. */
int ledger_run_add(Ledger *l, const char *item, int64_t token, const char *run);
int ledger_run_get(Ledger *l, const char *run, LedgerRun *ret);
/* Its unit runs: notes that with accelerator and egress digest (either may be NULL), and queues `run.started`. LEDGER_E_DUPLICATE: that was done before. */
int ledger_run_start(Ledger *l, const char *run, const char *accel, const char *egress_digest);
/* Everything of it is gone. */
int ledger_run_release(Ledger *l, const char *run);
/* What a run told, all of it or nothing. `call` is the number that anchor-run gave the call: LEDGER_E_DUPLICATE if that one, or a later
 * one, has changed something here already; 0: it has none. */
typedef struct LedgerTold {
        bool boot;          /* one boot more */
        const char *event;  /* for the audit log, with `data`; NULL: none */
        const json_t *data;
        const char *note, *text; /* a note of that kind; NULL: none */
} LedgerTold;
int ledger_run_tell(Ledger *l, const char *run, int64_t call, const LedgerTold *told);
/* The digests of every egress policy that held for the run, in their order: an array of strings. */
int ledger_run_set_policies(Ledger *l, const char *run, const json_t *digests);
/* {RUN: [DIGEST, …], …} of an item's runs in this attempt; the caller's. */
int ledger_policies(Ledger *l, const char *item, int64_t attempt, json_t **ret);
/* Writes the outcome once and queues event `run.finished` (`run.stopped` for outcome "stopped"); a second
 * call with the same outcome is nothing, with another LEDGER_E_ILLEGAL. facts is JSON text or NULL. */
int ledger_run_finish(Ledger *l, const char *run, const char *outcome, const char *reason, const char *facts);
/* Runs of which something may still exist, oldest first. */
typedef int (*LedgerRunHandler)(const LedgerRun *run, void *userdata);
int ledger_run_list_unreleased(Ledger *l, LedgerRunHandler handler, void *userdata);

/* Counts one model call. LEDGER_E_DUPLICATE: this call was counted already. */
int ledger_add_usage(Ledger *l, const char *run, const LedgerUsage *u);
int ledger_add_note(Ledger *l, const char *item, const char *run, const char *kind, const char *text);
/* The first note of that kind about that run of the item; LEDGER_E_NOT_FOUND: none. The caller's. */
int ledger_run_note(Ledger *l, const char *item, const char *run, const char *kind, char **ret);
/* Two kinds that say what was decided of a run, and its outcome does not. */
#define NOTE_STOP "run.stopping"           /* an operator wants an end of the item, whatever its run has come to */
#define NOTE_HANDED_BACK "run.handed_back" /* it ended, or is to end, and its item keeps the attempt */

/* External writes: asks before, says done after. LEDGER_E_DUPLICATE from ask: it was done. */
int ledger_effect_ask(Ledger *l, const char *key, const char *item, const char *kind);
int ledger_effect_done(Ledger *l, const char *key);

/* ---- hold ---- */

int ledger_hold_set(Ledger *l, bool active, const char *actor, const char *reason);
int ledger_hold_get(Ledger *l, bool *ret_active, char **ret_reason);

/* ---- drain (ledger-drain.c) ---- */

typedef struct LedgerDrain {
        bool active;
        uint64_t until_usec; /* CLOCK_BOOTTIME: then what still runs is handed back */
        char *actor, *reason; /* owned; reason may be NULL */
} LedgerDrain;

void ledger_drain_done(LedgerDrain *d);

/* From here on this boot leases nothing (LEDGER_E_HELD); queues `drain.begun`. Again: a new time. */
int ledger_drain_set(Ledger *l, const char *boot, uint64_t until_boottime_usec, const char *actor, const char *reason);
/* Ends it, and queues `drain.ended` if there was one. */
int ledger_drain_clear(Ledger *l, const char *boot, const char *actor);
/* Of this boot; one of another boot is none. */
int ledger_drain_get(Ledger *l, const char *boot, LedgerDrain *ret);

/* ---- the site's policy over deployments (ledger-site.c) ---- */

typedef struct LedgerSite {
        char digest[HEX_SHA256_SIZE];   /* as it was last seen; "": never */
        char previous[HEX_SHA256_SIZE]; /* what held before, while it waits */
        bool waits;                     /* nothing is leased (LEDGER_E_HELD) until an operator has accepted it */
} LedgerSite;

/* This policy holds, under this deployment of the operating system. If both are others than the last time, it waits from here on, and
 * `policy.waits` is queued. */
int ledger_site_see(Ledger *l, const char *deployment, const char *digest, bool *ret_waits);
/* Queues `policy.accepted`. LEDGER_E_NO_WORK: it does not wait. LEDGER_E_CONFLICT: it is another one. */
int ledger_site_accept(Ledger *l, const char *digest, const char *actor);
int ledger_site_get(Ledger *l, LedgerSite *ret);

/* ---- space: is it low, and what was taken off the disk (ledger-space.c) ---- */

/* Queues `space.low` or `space.back`, with that data, if it was otherwise when this was last called. */
int ledger_space_see(Ledger *l, bool low, const json_t *data);

typedef enum LedgerPart {
        LEDGER_PART_BUNDLES,
        LEDGER_PART_LOGS,
        _LEDGER_PART_MAX,
} LedgerPart;
const char *ledger_part_name(LedgerPart part); /* "bundles", "logs" */

typedef struct LedgerKept {
        char item[ID_LENGTH + 1];
        bool ended;
        uint64_t changed_usec; /* CLOCK_REALTIME; when it ended, if it has */
        bool pruned[_LEDGER_PART_MAX];
} LedgerKept;

/* Each item of which something may still be on disk, by its last change, oldest first. */
typedef int (*LedgerKeptHandler)(const LedgerKept *item, void *userdata);
int ledger_kept(Ledger *l, LedgerKeptHandler handler, void *userdata);

typedef struct LedgerPrune {
        char item[ID_LENGTH + 1];
        LedgerPart part;
        uint64_t bytes;
        const char *why; /* "age", "quota", "asked" */
} LedgerPrune;
enum { LEDGER_PRUNE_MAX = 256 }; /* so many in one audit record */

/* These are to go: all of them or none, with `space.pruned`. LEDGER_E_ILLEGAL: one has not ended, or is pruned already. Files
 * may be removed once that is acknowledged; then ledger_prune_done(). */
int ledger_prune(Ledger *l, const LedgerPrune *list, size_t n, const char *actor);
/* One that is not done; LEDGER_E_NO_WORK if there is none. */
int ledger_prune_next(Ledger *l, char ret_item[static ID_LENGTH + 1], LedgerPart *ret_part);
int ledger_prune_done(Ledger *l, const char *item, LedgerPart part);
/* When that was pruned (CLOCK_REALTIME); LEDGER_E_NOT_FOUND: it was not. */
int ledger_pruned(Ledger *l, const char *item, LedgerPart part, uint64_t *ret_usec);

/* ---- audit outbox ---- */

int ledger_outbox_put(Ledger *l, const char *event, const char *run, const char *item, const char *actor, const json_t *data);
/* The first event after id; LEDGER_E_NO_WORK if there is none. Its data carries "key". */
int ledger_outbox_next(Ledger *l, int64_t after, LedgerEvent *ret);
int ledger_outbox_remove(Ledger *l, int64_t id);
int ledger_outbox_count(Ledger *l, int64_t *ret);

/* ---- for people ---- */

/* Calls back with one object an item, in the order of submission, oldest first. `states` is a NULL-terminated list of names or NULL;
 * `after` an item id or NULL. At most `limit` items, and none after one for which the handler returned something positive. */
typedef int (*LedgerJsonHandler)(json_t *object, void *userdata); /* borrowed */
int ledger_list(Ledger *l, const char *const *states, const char *after, uint64_t limit, LedgerJsonHandler handler, void *userdata);
/* Everything about one item: the row, "runs", "history", "usage", "notes". */
int ledger_show(Ledger *l, const char *item, json_t **ret);

/* What an item went through, behind what is known of it: `states` ({"revision", "from", "to", "reason", "run"}) behind that revision and `notes`
 * ({"id", "kind", "text", "run"}) behind that id; two arrays in their order, the caller's. */
int ledger_story(Ledger *l, const char *item, int64_t revision, int64_t note, json_t **ret_states, json_t **ret_notes);

/* What model calls used, summed up. */
typedef enum LedgerCostBy {
        LEDGER_COST_BY_RUN, /* and model: {"attempt", "run", "stage", "provider", "model"} */
        LEDGER_COST_BY_ITEM, /* {"item", "workflow"} */
        LEDGER_COST_BY_WORKFLOW,
        LEDGER_COST_BY_DAY, /* UTC: {"day": "2026-01-31"} */
        LEDGER_COST_BY_MODEL, /* {"provider", "model"} */
        _LEDGER_COST_BY_MAX,
} LedgerCostBy;
const char *ledger_cost_by_name(LedgerCostBy by); /* "run", "item", … */

/* An array of at most LEDGER_COST_ROWS_MAX objects: what they are about, then "calls" "failed" "estimated" (how many of them) "input_tokens" "output_tokens"
 * "cache_read_tokens" "cache_write_tokens" "cost_microusd". item NULL: of all items. since: CLOCK_REALTIME. The caller's. */
int ledger_cost(Ledger *l, LedgerCostBy by, const char *item, uint64_t since_usec, json_t **ret);
enum { LEDGER_COST_ROWS_MAX = 10000 };

/* Number of items in each state. */
int ledger_counts(Ledger *l, json_t **ret);
