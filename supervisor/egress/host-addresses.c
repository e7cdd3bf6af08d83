/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A netlink socket in the address groups is drained before every use, so that an address which the kernel
 * has announced is known to whoever asks next. If announcements were lost (ENOBUFS) the list counts as changed.
 */

#include <errno.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "egress/host-addresses.h"

enum { HOST_ADDRESSES_MAX = 4096 };

struct HostAddresses {
        int netlink_fd;       /* owned */
        Address *addresses;   /* owned */
        size_t n_addresses;
        bool stale;
};

int host_addresses_new(HostAddresses **ret) {
        struct sockaddr_nl groups = { .nl_family = AF_NETLINK, .nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR };
        _cleanup_(host_addresses_freep) HostAddresses *h = NULL;

        h = malloc(sizeof(*h));
        if (!h)
                return -ENOMEM;

        *h = (HostAddresses) { .netlink_fd = -1, .stale = true };
        h->netlink_fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
        if (h->netlink_fd < 0)
                return -errno;
        if (bind(h->netlink_fd, (struct sockaddr *) &groups, sizeof(groups)) < 0)
                return -errno;

        *ret = TAKE_PTR(h);
        return 0;
}

HostAddresses *host_addresses_free(HostAddresses *h) {
        if (!h)
                return NULL;

        (void) fd_close(h->netlink_fd);
        free(h->addresses);
        free(h);
        return NULL;
}

static void drain(HostAddresses *h) {
        char message[8192];

        for (;;) {
                ssize_t n = recv(h->netlink_fd, message, sizeof(message), MSG_DONTWAIT);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 && errno == EAGAIN)
                        return;
                h->stale = true;
                if (n < 0 && errno != ENOBUFS)
                        return;
        }
}

static bool address_from_sockaddr(const struct sockaddr *sa, Address *ret) {
        Address a = {};

        if (!sa)
                return false;

        if (sa->sa_family == AF_INET)
                memcpy(a.bytes, &((const struct sockaddr_in *) sa)->sin_addr, 4);
        else if (sa->sa_family == AF_INET6)
                memcpy(a.bytes, &((const struct sockaddr_in6 *) sa)->sin6_addr, 16);
        else
                return false;

        a.family = sa->sa_family;
        *ret = a;
        return true;
}

static int read_addresses(HostAddresses *h) {
        _cleanup_free_ Address *addresses = NULL;
        struct ifaddrs *list = NULL;
        size_t n = 0;

        if (getifaddrs(&list) < 0)
                return -errno;

        addresses = calloc(HOST_ADDRESSES_MAX, sizeof(*addresses));
        if (!addresses) {
                freeifaddrs(list);
                return -ENOMEM;
        }

        for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
                if (n >= HOST_ADDRESSES_MAX)
                        break;
                if (address_from_sockaddr(i->ifa_addr, &addresses[n]))
                        n++;
        }
        freeifaddrs(list);
        if (n >= HOST_ADDRESSES_MAX)
                return -E2BIG;

        free(h->addresses);
        h->addresses = TAKE_PTR(addresses);
        h->n_addresses = n;
        h->stale = false;
        return 0;
}

int host_addresses_get(HostAddresses *h, const Address **ret, size_t *ret_n) {
        int r;

        drain(h);
        if (h->stale) {
                r = read_addresses(h);
                if (r < 0)
                        return r;
        }

        *ret = h->addresses;
        *ret_n = h->n_addresses;
        return 0;
}

bool host_addresses_has_ipv6(HostAddresses *h) {
        const Address *list;
        size_t n;

        if (host_addresses_get(h, &list, &n) < 0)
                return false;

        for (size_t i = 0; i < n; i++) {
                const uint8_t *b = list[i].bytes;

                if (list[i].family == AF_INET6 && ((b[0] & 0xe0) == 0x20 || (b[0] & 0xfe) == 0xfc))
                        return true; /* global unicast or unique local */
        }
        return false;
}
