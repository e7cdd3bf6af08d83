/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Who is at the other end of a local socket, as the kernel and the cgroup tree say, never as the peer
 * says: SO_PEERPIDFD, then the unit of that pidfd (sd_pidfd_get_unit), then the cgroup path below which
 * such a unit must lie. Asked once for each connection, when it is accepted.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/text.h"

typedef enum PeerRole {
        PEER_OTHER    = 1 << 0, /* anybody who could connect */
        PEER_ROOT     = 1 << 1, /* uid 0, not one of our units */
        PEER_OPERATOR = 1 << 2, /* root, or a member of anchorhold-operators, and not one of our units */
        PEER_ANCHORD  = 1 << 3,
        PEER_AUDITD   = 1 << 4,
        PEER_EGRESSD  = 1 << 5,
        PEER_SECRETD  = 1 << 6,
        PEER_NET      = 1 << 7, /* from here on: units of one run; Peer.run says which */
        PEER_VM       = 1 << 8,
        PEER_PROXY    = 1 << 9,
        PEER_INJECT   = 1 << 10,
        PEER_RUN      = 1 << 11,
        PEER_IMPORT   = 1 << 12,
        PEER_PUBLISH  = 1 << 13,
        PEER_CHECK    = 1 << 14,
        PEER_NETLOG   = 1 << 15,
} PeerRole;

typedef struct Peer {
        unsigned roles;          /* every role that fits */
        uid_t uid;
        gid_t gid;
        gid_t *groups;           /* owned; its supplementary groups when it connected */
        size_t n_groups;
        pid_t pid;
        int pidfd;               /* owned */
        char *unit;              /* owned; "" if none */
        char *cgroup;            /* owned; path below the cgroup root */
        uint64_t cgroup_id;      /* inode number of that cgroup: bpf_get_current_cgroup_id() */
        char run[ID_LENGTH + 1]; /* "" unless a unit of a run */
} Peer;

#define PEER_NULL ((Peer) { .pidfd = -1 })

/* Fills ret from a connected AF_UNIX socket. cgroup_root is cgroup_open_root()'s, found once by each server; without one (negative)
 * cgroup_id stays 0, and a unit of ours is refused. So is who has no cgroup there any more: -ENOENT. A unit of ours outside its slice gets no role but PEER_OTHER. */
int peer_from_socket(int fd, int cgroup_root, Peer *ret);
void peer_done(Peer *p);

/* Is this one of the groups that it connected with? Not if there is no such group. */
bool peer_is_in_group(const Peer *p, const char *group);

/* "anchor-proxy@r….service", or "uid 1000", for logs and audit's actor field. Borrowed from p, valid as long as it is. */
const char *peer_name(Peer *p, char buffer[static 64]);
