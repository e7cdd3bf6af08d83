/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The part of peer.c that only thinks: which unit a cgroup path means, and which role. */

#include "ipc/peer.h"

/* The system unit that a path below the cgroup root belongs to, into ret; false if it is none. */
bool peer_unit_of_cgroup(const char *cgroup, char ret[static 256]);

typedef enum PeerUnit {
        PEER_UNIT_FOREIGN,   /* not one of our units */
        PEER_UNIT_OURS,      /* one of ours and where it should be: *ret_role, ret_run */
        PEER_UNIT_MISPLACED, /* has the name of one of ours, but not its place, or not a proper instance */
} PeerUnit;

PeerUnit peer_classify(const char *unit, const char *cgroup, PeerRole *ret_role, char ret_run[static ID_LENGTH + 1]);
