/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Shared by flow.c (the states), flow-begin.c (to a run that is on its way), flow-plan.c (what it is made from), flow-setup.c (plan, registration, release) and flow-cleanup.c (the end of units),
 * flow-slice.c (why a run was lost), flow-units.c (what systemd tells of its units). */

#include "api/manager-internal.h"
#include "api/spec.h"
#include "api/unit-trail.h"

typedef enum FlowState {
        FLOW_AUDITING,
        FLOW_REGISTERING,
        FLOW_STARTING,
        FLOW_ACTIVE,
        FLOW_CLEANING,
        FLOW_RELEASING,
} FlowState;

/* A kind of note that the next life of anchord reads, beside those of ledger.h; also how a reason begins. */
#define NOTE_MISMATCH "enforcement.mismatch"

typedef enum FlowStage { STAGE_WORK, STAGE_IMPORT, STAGE_VERIFY } FlowStage;

struct Flow {
        Manager *manager; /* borrowed */
        Flow *next;
        LedgerItem item;  /* as it was leased or taken up; state and revision grow old */
        char run[ID_LENGTH + 1];
        FlowStage stage;
        FlowState state;
        sd_event_source *timer;         /* owned; of the state */
        sd_event_source *cleanup_timer; /* owned */
        sd_event_source *start_timer;   /* owned; to ask systemd again */
        uint64_t cleanup_since;         /* CLOCK_MONOTONIC */
        bool listing, look_again;
        uint64_t kill_since; /* CLOCK_MONOTONIC; 0: nothing is killed */
        unsigned killed;     /* bits: of flow-cleanup.c's list */
        bool preparing;                 /* AUDITING, and the policy is being read for it */
        unsigned pending;               /* answers that REGISTERING and RELEASING wait for */
        char *refused;                  /* owned; what one of them was, of a verification that is registered again later */
        unsigned register_try;          /* how often it was begun to be registered: an answer to an earlier try is none */
        uint64_t register_until;        /* CLOCK_MONOTONIC; for so long */
        bool register_waits;            /* and that it waits was noted */
        uint64_t expires;               /* CLOCK_REALTIME; until then secretd keeps what the run is registered with, however often it is asked; 0: it was not yet */
        uint64_t started_monotonic;     /* when its unit was known to run; 0: not in this life of anchord */
        uint64_t started_realtime;      /* the same, as an earlier life has it in the ledger; 0: neither */

        json_t *plan;                   /* owned; what the runs of this lease are made from (flow-plan.c), NULL: not known yet */
        json_t *spec, *vm_spec;         /* owned; of the run under way */
        uint64_t run_s, output_bytes, bundle_bytes;
        uint64_t event_bytes;           /* what the run under way told beside its output, as long as this process knows it */
        bool has_verify;
        PolicyBudget budget, host_budget; /* of the latter the month */
        bool capped;                    /* any of them has a cap */
        bool host_unknown;              /* host.json could not be used when they were read: for a run that was taken up again */
        bool summary_used;              /* the last model call was granted */
        char *over_budget;              /* owned; why the run must come to its end, NULL: it need not */
        bool kept;                      /* of a run that ended so there is a result */
        bool tcg, tcg_fallback;
        char accel_reason[160];
        char egress_digest[HEX_SHA256_SIZE];

        char *outcome, *reason;         /* owned; of the run under way once it ended */
        json_t *facts;                  /* owned */
        char *commit;                   /* owned; the checked result */
        char why[192];                  /* what ended while the run was starting: its own unit, or one that it needs, and how */
        UnitTrail trail;                /* of its units, since it was started */
        unsigned listeners_begun;       /* a bit for each that systemd has begun to start; flow-units.c */
        char failed_unit[64];           /* the last one that was noted */
        unsigned n_flags;               /* so far */
        bool stop;                      /* an operator wants it to end */
        char *stop_reason;              /* owned */
        bool storing;                   /* its last word is here, its result not yet */
        char *gone;                     /* owned; its unit ended meanwhile, and how */
        char *mismatch;                 /* owned; its enforcers were found to disagree: it ends with that, whatever is said from then on */
        bool requeue;                   /* not the item's fault: no attempt is lost */
        bool verify_again;              /* and the item goes back to the beginning of its verification only, which never ran */
        char *handed_back;              /* owned; why, as the ledger has it; NULL: it has not */
        bool unclean;                   /* something of the run may be left; the scheduler's sweep tries again */
};

/* ---- flow.c ---- */
void flow_set_state(Flow *f, FlowState state);
/* Starting or active: how its units are is of interest. */
bool flow_is_live(const Flow *f);
/* Reads the item again and changes it under our lease: 0 or LEDGER_E_…, logged. */
int flow_transition(Flow *f, LedgerChange c);
/* The item failed, with what follows from that; the flow goes. */
void flow_fail(Flow *f, const char *reason);
/* Records how the run ended, once, and begins to clean up. facts is borrowed, may be NULL. */
void flow_end_run(Flow *f, const char *outcome, const char *reason, const json_t *facts);
void flow_on_clean(Flow *f);
void flow_on_released(Flow *f);
/* What a disagreement of its enforcers says as a reason; from then on the run can end in nothing else. */
int flow_keep_mismatch(Flow *f, const char *text);

/* ---- flow-begin.c ---- */
/* systemd is asked for anchor-run@ or anchor-import@. */
void flow_start_unit(Flow *f);
/* The unit runs: item and ledger say so from now on. */
void flow_confirm_started(Flow *f);
/* REGISTERING took too long. */
void flow_on_unregistered(Flow *f);
/* systemd did not start it: with what became of the job, and what is known of the cause. */
void flow_end_unstarted(Flow *f, const char *result);
void flow_on_registered(Flow *f, const char *error, const char *reason);
/* A run of its own for the checks. */
void flow_begin_verify(Flow *f);

/* ---- flow-setup.c ---- */

/* The item was leased just now: freezes what its runs are made from, of policy as it was last read, template and host, and makes the specs. NULL, or why it cannot be
 * (valid until the next call). */
const char *flow_prepare(Flow *f);
/* The same for a later stage, or in a later life of anchord: from what was frozen. */
const char *flow_prepare_again(Flow *f);
int flow_register(Flow *f);
int flow_release(Flow *f);

/* ---- flow-plan.c ---- */

/* f->plan anew. NULL, or why it cannot be made. */
const char *flow_plan_make(Flow *f, const PolicyWorkflow *w, const json_t *harness, const json_t *manifest, const Accel *accel);
/* Limits, budget, accelerator and specs of run and stage, as f->plan has them. The same. */
const char *flow_plan_take(Flow *f);

/* ---- flow-slice.c ---- */

/* Ends a run that is gone without having said why; if its slice or another of its units was the cause, the reason names that. */
void flow_end_lost(Flow *f, const char *reason);

/* ---- flow-budget.c ---- */
void flow_set_budget(Flow *f, const PolicyBudget *b);

/* ---- flow-cleanup.c ---- */
void flow_cleanup_start(Flow *f);
/* Something changed: look at once. */
void flow_cleanup_look(Flow *f);
void flow_cleanup_kill(Flow *f);
