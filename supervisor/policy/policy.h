/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Policy files: loading, checking, and the compiled form that enforcers ask.
 *
 * A policy set is every file below policy/KIND/ of the vendor tree and the operator's tree; the same
 * file name in the operator's wins. Loading reports every finding with file, JSON pointer and reason;
 * one file that does not load makes its own objects unusable and leaves the others alone. The formats are in policy/schema/.
 *
 * Objects are borrowed from the set and live as long as it.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/cleanup.h"
#include "util/text.h"

#define POLICY_VENDOR_DIR "/usr/lib/anchorhold"
#define POLICY_OPERATOR_DIR "/etc/anchorhold"

typedef struct PolicyFinding {
        char *file, *pointer, *reason; /* owned */
} PolicyFinding;

typedef struct Policy Policy;

/* ---- egress ---- */

typedef enum EgressVerdict { EGRESS_DENY, EGRESS_PASS, EGRESS_INSPECT } EgressVerdict;
typedef enum EgressProtocol { EGRESS_TLS, EGRESS_HTTP, EGRESS_RAW } EgressProtocol;

typedef struct EgressPolicy EgressPolicy;

typedef struct EgressDecision {
        EgressVerdict verdict;
        EgressProtocol protocol;   /* what the port must carry */
        const char *rule;          /* borrowed: "egress/code-fix.json#/allow/0", or "default" */
        const char *reason;        /* static: "allowed", "no-rule", "denied-by-rule", "port", "protocol", "method", "path" */
} EgressDecision;

/* Lower case, no trailing dot, A-labels (thin: ASCII only), LDH labels, 253 bytes. -EINVAL otherwise. */
int egress_normalise_name(const char *name, char ret[static 254]);

/* May this name be looked up at all, on any port? */
bool egress_policy_knows(const EgressPolicy *p, const char *name, const char **ret_rule);
void egress_policy_decide(const EgressPolicy *p, const char *name, uint16_t port,
                          const char *method, const char *path, EgressDecision *ret);
const char *egress_policy_digest(const EgressPolicy *p);
/* The names (exact, or "*.example.org") of the rules that say `inspect`: what a run's CA may sign for. Borrowed. */
size_t egress_policy_inspected(const EgressPolicy *p, const char *const **ret_names);

/* ---- the rest ---- */

typedef struct PolicyStep {
        const char *name;
        const char *kind;           /* "prepare", "agent", "check", "exec" */
        const json_t *argv;         /* check, prepare; NULL for agent (the harness has it) and exec (the item has it) */
        const char *cwd;
        const json_t *env;
        uint64_t timeout_s;
        unsigned feedback_rounds;   /* check: how often the agent may be told and run again */
} PolicyStep;

typedef struct PolicyWorkflow {
        const char *name, *template_name, *harness, *egress, *verify_egress; /* harness, egress NULL: none */
        bool repository;            /* takes a seed bundle and gives a result bundle */
        const json_t *credentials;  /* array of names */
        uint64_t memory_mib, vcpus, disk_mib, run_s, attempts, output_bytes, bundle_bytes;
        const PolicyStep *steps;    size_t n_steps;
        const PolicyStep *verify;   size_t n_verify;   /* checks in the second microVM; none: nothing to verify */
        const char *digest;         /* over this workflow and everything that it names */
} PolicyWorkflow;

/* harness/NAME.json, credentials/NAME.json, providers/NAME.json as checked JSON; "credentials" also through: */
typedef struct PolicyCredential {
        const char *name, *provider;         /* provider may be NULL */
        const char *prefix, *alphabet;       /* sentinel's shape */
        uint64_t length;
        const json_t *hosts;                 /* array of strings, exact names */
        const json_t *ports;                 /* array of integers */
        const json_t *methods, *paths;       /* arrays; paths are prefixes, NULL: any */
        const json_t *places;                /* [{"header": "x-api-key"} | {"bearer": true}] */
        const json_t *document;              /* the whole file */
} PolicyCredential;

/* Loads the whole set. root is "" on a host; a test gives a folder. `ret_findings` (may be NULL) is the
 * caller's: policy_findings_free(). The set is returned even if files had findings; only -ENOMEM and unreadable
 * directories fail. */
int policy_load(Policy **ret, const char *root, PolicyFinding **ret_findings, size_t *ret_n_findings);
Policy *policy_free(Policy *p);
DEFINE_CLEANUP(Policy *, policy_free)
void policy_findings_free(PolicyFinding *findings, size_t n);

/* Each is NULL when there is no such object, or when it or something that it names had a finding; the
 * reason is then in ret_reason (borrowed from the set, may be NULL): "no workflow of that name" or file, pointer, reason. */
const PolicyWorkflow *policy_find_workflow(const Policy *p, const char *name, const char **ret_reason);
const EgressPolicy *policy_find_egress(const Policy *p, const char *name, const char **ret_reason);
const PolicyCredential *policy_find_credential(const Policy *p, const char *name, const char **ret_reason);
const json_t *policy_find_harness(const Policy *p, const char *name, const char **ret_reason);
const json_t *policy_find_provider(const Policy *p, const char *name, const char **ret_reason);

/* Names of one kind ("workflows", "egress", …), for listings and completion. */
size_t policy_list(const Policy *p, const char *kind, const char *const **ret_names);

/* host.json: {"accel": "auto"|"tcg"|"kvm", "resolvers": ["203.0.113.53"], "networks": ["203.0.113.0/24"],
 * "max_runs": 3}. */
typedef struct HostConfig {
        const char *accel;
        const json_t *resolvers;  /* empty: those of /etc/resolv.conf */
        const json_t *networks;   /* CIDR, admitted although not globally reachable */
        uint64_t max_runs;
} HostConfig;
const HostConfig *policy_host(const Policy *p);
