/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The route `local default dev lo table main` makes any destination this namespace's own, so that an
 * intercepted packet is delivered here without marks and without forwarding. It stands in table
 * main, because table local is asked before main and the guest's own /30 would vanish behind a default there.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#include "net/netlink.h"
#include "net/run-link.h"
#include "net/run-net.h"
#include "util/io.h"

typedef struct Sysctl {
        const char *path, *value;
        bool optional; /* a kernel without IPv6 needs nothing switched off */
} Sysctl;

/* A new namespace may inherit the host's settings: what matters is set, not assumed. */
static const Sysctl sysctls[] = {
        { "/proc/sys/net/ipv6/conf/all/disable_ipv6",         "1", true },
        { "/proc/sys/net/ipv6/conf/default/disable_ipv6",     "1", true },
        { "/proc/sys/net/ipv4/ip_forward",                    "0", false },
        { "/proc/sys/net/ipv4/conf/all/rp_filter",            "1", false },
        { "/proc/sys/net/ipv4/conf/default/rp_filter",        "1", false },
        { "/proc/sys/net/ipv4/conf/all/accept_source_route",  "0", false },
        { "/proc/sys/net/ipv4/conf/all/accept_redirects",     "0", false },
        { "/proc/sys/net/ipv4/conf/all/send_redirects",       "0", false },
        { "/proc/sys/net/ipv4/conf/default/send_redirects",   "0", false },
        { "/proc/sys/net/ipv4/conf/all/route_localnet",       "0", false },
        /* a guest that is refused should hear so at once, every time; nobody else hears it */
        { "/proc/sys/net/ipv4/icmp_ratelimit",                "0", false },
        /* every address is local here: answer ARP for the gateway's only */
        { "/proc/sys/net/ipv4/conf/all/arp_ignore",           "1", false },
        { "/proc/sys/net/ipv4/conf/all/arp_announce",         "2", false },
};

static int set_sysctls(const char **ret_step) {
        for (size_t i = 0; i < ELEMENTSOF(sysctls); i++) {
                _cleanup_fd_ int fd = open(sysctls[i].path, O_WRONLY | O_CLOEXEC);
                int r;

                if (fd < 0 && errno == ENOENT && sysctls[i].optional)
                        continue;
                *ret_step = sysctls[i].path;
                if (fd < 0)
                        return -errno;
                r = io_write_full(fd, sysctls[i].value, strlen(sysctls[i].value));
                if (r < 0)
                        return r;
        }
        return 0;
}

int run_link_describe_sysctls(FILE *f) {
        for (size_t i = 0; i < ELEMENTSOF(sysctls); i++) {
                _cleanup_free_ char *value = NULL;
                int r;

                r = io_read_file(AT_FDCWD, sysctls[i].path, 256, &value, NULL);
                if (r == -ENOENT && sysctls[i].optional)
                        continue;
                if (r < 0)
                        return r;
                fprintf(f, "%s %s%s", sysctls[i].path, value, strchr(value, '\n') ? "" : "\n");
        }
        return 0;
}

/* A tap that outlives this process and that its group may attach to; the flags are QEMU's. */
static int make_tap(void) {
        struct ifreq req = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
        const struct group *group;
        _cleanup_fd_ int fd = -1;

        errno = 0;
        group = getgrnam(RUN_NET_TAP_GROUP);
        if (!group)
                return errno ? -errno : -ENOENT;

        fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
        if (fd < 0)
                return -errno;

        memcpy(req.ifr_name, RUN_NET_TAP, sizeof(RUN_NET_TAP));
        if (ioctl(fd, TUNSETIFF, &req) < 0 || ioctl(fd, TUNSETGROUP, (unsigned long) group->gr_gid) < 0 ||
            ioctl(fd, TUNSETPERSIST, 1UL) < 0)
                return -errno;

        return 0;
}

static int talk(struct mnl_socket *nl, struct nlmsghdr *nlh) {
        static uint32_t seq;

        nlh->nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
        nlh->nlmsg_seq = ++seq;
        return netlink_talk(nl, nlh, nlh->nlmsg_len, 1);
}

static int find_link(const char *name) {
        /* no ioctl: this needs no inet socket, which the fence would refuse in this namespace */
        _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
        char buffer[NETLINK_MESSAGE_SIZE];
        struct nlmsghdr *nlh;
        ssize_t n;
        int r;

        r = netlink_open(&nl, NETLINK_ROUTE);
        if (r < 0)
                return r;

        nlh = mnl_nlmsg_put_header(buffer);
        nlh->nlmsg_type = RTM_GETLINK;
        nlh->nlmsg_flags = NLM_F_REQUEST;
        (void) mnl_nlmsg_put_extra_header(nlh, sizeof(struct ifinfomsg));
        mnl_attr_put_strz(nlh, IFLA_IFNAME, name);
        if (mnl_socket_sendto(nl, nlh, nlh->nlmsg_len) < 0)
                return -errno;

        n = mnl_socket_recvfrom(nl, buffer, sizeof(buffer));
        if (n < 0)
                return -errno;
        if (!mnl_nlmsg_ok(nlh, (int) n))
                return -EBADMSG;
        if (nlh->nlmsg_type == NLMSG_ERROR)
                return ((struct nlmsgerr *) mnl_nlmsg_get_payload(nlh))->error ?: -EBADMSG;

        return ((struct ifinfomsg *) mnl_nlmsg_get_payload(nlh))->ifi_index;
}

static int set_up(struct mnl_socket *nl, int index) {
        char buffer[NETLINK_MESSAGE_SIZE];
        struct ifinfomsg *info;
        struct nlmsghdr *nlh;

        nlh = mnl_nlmsg_put_header(buffer);
        nlh->nlmsg_type = RTM_NEWLINK;
        info = mnl_nlmsg_put_extra_header(nlh, sizeof(*info));
        info->ifi_index = index;
        info->ifi_flags = info->ifi_change = IFF_UP;
        return talk(nl, nlh);
}

static int add_gateway(struct mnl_socket *nl, int index) {
        char buffer[NETLINK_MESSAGE_SIZE];
        struct ifaddrmsg *address;
        struct nlmsghdr *nlh;
        struct in_addr ip;

        (void) inet_pton(AF_INET, RUN_NET_GATEWAY, &ip);
        nlh = mnl_nlmsg_put_header(buffer);
        nlh->nlmsg_type = RTM_NEWADDR;
        nlh->nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL;
        address = mnl_nlmsg_put_extra_header(nlh, sizeof(*address));
        address->ifa_family = AF_INET;
        address->ifa_prefixlen = RUN_NET_PREFIX;
        address->ifa_index = (uint32_t) index;
        mnl_attr_put(nlh, IFA_LOCAL, sizeof(ip), &ip);
        mnl_attr_put(nlh, IFA_ADDRESS, sizeof(ip), &ip);
        return talk(nl, nlh);
}

static int add_local_default(struct mnl_socket *nl) {
        char buffer[NETLINK_MESSAGE_SIZE];
        struct nlmsghdr *nlh;
        struct rtmsg *route;

        nlh = mnl_nlmsg_put_header(buffer);
        nlh->nlmsg_type = RTM_NEWROUTE;
        nlh->nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL;
        route = mnl_nlmsg_put_extra_header(nlh, sizeof(*route));
        route->rtm_family = AF_INET;
        route->rtm_table = RT_TABLE_MAIN;
        route->rtm_protocol = RTPROT_STATIC;
        route->rtm_scope = RT_SCOPE_HOST;
        route->rtm_type = RTN_LOCAL;
        mnl_attr_put_u32(nlh, RTA_OIF, 1); /* lo is the first device of every namespace */
        return talk(nl, nlh);
}

int run_link_up(const char **ret_step) {
        _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
        int tap, r;

        r = set_sysctls(ret_step);
        if (r < 0)
                return r;

        *ret_step = "rtnetlink socket";
        r = netlink_open(&nl, NETLINK_ROUTE);
        if (r < 0)
                return r;

        *ret_step = "loopback device";
        r = set_up(nl, 1);
        if (r < 0)
                return r;

        *ret_step = "tap device (group " RUN_NET_TAP_GROUP ")";
        r = make_tap();
        if (r < 0)
                return r;
        tap = find_link(RUN_NET_TAP);
        if (tap < 0)
                return tap;
        r = set_up(nl, tap);
        if (r < 0)
                return r;

        *ret_step = "gateway address";
        r = add_gateway(nl, tap);
        if (r < 0)
                return r;

        *ret_step = "local default route";
        return add_local_default(nl);
}

int run_link_remove_tap(void) {
        _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
        char buffer[NETLINK_MESSAGE_SIZE];
        struct ifinfomsg *info;
        struct nlmsghdr *nlh;
        int tap, r;

        tap = find_link(RUN_NET_TAP);
        if (tap < 0)
                return tap;

        r = netlink_open(&nl, NETLINK_ROUTE);
        if (r < 0)
                return r;

        nlh = mnl_nlmsg_put_header(buffer);
        nlh->nlmsg_type = RTM_DELLINK;
        info = mnl_nlmsg_put_extra_header(nlh, sizeof(*info));
        info->ifi_index = tap;
        return talk(nl, nlh);
}
