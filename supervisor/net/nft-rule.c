/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "net/nft-rule.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>

NftRule nft_rule_begin(NftBatch *b, const char *table, const char *chain) {
        NftRule r = { .batch = b };

        if (b->r < 0)
                return r;
        r.rule = nftnl_rule_alloc();
        if (!r.rule || nftnl_rule_set_str(r.rule, NFTNL_RULE_TABLE, table) < 0 ||
            nftnl_rule_set_str(r.rule, NFTNL_RULE_CHAIN, chain) < 0)
                b->r = -ENOMEM;
        return r;
}

void nft_rule_end(NftRule *r) {
        struct nlmsghdr *nlh = nft_batch_message(r->batch, NFT_MSG_NEWRULE, NLM_F_APPEND);

        if (nlh) {
                nftnl_rule_nlmsg_build_payload(nlh, r->rule);
                nft_batch_took(r->batch, nlh);
        }
        if (r->rule)
                nftnl_rule_free(r->rule);
}

struct nftnl_expr *nft_rule_expr(NftRule *r, const char *name) {
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

void nft_rule_load_meta(NftRule *r, uint32_t key, uint32_t reg) {
        struct nftnl_expr *e = nft_rule_expr(r, "meta");

        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_META_KEY, key);
        nftnl_expr_set_u32(e, NFTNL_EXPR_META_DREG, reg);
}

void nft_rule_load_payload(NftRule *r, uint32_t base, size_t offset, size_t len, uint32_t reg) {
        struct nftnl_expr *e = nft_rule_expr(r, "payload");

        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_PAYLOAD_BASE, base);
        nftnl_expr_set_u32(e, NFTNL_EXPR_PAYLOAD_OFFSET, (uint32_t) offset);
        nftnl_expr_set_u32(e, NFTNL_EXPR_PAYLOAD_LEN, (uint32_t) len);
        nftnl_expr_set_u32(e, NFTNL_EXPR_PAYLOAD_DREG, reg);
}

void nft_rule_load_value(NftRule *r, const void *data, size_t len, uint32_t reg) {
        struct nftnl_expr *e = nft_rule_expr(r, "immediate");

        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_IMM_DREG, reg);
        if (nftnl_expr_set(e, NFTNL_EXPR_IMM_DATA, data, (uint32_t) len) < 0)
                r->batch->r = -ENOMEM;
}

void nft_rule_compare(NftRule *r, uint32_t op, const void *data, size_t len) {
        struct nftnl_expr *e = nft_rule_expr(r, "cmp");

        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_CMP_SREG, NFT_REG_1);
        nftnl_expr_set_u32(e, NFTNL_EXPR_CMP_OP, op);
        if (nftnl_expr_set(e, NFTNL_EXPR_CMP_DATA, data, (uint32_t) len) < 0)
                r->batch->r = -ENOMEM;
}

void nft_rule_match_protocol(NftRule *r, uint32_t op, uint8_t protocol) {
        nft_rule_load_meta(r, NFT_META_L4PROTO, NFT_REG_1);
        nft_rule_compare(r, op, &protocol, sizeof(protocol));
}

void nft_rule_match_port(NftRule *r, uint16_t port) {
        uint16_t be = htons(port);

        nft_rule_load_payload(r, NFT_PAYLOAD_TRANSPORT_HEADER, 2, sizeof(be), NFT_REG_1);
        nft_rule_compare(r, NFT_CMP_EQ, &be, sizeof(be));
}

void nft_rule_match_ipv4(NftRule *r) {
        const uint8_t ipv4 = NFPROTO_IPV4;

        nft_rule_load_meta(r, NFT_META_NFPROTO, NFT_REG_1);
        nft_rule_compare(r, NFT_CMP_EQ, &ipv4, sizeof(ipv4));
}

void nft_rule_match_address(NftRule *r, size_t offset, uint32_t op, const char *address, unsigned prefix) {
        uint32_t mask = htonl(prefix == 32 ? UINT32_MAX : ~(UINT32_MAX >> prefix)), zero = 0;
        struct in_addr a;

        (void) inet_pton(AF_INET, address, &a);
        nft_rule_match_ipv4(r);
        nft_rule_load_payload(r, NFT_PAYLOAD_NETWORK_HEADER, offset, sizeof(a), NFT_REG_1);

        if (prefix < 32) {
                struct nftnl_expr *e = nft_rule_expr(r, "bitwise");

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

        nft_rule_compare(r, op, &a, sizeof(a));
}

void nft_rule_count(NftRule *r) {
        (void) nft_rule_expr(r, "counter");
}

void nft_rule_verdict(NftRule *r, int verdict) {
        struct nftnl_expr *e = nft_rule_expr(r, "immediate");

        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_IMM_DREG, NFT_REG_VERDICT);
        nftnl_expr_set_u32(e, NFTNL_EXPR_IMM_VERDICT, (uint32_t) verdict);
}

void nft_rule_divert(NftRule *r, uint16_t port) {
        uint16_t be = htons(port);
        struct nftnl_expr *e;

        nft_rule_count(r);
        nft_rule_load_value(r, &be, sizeof(be), NFT_REG_1);
        e = nft_rule_expr(r, "tproxy");
        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_TPROXY_FAMILY, NFPROTO_IPV4);
        nftnl_expr_set_u32(e, NFTNL_EXPR_TPROXY_REG_PORT, NFT_REG_1);
        nft_rule_verdict(r, NF_ACCEPT);
}

void nft_rule_reject(NftRule *r, uint32_t type, uint8_t code) {
        struct nftnl_expr *e;

        nft_rule_count(r);
        e = nft_rule_expr(r, "reject");
        if (!e)
                return;
        nftnl_expr_set_u32(e, NFTNL_EXPR_REJECT_TYPE, type);
        nftnl_expr_set_u8(e, NFTNL_EXPR_REJECT_CODE, code);
}
