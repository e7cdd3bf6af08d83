/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The ruleset of run-ruleset.c, read back: what it rejected, how often each rule was met, and whether it is still the same. */

#include <arpa/inet.h>
#include <errno.h>
#include <libnftnl/chain.h>
#include <libnftnl/common.h>
#include <libnftnl/expr.h>
#include <libnftnl/rule.h>
#include <libnftnl/set.h>
#include <libnftnl/table.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <string.h>

#include "net/netlink.h"
#include "net/run-ruleset.h"

/* Everything of that kind in this namespace, whoever made it. */
static int dump(uint16_t request, uint16_t family, mnl_cb_t cb, void *userdata) {
        _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
        char buffer[NETLINK_MESSAGE_SIZE];
        int r;

        r = netlink_open(&nl, NETLINK_NETFILTER);
        if (r < 0)
                return r;
        return netlink_dump(nl, nftnl_nlmsg_build_hdr(buffer, request, family, NLM_F_DUMP, 1), cb, userdata);
}

/* ---- what was rejected ---- */

static int on_elements(const struct nlmsghdr *nlh, void *userdata) {
        return nftnl_set_elems_nlmsg_parse(nlh, userdata) < 0 ? MNL_CB_ERROR : MNL_CB_OK;
}

static bool read_element(struct nftnl_set_elem *elem, RunNetDenial *ret) {
        const struct nftnl_expr *counter;
        const uint8_t *key;
        uint16_t port;
        uint32_t len;

        key = nftnl_set_elem_get(elem, NFTNL_SET_ELEM_KEY, &len);
        if (!key || len < RUN_RULESET_DENIED_KEY)
                return false;

        memcpy(&port, key + 8, sizeof(port));
        *ret = (RunNetDenial) {
                .protocol = key[0],
                .port = ntohs(port),
                .packets = 1,
        };
        memcpy(ret->address, key + 4, sizeof(ret->address));

        counter = nftnl_set_elem_get(elem, NFTNL_SET_ELEM_EXPR, &len);
        if (counter)
                ret->packets = nftnl_expr_get_u64(counter, NFTNL_EXPR_CTR_PACKETS);
        return true;
}

static int read_elements(struct nftnl_set *set, RunNetDenial *ret, size_t *ret_n) {
        struct nftnl_set_elems_iter *it;
        struct nftnl_set_elem *elem;
        size_t n = 0;

        it = nftnl_set_elems_iter_create(set);
        if (!it)
                return -ENOMEM;
        while (n < RUN_NET_MAX_DENIED && (elem = nftnl_set_elems_iter_next(it)))
                n += read_element(elem, &ret[n]);
        nftnl_set_elems_iter_destroy(it);

        *ret_n = n;
        return 0;
}

int run_ruleset_read_denials(RunNetDenial ret[static RUN_NET_MAX_DENIED], size_t *ret_n) {
        _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
        char buffer[NETLINK_MESSAGE_SIZE];
        struct nftnl_set *set;
        struct nlmsghdr *nlh;
        int r;

        r = netlink_open(&nl, NETLINK_NETFILTER);
        if (r < 0)
                return r;

        set = run_ruleset_denied_set();
        if (!set)
                return -ENOMEM;

        nlh = nftnl_nlmsg_build_hdr(buffer, NFT_MSG_GETSETELEM, NFPROTO_INET, NLM_F_DUMP, 1);
        nftnl_set_elems_nlmsg_build_payload(nlh, set);
        r = netlink_dump(nl, nlh, on_elements, set);
        if (r >= 0)
                r = read_elements(set, ret, ret_n);

        nftnl_set_free(set);
        return r;
}

/* ---- as text, to be compared ---- */

/* An expression without what changes by itself: the counts of a counter. */
static int describe_expr(struct nftnl_expr *e, void *data) {
        const char *name = nftnl_expr_get_str(e, NFTNL_EXPR_NAME);
        char text[512] = "";
        FILE *f = data;

        fprintf(f, " [%s", name);
        if (strcmp(name, "counter") != 0) {
                (void) nftnl_expr_snprintf(text, sizeof(text), e, NFTNL_OUTPUT_DEFAULT, 0);
                fprintf(f, " %s", text);
        }
        fputc(']', f);
        return 0;
}

static int on_rule_text(const struct nlmsghdr *nlh, void *userdata) {
        struct nftnl_rule *rule = nftnl_rule_alloc();
        FILE *f = userdata;
        int r;

        if (!rule)
                return MNL_CB_ERROR;
        r = nftnl_rule_nlmsg_parse(nlh, rule);
        if (r >= 0) {
                fprintf(f, "rule %u %s %s", nftnl_rule_get_u32(rule, NFTNL_RULE_FAMILY), nftnl_rule_get_str(rule, NFTNL_RULE_TABLE),
                        nftnl_rule_get_str(rule, NFTNL_RULE_CHAIN));
                (void) nftnl_expr_foreach(rule, describe_expr, f);
                fputc('\n', f);
        }
        nftnl_rule_free(rule);
        return r < 0 ? MNL_CB_ERROR : MNL_CB_OK;
}

/* With its flags: the chains of a dormant table look like any others, and see no packet. */
static int on_table_text(const struct nlmsghdr *nlh, void *userdata) {
        struct nftnl_table *table = nftnl_table_alloc();
        FILE *f = userdata;
        int r;

        if (!table)
                return MNL_CB_ERROR;
        r = nftnl_table_nlmsg_parse(nlh, table);
        if (r >= 0)
                fprintf(f, "table %u %s flags %u\n", nftnl_table_get_u32(table, NFTNL_TABLE_FAMILY), nftnl_table_get_str(table, NFTNL_TABLE_NAME),
                        nftnl_table_get_u32(table, NFTNL_TABLE_FLAGS));
        nftnl_table_free(table);
        return r < 0 ? MNL_CB_ERROR : MNL_CB_OK;
}

static int on_chain_text(const struct nlmsghdr *nlh, void *userdata) {
        struct nftnl_chain *chain = nftnl_chain_alloc();
        FILE *f = userdata;
        int r;

        if (!chain)
                return MNL_CB_ERROR;
        r = nftnl_chain_nlmsg_parse(nlh, chain);
        if (r >= 0)
                fprintf(f, "chain %u %s %s type %s hook %u device %s priority %i policy %u\n", nftnl_chain_get_u32(chain, NFTNL_CHAIN_FAMILY),
                        nftnl_chain_get_str(chain, NFTNL_CHAIN_TABLE), nftnl_chain_get_str(chain, NFTNL_CHAIN_NAME),
                        nftnl_chain_is_set(chain, NFTNL_CHAIN_TYPE) ? nftnl_chain_get_str(chain, NFTNL_CHAIN_TYPE) : "-",
                        nftnl_chain_get_u32(chain, NFTNL_CHAIN_HOOKNUM),
                        nftnl_chain_is_set(chain, NFTNL_CHAIN_DEV) ? nftnl_chain_get_str(chain, NFTNL_CHAIN_DEV) : "-", nftnl_chain_get_s32(chain, NFTNL_CHAIN_PRIO),
                        nftnl_chain_get_u32(chain, NFTNL_CHAIN_POLICY));
        nftnl_chain_free(chain);
        return r < 0 ? MNL_CB_ERROR : MNL_CB_OK;
}

int run_ruleset_describe(FILE *f) {
        int r;

        r = dump(NFT_MSG_GETTABLE, NFPROTO_UNSPEC, on_table_text, f);
        if (r >= 0)
                r = dump(NFT_MSG_GETCHAIN, NFPROTO_UNSPEC, on_chain_text, f);
        return r < 0 ? r : dump(NFT_MSG_GETRULE, NFPROTO_UNSPEC, on_rule_text, f);
}

/* ---- in which form ---- */

static int note_reject(struct nftnl_expr *e, void *data) {
        if (strcmp(nftnl_expr_get_str(e, NFTNL_EXPR_NAME), "reject") == 0)
                *(bool *) data = true;
        return 0;
}

static int on_rule_form(const struct nlmsghdr *nlh, void *userdata) {
        struct nftnl_rule *rule = nftnl_rule_alloc();
        int r;

        if (!rule)
                return MNL_CB_ERROR;
        r = nftnl_rule_nlmsg_parse(nlh, rule);
        if (r >= 0 && strcmp(nftnl_rule_get_str(rule, NFTNL_RULE_TABLE), RUN_RULESET_TABLE) == 0)
                (void) nftnl_expr_foreach(rule, note_reject, userdata);
        nftnl_rule_free(rule);
        return r < 0 ? MNL_CB_ERROR : MNL_CB_OK;
}

int run_ruleset_answers_frames(bool *ret) {
        bool answers = false;
        int r;

        r = dump(NFT_MSG_GETRULE, NFPROTO_NETDEV, on_rule_form, &answers);
        if (r < 0)
                return r;
        *ret = answers;
        return 0;
}

/* ---- counters ---- */

typedef struct Counters {
        uint64_t *packets;
        size_t n;
} Counters;

static int read_counter(struct nftnl_expr *e, void *data) {
        if (strcmp(nftnl_expr_get_str(e, NFTNL_EXPR_NAME), "counter") == 0)
                *(uint64_t *) data = nftnl_expr_get_u64(e, NFTNL_EXPR_CTR_PACKETS);
        return 0;
}

static int on_rule_counter(const struct nlmsghdr *nlh, void *userdata) {
        struct nftnl_rule *rule = nftnl_rule_alloc();
        Counters *c = userdata;
        int r;

        if (!rule)
                return MNL_CB_ERROR;
        r = nftnl_rule_nlmsg_parse(nlh, rule);
        if (r >= 0 && strcmp(nftnl_rule_get_str(rule, NFTNL_RULE_TABLE), RUN_RULESET_TABLE) == 0) {
                if (c->n < RUN_RULESET_N_RULES)
                        (void) nftnl_expr_foreach(rule, read_counter, &c->packets[c->n]);
                c->n++;
        }
        nftnl_rule_free(rule);
        return r < 0 ? MNL_CB_ERROR : MNL_CB_OK;
}

int run_ruleset_read_counters(uint64_t ret[static RUN_RULESET_N_RULES]) {
        Counters c = { .packets = ret };
        int r;

        memset(ret, 0, RUN_RULESET_N_RULES * sizeof(*ret));
        r = dump(NFT_MSG_GETRULE, NFPROTO_INET, on_rule_counter, &c);
        if (r >= 0)
                r = dump(NFT_MSG_GETRULE, NFPROTO_NETDEV, on_rule_counter, &c);
        if (r < 0)
                return r;
        return c.n == RUN_RULESET_N_RULES ? 0 : -EUCLEAN;
}
