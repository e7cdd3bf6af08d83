/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A run's namespace in the running kernel, with this test as the guest: it attaches to tap0 as QEMU
 * does, writes Ethernet frames and looks at what comes back. Needs root and /dev/net/tun. Private mount and
 * network namespaces; nothing of it is left behind.
 */

#include <arpa/inet.h>
#include <fcntl.h>
#include <libnftnl/common.h>
#include <libnftnl/table.h>
#include <linux/if_tun.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/if_ether.h>
#include <netinet/icmp6.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "net/check.h"
#include "net/netlink.h"
#include "net/run-net.h"
#include "net/run-ruleset.h"
#include "util/cleanup.h"
#include "util/text.h"

#define RUN "r000000000abc"
#define NETNS "/run/netns/anchor-" RUN
#define WAIT_MSEC 500

static const uint8_t guest_mac[6] = { 2, 0, 0, 0, 0, 2 };
static int home = -1;     /* the network namespace where the tests start */
static bool can_answer;   /* this kernel, what a run's rules refuse before the network code sees it */

static void must(int r) {
        if (r < 0)
                fail_msg("%s", strerror(errno));
}

/* ---- rules that are taken away or put in place of others, in the calling process's namespace ---- */

/* Those of one family, or of all (NFPROTO_UNSPEC). */
static void drop_tables(uint16_t family) {
        _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
        char buffer[NETLINK_MESSAGE_SIZE];
        struct nlmsghdr *nlh;
        size_t size;

        size = nftnl_batch_begin(buffer, 1)->nlmsg_len;
        nlh = nftnl_nlmsg_build_hdr(buffer + size, NFT_MSG_DELTABLE, family, NLM_F_ACK, 2);
        size += nlh->nlmsg_len;
        size += nftnl_batch_end(buffer + size, 3)->nlmsg_len;
        assert_int_equal(netlink_open(&nl, NETLINK_NETFILTER), 0);
        assert_int_equal(netlink_talk(nl, buffer, size, 1), 0);
}

/* The run's rules anew, in that form. */
static int replace_rules(bool answer) {
        _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
        char buffer[RUN_RULESET_SIZE];
        unsigned n;
        int size;

        drop_tables(NFPROTO_UNSPEC);
        size = run_ruleset_build(buffer, sizeof(buffer), answer, &n);
        assert_true(size > 0);
        assert_int_equal(netlink_open(&nl, NETLINK_NETFILTER), 0);
        return netlink_talk(nl, buffer, (size_t) size, n);
}

static bool are_frames_answered(void) {
        bool answered;

        assert_int_equal(run_ruleset_answers_frames(&answered), 0);
        return answered;
}

/* ---- the namespace ---- */

/* The kernel's own word, with which what run_net_up() makes of it is compared. */
static bool ask_kernel(void) {
        const char *step;
        int r;

        must(run_net_up(RUN, &step));
        r = replace_rules(true);
        if (r != 0)
                assert_int_equal(r, -ENOENT); /* there is no such expression, and nothing else is amiss: */
        assert_int_equal(replace_rules(false), 0);
        return r == 0 && access("/proc/sys/net/ipv6/conf/all", F_OK) == 0;
}

static int group_setup(void **state) {
        const char *step;
        FILE *f;

        must(unshare(CLONE_NEWNS | CLONE_NEWNET));
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
                assert_int_equal(errno, EINVAL); /* a chroot, see fence-world.h */
        must(mount("tmpfs", "/run", "tmpfs", 0, NULL));
        must(mkdir("/run/anchorhold", 0755));
        must(mkdir("/run/anchorhold/run", 0755));
        f = fopen("/run/group", "we");
        assert_non_null(f);
        fprintf(f, "root:x:0:\nanchorhold-tap:x:994:\n");
        fclose(f);
        must(mount("/run/group", "/etc/group", NULL, MS_BIND, NULL));
        must(mount("tmpfs", "/dev", "tmpfs", 0, NULL));
        must(mkdir("/dev/net", 0755));
        must(mknod("/dev/net/tun", S_IFCHR | 0666, makedev(10, 200)));
        must(home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));

        can_answer = ask_kernel();
        print_message("refused frames: this kernel %s\n", can_answer ? "answers" : "cannot answer");
        must(setns(home, CLONE_NEWNET));
        return run_net_down(RUN, &step);
}

static int setup(void **state) {
        const char *step = NULL;
        int r;

        must(setns(home, CLONE_NEWNET));
        r = run_net_up(RUN, &step);
        if (r < 0)
                fail_msg("%s: %s", step, strerror(-r));
        assert_int_equal(are_frames_answered(), can_answer);
        return 0;
}

/* As where the kernel cannot answer. */
static int setup_without_answers(void **state) {
        (void) setup(state);
        assert_int_equal(replace_rules(false), 0);
        assert_false(are_frames_answered());
        return 0;
}

static int teardown(void **state) {
        const char *step;

        must(setns(home, CLONE_NEWNET));
        assert_int_equal(run_net_down(RUN, &step), 0);
        assert_int_equal(access(NETNS, F_OK), -1);
        assert_int_equal(access("/run/anchorhold/run/" RUN, F_OK), -1);
        return 0;
}

/* ---- the guest ---- */

typedef struct Frame {
        struct virtio_net_hdr vnet;
        struct ether_header ether;
        struct iphdr ip;
        union {
                struct tcphdr tcp;
                struct udphdr udp;
                struct icmphdr icmp;
                uint8_t raw[512];
        };
} __attribute__((__packed__)) Frame;

static int attach(void) {
        struct ifreq req = { .ifr_name = RUN_NET_TAP, .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
        _cleanup_fd_ int inet = -1;
        int fd;

        must(fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
        must(ioctl(fd, TUNSETIFF, &req));

        /* the kernel drops what it sends until it has noticed, a while later, that somebody attached */
        must(inet = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        for (unsigned i = 0; i < 300 && !(req.ifr_flags & IFF_RUNNING); i++) {
                usleep(10 * 1000);
                must(ioctl(inet, SIOCGIFFLAGS, &req));
        }
        usleep(20 * 1000);
        return fd;
}

static void answer_arp(int tap, const uint8_t *request, size_t size) {
        struct {
                struct virtio_net_hdr vnet;
                struct ether_header ether;
                struct ether_arp arp;
        } __attribute__((__packed__)) reply = {};
        struct ether_arp arp;
        struct in_addr guest;

        if (size < sizeof(reply.vnet) + sizeof(reply.ether) + sizeof(arp))
                return;
        memcpy(&arp, request + sizeof(reply.vnet) + sizeof(reply.ether), sizeof(arp));
        inet_pton(AF_INET, RUN_NET_GUEST, &guest);
        if (memcmp(arp.arp_tpa, &guest, 4) != 0)
                return;
        memcpy(reply.ether.ether_dhost, arp.arp_sha, 6);
        memcpy(reply.ether.ether_shost, guest_mac, 6);
        reply.ether.ether_type = htons(ETHERTYPE_ARP);
        reply.arp = arp;
        reply.arp.arp_op = htons(ARPOP_REPLY);
        memcpy(reply.arp.arp_sha, guest_mac, 6);
        memcpy(reply.arp.arp_spa, &guest, 4);
        memcpy(reply.arp.arp_tha, arp.arp_sha, 6);
        memcpy(reply.arp.arp_tpa, arp.arp_spa, 4);
        must((int) write(tap, &reply, sizeof(reply)));
}

/* The next IPv4 packet to the guest; false if none comes in time. */
static bool receive(int tap, Frame *ret) {
        struct pollfd p = { .fd = tap, .events = POLLIN };

        while (poll(&p, 1, WAIT_MSEC) > 0) {
                Frame f = {};
                ssize_t n = read(tap, &f, sizeof(f));

                if (n < (ssize_t) offsetof(Frame, ip))
                        continue;
                if (f.ether.ether_type == htons(ETHERTYPE_ARP))
                        answer_arp(tap, (uint8_t *) &f, (size_t) n);
                if (f.ether.ether_type == htons(ETHERTYPE_IP)) {
                        *ret = f;
                        return true;
                }
        }
        return false;
}

static uint16_t checksum(const void *data, size_t size) {
        const uint8_t *p = data;
        uint32_t sum = 0;

        for (size_t i = 0; i < size; i += 2)
                sum += (uint32_t) p[i] << 8 | p[i + 1];
        while (sum >> 16)
                sum = (sum & 0xffff) + (sum >> 16);
        return htons((uint16_t) ~sum);
}

/* Sends a SYN, a datagram or an echo request. */
static void send_from(int tap, const char *source, uint8_t protocol, const char *address, uint16_t port) {
        Frame f = {};
        size_t size = protocol == IPPROTO_TCP ? sizeof(f.tcp) : sizeof(f.udp);
        struct ifreq own = {};

        must(ioctl(tap, SIOCGIFHWADDR, &own));
        memcpy(f.ether.ether_dhost, own.ifr_hwaddr.sa_data, 6);
        memcpy(f.ether.ether_shost, guest_mac, 6);
        f.ether.ether_type = htons(ETHERTYPE_IP);
        f.ip = (struct iphdr) {
                .version = 4,
                .ihl = 5,
                .ttl = 64,
                .protocol = protocol,
                .tot_len = htons((uint16_t) (sizeof(f.ip) + size)),
        };
        inet_pton(AF_INET, source, &f.ip.saddr);
        inet_pton(AF_INET, address, &f.ip.daddr);
        f.ip.check = checksum(&f.ip, sizeof(f.ip));

        switch (protocol) {
        case IPPROTO_TCP:
                f.tcp.source = htons(40000);
                f.tcp.dest = htons(port);
                f.tcp.doff = 5;
                f.tcp.syn = 1;
                f.tcp.window = htons(1000);
                f.vnet.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM; /* so nobody checks it */
                f.vnet.csum_start = offsetof(Frame, tcp) - sizeof(f.vnet);
                f.vnet.csum_offset = offsetof(struct tcphdr, check);
                break;
        case IPPROTO_UDP:
                f.udp.source = htons(40000);
                f.udp.dest = htons(port);
                f.udp.len = htons((uint16_t) size);
                break;
        default:
                f.icmp.type = ICMP_ECHO;
                f.icmp.checksum = checksum(&f.icmp, sizeof(f.icmp));
        }

        must((int) write(tap, &f, offsetof(Frame, raw) + size));
}

static void send_guest(int tap, uint8_t protocol, const char *address, uint16_t port) {
        send_from(tap, RUN_NET_GUEST, protocol, address, port);
}

static const char *source_of(const Frame *f) {
        static char text[INET_ADDRSTRLEN];

        return inet_ntop(AF_INET, &f->ip.saddr, text, sizeof(text));
}

static int listener(int type, uint16_t port) {
        struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(port) };
        int fd, one = 1;

        must(fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        must(setsockopt(fd, SOL_IP, IP_TRANSPARENT, &one, sizeof(one)));
        must(bind(fd, (struct sockaddr *) &sin, sizeof(sin)));
        if (type == SOCK_STREAM)
                must(listen(fd, 8));
        return fd;
}

/* ---- tests ---- */

static void test_build(void **state) {
        char buffer[RUN_RULESET_SIZE];
        unsigned n;
        int size;

        for (int answer = 0; answer < 2; answer++) {
                size = run_ruleset_build(buffer, sizeof(buffer), answer, &n);
                assert_true(size > 1000);
                assert_int_equal(n, 25); /* two tables, set, two chains, 3 + 4 + 1 + 5 + 7 rules */
        }

        /* never written past what it was given */
        assert_int_equal(run_ruleset_build(buffer, 4096, true, &n), -ENOBUFS);
        assert_int_equal(run_ruleset_build(buffer, 0, true, &n), -ENOBUFS);
}

static void test_bad_id(void **state) {
        const char *step;

        assert_int_equal(run_net_up("../../etc", &step), -EINVAL);
        assert_int_equal(run_net_up("", &step), -EINVAL);
        assert_int_equal(run_net_down("r000000000ab/", &step), -EINVAL);
        assert_int_equal(run_net_down("rzzzzzzzzzzzz", &step), 0); /* nothing there is fine */
}

static void test_intercepted(void **state) {
        _cleanup_fd_ int tap = attach(), server = listener(SOCK_STREAM, RUN_NET_PORT_INTERCEPT);
        Frame f;

        send_guest(tap, IPPROTO_TCP, "198.18.0.5", 443);
        assert_true(receive(tap, &f));
        assert_string_equal(source_of(&f), "198.18.0.5");
        assert_int_equal(f.ip.protocol, IPPROTO_TCP);
        assert_true(f.tcp.syn && f.tcp.ack && !f.tcp.rst);
        assert_int_equal(ntohs(f.tcp.source), 443);
}

static void test_nobody_listens(void **state) {
        _cleanup_fd_ int tap = attach();
        Frame f;

        send_guest(tap, IPPROTO_TCP, "198.19.255.255", 443);
        assert_true(receive(tap, &f));
        assert_true(f.tcp.rst);
}

static void test_dns(void **state) {
        _cleanup_fd_ int tap = attach(), server = listener(SOCK_DGRAM, RUN_NET_PORT_DNS);
        struct pollfd p = { .fd = server, .events = POLLIN };

        send_guest(tap, IPPROTO_UDP, "8.8.8.8", 53);
        assert_int_equal(poll(&p, 1, WAIT_MSEC), 1);
}

static void test_explicit_proxy(void **state) {
        _cleanup_fd_ int tap = attach(), server = listener(SOCK_STREAM, RUN_NET_PORT_PROXY);
        Frame f;

        send_guest(tap, IPPROTO_TCP, RUN_NET_GATEWAY, RUN_NET_PORT_PROXY);
        assert_true(receive(tap, &f));
        assert_true(f.tcp.syn && f.tcp.ack);

        send_guest(tap, IPPROTO_TCP, RUN_NET_GATEWAY, RUN_NET_PORT_INTERCEPT);
        assert_true(receive(tap, &f));
        assert_true(f.tcp.rst); /* the interception's own port is not the guest's to use */
}

static bool is_denied(const RunNetDenial *d, size_t n, uint8_t protocol, const char *address, uint16_t port, uint64_t packets) {
        uint8_t a[4];

        inet_pton(AF_INET, address, a);
        for (size_t i = 0; i < n; i++)
                if (d[i].protocol == protocol && memcmp(d[i].address, a, 4) == 0 && d[i].port == port)
                        return d[i].packets == packets;
        return false;
}

static void test_rejected_at_once_and_counted(void **state) {
        _cleanup_fd_ int tap = attach(), server = listener(SOCK_STREAM, RUN_NET_PORT_INTERCEPT);
        RunNetDenial denials[RUN_NET_MAX_DENIED];
        size_t n;
        Frame f;

        send_guest(tap, IPPROTO_TCP, "203.0.113.9", 443);
        assert_true(receive(tap, &f));
        assert_true(f.ip.protocol == IPPROTO_TCP && f.tcp.rst);
        send_guest(tap, IPPROTO_TCP, "203.0.113.9", 443);
        assert_true(receive(tap, &f));

        static const struct {
                uint8_t protocol;
                const char *address;
                uint16_t port;
        } others[] = {
                { IPPROTO_UDP, "8.8.8.8", 123 },
                { IPPROTO_UDP, "198.18.0.5", 443 },
                { IPPROTO_UDP, "169.254.169.254", 80 },
                { IPPROTO_ICMP, "1.1.1.1", 0 },
                { IPPROTO_ICMP, RUN_NET_GATEWAY, 0 },
        };
        for (size_t i = 0; i < ELEMENTSOF(others); i++) {
                send_guest(tap, others[i].protocol, others[i].address, others[i].port);
                if (!receive(tap, &f))
                        fail_msg("protocol %u to %s: no answer", others[i].protocol, others[i].address);
                assert_int_equal(f.ip.protocol, IPPROTO_ICMP);
                assert_int_equal(f.icmp.type, ICMP_DEST_UNREACH);
                assert_int_equal(f.icmp.code, ICMP_PKT_FILTERED);
        }
        send_guest(tap, IPPROTO_TCP, "127.0.0.1", 22); /* the kernel calls it a martian, whoever comes first */
        (void) receive(tap, &f);

        assert_int_equal(run_net_read_denials(RUN, denials, &n), 0);
        assert_true(is_denied(denials, n, IPPROTO_TCP, "203.0.113.9", 443, 2));
        for (size_t i = 0; i < ELEMENTSOF(others); i++)
                assert_true(is_denied(denials, n, others[i].protocol, others[i].address, others[i].port, 1));
}

/* Refused where it comes from, whatever way leads to that address; a source of one's own is the control. */
static void test_spoofed(void **state) {
        static const struct {
                const char *source;
                uint8_t protocol;
                const char *address;
                uint16_t port;
        } forged[] = {
                { "203.0.113.77", IPPROTO_TCP, "198.18.0.5", 443 },
                { RUN_NET_GATEWAY, IPPROTO_UDP, "8.8.8.8", 53 },
                { "198.18.0.5", IPPROTO_ICMP, RUN_NET_GUEST, 0 },
        };
        uint64_t counts[RUN_RULESET_N_RULES];
        _cleanup_fd_ int tap = attach(), server = listener(SOCK_STREAM, RUN_NET_PORT_INTERCEPT), names = listener(SOCK_DGRAM, RUN_NET_PORT_DNS);
        struct pollfd p = { .fd = names, .events = POLLIN };
        bool answered = are_frames_answered();
        Frame f;

        for (size_t i = 0; i < ELEMENTSOF(forged); i++) {
                send_from(tap, forged[i].source, forged[i].protocol, forged[i].address, forged[i].port);
                if (!answered)
                        continue;
                assert_true(receive(tap, &f));
                assert_true(f.ip.daddr == inet_addr(forged[i].source));
                assert_memory_equal(f.ether.ether_dhost, guest_mac, 6);
                if (forged[i].protocol == IPPROTO_TCP)
                        assert_true(f.ip.protocol == IPPROTO_TCP && f.tcp.rst);
                else
                        assert_true(f.ip.protocol == IPPROTO_ICMP && f.icmp.type == ICMP_DEST_UNREACH && f.icmp.code == ICMP_PKT_FILTERED);
        }
        assert_false(receive(tap, &f)); /* and nothing else */
        assert_int_equal(poll(&p, 1, 0), 0);
        assert_int_equal(run_ruleset_read_counters(counts), 0);
        assert_int_equal(counts[RUN_RULE_SOURCE_TCP], 1);
        assert_int_equal(counts[RUN_RULE_SOURCE_NOT_TCP], 2);
        assert_int_equal(counts[RUN_RULE_OTHER_SOURCE], 0);
        assert_int_equal(counts[RUN_RULE_SOURCE_LOGGED], 3);
        assert_int_equal(counts[RUN_RULE_LOGGED], 0);

        send_guest(tap, IPPROTO_TCP, "198.18.0.5", 443);
        assert_true(receive(tap, &f));
        assert_true(f.tcp.syn && f.tcp.ack);
        send_guest(tap, IPPROTO_UDP, "8.8.8.8", 53);
        assert_int_equal(poll(&p, 1, WAIT_MSEC), 1);

        /* a flood is counted, and logged up to the limit */
        for (uint16_t port = 1000; port < 2000; port++)
                send_from(tap, "203.0.113.77", IPPROTO_UDP, "8.8.8.8", port);
        assert_int_equal(run_ruleset_read_counters(counts), 0);
        assert_int_equal(counts[RUN_RULE_SOURCE_NOT_TCP], 1002);
        assert_in_range(counts[RUN_RULE_SOURCE_LOGGED], RUN_NET_LOG_BURST, 1002);
}

/* The layer behind: what the frames' rules let through under another address would meet the guest's chain. */
static void test_spoofed_past_the_frames(void **state) {
        uint64_t counts[RUN_RULESET_N_RULES];
        _cleanup_fd_ int tap = attach(), server = listener(SOCK_STREAM, RUN_NET_PORT_INTERCEPT), names = listener(SOCK_DGRAM, RUN_NET_PORT_DNS);
        struct pollfd p = { .fd = names, .events = POLLIN };
        Frame f;

        drop_tables(NFPROTO_NETDEV);
        send_from(tap, "203.0.113.77", IPPROTO_UDP, "8.8.8.8", 53);
        assert_int_equal(run_ruleset_read_counters(counts), -EUCLEAN); /* one table has no rules any more; the first is whole */
        assert_int_equal(counts[RUN_RULE_OTHER_SOURCE], 1);
        send_from(tap, "203.0.113.77", IPPROTO_TCP, "198.18.0.5", 443);
        assert_false(receive(tap, &f));
        assert_int_equal(poll(&p, 1, 0), 0);
        assert_int_equal(run_ruleset_read_counters(counts), -EUCLEAN);
        assert_int_equal(counts[RUN_RULE_OTHER_SOURCE], 2);
        assert_int_equal(counts[RUN_RULE_TO_DNS_UDP] + counts[RUN_RULE_TO_INTERCEPT], 0);

        /* the control: its own address passes both */
        send_guest(tap, IPPROTO_UDP, "8.8.8.8", 53);
        assert_int_equal(poll(&p, 1, WAIT_MSEC), 1);
        send_guest(tap, IPPROTO_TCP, "198.18.0.5", 443);
        assert_true(receive(tap, &f));
        assert_true(f.tcp.syn && f.tcp.ack);
}

static void send_frame(int tap, uint16_t type, const void *data, size_t size) {
        uint8_t frame[256] = {};
        struct virtio_net_hdr vnet = {};
        struct ether_header ether = { .ether_type = htons(type) };
        struct ifreq own = {};

        must(ioctl(tap, SIOCGIFHWADDR, &own));
        memcpy(ether.ether_dhost, own.ifr_hwaddr.sa_data, 6);
        memcpy(ether.ether_shost, guest_mac, 6);
        memcpy(frame, &vnet, sizeof(vnet));
        memcpy(frame + sizeof(vnet), &ether, sizeof(ether));
        memcpy(frame + sizeof(vnet) + sizeof(ether), data, size);
        must((int) write(tap, frame, sizeof(vnet) + sizeof(ether) + size));
}

/* ---- IPv6, which a guest sets up by itself ---- */

typedef struct Packet6 {
        struct ip6_hdr ip;
        union {
                struct tcphdr tcp;
                struct udphdr udp;
                struct icmp6_hdr icmp;
                uint8_t raw[120];
        };
} __attribute__((__packed__)) Packet6;

static uint16_t checksum6(const Packet6 *p, size_t size) {
        uint8_t all[40 + sizeof(Packet6)] = {};

        memcpy(all, &p->ip.ip6_src, 32);
        all[35] = (uint8_t) size;
        all[39] = p->ip.ip6_nxt;
        memcpy(all + 40, p->raw, size);
        return checksum(all, 40 + size);
}

static Packet6 packet6(uint8_t protocol, const char *address, uint16_t port, size_t *ret_size) {
        Packet6 p = { .ip = { .ip6_flow = htonl(6U << 28), .ip6_nxt = protocol, .ip6_hlim = 64 } };
        size_t size = protocol == IPPROTO_TCP ? sizeof(p.tcp) : 8;

        inet_pton(AF_INET6, "2001:db8:1::2", &p.ip.ip6_src);
        inet_pton(AF_INET6, address, &p.ip.ip6_dst);
        p.ip.ip6_plen = htons((uint16_t) size);
        switch (protocol) {
        case IPPROTO_TCP:
                p.tcp = (struct tcphdr) { .source = htons(40000), .dest = htons(port), .seq = htonl(77), .doff = 5, .syn = 1, .window = htons(1000) };
                p.tcp.check = checksum6(&p, size);
                break;
        case IPPROTO_UDP:
                p.udp = (struct udphdr) { .source = htons(40000), .dest = htons(port), .len = htons(8) };
                p.udp.check = checksum6(&p, size);
                break;
        case IPPROTO_ICMPV6:
                p.icmp.icmp6_type = ICMP6_ECHO_REQUEST;
                p.icmp.icmp6_cksum = checksum6(&p, size);
                break;
        default:
                break;
        }
        *ret_size = sizeof(p.ip) + size;
        return p;
}

/* The next IPv6 packet to the guest; false if none comes in time. */
static bool receive6(int tap, Packet6 *ret) {
        struct pollfd p = { .fd = tap, .events = POLLIN };

        while (poll(&p, 1, WAIT_MSEC) > 0) {
                struct {
                        struct virtio_net_hdr vnet;
                        struct ether_header ether;
                        Packet6 packet;
                } __attribute__((__packed__)) f = {};

                if (read(tap, &f, sizeof(f)) < (ssize_t) offsetof(typeof(f), packet) || f.ether.ether_type != htons(ETHERTYPE_IPV6))
                        continue;
                assert_memory_equal(f.ether.ether_dhost, guest_mac, 6);
                *ret = f.packet;
                return true;
        }
        return false;
}

static void assert_refuses(const Packet6 *answer, const Packet6 *p) {
        assert_memory_equal(&answer->ip.ip6_src, &p->ip.ip6_dst, 16);
        assert_memory_equal(&answer->ip.ip6_dst, &p->ip.ip6_src, 16);
        if (p->ip.ip6_nxt == IPPROTO_TCP) {
                assert_int_equal(answer->ip.ip6_nxt, IPPROTO_TCP);
                assert_true(answer->tcp.rst && ntohl(answer->tcp.ack_seq) == 78);
        } else {
                assert_int_equal(answer->ip.ip6_nxt, IPPROTO_ICMPV6);
                assert_int_equal(answer->icmp.icmp6_type, ICMP6_DST_UNREACH);
                assert_int_equal(answer->icmp.icmp6_code, ICMP6_DST_UNREACH_ADMIN);
        }
}

/* Nobody has IPv6 here, and whoever sends it is told so, where the kernel can: as from there, by the frame's own addresses. */
static void test_ipv6_is_refused(void **state) {
        static const char *addresses[] = { "2001:db8::1", "fe80::1", "fd00:ec2::254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:169.254.169.254" };
        static const uint8_t protocols[] = { IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMPV6, IPPROTO_SCTP };
        uint64_t counts[RUN_RULESET_N_RULES];
        _cleanup_fd_ int tap = attach();
        bool answered = are_frames_answered();
        Packet6 answer;

        for (size_t i = 0; i < ELEMENTSOF(addresses); i++)
                for (size_t k = 0; k < ELEMENTSOF(protocols); k++) {
                        size_t size;
                        Packet6 p = packet6(protocols[k], addresses[i], 443, &size);

                        send_frame(tap, ETHERTYPE_IPV6, &p, size);
                        if (!answered)
                                continue;
                        if (!receive6(tap, &answer))
                                fail_msg("protocol %u to %s: no answer", protocols[k], addresses[i]);
                        assert_refuses(&answer, &p);
                }
        assert_false(receive6(tap, &answer)); /* and nothing else */
        assert_int_equal(run_ruleset_read_counters(counts), 0);
        assert_int_equal(counts[RUN_RULE_IPV6_TCP], ELEMENTSOF(addresses));
        assert_int_equal(counts[RUN_RULE_IPV6_NOT_TCP], ELEMENTSOF(addresses) * (ELEMENTSOF(protocols) - 1));
        assert_int_equal(counts[RUN_RULE_FRAME_LOGGED], ELEMENTSOF(addresses) * ELEMENTSOF(protocols));
        assert_int_equal(counts[RUN_RULE_OTHER_FRAME] + counts[RUN_RULE_NOT_IPV4], 0);
}

/* What is nobody's, and IPv6 that is none: dropped, counted and logged, whatever the kernel would have done with it. ARP and IPv4 are the controls. */
static void test_not_ipv4(void **state) {
        uint8_t ipv6[48] = { 0x40, 0, 0, 0, 0, 8, IPPROTO_UDP, 64 }, tagged[4 + 20] = { 0, 5, 0x08, 0x00, 0x45 }, tagged6[4 + 48] = { 0, 5, 0x86, 0xdd, 0x60 };
        uint64_t counts[RUN_RULESET_N_RULES];
        _cleanup_fd_ int tap = attach(), server = listener(SOCK_STREAM, RUN_NET_PORT_INTERCEPT);
        Packet6 answer;
        Frame f;

        send_frame(tap, ETHERTYPE_IPV6, ipv6, sizeof(ipv6));
        send_frame(tap, 0x88cc, ipv6, sizeof(ipv6));
        send_frame(tap, ETHERTYPE_VLAN, tagged, sizeof(tagged));
        send_frame(tap, ETHERTYPE_VLAN, tagged6, sizeof(tagged6));
        assert_false(receive6(tap, &answer));
        send_guest(tap, IPPROTO_TCP, "198.18.0.5", 443);
        assert_true(receive(tap, &f)); /* after an ARP request, which it answers */
        assert_int_equal(run_ruleset_read_counters(counts), 0);
        assert_int_equal(counts[RUN_RULE_IPV6_TCP] + counts[RUN_RULE_IPV6_NOT_TCP], 1);
        assert_int_equal(counts[RUN_RULE_OTHER_FRAME], 3);
        assert_int_equal(counts[RUN_RULE_FRAME_LOGGED], 4);
        assert_int_equal(counts[RUN_RULE_NOT_IPV4], 0);
        assert_int_equal(counts[RUN_RULE_TO_INTERCEPT], 1);

        for (unsigned i = 0; i < 1000; i++)
                send_frame(tap, ETHERTYPE_IPV6, ipv6, sizeof(ipv6));
        assert_int_equal(run_ruleset_read_counters(counts), 0);
        assert_int_equal(counts[RUN_RULE_IPV6_NOT_TCP], 1001);
        assert_in_range(counts[RUN_RULE_FRAME_LOGGED], RUN_NET_LOG_BURST, 1003);
}

static void test_flood_is_bounded(void **state) {
        _cleanup_fd_ int tap = attach();
        RunNetDenial denials[RUN_NET_MAX_DENIED];
        size_t n;
        Frame f;

        for (uint16_t port = 1000; port < 2000; port++)
                send_guest(tap, IPPROTO_UDP, "8.8.8.8", port);
        while (receive(tap, &f))
                ;
        assert_int_equal(run_net_read_denials(RUN, denials, &n), 0);
        assert_int_equal(n, RUN_NET_MAX_DENIED);

        /* and still rejects what is new */
        send_guest(tap, IPPROTO_TCP, "203.0.113.9", 443);
        assert_true(receive(tap, &f));
        assert_true(f.tcp.rst);
}

static void test_again(void **state) {
        struct stat before, after;
        const char *step;
        uint64_t start;

        must(stat(NETNS, &before));
        must(setns(home, CLONE_NEWNET));
        assert_int_equal(run_net_up(RUN, &step), 0); /* over what is there */
        must(stat(NETNS, &after));
        assert_true(before.st_ino != after.st_ino);

        must(setns(home, CLONE_NEWNET));
        start = time_monotonic();
        assert_int_equal(run_net_down(RUN, &step), 0);
        print_message("down: %lu us\n", (unsigned long) (time_monotonic() - start));
        must(setns(home, CLONE_NEWNET));
        start = time_monotonic();
        assert_int_equal(run_net_up(RUN, &step), 0);
        print_message("up: %lu us\n", (unsigned long) (time_monotonic() - start));
}

static uint64_t cookie_of_run(void) {
        uint64_t cookie;

        assert_int_equal(run_net_enter(RUN), 0);
        assert_int_equal(run_net_read_cookie(&cookie), 0);
        must(setns(home, CLONE_NEWNET));
        return cookie;
}

/* A network is the same whenever it is asked, and none of those that come after it, also where that has its inode's number. */
static void test_cookie_is_of_one_network(void **state) {
        uint64_t seen[8];
        const char *step;

        must(setns(home, CLONE_NEWNET));
        for (size_t i = 0; i < ELEMENTSOF(seen); i++) {
                seen[i] = cookie_of_run();
                assert_true(seen[i] > 0);
                assert_true(cookie_of_run() == seen[i]);
                for (size_t k = 0; k < i; k++)
                        assert_true(seen[k] != seen[i]);
                assert_int_equal(run_net_down(RUN, &step), 0);
                must(setns(home, CLONE_NEWNET));
                assert_int_equal(run_net_up(RUN, &step), 0);
                must(setns(home, CLONE_NEWNET));
        }
}

/* ---- the agreement check ---- */

/* Of the table in the calling process's namespace. */
static void set_table_flags(uint32_t flags) {
        _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
        struct nftnl_table *table = nftnl_table_alloc();
        char buffer[NETLINK_MESSAGE_SIZE];
        size_t size = 0;

        assert_non_null(table);
        assert_int_equal(nftnl_table_set_str(table, NFTNL_TABLE_NAME, RUN_RULESET_TABLE), 0);
        nftnl_table_set_u32(table, NFTNL_TABLE_FLAGS, flags);
        size += nftnl_batch_begin(buffer, 1)->nlmsg_len;
        nftnl_table_nlmsg_build_payload(nftnl_nlmsg_build_hdr(buffer + size, NFT_MSG_NEWTABLE, NFPROTO_INET, NLM_F_ACK, 2), table);
        size += ((struct nlmsghdr *) (buffer + size))->nlmsg_len;
        size += nftnl_batch_end(buffer + size, 3)->nlmsg_len;
        nftnl_table_free(table);

        assert_int_equal(netlink_open(&nl, NETLINK_NETFILTER), 0);
        assert_int_equal(netlink_talk(nl, buffer, size, 1), 0);
}

static bool disagrees(CheckTwin *w, char reason[static 256]) {
        CheckTable t = {};

        (void) check_guest(w, RUN, &t);
        return check_disagrees(&t, reason, 256);
}

/* The twin denies and allows as it shall, and the run's namespace is like it, as long as nobody changes that. */
static void test_agreement(void **state) {
        _cleanup_(check_twin_freep) CheckTwin *w = NULL;
        CheckTable t = {};
        char reason[256];

        if (check_twin_new(&w, &t) < 0 || disagrees(w, reason))
                fail_msg("%s%s", t.reason, t.reason[0] ? "" : reason);

        /* its chains and rules are all there, but see no packet */
        assert_int_equal(run_net_enter(RUN), 0);
        set_table_flags(NFT_TABLE_F_DORMANT);
        must(setns(home, CLONE_NEWNET));
        assert_true(disagrees(w, reason));
        assert_non_null(strstr(reason, "not as it was made"));

        assert_int_equal(run_net_enter(RUN), 0);
        set_table_flags(0);
        must(setns(home, CLONE_NEWNET));
        assert_false(disagrees(w, reason));
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
/* the same with rules that only drop, whatever the kernel can */
#define WITHOUT_ANSWERS(f) { #f "_without_answers", f, setup_without_answers, teardown, NULL }
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_build),
                cmocka_unit_test(test_bad_id),
                T(test_intercepted),
                T(test_nobody_listens),
                T(test_dns),
                T(test_explicit_proxy),
                T(test_rejected_at_once_and_counted),
                T(test_spoofed),
                WITHOUT_ANSWERS(test_spoofed),
                T(test_spoofed_past_the_frames),
                T(test_ipv6_is_refused),
                WITHOUT_ANSWERS(test_ipv6_is_refused),
                T(test_not_ipv4),
                WITHOUT_ANSWERS(test_not_ipv4),
                WITHOUT_ANSWERS(test_rejected_at_once_and_counted),
                T(test_flood_is_bounded),
                T(test_again),
                T(test_cookie_is_of_one_network),
                T(test_agreement),
        };

        return cmocka_run_group_tests(tests, group_setup, NULL);
}
