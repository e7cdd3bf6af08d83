/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */

/*
 * May this packet leave the host through this device?
 *
 * At the tcx egress hook of every device of the host's namespace but loopback, before anybody else's program there. It asks the
 * same as fence-packet.bpf.c, but hangs elsewhere: a packet of a socket made below anchorhold-runs.slice and without a
 * live grant is dropped even if every program was taken off the slice, if the socket was made before they were put on it, or
 * if it was handed to a process outside of it.
 *
 * The packets of all other sockets pass, unless the host is in strict mode: then those of a socket that was made below no unit that
 * the host lists are dropped as well, also when that socket was handed into the slice. Whatever else there is passes in either mode:
 *
 *  - without a socket, or with one that is only what is left of a connection (TIME_WAIT): forwarded packets, answers of the kernel.
 *    There is no socket that anybody could have handed to a run.
 *  - of a socket made in the root of the cgroup tree: the kernel's own threads' (ARP and ICMP, tunnels, NFS). No unit has its processes there.
 *
 * Not seen: what a device of another namespace sends (a run's has no uplink), and AF_XDP, which no unit can open.
 */

#include "fence-packet.bpf.h"

#define TCX_NEXT (-1)
#define TCX_DROP 2

struct {
        __uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
        __uint(max_entries, 1);
        __type(key, __u32);
        __type(value, __u32);
} runs_slice SEC(".maps");

/* The ids of the listed units' cgroups; the warden keeps them (net/strict.c). */
struct {
        __uint(type, BPF_MAP_TYPE_HASH);
        __uint(max_entries, FENCE_MAX_HOST_UNITS);
        __type(key, __u64);
        __type(value, __u32);
} host_units SEC(".maps");

struct {
        __uint(type, BPF_MAP_TYPE_ARRAY);
        __uint(max_entries, 1);
        __type(key, __u32);
        __type(value, struct fence_strict);
} strict SEC(".maps");

/* Packets dropped by the cgroup of their socket, so that somebody can name who it was. */
struct {
        __uint(type, BPF_MAP_TYPE_LRU_HASH);
        __uint(max_entries, FENCE_MAX_HOST_DROPS);
        __type(key, __u64);
        __type(value, __u64);
} host_drops SEC(".maps");

static __always_inline void count_host_drop(__u64 cgroup) {
        __u64 *n, one = 1;

        (void) count(FENCE_HOST_DROPPED, 0);
        n = bpf_map_lookup_elem(&host_drops, &cgroup);
        if (n)
                __sync_fetch_and_add(n, 1);
        else
                (void) bpf_map_update_elem(&host_drops, &cgroup, &one, BPF_NOEXIST);
}

/* A packet of nobody below the slice. */
static __always_inline int host_verdict(struct __sk_buff *skb) {
        struct fence_strict *s;
        __u32 zero = 0;
        __u64 own, id;
        int level;

        s = bpf_map_lookup_elem(&strict, &zero);
        if (!s || s->is != FENCE_STRICT_ON)
                return TCX_NEXT;

        own = bpf_skb_cgroup_id(skb);
        if (own == 0 || own == s->root_id || own == bpf_skb_ancestor_cgroup_id(skb, 0))
                return TCX_NEXT;

        for (level = 1; level < MAX_LEVEL; level++) {
                id = bpf_skb_ancestor_cgroup_id(skb, level);
                if (id == 0)
                        break;
                if (bpf_map_lookup_elem(&host_units, &id))
                        return TCX_NEXT;
        }

        count_host_drop(own);
        return TCX_DROP;
}

SEC("tc")
int uplink(struct __sk_buff *skb) {
        struct bpf_sock *sk;

        /* an error: no socket, or nothing was ever started below the slice */
        if (bpf_skb_under_cgroup(skb, &runs_slice, 0) != 1)
                return host_verdict(skb);

        sk = skb->sk;
        if (!sk)
                return TCX_DROP;
        sk = bpf_sk_fullsock(sk);
        if (!sk) {
                (void) count(FENCE_UPLINK_DROPPED, 0);
                return TCX_DROP;
        }

        if (packet_objection(skb, sk) != FENCE_CONNECT_ALLOWED) {
                (void) verdict_on(FENCE_UPLINK_DROPPED, skb);
                return TCX_DROP;
        }

        return TCX_NEXT;
}
