/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Requests to the kernel over netlink, with libmnl's errors made ours. */

#include <libmnl/libmnl.h>
#include <stddef.h>

#include "util/cleanup.h"

#define NETLINK_MESSAGE_SIZE 8192 /* room for any one request of ours, and for the kernel's word on one link */

static inline struct mnl_socket *netlink_close(struct mnl_socket *nl) {
        if (nl)
                (void) mnl_socket_close(nl);
        return NULL;
}
DEFINE_CLEANUP(struct mnl_socket *, netlink_close)

/* A socket in this thread's network namespace; waits for an answer at most two seconds. */
int netlink_open(struct mnl_socket **ret, int bus);

/* Sends size bytes of messages, and waits for n_acks acknowledgements. The first error is returned. */
int netlink_talk(struct mnl_socket *nl, const void *data, size_t size, unsigned n_acks);

/* Sends one dump request; calls cb for each message of the answer. */
int netlink_dump(struct mnl_socket *nl, const struct nlmsghdr *request, mnl_cb_t cb, void *userdata);
