/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the files of compiled egress policy share: path patterns, rules, and the index that finds them. */

#include <stdatomic.h>

#include "policy/policy-git.h"
#include "policy/policy-internal.h"

/* ---- paths (policy-path.c) ---- */

enum {
        PATH_PATTERN_MAX = 1024,
        PATH_REQUEST_MAX = 8192, /* a longer path is one that can be read in two ways */
        PATH_PIECES_MAX = 9,     /* what eight wildcards separate */
};

/* A pattern, decoded: the literal text between its wildcards. */
typedef struct PathPattern {
        const char *text;                 /* borrowed; as it was written */
        const uint8_t *bytes;             /* borrowed; the pieces, one behind the other */
        uint16_t n_bytes;
        uint16_t length[PATH_PIECES_MAX]; /* of each piece; the first is the head that every match begins with */
        uint16_t n_pieces;                /* one: no wildcard, a prefix */
        uint16_t across;                  /* bit i: the wildcard behind piece i is a "**" */
} PathPattern;

/* A request's path, decoded, without its query. */
typedef struct PathText {
        uint8_t bytes[PATH_REQUEST_MAX];
        size_t n;
        bool ambiguous; /* an origin may read it in two ways: then there is nothing in bytes */
        bool has_parameters; /* a segment has some (";x"), which an origin may drop */
} PathText;

/* What is wrong with it, or NULL. `bytes` has room for strlen(text). */
const char *path_pattern_parse(const char *text, uint8_t *bytes, PathPattern *ret);
void path_text_parse(const char *path, PathText *ret);
bool path_pattern_matches(const PathPattern *pattern, const PathText *path);

/* ---- names (policy-name.c) ---- */

/* Who else serves other people's sites from the same front ends as this name or what is below it; NULL if nobody known does. */
const char *egress_shared_host(const char *name);

/* ---- rules (policy-rules.c) ---- */

typedef enum EgressSubject { EGRESS_EXACT, EGRESS_WILDCARD, EGRESS_NETWORK } EgressSubject;

typedef struct EgressPort {
        uint16_t port;
        EgressProtocol protocol;
} EgressPort;

enum {
        EGRESS_RULES_MAX = 100000,      /* of one file, permissions and denials apart */
        EGRESS_PORTS_MAX = 64,          /* of one rule */
        EGRESS_PATHS_MAX = 256,         /* of one rule */
        EGRESS_METHODS_MAX = 64,        /* of one file */
        EGRESS_ENTRIES_MAX = 1 << 20,   /* of one file: each rule's ports times its paths */
        EGRESS_INSPECTED_MAX = 1024,    /* the run's CA lists each */
        EGRESS_LIVE_MAX = 256,
};

#define EGRESS_ANY_METHOD UINT64_MAX
#define EGRESS_NO_RULE UINT32_MAX

/* One rule. Everything that it points to belongs to its set. */
typedef struct EgressRule {
        EgressSubject subject;
        bool deny, inspect;
        const char *pattern;   /* "a.example.org", "*.example.org", "10.0.0.0/8" */
        EgressPort *ports;
        size_t n_ports;        /* 0: every port (only a denial) */
        uint64_t methods;      /* bits of the set's methods, or EGRESS_ANY_METHOD */
        PathPattern *paths;
        size_t n_paths;        /* 0: any path */
        const char *git;       /* its "git" in full, as text (policy-git.h); methods and paths are made from it. NULL: it has none */
        unsigned max_names;    /* of a wildcard */
        unsigned line;         /* 0: unknown */
        const char *label;     /* "egress/anthropic.json#/allow/0", "live/1" */
        const char *file;      /* "" for a live rule */
        const char *who;       /* of a live rule; else NULL */
} EgressRule;

typedef struct EgressRules EgressRules;

/* All rules of one pattern. */
typedef struct EgressNode {
        EgressSubject subject;
        const char *pattern;     /* as its rules have it */
        const char *key;         /* the name; a wildcard's without its "*."; a network's text */
        unsigned specificity;    /* UINT_MAX for an exact name; labels of a wildcard's suffix; a network's prefix length */
        unsigned max_names;
        uint32_t first_rule[2];  /* of its permissions and of its denials; EGRESS_NO_RULE: it has none */
        uint32_t git;            /* the first rule about git, on whichever port, or EGRESS_NO_RULE */
        uint32_t groups[2], n_groups[2]; /* by port; where they begin among the set's groups */
} EgressNode;

/* All permissions, or all denials, of one pattern for one port. */
typedef struct EgressGroup {
        uint16_t port;           /* 0: every port (denials) */
        EgressProtocol protocol;
        bool inspect;
        bool conditional;        /* one of its rules asks for a method or a path */
        bool some_git, all_git;  /* one of its rules, or each, is about git */
        uint64_t methods;        /* of all its rules together */
        uint32_t first;          /* rule */
        uint32_t connect;        /* the rule that stands for them before a request is known: the first with paths, else the first */
        uint32_t unconditional;  /* the first rule without methods and paths, or EGRESS_NO_RULE */
        uint32_t open, n_open;   /* rules without paths, among the set's entries: the first for each method */
        uint32_t odd, n_odd;     /* the same of those with paths */
        uint32_t heads, n_heads; /* of those with paths, sorted */
} EgressGroup;

/* Text with which the patterns below it begin. */
typedef struct EgressHead {
        const uint8_t *bytes;
        uint32_t n;
        uint32_t parent;         /* the longest other head of the group that begins this one; EGRESS_NO_RULE if none does */
        uint32_t first, n_entries;
} EgressHead;

typedef struct EgressEntry {
        const PathPattern *pattern; /* NULL among `open` and `odd` */
        uint64_t methods;
        uint32_t rule;
} EgressEntry;

/* A set of rules that is asked, and does not change any more. */
struct EgressRules {
        atomic_uint n_ref;       /* policies that share these rules may be read and freed in different threads */
        struct ArenaChunk *arena;     /* owned; what everything below points to */
        EgressRule *rules;            /* permissions first */
        size_t n_allow, n_rules;
        const char *methods[EGRESS_METHODS_MAX];
        size_t n_methods;
        EgressNode *nodes;            /* owned, as are the next */
        size_t n_nodes;
        uint32_t *table;              /* hash of nodes */
        size_t table_mask;
        EgressGroup *groups;
        size_t n_groups;
        EgressHead *heads;
        EgressEntry *entries;
        uint8_t network_bits[2][17];  /* which prefix lengths there are, for IPv4 and IPv6 */
        bool has_networks;
        char digest[HEX_SHA256_SIZE];
};

int egress_rules_new(EgressRules **ret, size_t n_allow, size_t n_deny);
EgressRules *egress_rules_ref(EgressRules *s);
EgressRules *egress_rules_unref(EgressRules *s);
DEFINE_CLEANUP(EgressRules *, egress_rules_unref)

/* Memory that goes with the set; NULL when there is none. */
void *egress_rules_alloc(EgressRules *s, size_t size);
const char *egress_rules_text(EgressRules *s, const char *text);
/* The bit of a method; 0 if there are too many. */
uint64_t egress_rules_method(EgressRules *s, const char *method);

/* Builds the index and the digest: all rules are there and agree. -E2BIG: beyond EGRESS_ENTRIES_MAX. */
int egress_rules_build(EgressRules *s);

/* Fills in the digest (policy-rules-text.c). */
int egress_rules_digest(EgressRules *s);

/* The node of exactly that pattern, or NULL. */
const EgressNode *egress_rules_find(const EgressRules *s, EgressSubject subject, const char *key, size_t n);

/* The nodes whose pattern covers a name or an address, the most specific first. */
enum { EGRESS_COVERING_MAX = 130 };
size_t egress_rules_covering(const EgressRules *s, const char *subject, const EgressNode *ret[static EGRESS_COVERING_MAX]);

/* The group for a port (0: the one for every port), or NULL. */
const EgressGroup *egress_node_group(const EgressRules *s, const EgressNode *node, bool deny, uint16_t port);

/* The language of the file that says the same. NULL when out of memory. */
json_t *egress_rule_to_json(const EgressRules *s, const EgressRule *r, bool with_origin);

/* A rule's "git": its methods and paths, and what is kept of it (policy-git-rule.c). */
void egress_read_git(const Node *rule, EgressRules *set, EgressRule *r);

bool egress_rule_carries(const EgressRule *r, EgressProtocol protocol);

/* Does the pattern of a cover some name that the pattern of b covers? */
bool egress_rules_overlap(const EgressRule *a, const EgressRule *b);

const char *egress_protocol_to_string(EgressProtocol protocol);

/* ---- networks (policy-network.c) ---- */

typedef struct EgressNetwork {
        int family;
        uint8_t bytes[16];
        unsigned length; /* of the prefix */
} EgressNetwork;

/* False if it is none. */
bool egress_network_parse(const char *text, EgressNetwork *ret);
bool egress_network_within(const EgressNetwork *inner, const EgressNetwork *outer);

/* Addresses that no rule about a network may allow. */
typedef struct EgressNeverNetwork {
        const char *network;
        const char *reason; /* "which …" */
        bool inside;        /* only a rule that is about nothing else is refused */
} EgressNeverNetwork;

/* The first that this permission of the set allows; NULL: none. */
const EgressNeverNetwork *egress_never_network(const EgressRules *s, const EgressRule *r);

/* ---- reading (policy-egress.c) ---- */

typedef enum EgressSource {
        EGRESS_FROM_FILE,
        EGRESS_FROM_FROZEN, /* rules carry an "origin" */
} EgressSource;

/* Reads "allow" and "deny" of an object whose keys the caller has checked. NULL if there were findings (or no memory). */
EgressRules *egress_rules_read(const Node *top, EgressSource source, const uint32_t *const lines[2], const size_t n_lines[2]);

/* ---- the policy (policy-live.c) ---- */

struct EgressPolicy {
        EgressRules *files;     /* ref; of the policy's file */
        EgressRules *live;      /* ref; what operators added to it; NULL: nothing */
        const char **inspected; /* owned array; borrowed from the sets */
        size_t n_inspected;
        unsigned n_labels;      /* the highest number that a live rule of the run has had */
        char digest[HEX_SHA256_SIZE];
};

/* Takes no reference of its own: hands over the caller's. -E2BIG: too many names to inspect. */
int egress_policy_new(EgressPolicy **ret, EgressRules *files, EgressRules *live);
