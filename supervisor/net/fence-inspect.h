/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* For root: which of the fence's programs are in force, and where. Each function here and below that fails says why in
 * *ret_reason (the caller's). */

#include <stdbool.h>

#include "net/bpf-load.h"

/* For so long a new cgroup may be without its floor: systemd may be reading its units anew, and the next unit that starts brings it back. */
#define FENCE_FLOOR_GRACE_USEC (2 * 1000 * 1000ULL)

enum {
        _FENCE_E_SUCCESS,
        FENCE_E_NO_FLOOR, /* systemd has not attached a program, which *ret_reason names, and the full layer is not there either */
};

/* If this cgroup of anchorhold-runs.slice is new, and has the floor: attaches the full layer, takes off what an older build attached, and names
 * the cgroup to all programs, which is what the floor waits for. 0, also if that was done before, or FENCE_E_NO_FLOOR. */
int fence_prepare_slice(int cgroup_fd, char **ret_reason);

/* Is everything pinned, and the full layer, exactly that, in force on this cgroup? -ENOTRECOVERABLE if something is not, -ENOENT without a pin. */
int fence_check_cgroup(int cgroup_fd, char **ret_reason);

/* The same of anchorhold-runs.slice, after fence_prepare_slice(); 0 if that slice is not there, or FENCE_E_NO_FLOOR if that is to be told: nobody
 * misses the floor of an empty one. */
int fence_watch_slice(char **ret_reason);

/* The same without preparing anything: of a slice that is not prepared the floor must be in force, unless it is empty. */
int fence_check_slice(char **ret_reason);

/* Has the warden found all of it in force within the last ten seconds? */
int fence_check_warden(char **ret_reason);

/* How often the pinned program `uplink` is in force on the egress side of that device, and whether it is asked first. */
int fence_count_in_force(int ifindex, bool *ret_first);
