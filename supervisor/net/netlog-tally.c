/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/if_ether.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <stdlib.h>
#include <string.h>

#include "net/netlog.h"

/* ---- reading ---- */

static void read_packet(const uint8_t *data, size_t size, bool with_source, RunNetDenial *ret) {
        struct iphdr ip;
        uint16_t port = 0;
        size_t head;

        if (size < sizeof(ip))
                return;
        memcpy(&ip, data, sizeof(ip));
        head = (size_t) ip.ihl * 4;
        if (ip.version != 4 || head < sizeof(ip))
                return;

        ret->protocol = ip.protocol;
        memcpy(ret->address, &ip.daddr, sizeof(ret->address));
        if (with_source)
                memcpy(ret->source, &ip.saddr, sizeof(ret->source));
        /* as the rules see it: TCP and UDP have ports, in the first fragment */
        if ((ip.protocol == IPPROTO_TCP || ip.protocol == IPPROTO_UDP) && size >= head + 4 && (ntohs(ip.frag_off) & IP_OFFMASK) == 0) {
                memcpy(&port, data + head + 2, sizeof(port));
                ret->port = ntohs(port);
        }
}

/* Extension headers are not followed: that of the first is the protocol. */
static void read_ipv6(const uint8_t *data, size_t size, RunNetDenial *ret) {
        struct ip6_hdr ip;
        uint16_t port;

        if (size < sizeof(ip))
                return;
        memcpy(&ip, data, sizeof(ip));
        if ((ip.ip6_vfc >> 4) != 6)
                return;

        ret->protocol = ip.ip6_nxt;
        memcpy(ret->address6, &ip.ip6_dst, sizeof(ret->address6));
        if ((ip.ip6_nxt == IPPROTO_TCP || ip.ip6_nxt == IPPROTO_UDP) && size >= sizeof(ip) + 4) {
                memcpy(&port, data + sizeof(ip) + 2, sizeof(port));
                ret->port = ntohs(port);
        }
}

int netlog_parse(const void *data, size_t size, NetlogPacket *ret) {
        const struct nlmsghdr *nlh = data;
        const char *end;
        NetlogPacket p = { .denial.packets = 1 };
        struct nfulnl_msg_packet_hdr packet = {};
        const uint8_t *payload = NULL;
        size_t n_payload = 0;
        bool numbered = false;
        struct nfgenmsg head;

        if (size < sizeof(*nlh) || nlh->nlmsg_len < sizeof(*nlh) + sizeof(struct nfgenmsg) || nlh->nlmsg_len > size)
                return -EBADMSG;
        if (nlh->nlmsg_type != ((NFNL_SUBSYS_ULOG << 8) | NFULNL_MSG_PACKET))
                return 0;

        memcpy(&head, mnl_nlmsg_get_payload(nlh), sizeof(head));
        p.group = ntohs(head.res_id);

        /* not mnl_attr_for_each(), which rounds the message's length up, and so may read behind it */
        end = (const char *) nlh + nlh->nlmsg_len;
        for (const struct nlattr *attr = mnl_nlmsg_get_payload_offset(nlh, sizeof(struct nfgenmsg)); mnl_attr_ok(attr, (int) (end - (const char *) attr));
             attr = mnl_attr_next(attr)) {
                const uint8_t *value = mnl_attr_get_payload(attr);
                uint16_t n = mnl_attr_get_payload_len(attr);

                switch (mnl_attr_get_type(attr)) {
                case NFULA_SEQ:
                        if (n != sizeof(p.seq))
                                return -EBADMSG;
                        memcpy(&p.seq, value, sizeof(p.seq));
                        p.seq = ntohl(p.seq);
                        numbered = true;
                        break;
                case NFULA_PACKET_HDR:
                        if (n < sizeof(packet))
                                return -EBADMSG;
                        memcpy(&packet, value, sizeof(packet));
                        break;
                case NFULA_PAYLOAD:
                        payload = value;
                        n_payload = n;
                        break;
                default:
                        break;
                }
        }
        if (!numbered)
                return -EBADMSG;

        if (p.group != RUN_NET_FRAME_LOG_GROUP)
                read_packet(payload, n_payload, p.group == RUN_NET_SOURCE_LOG_GROUP, &p.denial);
        else {
                p.denial.ether = ntohs(packet.hw_protocol);
                if (p.denial.ether == ETH_P_IPV6)
                        read_ipv6(payload, n_payload, &p.denial);
        }
        *ret = p;
        return 1;
}

/* ---- counting ---- */

typedef struct Entry {
        RunNetDenial denial; /* packets: counted since its last record */
} Entry;

struct NetlogTally {
        Entry entries[NETLOG_KEYS_MAX];
        size_t n_entries;
        uint64_t n_others, n_lost;
        uint64_t n_records;       /* so far */
        unsigned n_spent_windows; /* since the last record, with n_records at its bound */
        uint32_t next_seq;
        bool numbered; /* next_seq is known */
};

int netlog_tally_new(NetlogTally **ret) {
        *ret = calloc(1, sizeof(NetlogTally));
        return *ret ? 0 : -ENOMEM;
}

NetlogTally *netlog_tally_free(NetlogTally *t) {
        free(t);
        return NULL;
}

static bool same(const RunNetDenial *a, const RunNetDenial *b) {
        return a->protocol == b->protocol && a->port == b->port && memcmp(a->address, b->address, sizeof(a->address)) == 0 &&
               memcmp(a->source, b->source, sizeof(a->source)) == 0 && a->ether == b->ether && memcmp(a->address6, b->address6, sizeof(a->address6)) == 0;
}

/* Numbers begin at 0 and wrap around; the group has one reader, so that a step back is no gap. */
static void note_gap(NetlogTally *t, uint32_t seq) {
        uint32_t gap = t->numbered ? seq - t->next_seq : seq;

        if (gap <= INT32_MAX)
                t->n_lost += gap;
        t->next_seq = seq + 1;
        t->numbered = true;
}

static bool is_spent(const NetlogTally *t) {
        return t->n_records >= NETLOG_RECORDS_MAX;
}

bool netlog_tally_add(NetlogTally *t, const NetlogPacket *p, NetlogRecord *ret) {
        note_gap(t, p->seq);

        for (size_t i = 0; i < t->n_entries; i++)
                if (same(&t->entries[i].denial, &p->denial)) {
                        t->entries[i].denial.packets++;
                        return false;
                }

        if (t->n_entries == NETLOG_KEYS_MAX || is_spent(t)) {
                t->n_others++;
                return false;
        }

        t->n_records++;
        t->entries[t->n_entries].denial = p->denial;
        t->entries[t->n_entries++].denial.packets = 0;
        *ret = (NetlogRecord) { .denial = p->denial };
        return true;
}

void netlog_tally_give_back(NetlogTally *t, const NetlogRecord *r) {
        if (t->n_records > 0)
                t->n_records--;
        if (r->lost) {
                t->n_lost += r->denial.packets;
                return;
        }

        for (size_t i = 0; !r->others && i < t->n_entries; i++)
                if (same(&t->entries[i].denial, &r->denial)) {
                        t->entries[i].denial.packets += r->denial.packets;
                        return;
                }
        if (r->others || t->n_entries == NETLOG_KEYS_MAX)
                t->n_others += r->denial.packets;
        else
                t->entries[t->n_entries++].denial = r->denial;
}

void netlog_tally_refused(NetlogTally *t, uint64_t packets) {
        t->n_others += packets;
}

/* Nothing is told apart any more. */
static void merge_entries(NetlogTally *t) {
        for (size_t i = 0; i < t->n_entries; i++)
                t->n_others += t->entries[i].denial.packets;
        t->n_entries = 0;
}

size_t netlog_tally_flush(NetlogTally *t, bool last, NetlogRecord ret[static NETLOG_KEYS_MAX + 2]) {
        bool spent = is_spent(t);
        size_t n = 0;

        if (spent) {
                merge_entries(t);
                if (!last && ++t->n_spent_windows < NETLOG_SPENT_WINDOWS)
                        return 0;
                t->n_spent_windows = 0;
        }

        for (size_t i = 0; i < t->n_entries; i++)
                if (t->entries[i].denial.packets > 0)
                        ret[n++] = (NetlogRecord) { .denial = t->entries[i].denial };
        if (t->n_others > 0)
                ret[n++] = (NetlogRecord) { .denial.packets = t->n_others, .others = true, .spent = spent };
        if (t->n_lost > 0)
                ret[n++] = (NetlogRecord) { .denial.packets = t->n_lost, .lost = true };

        t->n_records += n;
        t->n_entries = 0;
        t->n_others = t->n_lost = 0;
        return n;
}
