/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the verbs about egress policy share. */

#include "ctl/ctl.h"
#include "policy/policy.h"

/* Calls io.anchorhold.Egress.METHOD with the caller's own rights. On failure says so and returns the exit status. */
CtlExit ctl_call_egress(Ctl *ctl, const char *what, const char *method, json_t *params, json_t **ret);

/* The run that is meant by an id: itself, or the one that an item is worked on by now. On failure says so and returns the exit status. */
CtlExit ctl_find_live_run(Ctl *ctl, const char *what, const char *subject, char ret[static ID_LENGTH + 1]);

/* What a person asks about. */
typedef struct CtlTarget {
        char name[254];   /* normalised, or a literal address */
        uint16_t port;
        bool http;        /* of a URL: there is a request as well */
        char path[4096];  /* of that request */
} CtlTarget;

/* A URL, HOST:PORT or ADDRESS:PORT. What is wrong, to stand behind the text, or NULL. */
const char *ctl_target_parse(const char *text, CtlTarget *ret);

/* What a port that nobody described most likely carries: "tls", "http" or "raw". */
const char *ctl_guess_protocol(uint16_t port);

typedef struct CtlPolicy {
        Policy *policy;           /* owned */
        PolicyFinding *findings;  /* owned */
        size_t n_findings;
} CtlPolicy;

/* Adds a finding for each workflow whose template, or its agent's image, is not installed below root ("": on this host). -ENOMEM. */
int ctl_policy_check_templates(const char *root, CtlPolicy *l);
void ctl_policy_done(CtlPolicy *l);
/* The host's policy files, or those below --root=. */
CtlExit ctl_policy_load(Ctl *ctl, CtlPolicy *ret);
/* One egress policy from a file; its findings are printed, and CTL_FAILED returned, if there are any. */
CtlExit ctl_policy_load_file(Ctl *ctl, const char *file, CtlPolicy *ret, const EgressPolicy **ret_egress);
void ctl_policy_print_findings(Ctl *ctl, FILE *f, const char *before, const PolicyFinding *findings, size_t n);
