/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the files of policy/ share: the set, its objects, and walking a document while noting findings. */

#include "policy/policy.h"

/* In the order in which they are checked: each may refer to those before it. */
typedef enum PolicyKind {
        POLICY_PROVIDERS,
        POLICY_CREDENTIALS,
        POLICY_EGRESS,
        POLICY_HARNESS,
        POLICY_WORKFLOWS,
        _POLICY_KINDS,
} PolicyKind;

/* One file. */
typedef struct PolicyObject {
        char *name;            /* owned */
        char *file;            /* owned; full path, with the root */
        char *label;           /* owned; "egress/anthropic.json" */
        char *text;            /* owned; what it was parsed from, until everything is checked */
        size_t text_size;
        json_t *document;      /* ref; NULL if it could not be parsed */
        char *reason;          /* owned; why it cannot be used, NULL if it can */
        EgressPolicy *egress;  /* owned */
        PolicyCredential credential;
        PolicyWorkflow workflow; /* its steps are owned by steps and verify */
        PolicyStep *steps, *verify;
        char digest[HEX_SHA256_SIZE]; /* of a workflow */
} PolicyObject;

struct Policy {
        PolicyObject **objects[_POLICY_KINDS]; /* owned, sorted by name */
        const char **names[_POLICY_KINDS];     /* owned array of borrowed names */
        size_t n_objects[_POLICY_KINDS];
        PolicyObject *host_file, *authority;   /* owned, may be NULL */
        HostConfig host;
        json_t *empty_array;                   /* ref */
        PolicyFinding *findings;               /* owned until handed to the loader's caller */
        size_t n_findings;
        PolicyFinding *warnings;               /* owned */
        size_t n_warnings;
        bool out_of_memory;                    /* sticky; the load fails */
        char digest[HEX_SHA256_SIZE];
};

enum {
        POLICY_FILE_MAX = 1024 * 1024,
        POLICY_EGRESS_FILE_MAX = 64 * 1024 * 1024, /* a hundred thousand rules, generously written */
        POLICY_FINDINGS_MAX = 1000,
        POLICY_LINES_SCAN_MAX = 256 * 1024 * 1024,
        POLICY_FILES_MAX = 4096, /* of one kind */
};

/* A file's contents without the file. */
typedef struct PolicyText {
        unsigned kind;       /* a PolicyKind; _POLICY_KINDS: host.json, beyond: authority.json */
        const char *name;
        const char *data;
        size_t size;
} PolicyText;

/* policy_load() without I/O. -EEXIST for two of one name. */
int policy_load_texts(Policy **ret, const PolicyText *texts, size_t n_texts, PolicyFinding **ret_findings, size_t *ret_n_findings);

/* ---- the set (policy-set.c) ---- */

const char *policy_kind_folder(PolicyKind kind);

int policy_new(Policy **ret);
int policy_digest_set(Policy *p);

/* `folder` NULL: host.json or authority.json. */
int policy_object_new(PolicyObject **ret, const char *folder, const char *name, const char *file);
PolicyObject *policy_object_free(PolicyObject *o);
DEFINE_CLEANUP(PolicyObject *, policy_object_free)

int policy_compare_objects(const void *a, const void *b);
/* Before a kind is sorted. */
PolicyObject *policy_find_unsorted(const Policy *p, PolicyKind kind, const char *name);

/* Of a file that is no object; `line` 0: unknown. */
void policy_add_file_finding(Policy *p, const char *file, const char *pointer, const char *reason, unsigned line);

/* Notes a finding and makes the object unusable. */
void policy_add_finding(Policy *p, PolicyObject *o, const char *pointer, const char *reason);

/* Notes what is no error. */
void policy_add_warning(Policy *p, const PolicyObject *o, const char *pointer, const char *reason);

/* Makes the object unusable because of another one, whose finding is noted already. */
void policy_object_taint(Policy *p, PolicyObject *o, const PolicyObject *cause);

/* A set that holds nothing but one object, without name and file, for reading a document that is none of the set's kinds. `document` is
 * borrowed from the caller (a reference is taken). */
int policy_new_scratch(Policy **ret, json_t *document, PolicyObject **ret_object);

/* The object whether usable or not; NULL if there is none. */
PolicyObject *policy_object_find(const Policy *p, PolicyKind kind, const char *name);

/* ---- nodes: one value of a document and where it is ---- */

/* Nodes live on the stack, each linked to its parent, so that a pointer is only spelled out when something is wrong. */
typedef struct Node {
        Policy *policy;        /* borrowed */
        PolicyObject *object;  /* borrowed */
        const struct Node *parent;
        const char *key;       /* in an object; NULL in an array or at the top */
        size_t index;          /* in an array */
        json_t *value;         /* borrowed */
} Node;

typedef enum NodeFlags {
        NODE_REQUIRED = 1 << 0,
        NODE_NULLABLE = 1 << 1, /* null counts as missing */
} NodeFlags;

Node node_top(Policy *p, PolicyObject *o);
Node node_element(const Node *array, size_t i);

void node_fail(const Node *n, const char *format, ...) _printf_(2, 3);
/* Says so, and leaves the object usable. */
void node_warn_at(const Node *object, const char *key, const char *format, ...) _printf_(3, 4);
void node_fail_at(const Node *object, const char *key, const char *format, ...) _printf_(3, 4);

/* The path from the document to n, the caller's; NULL when out of memory. `key` may be NULL. */
char *node_pointer(const Node *n, const char *key);

/* Is this an object with no key but those of the NULL-terminated list? Every other key is a finding. */
bool node_check_object(const Node *n, const char *const *known);

/* Each is true if the member is there and right; if it is not, *ret is left as it is, and anything wrong (missing although
 * required, another type, outside its bounds) is a finding. Strings hold no zero byte. */
bool node_object(const Node *object, const char *key, NodeFlags flags, Node *ret);
bool node_array(const Node *object, const char *key, NodeFlags flags, Node *ret);
bool node_string(const Node *object, const char *key, NodeFlags flags, const char **ret);
bool node_bool(const Node *object, const char *key, NodeFlags flags, bool *ret);
bool node_uint(const Node *object, const char *key, NodeFlags flags, uint64_t min, uint64_t max, uint64_t *ret);
bool node_size(const Node *object, const char *key, NodeFlags flags, uint64_t min, uint64_t max, uint64_t *ret);
bool node_duration(const Node *object, const char *key, NodeFlags flags, uint64_t min_s, uint64_t max_s, uint64_t *ret_s);
bool node_choice(const Node *object, const char *key, NodeFlags flags, const char *const *choices, const char **ret);

/* A member that names an object of that kind; one that does not exist is a finding, one that cannot be used taints. */
bool node_reference(const Node *object, const char *key, NodeFlags flags, PolicyKind kind, const char **ret);
/* The same for a value that is at hand. */
bool node_resolve(const Node *n, PolicyKind kind, PolicyObject **ret);

/* Arrays of strings; `check` (may be NULL) returns what is wrong with one, or NULL. An empty array and a repeated value
 * are findings unless allowed. */
typedef const char *(*NodeStringCheck)(const char *s);
bool node_strings(const Node *object, const char *key, NodeFlags flags, size_t min, size_t max, NodeStringCheck check,
                  const json_t **ret);

/* Shared checks of single strings. */
const char *check_host_name(const char *s); /* exact and written as egress_normalise_name() would */
const char *check_method(const char *s);
const char *check_path_prefix(const char *s);
const char *check_path_pattern(const char *s); /* as policy_path_matches() takes it */
const char *check_network(const char *s);
const char *check_argument(const char *s);
const char *check_absolute_path(const char *s);
const char *check_json_pointer(const char *s);

/* {"K": "V" | {"sentinel": "CREDENTIAL"}}; a credential must exist. */
void node_environment(const Node *object, const char *key, const json_t **ret);

/* A member "budget"; false: there is none, and *ret has no caps. */
bool policy_read_budget(const Node *top, bool host, PolicyBudget *ret);
/* host.json's member "space"; what it does not say stays as it is. */
void policy_read_space(const Node *top, PolicySpace *ret);

/* ---- the kinds; each reads o->document ---- */

void policy_check_provider(Policy *p, PolicyObject *o);
void policy_check_credential(Policy *p, PolicyObject *o);
/* A credential's "app", and whether the egress policy of a workflow lets its tokens be minted and revoked. */
void policy_check_app(const Node *top, const char *kind);
void policy_check_app_places(const Node *top, const PolicyCredential *c);
void policy_check_app_reach(const Node *n, const PolicyCredential *c, const EgressPolicy *egress, const char *egress_name);
void policy_check_egress(Policy *p, PolicyObject *o);
void policy_check_harness(Policy *p, PolicyObject *o);
void policy_check_workflow(Policy *p, PolicyObject *o);
void policy_check_host(Policy *p, PolicyObject *o);
void policy_check_authority(Policy *p, PolicyObject *o);
