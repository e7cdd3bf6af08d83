/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Where the cgroup2 tree is mounted, and where in it this process is. */

#include <stddef.h>

/* The mount point of the first cgroup2 in a mountinfo text, octal escapes undone; NULL if there is none or no memory.
 * The string is the caller's. */
char *cgroup_find_mount(const char *mountinfo);

/* The path of the unified hierarchy ("0::") in a /proc/PID/cgroup text; as above. */
char *cgroup_find_path(const char *proc_cgroup);

/* This process's cgroup as an open directory: the caller's. Negative errno otherwise. */
int cgroup_open_own(void);
