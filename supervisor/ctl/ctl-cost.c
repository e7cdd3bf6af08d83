/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* cost: what model calls used, from the ledger's sums. */

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ctl/ctl-format.h"
#include "ctl/ctl-table.h"
#include "ctl/ctl.h"
#include "policy/policy.h"
#include "util/json.h"
#include "util/text.h"

/* What a row is about: the first columns of each kind. */
static const struct {
        const char *by;
        const char *keys[5], *titles[5];
} kinds[] = {
        { "run", { "attempt", "run", "stage", "model" }, { "ATTEMPT", "RUN", "STAGE", "MODEL" } },
        { "item", { "item", "workflow" }, { "ITEM", "WORKFLOW" } },
        { "workflow", { "workflow" }, { "WORKFLOW" } },
        { "day", { "day" }, { "DAY" } },
        { "model", { "provider", "model" }, { "PROVIDER", "MODEL" } },
};

static const struct {
        const char *key, *title;
} numbers[] = {
        { "calls", "CALLS" },
        { "failed", "FAILED" },
        { "input_tokens", "INPUT" },
        { "output_tokens", "OUTPUT" },
        { "cache_read_tokens", "CACHE READ" },
        { "cache_write_tokens", "CACHE WRITE" },
        { "cost_microusd", "COST" },
};

enum { N_NUMBERS = ELEMENTSOF(numbers) };

/* "7d", "2026-01-31", "2026-01-31T12:00:00Z" → microseconds since the epoch. */
static int parse_since(const char *s, uint64_t now_usec, uint64_t *ret) {
        _cleanup_free_ char *midnight = NULL;
        uint64_t seconds;

        if (policy_parse_duration(s, &seconds) == 0) {
                *ret = seconds > now_usec / 1000000 ? 0 : now_usec - seconds * 1000000;
                return 0;
        }
        if (strlen(s) == strlen("2026-01-31")) {
                midnight = text_format("%sT00:00:00.000Z", s);
                if (!midnight)
                        return -ENOMEM;
                s = midnight;
        }
        return parse_time(s, ret);
}

static int add_row(Table *t, size_t kind, const json_t *row) {
        char buffer[CTL_TEXT_SIZE];
        int r = 0;

        for (size_t i = 0; r >= 0 && kinds[kind].keys[i]; i++) {
                const json_t *value = json_object_get(row, kinds[kind].keys[i]);
                _cleanup_free_ char *text = ctl_value_text(value);

                r = table_add(t, json_is_string(value) && !*json_string_value(value) ? "-" : text);
        }
        for (size_t i = 0; r >= 0 && i < N_NUMBERS; i++) {
                json_int_t n = json_integer_value(json_object_get(row, numbers[i].key));

                r = table_add(t, i == N_NUMBERS - 1 ? format_cost(n, buffer) : format_count(n, buffer));
        }
        return r;
}

static int make_table(size_t kind, const json_t *rows, Table **ret) {
        const char *titles[ELEMENTSOF(kinds[0].titles) + N_NUMBERS + 1] = {};
        _cleanup_(table_freep) Table *t = NULL;
        size_t n = 0, n_keys;
        int r;

        for (; kinds[kind].titles[n]; n++)
                titles[n] = kinds[kind].titles[n];
        n_keys = n;
        for (size_t i = 0; i < N_NUMBERS; i++)
                titles[n++] = numbers[i].title;

        r = table_new(&t, titles);
        if (r < 0)
                return r;
        for (size_t i = n_keys; i < n; i++)
                table_align_right(t, i);
        for (size_t i = 0; i < json_array_size(rows); i++) {
                r = add_row(t, kind, json_array_get(rows, i));
                if (r < 0)
                        return r;
        }
        *ret = TAKE_PTR(t);
        return 0;
}

static void legend(Ctl *ctl, const json_t *reply) {
        const json_t *rows = json_object_get(reply, "rows"), *row;
        json_int_t cost = 0, calls = 0, estimated = 0;
        char sum[CTL_TEXT_SIZE], n[CTL_TEXT_SIZE], guessed[CTL_TEXT_SIZE];
        size_t i;

        json_array_foreach(rows, i, row) {
                cost += json_integer_value(json_object_get(row, "cost_microusd"));
                calls += json_integer_value(json_object_get(row, "calls"));
                estimated += json_integer_value(json_object_get(row, "estimated"));
        }
        (void) fprintf(ctl->out, "%s%s in %s call%s", json_array_size(rows) > 0 ? "\n" : "", format_cost(cost, sum), format_count(calls, n), calls == 1 ? "" : "s");
        if (estimated > 0)
                (void) fprintf(ctl->out, ", %s of them estimated", format_count(estimated, guessed));
        (void) fputs(json_is_true(json_object_get(reply, "truncated")) ? "; there may be more.\n" : ".\n", ctl->out);
}

CtlExit ctl_verb_cost(Ctl *ctl) {
        const char *item = ctl->o.n_args > 1 ? ctl->o.args[1] : NULL, *by = ctl->o.by;
        _cleanup_json_ json_t *params = json_object(), *reply = NULL;
        _cleanup_(table_freep) Table *t = NULL;
        uint64_t since = 0;
        size_t kind = 0;
        CtlExit r;

        if (item && !text_is_id('i', item))
                return ctl_usage(ctl, "\"%s\" is no item: those are \"i\" and twelve letters and digits.", item);
        by = by ?: item ? "run" : "item";
        while (kind < ELEMENTSOF(kinds) && strcmp(kinds[kind].by, by) != 0)
                kind++;
        if (kind == ELEMENTSOF(kinds))
                return ctl_usage(ctl, "--by= takes run, item, workflow, day or model, not \"%s\".", by);
        if (ctl->o.since && parse_since(ctl->o.since, time_realtime(), &since) < 0)
                return ctl_usage(ctl, "--since= takes a date, a time or a span such as 7d, not \"%s\".", ctl->o.since);

        if (json_object_set_new(params, "by", json_string(by)) < 0 || (item && json_object_set_new(params, "item", json_string(item)) < 0) ||
            (since > 0 && json_object_set_new(params, "since_usec", json_integer((json_int_t) since)) < 0))
                return ctl_report(ctl, "ask for costs", -ENOMEM, NULL, NULL);
        r = ctl_call(ctl, "ask for costs", "Cost", json_incref(params), NULL, 0, &reply, NULL, 0);
        if (r != CTL_OK)
                return r;
        if (ctl->o.json != CTL_JSON_OFF)
                return ctl_print_json(ctl, json_object_get(reply, "rows"));

        if (make_table(kind, json_object_get(reply, "rows"), &t) < 0)
                return ctl_report(ctl, "ask for costs", -ENOMEM, NULL, NULL);
        ctl_pager_open(ctl);
        if (table_rows(t) > 0)
                table_print(t, ctl->out, ctl->columns, !ctl->o.no_legend);
        if (!ctl->o.no_legend)
                legend(ctl, reply);
        return CTL_OK;
}
