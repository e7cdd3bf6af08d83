/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What would the guest's packets meet?
 *
 * The guest's own device is QEMU's, and a probe among the guest's packets would prove little: the guest could fake what it left
 * behind. So the proof has two halves. A twin of the namespace is made by the very code that makes the run's; there this process
 * holds the tap and nobody else does, every frame is a probe, and the kernel's counters say exactly what became of it: a packet is handled
 * before write() returns. And the run's own namespace is read back, all of it that decides (rules of every table, chains,
 * devices, addresses, routes, routing rules, settings), and must be the twin's, word for word.
 *
 * A namespace without uplink is where this happens: whatever the rules let pass ends there.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "net/check.h"
#include "net/run-link.h"
#include "net/run-net.h"
#include "net/run-ruleset.h"
#include "util/text.h"

#define DESCRIPTION_MAX (256 * 1024)

struct CheckTwin {
        int home_fd, twin_fd, tap_fd; /* owned */
        uint8_t mac[ETH_ALEN];        /* of tap0 */
        char *description;            /* owned */
        bool answers_frames;
};

static int enter(int fd) {
        return setns(fd, CLONE_NEWNET) < 0 ? -errno : 0;
}

/* The calling process's namespace as text. */
static int describe(char **ret) {
        char *text = NULL;
        size_t size;
        FILE *f;
        int r;

        f = open_memstream(&text, &size);
        if (!f)
                return -ENOMEM;
        r = run_ruleset_describe(f);
        if (r >= 0)
                r = run_link_describe(f);
        if (fclose(f) != 0 && r >= 0)
                r = -ENOMEM;
        if (r >= 0 && size > DESCRIPTION_MAX)
                r = -EFBIG;
        if (r < 0) {
                free(text);
                return r;
        }
        *ret = text;
        return 0;
}

/* ---- the twin ---- */

static int hold_tap(CheckTwin *w) {
        struct ifreq req = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };

        w->tap_fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
        if (w->tap_fd < 0)
                return -errno;
        memcpy(req.ifr_name, RUN_NET_TAP, sizeof(RUN_NET_TAP));
        if (ioctl(w->tap_fd, TUNSETIFF, &req) < 0 || ioctl(w->tap_fd, SIOCGIFHWADDR, &req) < 0)
                return -errno;
        memcpy(w->mac, req.ifr_hwaddr.sa_data, sizeof(w->mac));
        return 0;
}

static int build(CheckTwin *w, const char **ret_step) {
        int r;

        *ret_step = "network namespace";
        if (unshare(CLONE_NEWNET) < 0)
                return -errno;
        w->twin_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        if (w->twin_fd < 0)
                return -errno;

        r = run_net_fill(ret_step);
        if (r < 0)
                return r;
        *ret_step = "description";
        r = describe(&w->description);
        if (r >= 0)
                r = run_ruleset_answers_frames(&w->answers_frames);
        if (r < 0)
                return r;
        *ret_step = "tap device";
        return hold_tap(w);
}

int check_twin_new(CheckTwin **ret, CheckTable *t) {
        _cleanup_(check_twin_freep) CheckTwin *w = NULL;
        const char *step = "";
        int r, k;

        w = malloc(sizeof(*w));
        if (!w)
                return check_fail(t, -ENOMEM, "out of memory");
        *w = (CheckTwin) { .home_fd = -1, .twin_fd = -1, .tap_fd = -1 };

        w->home_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        if (w->home_fd < 0)
                return check_fail(t, -errno, "cannot open this network namespace");

        r = build(w, &step);
        k = enter(w->home_fd);
        if (r < 0 || k < 0)
                return check_fail(t, r < 0 ? r : k, "cannot make a namespace to try in: %s", r < 0 ? step : "cannot come back");

        *ret = TAKE_PTR(w);
        return 0;
}

CheckTwin *check_twin_free(CheckTwin *w) {
        if (!w)
                return NULL;
        (void) fd_close(w->tap_fd);
        /* the tap persists for as long as its namespace, and that for as long as somebody holds it */
        if (w->twin_fd >= 0 && enter(w->twin_fd) >= 0) {
                (void) run_link_remove_tap();
                (void) enter(w->home_fd);
        }
        (void) fd_close(w->twin_fd);
        (void) fd_close(w->home_fd);
        free(w->description);
        free(w);
        return NULL;
}

bool check_twin_answers_frames(const CheckTwin *w) {
        return w->answers_frames;
}

/* ---- probes ---- */

typedef struct Frame {
        struct virtio_net_hdr vnet;
        struct ether_header ether;
        struct iphdr ip;
        union {
                struct tcphdr tcp;
                struct udphdr udp;
        };
} __attribute__((packed)) Frame;

static uint16_t ip_checksum(const struct iphdr *ip) {
        uint16_t words[sizeof(*ip) / 2];
        uint32_t sum = 0;

        memcpy(words, ip, sizeof(words));
        for (size_t i = 0; i < ELEMENTSOF(words); i++)
                sum += words[i];
        sum = (sum >> 16) + (sum & 0xffff);
        return (uint16_t) ~(sum + (sum >> 16));
}

static int send_probe(const CheckTwin *w, uint8_t protocol, const char *source, const char *address, uint16_t port) {
        Frame f = { .ether.ether_shost = { 2, 0, 0, 0, 0, 2 }, .ether.ether_type = htons(ETHERTYPE_IP) };
        size_t size = offsetof(Frame, tcp) + (protocol == IPPROTO_TCP ? sizeof(f.tcp) : sizeof(f.udp));
        char answers[2048];
        struct iphdr ip;

        memcpy(f.ether.ether_dhost, w->mac, sizeof(w->mac));
        ip = (struct iphdr) {
                .version = 4,
                .ihl = 5,
                .tot_len = htons((uint16_t) (size - offsetof(Frame, ip))),
                .ttl = 64,
                .protocol = protocol,
                .saddr = inet_addr(source),
                .daddr = inet_addr(address),
        };
        ip.check = ip_checksum(&ip);
        f.ip = ip;
        if (protocol == IPPROTO_TCP)
                f.tcp = (struct tcphdr) { .source = htons(40009), .dest = htons(port), .doff = 5, .syn = 1, .window = htons(1024) };
        else
                f.udp = (struct udphdr) { .source = htons(40009), .dest = htons(port), .len = htons(sizeof(f.udp)) };

        /* what comes back is of no interest, but must not fill the queue */
        while (read(w->tap_fd, answers, sizeof(answers)) > 0)
                ;
        return write(w->tap_fd, &f, size) == (ssize_t) size ? 0 : -EIO;
}

typedef struct GuestProbe {
        CheckProbe probe;
        uint8_t protocol;
        const char *source, *address;
        uint16_t port;
        RunRule rule; /* whose counter must tell */
} GuestProbe;

/* The control is every way that leads to the proxy. */
static const GuestProbe guest_probes[] = {
        { CHECK_METADATA,      IPPROTO_TCP, RUN_NET_GUEST,   "169.254.169.254", 80,                 RUN_RULE_REJECT_TCP   },
        { CHECK_METADATA,      IPPROTO_UDP, RUN_NET_GUEST,   "169.254.169.254", 80,                 RUN_RULE_REJECT       },
        { CHECK_METADATA,      IPPROTO_TCP, RUN_NET_GUEST,   "100.100.100.200", 80,                 RUN_RULE_REJECT_TCP   },
        { CHECK_LOOPBACK,      IPPROTO_TCP, RUN_NET_GUEST,   "127.0.0.1",       80,                 RUN_RULE_REJECT_TCP   },
        { CHECK_LOOPBACK,      IPPROTO_TCP, "127.0.0.1",     "198.18.0.1",      443,                RUN_RULE_SOURCE_TCP   },
        { CHECK_HOST,          IPPROTO_TCP, RUN_NET_GUEST,   RUN_NET_GATEWAY,   22,                 RUN_RULE_REJECT_TCP   },
        { CHECK_HOST,          IPPROTO_TCP, "10.255.255.3",  RUN_NET_GATEWAY,   RUN_NET_PORT_PROXY, RUN_RULE_SOURCE_TCP   },
        { CHECK_UNLISTED_NAME, IPPROTO_TCP, RUN_NET_GUEST,   "192.0.2.1",       443,                RUN_RULE_REJECT_TCP   },
        { CHECK_UNLISTED_NAME, IPPROTO_UDP, RUN_NET_GUEST,   "192.0.2.1",       443,                RUN_RULE_REJECT       },
        { CHECK_UNLISTED_PORT, IPPROTO_TCP, RUN_NET_GUEST,   RUN_NET_GATEWAY,   81,                 RUN_RULE_REJECT_TCP   },
        { CHECK_UNLISTED_PORT, IPPROTO_UDP, RUN_NET_GUEST,   "198.18.0.1",      123,                RUN_RULE_REJECT       },
        { CHECK_CONTROL,       IPPROTO_TCP, RUN_NET_GUEST,   "198.18.0.1",      443,                RUN_RULE_TO_INTERCEPT },
        { CHECK_CONTROL,       IPPROTO_UDP, RUN_NET_GUEST,   RUN_NET_GATEWAY,   RUN_NET_PORT_DNS,   RUN_RULE_TO_DNS_UDP   },
        { CHECK_CONTROL,       IPPROTO_TCP, RUN_NET_GUEST,   RUN_NET_GATEWAY,   RUN_NET_PORT_DNS,   RUN_RULE_TO_DNS_TCP   },
        { CHECK_CONTROL,       IPPROTO_TCP, RUN_NET_GUEST,   RUN_NET_GATEWAY,   RUN_NET_PORT_PROXY, RUN_RULE_TO_PROXY     },
};

/* With nobody listening there, a packet that a TPROXY rule takes goes on to be rejected: so more than one counter may move. */
static bool is_way(size_t rule) {
        return rule == RUN_RULE_TO_INTERCEPT || rule == RUN_RULE_TO_DNS_UDP || rule == RUN_RULE_TO_DNS_TCP || rule == RUN_RULE_TO_PROXY;
}

static int try_probe(CheckTwin *w, const GuestProbe *p, CheckTable *t) {
        uint64_t before[RUN_RULESET_N_RULES], after[RUN_RULESET_N_RULES];
        CheckResult *result = &t->results[CHECK_GUEST][p->probe];
        bool control = p->probe == CHECK_CONTROL, met = false, way = false;
        int r;

        r = run_ruleset_read_counters(before);
        if (r >= 0)
                r = send_probe(w, p->protocol, p->source, p->address, p->port);
        if (r >= 0)
                r = run_ruleset_read_counters(after);
        if (r < 0)
                return check_fail(t, r, "cannot try %s %s:%u", check_probe_name(p->probe), p->address, p->port);

        for (size_t i = 0; i < RUN_RULESET_N_RULES; i++) {
                met |= i == p->rule && after[i] == before[i] + 1;
                way |= is_way(i) && after[i] != before[i];
        }

        /* one that went wrong is not made good by another */
        if (*result != CHECK_NOT_TRIED && *result != (control ? CHECK_ALLOWED : CHECK_DENIED))
                return 0;
        if (control)
                *result = met ? CHECK_ALLOWED : CHECK_DENIED;
        else
                *result = met && !way ? CHECK_DENIED : CHECK_ALLOWED;
        return 0;
}

static int try_probes(CheckTwin *w, CheckTable *t) {
        for (size_t i = 0; i < ELEMENTSOF(guest_probes); i++) {
                int r = try_probe(w, &guest_probes[i], t);

                if (r < 0)
                        return r;
        }
        return 0;
}

/* ---- the run's own ---- */

#define DIFFERENCE_SIZE 160

static int shown(const char *line) {
        size_t n = strcspn(line, "\n");

        return (int) (n < DIFFERENCE_SIZE - 20 ? n : DIFFERENCE_SIZE - 20);
}

/* The first line in which they differ: of the twin's, if the other has it nowhere. */
static void first_difference(const char *wanted, const char *found, char ret[static DIFFERENCE_SIZE]) {
        const char *a = wanted, *b = found;

        while (*a && *b) {
                size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");

                if (n != m || memcmp(a, b, n) != 0)
                        break;
                a += n + (a[n] == '\n');
                b += m + (b[m] == '\n');
        }

        if (*a && !memmem(found, strlen(found), a, strcspn(a, "\n") + 1))
                (void) snprintf(ret, DIFFERENCE_SIZE, "missing: %.*s", shown(a), a);
        else
                (void) snprintf(ret, DIFFERENCE_SIZE, "there is: %.*s", shown(b), b);
}

static int compare(CheckTwin *w, const char *run, CheckTable *t) {
        _cleanup_free_ char *path = NULL, *found = NULL;
        _cleanup_fd_ int fd = -1;
        char difference[DIFFERENCE_SIZE];
        int r, k;

        path = text_format("/run/netns/anchor-%s", run);
        if (!path)
                return check_fail(t, -ENOMEM, "out of memory");
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 || setns(fd, CLONE_NEWNET) < 0)
                return check_fail(t, -ENOENT, "the run's network namespace is gone");

        r = describe(&found);
        k = enter(w->home_fd);
        if (r < 0 || k < 0)
                return check_fail(t, r < 0 ? r : k, "cannot read the run's network namespace");

        if (strcmp(found, w->description) != 0) {
                first_difference(w->description, found, difference);
                return check_fail(t, -ENOTRECOVERABLE, "the run's network (nftables, routes) is not as it was made; %s", difference);
        }
        return 0;
}

int check_guest(CheckTwin *w, const char *run, CheckTable *t) {
        int r, k;

        r = enter(w->twin_fd);
        if (r < 0)
                return check_fail(t, r, "cannot enter the namespace to try in");
        r = try_probes(w, t);
        k = enter(w->home_fd);
        if (r < 0 || k < 0)
                return check_fail(t, r < 0 ? r : k, "cannot come back");

        return run ? compare(w, run, t) : 0;
}
