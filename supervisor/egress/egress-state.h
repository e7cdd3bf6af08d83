/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What egressd must not forget when it restarts: which runs there are, under which policy, which names they were given, and
 * which grants are out. Memory in front of a small SQLite file. */

#include <stdbool.h>
#include <stdint.h>

#include "egress/address.h"
#include "policy/policy.h"
#include "util/cleanup.h"
#include "util/text.h"

#define SYNTHETIC_NETWORK UINT32_C(0xc6120000) /* 198.18.0.0/15, host byte order */
#define SYNTHETIC_MASK UINT32_C(0xfffe0000)

enum {
        RUN_NAMES_MAX = 4096,
        RUN_NAME_BUCKETS = 1024,
        GRANT_ADDRESSES_MAX = 8,
        EGRESS_RUNS_MAX = 256,
        EGRESS_STREAMS_MAX = 128,    /* on one connection; inject has a hundred at most */
        EGRESS_LISTED_MAX = 256,     /* different requests that are remembered of a connection of which nobody says when they are over, */
        EGRESS_LISTED_SIZE_MAX = 16 * 1024, /* and bytes of their methods and paths */
        RUN_ADDRESSES_MAX = 4096,    /* of a run's grants together: its share of the map, which no other run can use up */
};

typedef struct EgressState EgressState;
typedef struct EgressRun EgressRun;

/* A request on a connection. */
typedef struct EgressStream {
        struct EgressStream *next; /* owned */
        uint64_t number;           /* its owner's, on a connection that carries several at a time; else 0 */
        char *method, *path;       /* owned */
} EgressStream;

/* One connection that somebody may make, or has made. */
typedef struct EgressGrant {
        struct EgressGrant *next;  /* owned */
        EgressRun *run;            /* borrowed */
        uint64_t id;
        uint64_t cgroup;           /* whose it is */
        char *unit, *name, *rule;  /* owned */
        uint16_t port;
        EgressStream *streams;     /* owned; the requests that may be under way on it, as they were asked about */
        bool carries_streams;      /* its owner can end one of them alone */
        bool unlisted;             /* there may be others: its owner was told not to ask about each, they were too many, or an earlier life was asked */
        bool second_path;          /* one of them may be about a path that nobody knows here */
        Address addresses[GRANT_ADDRESSES_MAX];
        size_t n_addresses;
        uint64_t fence[GRANT_ADDRESSES_MAX]; /* ids in the map, at most one for each address */
        size_t n_fence;
        uint64_t unwatched_usec;   /* since when its owner cannot be told anything; 0: it can */
} EgressGrant;

struct EgressRun {
        EgressRun *next;             /* owned */
        char id[ID_LENGTH + 1];
        char *workflow, *stage;      /* owned */
        char digest[HEX_SHA256_SIZE];/* of the policy that holds; "none" */
        json_t *digests;             /* ref: of every policy that it had, the present one last */
        json_t *bounds;              /* ref: what none of them may allow, for its credentials' sake (policy-reach.c) */
        EgressPolicy *policy;        /* owned; NULL: nothing is allowed */
        bool lost;                   /* the frozen policy cannot be read any more: nothing is allowed */
        struct EgressName *names;    /* owned */
        size_t n_names, n_names_allocated;
        uint32_t name_buckets[RUN_NAME_BUCKETS]; /* 1 + the index of the last name there; 0: none */
        EgressGrant *grants;         /* owned */
        size_t n_addresses;          /* of all of them */
        bool recorded;               /* this process knows that the audit log has its registration */
        uint64_t n_records, n_records_saved; /* audit records written for it, long ones for several, and as of the database */
        size_t n_requests;           /* under way; egressd-request.c */
        bool changing;               /* its policy; egressd-live.c */
};

enum {
        _EGRESS_STATE_SUCCESS,
        EGRESS_STATE_E_CONFLICT,   /* registered before, with another workflow or stage */
        EGRESS_STATE_E_NO_POLICY,  /* a reason (the caller's) says why */
        EGRESS_STATE_E_FULL,       /* too many runs */
        EGRESS_STATE_E_NAMES,      /* too many names for one run */
        EGRESS_STATE_E_BUDGET,     /* too many names for one wildcard */
};

/* `dir` holds the database and the frozen policies, `root` is where policy is read ("" on a host). What belongs to an earlier boot
 * is forgotten. */
int egress_state_open(EgressState **ret, const char *dir, const char *root);
EgressState *egress_state_free(EgressState *s);
DEFINE_CLEANUP(EgressState *, egress_state_free)

/* A run's policy as it is frozen. */
typedef struct EgressFrozen {
        int result;                   /* of egress_state_freeze() */
        char *egress;                 /* owned; the policy's name, NULL for none */
        char *reason;                 /* owned; with EGRESS_STATE_E_NO_POLICY */
        EgressPolicy *policy;         /* owned; as it was read back from disk */
        json_t *bounds;               /* ref; of the workflow's credentials */
        char digest[HEX_SHA256_SIZE]; /* "none" */
} EgressFrozen;

/* Loads the workflow's policy for that stage from disk, freezes it, and reads it back: all of a registration that takes time (a second, with 100,000
 * rules). It changes nothing but the file, and may be called in another thread while the state is used. *ret says how it went. */
void egress_state_freeze(const EgressState *s, const char *run, const char *workflow, const char *stage, EgressFrozen *ret);
/* What was frozen for a run that then was not registered. */
void egress_state_unfreeze(const EgressState *s, const char *run);
void egress_frozen_done(EgressFrozen *f);

/* Remembers the run with what was frozen for it, which is taken over. Idempotent: of a run that is known nothing more is needed, and `frozen` may be
 * NULL. EGRESS_STATE_E_CONFLICT, EGRESS_STATE_E_FULL; EGRESS_STATE_E_NO_POLICY: that is how the freezing went. After a failure nothing is frozen. */
int egress_state_register(EgressState *s, const char *run, const char *workflow, const char *stage, EgressFrozen *frozen, EgressRun **ret);
void egress_state_release(EgressState *s, EgressRun *run);

/* Puts a policy of this run on disk, beside the one that holds: all of a change that takes time. May be called in another thread, as egress_state_freeze(). */
int egress_state_write(const EgressState *s, const char *run, const EgressPolicy *policy);
/* From now on this is the run's policy, also after a restart; it was written before. Takes the policy over on success, and *ret_old is the caller's;
 * on failure nothing has changed. */
int egress_state_change(EgressState *s, EgressRun *run, EgressPolicy *policy, EgressPolicy **ret_old);

/* What the files say now for this workflow and stage. The policy is borrowed from the set, which is the caller's; NULL: none.
 * EGRESS_STATE_E_NO_POLICY as above. Takes time, and may be called in another thread as well. */
int egress_state_load_policy(const EgressState *s, const char *workflow, const char *stage, Policy **ret_set, const EgressPolicy **ret, char **ret_reason);

/* A record of the end of a connection, as it was to be sent under its key. Strings and data are borrowed. */
typedef struct EgressClose {
        const char *key, *run, *actor; /* the last may be NULL */
        json_t *data;
} EgressClose;

typedef int (*EgressCloseHandler)(const EgressClose *c, void *userdata);

/* auditd does not have them yet: they are there after a restart, until they are dropped, and the grants that they name (`grant`, `others`) are not, in one
 * transaction for all. One with the same key is replaced. What is in memory of the grants is the caller's to remove. */
int egress_state_keep_closes(EgressState *s, const EgressClose *closes, size_t n);
int egress_state_drop_close(EgressState *s, const char *key);
/* Calls for each, in the order in which they were kept; not to change any meanwhile. */
int egress_state_load_closes(EgressState *s, EgressCloseHandler handler, void *userdata);

/* Writes down how many records the run has by now. */
void egress_state_save_records(EgressState *s, EgressRun *run);
EgressRun *egress_state_find(EgressState *s, const char *run);
EgressRun *egress_state_runs(EgressState *s); /* first of a list */
size_t egress_state_count(const EgressState *s);

/* The synthetic address of this (normalised, allowed) name in that run, in host byte order; *ret_new if it was assigned just now. */
int egress_run_admit_name(EgressState *s, EgressRun *run, const char *name, uint32_t *ret_address, bool *ret_new);
/* The name behind a synthetic address; NULL if it stands for none. */
const char *egress_run_name_of(const EgressRun *run, const Address *address);
size_t egress_run_count_names(const EgressRun *run);

/* -ENOSPC beyond RUN_ADDRESSES_MAX. The map, and g->fence, are the caller's business. */
int egress_run_add_grant(EgressState *s, EgressRun *run, const char *unit, uint64_t cgroup, const char *name, uint16_t port,
                         const char *rule, const Address *addresses, size_t n_addresses, EgressGrant **ret);
/* The request that was decided last under it, or NULL. */
int egress_grant_set_request(EgressGrant *g, const char *method, const char *path);
/* One more request, of which nobody says when it is over: those before it stay. When they are too many, none is listed any more. Without method and path it
 * is about the connection, and nothing changes. */
int egress_grant_add_request(EgressGrant *g, const char *method, const char *path);
/* One more request on a connection that carries several at a time. Of those with a smaller number all are forgotten that are not among `open`. -ENOSPC beyond EGRESS_STREAMS_MAX. */
int egress_grant_add_stream(EgressGrant *g, uint64_t number, const char *method, const char *path, const uint64_t *open, size_t n_open);
void egress_grant_remove_stream(EgressGrant *g, EgressStream *stream);
EgressGrant *egress_run_find_grant(EgressRun *run, uint64_t id, uint64_t cgroup);
/* The number of the latest grant of all runs: the next one has a greater one, also after a restart (of this version). 0: there was none. */
uint64_t egress_state_latest_grant(const EgressState *s);
/* Forgets it; the map is the caller's business. */
void egress_run_remove_grant(EgressState *s, EgressGrant *grant);
