/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * "budget" of a workflow: what its model calls may use.
 *
 *   { "run" | "item" | "month": { "requests": N, "tokens": N, "cost": "2.50 USD" },
 *     "soft": 80,                   percent of a cap at which an event is written
 *     "lower_max_tokens": false,    a call that asks for more than is left gets what is left
 *     "summary_tokens": 2000,       at the cap one more call, with so many tokens of output at most; 0: none
 *     "wrap_up": "1min" }           how long the agent may go on after that
 *
 * "month" is the calendar month in UTC, over all runs of the workflow; that of host.json over all runs of the host, and
 * host.json has nothing else of the above.
 */

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "policy/policy-internal.h"

enum { MICRO_DIGITS = 6, COST_MAX_USD = 10000000 };

int policy_parse_cost(const char *s, uint64_t *ret_microusd) {
        size_t whole = strspn(s, "0123456789"), fraction = 0;
        uint64_t value = 0;
        const char *p = s;

        if (whole == 0 || whole > 8)
                return -EINVAL;
        for (; whole > 0; whole--)
                value = value * 10 + (uint64_t) (*p++ - '0');
        if (value > COST_MAX_USD)
                return -ERANGE;
        if (*p == '.') {
                fraction = strspn(++p, "0123456789");
                if (fraction == 0 || fraction > MICRO_DIGITS)
                        return -EINVAL;
        }
        for (size_t i = 0; i < MICRO_DIGITS; i++)
                value = value * 10 + (i < fraction ? (uint64_t) (p[i] - '0') : 0);
        if (strcmp(p + fraction, " USD") != 0)
                return -EINVAL;
        *ret_microusd = value;
        return 0;
}

static void read_caps(const Node *budget, const char *key, PolicyCaps *ret) {
        static const char *const known[] = { "requests", "tokens", "cost", NULL };
        const char *cost;
        Node n;

        if (!node_object(budget, key, 0, &n) || !node_check_object(&n, known))
                return;
        if (json_object_size(n.value) == 0)
                node_fail(&n, "must have at least one of \"requests\", \"tokens\" and \"cost\"");
        (void) node_uint(&n, "requests", 0, 1, UINT64_C(1000000000), &ret->requests);
        (void) node_uint(&n, "tokens", 0, 1, UINT64_C(1000000000000), &ret->tokens);
        if (node_string(&n, "cost", 0, &cost) && policy_parse_cost(cost, &ret->cost_microusd) < 0)
                node_fail_at(&n, "cost", "must be an amount such as \"2.50 USD\", ten million at most");
}

static bool has_cap(const PolicyCaps *c) {
        return c->requests != POLICY_NO_CAP || c->tokens != POLICY_NO_CAP || c->cost_microusd != POLICY_NO_CAP;
}

bool policy_budget_has_caps(const PolicyBudget *b) {
        return has_cap(&b->run) || has_cap(&b->item) || has_cap(&b->month);
}

void policy_budget_init(PolicyBudget *ret) {
        static const PolicyCaps none = { POLICY_NO_CAP, POLICY_NO_CAP, POLICY_NO_CAP };

        *ret = (PolicyBudget) { .run = none, .item = none, .month = none, .soft_percent = 80, .wrap_up_s = 60 };
}

bool policy_read_budget(const Node *top, bool host, PolicyBudget *ret) {
        static const char *const known[] = { "run", "item", "month", "soft", "lower_max_tokens", "summary_tokens", "wrap_up", NULL };
        static const char *const known_host[] = { "month", "soft", NULL };
        uint64_t soft = 80;
        Node n;

        policy_budget_init(ret);
        if (!node_object(top, "budget", 0, &n) || !node_check_object(&n, host ? known_host : known))
                return false;
        read_caps(&n, "month", &ret->month);
        if (node_uint(&n, "soft", 0, 1, 100, &soft))
                ret->soft_percent = (unsigned) soft;
        if (!host) {
                read_caps(&n, "run", &ret->run);
                read_caps(&n, "item", &ret->item);
                (void) node_bool(&n, "lower_max_tokens", 0, &ret->lower_max_tokens);
                (void) node_uint(&n, "summary_tokens", 0, 0, 1000000, &ret->summary_tokens);
                (void) node_duration(&n, "wrap_up", 0, 1, 3600, &ret->wrap_up_s);
        }
        if (!policy_budget_has_caps(ret))
                node_fail(&n, "must have a cap");
        return true;
}
