/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */

/*
 * May this inet socket exist at all?
 *
 * Plain TCP and plain UDP in the host's network namespace only: raw, ping, UDP-Lite, MPTCP and SCTP
 * sockets send without passing the connect hooks, and a socket in another namespace would be judged by
 * addresses that mean something else there. Sees socket() of AF_INET and AF_INET6; other families
 * (AF_UNIX among them) never come here.
 */

#include "fence-maps.bpf.h"

#define SOCK_STREAM 1
#define SOCK_DGRAM 2

SEC("cgroup/sock_create")
int sock_create(struct bpf_sock *ctx) {
        __u32 type = ctx->type, protocol = ctx->protocol;

        if (!((type == SOCK_STREAM && protocol == IPPROTO_TCP) || (type == SOCK_DGRAM && protocol == IPPROTO_UDP))) {
                (void) verdict(FENCE_CREATE_REFUSED);
                return 0;
        }
        if (!netns_is_host(ctx)) {
                (void) verdict(FENCE_CREATE_ELSEWHERE);
                return 0;
        }

        return 1;
}
