/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */

/*
 * May this packet leave?
 *
 * Every IP packet sent by a socket that was made below the runs slice. It passes if the socket connected
 * under a grant that is still live, egressd's heartbeat is fresh, and the packet goes where that grant says. So
 * this is what cuts established connections, and the second answer to whatever passes the connect hooks.
 *
 * The socket's cgroup is that of its creator. A socket that came from elsewhere (a listener of
 * anchorhold-sockets.slice, accepted connections of it) is not seen here: that is intended for the run's
 * own guest side, and otherwise takes a descriptor that somebody outside the fence handed in.
 *
 * IPv4 options are refused: a loose source route would name the granted address and reach another one.
 * IPv6 extension headers are refused for the same reason.
 */

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "fence-maps.bpf.h"

/* Reads the destination. False for anything but plain TCP or UDP in IPv4 or IPv6. */
static __always_inline int packet_destination(struct __sk_buff *skb, struct fence_key *ret) {
        __u8 protocol;
        __u32 ports;
        int offset;

        if (skb->protocol == bpf_htons(ETH_P_IP)) {
                struct iphdr ip;

                if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)) < 0 || ip.ihl != 5 || ip.version != 4)
                        return 0;
                ret->address[10] = ret->address[11] = 0xff;
                __builtin_memcpy(ret->address + 12, &ip.daddr, sizeof(ip.daddr));
                protocol = ip.protocol;
                offset = sizeof(ip);
        } else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
                struct ipv6hdr ip6;

                if (bpf_skb_load_bytes(skb, 0, &ip6, sizeof(ip6)) < 0 || ip6.version != 6)
                        return 0;
                __builtin_memcpy(ret->address, &ip6.daddr, sizeof(ip6.daddr));
                protocol = ip6.nexthdr;
                offset = sizeof(ip6);
        } else
                return 0;

        if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
                return 0;
        if (bpf_skb_load_bytes(skb, offset, &ports, sizeof(ports)) < 0)
                return 0;

        ret->protocol = protocol;
        ret->port = (__be16) (bpf_ntohl(ports) & 0xffff);
        ret->port = bpf_htons(ret->port);
        return 1;
}

static __always_inline int same_destination(const struct fence_key *a, const struct fence_key *b) {
        const __u64 *x = (const __u64 *) a->address, *y = (const __u64 *) b->address;

        return x[0] == y[0] && x[1] == y[1] && a->port == b->port && a->protocol == b->protocol;
}

SEC("cgroup_skb/egress")
int egress(struct __sk_buff *skb) {
        struct fence_key to = {}, *granted;
        struct fence_socket *s;
        struct bpf_sock *sk;
        __u64 id;

        sk = skb->sk;
        if (!sk)
                return verdict(FENCE_PACKET_NO_GRANT);
        sk = bpf_sk_fullsock(sk);
        if (!sk)
                return verdict(FENCE_PACKET_NO_GRANT);

        s = bpf_sk_storage_get(&sockets, sk, 0, 0);
        if (!s)
                return verdict(FENCE_PACKET_NO_GRANT);

        id = s->grant;
        granted = bpf_map_lookup_elem(&live, &id);
        if (!granted)
                return verdict(FENCE_PACKET_REVOKED);
        if (!heartbeat_is_fresh(bpf_ktime_get_boot_ns()))
                return verdict(FENCE_PACKET_HEARTBEAT);

        if (!packet_destination(skb, &to) || fence_never(to.address) || !same_destination(&to, granted) ||
            granted->cgroup_id != bpf_sk_cgroup_id(sk))
                return verdict(FENCE_PACKET_OTHER);

        return 1;
}
