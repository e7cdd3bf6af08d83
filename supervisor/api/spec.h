/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What one run is told to do, made from workflow, harness and item: pure functions from policy
 * objects to the JSON of docs/interfaces.md ("The run's spec"), and the checks that a submission must pass.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "policy/policy.h"
#include "vmm/channel.h"

#define REF_BASE "refs/anchorhold/base"
#define REF_RESULT "refs/anchorhold/result"

enum {
        TASK_SIZE_MAX = 256 * 1024,
        COMMAND_ARGS_MAX = 256,
        COMMAND_SIZE_MAX = 64 * 1024,
        STEP_FRAME_MAX = CHANNEL_PAYLOAD_MAX - 1024, /* the rest is for what anchor-run adds, and for the keys */
        SENTINEL_SIZE = 1024, /* at most, in a step's environment */
        BOOT_TIMEOUT_TCG_S = 60,
        BOOT_TIMEOUT_KVM_S = 15, /* one or two where KVM is real; a host that is itself emulated takes ten to twenty, and says so in host.json */
};

typedef struct SpecInput {
        const char *run, *item;
        bool verify;                  /* the second microVM: only the workflow's verify steps, on the result */
        int64_t attempt;
        const PolicyWorkflow *workflow;
        const json_t *harness;        /* NULL unless the workflow names one */
        const char *task;             /* may be NULL */
        const json_t *command;        /* array of strings for `exec` steps, or NULL */
        const char *base;             /* commit that the guest starts from; verify: the result. NULL without a repository */
        bool tcg;
        uint64_t boot_timeout_s;      /* host.json's; 0: by the accelerator */
} SpecInput;

/* How long one boot may take until the guest says hello; configured_s is host.json's, 0: it does not say. */
uint64_t spec_boot_timeout_s(uint64_t configured_s, bool tcg);

int spec_make_run(const SpecInput *in, json_t **ret);

/* What PID 1 hands to anchor-vm@ as credential `vm`. `manifest` is the template's. */
int spec_make_vm(const SpecInput *in, const json_t *manifest, json_t **ret);

/* The image of the agent that a harness needs, or NULL. Borrowed. */
const char *spec_agent(const json_t *harness);

typedef struct Submission {
        const char *workflow, *task, *repo, *base, *source; /* borrowed; NULL: not given */
        const json_t *command;
        bool has_bundle;
} Submission;

/* Does what was given fit the workflow? NULL if so, else the reason (static). */
const char *spec_check_submission(const PolicyWorkflow *w, const Submission *s);

/*
 * A step's argv, env and cwd go to the guest in one frame. Does each step of the work run fit, with the task and the command that were
 * given? *ret_reason is NULL if so; both are static, and the pointer says what was too long.
 */
int spec_check_frames(const SpecInput *in, const char **ret_pointer, const char **ret_reason);

/*
 * A seed bundle's head: version 2 or 3, no prerequisite, and exactly the one reference refs/anchorhold/base at `base`.
 * NULL if so, else the reason (static). `data` is the file's beginning.
 */
const char *spec_check_seed(const char *data, size_t size, const char *base);
