/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Network of the guest: lo, and eth0 with the one address, gateway and resolver that the host names. By
 * ioctl, since there is one interface, one address and one route to set. */

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/guest.h"

static void set_address(struct sockaddr *sa, struct in_addr address) {
        struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr = address };

        memcpy(sa, &in, sizeof(in));
}

static int interface_up(int fd, const char *name) {
        struct ifreq req = {};

        (void) snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", name);
        if (ioctl(fd, SIOCGIFFLAGS, &req) < 0)
                return -errno;

        req.ifr_flags |= IFF_UP;
        return ioctl(fd, SIOCSIFFLAGS, &req) < 0 ? -errno : 0;
}

int guest_setup_lo(void) {
        _cleanup_fd_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return -errno;

        return interface_up(fd, "lo");
}

/* "10.255.255.2/30" */
static int parse_address(const char *text, struct in_addr *ret, struct in_addr *ret_mask) {
        char address[INET_ADDRSTRLEN] = "";
        unsigned prefix = 0;

        if (!text || sscanf(text, "%15[0-9.]/%2u", address, &prefix) != 2 || prefix < 1 || prefix > 32)
                return -EINVAL;
        if (inet_pton(AF_INET, address, ret) != 1)
                return -EINVAL;

        ret_mask->s_addr = htonl(UINT32_MAX << (32 - prefix));
        return 0;
}

static int set_interface(int fd, const char *name, struct in_addr address, struct in_addr mask, json_int_t mtu) {
        struct ifreq req = {};

        (void) snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", name);
        set_address(&req.ifr_addr, address);
        if (ioctl(fd, SIOCSIFADDR, &req) < 0)
                return -errno;

        set_address(&req.ifr_netmask, mask);
        if (ioctl(fd, SIOCSIFNETMASK, &req) < 0)
                return -errno;

        if (mtu > 0) {
                req.ifr_mtu = (int) mtu;
                if (ioctl(fd, SIOCSIFMTU, &req) < 0)
                        return -errno;
        }

        return interface_up(fd, name);
}

static int set_gateway(int fd, struct in_addr gateway) {
        struct rtentry route = { .rt_flags = RTF_UP | RTF_GATEWAY };

        set_address(&route.rt_gateway, gateway);
        set_address(&route.rt_dst, (struct in_addr) { .s_addr = INADDR_ANY });
        set_address(&route.rt_genmask, (struct in_addr) { .s_addr = INADDR_ANY });
        return ioctl(fd, SIOCADDRT, &route) < 0 && errno != EEXIST ? -errno : 0;
}

int guest_setup_network(const json_t *network) {
        const char *dns = json_string_value(json_object_get(network, "dns"));
        struct in_addr address, mask, gateway;
        _cleanup_fd_ int fd = -1;
        char text[64];
        int r;

        r = parse_address(json_string_value(json_object_get(network, "address")), &address, &mask);
        if (r < 0)
                return r;
        if (inet_pton(AF_INET, json_string_value(json_object_get(network, "gateway")) ?: "", &gateway) != 1)
                return -EINVAL;

        fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;

        /* The run's network is IPv4; without this the guest would solicit routers for ever. */
        (void) guest_write_file("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1");
        /* Should root switch it on: there are no neighbours, and that is to be known at once, not after three times a second. */
        (void) guest_write_file("/proc/sys/net/ipv6/neigh/eth0/mcast_solicit", "1");
        (void) guest_write_file("/proc/sys/net/ipv6/neigh/eth0/retrans_time_ms", "300");

        r = set_interface(fd, "eth0", address, mask, json_integer_value(json_object_get(network, "mtu")));
        if (r < 0)
                return r;

        r = set_gateway(fd, gateway);
        if (r < 0)
                return r;

        /* a convenience for who sends, nothing that the host relies on */
        r = guest_refuse_groups((struct in_addr) { .s_addr = address.s_addr | ~mask.s_addr });
        if (r < 0)
                guest_log("broadcast and multicast are not refused, but dropped by the host: %s", strerror(-r));
        if (!dns)
                return 0;

        (void) snprintf(text, sizeof(text), "nameserver %.45s\n", dns);
        (void) unlink("/etc/resolv.conf"); /* a link into another system's /run, perhaps */
        return guest_write_file("/etc/resolv.conf", text);
}

int guest_setup_hostname(const char *name) {
        char text[256];
        int r;

        if (sethostname(name, strlen(name)) < 0)
                return -errno;

        (void) snprintf(text, sizeof(text), "%.63s\n", name);
        r = guest_write_file("/etc/hostname", text);
        if (r < 0)
                return r;

        (void) snprintf(text, sizeof(text), "127.0.0.1 localhost %.63s\n::1 localhost\n", name);
        return guest_write_file("/etc/hosts", text);
}
