/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A run's spec (docs/interfaces.md, "The run's spec") as anchor-run works with it. Pure. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/text.h"

typedef enum RunStepKind { RUN_STEP_PREPARE, RUN_STEP_AGENT, RUN_STEP_CHECK, RUN_STEP_EXEC } RunStepKind;

/* Everything in here is borrowed from the document. */
typedef struct RunStep {
        const char *name;
        RunStepKind kind;
        json_t *argv, *env, *files; /* env, files: NULL if there are none */
        json_t *display;            /* how to read an agent's output; NULL: as it is */
        const char *cwd, *input;    /* input: stdin, NULL for none */
        uint64_t timeout_s, feedback_rounds;
} RunStep;

enum { RUN_STEPS_MAX = 64 };

typedef struct RunSpec {
        json_t *document; /* owned */
        const char *run, *item, *workflow, *agent, *task; /* agent, task: may be NULL */
        bool verify;
        uint64_t boot_s, run_s, output_bytes, bundle_bytes;
        uint64_t wrap_up_s; /* how long a step may go on once the run is over budget */
        const char *base, *ref, *result_ref; /* base NULL: no repository */
        json_t *network;                     /* NULL: none */
        RunStep steps[RUN_STEPS_MAX];
        size_t n_steps;
} RunSpec;

/* Takes a reference of document. -EINVAL: *ret_reason (the caller's) says what is wrong. */
int run_spec_parse(json_t *document, RunSpec *ret, char **ret_reason);
void run_spec_done(RunSpec *s);

/* Of one of a step's files; -EINVAL: it has none. */
int run_file_mode(const json_t *file);

const char *run_step_kind_name(RunStepKind kind);
