/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */

/*
 * May this inet socket exist at all?
 *
 * Plain TCP and plain UDP in the host's network namespace only: raw, ping, UDP-Lite, MPTCP and SCTP
 * sockets send without passing the connect hooks, and a socket in another namespace would be judged by
 * addresses that mean something else there. Sees socket() of AF_INET and AF_INET6; other families
 * (AF_UNIX among them) never come here.
 *
 * What passes gets its storage here and not at its first connect(), where it would be half of what the fence costs. Until a connect() is allowed it names no
 * grant, and is as good as none. If there is no memory for it, the connect tries again.
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
                /* root there is anchor-fence, before the unit's own program; that has a user of its own, or makes none */
                (void) verdict((__u32) bpf_get_current_uid_gid() == 0 ? FENCE_TESTED : FENCE_CREATE_ELSEWHERE);
                return 0;
        }

        (void) bpf_sk_storage_get(&sockets, ctx, 0, BPF_SK_STORAGE_GET_F_CREATE);
        return 1;
}
