/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "net/netlink.h"

#define ANSWER_SIZE (32 * 1024)

int netlink_open(struct mnl_socket **ret, int bus) {
        _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
        struct timeval limit = { .tv_sec = 2 };

        nl = mnl_socket_open2(bus, SOCK_CLOEXEC);
        if (!nl)
                return -errno;
        if (mnl_socket_bind(nl, 0, MNL_SOCKET_AUTOPID) < 0)
                return -errno;
        if (setsockopt(mnl_socket_get_fd(nl), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0)
                return -errno;

        *ret = TAKE_PTR(nl);
        return 0;
}

static ssize_t receive(struct mnl_socket *nl, char *buffer, size_t size) {
        ssize_t n;

        do
                n = mnl_socket_recvfrom(nl, buffer, size);
        while (n < 0 && errno == EINTR);

        if (n < 0)
                return errno == EAGAIN ? -ETIMEDOUT : -errno;
        return n;
}

int netlink_talk(struct mnl_socket *nl, const void *data, size_t size, unsigned n_acks) {
        char buffer[ANSWER_SIZE];

        if (mnl_socket_sendto(nl, data, size) < 0)
                return -errno;

        while (n_acks > 0) {
                const struct nlmsghdr *nlh = (const struct nlmsghdr *) buffer;
                ssize_t n = receive(nl, buffer, sizeof(buffer));
                int left = (int) n;

                if (n < 0)
                        return (int) n;

                for (; mnl_nlmsg_ok(nlh, left); nlh = mnl_nlmsg_next(nlh, &left)) {
                        const struct nlmsgerr *e = mnl_nlmsg_get_payload(nlh);

                        if (nlh->nlmsg_type != NLMSG_ERROR)
                                continue;
                        if (e->error < 0)
                                return e->error;
                        if (n_acks > 0)
                                n_acks--;
                }
        }
        return 0;
}

int netlink_dump(struct mnl_socket *nl, const struct nlmsghdr *request, mnl_cb_t cb, void *userdata) {
        char buffer[ANSWER_SIZE];
        int r;

        if (mnl_socket_sendto(nl, request, request->nlmsg_len) < 0)
                return -errno;

        do {
                ssize_t n = receive(nl, buffer, sizeof(buffer));

                if (n < 0)
                        return (int) n;
                r = mnl_cb_run(buffer, (size_t) n, request->nlmsg_seq, mnl_socket_get_portid(nl), cb, userdata);
        } while (r > 0);

        return r < 0 ? -errno : 0;
}
