/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */

/*
 * May this packet leave?
 *
 * Every IP packet sent by a socket that was made below the runs slice. It passes if the socket connected
 * under a grant that is still live, egressd's and the warden's heartbeats are fresh, and the packet goes where that
 * grant says. So this is what cuts established connections, and the second answer to whatever passes the connect hooks.
 *
 * The socket's cgroup is that of its creator. A socket that came from elsewhere (a listener of
 * anchorhold-sockets.slice, accepted connections of it) is not seen here: that is intended for the run's
 * own guest side, and otherwise takes a descriptor that somebody outside the fence handed in.
 */

#include "fence-packet.bpf.h"

SEC("cgroup_skb/egress")
int egress(struct __sk_buff *skb) {
        struct bpf_sock *sk;
        __u32 objection;

        sk = skb->sk;
        if (!sk)
                return count(FENCE_PACKET_NO_GRANT, 0);
        sk = bpf_sk_fullsock(sk);
        if (!sk)
                return count(FENCE_PACKET_NO_GRANT, 0);

        objection = packet_objection(skb, sk);
        if (objection != FENCE_CONNECT_ALLOWED)
                return verdict_on(objection, skb);

        return 1;
}
