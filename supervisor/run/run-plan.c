/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "run/run-plan.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

bool run_step_end_is_good(const RunStepEnd *e) {
        return e->kind == RUN_END_STATUS && e->value == 0;
}

void run_step_end_describe(const RunStepEnd *e, char *ret, size_t size) {
        switch (e->kind) {
        case RUN_END_STATUS:
                (void) snprintf(ret, size, "exit status %d", e->value);
                break;
        case RUN_END_SIGNAL:
                (void) snprintf(ret, size, "killed by signal %d", e->value);
                break;
        case RUN_END_ERRNO:
                (void) snprintf(ret, size, "could not be started: %s", strerror(e->value));
                break;
        case RUN_END_TIMEOUT:
                (void) snprintf(ret, size, "time limit reached");
                break;
        }
}

void run_plan_init(RunPlan *p, const RunSpec *spec) {
        *p = (RunPlan) { .spec = spec, .round = 1, .feedback = spec->n_steps };
}

const RunStep *run_plan_next(const RunPlan *p) {
        return p->failed || p->next >= p->spec->n_steps ? NULL : p->spec->steps + p->next;
}

/* The last agent step before the one at i, or n_steps. */
static size_t find_agent(const RunSpec *spec, size_t i) {
        while (i > 0)
                if (spec->steps[--i].kind == RUN_STEP_AGENT)
                        return i;
        return spec->n_steps;
}

static void plan_fail(RunPlan *p, const RunStep *s, const RunStepEnd *end) {
        char how[128];

        run_step_end_describe(end, how, sizeof(how));
        p->failed = true;
        if (s->kind == RUN_STEP_EXEC)
                (void) snprintf(p->reason, sizeof(p->reason), "%s", how);
        else if (p->used[p->next] > 0)
                (void) snprintf(p->reason, sizeof(p->reason), "%s \"%.100s\": %s, after %u more rounds of the agent",
                                run_step_kind_name(s->kind), s->name, how, p->used[p->next]);
        else
                (void) snprintf(p->reason, sizeof(p->reason), "%s \"%.100s\": %s", run_step_kind_name(s->kind), s->name, how);
}

void run_plan_step_ended(RunPlan *p, const RunStepEnd *end) {
        const RunStep *s = run_plan_next(p);
        size_t agent;

        assert(s);
        if (run_step_end_is_good(end)) {
                p->next++;
                return;
        }

        agent = find_agent(p->spec, p->next);
        if (s->kind == RUN_STEP_CHECK && agent < p->spec->n_steps && p->used[p->next] < s->feedback_rounds) {
                p->used[p->next]++;
                p->round++;
                p->feedback = p->next;
                p->next = agent;
                return;
        }

        plan_fail(p, s, end);
}
