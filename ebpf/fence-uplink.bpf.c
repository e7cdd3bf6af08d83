/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */

/*
 * May this packet leave the host through this device?
 *
 * At the tcx egress hook of every device of the host's namespace but loopback, before anybody else's program there. It asks the
 * same as fence-packet.bpf.c, but hangs elsewhere: a packet of a socket made below anchorhold-runs.slice and without a
 * live grant is dropped even if every program was taken off the slice, if the socket was made before they were put on it, or
 * if it was handed to a process outside of it.
 *
 * Other packets are none of its business: those of the host's own sockets, and those without one. So a socket made outside
 * the slice and handed into it passes here as well; docs/operate.md, "What the fence does not see".
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

SEC("tc")
int uplink(struct __sk_buff *skb) {
        struct bpf_sock *sk;

        /* an error: no socket, or nothing was ever started below the slice */
        if (bpf_skb_under_cgroup(skb, &runs_slice, 0) != 1)
                return TCX_NEXT;

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
