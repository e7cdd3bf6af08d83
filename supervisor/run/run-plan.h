/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Which step comes next, and what the run has come to: the rules of a workflow without any I/O.
 *
 * Steps run in order. A check that fails and has feedback rounds left sends the plan back to the agent
 * step before it, with the check's output; otherwise the first step that fails ends the run.
 */

#include <stdbool.h>

#include "run/run-spec.h"

/* How one step ended. */
typedef struct RunStepEnd {
        enum {
                RUN_END_STATUS,  /* value: exit status */
                RUN_END_SIGNAL,  /* value: signal */
                RUN_END_ERRNO,   /* value: errno; it never started */
                RUN_END_TIMEOUT, /* its own time limit */
        } kind;
        int value;
} RunStepEnd;

bool run_step_end_is_good(const RunStepEnd *e);
/* "exit status 2", "killed by signal 9", "time limit", … */
void run_step_end_describe(const RunStepEnd *e, char *ret, size_t size);

typedef struct RunPlan {
        const RunSpec *spec; /* borrowed */
        size_t next;
        unsigned round;      /* 1, and one more for each feedback */
        unsigned used[RUN_STEPS_MAX]; /* feedback rounds that each check has used */
        size_t feedback;     /* the check whose output the agent gets; n_steps: none */
        bool failed;
        char reason[384];    /* when failed */
} RunPlan;

void run_plan_init(RunPlan *p, const RunSpec *spec);

/* The step to run now, or NULL: all is done, or failed. */
const RunStep *run_plan_next(const RunPlan *p);

/* The step that run_plan_next() named has ended. */
void run_plan_step_ended(RunPlan *p, const RunStepEnd *end);
