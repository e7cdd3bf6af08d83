/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* For whoever holds grants (proxy, inject): tells egressd of their end, and keeps what it has not taken yet. A grant of which egressd never heard that it is over
 * would count against the run until its release. */

#include <stdint.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"

typedef struct GrantEnds GrantEnds;

/* socket_path: egressd's. */
int grant_ends_new(GrantEnds **ret, sd_event *event, const char *socket_path);
/* What is still to be told is not: the grants of a process that is gone are revoked, and of what went over their connections nothing is known. */
GrantEnds *grant_ends_free(GrantEnds *e);
DEFINE_CLEANUP(GrantEnds *, grant_ends_free)

/* This process ends: what is still to be told is told now, without the loop, until then (CLOCK_MONOTONIC). Nothing may be added after. */
void grant_ends_tell_last(GrantEnds *e, uint64_t until_usec);

/* The connection of that grant is over, or was never made. Not 0. */
void grant_ends_add(GrantEnds *e, int64_t grant, uint64_t bytes_in, uint64_t bytes_out, uint64_t duration_usec);
