/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Shared by run.c (what happens when), run-boot.c (the microVM's start), run-guest.c (what is done in it) and run-record.c (what must be on record first). */

#include "audit/audit.h"
#include "run/run-calls.h"
#include "run/run-command.h"
#include "run/run-output.h"
#include "run/run-plan.h"
#include "run/run-text.h"
#include "run/run.h"
#include "vmm/guest-client.h"
#include "vmm/qmp.h"

#define RUN_REPOSITORY "/workspace/repo"
#define RUN_SEED "/workspace/seed.bundle"
#define RUN_AUDIT_PATIENCE_USEC (60ULL * 1000 * 1000)
#define RUN_ANCHORD_PATIENCE_USEC (60ULL * 1000 * 1000)

/* In this order; each is entered once, but for the steps', which repeat, and any may go to STAGE_VERDICT. */
typedef enum RunStage {
        STAGE_SPEC,        /* what shall be done? meanwhile the VM boots */
        STAGE_BOOT,
        STAGE_CA_FILE,     /* the run's CA certificate into the guest: as a file … */
        STAGE_CA_LOCAL,    /* … and as one of those of which update-ca-certificates makes the bundle anew … */
        STAGE_CA_BUNDLE,   /* … and at the end of the system's bundle, of which Java's store is made */
        STAGE_SEED_BUNDLE,
        STAGE_CLONE,
        STAGE_STEP_NEXT,
        STAGE_STEP_AUDIT,
        STAGE_STEP_FILES,
        STAGE_STEP_EXEC,
        STAGE_STEP_DRAIN,  /* anchord has not acknowledged all output yet */
        STAGE_COLLECT,
        STAGE_VERDICT,     /* recorded, then told to anchord */
        STAGE_FLUSH,       /* what the last step wrote goes first */
        STAGE_FINISH,
        STAGE_POWEROFF,
        STAGE_DONE,
} RunStage;

/* A record that must be there before the run goes on. */
typedef struct RunRecord {
        Run *run;                     /* borrowed */
        const char *event;            /* a literal */
        json_t *data;                 /* owned */
        AuditDone done;
        char key[64];
        bool said;                    /* that it is waited for */
        uint64_t until;               /* CLOCK_BOOTTIME */
        sd_event_source *timer;       /* ref */
} RunRecord;

struct Run {
        sd_event *event;              /* ref */
        char *id;                     /* owned; so are the next three */
        char *channel, *qmp_path;
        json_t *guest_credentials;    /* owned; {"ca_pem", "sentinels"} or NULL */
        const char *ca_pem;           /* borrowed from it; NULL: none */
        RunCalls *calls;              /* owned */
        AuditClient *audit;           /* owned */
        RunRecord step_record, verdict_record; /* the run may end while a step waits for its own */
        RunRecord told_record, error_record;   /* the run goes on meanwhile, but nothing else of it is recorded before: see run_told() */
        unsigned n_records;
        uint64_t audit_patience_usec;
        RunOutput *output;            /* owned */
        RunStage stage;
        sd_event_source *turn;        /* ref; defer: does what a handler must not do itself */
        sd_event_source *run_timer;   /* ref */

        RunSpec spec;
        int seed;                     /* owned; the seed bundle */

        /* boot */
        int channel_fd;               /* owned until the client has it */
        GuestClient *client;          /* owned */
        QmpClient *qmp;               /* owned */
        sd_event_source *boot_timer;  /* ref */
        unsigned boots;
        uint64_t boot_started, boot_usec;
        bool rebooting;               /* waiting for the hanging VM to end */
        char boot_reason[256];
        json_t *guest;                /* owned; what the guest says of itself */

        /* loss of the session, handled on the next turn */
        bool lost;
        GuestLoss loss;
        char loss_detail[256];

        /* step */
        RunPlan plan;
        RunStage put_then;            /* where a put leads */
        size_t file;                  /* the step's file that goes in next */
        GuestStream *stream;          /* borrowed; what runs in the guest now */
        sd_event_source *step_timer;  /* ref */
        unsigned step_signals;        /* TERM, then KILL */
        bool step_timed_out;
        uint64_t step_started;
        RunStepEnd step_end;
        RunTail tail;                 /* end of what the step wrote */
        char *feedback;               /* owned; for the agent's next round */
        json_t *steps_done;           /* owned; facts */

        /* the budget for model calls is used up: nothing new is begun, what there is is collected */
        bool over_budget;
        sd_event_source *wrap_up_signal, *wrap_up_timer; /* ref */

        /* end */
        bool confine;
        int place;                    /* owned; an empty file, for the result bundle */
        int result;                   /* owned; the result bundle */
        uint64_t result_size;
        const char *outcome;          /* NULL: not decided */
        char reason[512];
        int last_status;              /* of an exec step; -1: none */
};

/* run.c */
void run_advance(Run *r, RunStage stage);
void run_end(Run *r, const char *outcome, const char *format, ...) __attribute__((__format__(__printf__, 3, 4)));
void run_event(Run *r, const char *kind, json_t *data); /* takes data over */
void run_schedule(Run *r);

#define RUN_OVER_BUDGET "over budget"

/* run-record.c */

/* Records an event, which takes `data` over, for as long as that takes: `done` gets the run, and 0 when it is durable; negative errno when auditd refuses it or
 * does not answer within the run's patience. */
void run_record(Run *r, RunRecord *p, const char *event, json_t *data, AuditDone done);
void run_record_done(RunRecord *p);
/* The same for what has happened already: the run goes on, but neither does a step begin nor is the verdict recorded before. */
void run_record_told(Run *r, RunRecord *p, const char *event, json_t *data);
/* Is all of that on record (or given up)? If not, run_advance() comes to the same stage again once it is. */
bool run_told(const Run *r);

/* run-boot.c */
int run_boot_connect(Run *r);
void run_boot_greet(Run *r);
void run_boot_lost(Run *r);

/* run-guest.c */
void run_put_text(Run *r, const char *path, const char *text, RunStage then);
/* The run's CA behind those of the system, and all of them as Java's store. */
void run_put_bundle(Run *r, RunStage then);
void run_put_seed(Run *r);
void run_clone(Run *r);
void run_step_next(Run *r);
void run_step_audit(Run *r);
void run_step_files(Run *r);
void run_step_exec(Run *r);
void run_step_done(Run *r);
void run_collect(Run *r);
void run_step_abandon(Run *r);
/* Ends what a step runs in the guest, as a time limit does. */
void run_step_expire(Run *r);
extern const RunOutputHandler run_output_handler;
