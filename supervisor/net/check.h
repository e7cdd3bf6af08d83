/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Do the layers of a run's enforcement agree? The same probes are put to each of them alone: to what the guest's packets meet, to
 * the programs of the run's cgroup, and to the compiled policy. All but the control must be denied by each, the control
 * be allowed by each. No probe can leave the machine, also where the layer that is asked is broken: see check-guest.c and check-cgroup.c.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "policy/policy.h"
#include "util/cleanup.h"
#include "util/json.h"

typedef enum CheckLayer {
        CHECK_GUEST,  /* nftables and routes of the run's namespace */
        CHECK_CGROUP, /* eBPF */
        CHECK_POLICY, /* egressd */
        CHECK_N_LAYERS,
} CheckLayer;

typedef enum CheckProbe {
        CHECK_METADATA,
        CHECK_LOOPBACK,
        CHECK_HOST,
        CHECK_UNLISTED_NAME,
        CHECK_UNLISTED_PORT,
        CHECK_CONTROL,
        CHECK_N_PROBES,
} CheckProbe;

typedef enum CheckResult {
        CHECK_NOT_TRIED, /* has no meaning for this layer here, e.g. a control where the policy allows nothing */
        CHECK_DENIED,
        CHECK_ALLOWED,
} CheckResult;

typedef struct CheckTable {
        CheckResult results[CHECK_N_LAYERS][CHECK_N_PROBES];
        char reason[240]; /* why a layer is not what it was made as, or could not be asked; "" if none is so */
} CheckTable;

const char *check_probe_name(CheckProbe p);
/* Which one a name that no policy may allow stands for. */
CheckProbe check_probe_of(const EgressNever *n);
static inline uint16_t check_port_of(const EgressNever *n) {
        return n->kind == EGRESS_NEVER_UNLISTED ? 443 : 80;
}

/* Notes why; the first reason stays. Returns error. */
int check_fail(CheckTable *t, int error, const char *format, ...) __attribute__((__format__(__printf__, 3, 4)));

/* The first disagreement as a sentence in ret, or the table's reason; false if all agree. */
bool check_disagrees(const CheckTable *t, char *ret, size_t size);

/* [{"layer", "probe", "result"}, …] without what was not tried. NULL without memory. */
json_t *check_to_json(const CheckTable *t);

/* The reverse, of one layer's results and its reason; -EBADMSG for anything else. A layer that gives no reason and has not tried what can always be
 * tried (all but the host's address and the control) is a disagreement. */
int check_from_json(CheckTable *t, CheckLayer layer, const json_t *probes, const char *reason);

/* ---- the guest's layer ---- */

typedef struct CheckTwin CheckTwin;

/* A namespace like a run's, made by the same code, in which this process is the guest. Needs CAP_SYS_ADMIN, CAP_NET_ADMIN and /dev/net/tun. */
int check_twin_new(CheckTwin **ret, CheckTable *t);
CheckTwin *check_twin_free(CheckTwin *w);
DEFINE_CLEANUP(CheckTwin *, check_twin_free)

/* Can this host's kernel answer what the guest's network refuses before the network code sees it? Else it is dropped in silence. */
bool check_twin_answers_frames(const CheckTwin *w);

/* Puts the probes to the twin, and compares the namespace of `run` (NULL: none) with it: rules, devices, addresses, routes, settings. */
int check_guest(CheckTwin *w, const char *run, CheckTable *t);

/* ---- the cgroup's layer ---- */

/* From this very process, which must be below anchorhold-runs.slice and in the host's network namespace. Writes a grant for its own
 * cgroup and takes it back. */
int check_cgroup(CheckTable *t);
