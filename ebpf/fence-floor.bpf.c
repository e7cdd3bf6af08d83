/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */

/*
 * Are the programs that judge in force here at all?
 *
 * These are the BPFProgram= lines of anchorhold-runs.slice, one for each kind of attachment that systemd has a word for: systemd puts them on
 * whenever it makes that cgroup, so that a process below it is denied everything before anybody has done anything. They let through, what the
 * others (fence-connect.bpf.c and so on) then decide about, only below the cgroup that anchor-fence named in map `place`, which it does once it has put
 * those others on that very cgroup. They keep nothing and count nothing.
 *
 * Why two layers: at each daemon-reload systemd 257 takes its programs off, and puts them on again only when the next unit below the slice starts. What
 * anchor-fence put there stays, and then denies by itself.
 *
 * Not seen: abstract Unix sockets, for which systemd has no word. A unit's first step is anchor-fence.
 */

#include "fence-maps.bpf.h"

#define AF_UNIX 1
#define AF_NETLINK 16

SEC("cgroup/connect4")
int floor_connect4(struct bpf_sock_addr *ctx) {
        return slice_level(NULL) >= 0;
}

SEC("cgroup/connect6")
int floor_connect6(struct bpf_sock_addr *ctx) {
        return slice_level(NULL) >= 0;
}

SEC("cgroup/sendmsg4")
int floor_sendmsg4(struct bpf_sock_addr *ctx) {
        return slice_level(NULL) >= 0;
}

SEC("cgroup/sendmsg6")
int floor_sendmsg6(struct bpf_sock_addr *ctx) {
        return slice_level(NULL) >= 0;
}

SEC("cgroup/bind4")
int floor_bind4(struct bpf_sock_addr *ctx) {
        return slice_level(NULL) >= 0;
}

SEC("cgroup/bind6")
int floor_bind6(struct bpf_sock_addr *ctx) {
        return slice_level(NULL) >= 0;
}

SEC("cgroup/sock_create")
int floor_sock_create(struct bpf_sock *ctx) {
        return slice_level(NULL) >= 0;
}

/* systemd itself opens Unix and netlink sockets in a new unit's cgroup: those are no way out. */
SEC("cgroup/setsockopt")
int floor_setsockopt(struct bpf_sockopt *ctx) {
        struct bpf_sock *sk = ctx->sk;
        __u32 family;

        if (!sk)
                return 0;
        family = sk->family;
        return family == AF_UNIX || family == AF_NETLINK || slice_level(NULL) >= 0;
}

SEC("cgroup_skb/egress")
int floor_egress(struct __sk_buff *skb) {
        return slice_level(skb) >= 0;
}
