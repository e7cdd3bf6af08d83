/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What model calls used and cost, summed up from the rows of `usage`. Of one item by its index, else by time. */

#include <errno.h>

#include "ledger/ledger-private.h"

#define SUMS                                                                                                    \
        " count(*) AS calls, sum(u.status NOT BETWEEN 200 AND 299) AS failed, sum(u.estimated) AS estimated,"   \
        " sum(u.input_tokens) AS input_tokens, sum(u.output_tokens) AS output_tokens,"                          \
        " sum(u.cache_read_tokens) AS cache_read_tokens, sum(u.cache_write_tokens) AS cache_write_tokens,"      \
        " sum(u.cost_microusd) AS cost_microusd FROM usage u JOIN item i ON i.id = u.item JOIN run r ON r.id = u.run "
#define ONE_ITEM "WHERE u.item = ?2 AND u.time_usec >= ?1 "
#define ALL_ITEMS "WHERE u.time_usec >= ?1 AND ?2 IS NULL "
#define LAST " LIMIT 10000"

#define DAY "strftime('%Y-%m-%d', u.time_usec / 1000000, 'unixepoch')"

#define BOTH(columns, order) { "SELECT " columns SUMS ALL_ITEMS order LAST, "SELECT " columns SUMS ONE_ITEM order LAST }

static const struct {
        const char *name;
        const char *sql[2]; /* of all, of one item */
} kinds[] = {
        [LEDGER_COST_BY_RUN] = { "run", BOTH("r.attempt, u.run, r.stage, u.provider, u.model,", "GROUP BY u.run, u.provider, u.model ORDER BY min(u.id)") },
        [LEDGER_COST_BY_ITEM] = { "item", BOTH("u.item, i.workflow,", "GROUP BY u.item ORDER BY i.seq") },
        [LEDGER_COST_BY_WORKFLOW] = { "workflow", BOTH("i.workflow,", "GROUP BY i.workflow ORDER BY i.workflow") },
        [LEDGER_COST_BY_DAY] = { "day", BOTH(DAY " AS day,", "GROUP BY day ORDER BY day") },
        [LEDGER_COST_BY_MODEL] = { "model", BOTH("u.provider, u.model,", "GROUP BY u.provider, u.model ORDER BY u.provider, u.model") },
};

const char *ledger_cost_by_name(LedgerCostBy by) {
        return kinds[by].name;
}

int ledger_cost(Ledger *l, LedgerCostBy by, const char *item, uint64_t since_usec, json_t **ret) {
        if (by >= _LEDGER_COST_BY_MAX || since_usec > INT64_MAX)
                return -EINVAL;
        return ledger_query_array(l, kinds[by].sql[item != NULL], DB_ARGS(DB_INT(since_usec), DB_TEXT(item)), ret);
}
