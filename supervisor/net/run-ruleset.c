/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What the guest's packets meet. As nft(8) shows it (less "meta nfproto ipv4"; in the second table it shows bytes at an offset):
 *
 *   table inet anchorhold {
 *           set denied {
 *                   type inet_proto . ipv4_addr . inet_service
 *                   size 256
 *                   flags dynamic
 *           }
 *           chain guest {
 *                   type filter hook prerouting priority mangle; policy drop;
 *                   iifname != "tap0" counter drop
 *                   meta nfproto != ipv4 counter drop
 *                   ip saddr != 10.255.255.2 counter drop
 *                   meta l4proto tcp ip daddr 198.18.0.0/15 counter tproxy ip to :15001 accept
 *                   meta l4proto udp udp dport 53 counter tproxy ip to :53 accept
 *                   meta l4proto tcp tcp dport 53 counter tproxy ip to :53 accept
 *                   meta l4proto tcp ip daddr 10.255.255.1 tcp dport 3128 counter accept
 *                   limit rate 100/second burst 200 packets counter log prefix "anchorhold denied: " group 1
 *                   meta l4proto tcp add @denied { meta l4proto . ip daddr . th dport counter }
 *                   meta l4proto udp add @denied { … }
 *                   meta l4proto != tcp meta l4proto != udp add @denied { meta l4proto . ip daddr . 0 counter }
 *                   meta l4proto tcp counter reject with tcp reset
 *                   counter reject with icmpx admin-prohibited
 *           }
 *   }
 *   table netdev anchorhold {
 *           chain frames {
 *                   type filter hook ingress device "tap0" priority filter; policy accept;
 *                   ether type ip ip saddr != 10.255.255.2 limit rate 100/second burst 200 packets counter log prefix "anchorhold forged source: " group 2
 *                   ether type ip ip saddr != 10.255.255.2 meta l4proto tcp counter reject with tcp reset
 *                   ether type ip ip saddr != 10.255.255.2 counter reject with icmpx admin-prohibited
 *                   ether type != ip ether type != arp limit rate 100/second burst 200 packets counter log prefix "anchorhold not IPv4: " group 3
 *                   ether type ip6 meta l4proto tcp counter reject with tcp reset
 *                   ether type ip6 counter reject with icmpx admin-prohibited
 *                   ether type != ip ether type != arp counter drop
 *           }
 *   }
 *
 * One batch, so either all of it is there or nothing. Rejected packets are logged to a group that anchor-netlog@ reads
 * (net/netlog.c), up to a limit; the counter behind the limit counts what was logged, those of the rules after it all.
 * Those with a forged source address have a group of their own, so that its numbers have no gaps but for what was lost
 * of them; so have frames that are not IPv4, which no other chain sees, since IPv6 is off and the rest is nobody's. The
 * set has destinations and how often, counted in the kernel: a flood fills 256 entries and no more. Set and counters
 * become one record when the run ends (anchor-net down). Rejecting happens in prerouting: in input the ICMP errors get
 * lost, for the packet's destination is "local".
 *
 * What the frames' chain rejects cannot be answered by the network code: here there is no IPv6, and no route to a
 * forged address but one that leads back in here. Rejecting at ingress takes neither. The answer is made from the frame
 * alone and leaves by the device that brought it, to the hardware address that sent it, which is the guest; nothing of
 * it is kept. What went to a group or a broadcast (which is how an address is looked for) is dropped without one. A
 * kernel may be without that (CONFIG_NFT_REJECT_NETDEV; Debian's is), or have IPv6 switched off as a whole
 * (ipv6.disable=1: there the kernel would read the answer's hop limit from settings that do not exist). Then the same
 * rules drop: with the same counters and the same log, but the guest has to wait.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <libnftnl/chain.h>
#include <libnftnl/common.h>
#include <libnftnl/set.h>
#include <libnftnl/table.h>
#include <linux/if_ether.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter_ipv4.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <string.h>

#include "net/nft-batch.h"
#include "net/nft-rule.h"
#include "net/run-ruleset.h"

#define CHAIN "guest"
#define FRAMES_CHAIN "frames"
#define DENIED "denied"
#define DENIED_ID 1
#define LOG_PREFIX "anchorhold denied: "
#define SOURCE_LOG_PREFIX "anchorhold forged source: "
#define FRAME_LOG_PREFIX "anchorhold not IPv4: "

/* as nft(8) knows inet_proto . ipv4_addr . inet_service: six bits a type */
#define DENIED_KEY_TYPE ((12U << 12) | (7U << 6) | 13U)

/* ---- table, set, chain ---- */

static void add_table(NftBatch *b) {
        struct nlmsghdr *nlh = nft_batch_message(b, NFT_MSG_NEWTABLE, NLM_F_EXCL);
        struct nftnl_table *t;

        if (!nlh)
                return;
        t = nftnl_table_alloc();
        if (!t) {
                b->r = -ENOMEM;
                return;
        }
        if (nftnl_table_set_str(t, NFTNL_TABLE_NAME, RUN_RULESET_TABLE) < 0)
                b->r = -ENOMEM;
        nftnl_table_nlmsg_build_payload(nlh, t);
        nft_batch_took(b, nlh);
        nftnl_table_free(t);
}

struct nftnl_set *run_ruleset_denied_set(void) {
        struct nftnl_set *s = nftnl_set_alloc();

        if (!s)
                return NULL;
        nftnl_set_set_u32(s, NFTNL_SET_FAMILY, NFPROTO_INET);
        if (nftnl_set_set_str(s, NFTNL_SET_TABLE, RUN_RULESET_TABLE) < 0 || nftnl_set_set_str(s, NFTNL_SET_NAME, DENIED) < 0) {
                nftnl_set_free(s);
                return NULL;
        }
        return s;
}

static void add_denied_set(NftBatch *b) {
        struct nlmsghdr *nlh = nft_batch_message(b, NFT_MSG_NEWSET, NLM_F_EXCL);
        struct nftnl_set *s;

        if (!nlh)
                return;
        s = run_ruleset_denied_set();
        if (!s) {
                b->r = -ENOMEM;
                return;
        }
        nftnl_set_set_u32(s, NFTNL_SET_ID, DENIED_ID);
        nftnl_set_set_u32(s, NFTNL_SET_FLAGS, NFT_SET_EVAL);
        nftnl_set_set_u32(s, NFTNL_SET_KEY_TYPE, DENIED_KEY_TYPE);
        nftnl_set_set_u32(s, NFTNL_SET_KEY_LEN, RUN_RULESET_DENIED_KEY);
        nftnl_set_set_u32(s, NFTNL_SET_DESC_SIZE, RUN_NET_MAX_DENIED);
        nftnl_set_nlmsg_build_payload(nlh, s);
        nft_batch_took(b, nlh);
        nftnl_set_free(s);
}

typedef struct Chain {
        const char *name, *device; /* device: NULL for what comes from any */
        uint32_t hook, policy;
        int32_t priority;
} Chain;

static const Chain guest_chain = { CHAIN, NULL, NF_INET_PRE_ROUTING, NF_DROP, NF_IP_PRI_MANGLE },
                   frames_chain = { FRAMES_CHAIN, RUN_NET_TAP, NF_NETDEV_INGRESS, NF_ACCEPT, 0 };

static void add_chain(NftBatch *b, const Chain *chain) {
        struct nlmsghdr *nlh = nft_batch_message(b, NFT_MSG_NEWCHAIN, NLM_F_EXCL);
        struct nftnl_chain *c;

        if (!nlh)
                return;
        c = nftnl_chain_alloc();
        if (!c) {
                b->r = -ENOMEM;
                return;
        }
        if (nftnl_chain_set_str(c, NFTNL_CHAIN_TABLE, RUN_RULESET_TABLE) < 0 || nftnl_chain_set_str(c, NFTNL_CHAIN_NAME, chain->name) < 0 ||
            nftnl_chain_set_str(c, NFTNL_CHAIN_TYPE, "filter") < 0 || (chain->device && nftnl_chain_set_str(c, NFTNL_CHAIN_DEV, chain->device) < 0))
                b->r = -ENOMEM;
        nftnl_chain_set_u32(c, NFTNL_CHAIN_HOOKNUM, chain->hook);
        nftnl_chain_set_s32(c, NFTNL_CHAIN_PRIO, chain->priority);
        nftnl_chain_set_u32(c, NFTNL_CHAIN_POLICY, chain->policy);
        nftnl_chain_nlmsg_build_payload(nlh, c);
        nft_batch_took(b, nlh);
        nftnl_chain_free(c);
}

/* ---- rules ---- */

static NftRule rule_begin(NftBatch *b) {
        return nft_rule_begin(b, RUN_RULESET_TABLE, CHAIN);
}

/* The end of a rule: up to the limit. */
static void log_some(NftRule *r, uint16_t group, const char *prefix) {
        struct nftnl_expr *e;

        e = nft_rule_expr(r, "limit");
        if (e) {
                nftnl_expr_set_u64(e, NFTNL_EXPR_LIMIT_RATE, RUN_NET_LOG_RATE);
                nftnl_expr_set_u64(e, NFTNL_EXPR_LIMIT_UNIT, 1);
                nftnl_expr_set_u32(e, NFTNL_EXPR_LIMIT_BURST, RUN_NET_LOG_BURST);
                nftnl_expr_set_u32(e, NFTNL_EXPR_LIMIT_TYPE, NFT_LIMIT_PKTS);
                nftnl_expr_set_u32(e, NFTNL_EXPR_LIMIT_FLAGS, 0);
        }
        nft_rule_count(r);
        e = nft_rule_expr(r, "log");
        if (e) {
                nftnl_expr_set_u16(e, NFTNL_EXPR_LOG_GROUP, group);
                if (nftnl_expr_set_str(e, NFTNL_EXPR_LOG_PREFIX, prefix) < 0)
                        r->batch->r = -ENOMEM;
        }
}

/* Only IPv4 packets of the guest's own address, from the guest's device, get any further. */
static void add_gate(NftBatch *b) {
        static const char tap[IFNAMSIZ] = RUN_NET_TAP;
        const uint8_t ipv4 = NFPROTO_IPV4;
        NftRule r;

        r = rule_begin(b);
        nft_rule_load_meta(&r, NFT_META_IIFNAME, NFT_REG_1);
        nft_rule_compare(&r, NFT_CMP_NEQ, tap, sizeof(tap));
        nft_rule_count(&r);
        nft_rule_verdict(&r, NF_DROP);
        nft_rule_end(&r);

        r = rule_begin(b);
        nft_rule_load_meta(&r, NFT_META_NFPROTO, NFT_REG_1);
        nft_rule_compare(&r, NFT_CMP_NEQ, &ipv4, sizeof(ipv4));
        nft_rule_count(&r);
        nft_rule_verdict(&r, NF_DROP);
        nft_rule_end(&r);

        r = rule_begin(b);
        nft_rule_match_address(&r, offsetof(struct iphdr, saddr), NFT_CMP_NEQ, RUN_NET_GUEST, 32);
        nft_rule_count(&r);
        nft_rule_verdict(&r, NF_DROP);
        nft_rule_end(&r);
}

static void add_ways_to_proxy(NftBatch *b) {
        NftRule r;

        r = rule_begin(b);
        nft_rule_match_protocol(&r, NFT_CMP_EQ, IPPROTO_TCP);
        nft_rule_match_address(&r, offsetof(struct iphdr, daddr), NFT_CMP_EQ, RUN_NET_SYNTHETIC, RUN_NET_SYNTHETIC_PREFIX);
        nft_rule_divert(&r, RUN_NET_PORT_INTERCEPT);
        nft_rule_end(&r);

        r = rule_begin(b);
        nft_rule_match_protocol(&r, NFT_CMP_EQ, IPPROTO_UDP);
        nft_rule_match_port(&r, RUN_NET_PORT_DNS);
        nft_rule_divert(&r, RUN_NET_PORT_DNS);
        nft_rule_end(&r);

        r = rule_begin(b);
        nft_rule_match_protocol(&r, NFT_CMP_EQ, IPPROTO_TCP);
        nft_rule_match_port(&r, RUN_NET_PORT_DNS);
        nft_rule_divert(&r, RUN_NET_PORT_DNS);
        nft_rule_end(&r);

        r = rule_begin(b);
        nft_rule_match_protocol(&r, NFT_CMP_EQ, IPPROTO_TCP);
        nft_rule_match_address(&r, offsetof(struct iphdr, daddr), NFT_CMP_EQ, RUN_NET_GATEWAY, 32);
        nft_rule_match_port(&r, RUN_NET_PORT_PROXY);
        nft_rule_count(&r);
        nft_rule_verdict(&r, NF_ACCEPT);
        nft_rule_end(&r);
}

/* Counts the packet under (protocol, destination, port). A full set breaks off the rule, not the chain. */
static void remember(NftRule *r, bool has_port) {
        struct nftnl_expr *e, *counter;
        const uint16_t none = 0;

        nft_rule_match_ipv4(r);
        nft_rule_load_meta(r, NFT_META_L4PROTO, NFT_REG32_00);
        nft_rule_load_payload(r, NFT_PAYLOAD_NETWORK_HEADER, offsetof(struct iphdr, daddr), 4, NFT_REG32_01);
        if (has_port)
                nft_rule_load_payload(r, NFT_PAYLOAD_TRANSPORT_HEADER, 2, sizeof(none), NFT_REG32_02);
        else
                nft_rule_load_value(r, &none, sizeof(none), NFT_REG32_02);

        e = nft_rule_expr(r, "dynset");
        counter = e ? nftnl_expr_alloc("counter") : NULL;
        if (!counter) {
                r->batch->r = r->batch->r ?: -ENOMEM;
                return;
        }
        nftnl_expr_set_u32(e, NFTNL_EXPR_DYNSET_OP, NFT_DYNSET_OP_ADD);
        nftnl_expr_set_u32(e, NFTNL_EXPR_DYNSET_SREG_KEY, NFT_REG_1);
        nftnl_expr_set_u32(e, NFTNL_EXPR_DYNSET_SET_ID, DENIED_ID);
        if (nftnl_expr_set_str(e, NFTNL_EXPR_DYNSET_SET_NAME, DENIED) < 0)
                r->batch->r = -ENOMEM;
        nftnl_expr_set(e, NFTNL_EXPR_DYNSET_EXPR, counter, 0); /* takes it over */
}

static void add_refusals(NftBatch *b) {
        NftRule r;

        r = rule_begin(b);
        log_some(&r, RUN_NET_LOG_GROUP, LOG_PREFIX);
        nft_rule_end(&r);

        r = rule_begin(b);
        nft_rule_match_protocol(&r, NFT_CMP_EQ, IPPROTO_TCP);
        remember(&r, true);
        nft_rule_end(&r);

        r = rule_begin(b);
        nft_rule_match_protocol(&r, NFT_CMP_EQ, IPPROTO_UDP);
        remember(&r, true);
        nft_rule_end(&r);

        r = rule_begin(b);
        nft_rule_match_protocol(&r, NFT_CMP_NEQ, IPPROTO_TCP);
        nft_rule_match_protocol(&r, NFT_CMP_NEQ, IPPROTO_UDP);
        remember(&r, false);
        nft_rule_end(&r);

        r = rule_begin(b);
        nft_rule_match_protocol(&r, NFT_CMP_EQ, IPPROTO_TCP);
        nft_rule_reject(&r, NFT_REJECT_TCP_RST, 0);
        nft_rule_end(&r);

        r = rule_begin(b);
        nft_rule_reject(&r, NFT_REJECT_ICMPX_UNREACH, NFT_REJECT_ICMPX_ADMIN_PROHIBITED);
        nft_rule_end(&r);
}

/* As the frame has it: a tag for a virtual network is another type, which nobody has here either. */
static void match_ethertype(NftRule *r, uint32_t op, uint16_t type) {
        uint16_t be = htons(type);

        nft_rule_load_payload(r, NFT_PAYLOAD_LL_HEADER, offsetof(struct ethhdr, h_proto), sizeof(be), NFT_REG_1);
        nft_rule_compare(r, op, &be, sizeof(be));
}

static void match_not_ipv4(NftRule *r) {
        match_ethertype(r, NFT_CMP_NEQ, ETH_P_IP);
        match_ethertype(r, NFT_CMP_NEQ, ETH_P_ARP);
}

static void match_forged_source(NftRule *r) {
        struct in_addr guest;

        (void) inet_pton(AF_INET, RUN_NET_GUEST, &guest);
        match_ethertype(r, NFT_CMP_EQ, ETH_P_IP);
        nft_rule_load_payload(r, NFT_PAYLOAD_NETWORK_HEADER, offsetof(struct iphdr, saddr), sizeof(guest), NFT_REG_1);
        nft_rule_compare(r, NFT_CMP_NEQ, &guest, sizeof(guest));
}

static void match_ipv6(NftRule *r) {
        match_ethertype(r, NFT_CMP_EQ, ETH_P_IPV6);
}

/* Two rules for what `match` matches: TCP, and all else. */
static void refuse_frames(NftBatch *b, void (*match)(NftRule *r), bool answer) {
        for (int tcp = 1; tcp >= 0; tcp--) {
                NftRule r = nft_rule_begin(b, RUN_RULESET_TABLE, FRAMES_CHAIN);

                match(&r);
                if (tcp)
                        nft_rule_match_protocol(&r, NFT_CMP_EQ, IPPROTO_TCP);
                if (answer)
                        nft_rule_reject(&r, tcp ? NFT_REJECT_TCP_RST : NFT_REJECT_ICMPX_UNREACH, tcp ? 0 : NFT_REJECT_ICMPX_ADMIN_PROHIBITED);
                else {
                        nft_rule_count(&r);
                        nft_rule_verdict(&r, NF_DROP);
                }
                nft_rule_end(&r);
        }
}

static void log_frames(NftBatch *b, void (*match)(NftRule *r), uint16_t group, const char *prefix) {
        NftRule r = nft_rule_begin(b, RUN_RULESET_TABLE, FRAMES_CHAIN);

        match(&r);
        log_some(&r, group, prefix);
        nft_rule_end(&r);
}

static void add_frames(NftBatch *b, bool answer) {
        NftRule r;

        log_frames(b, match_forged_source, RUN_NET_SOURCE_LOG_GROUP, SOURCE_LOG_PREFIX);
        refuse_frames(b, match_forged_source, answer);

        log_frames(b, match_not_ipv4, RUN_NET_FRAME_LOG_GROUP, FRAME_LOG_PREFIX);
        refuse_frames(b, match_ipv6, answer);

        r = nft_rule_begin(b, RUN_RULESET_TABLE, FRAMES_CHAIN);
        match_not_ipv4(&r);
        nft_rule_count(&r);
        nft_rule_verdict(&r, NF_DROP);
        nft_rule_end(&r);
}

int run_ruleset_build(void *buffer, size_t size, bool answer_frames, unsigned *ret_n_acks) {
        NftBatch b = { .buffer = buffer, .size = size, .family = NFPROTO_INET };

        nft_batch_begin(&b);
        add_table(&b);
        add_denied_set(&b);
        add_chain(&b, &guest_chain);
        add_gate(&b);
        add_ways_to_proxy(&b);
        add_refusals(&b);
        b.family = NFPROTO_NETDEV;
        add_table(&b);
        add_chain(&b, &frames_chain);
        add_frames(&b, answer_frames);
        nft_batch_end(&b);
        if (b.r < 0)
                return b.r;

        *ret_n_acks = b.n_acks;
        return (int) b.used;
}
