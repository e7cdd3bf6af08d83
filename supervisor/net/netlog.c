/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchor-netlog@RUN: what the guest tried and nftables rejected, or dropped since it came under another's address or is not IPv4, goes into
 * the audit log while the run lasts.
 *
 * The rule that logs has a limit, and the kernel's buffer another: what is not delivered shows as a gap in the numbers and is
 * recorded as lost. The first packet to a destination is a record at once, those after it one for ten seconds; 32 destinations in that
 * time are told apart. So a flood costs the log some records a second at most; and after NETLOG_RECORDS_MAX of a group all of it is counted together, and told
 * every ten minutes, as the unit's share of the log has to last for the whole run. Its size is in the counters, which anchor-net reads
 * when the run ends (egress.totals): rejected = logged + kept back by the limit, logged = recorded + lost; and the same of forged source addresses, which are a
 * group of their own with limit, numbers and records of their own, and of frames that are not IPv4.
 *
 * A record is kept until auditd has it, and sent again every half second while it does not (audit/tellings.c); meanwhile no further one is begun, and packets are
 * only counted. What auditd will never take as it is, is counted with the others, without its words. If this process is killed, the next one finds how many
 * packets are in the log (netlog-recorded.c) and how many the kernel has logged, and records the difference as lost. (A record that was under way at that moment
 * may be counted twice; none is missing.)
 *
 * To join an nflog group takes CAP_NET_ADMIN; the packets are the guest's. So the groups are joined first, then every capability is
 * given up for good, and only then a byte is read. What is left to whoever takes this process over: a netlink socket in a
 * namespace without uplink, and conn.deny records of its own run.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <linux/capability.h>
#include <linux/ethtool.h>
#include <linux/if.h>
#include <linux/if_ether.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <linux/sockios.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "audit/audit.h"
#include "audit/tellings.h"
#include "net/netlink.h"
#include "net/netlog.h"
#include "net/run-ruleset.h"
#include "util/log.h"
#include "util/text.h"

#define COPY_BYTES 64        /* of each packet: headers */
#define QUEUE_PACKETS 1      /* delivered at once: whatever was rejected before now can be read now */
#define RECEIVE_BUFFER (4 * 1024 * 1024) /* the kernel doubles it and charges 4.5 KiB a packet: 18 s of all that the rule logs */
#define READ_SIZE (64 * 1024)
#define ROUNDS_PER_TURN 16
#define ROUNDS_AT_THE_END 4096
#define AGAIN_USEC (500 * 1000ULL)
#define PENDING_MAX 32       /* of what is sent again, at once */
#define JOIN_TRIES 16
#define GUEST_LOOK_USEC (5 * 1000ULL)
#define GUEST_WAIT_USEC (3 * 1000 * 1000ULL) /* after two seconds systemd kills what is left of the microVM */
#define GIVE_UP_USEC (7 * 1000 * 1000ULL)    /* the unit's TimeoutStopSec= is longer */

/* Which rule of the ruleset it was (run-ruleset.c), as the audit log names it. */
static const struct {
        uint16_t group;
        const char *rule;
        RunRule counter; /* of what it logged */
} groups[NETLOG_N_GROUPS] = {
        { RUN_NET_LOG_GROUP, "guest-network", RUN_RULE_LOGGED },
        { RUN_NET_SOURCE_LOG_GROUP, "guest-source", RUN_RULE_SOURCE_LOGGED },
        { RUN_NET_FRAME_LOG_GROUP, "guest-frame", RUN_RULE_FRAME_LOGGED },
};

struct Netlog {
        char run[ID_LENGTH + 1];
        struct mnl_socket *nl;           /* owned */
        NetlogTally *tallies[NETLOG_N_GROUPS];  /* owned */
        NetlogRecorded *recorded;        /* owned */
        AuditClient *audit;              /* owned */
        Tellings *tellings;              /* owned */
        sd_event_source *io, *window, *term; /* owned */
        sd_event_source *again;              /* owned; NULL until something was not taken */
        sd_event_source *give_up, *guest;    /* owned; once the end is begun */
        uint64_t guest_until_usec;           /* CLOCK_MONOTONIC */
        bool last;                           /* everything was read */
        char *buffer;                    /* owned */
        sd_event *event;                 /* ref */
};

static const char *reason_of(uint16_t group, const NetlogRecord *r) {
        if (r->lost)
                return "log-lost";
        if (r->others)
                return r->spent ? "record-budget" : "others";
        if (group == RUN_NET_SOURCE_LOG_GROUP)
                return "forged-source";
        if (group == RUN_NET_FRAME_LOG_GROUP)
                return r->denial.ether == ETH_P_IPV6 ? "ipv6" : "not-ip";
        switch (r->denial.protocol) {
        case IPPROTO_TCP:
                return "literal-address";
        case IPPROTO_UDP:
                return "udp";
        case IPPROTO_ICMP:
                return "icmp";
        default:
                return "protocol";
        }
}

/* Everything was read, and auditd has taken it. */
static void end_if_drained(Netlog *n) {
        if (n->last && tellings_is_empty(n->tellings))
                (void) sd_event_exit(n->event, 0);
}

static int on_again(sd_event_source *s, uint64_t usec, void *userdata) {
        Netlog *n = userdata;

        tellings_again(n->tellings, PENDING_MAX);
        return 0;
}

static void send_again_later(Netlog *n) {
        int r;

        if (!n->again)
                r = sd_event_add_time_relative(n->event, &n->again, CLOCK_MONOTONIC, AGAIN_USEC, 0, on_again, n);
        else {
                r = sd_event_source_set_time_relative(n->again, AGAIN_USEC);
                if (r >= 0)
                        r = sd_event_source_set_enabled(n->again, SD_EVENT_ONESHOT);
        }
        if (r < 0)
                log_warning_errno(r, "run %s: no timer for records that were not taken", n->run);
}

static void on_answered(const char *run, unsigned group, uint64_t packets, int r, void *userdata) {
        Netlog *n = userdata;

        if (r >= 0)
                netlog_recorded_add(n->recorded, group, packets);
        else if ((r == -EINVAL || r == -EACCES) && !n->last) /* at the end there is no other time */
                netlog_tally_refused(n->tallies[group], packets);
        if (tellings_is_refused(n->tellings, n->run))
                send_again_later(n);
        end_if_drained(n);
}

static json_t *describe(size_t group, const NetlogRecord *r, const char *detail) {
        char address[INET6_ADDRSTRLEN] = "-", source[INET_ADDRSTRLEN] = "", type[32];
        bool frame = groups[group].group == RUN_NET_FRAME_LOG_GROUP;

        if (!r->lost && !r->others && !frame)
                (void) inet_ntop(AF_INET, r->denial.address, address, sizeof(address));
        if (!r->lost && !r->others && groups[group].group == RUN_NET_SOURCE_LOG_GROUP)
                (void) inet_ntop(AF_INET, r->denial.source, source, sizeof(source));
        if (!r->lost && !r->others && frame && r->denial.ether == ETH_P_IPV6)
                (void) inet_ntop(AF_INET6, r->denial.address6, address, sizeof(address));
        else if (!r->lost && !r->others && frame) {
                (void) snprintf(type, sizeof(type), "EtherType 0x%04x", r->denial.ether);
                detail = type;
        }
        return json_pack("{s:s, s:i, s:i, s:s, s:s, s:s*, s:s*, s:I}", "name", address, "port", (int) r->denial.port, "protocol", (int) r->denial.protocol, "rule",
                         groups[group].rule, "reason", reason_of(groups[group].group, r), "source", source[0] ? source : NULL, "detail", detail, "count",
                         (json_int_t) r->denial.packets);
}

/* While auditd takes nothing, all of it goes on being counted; at the end it is sent in any case. */
static void record(Netlog *n, size_t group, const NetlogRecord *r) {
        int k = -EBUSY;

        if (n->last || !tellings_is_refused(n->tellings, n->run)) {
                k = tellings_tell(n->tellings, "conn.deny", n->run, NULL, describe(group, r, NULL), r->denial.packets, (unsigned) group);
                if (k < 0)
                        log_warning_errno(k, "run %s: %llu rejected packets cannot be recorded yet", n->run, (unsigned long long) r->denial.packets);
        }
        if (k < 0)
                netlog_tally_give_back(n->tallies[group], r);
}

static void flush(Netlog *n) {
        NetlogRecord records[NETLOG_KEYS_MAX + 2];

        if (!n->last && tellings_is_refused(n->tellings, n->run))
                return;
        for (size_t group = 0; group < NETLOG_N_GROUPS; group++) {
                size_t n_records = netlog_tally_flush(n->tallies[group], n->last, records);

                for (size_t i = 0; i < n_records; i++)
                        record(n, group, &records[i]);
        }
}

static void take(Netlog *n, const NetlogPacket *p) {
        NetlogRecord due;

        for (size_t group = 0; group < NETLOG_N_GROUPS; group++)
                if (groups[group].group == p->group && netlog_tally_add(n->tallies[group], p, &due))
                        record(n, group, &due);
}

/* One datagram may hold many messages. False when there is nothing to read. */
static bool read_some(Netlog *n) {
        ssize_t size = recv(mnl_socket_get_fd(n->nl), n->buffer, READ_SIZE, MSG_DONTWAIT);
        const struct nlmsghdr *nlh = (const struct nlmsghdr *) n->buffer;
        int left = (int) size;

        if (size < 0)
                return errno == EINTR || errno == ENOBUFS; /* the numbers will tell how many */

        for (; mnl_nlmsg_ok(nlh, left); nlh = mnl_nlmsg_next(nlh, &left)) {
                NetlogPacket packet;

                if (netlog_parse(nlh, (size_t) left, &packet) == 1)
                        take(n, &packet);
        }
        return true;
}

static int on_packets(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        for (int i = 0; i < ROUNDS_PER_TURN && read_some(userdata); i++)
                ;
        return 0;
}

static int on_window(sd_event_source *s, uint64_t usec, void *userdata) {
        int r;

        flush(userdata);
        r = sd_event_source_set_time_relative(s, NETLOG_WINDOW_SEC * 1000 * 1000ULL);
        if (r >= 0)
                r = sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
        return r < 0 ? sd_event_exit(sd_event_source_get_event(s), r) : 0;
}

/* ---- the end ---- */

static int on_give_up(sd_event_source *s, uint64_t usec, void *userdata) {
        const Netlog *n = userdata;

        log_warning("run %s: the audit log does not answer: of what was rejected, some is in the totals of its network alone", n->run);
        return sd_event_exit(sd_event_source_get_event(s), 0);
}

/* Does QEMU still hold the tap? It has a carrier exactly as long (and IFF_RUNNING up to a second longer). */
static bool guest_is_there(const Netlog *n) {
        struct ethtool_value link = { .cmd = ETHTOOL_GLINK };
        struct ifreq req = { .ifr_name = RUN_NET_TAP, .ifr_data = (void *) &link };

        return ioctl(mnl_socket_get_fd(n->nl), SIOCETHTOOL, &req) == 0 && link.data;
}

/* A packet is in our socket before the write() to the tap that brought it returns: when nobody holds that any more, there is nothing to wait for but
 * auditd. */
static int on_guest(sd_event_source *s, uint64_t usec, void *userdata) {
        Netlog *n = userdata;
        int r;

        if (guest_is_there(n) && usec < n->guest_until_usec) {
                r = sd_event_source_set_time_relative(s, GUEST_LOOK_USEC);
                if (r >= 0)
                        r = sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
                return r < 0 ? sd_event_exit(n->event, r) : 0;
        }

        for (int i = 0; i < ROUNDS_AT_THE_END && read_some(n); i++)
                ;
        n->last = true;
        flush(n);
        end_if_drained(n);
        return 0;
}

static int on_term(sd_event_source *s, const struct signalfd_siginfo *si, void *userdata) {
        Netlog *n = userdata;
        int r;

        if (n->give_up)
                return 0;
        n->guest_until_usec = time_monotonic() + GUEST_WAIT_USEC;
        r = sd_event_add_time_relative(n->event, &n->give_up, CLOCK_MONOTONIC, GIVE_UP_USEC, 0, on_give_up, n);
        if (r >= 0)
                r = sd_event_add_time_relative(n->event, &n->guest, CLOCK_MONOTONIC, 0, 1, on_guest, n);
        return r < 0 ? sd_event_exit(n->event, r) : 0;
}

/* ---- joining the groups ---- */

static struct nlmsghdr *config(char *buffer, uint16_t group, uint32_t seq) {
        struct nlmsghdr *nlh = mnl_nlmsg_put_header(buffer);
        struct nfgenmsg *m;

        nlh->nlmsg_type = (NFNL_SUBSYS_ULOG << 8) | NFULNL_MSG_CONFIG;
        nlh->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
        nlh->nlmsg_seq = seq;
        m = mnl_nlmsg_put_extra_header(nlh, sizeof(*m));
        *m = (struct nfgenmsg) { .nfgen_family = AF_UNSPEC, .version = NFNETLINK_V0, .res_id = htons(group) };
        return nlh;
}

static int join(struct mnl_socket *nl, uint16_t group) {
        struct nfulnl_msg_config_mode mode = { .copy_range = htonl(COPY_BYTES), .copy_mode = NFULNL_COPY_PACKET };
        struct nfulnl_msg_config_cmd bind = { .command = NFULNL_CFG_CMD_BIND };
        char buffer[NETLINK_MESSAGE_SIZE];
        struct nlmsghdr *nlh;
        int r;

        nlh = config(buffer, group, 1);
        mnl_attr_put(nlh, NFULA_CFG_CMD, sizeof(bind), &bind);
        r = netlink_talk(nl, nlh, nlh->nlmsg_len, 1);
        if (r < 0)
                return r;

        nlh = config(buffer, group, 2);
        mnl_attr_put(nlh, NFULA_CFG_MODE, sizeof(mode), &mode);
        mnl_attr_put_u16(nlh, NFULA_CFG_FLAGS, htons(NFULNL_CFG_F_SEQ));
        mnl_attr_put_u32(nlh, NFULA_CFG_QTHRESH, htonl(QUEUE_PACKETS));
        return netlink_talk(nl, nlh, nlh->nlmsg_len, 1);
}

static int join_all(struct mnl_socket *nl) {
        int size = RECEIVE_BUFFER, r = 0;

        if (setsockopt(mnl_socket_get_fd(nl), SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) < 0)
                return -errno;
        for (size_t i = 0; r >= 0 && i < NETLOG_N_GROUPS; i++)
                r = join(nl, groups[i].group);
        return r;
}

/* With how many packets each group has had logged until it was joined. So that the numbers are exact, none may come meanwhile: else all is done again, but for the last
 * time. A group that is joined anew numbers from 0. */
static int join_and_count(Netlog *n, uint64_t ret[static NETLOG_N_GROUPS]) {
        uint64_t before[RUN_RULESET_N_RULES], after[RUN_RULESET_N_RULES];
        bool same = false;
        int r = 0;

        for (int i = 0; r >= 0 && !same && i < JOIN_TRIES; i++) {
                n->nl = netlink_close(n->nl);
                r = run_ruleset_read_counters(before);
                if (r >= 0)
                        r = netlink_open(&n->nl, NETLINK_NETFILTER);
                if (r >= 0)
                        r = join_all(n->nl);
                if (r >= 0)
                        r = run_ruleset_read_counters(after);
                same = r >= 0;
                for (size_t group = 0; same && group < NETLOG_N_GROUPS; group++)
                        same = before[groups[group].counter] == after[groups[group].counter];
        }
        for (size_t group = 0; r >= 0 && group < NETLOG_N_GROUPS; group++)
                ret[group] = after[groups[group].counter];
        return r;
}

/* What was logged before this process began, and is not recorded: an earlier one was killed. */
static void record_gap(Netlog *n, const uint64_t logged[static NETLOG_N_GROUPS]) {
        for (size_t group = 0; group < NETLOG_N_GROUPS; group++) {
                NetlogRecord gap = { .denial.packets = netlog_recorded_lacks(n->recorded, group, logged[group]), .lost = true };
                int r;

                if (gap.denial.packets == 0)
                        continue;
                log_notice("run %s: %llu rejected packets were logged and not recorded before this process began", n->run, (unsigned long long) gap.denial.packets);
                r = tellings_tell(n->tellings, "conn.deny", n->run, NULL, describe(group, &gap, "logged before anchor-netlog began, and not told one by one"),
                                  gap.denial.packets, (unsigned) group);
                if (r < 0)
                        netlog_tally_give_back(n->tallies[group], &gap);
        }
}

/* No capability is left, nor any to be had again. */
static int drop_capabilities(void) {
        struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
        struct __user_cap_data_struct none[2] = {};

        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
                return -errno;
        if (syscall(SYS_capset, &header, none) < 0)
                return -errno;
        return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0;
}

int netlog_new(Netlog **ret, sd_event *event, const char *run) {
        _cleanup_(netlog_freep) Netlog *n = NULL;
        uint64_t logged[NETLOG_N_GROUPS];
        int r;

        n = calloc(1, sizeof(*n));
        if (!n)
                return log_error_errno(-ENOMEM, "cannot start");
        n->event = sd_event_ref(event);
        (void) snprintf(n->run, sizeof(n->run), "%s", run);

        r = netlog_recorded_open(&n->recorded);
        if (r < 0)
                return log_error_errno(r, "run %s: cannot keep how much is recorded", run);
        r = join_and_count(n, logged);
        if (r < 0)
                return log_error_errno(r, "run %s: cannot join its nflog groups", run);
        r = drop_capabilities();
        if (r < 0)
                return log_error_errno(r, "cannot give up capabilities");

        n->buffer = malloc(READ_SIZE);
        if (!n->buffer)
                return log_error_errno(-ENOMEM, "cannot start");
        for (size_t i = 0; r >= 0 && i < NETLOG_N_GROUPS; i++)
                r = netlog_tally_new(&n->tallies[i]);
        if (r >= 0)
                r = audit_client_new(&n->audit, event);
        if (r >= 0)
                r = tellings_new(&n->tellings, n->audit, on_answered, n);
        if (r >= 0)
                r = sd_event_add_io(event, &n->io, mnl_socket_get_fd(n->nl), EPOLLIN, on_packets, n);
        if (r >= 0)
                r = sd_event_add_time_relative(event, &n->window, CLOCK_MONOTONIC, NETLOG_WINDOW_SEC * 1000 * 1000ULL, 0, on_window, n);
        /* asked to end, it has something to do first */
        if (r >= 0)
                r = sd_event_set_signal_exit(event, false);
        if (r >= 0)
                r = sd_event_add_signal(event, &n->term, SIGTERM | SD_EVENT_SIGNAL_PROCMASK, on_term, n);
        if (r < 0)
                return log_error_errno(r, "cannot start");
        record_gap(n, logged);

        *ret = TAKE_PTR(n);
        return 0;
}

Netlog *netlog_free(Netlog *n) {
        if (!n)
                return NULL;
        sd_event_source_disable_unref(n->io);
        sd_event_source_disable_unref(n->window);
        sd_event_source_disable_unref(n->term);
        sd_event_source_disable_unref(n->give_up);
        sd_event_source_disable_unref(n->guest);
        sd_event_source_disable_unref(n->again);
        audit_client_free(n->audit);
        tellings_free(n->tellings);
        netlog_recorded_free(n->recorded);
        for (size_t i = 0; i < NETLOG_N_GROUPS; i++)
                netlog_tally_free(n->tallies[i]);
        netlink_close(n->nl);
        free(n->buffer);
        sd_event_unref(n->event);
        free(n);
        return NULL;
}
