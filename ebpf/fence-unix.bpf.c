/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */

/*
 * May this process talk to that Unix socket? Only if it has a place in the file system.
 *
 * What a run's unit finds there is decided by its private /run; an abstract socket belongs to the network namespace
 * instead, which proxy and inject share with the host. Sees connect() of every type, and sendto() with an
 * address; socket pairs and passed descriptors never come here. Needs a kernel of 6.7 or later. systemd does not
 * know these two hooks yet: anchor-fence attaches them, see net/fence.h.
 */

#include <stddef.h>

#include "fence-maps.bpf.h"

#include <bpf/bpf_core_read.h>

/* What is read of the kernel's own types; libbpf finds out where it is. */
struct sockaddr_un {
        char sun_path[108];
} __attribute__((preserve_access_index));

struct bpf_sock_addr_kern {
        void *uaddr;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;

/* Unrolled, so that the name is in the instructions: a map of constants would be another one each time that this is loaded. */
static __always_inline int is_test(const struct sockaddr_un *to) {
        int i;

#pragma unroll
        for (i = 0; i < (int) sizeof(FENCE_TEST_NAME) - 1; i++)
                if (to->sun_path[1 + i] != FENCE_TEST_NAME[i])
                        return 0;
        return 1;
}

static __always_inline int has_path(struct bpf_sock_addr *ctx) {
        struct bpf_sock_addr_kern *kern = bpf_cast_to_kern_ctx(ctx);
        struct sockaddr_un *to = bpf_rdonly_cast(kern->uaddr, bpf_core_type_id_kernel(struct sockaddr_un));

        if (to->sun_path[0] != 0)
                return 1;

        (void) verdict(is_test(to) ? FENCE_TESTED : FENCE_UNIX_ABSTRACT);
        return 0;
}

SEC("cgroup/connect_unix")
int connect_unix(struct bpf_sock_addr *ctx) {
        return has_path(ctx);
}

SEC("cgroup/sendmsg_unix")
int sendmsg_unix(struct bpf_sock_addr *ctx) {
        return has_path(ctx);
}
