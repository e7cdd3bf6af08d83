/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* For root: which of the fence's programs are in force, and where. Each function here and below that fails says why in
 * *ret_reason (the caller's). */

#include <stdbool.h>

#include "net/bpf-load.h"

/* If this cgroup of anchorhold-runs.slice is new: attaches the programs that systemd has no word for, and tells all of them that
 * this is the one. */
int fence_prepare_slice(int cgroup_fd, char **ret_reason);

/* Is everything pinned, and exactly that in force on this cgroup? -ENOTRECOVERABLE if something is not, -ENOENT without a pin. */
int fence_check_cgroup(int cgroup_fd, char **ret_reason);

/* The same of anchorhold-runs.slice, after fence_prepare_slice() if wanted; 0 if that slice is not there. */
int fence_check_slice(bool prepare, char **ret_reason);

/* Has the warden found all of it in force within the last ten seconds? */
int fence_check_warden(char **ret_reason);

/* How often the pinned program `uplink` is in force on the egress side of that device, and whether it is asked first. */
int fence_count_in_force(int ifindex, bool *ret_first);
