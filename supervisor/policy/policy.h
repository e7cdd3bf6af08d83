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
        unsigned line;                 /* of the value at the pointer, or of what lacks it; 0: unknown */
} PolicyFinding;

typedef struct Policy Policy;

/* ---- egress ---- */

typedef enum EgressVerdict { EGRESS_DENY, EGRESS_PASS, EGRESS_INSPECT } EgressVerdict;
typedef enum EgressProtocol { EGRESS_TLS, EGRESS_HTTP, EGRESS_RAW } EgressProtocol;

/* Immutable. What is borrowed from it lives as long as it does, or as one that was made from it. */
typedef struct EgressPolicy EgressPolicy;

typedef struct EgressDecision {
        EgressVerdict verdict;
        EgressProtocol protocol;   /* what the port must carry */
        const char *rule;          /* borrowed: "egress/code-fix.json#/allow/0", "live/1", or "default" */
        const char *reason;        /* static: "allowed", "no-rule", "denied-by-rule", "port", "protocol", "method", "path", "git-repository"
                                    * (no rule about git is for that repository), or one of policy-git.h */
        const char *file;          /* borrowed: where the rule stood when it was read; "" for a live one and for "default" */
        unsigned line;             /* 0: unknown */
        const char *who;           /* borrowed: who added a live rule; else NULL */
        const char *git;           /* borrowed: of a request that is allowed by a rule with "git", the rest of what that says, as JSON (policy-git.h) */
} EgressDecision;

/* Lower case, no trailing dot, A-labels (ASCII only), LDH labels, 253 bytes. -EINVAL otherwise, also for what
 * looks like an address (a last label of digits). */
int egress_normalise_name(const char *name, char ret[static 254]);

/* The same for a name as a person writes it: an IDN becomes its A-labels (UTS #46, non-transitional). Returns what is wrong, or NULL. */
const char *egress_written_name(const char *text, char ret[static 254]);

/* What is wrong with a name that egress_normalise_name() refuses. */
const char *egress_name_fault(const char *name);

/* May anybody register a name directly below this one? */
bool egress_is_public_suffix(const char *name);

/* May this name be looked up at all, on any port? ret_rule (may be NULL) gets the rule that decided, or "default". */
bool egress_policy_knows(const EgressPolicy *p, const char *name, const char **ret_rule);

/* How many distinct names a run may use through the wildcard rule that allows this name (64 unless the rule says
 * otherwise); 0 if an exact rule allows it or none does. *ret_pattern (may be NULL) gets that rule's "*.example.org". */
unsigned egress_policy_name_budget(const EgressPolicy *p, const char *name, const char **ret_pattern);

/* Names ("api.example.org") and wildcards ("*.example.org") whose TLS may be inspected, each once: the CA's constraints. Borrowed. */
size_t egress_policy_inspected(const EgressPolicy *p, const char *const **ret_patterns);

/* The verdict for a connection (method and path NULL: not known yet) or for one request on it (both given; path as in
 * the request line). A connection whose requests must be looked at first is EGRESS_INSPECT on a tls port; on an http
 * port it is EGRESS_PASS, and the proxy asks again for each request. The rules of precedence are atop
 * policy-egress-decide.c.
 *
 * A literal address in place of the name ("10.20.0.7", "fd00::1", as inet_ntop() writes it) is weighed by rules about networks alone. */
void egress_policy_decide(const EgressPolicy *p, const char *name, uint16_t port,
                          const char *method, const char *path, EgressDecision *ret);

/* Has some rule that covers this name a method or a path? If not, what was decided for a connection holds for every request on it. */
bool egress_policy_weighs_requests(const EgressPolicy *p, const char *name, uint16_t port);

/* Has some rule that covers this name a path on that port? */
bool egress_policy_weighs_paths(const EgressPolicy *p, const char *name, uint16_t port);

/* {"verdict", "reason", "rule", "file", "line"} and, if there are such, "protocol", "who"; NULL when out of memory. */
json_t *egress_decision_to_json(const EgressDecision *d);

/* Some name without a wildcard that is allowed at *ret_port, and a port that no allow rule names. False if there is none. */
bool egress_policy_example(const EgressPolicy *p, char ret_name[static 254], uint16_t *ret_port, uint16_t *ret_unlisted);

/* Over what is allowed and denied, in hexadecimal. The same for two policies that decide alike; a live rule changes it. */
const char *egress_policy_digest(const EgressPolicy *p);

EgressPolicy *egress_policy_free(EgressPolicy *p);
DEFINE_CLEANUP(EgressPolicy *, egress_policy_free)

/* ---- names that no policy may allow (policy-never.c) ---- */

typedef enum EgressNeverKind { EGRESS_NEVER_METADATA, EGRESS_NEVER_LOOPBACK, EGRESS_NEVER_UNLISTED } EgressNeverKind;
typedef struct EgressNever {
        const char *name;
        EgressNeverKind kind;
} EgressNever;

/* All of them: what the agreement check asks each policy for. */
const EgressNever *egress_never(size_t *ret_n);
/* Does "a.example.org" or "*.example.org" cover it? And the first that it covers, NULL if there is none. */
bool egress_never_covers(const EgressNever *n, const char *pattern);
const EgressNever *egress_never_find(const char *pattern);
/* One that the policy allows on some port; NULL: it allows none. */
const EgressNever *egress_policy_allows_never(const EgressPolicy *p);
/* "is …": why it is none that may be allowed. */
const char *egress_never_reason(const EgressNever *n);

/* The addresses that it asks for; rules about networks must not have them (policy-network.c). The last is for documentation (RFC 5737). */
#define EGRESS_ASKED_METADATA "169.254.169.254"
#define EGRESS_ASKED_LOOPBACK "127.0.0.1"
#define EGRESS_ASKED_HOST "192.0.2.1"

/* ---- a run's own policy: frozen, and changed live ---- */

/* Everything about it as text, live rules and origins of rules included, the caller's; NULL when out of memory. */
char *egress_policy_freeze(const EgressPolicy *p, size_t *ret_size);
/* The reverse, without a look at any other file. -EINVAL: it is no such text (ret_reason, may be NULL, says why; the caller's). */
int egress_policy_thaw(const char *data, size_t size, EgressPolicy **ret, char **ret_reason);

/* The policy and one rule more, which `who` adds: "api.example.org:443", "db.example.org:5432/raw", a denial also without a port,
 * or one rule in the JSON of the policy file. `p` may be NULL: nothing is allowed so far. An opposite live rule about the same is taken back.
 * "live/4": no rule is added, but that live denial (allow), or permission (not allow), is taken back.
 * -EINVAL: it is no rule, -ENOTSUP: it would ask for the inspection of a name that `p` has not inspected so far, so that
 * the run's CA does not sign for it, -EPERM: it would allow a name that no policy may (policy-never.c), -E2BIG: too many live rules; then *ret_reason says so (the caller's). */
int egress_policy_amend(const EgressPolicy *p, bool allow, const char *rule, const char *who, EgressPolicy **ret, char **ret_reason);

/* Of the live permission that was added last: each port at which a denial beats it, [{"name", "port", "rule", "file", "line", "who"}]. NULL when out of memory. */
json_t *egress_policy_overruled(const EgressPolicy *p);
/* Is this the label of a live rule? */
bool egress_is_live_label(const char *text);

/* A policy that was read anew, with the live rules of the old one. Both may be NULL. -ENOTSUP and -EPERM as above, with the name in *ret_reason. */
int egress_policy_rebase(const EgressPolicy *fresh, const EgressPolicy *old, EgressPolicy **ret, char **ret_reason);

/* Whether `p` inspects a name that `before` (NULL: nothing) does not; *ret_pattern (may be NULL, borrowed from p) is the first. */
bool egress_policy_inspects_more(const EgressPolicy *p, const EgressPolicy *before, const char **ret_pattern);

/* ---- paths ---- */

/* Is this request path (query ignored) covered by one of the patterns? What a pattern means is atop policy-path.c. NULL: any path. A path
 * that an origin may read in two ways (dot segments, "//", needless percent-encoding, a backslash) is covered by none. */
bool policy_path_matches(const json_t *patterns, const char *path);

typedef enum PolicyPathRelation {
        POLICY_PATH_OTHER,
        POLICY_PATH_SAME,
        POLICY_PATH_UNCLEAR, /* an origin may read it in two ways, or drops parameters: what it is cannot be said */
} PolicyPathRelation;

/* Is this request path (query ignored) the one that the pattern means? For telling calls apart, not for permissions: a pattern without
 * a wildcard is one path and nothing below it; a slash at the path's end makes no difference. */
PolicyPathRelation policy_path_is(const char *pattern, const char *path);

/* ---- units ---- */

/* "512M" → bytes: digits and one of B K M G T, powers of 1024. -EINVAL, -ERANGE. */
int policy_parse_size(const char *s, uint64_t *ret);
/* "90s", "1h 30min" → seconds; units s min h d. -EINVAL, -ERANGE. */
int policy_parse_duration(const char *s, uint64_t *ret);

/* ---- the rest ---- */

#define POLICY_NO_CAP UINT64_MAX

typedef struct PolicyCaps {
        uint64_t requests, tokens, cost_microusd; /* POLICY_NO_CAP */
} PolicyCaps;

/* What model calls may use; atop policy-budget.c. */
typedef struct PolicyBudget {
        PolicyCaps run, item, month;
        unsigned soft_percent;
        bool lower_max_tokens;
        uint64_t summary_tokens, wrap_up_s;
} PolicyBudget;

void policy_budget_init(PolicyBudget *ret); /* no caps */
bool policy_budget_has_caps(const PolicyBudget *b);
/* "2.50 USD" → micro-dollars. -EINVAL, -ERANGE. */
int policy_parse_cost(const char *s, uint64_t *ret_microusd);

typedef struct PolicyStep {
        const char *name;
        const char *kind;           /* "prepare", "agent", "check", "exec" */
        const json_t *argv;         /* check, prepare; NULL for agent (the harness has it) and exec (the item has it) */
        const char *cwd;            /* NULL: not named, so the harness's for an agent, else where the work is (api/spec.c) */
        const json_t *env;          /* {"K": "V" | {"sentinel": "CREDENTIAL"}}, or NULL */
        uint64_t timeout_s;
        unsigned feedback_rounds;   /* check: how often the agent may be told and run again */
} PolicyStep;

/* No workflow may allow a larger one. */
#define POLICY_BUNDLE_BYTES_MAX (4ULL << 30)

typedef struct PolicyWorkflow {
        const char *name, *template_name, *harness, *egress, *verify_egress; /* harness, egress NULL: none */
        bool repository;            /* takes a seed bundle and gives a result bundle */
        const json_t *credentials;  /* array of names, never NULL */
        uint64_t memory_mib, vcpus, disk_mib, run_s, attempts, output_bytes, bundle_bytes;
        const PolicyStep *steps;
        size_t n_steps;
        const PolicyStep *verify;
        PolicyBudget budget;
        size_t n_verify;   /* checks in the second microVM; none: nothing to verify */
        const char *digest;         /* over this workflow and everything that it names */
} PolicyWorkflow;

/* harness/NAME.json, credentials/NAME.json, providers/NAME.json as checked JSON; "credentials" also through: */
typedef struct PolicyCredential {
        const char *name, *provider;         /* provider may be NULL */
        const char *kind;                    /* "static": a value that somebody sealed to the host; "github-app": a key that mints them, see PolicyApp */
        const char *on_foreign;              /* "refuse", "pass", "replace" */
        const char *prefix, *alphabet;       /* sentinel's shape, as secret/sentinel.h takes it */
        const char *checksum;                /* "crc32-base62", or NULL */
        uint64_t length;                     /* with the prefix */
        const json_t *hosts;                 /* array of strings, exact names */
        const json_t *ports;                 /* array of integers */
        const json_t *methods, *paths;       /* arrays; paths as in policy_path_matches(); NULL: any */
        const json_t *places;                /* as atop policy-credential.c */
        const json_t *document;              /* the whole file */
} PolicyCredential;

/* ---- what an egress policy must leave alone for a credential's sake (policy-reach.c) ---- */

/* What a policy is compared with, of one credential; NULL when out of memory. */
json_t *policy_credential_bounds(const PolicyCredential *c);
/* Of each of a workflow's: an array, the caller's. */
int policy_workflow_bounds(const Policy *p, const PolicyWorkflow *w, json_t **ret);

/* A reason for each thing that the policy allows and should not, of one credential's bounds, until false is returned; NULL: there is no memory for it.
 * live_only: of what lets the run write, the live rules alone are looked at, since the files' were before. */
typedef bool (*PolicyBreach)(const char *reason, void *userdata);
void egress_policy_ask_bounds(const EgressPolicy *p, const json_t *bounds, bool live_only, PolicyBreach on_breach, void *userdata);
/* Of all of a workflow's. -EPERM: it does not, and *ret_reason says why not (the caller's). `p` NULL allows nothing. */
int egress_policy_keeps_bounds(const EgressPolicy *p, const json_t *bounds, bool live_only, char **ret_reason);

/* Of a credential whose kind is "github-app". */
typedef struct PolicyApp {
        const char *id;          /* the app's id or client id; borrowed, as is all of JSON */
        uint64_t installation;   /* 0: to be looked up */
        char host[254];          /* of the API */
        uint16_t port;
        char base[128];          /* what its paths begin with: "", "/api/v3" */
        const json_t *repositories; /* array of OWNER/NAME and OWNER/ followed by a star */
        const json_t *permissions;  /* {NAME: "read" | "write" | "admin"} */
} PolicyApp;

/* From the credential's file, which was checked: -EINVAL if it was not, or is of another kind. */
int policy_app_read(const json_t *credential, PolicyApp *ret);
/* May a token for that repository be minted? */
bool policy_app_covers(const PolicyApp *app, const char *repository);
/* Is this OWNER/NAME? NULL is none. */
bool policy_is_repository(const char *s);

/* Loads the whole set. root is "" on a host; a test gives a folder. `ret_findings` (may be NULL) is the
 * caller's: policy_findings_free(). The set is returned even if files had findings; only -ENOMEM and unreadable
 * directories fail. */
int policy_load(Policy **ret, const char *root, PolicyFinding **ret_findings, size_t *ret_n_findings);
/* A set of one egress policy from a file that need not be installed, with the host.json below root; its name is in policy_list(). */
int policy_load_egress_file(Policy **ret, const char *root, const char *file, PolicyFinding **ret_findings, size_t *ret_n_findings);
/* A set of host.json alone. Unlike the others this fails (-EINVAL) if it has a finding, is empty or missing; why is then in *ret_reason (the caller's). */
int policy_load_host(Policy **ret, const char *root, char **ret_reason);
/* Would this text do as that file of an operator's? (An egress policy: on a host whose host.json names no networks.) 0, or -EINVAL and why not in *ret_reason (the caller's). */
typedef enum PolicyTextKind { POLICY_TEXT_HOST, POLICY_TEXT_AUTHORITY, POLICY_TEXT_EGRESS } PolicyTextKind;
int policy_check_text(PolicyTextKind kind, const char *data, size_t size, char **ret_reason);
Policy *policy_free(Policy *p);
DEFINE_CLEANUP(Policy *, policy_free)
void policy_findings_free(PolicyFinding *findings, size_t n);

/* What is no error but should be known, of files that load. Borrowed. */
size_t policy_warnings(const Policy *p, const PolicyFinding **ret);

/* Each is NULL when there is no such object, or when it or something that it names had a finding; the
 * reason is then in ret_reason (borrowed from the set, may be NULL): "no workflow of that name" or file, pointer, reason. */
const PolicyWorkflow *policy_find_workflow(const Policy *p, const char *name, const char **ret_reason);
/* Its file, whether it can be used or not; NULL: there is none. */
const char *policy_file_of_workflow(const Policy *p, const char *name);
const EgressPolicy *policy_find_egress(const Policy *p, const char *name, const char **ret_reason);
const PolicyCredential *policy_find_credential(const Policy *p, const char *name, const char **ret_reason);
const json_t *policy_find_harness(const Policy *p, const char *name, const char **ret_reason);
const json_t *policy_find_provider(const Policy *p, const char *name, const char **ret_reason);

/* Names of one kind ("workflows", "egress", …), for listings and completion. */
size_t policy_list(const Policy *p, const char *kind, const char *const **ret_names);

/* authority.json, checked; NULL if there is none or it had a finding. */
const json_t *policy_authority(const Policy *p);

/* Over every object that loads, host and authority included. */
const char *policy_digest(const Policy *p);

/* Over every file below the operator's folder (POLICY_OPERATOR_DIR), by name and content, whatever it means: what changes if anybody changes
 * anything there. A folder that is not there has the digest of none. */
int policy_site_digest(const char *folder, char ret[static HEX_SHA256_SIZE]);

/* An amount of the disk: bytes, per cent of the whole file system, or both; 0: not said. */
typedef struct PolicyAmount {
        uint64_t bytes, percent;
} PolicyAmount;

/* What of the disk is for what; atop policy-space.c. */
typedef struct PolicySpace {
        PolicyAmount reserve; /* the larger of both stays free */
        struct PolicySpaceLimit {
                PolicyAmount max; /* the smaller of both */
                uint64_t age_s;   /* 0: for ever */
        } bundles, logs;
        PolicyAmount scratch; /* of all microVMs' disks together */
} PolicySpace;

void policy_space_init(PolicySpace *ret); /* what holds where host.json says nothing */
/* Of a file system of that many bytes; a maximum that was not said is UINT64_MAX, a reserve 0. */
uint64_t policy_amount_largest(const PolicyAmount *a, uint64_t total);
uint64_t policy_amount_smallest(const PolicyAmount *a, uint64_t total);

/* host.json: {"accel": "auto"|"tcg"|"kvm", "resolvers": ["203.0.113.53"], "networks": ["203.0.113.0/24"],
 * "max_runs": 3, "boot_timeout": "30s", "strict": {"units": ["ssh.service"]}, "space": {"reserve": {"percent": 5}}}. */
enum { POLICY_BOOT_TIMEOUT_MAX_S = 120 }; /* host-health.service waits for two such boots */

typedef struct HostConfig {
        const char *accel;
        const json_t *resolvers;  /* empty: those of /etc/resolv.conf */
        const json_t *networks;   /* CIDR, admitted although not globally reachable */
        const json_t *nat64;      /* IPv6 prefixes behind which this network translates to IPv4; NULL if it does not say */
        uint64_t max_runs;
        uint64_t boot_timeout_s;  /* 0: it does not say, so by the accelerator (api/spec.h) */
        PolicyBudget budget;      /* of it, the month: over all runs of the host */
        const json_t *strict_units; /* which units of the host may send, in strict mode; NULL: it is off */
        PolicySpace space;
} HostConfig;
/* Never NULL: with no host.json, or one with findings, the vendor's ("auto", no networks, its reserve and ages). What is safe for whoever asks then is his to
 * know: a host whose file has findings may be meant to have other limits. */
const HostConfig *policy_host(const Policy *p);
/* Why the host.json that is there cannot be used, with its place; NULL if it can, or if there is none. Borrowed. */
const char *policy_host_reason(const Policy *p);
