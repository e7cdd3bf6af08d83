/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */

/*
 * May this task's socket talk to that address?
 *
 * Seen here: connect() of TCP and UDP in every form (io_uring, MSG_FASTOPEN, IPv4-mapped addresses), and
 * sendto()/sendmsg() with an address on UDP. Not seen: sockets that need no address (raw, ping, UDP-Lite:
 * fence-create.bpf.c refuses them), and what a connected socket sends afterwards (fence-packet.bpf.c).
 * Sockets of other families than inet are not asked about; the units' seccomp filters close those.
 *
 * No entry, no heartbeat, an unknown family, protocol or namespace: denied.
 *
 * What an allowed connect costs (kernel 6.18, a socket that was made below the slice, each part left out in turn): the hooks themselves and what they cannot do without
 * 600 ns, the counts 100, each of the two packets until it stands 190, of which the clock and the two heartbeats are 75. With the floor beside them that is 6 to 7 % of a TCP connect over loopback (`make bench`).
 * Another 700 ns are the socket's storage, which fence-create.bpf.c makes at socket(). It is what ties the packets to the grant for as long as the
 * socket lives, its last FIN included: a map by socket cookie would have to be cleaned up at close(), before that.
 */

#include <stddef.h>

#include "fence-maps.bpf.h"

#define AF_INET 2
#define AF_INET6 10

static __always_inline __u32 decide(struct bpf_sock_addr *ctx, struct fence_key *key) {
        struct fence_grant *grant;
        struct fence_socket *s;
        struct bpf_sock *sk;
        __u64 now;

        if (!netns_is_host(ctx))
                return FENCE_CONNECT_OTHER;

        if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP)
                return FENCE_CONNECT_OTHER;

        if (fence_never(key->address))
                return FENCE_CONNECT_NEVER;

        key->cgroup_id = bpf_get_current_cgroup_id();
        key->port = (__be16) ctx->user_port;
        key->protocol = (__u8) ctx->protocol;

        grant = bpf_map_lookup_elem(&grants, key);
        if (!grant)
                return FENCE_CONNECT_NO_GRANT;

        now = bpf_ktime_get_boot_ns();
        if (now >= grant->expires_ns)
                return FENCE_CONNECT_EXPIRED;
        if (!heartbeat_is_fresh(now))
                return FENCE_CONNECT_HEARTBEAT;

        sk = ctx->sk;
        if (!sk)
                return FENCE_CONNECT_OTHER;

        s = bpf_sk_storage_get(&sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
        if (!s)
                return FENCE_CONNECT_OTHER;

        s->grant = grant->id;
        return FENCE_CONNECT_ALLOWED;
}

/* To one of the tests' ports: was it a test? The fence's own of itself goes where nobody is. Whatever else is tried there counts as anybody's, but for whoever may write
 * grants and has said so. */
static __always_inline int is_own_test(const struct fence_key *key) {
        struct fence_key tester = { .cgroup_id = bpf_get_current_cgroup_id(), .port = fence_test_port() };

        return fence_is_nowhere(key->address) || bpf_map_lookup_elem(&grants, &tester) != NULL;
}

static __always_inline int judge(struct bpf_sock_addr *ctx, struct fence_key *key) {
        __u32 v = decide(ctx, key);

        (void) verdict(fence_is_test((__be16) ctx->user_port) && is_own_test(key) ? FENCE_TESTED : v);
        return v == FENCE_CONNECT_ALLOWED;
}

static __always_inline int judge4(struct bpf_sock_addr *ctx) {
        struct fence_key key = {};
        __u32 ip = ctx->user_ip4;

        if (ctx->family != AF_INET)
                return verdict(FENCE_CONNECT_OTHER);

        key.address[10] = key.address[11] = 0xff;
        __builtin_memcpy(key.address + 12, &ip, sizeof(ip));
        return judge(ctx, &key);
}

static __always_inline int judge6(struct bpf_sock_addr *ctx) {
        struct fence_key key = {};
        __u32 ip[4] = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] };

        if (ctx->family != AF_INET6)
                return verdict(FENCE_CONNECT_OTHER);

        __builtin_memcpy(key.address, ip, sizeof(ip));
        return judge(ctx, &key);
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx) {
        return judge4(ctx);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx) {
        return judge6(ctx);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx) {
        return judge4(ctx);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx) {
        return judge6(ctx);
}
