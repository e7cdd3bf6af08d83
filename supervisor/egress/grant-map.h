/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The fence's maps as egressd writes them: grants for (cgroup, address, port, protocol) and the
 * heartbeat. Needs no capability, only the group that owns the pinned maps.
 *
 * Each grant has an id of its own, but the kernel has one entry a destination: two grants of one cgroup for the same destination
 * share it, and it is closed when the last of them is released. See ebpf/fence-api.bpf.h.
 */

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>

#include "util/cleanup.h"

typedef struct GrantMap GrantMap;

/*
 * Opens the pinned maps below dir (NULL: FENCE_MAPS_DIR). Entries of an earlier life are adopted: connections made
 * under them go on and no new ones are admitted. Whoever remembers grants claims them; grant_map_settle()
 * closes the entries that nobody claimed. -ENOENT: anchor-bpf has not run.
 */
int grant_map_open(GrantMap **ret, const char *dir);
GrantMap *grant_map_free(GrantMap *m); /* leaves the kernel's entries alone */
DEFINE_CLEANUP(GrantMap *, grant_map_free)

/*
 * Admits new connections from that cgroup until CLOCK_BOOTTIME reaches expires_usec. `address` is 4 bytes
 * (AF_INET) or 16 (AF_INET6, also IPv4-mapped), port is in host order, protocol IPPROTO_TCP or
 * IPPROTO_UDP. -EPERM for an address that no grant opens (metadata, loopback, link-local, multicast),
 * -ENOSPC when the map is full.
 */
int grant_map_add(GrantMap *m, uint64_t cgroup_id, int family, const void *address, uint16_t port,
                  int protocol, uint64_t expires_usec, uint64_t *ret_id);

/* A grant of an earlier life, for a connection that may be open still. -ENOENT if the kernel has no such entry. */
int grant_map_claim(GrantMap *m, uint64_t cgroup_id, int family, const void *address, uint16_t port, int protocol, uint64_t *ret_id);

/* Closes what no grant stands for: the number of entries, or negative errno. Once, after claiming. */
int grant_map_settle(GrantMap *m);

/* The connection is done (or was never made): the entry goes when the last grant that shares it does. -ENOENT if unknown. */
int grant_map_release(GrantMap *m, uint64_t id);

/* Everything of that cgroup, whose connections are cut at their next packet: the number of entries removed, or negative errno. */
int grant_map_revoke_cgroup(GrantMap *m, uint64_t cgroup_id);

/* A sign of life. Ten seconds without one, and neither a connect nor a packet passes. */
int grant_map_heartbeat(GrantMap *m);

/* Live grants, and adopted entries that nobody has claimed. */
size_t grant_map_count(const GrantMap *m, size_t *ret_unclaimed);
