/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The nftables of a run's namespace, without the nft program. */

#include <libnftnl/set.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "net/run-net.h"

#define RUN_RULESET_TABLE "anchorhold"
#define RUN_RULESET_DENIED_KEY 12 /* bytes of a key of the set `denied` */

/* The rules, in their order; those from RUN_RULE_SOURCE_LOGGED on are of a table of their own, which comes
 * first: it sees frames. */
typedef enum RunRule {
        RUN_RULE_OTHER_DEVICE,
        RUN_RULE_NOT_IPV4,
        RUN_RULE_OTHER_SOURCE, /* as the one before: of what the frames' rules have refused already */
        RUN_RULE_TO_INTERCEPT,
        RUN_RULE_TO_DNS_UDP,
        RUN_RULE_TO_DNS_TCP,
        RUN_RULE_TO_PROXY,
        RUN_RULE_LOGGED,
        RUN_RULE_NOTE_TCP,   /* no counter, as the next two */
        RUN_RULE_NOTE_UDP,
        RUN_RULE_NOTE_OTHER,
        RUN_RULE_REJECT_TCP,
        RUN_RULE_REJECT,
        RUN_RULE_SOURCE_LOGGED,
        RUN_RULE_SOURCE_TCP,
        RUN_RULE_SOURCE_NOT_TCP,
        RUN_RULE_FRAME_LOGGED, /* of all frames that are neither IPv4 nor ARP */
        RUN_RULE_IPV6_TCP,
        RUN_RULE_IPV6_NOT_TCP,
        RUN_RULE_OTHER_FRAME,
        RUN_RULESET_N_RULES,
} RunRule;

/* Writes the whole ruleset as one netlink batch. answer_frames: what is refused before the network code
 * sees it is answered, which not every kernel can. Returns the number of bytes, and in *ret_n_acks how many
 * acknowledgements to wait for; -ENOBUFS if size is too small, -ENOMEM. */
int run_ruleset_build(void *buffer, size_t size, bool answer_frames, unsigned *ret_n_acks);

#define RUN_RULESET_SIZE (32 * 1024)

/* Into the calling thread's namespace; with answers to refused frames where the kernel can. */
int run_ruleset_load(void);

/* In which form the calling thread's namespace has them: are refused frames answered, or dropped in silence? */
int run_ruleset_answers_frames(bool *ret);

/* What the rules rejected so far. */
int run_ruleset_read_denials(RunNetDenial ret[static RUN_NET_MAX_DENIED], size_t *ret_n);

/* The set without its elements, for requests; the caller's. */
struct nftnl_set *run_ruleset_denied_set(void);

/* How many packets met each rule so far. -EUCLEAN if the table has not as many rules as it was made with. */
int run_ruleset_read_counters(uint64_t ret[static RUN_RULESET_N_RULES]);

/* All tables, chains and rules in the calling thread's namespace, also those of other tables, as text without what changes by itself. */
int run_ruleset_describe(FILE *f);
