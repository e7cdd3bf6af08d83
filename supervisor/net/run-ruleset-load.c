/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The ruleset on its way into the kernel, in the form that this one can take (run-ruleset.c). */

#include <errno.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <unistd.h>

#include "net/netlink.h"
#include "net/run-ruleset.h"
#include "util/cleanup.h"

#define IPV6_SETTINGS "/proc/sys/net/ipv6/conf/all" /* of the namespace; there unless the kernel is without IPv6 as a whole */

static int load(bool answer_frames) {
        _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
        _cleanup_free_ char *buffer = NULL;
        unsigned n_acks;
        int size, r;

        buffer = malloc(RUN_RULESET_SIZE);
        if (!buffer)
                return -ENOMEM;

        size = run_ruleset_build(buffer, RUN_RULESET_SIZE, answer_frames, &n_acks);
        if (size < 0)
                return size;

        r = netlink_open(&nl, NETLINK_NETFILTER);
        if (r < 0)
                return r;

        return netlink_talk(nl, buffer, (size_t) size, n_acks);
}

int run_ruleset_load(void) {
        int r = -ENOENT;

        if (access(IPV6_SETTINGS, F_OK) >= 0)
                r = load(true);
        /* that there is no such expression; if it is another one, the second time fails as well */
        return r == -ENOENT ? load(false) : r;
}
