/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* show: one item as a person reads it. */

#include <errno.h>
#include <string.h>

#include "ctl/ctl-evidence.h"
#include "ctl/ctl-format.h"
#include "ctl/ctl-table.h"
#include "ctl/ctl.h"
#include "util/json.h"
#include "util/text.h"

char *ctl_join(const json_t *words) {
        char *text = NULL;
        size_t size;
        FILE *f;

        f = open_memstream(&text, &size);
        if (!f)
                return NULL;
        for (size_t i = 0; i < json_array_size(words); i++)
                (void) fprintf(f, "%s%s", i > 0 ? " " : "", json_string_value(json_array_get(words, i)) ?: "?");
        if (fclose(f) != 0) {
                free(text);
                return NULL;
        }
        return text;
}

void ctl_field(Ctl *ctl, const char *title, const char *value) {
        _cleanup_free_ char *safe = NULL;

        if (!value || !*value)
                return;
        safe = text_escape(value, strlen(value), true);
        if (!safe)
                return;

        (void) fprintf(ctl->out, "%12s%s ", title, *title ? ":" : " ");
        for (const char *line = safe;; line++) {
                size_t n = strcspn(line, "\n");

                (void) fprintf(ctl->out, "%.*s\n", (int) n, line);
                line += n;
                if (*line == '\0' || line[1] == '\0')
                        break;
                (void) fprintf(ctl->out, "%14s", "");
        }
}

static void member(Ctl *ctl, const json_t *item, const char *title, const char *key) {
        ctl_field(ctl, title, ctl_string(item, key));
}

/* What the host says of the item, with its users' names. */
static void said(Ctl *ctl, const json_t *item, const char *title, const char *key) {
        _cleanup_free_ char *named = ctl_name_users(ctl_string(item, key) ?: "");

        ctl_field(ctl, title, named);
}

static uint64_t span_of(const json_t *object, const char *from, const char *to) {
        const char *a = ctl_string(object, from), *b = ctl_string(object, to);
        uint64_t x, y;

        if (!a || !b || parse_time(a, &x) < 0 || parse_time(b, &y) < 0 || y < x)
                return 0;
        return y - x;
}

/* What nobody should overlook: on a line of its own for each. */
static void show_flags(Ctl *ctl, const json_t *item) {
        const json_t *flags = json_object_get(item, "flags");

        for (size_t i = 0; i < json_array_size(flags); i++) {
                const json_t *f = json_array_get(flags, i);
                _cleanup_free_ char *text = text_format("%s: %s, in run %s", ctl_string(f, "kind") ?: "?", ctl_string(f, "text") ?: "?", ctl_string(f, "run") ?: "?");

                ctl_field(ctl, "Flagged", text);
        }
}

/* One line for each cap: "run: $0.50 of $2.50". */
static void show_budget(Ctl *ctl, const json_t *budget) {
        static const struct {
                const char *scope, *text;
        } scopes[] = { { "run", "run" }, { "item", "item" }, { "workflow", "workflow, this month" }, { "host", "host, this month" } };
        static const char *const whats[] = { "cost", "tokens", "requests" };
        char used[CTL_TEXT_SIZE], cap[CTL_TEXT_SIZE], line[128];
        bool first = true;

        for (size_t i = 0; i < ELEMENTSOF(scopes); i++)
                for (size_t w = 0; w < ELEMENTSOF(whats); w++) {
                        const json_t *one = json_object_get(json_object_get(budget, scopes[i].scope), whats[w]);
                        json_int_t a = json_integer_value(json_object_get(one, "used")), b = json_integer_value(json_object_get(one, "cap"));

                        if (!one)
                                continue;
                        (void) snprintf(line, sizeof(line), "%s: %s of %s%s%s", scopes[i].text, w == 0 ? format_cost(a, used) : format_count(a, used),
                                        w == 0 ? format_cost(b, cap) : format_count(b, cap), w == 0 ? "" : " ", w == 0 ? "" : whats[w]);
                        ctl_field(ctl, first ? "Budget" : "", line);
                        first = false;
                }
}

/* What is not on disk any more: "bundles on 2026-01-31T12:00:00.000Z, 1.5M (age)". */
static void show_pruned(Ctl *ctl, const json_t *item) {
        const json_t *row;
        size_t i;

        json_array_foreach(json_object_get(item, "pruned"), i, row) {
                const char *why = ctl_string(row, "why") ?: "?";
                _cleanup_free_ char *actor = ctl_name_users(ctl_string(row, "actor") ?: ""), *text = NULL;
                char size[CTL_TEXT_SIZE];

                text = text_format("%s on %s, %s (%s)", ctl_string(row, "part") ?: "?", ctl_string(row, "time") ?: "?",
                                   format_size((uint64_t) json_integer_value(json_object_get(row, "bytes")), size),
                                   strcmp(why, "asked") == 0 ? actor ?: why : why);
                ctl_field(ctl, i == 0 ? "Pruned" : "", text);
        }
}

static void show_head(Ctl *ctl, const json_t *item) {
        _cleanup_free_ char *state = ctl_text(item, "state", "?"), *id = ctl_text(item, "id", "?"), *requester = ctl_name_users(ctl_string(item, "requester") ?: "");
        const json_t *command = json_object_get(item, "command");
        char ago[CTL_TEXT_SIZE], cost[CTL_TEXT_SIZE], line[128];

        (void) fprintf(ctl->out, "%s %s\n", id ?: "?", state ?: "?");
        said(ctl, item, "Reason", "reason");
        show_flags(ctl, item);
        member(ctl, item, "Waits for", "enforcers"); /* which one is lost, if one is */
        member(ctl, item, "Waits for", "space");
        member(ctl, item, "Host's file", "host_problem");
        show_pruned(ctl, item);
        member(ctl, item, "Workflow", "workflow");
        member(ctl, item, "Agent", "agent");
        member(ctl, item, "Source", "source");
        ctl_field(ctl, "Requester", requester);
        member(ctl, item, "Repository", "repository");
        member(ctl, json_object_get(item, "options"), "Upstream", "upstream");
        member(ctl, item, "Base", "base");
        member(ctl, item, "Result", "result_commit");
        if (json_is_array(command)) {
                _cleanup_free_ char *joined = ctl_join(command);

                ctl_field(ctl, "Command", joined);
        }
        member(ctl, item, "Task", "task");

        if (ctl_string(item, "created")) {
                (void) snprintf(line, sizeof(line), "%.40s (%s)", ctl_string(item, "created"),
                                format_ago(ctl_string(item, "created"), time_realtime(), ago));
                ctl_field(ctl, "Submitted", line);
        }
        (void) snprintf(line, sizeof(line), "%lld of %lld", (long long) json_integer_value(json_object_get(item, "attempt")),
                        (long long) json_integer_value(json_object_get(item, "max_attempts")));
        ctl_field(ctl, "Attempt", line);
        ctl_field(ctl, "Cost", format_cost(json_integer_value(json_object_get(item, "cost_microusd")), cost));
        show_budget(ctl, json_object_get(item, "budget"));
}

/* ---- tables ---- */

typedef enum CellKind { CELL_TEXT, CELL_COUNT, CELL_COST, CELL_TIME, CELL_TOOK, CELL_SAID } CellKind;

typedef struct Column {
        const char *title, *key;
        CellKind kind;
        bool right;
} Column;

enum { COLUMNS_MAX = 8 };

/* The parts of an item that are lists of objects. */
static const struct Section {
        const char *title, *key;
        bool newest_first; /* as it comes from the ledger; shown the other way round */
        Column columns[COLUMNS_MAX + 1];
} sections[] = {
        {
                "Runs", "runs", false,
                {
                        { "RUN", "id", CELL_TEXT }, { "STAGE", "stage", CELL_TEXT }, { "ATTEMPT", "attempt", CELL_COUNT },
                        { "ACCEL", "accel", CELL_TEXT }, { "BOOTS", "boots", CELL_COUNT }, { "TOOK", NULL, CELL_TOOK },
                        { "OUTCOME", "outcome", CELL_TEXT }, { "REASON", "reason", CELL_SAID },
                },
        },
        {
                "History", "history", false,
                { { "TIME", "time", CELL_TIME }, { "STATE", "to", CELL_TEXT }, { "BY", "actor", CELL_SAID }, { "REASON", "reason", CELL_SAID } },
        },
        {
                "Model calls", "usage", false,
                {
                        { "PROVIDER", "provider", CELL_TEXT }, { "CALLS", "calls", CELL_COUNT, true },
                        { "INPUT", "input_tokens", CELL_COUNT, true }, { "OUTPUT", "output_tokens", CELL_COUNT, true },
                        { "CACHE READ", "cache_read_tokens", CELL_COUNT, true }, { "CACHE WRITE", "cache_write_tokens", CELL_COUNT, true },
                        { "COST", "cost_microusd", CELL_COST, true }, { "MODEL", "model", CELL_TEXT },
                },
        },
        {
                "Notes", "notes", true,
                { { "TIME", "time", CELL_TIME }, { "KIND", "kind", CELL_TEXT }, { "NOTE", "text", CELL_SAID } },
        },
};

/* The time of day; the date stands in the head. */
static int add_time(Table *t, const char *time) {
        char s[16];

        (void) snprintf(s, sizeof(s), "%.8s", time && strlen(time) >= 19 ? time + 11 : "-");
        for (char *p = s; *p; p++)
                if (!strchr("0123456789:-", *p))
                        *p = '?';
        return table_add(t, s);
}

static int add_cell(Table *t, const json_t *row, const Column *c) {
        _cleanup_free_ char *text = NULL, *name = NULL;
        char buffer[CTL_TEXT_SIZE];
        uint64_t span;

        switch (c->kind) {
        case CELL_COUNT:
                return table_add(t, format_count(json_integer_value(json_object_get(row, c->key)), buffer));
        case CELL_COST:
                return table_add(t, format_cost(json_integer_value(json_object_get(row, c->key)), buffer));
        case CELL_TIME:
                return add_time(t, ctl_string(row, c->key));
        case CELL_TOOK:
                span = span_of(row, "created", "finished");
                return table_add(t, span > 0 ? format_duration(span, buffer) : "-");
        case CELL_SAID:
                name = ctl_name_users(ctl_string(row, c->key) ?: "");
                text = name ? text_escape(name, strlen(name), false) : NULL;
                return text ? table_add(t, *text ? text : "-") : -ENOMEM;
        case CELL_TEXT:
        default:
                text = ctl_text(row, c->key, "-");
                return text ? table_add(t, text) : -ENOMEM;
        }
}

static int show_section(Ctl *ctl, const struct Section *s, const json_t *rows) {
        const char *titles[COLUMNS_MAX + 1] = {};
        _cleanup_(table_freep) Table *t = NULL;
        size_t n = json_array_size(rows), n_columns;
        int r;

        if (n == 0)
                return 0;

        for (n_columns = 0; s->columns[n_columns].title; n_columns++)
                titles[n_columns] = s->columns[n_columns].title;
        r = table_new(&t, titles);
        if (r < 0)
                return r;
        for (size_t c = 0; c < n_columns; c++)
                if (s->columns[c].right)
                        table_align_right(t, c);

        for (size_t i = 0; i < n; i++)
                for (size_t c = 0; c < n_columns; c++) {
                        r = add_cell(t, json_array_get(rows, s->newest_first ? n - 1 - i : i), &s->columns[c]);
                        if (r < 0)
                                return r;
                }

        (void) fprintf(ctl->out, "\n%s\n", s->title);
        table_print(t, ctl->out, ctl->columns, !ctl->o.no_legend);
        return 0;
}

static CtlExit show_item(Ctl *ctl, const json_t *item) {
        int r;

        show_head(ctl, item);
        for (size_t i = 0; i < ELEMENTSOF(sections); i++) {
                r = show_section(ctl, &sections[i], json_object_get(item, sections[i].key));
                if (r < 0)
                        return ctl_report(ctl, "show", r, NULL, NULL);
        }
        ctl_show_evidence(ctl, json_object_get(item, "evidence"));
        return CTL_OK;
}

static CtlExit get_item(Ctl *ctl, const char *id, json_t **ret) {
        _cleanup_json_ json_t *reply = NULL;
        _cleanup_free_ char *what = NULL;
        json_t *item;
        CtlExit r;

        if (!text_is_id('i', id))
                return ctl_usage(ctl, "\"%s\" is no item: those are \"i\" and twelve letters and digits.", id);

        what = text_format("show %s", id);
        r = ctl_call(ctl, what ?: "show", "Show", json_pack("{s:s}", "item", id), NULL, 0, &reply, NULL, 0);
        if (r != CTL_OK)
                return r;

        item = json_object_get(reply, "item");
        if (!json_is_object(item)) {
                ctl_error(ctl, "Cannot show %s: anchord gave no item.", id);
                return CTL_FAILED;
        }
        *ret = json_incref(item);
        return CTL_OK;
}

CtlExit ctl_verb_show(Ctl *ctl) {
        CtlExit worst = CTL_OK;

        for (int i = 1; i < ctl->o.n_args; i++) {
                _cleanup_json_ json_t *item = NULL;
                CtlExit r;

                r = get_item(ctl, ctl->o.args[i], &item);
                if (r == CTL_OK && ctl->o.json != CTL_JSON_OFF) {
                        r = ctl_print_json(ctl, item);
                } else if (r == CTL_OK) {
                        ctl_pager_open(ctl);
                        if (i > 1)
                                (void) fputc('\n', ctl->out);
                        r = show_item(ctl, item);
                }
                if (r != CTL_OK)
                        worst = r;
        }

        return worst;
}

static bool has_pruned_bundles(const json_t *item) {
        const json_t *row;
        size_t i;

        json_array_foreach(json_object_get(item, "pruned"), i, row)
                if (strcmp(ctl_string(row, "part") ?: "", "bundles") == 0)
                        return true;
        return false;
}

CtlExit ctl_show_result(Ctl *ctl, const char *id) {
        _cleanup_json_ json_t *item = NULL;
        CtlExit r;

        r = get_item(ctl, id, &item);
        if (r != CTL_OK)
                return r;

        if (ctl->o.json != CTL_JSON_OFF) {
                _cleanup_json_ json_t *result = json_object();
                static const char *const keys[] = { "id", "state", "reason", "base", "result_commit", "reviewed_commit", "evidence", "pruned" };

                for (size_t i = 0; i < ELEMENTSOF(keys); i++)
                        (void) json_object_set(result, keys[i], json_object_get(item, keys[i]));
                return ctl_print_json(ctl, result);
        }

        (void) fprintf(ctl->out, "%s\n", id);
        member(ctl, item, "State", "state");
        said(ctl, item, "Reason", "reason");
        member(ctl, item, "Base", "base");
        member(ctl, item, "Result", "result_commit");
        show_pruned(ctl, item);
        if (has_pruned_bundles(item))
                ctl_note(ctl, "Bundle and diff are not there any more.");
        else if (ctl_string(item, "result_commit"))
                ctl_note(ctl, "--diff prints it, --bundle=FILE fetches it.");
        else
                ctl_note(ctl, "There is no result.");
        return CTL_OK;
}
