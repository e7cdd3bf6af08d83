/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The host's units as cgroups: which there are, and which of them are listed. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/json.h"

typedef struct HostUnit {
        uint64_t cgroup_id;
        bool listed;
        char name[256]; /* as systemd has it */
} HostUnit;

typedef struct HostUnits {
        HostUnit *list; /* owned */
        size_t n;
} HostUnits;

void host_units_done(HostUnits *u);

/* Is `unit` that name, or an instance of that template ("getty@*.service")? */
bool host_unit_matches(const char *unit, const char *pattern);

/* Called for each slice that is looked into, the root of the tree included; for whoever wants to be told of changes there. */
typedef void (*HostSliceSeen)(int slice_fd, void *userdata);

/*
 * Every unit below root_fd, the root of a cgroup2 tree (borrowed). Looks into the root and into slices alone, and not into
 * anchorhold-runs.slice: these are systemd's, while below a service or scope whoever runs there may make a cgroup and call it
 * ssh.service. `patterns` is an array of strings. -E2BIG for a tree of more than 8,192 units or 16 levels, other negative errno. `seen` may be NULL.
 */
int host_units_find(HostUnits *ret, int root_fd, const json_t *patterns, HostSliceSeen seen, void *userdata);

/* The unit of that cgroup, NULL if it is none. */
const HostUnit *host_units_by_id(const HostUnits *u, uint64_t cgroup_id);
