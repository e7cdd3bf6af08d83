/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What the runs of a lease are made from: one plan, made when the item was leased, from workflow, harness, template and accelerator as they are then,
 * and kept in the ledger until the lease ends. So an edit of policy concerns what is leased after it: a run goes on as it began, also
 * under a new life of anchord, and what it made is verified by the steps and limits that held when it began.
 *
 *   { "limits": { "run_s", "output_bytes", "bundle_bytes" },
 *     "budget": { "run" | "item" | "month": { "requests", "tokens", "cost_microusd" },     -1: no cap
 *                 "soft_percent", "lower_max_tokens", "summary_tokens", "wrap_up_s" },
 *     "accel":  { "tcg", "fallback", "reason" },
 *     "work":   { "run": the run's spec, "vm": the microVM's },
 *     "verify": the same, or null: there is nothing to verify }
 *
 * Of the verification neither run nor commit are known when it is made: they are put in when it begins. What is the host's, its budget, is always
 * host.json's as it was last read.
 */

#include <errno.h>
#include <string.h>

#include "api/flow-internal.h"
#include "util/json.h"

/* ---- making ---- */

static json_t *caps_to_json(const PolicyCaps *c) {
        return json_pack("{s:I, s:I, s:I}", "requests", (json_int_t) c->requests, "tokens", (json_int_t) c->tokens, "cost_microusd", (json_int_t) c->cost_microusd);
}

static json_t *budget_to_json(const PolicyBudget *b) {
        return json_pack("{s:o, s:o, s:o, s:I, s:b, s:I, s:I}", "run", caps_to_json(&b->run), "item", caps_to_json(&b->item), "month", caps_to_json(&b->month),
                         "soft_percent", (json_int_t) b->soft_percent, "lower_max_tokens", b->lower_max_tokens, "summary_tokens", (json_int_t) b->summary_tokens,
                         "wrap_up_s", (json_int_t) b->wrap_up_s);
}

static json_t *make_specs(const SpecInput *in, const json_t *manifest) {
        json_t *run = NULL, *vm = NULL;

        if (spec_make_run(in, &run) < 0 || spec_make_vm(in, manifest, &vm) < 0) {
                (void) json_unref(run);
                return NULL;
        }
        return json_pack("{s:o, s:o}", "run", run, "vm", vm);
}

const char *flow_plan_make(Flow *f, const PolicyWorkflow *w, const json_t *harness, const json_t *manifest, const Accel *accel) {
        _cleanup_json_ json_t *command = NULL, *work = NULL, *verify = NULL;
        _cleanup_free_ char *slow = text_escape(accel->reason, strlen(accel->reason), false);
        SpecInput in = {
                .run = f->item.run,
                .item = f->item.id,
                .attempt = f->item.attempt,
                .workflow = w,
                .harness = harness,
                .task = f->item.task,
                .base = f->item.base,
                .tcg = accel->tcg,
                .boot_timeout_s = policy_host(f->manager->policy)->boot_timeout_s,
        };

        if (f->item.command && json_parse(f->item.command, strlen(f->item.command), &command, NULL) < 0)
                return "the item's command cannot be read";
        in.command = command;
        work = make_specs(&in, manifest);
        in.verify = true;
        verify = w->n_verify > 0 ? make_specs(&in, manifest) : json_null();
        if (!slow || !work || !verify)
                return "the run's specification cannot be made from its workflow";

        (void) json_unref(f->plan);
        f->plan = json_pack("{s:{s:I, s:I, s:I}, s:o, s:{s:b, s:b, s:s}, s:O, s:O}",
                            "limits", "run_s", (json_int_t) w->run_s, "output_bytes", (json_int_t) w->output_bytes, "bundle_bytes", (json_int_t) w->bundle_bytes,
                            "budget", budget_to_json(&w->budget),
                            "accel", "tcg", accel->tcg, "fallback", accel->fallback, "reason", slow,
                            "work", work, "verify", verify);
        return f->plan ? NULL : "the run's specification cannot be made from its workflow";
}

/* ---- taking ---- */

static uint64_t number(const json_t *object, const char *key) {
        return (uint64_t) json_integer_value(json_object_get(object, key));
}

static PolicyCaps caps_from_json(const json_t *j) {
        return (PolicyCaps) { .requests = number(j, "requests"), .tokens = number(j, "tokens"), .cost_microusd = number(j, "cost_microusd") };
}

static void take_budget(Flow *f) {
        const json_t *j = json_object_get(f->plan, "budget");
        PolicyBudget b = {
                .run = caps_from_json(json_object_get(j, "run")),
                .item = caps_from_json(json_object_get(j, "item")),
                .month = caps_from_json(json_object_get(j, "month")),
                .soft_percent = (unsigned) number(j, "soft_percent"),
                .lower_max_tokens = json_is_true(json_object_get(j, "lower_max_tokens")),
                .summary_tokens = number(j, "summary_tokens"),
                .wrap_up_s = number(j, "wrap_up_s"),
        };

        flow_set_budget(f, &b);
}

/* Those of the stage; the import has none of its own, and its run's do no harm. */
static int take_specs(Flow *f) {
        const json_t *specs = json_object_get(f->plan, f->stage == STAGE_VERIFY ? "verify" : "work");
        _cleanup_json_ json_t *spec = json_deep_copy(json_object_get(specs, "run"));
        json_t *repository = json_object_get(spec, "repository");

        if (!spec || json_object_set_new(spec, "run", json_string(f->run)) < 0)
                return -ENOMEM;
        if (f->stage == STAGE_VERIFY && json_is_object(repository) && json_object_set_new(repository, "base", json_string(f->commit)) < 0)
                return -ENOMEM;

        (void) json_unref(f->spec);
        (void) json_unref(f->vm_spec);
        f->spec = TAKE_PTR(spec);
        f->vm_spec = json_incref(json_object_get(specs, "vm"));
        return 0;
}

const char *flow_plan_take(Flow *f) {
        const json_t *limits = json_object_get(f->plan, "limits"), *accel = json_object_get(f->plan, "accel");

        f->run_s = number(limits, "run_s");
        f->output_bytes = number(limits, "output_bytes");
        f->bundle_bytes = number(limits, "bundle_bytes");
        f->has_verify = json_is_object(json_object_get(f->plan, "verify"));
        f->tcg = json_is_true(json_object_get(accel, "tcg"));
        f->tcg_fallback = json_is_true(json_object_get(accel, "fallback"));
        (void) snprintf(f->accel_reason, sizeof(f->accel_reason), "%s", json_string_value(json_object_get(accel, "reason")) ?: "");
        take_budget(f);
        return take_specs(f) < 0 ? "the run's specification cannot be made from its plan" : NULL;
}
