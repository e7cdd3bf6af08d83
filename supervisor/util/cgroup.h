/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Where the cgroup2 tree is mounted, and where in it this process is; and what else a mountinfo text tells. */

#include <stdbool.h>
#include <stddef.h>

/* The mount point of the first cgroup2 in a mountinfo text, octal escapes undone; NULL if there is none or no memory.
 * The string is the caller's. */
char *cgroup_find_mount(const char *mountinfo);

/* Which folder of its file system is mounted at `target`, last; as above. */
char *mountinfo_find_root(const char *mountinfo, const char *target);

/* The path of the unified hierarchy ("0::") in a /proc/PID/cgroup text; as above. */
char *cgroup_find_path(const char *proc_cgroup);

/* Cuts a cgroup's path behind its first component of that name: true, or false if there is none and the path is as it was. */
bool cgroup_cut_path(char *path, const char *name);

/* The root of the cgroup2 tree, for fstatat() and the like (O_PATH): the caller's. -ENOMEDIUM if none is mounted. */
int cgroup_open_root(void);

/* This process's cgroup as an open directory, or with a name, the one so called that it is or lies below: the caller's.
 * -ENOENT if there is none of that name, other negative errno if it cannot be opened. */
int cgroup_open_own(const char *name);

/* The cgroup of that path below the root of the cgroup2 tree, as above. */
int cgroup_open(const char *path);
