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
#include <libnftnl/expr.h>
#include <libnftnl/rule.h>
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
#include <unistd.h>

#include "net/netlink.h"
#include "net/nft-batch.h"
#include "net/run-ruleset.h"

#define CHAIN "guest"
#define FRAMES_CHAIN "frames"
#define DENIED "denied"
#define DENIED_ID 1
#define LOG_PREFIX "anchorhold denied: "
#define SOURCE_LOG_PREFIX "anchorhold forged source: "
#define FRAME_LOG_PREFIX "anchorhold not IPv4: "
#define IPV6_SETTINGS "/proc/sys/net/ipv6/conf/all" /* of the namespace; there unless the kernel is without IPv6 as a whole */

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

typedef struct Rule {
        NftBatch *batch;
        struct nftnl_rule *rule; /* owned; NULL after an error */
} Rule;

static Rule rule_begin_in(NftBatch *b, const char *chain) {
        Rule r = { .batch = b };

        if (b->r < 0)
                return r;
        r.rule = nftnl_rule_alloc();
        if (!r.rule || nftnl_rule_set_str(r.rule, NFTNL_RULE_TABLE, RUN_RULESET_TABLE) < 0 ||
            nftnl_rule_set_str(r.rule, NFTNL_RULE_CHAIN, chain) < 0)
                b->r = -ENOMEM;
        return r;
}

static Rule rule_begin(NftBatch *b) {
        return rule_begin_in(b, CHAIN);
}

static void rule_end(Rule *r) {
        struct nlmsghdr *nlh = nft_batch_message(r->batch, NFT_MSG_NEWRULE, NLM_F_APPEND);

        if (nlh) {
                nftnl_rule_nlmsg_build_payload(nlh, r->rule);
                nft_batch_took(r->batch, nlh);
        }
        if (r->rule)
                nftnl_rule_free(r->rule);
}

/* A new expression of the rule, or NULL after an error. */
static struct nftnl_expr *rule_expr(Rule *r, const char *name) {
        struct nftnl_expr *e;

        if (r->batch->r < 0)
                return NULL;
        e = nftnl_expr_alloc(name);
        if (!e) {
                r->batch->r = -ENOMEM;
                return NULL;
        }
        nftnl_rule_add_expr(r->rule, e);
        return e;
}

static void load_meta(Rule *r, uint32_t key, uint32_t reg) {
        struct nftnl_expr *e = rule_expr(r, "meta");

        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_META_KEY, key);
        nftnl_expr_set_u32(e, NFTNL_EXPR_META_DREG, reg);
}

static void load_payload(Rule *r, uint32_t base, size_t offset, size_t len, uint32_t reg) {
        struct nftnl_expr *e = rule_expr(r, "payload");

        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_PAYLOAD_BASE, base);
        nftnl_expr_set_u32(e, NFTNL_EXPR_PAYLOAD_OFFSET, (uint32_t) offset);
        nftnl_expr_set_u32(e, NFTNL_EXPR_PAYLOAD_LEN, (uint32_t) len);
        nftnl_expr_set_u32(e, NFTNL_EXPR_PAYLOAD_DREG, reg);
}

static void load_value(Rule *r, const void *data, size_t len, uint32_t reg) {
        struct nftnl_expr *e = rule_expr(r, "immediate");

        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_IMM_DREG, reg);
        if (nftnl_expr_set(e, NFTNL_EXPR_IMM_DATA, data, (uint32_t) len) < 0)
                r->batch->r = -ENOMEM;
}

static void compare(Rule *r, uint32_t op, const void *data, size_t len) {
        struct nftnl_expr *e = rule_expr(r, "cmp");

        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_CMP_SREG, NFT_REG_1);
        nftnl_expr_set_u32(e, NFTNL_EXPR_CMP_OP, op);
        if (nftnl_expr_set(e, NFTNL_EXPR_CMP_DATA, data, (uint32_t) len) < 0)
                r->batch->r = -ENOMEM;
}

static void match_protocol(Rule *r, uint32_t op, uint8_t protocol) {
        load_meta(r, NFT_META_L4PROTO, NFT_REG_1);
        compare(r, op, &protocol, sizeof(protocol));
}

static void match_port(Rule *r, uint16_t port) {
        uint16_t be = htons(port);

        load_payload(r, NFT_PAYLOAD_TRANSPORT_HEADER, 2, sizeof(be), NFT_REG_1);
        compare(r, NFT_CMP_EQ, &be, sizeof(be));
}

/* Everything past the gate is IPv4; said once more in each rule, nft(8) shows "ip daddr" for what is otherwise
 * some bytes at an offset. */
static void match_ipv4(Rule *r) {
        const uint8_t ipv4 = NFPROTO_IPV4;

        load_meta(r, NFT_META_NFPROTO, NFT_REG_1);
        compare(r, NFT_CMP_EQ, &ipv4, sizeof(ipv4));
}

/* An address at that offset of the IPv4 header. */
static void match_address(Rule *r, size_t offset, uint32_t op, const char *address, unsigned prefix) {
        uint32_t mask = htonl(prefix == 32 ? UINT32_MAX : ~(UINT32_MAX >> prefix)), zero = 0;
        struct in_addr a;

        (void) inet_pton(AF_INET, address, &a);
        match_ipv4(r);
        load_payload(r, NFT_PAYLOAD_NETWORK_HEADER, offset, sizeof(a), NFT_REG_1);

        if (prefix < 32) {
                struct nftnl_expr *e = rule_expr(r, "bitwise");

                if (!e)
                        return;
                nftnl_expr_set_u32(e, NFTNL_EXPR_BITWISE_SREG, NFT_REG_1);
                nftnl_expr_set_u32(e, NFTNL_EXPR_BITWISE_DREG, NFT_REG_1);
                nftnl_expr_set_u32(e, NFTNL_EXPR_BITWISE_OP, NFT_BITWISE_MASK_XOR);
                nftnl_expr_set_u32(e, NFTNL_EXPR_BITWISE_LEN, sizeof(mask));
                if (nftnl_expr_set(e, NFTNL_EXPR_BITWISE_MASK, &mask, sizeof(mask)) < 0 ||
                    nftnl_expr_set(e, NFTNL_EXPR_BITWISE_XOR, &zero, sizeof(zero)) < 0)
                        r->batch->r = -ENOMEM;
        }

        compare(r, op, &a, sizeof(a));
}

static void count(Rule *r) {
        (void) rule_expr(r, "counter");
}

static void give_verdict(Rule *r, int verdict) {
        struct nftnl_expr *e = rule_expr(r, "immediate");

        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_IMM_DREG, NFT_REG_VERDICT);
        nftnl_expr_set_u32(e, NFTNL_EXPR_IMM_VERDICT, (uint32_t) verdict);
}

static void divert(Rule *r, uint16_t port) {
        uint16_t be = htons(port);
        struct nftnl_expr *e;

        count(r);
        load_value(r, &be, sizeof(be), NFT_REG_1);
        e = rule_expr(r, "tproxy");
        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_TPROXY_FAMILY, NFPROTO_IPV4);
        nftnl_expr_set_u32(e, NFTNL_EXPR_TPROXY_REG_PORT, NFT_REG_1);
        give_verdict(r, NF_ACCEPT);
}

static void reject(Rule *r, uint32_t type, uint8_t code) {
        struct nftnl_expr *e;

        count(r);
        e = rule_expr(r, "reject");
        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_REJECT_TYPE, type);
        nftnl_expr_set_u8(e, NFTNL_EXPR_REJECT_CODE, code);
}

/* The end of a rule: up to the limit. */
static void log_some(Rule *r, uint16_t group, const char *prefix) {
        struct nftnl_expr *e;

        e = rule_expr(r, "limit");
        if (e) {
                nftnl_expr_set_u64(e, NFTNL_EXPR_LIMIT_RATE, RUN_NET_LOG_RATE);
                nftnl_expr_set_u64(e, NFTNL_EXPR_LIMIT_UNIT, 1);
                nftnl_expr_set_u32(e, NFTNL_EXPR_LIMIT_BURST, RUN_NET_LOG_BURST);
                nftnl_expr_set_u32(e, NFTNL_EXPR_LIMIT_TYPE, NFT_LIMIT_PKTS);
                nftnl_expr_set_u32(e, NFTNL_EXPR_LIMIT_FLAGS, 0);
        }
        count(r);
        e = rule_expr(r, "log");
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
        Rule r;

        r = rule_begin(b);
        load_meta(&r, NFT_META_IIFNAME, NFT_REG_1);
        compare(&r, NFT_CMP_NEQ, tap, sizeof(tap));
        count(&r);
        give_verdict(&r, NF_DROP);
        rule_end(&r);

        r = rule_begin(b);
        load_meta(&r, NFT_META_NFPROTO, NFT_REG_1);
        compare(&r, NFT_CMP_NEQ, &ipv4, sizeof(ipv4));
        count(&r);
        give_verdict(&r, NF_DROP);
        rule_end(&r);

        r = rule_begin(b);
        match_address(&r, offsetof(struct iphdr, saddr), NFT_CMP_NEQ, RUN_NET_GUEST, 32);
        count(&r);
        give_verdict(&r, NF_DROP);
        rule_end(&r);
}

static void add_ways_to_proxy(NftBatch *b) {
        Rule r;

        r = rule_begin(b);
        match_protocol(&r, NFT_CMP_EQ, IPPROTO_TCP);
        match_address(&r, offsetof(struct iphdr, daddr), NFT_CMP_EQ, RUN_NET_SYNTHETIC, RUN_NET_SYNTHETIC_PREFIX);
        divert(&r, RUN_NET_PORT_INTERCEPT);
        rule_end(&r);

        r = rule_begin(b);
        match_protocol(&r, NFT_CMP_EQ, IPPROTO_UDP);
        match_port(&r, RUN_NET_PORT_DNS);
        divert(&r, RUN_NET_PORT_DNS);
        rule_end(&r);

        r = rule_begin(b);
        match_protocol(&r, NFT_CMP_EQ, IPPROTO_TCP);
        match_port(&r, RUN_NET_PORT_DNS);
        divert(&r, RUN_NET_PORT_DNS);
        rule_end(&r);

        r = rule_begin(b);
        match_protocol(&r, NFT_CMP_EQ, IPPROTO_TCP);
        match_address(&r, offsetof(struct iphdr, daddr), NFT_CMP_EQ, RUN_NET_GATEWAY, 32);
        match_port(&r, RUN_NET_PORT_PROXY);
        count(&r);
        give_verdict(&r, NF_ACCEPT);
        rule_end(&r);
}

/* Counts the packet under (protocol, destination, port). A full set breaks off the rule, not the chain. */
static void remember(Rule *r, bool has_port) {
        struct nftnl_expr *e, *counter;
        const uint16_t none = 0;

        match_ipv4(r);
        load_meta(r, NFT_META_L4PROTO, NFT_REG32_00);
        load_payload(r, NFT_PAYLOAD_NETWORK_HEADER, offsetof(struct iphdr, daddr), 4, NFT_REG32_01);
        if (has_port)
                load_payload(r, NFT_PAYLOAD_TRANSPORT_HEADER, 2, sizeof(none), NFT_REG32_02);
        else
                load_value(r, &none, sizeof(none), NFT_REG32_02);

        e = rule_expr(r, "dynset");
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
        Rule r;

        r = rule_begin(b);
        log_some(&r, RUN_NET_LOG_GROUP, LOG_PREFIX);
        rule_end(&r);

        r = rule_begin(b);
        match_protocol(&r, NFT_CMP_EQ, IPPROTO_TCP);
        remember(&r, true);
        rule_end(&r);

        r = rule_begin(b);
        match_protocol(&r, NFT_CMP_EQ, IPPROTO_UDP);
        remember(&r, true);
        rule_end(&r);

        r = rule_begin(b);
        match_protocol(&r, NFT_CMP_NEQ, IPPROTO_TCP);
        match_protocol(&r, NFT_CMP_NEQ, IPPROTO_UDP);
        remember(&r, false);
        rule_end(&r);

        r = rule_begin(b);
        match_protocol(&r, NFT_CMP_EQ, IPPROTO_TCP);
        reject(&r, NFT_REJECT_TCP_RST, 0);
        rule_end(&r);

        r = rule_begin(b);
        reject(&r, NFT_REJECT_ICMPX_UNREACH, NFT_REJECT_ICMPX_ADMIN_PROHIBITED);
        rule_end(&r);
}

/* As the frame has it: a tag for a virtual network is another type, which nobody has here either. */
static void match_ethertype(Rule *r, uint32_t op, uint16_t type) {
        uint16_t be = htons(type);

        load_payload(r, NFT_PAYLOAD_LL_HEADER, offsetof(struct ethhdr, h_proto), sizeof(be), NFT_REG_1);
        compare(r, op, &be, sizeof(be));
}

static void match_not_ipv4(Rule *r) {
        match_ethertype(r, NFT_CMP_NEQ, ETH_P_IP);
        match_ethertype(r, NFT_CMP_NEQ, ETH_P_ARP);
}

static void match_forged_source(Rule *r) {
        struct in_addr guest;

        (void) inet_pton(AF_INET, RUN_NET_GUEST, &guest);
        match_ethertype(r, NFT_CMP_EQ, ETH_P_IP);
        load_payload(r, NFT_PAYLOAD_NETWORK_HEADER, offsetof(struct iphdr, saddr), sizeof(guest), NFT_REG_1);
        compare(r, NFT_CMP_NEQ, &guest, sizeof(guest));
}

static void match_ipv6(Rule *r) {
        match_ethertype(r, NFT_CMP_EQ, ETH_P_IPV6);
}

/* Two rules for what `match` matches: TCP, and all else. */
static void refuse_frames(NftBatch *b, void (*match)(Rule *r), bool answer) {
        for (int tcp = 1; tcp >= 0; tcp--) {
                Rule r = rule_begin_in(b, FRAMES_CHAIN);

                match(&r);
                if (tcp)
                        match_protocol(&r, NFT_CMP_EQ, IPPROTO_TCP);
                if (answer)
                        reject(&r, tcp ? NFT_REJECT_TCP_RST : NFT_REJECT_ICMPX_UNREACH, tcp ? 0 : NFT_REJECT_ICMPX_ADMIN_PROHIBITED);
                else {
                        count(&r);
                        give_verdict(&r, NF_DROP);
                }
                rule_end(&r);
        }
}

static void log_frames(NftBatch *b, void (*match)(Rule *r), uint16_t group, const char *prefix) {
        Rule r = rule_begin_in(b, FRAMES_CHAIN);

        match(&r);
        log_some(&r, group, prefix);
        rule_end(&r);
}

static void add_frames(NftBatch *b, bool answer) {
        Rule r;

        log_frames(b, match_forged_source, RUN_NET_SOURCE_LOG_GROUP, SOURCE_LOG_PREFIX);
        refuse_frames(b, match_forged_source, answer);

        log_frames(b, match_not_ipv4, RUN_NET_FRAME_LOG_GROUP, FRAME_LOG_PREFIX);
        refuse_frames(b, match_ipv6, answer);

        r = rule_begin_in(b, FRAMES_CHAIN);
        match_not_ipv4(&r);
        count(&r);
        give_verdict(&r, NF_DROP);
        rule_end(&r);
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

static int load(bool answer_frames) {
        _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
        _cleanup_free_ char *buffer = NULL;
        unsigned n_acks;
        int size, r;

        buffer = malloc(RUN_RULESET_SIZE);
        if (!buffer)
                return -ENOMEM;

        size = run_ruleset_build(buffer, RUN_RULESET_SIZE, answer_frames, &n_acks);
        if (size < 0)
                return size;

        r = netlink_open(&nl, NETLINK_NETFILTER);
        if (r < 0)
                return r;

        return netlink_talk(nl, buffer, (size_t) size, n_acks);
}

int run_ruleset_load(void) {
        int r = -ENOENT;

        if (access(IPV6_SETTINGS, F_OK) >= 0)
                r = load(true);
        /* that there is no such expression; if it is another one, the second time fails as well */
        return r == -ENOENT ? load(false) : r;
}
