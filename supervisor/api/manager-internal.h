/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Shared by the files of anchord (supervisor/api/) that act on the manager. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "api/event-log.h"
#include "api/manager.h"
#include "api/store.h"
#include "api/units.h"
#include "audit/audit.h"
#include "ipc/credential-server.h"
#include "ipc/ipc.h"
#include "ledger/ledger.h"
#include "policy/policy.h"
#include "util/background.h"

#define USEC_PER_SEC 1000000ULL

#define LEDGER_PATH "/var/lib/anchorhold/ledger/ledger.db"
#define ITEMS_PATH "/var/lib/anchorhold/items"
#define STATE_PATH "/var/lib/anchorhold"
#define REVOKING_PATH "/var/lib/anchorhold/ledger/revoking"
#define EGRESS_SOCKET "/run/anchorhold/egress.sock"
#define SECRET_SOCKET "/run/anchorhold/secret-api.sock"

enum {
        LEASE_USEC = 90 * 1000 * 1000,          /* extended while anchord works on the item */
        OUTBOX_MAX = 10000,                     /* no submission beyond this many unacknowledged events */
        OUTBOX_WINDOW = 16,
        FOLLOWERS_MAX = 64,
};

typedef struct Ending Ending;
typedef struct FlowAsk FlowAsk;
typedef struct Flow Flow;
typedef struct Follower Follower;
typedef struct OpenLog OpenLog;
typedef struct OperatorWait OperatorWait;
typedef struct OutboxFlight OutboxFlight;
typedef struct PolicyReader PolicyReader;
typedef struct PolicyReading PolicyReading;
typedef struct PruneCall PruneCall;
typedef struct Revocation Revocation;
typedef struct StopAll StopAll;

typedef enum EnforcerId {
        ENFORCER_EGRESSD,
        ENFORCER_AUDITD,
        ENFORCER_SECRETD,
        ENFORCER_BPF,
        _ENFORCER_MAX,
} EnforcerId;

enum { ENFORCER_REASON_SIZE = 256, SPACE_REASON_SIZE = 256 };

typedef struct Enforcer {
        bool known, ok;
        bool asking;      /* a ping is under way */
        char reason[ENFORCER_REASON_SIZE]; /* why it is not ok */
} Enforcer;

struct Manager {
        sd_event *event;               /* ref */
        Ledger *ledger;                /* owned, as all of these */
        Store *store;
        Units *units;
        AuditClient *audit;
        IpcClient *egress, *secret;
        IpcClient *egress_ping, *secret_ping; /* of their own: a ping never waits behind a registration */
        IpcServer *operators, *runs;
        CredentialServer *specs;
        Policy *policy;
        PolicyFinding *findings;
        size_t n_findings;
        Background *background;        /* reads policy; manager-policy.c, as are the next four */
        PolicyReading *policy_reading, *policy_dropped;
        PolicyReader *policy_waiting, *policy_served;
        char policy_digest[HEX_SHA256_SIZE];
        bool site_waits;               /* for an operator, after a rollback: nothing is leased */

        char boot_id[33];
        Enforcer enforcers[_ENFORCER_MAX];
        bool bpf_asked, bpf_unanswered; /* systemd was asked once about the fence's units; and did not answer */
        bool bpf_changed;      /* one of them changed while the question is under way */
        sd_event_source *suspect;     /* owned; NULL: no run was found without the fence just now */
        sd_event_source *warden_file; /* owned */
        Flow *flows;
        size_t n_flows;
        FlowAsk *flow_asks;            /* what egressd and secretd were asked for runs */
        Ending *endings;               /* of runs, that wait for files or for systemd */
        Follower *followers;
        size_t n_followers;
        OpenLog *logs;
        StopAll *stop_alls;
        OperatorWait *operator_waits;  /* calls that came before `settled` */
        uint64_t settle_wait_usec;     /* so long each of them waits */
        uint64_t register_again_usec, register_wait_usec; /* how often, and how long, a verification is to be registered that was refused */
        Revocation *revocation;
        uint64_t revocation_start_usec; /* so long systemd may take to start its unit */

        struct {
                uint64_t free, total, reserve; /* bytes, as last seen */
                bool low;              /* less is free than the reserve: nothing is leased */
                bool recorded;         /* the ledger has it so */
                char reason[SPACE_REASON_SIZE]; /* why nothing is leased for want of space; "": not for that */
        } space;
        PruneCall *prune_calls;
        bool pruning;                  /* files are to be removed when their record is with auditd */
        uint64_t prune_next;           /* CLOCK_MONOTONIC */
        sd_event_source *prune_step;   /* owned */

        sd_event_source *schedule;     /* one look at the queue, soon or at a time */
        sd_event_source *pump;         /* followers */
        sd_event_source *tick;         /* every two seconds */
        sd_event_source *outbox_retry;
        uint64_t n_ticks;
        uint64_t accel_since;          /* when we began to wait for the probe, CLOCK_MONOTONIC */

        struct OutboxFlight {
                Manager *manager;      /* borrowed */
                int64_t id;            /* 0: free */
                char item[ID_LENGTH + 1];
        } outbox_flight[OUTBOX_WINDOW]; /* handed to auditd, not acknowledged */
        unsigned outbox_flying;
        bool outbox_failed;

        bool settled;                  /* earlier lives are dealt with; READY was said */
};

/* ---- manager.c ---- */

/* From here on the units of runs are answered. Negative errno, logged. */
int manager_serve_runs(Manager *m);
/* Changes an item: ledger, event log, audit, followers. 0 or LEDGER_E_…, logged if it did not work. */
int manager_transition(Manager *m, const LedgerChange *c);
/* failed → queued, if attempts are left, else exhausted. */
void manager_after_failure(Manager *m, const char *item);
/* The open event log of an item; NULL if it cannot be opened (logged). Borrowed. */
EventLog *manager_log(Manager *m, const char *item);
void manager_close_log(Manager *m, const char *item);
/* Appends to an item's events and wakes its followers. `data` is taken over. */
void manager_event(Manager *m, const char *item, const char *type, json_t *data);
/* Appends what the ledger has of the item and its events have not: states and notes, each once, be it that anchord died in between. */
void manager_tell(Manager *m, const char *item);
/* A note in ledger and events. run may be NULL. */
void manager_note(Manager *m, const char *item, const char *run, const char *kind, const char *format, ...)
        __attribute__((__format__(__printf__, 5, 6)));
/* The same, of something that the next life must know: 0, and it is in the ledger; negative, and it is not, and anchord ends. */
int manager_keep(Manager *m, const char *item, const char *run, const char *kind, const char *text);
/* The database is damaged or full: nothing more may be decided. Ends the loop. */
int manager_fatal(Manager *m, int error, const char *what);

/* ---- manager-policy.c ---- */

/* Reads policy, which may take a second: at the start. Findings are kept for whoever asks. */
int manager_load_policy(Manager *m);
/* Reads it anew and then calls `done`, once: m->policy is then as the files were after this call. r negative: it could not be read, and is as it
 * was; -ECANCELED: anchord ends. */
typedef void (*ManagerPolicyRead)(int r, void *userdata);
int manager_read_policy(Manager *m, ManagerPolicyRead done, void *userdata);
/* Reads it anew unless that is under way; nobody waits for it. */
void manager_refresh_policy(Manager *m);
/* Whoever waits under that name is not called. */
void manager_forget_policy_reader(Manager *m, const void *userdata);
void manager_policy_done(Manager *m);

/* ---- outbox.c ---- */

void outbox_kick(Manager *m);
bool outbox_is_empty(Manager *m);

/* ---- enforcers.c ---- */

/* From here on changes of the fence are heard of. */
int enforcers_start(Manager *m);
void enforcers_tick(Manager *m);
/* Of any unit: those of the fence, and of runs that were not fenced, say how the eBPF programs are. */
void enforcers_on_unit_changed(Manager *m, const char *unit, const char *active, const char *why);
const char *enforcer_name(EnforcerId id);
/* Are all there? Else the first that is not. */
bool enforcers_ok(Manager *m, const char **ret_reason);

/* ---- template.c ---- */

/* The manifest of an installed template, signed by a key that this host trusts. ret_reason (may be NULL) is the caller's: a
 * sentence that says why there is none. */
int template_load(const char *name, json_t **ret, char **ret_reason);
bool template_has_agent(const char *name, const char *agent);

typedef struct Accel {
        bool known;        /* false: the probe has not answered yet */
        bool tcg, fallback; /* fallback: not what the operator asked for by name */
        char reason[160];
        uint64_t probe_ms; /* how long the probe took to say that KVM works; 0: it has not said so */
} Accel;

/* -EOPNOTSUPP: the operator insists on KVM, and the probe says no or (yet) nothing. *ret is filled in either case. */
int accel_read(const char *configured, Accel *ret);

/* ---- flow.c: one item being worked on ---- */

/* Takes a freshly leased item. Whatever goes wrong is settled inside. */
void flow_begin(Manager *m, LedgerItem *item);
/* Takes up an item that an earlier life of anchord leased on this boot. */
void flow_resume(Manager *m, const LedgerItem *item, bool run_unit_alive, bool import_unit_alive);
Flow *flow_find_run(Manager *m, const char *run);
Flow *flow_find_item(Manager *m, const char *item);
/* What egressd says when it releases a run: every policy that held for it. */
void flow_note_policies(Manager *m, const char *run, const json_t *digests);
/* The audit outbox is empty: runs that waited for it go on. */
void flows_on_audited(Manager *m);
/* why: how a service ended, may be NULL */
void flows_on_unit_changed(Manager *m, const char *unit, const char *active, const char *why);
void flows_on_unit_job(Manager *m, const char *unit, uint32_t job, bool queued);
/* An operator wants it dead, and its item cancelled: that is in the ledger when this returns 0. Negative: anchord ends. */
int flow_stop(Flow *f, const char *reason);
/* Ends the run under way, and queues the item again with its attempt kept; nothing if the run has ended by itself. */
void flow_hand_back(Flow *f, const char *reason);
Flow *flow_free(Flow *f);
/* When nobody can answer them any more. */
void flow_asks_free(Manager *m);

Flow *flow_next_of(Flow *f); /* iteration over m->flows */
const char *flow_item(const Flow *f);
const char *flow_workflow(const Flow *f);
const char *flow_run(const Flow *f);
int64_t flow_token(const Flow *f);
const char *flow_stage(const Flow *f); /* "work", "import", "verify" */
const char *flow_state_name(const Flow *f);
/* A verification that could not be registered, and is tried again: meanwhile nothing of it runs. */
bool flow_is_waiting(const Flow *f);
bool flow_is_stopping(const Flow *f);
json_t *flow_spec(const Flow *f);    /* borrowed; NULL if it cannot be made */
json_t *flow_vm_spec(const Flow *f); /* the same */
const char *flow_base(const Flow *f);
uint64_t flow_limit_output(const Flow *f);
uint64_t flow_limit_bundle(const Flow *f);
/* What this run told beside its output, with these bytes. */
uint64_t flow_count_events(Flow *f, uint64_t bytes);
/* May this run's units call? */
bool flow_accepts_run(const Flow *f);
bool flow_accepts_import(const Flow *f);
/* May the run be flagged once more? Counts. */
bool flow_take_flag(Flow *f);
/* The run's own word on how it ended; recorded before this returns. facts is borrowed, may be NULL. */
int flow_on_finish(Flow *f, const char *outcome, const char *reason, const json_t *facts);
int flow_on_imported(Flow *f, bool ok, const char *reason, const char *commit, const json_t *facts);

/* Its last word has come, and what it brought is being stored: until that is done, no end of its unit is a loss, nobody hands the run back, and its time is that of a
 * disk. false: it has to be said again, and if the unit is gone, the run is lost. */
void flow_set_storing(Flow *f, bool storing);

/* Its enforcers disagree, which is on record before this returns. Every later end of this run is an error with that as its reason; of an operator's stop it is part of
 * the reason. Said again, it changes nothing. */
int flow_on_mismatch(Flow *f, const char *text);
/* That as a reason, borrowed; NULL: they agree as far as anybody knows. */
const char *flow_mismatch(const Flow *f);

/* Was the run's agreement check, or what that rests on, the first of its units to go? Then what the run says of itself afterwards counts for nothing. */
typedef enum CheckLoss { CHECK_THERE, CHECK_STOPPED, CHECK_DIED } CheckLoss;
CheckLoss flow_check_loss(const Flow *f);

/* ---- flow-slice.c ---- */

/* Was the slice of all runs, or that of this run, stopped under it, or one of its units, or did one die? `done` is called once, maybe at once: "anchorhold-runs.slice was
 * stopped", "anchor-vm@r0123456789ab.service ended: signal 9", or NULL if nothing else is the matter. `reason` is what it was said to be. The flow may be gone by then. */
typedef void (*FlowLost)(const char *what, void *userdata);
void flow_ask_slice(Flow *f, const char *reason, FlowLost done, void *userdata);
/* The reason with that before it, if there is something; that alone, if the reason is of the same unit. The caller's. */
char *flow_lost_reason(const char *what, const char *reason);

/* ---- drain.c ---- */

/* Hands back what runs for longer than a drain allows. */
void drain_tick(Manager *m);
int drain_on_drain(IpcCall *call, json_t *params, void *userdata);
int drain_on_undrain(IpcCall *call, json_t *params, void *userdata);
/* null, or {actor, reason, left_s}; the caller's. */
json_t *drain_status(Manager *m);

/* ---- space.c ---- */

/* How much is free, and is that less than the reserve? A change is recorded. */
void space_look(Manager *m);
/* The same, every two seconds; and policy anew while somebody waits for space, or for a host.json that can be used. */
void space_tick(Manager *m);
/* Is there room for one more lease? Else m->space.reason says why not. */
bool space_admits(Manager *m);
/* Is there room for a file of that size? */
bool space_holds(Manager *m, uint64_t bytes);
/* {free, total, reserve, low, reason}; the caller's. */
json_t *space_status(Manager *m);

/* ---- prune.c ---- */

/* Prunes what is over the limits when it is time, which is once an hour and when space gets low. */
void prune_tick(Manager *m);
void prune_soon(Manager *m);
/* The audit outbox is empty: what was recorded as pruned may go. */
void prune_on_audited(Manager *m);
int prune_on_prune(IpcCall *call, json_t *params, void *userdata);
/* Was that part of the item's files pruned? Then the call is refused, and this true. */
bool prune_refuse(Manager *m, IpcCall *call, const char *item, LedgerPart part);
void prune_free(Manager *m);

/* ---- site-policy.c ---- */

/* Notes which policy is in /etc/anchorhold, and whether it has to be accepted first (m->site_waits). */
int site_policy_look(Manager *m);
/* The same, with the digest of that folder. */
int site_policy_see(Manager *m, const char *digest);
int site_policy_on_accept(IpcCall *call, json_t *params, void *userdata);
/* {digest, waits, previous}; the caller's. */
json_t *site_policy_status(Manager *m);

/* ---- flow.c ---- */

/* A run's result was stored although it ended over budget. */
void flow_set_kept(Flow *f);
/* Is it about to end over budget, by this reason of its run or by what was decided here? */
bool flow_is_over_budget(const Flow *f, const char *reason);

/* ---- flow-budget.c ---- */

int flow_api_get_budget(IpcCall *call, json_t *params, void *userdata);
int flow_api_reserve(IpcCall *call, json_t *params, void *userdata);
int flow_api_unreserve(IpcCall *call, json_t *params, void *userdata);
int flow_api_over_budget(IpcCall *call, json_t *params, void *userdata);
/* What of its caps an item has used (ledger_budget_show()), by the workflow as it is now; the caller's, NULL: it has no caps. */
json_t *budget_of_item(Manager *m, const char *item, const char *workflow);

/* ---- scheduler.c ---- */

void scheduler_kick(Manager *m);
int scheduler_start(Manager *m);

/* ---- revocations.c ---- */

int revocations_start(Manager *m);
void revocations_free(Manager *m);
/* A run may have left tokens behind. */
void revocations_kick(Manager *m);
/* Is it the run whose tokens are brought back just now? Then its units are no strays. */
bool revocation_has(const Manager *m, const char *run);

/* ---- followers.c ---- */

/* Answers the call with the item's events, now and (follow) as they come. */
int follower_add(Manager *m, IpcCall *call, const char *item, const char *run, uint64_t from, bool follow);
void followers_wake(Manager *m);
void followers_free(Manager *m);

/* ---- run-endings.c ---- */

/* After the store: no copy comes back to one of them. */
void endings_free(Manager *m);

/* ---- operator-api.c ---- */

extern const IpcMethod operator_methods[];
void stop_alls_check(Manager *m);
void stop_alls_free(Manager *m);

/* ---- operator-wait.c ---- */

/* All is settled: what waited for that is handled now. */
void operator_waits_go(Manager *m);
void operator_waits_free(Manager *m);

/* ---- run-api.c ---- */

extern const IpcMethod run_methods[];
int run_api_credential(const Peer *peer, const char *id, char **ret_blob, size_t *ret_size, void *userdata);
void run_api_credential_denied(const Peer *peer, const char *claimed, const char *reason, void *userdata);
