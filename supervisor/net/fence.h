/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Proof, from inside, that this process's cgroup is fenced. */

#include "util/cleanup.h"

/*
 * Tries what must not work: TCP connects and UDP datagrams, IPv4 and IPv6, to addresses that nobody
 * grants, and Unix sockets that have no path. 0 if the kernel refused each with EPERM (or gives this process no inet socket at all);
 * -ENOTRECOVERABLE if one was not refused; any other negative errno if it could not be tried. ret_what (may be NULL) then names the
 * attempt and its program, a static string. Sends nothing even when unfenced but at most one SYN and one datagram to a documentation
 * address (RFC 5737, RFC 3849).
 */
int fence_self_test(const char **ret_what);

/* The first step of a program that accepts something for a run: fence_self_test(), its failure logged. */
int fence_require(void);

/*
 * For root: puts the pinned programs of the full layer in force on the cgroup of anchorhold-runs.slice, if this process is below it and that
 * cgroup is new. They go with it, so the first process of each unit of a run does this; until then the floor denies everything. Waits up to
 * FENCE_FLOOR_GRACE_USEC for a floor that is missing there. 0, also outside of the slice, or negative errno and the reason in *ret_reason (the caller's).
 */
int fence_attach_full(char **ret_reason);

/*
 * For root: are the pinned programs there, and is the full layer in force on this process's own
 * cgroup, with the pinned maps? 0, or negative errno and the reason in *ret_reason (the caller's).
 */
int fence_check_attached(char **ret_reason);
