/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* prune: what ended items left on disk goes, as far as it is over its limits. */

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ctl/ctl-format.h"
#include "ctl/ctl-table.h"
#include "ctl/ctl.h"
#include "policy/policy.h"
#include "util/json.h"
#include "util/text.h"

static uint64_t number(const json_t *object, const char *key) {
        return (uint64_t) json_integer_value(json_object_get(object, key));
}

static CtlExit print_items(Ctl *ctl, const json_t *items) {
        static const char *const titles[] = { "ITEM", "PART", "SIZE", "WHY", NULL };
        _cleanup_(table_freep) Table *t = NULL;
        char size[CTL_TEXT_SIZE];
        const json_t *item;
        size_t i;

        if (table_new(&t, titles) < 0)
                return ctl_report(ctl, "prune", -ENOMEM, NULL, NULL);
        table_align_right(t, 2);
        json_array_foreach(items, i, item) {
                _cleanup_free_ char *id = ctl_text(item, "item", "?"), *part = ctl_text(item, "part", "?"), *why = ctl_text(item, "why", "?");

                if (!id || !part || !why ||
                    (table_add(t, id) ?: table_add(t, part) ?: table_add(t, format_size(number(item, "bytes"), size)) ?: table_add(t, why)) < 0)
                        return ctl_report(ctl, "prune", -ENOMEM, NULL, NULL);
        }
        ctl_pager_open(ctl);
        if (table_rows(t) > 0)
                table_print(t, ctl->out, ctl->columns, !ctl->o.no_legend);
        return CTL_OK;
}

/* "bundles: 3 of 12M in all, at most 8G, for 90d" */
static void print_part(Ctl *ctl, const json_t *part, bool dry_run) {
        char bytes[CTL_TEXT_SIZE], used[CTL_TEXT_SIZE], max[CTL_TEXT_SIZE], age[CTL_TEXT_SIZE];
        _cleanup_free_ char *name = ctl_text(part, "part", "?");

        (void) fprintf(ctl->out, "%s: %s in all (at most %s, kept for %s); %" PRIu64 " item%s %s, %s\n", name ?: "?", format_size(number(part, "used"), used),
                       json_is_integer(json_object_get(part, "max")) ? format_size(number(part, "max"), max) : "anything",
                       json_is_integer(json_object_get(part, "age_s")) ? format_duration(number(part, "age_s") * 1000000, age) : "ever",
                       number(part, "items"), number(part, "items") == 1 ? "" : "s", dry_run ? "would be pruned" : "pruned",
                       format_size(number(part, "bytes"), bytes));
}

CtlExit ctl_verb_prune(Ctl *ctl) {
        _cleanup_json_ json_t *reply = NULL, *params = json_pack("{s:b}", "dry_run", ctl->o.dry_run);
        const json_t *parts, *space;
        char low[CTL_TEXT_SIZE], reserve[CTL_TEXT_SIZE];
        uint64_t age_s;
        CtlExit r;

        if (ctl->o.age && policy_parse_duration(ctl->o.age, &age_s) < 0)
                return ctl_usage(ctl, "--age= takes a time as \"7d\" or \"12h\", not \"%s\".", ctl->o.age);
        if (ctl->o.age)
                (void) json_object_set_new(params, "age_s", json_integer((json_int_t) age_s));

        r = ctl_call(ctl, "prune", "Prune", json_incref(params), NULL, 0, &reply, NULL, 0);
        if (r != CTL_OK)
                return r;
        if (ctl->o.json != CTL_JSON_OFF)
                return ctl_print_json(ctl, reply);

        r = print_items(ctl, json_object_get(reply, "items"));
        if (r != CTL_OK || ctl->o.no_legend)
                return r;
        if (json_array_size(json_object_get(reply, "items")) > 0)
                (void) fputc('\n', ctl->out);
        parts = json_object_get(reply, "parts");
        for (size_t i = 0; i < json_array_size(parts); i++)
                print_part(ctl, json_array_get(parts, i), ctl->o.dry_run);
        space = json_object_get(reply, "space");
        (void) fprintf(ctl->out, "%s free, %s kept in reserve\n", format_size(number(space, "free"), low), format_size(number(space, "reserve"), reserve));
        return CTL_OK;
}
