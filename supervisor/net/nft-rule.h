/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A rule of nf_tables, of its expressions in their order. The first error stays in the batch; everything after it is a no-op. */

#include <stdio.h>

#include <libnftnl/expr.h>
#include <libnftnl/rule.h>

#include "net/nft-batch.h"

typedef struct NftRule {
        NftBatch *batch;         /* borrowed */
        struct nftnl_rule *rule; /* owned; NULL after an error */
} NftRule;

/* A new rule, at the end of the chain. nft_rule_end() adds it to the batch, or does nothing after an error. */
NftRule nft_rule_begin(NftBatch *b, const char *table, const char *chain);
void nft_rule_end(NftRule *r);
/* A new expression of the rule, or NULL after an error. */
struct nftnl_expr *nft_rule_expr(NftRule *r, const char *name);

/* Into a register. */
void nft_rule_load_meta(NftRule *r, uint32_t key, uint32_t reg);
void nft_rule_load_payload(NftRule *r, uint32_t base, size_t offset, size_t len, uint32_t reg);
void nft_rule_load_value(NftRule *r, const void *data, size_t len, uint32_t reg);
/* Register 1 with that. */
void nft_rule_compare(NftRule *r, uint32_t op, const void *data, size_t len);

/* Conditions. */
void nft_rule_match_protocol(NftRule *r, uint32_t op, uint8_t protocol);
void nft_rule_match_port(NftRule *r, uint16_t port);
/* Also where nothing else can come: nft(8) shows "ip daddr" for what is otherwise some bytes at an offset. */
void nft_rule_match_ipv4(NftRule *r);
/* An address at that offset of the IPv4 header. */
void nft_rule_match_address(NftRule *r, size_t offset, uint32_t op, const char *address, unsigned prefix);

/* What is done with the packet. */
void nft_rule_count(NftRule *r);
void nft_rule_verdict(NftRule *r, int verdict);
/* To the transparent listener on that port. */
void nft_rule_divert(NftRule *r, uint16_t port);
void nft_rule_reject(NftRule *r, uint32_t type, uint8_t code);
