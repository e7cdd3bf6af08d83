/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */

/*
 * What may be done to a run's inet sockets beside connecting them?
 *
 * Nothing is bound: the run's listeners are systemd's (anchorhold-sockets.slice), and whoever connects needs no address of
 * its own choice. A socket that listens without being bound answers nobody: its packets carry no grant (fence-packet.bpf.c).
 *
 * Options are a list of what our programs set, each without influence on where a packet goes: no source route, mark, device,
 * transparent address, routing header, nor TCP repair, ULP, or whatever the kernel learns next. Options of Unix and
 * netlink sockets are let alone; other families do not get this far, and so are refused. Of passed descriptors it sees
 * those that were made below the slice.
 */

#include "fence-maps.bpf.h"

#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define AF_NETLINK 16

#define SOL_SOCKET 1
#define SO_SNDBUF 7
#define SO_RCVBUF 8
#define SO_KEEPALIVE 9
#define SO_LINGER 13
#define SO_RCVTIMEO_OLD 20
#define SO_SNDTIMEO_OLD 21
#define SO_RCVTIMEO_NEW 66
#define SO_SNDTIMEO_NEW 67

#define TCP_NODELAY 1
#define TCP_CORK 3
#define TCP_KEEPIDLE 4
#define TCP_KEEPINTVL 5
#define TCP_KEEPCNT 6
#define TCP_QUICKACK 12
#define TCP_USER_TIMEOUT 18

static __always_inline int option_is_harmless(__s32 level, __s32 option) {
        if (level == SOL_SOCKET)
                return option == SO_SNDBUF || option == SO_RCVBUF || option == SO_KEEPALIVE || option == SO_LINGER ||
                       option == SO_RCVTIMEO_OLD || option == SO_SNDTIMEO_OLD || option == SO_RCVTIMEO_NEW ||
                       option == SO_SNDTIMEO_NEW;
        if (level == IPPROTO_TCP)
                return option == TCP_NODELAY || option == TCP_CORK || option == TCP_KEEPIDLE || option == TCP_KEEPINTVL ||
                       option == TCP_KEEPCNT || option == TCP_QUICKACK || option == TCP_USER_TIMEOUT;
        return 0;
}

SEC("cgroup/bind4")
int bind4(struct bpf_sock_addr *ctx) {
        return verdict(FENCE_BIND_REFUSED);
}

SEC("cgroup/bind6")
int bind6(struct bpf_sock_addr *ctx) {
        return verdict(FENCE_BIND_REFUSED);
}

SEC("cgroup/setsockopt")
int setsockopt(struct bpf_sockopt *ctx) {
        __s32 level = ctx->level, option = ctx->optname;
        struct bpf_sock *sk = ctx->sk;
        __u32 family;

        if (!sk)
                return verdict(FENCE_OPTION_REFUSED);

        family = sk->family;
        if (family == AF_UNIX || family == AF_NETLINK)
                return 1;
        if ((family == AF_INET || family == AF_INET6) && option_is_harmless(level, option))
                return 1;

        return verdict(FENCE_OPTION_REFUSED);
}
