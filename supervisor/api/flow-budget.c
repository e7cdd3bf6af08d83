/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What a run's model calls may use: its inject asks before each (io.anchorhold.Run.GetBudget, Reserve, Unreserve, OverBudget). The caps are
 * those of the workflow and of host.json as they were when the run was prepared; the ledger keeps what they are measured by
 * (ledger/ledger-budget.h).
 *
 * Once a call was refused for good, or the last one was granted, no further one is. The run is told to come to its end: anchor-run lets the
 * agent go on for the workflow's `wrap_up`, then collects what there is. That goes through import as any result does, so that
 * it can be looked at, and the item ends as `exhausted`, with a reason that begins with "over budget".
 */

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "api/flow-internal.h"
#include "ledger/ledger-budget.h"
#include "util/json.h"
#include "util/log.h"

#define NUMBER_MAX (1LL << 40)

enum { TEXT_MAX = 256, REASON_SIZE = 256 };

/* ---- caps ---- */

static LedgerAmount amount(const PolicyCaps *c) {
        return (LedgerAmount) {
                .requests = c->requests == POLICY_NO_CAP ? LEDGER_UNLIMITED : (int64_t) c->requests,
                .tokens = c->tokens == POLICY_NO_CAP ? LEDGER_UNLIMITED : (int64_t) c->tokens,
                .cost_microusd = c->cost_microusd == POLICY_NO_CAP ? LEDGER_UNLIMITED : (int64_t) c->cost_microusd,
        };
}

static LedgerCaps make_caps(const PolicyBudget *workflow, const PolicyBudget *host) {
        return (LedgerCaps) { .of = {
                [LEDGER_SCOPE_RUN] = amount(&workflow->run),
                [LEDGER_SCOPE_ITEM] = amount(&workflow->item),
                [LEDGER_SCOPE_WORKFLOW] = amount(&workflow->month),
                [LEDGER_SCOPE_HOST] = amount(&host->month),
        } };
}

static void take_host_budget(Flow *f) {
        f->host_budget = policy_host(f->manager->policy)->budget;
        f->host_unknown = policy_host_reason(f->manager->policy) != NULL;
        f->capped = policy_budget_has_caps(&f->budget) || policy_budget_has_caps(&f->host_budget);
}

void flow_set_budget(Flow *f, const PolicyBudget *b) {
        f->budget = *b;
        take_host_budget(f);
}

/* Of a run that was taken up again while host.json could not be used: is it known by now? */
static bool knows_host_budget(Flow *f) {
        if (f->host_unknown)
                take_host_budget(f);
        return !f->host_unknown;
}

json_t *budget_of_item(Manager *m, const char *item, const char *workflow) {
        const PolicyWorkflow *w = m->policy ? policy_find_workflow(m->policy, workflow, NULL) : NULL;
        PolicyBudget none;
        LedgerCaps caps;
        json_t *ret = NULL;

        policy_budget_init(&none);
        caps = make_caps(w ? &w->budget : &none, m->policy ? &policy_host(m->policy)->budget : &none);
        return ledger_budget_show(m->ledger, item, &caps, &ret) == 0 ? ret : NULL;
}

/* ---- amounts as text ---- */

static void amount_text(const char *what, int64_t n, char *ret, size_t size) {
        if (strcmp(what, "cost") == 0)
                (void) snprintf(ret, size, "%lld.%04lld USD", (long long) (n / 1000000), (long long) (n % 1000000 / 100));
        else
                (void) snprintf(ret, size, "%lld %s", (long long) n, what);
}

static const char *scope_text(LedgerScope s) {
        static const char *const texts[] = { "the run's", "the item's", "the workflow's monthly", "the host's monthly" };

        return texts[s];
}

static void describe(const LedgerBudget *b, char ret[static REASON_SIZE]) {
        char used[64], cap[64];

        amount_text(b->what, b->used, used, sizeof(used));
        amount_text(b->what, b->cap, cap, sizeof(cap));
        (void) snprintf(ret, REASON_SIZE, LEDGER_OVER_BUDGET ": %s cap of %s: %s are used or reserved", scope_text(b->scope), cap, used);
}

/* ---- events ---- */

static void record(Flow *f, const char *event, const LedgerBudget *b) {
        Manager *m = f->manager;
        _cleanup_json_ json_t *data = json_pack("{s:s, s:s, s:I, s:I, s:i}", "scope", ledger_scope_name(b->scope), "what", b->what,
                                                "used", (json_int_t) b->used, "cap", (json_int_t) b->cap, "percent", (int) b->percent);
        int r = data ? ledger_outbox_put(m->ledger, event, f->run, f->item.id, NULL, data) : -ENOMEM;

        if (r < 0)
                (void) manager_fatal(m, r, "record a budget");
        outbox_kick(m);
}

/* Once for each cap and what it is about. */
static void check_soft(Flow *f, const LedgerBudget *b) {
        unsigned soft = b->scope == LEDGER_SCOPE_HOST ? f->host_budget.soft_percent : f->budget.soft_percent;
        _cleanup_free_ char *key = NULL;
        char now[TIME_TEXT_SIZE], text[64];
        int r;

        if (!b->what || b->percent < soft)
                return;
        text_time(time_realtime(), now);
        key = text_format("%s %s %s %.7s", ledger_scope_name(b->scope), b->what,
                          b->scope == LEDGER_SCOPE_RUN ? f->run : b->scope == LEDGER_SCOPE_ITEM ? f->item.id : b->scope == LEDGER_SCOPE_WORKFLOW ? f->item.workflow : "",
                          b->scope >= LEDGER_SCOPE_WORKFLOW ? now : "");
        r = key ? ledger_budget_say(f->manager->ledger, key) : -ENOMEM;
        if (r < 0)
                (void) manager_fatal(f->manager, r, "record a budget");
        if (r != 0)
                return;
        amount_text(b->what, b->cap, text, sizeof(text));
        manager_note(f->manager, f->item.id, f->run, "budget.soft", "%u %% of %s cap of %s are used or reserved", b->percent, scope_text(b->scope), text);
        record(f, "budget.soft", b);
}

/* ---- the methods ---- */

static Flow *find_flow(Manager *m, IpcCall *call) {
        return flow_find_run(m, ipc_call_peer(call)->run);
}

static int no_run(IpcCall *call) {
        return ipc_call_error(call, "NoSuchRun", NULL);
}

static const char *get(const json_t *params, const char *key) {
        return json_string_value(json_object_get(params, key));
}

static uint64_t summary_left(const Flow *f) {
        return f->capped && !f->summary_used && !f->over_budget ? f->budget.summary_tokens : 0;
}

int flow_api_get_budget(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        Flow *f = find_flow(m, call);
        int64_t calls;
        int r;

        if (!f)
                return no_run(call);
        r = ledger_count_calls(m->ledger, f->run, &calls);
        if (r < 0)
                return manager_fatal(m, r, "count model calls");
        return ipc_call_reply(call, json_pack("{s:b, s:I, s:I}", "capped", (int) f->capped, "summary_tokens", (json_int_t) summary_left(f), "calls",
                                              (json_int_t) calls));
}

/* Text of a request's is in it: bounded and escaped. The caller's. */
static char *bounded(const char *s) {
        return text_escape(s ?: "", s ? strnlen(s, TEXT_MAX) : 0, false);
}

static int read_number(json_t *params, const char *key, int64_t *ret) {
        const json_t *n = json_object_get(params, key);

        *ret = json_integer_value(n);
        return !n || (json_is_integer(n) && *ret >= 0 && *ret <= NUMBER_MAX) ? 0 : -EINVAL;
}

static int answer_refused(IpcCall *call, Flow *f, const LedgerBudget *b, const char *reason, bool may_shrink) {
        json_t *reply = json_pack("{s:b, s:b, s:b, s:I, s:s}", "capped", 1, "granted", 0, "lower", may_shrink && f->budget.lower_max_tokens,
                                  "summary_tokens", (json_int_t) (may_shrink ? summary_left(f) : 0), "reason", reason);

        if (reply && b && b->room.tokens != LEDGER_UNLIMITED)
                (void) json_object_set_new(reply, "room_tokens", json_integer(b->room.tokens > 0 ? b->room.tokens : 0));
        if (reply && b && b->room.cost_microusd != LEDGER_UNLIMITED)
                (void) json_object_set_new(reply, "room_cost", json_integer(b->room.cost_microusd > 0 ? b->room.cost_microusd : 0));
        return ipc_call_reply(call, reply);
}

static int reserve(Flow *f, IpcCall *call, const LedgerReservation *v, bool summary) {
        LedgerCaps caps = make_caps(&f->budget, &f->host_budget);
        char reason[REASON_SIZE];
        LedgerBudget b;
        int r;

        r = ledger_reserve(f->manager->ledger, v, &caps, &b);
        if (r < 0)
                return manager_fatal(f->manager, r, "reserve a budget");
        if (r == LEDGER_E_NOT_FOUND)
                return no_run(call);
        if (r == LEDGER_E_SETTLED) /* it was under way when the call was given up, and nobody waits for the answer */
                return ipc_call_refuse(call, "BadInput", "this call was given back, or its run is over");
        if (r == LEDGER_E_OVER_BUDGET) {
                describe(&b, reason);
                /* the number of calls is not to be made smaller */
                return answer_refused(call, f, &b, reason, !summary && b.room.requests > 0);
        }

        f->summary_used = f->summary_used || summary;
        check_soft(f, &b);
        return ipc_call_reply(call, json_pack("{s:b, s:b, s:I, s:{s:I, s:I, s:I}}", "capped", 1, "granted", 1, "summary_tokens", (json_int_t) summary_left(f),
                                              "block", "requests", (json_int_t) b.block.requests, "tokens", (json_int_t) b.block.tokens,
                                              "cost_microusd", (json_int_t) b.block.cost_microusd));
}

int flow_api_reserve(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        Flow *f = find_flow(m, call);
        _cleanup_free_ char *provider = bounded(get(params, "provider")), *model = bounded(get(params, "model")),
                            *price = bounded(get(params, "price")), *version = bounded(get(params, "prices_version"));
        bool summary = json_is_true(json_object_get(params, "summary"));
        LedgerReservation v = { .life = get(params, "life"), .call = get(params, "call") };
        int64_t summary_tokens, summary_cost;

        if (!f)
                return no_run(call);
        if (!knows_host_budget(f))
                return ipc_call_refuse(call, "Unavailable", "nobody knows this host's budget, since host.json cannot be used: %s", policy_host_reason(m->policy));
        if (!f->capped)
                return ipc_call_reply(call, json_pack("{s:b, s:b}", "capped", 0, "granted", 1));
        if (!provider || !model || !price || !version)
                return -ENOMEM;
        if (!v.life || !*v.life || strlen(v.life) > 32 || !v.call || !*v.call || strlen(v.call) > 64)
                return ipc_call_refuse(call, "BadInput", "life or call is missing or too long");
        if (read_number(params, "input_tokens", &v.input_tokens) < 0 || read_number(params, "output_tokens", &v.output_tokens) < 0 ||
            read_number(params, "cost_microusd", &v.cost_microusd) < 0 || read_number(params, "summary_tokens", &summary_tokens) < 0 ||
            read_number(params, "summary_cost", &summary_cost) < 0)
                return ipc_call_refuse(call, "BadInput", "a number out of range");

        v.run = f->run;
        v.provider = provider;
        v.model = model;
        v.price = price;
        v.prices_version = version;
        v.taken = json_is_true(json_object_get(params, "taken"));
        v.more_taken = json_is_true(json_object_get(params, "more_taken"));
        if (!v.taken && (f->over_budget || f->summary_used || (summary && summary_left(f) == 0)))
                return answer_refused(call, f, NULL, f->over_budget ?: LEDGER_OVER_BUDGET ": the last model call was made", false);
        if (!summary && summary_left(f) > 0)
                v.keep = (LedgerAmount) { .requests = 1, .tokens = summary_tokens, .cost_microusd = summary_cost };
        return reserve(f, call, &v, summary);
}

int flow_api_unreserve(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        Flow *f = find_flow(m, call);
        const char *id = get(params, "call");
        int r;

        if (!f)
                return no_run(call);
        if (!id || strlen(id) > 64)
                return ipc_call_refuse(call, "BadInput", "call is missing or too long");
        r = ledger_unreserve(m->ledger, f->run, id);
        if (r < 0)
                return manager_fatal(m, r, "give a reservation back");
        return ipc_call_reply(call, NULL);
}

/* A call was refused for good. */
int flow_api_over_budget(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        Flow *f = find_flow(m, call);
        char unit[64];

        if (!f || !f->capped)
                return no_run(call);
        if (!f->over_budget) {
                _cleanup_free_ char *text = bounded(get(params, "reason"));
                _cleanup_json_ json_t *data = NULL;
                int r;

                f->over_budget = ledger_reason_is_over_budget(text) ? TAKE_PTR(text) : strdup(LEDGER_OVER_BUDGET);
                if (!f->over_budget)
                        return -ENOMEM;
                manager_note(m, f->item.id, f->run, "budget.exceeded", "%s", f->over_budget);
                data = json_pack("{s:s}", "reason", f->over_budget);
                r = data ? ledger_outbox_put(m->ledger, "budget.exceeded", f->run, f->item.id, NULL, data) : -ENOMEM;
                if (r < 0)
                        return manager_fatal(m, r, "record a budget");
                outbox_kick(m);
        }

        (void) snprintf(unit, sizeof(unit), "anchor-run@%s.service", f->run);
        if (f->stage == STAGE_WORK && units_kill(m->units, unit, SIGUSR1) < 0)
                log_warning("run %s: it cannot be told to come to its end", f->run);
        return ipc_call_reply(call, NULL);
}
