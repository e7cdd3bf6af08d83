/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */
#pragma once

/*
 * What fence-packet.bpf.c asks of every packet that leaves a socket below the runs slice, and
 * fence-uplink.bpf.c once more at the host's devices: is it plain TCP or UDP, does its socket hold a grant that is live,
 * and does it go where that grant says?
 *
 * IPv4 options are refused: a loose source route would name the granted address and reach another one.
 * IPv6 extension headers are refused for the same reason.
 */

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "fence-maps.bpf.h"

/* What plain TCP and UDP begin with, in one piece: each call for bytes costs. */
struct head4 {
        struct iphdr ip;
        __be16 ports[2];
};

struct head6 {
        struct ipv6hdr ip;
        __be16 ports[2];
};

/* Bytes of the packet from its network header on, wherever the hook has it begin. */
#define load(skb, to) bpf_skb_load_bytes_relative(skb, 0, &(to), sizeof(to), BPF_HDR_START_NET)

/* Reads the destination. False for anything but plain TCP or UDP in IPv4 or IPv6. */
static __always_inline int packet_destination(struct __sk_buff *skb, struct fence_key *ret) {
        if (skb->protocol == bpf_htons(ETH_P_IP)) {
                struct head4 h;

                if (load(skb, h) < 0 || h.ip.ihl != 5 || h.ip.version != 4)
                        return 0;
                ret->address[10] = ret->address[11] = 0xff;
                __builtin_memcpy(ret->address + 12, &h.ip.daddr, sizeof(h.ip.daddr));
                ret->protocol = h.ip.protocol;
                ret->port = h.ports[1];
        } else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
                struct head6 h;

                if (load(skb, h) < 0 || h.ip.version != 6)
                        return 0;
                __builtin_memcpy(ret->address, &h.ip.daddr, sizeof(h.ip.daddr));
                ret->protocol = h.ip.nexthdr;
                ret->port = h.ports[1];
        } else
                return 0;

        return ret->protocol == IPPROTO_TCP || ret->protocol == IPPROTO_UDP;
}

static __always_inline int same_destination(const struct fence_key *a, const struct fence_key *b) {
        const __u64 *x = (const __u64 *) a->address, *y = (const __u64 *) b->address;

        return x[0] == y[0] && x[1] == y[1] && a->port == b->port && a->protocol == b->protocol;
}

/* What speaks against this packet of that socket; FENCE_CONNECT_ALLOWED if nothing does. */
static __always_inline __u32 packet_objection(struct __sk_buff *skb, struct bpf_sock *sk) {
        struct fence_key to = {}, *granted;
        struct fence_socket *s;
        __u64 id;

        s = bpf_sk_storage_get(&sockets, sk, 0, 0);
        if (!s || s->grant == 0)
                return FENCE_PACKET_NO_GRANT;

        id = s->grant;
        granted = bpf_map_lookup_elem(&live, &id);
        if (!granted)
                return FENCE_PACKET_REVOKED;
        if (!heartbeat_is_fresh(bpf_ktime_get_boot_ns()))
                return FENCE_PACKET_HEARTBEAT;

        if (!packet_destination(skb, &to) || fence_never(to.address) || !same_destination(&to, granted) ||
            granted->cgroup_id != bpf_skb_cgroup_id(skb))
                return FENCE_PACKET_OTHER;

        return FENCE_CONNECT_ALLOWED;
}
