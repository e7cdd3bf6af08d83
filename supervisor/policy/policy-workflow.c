/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * workflows/NAME.json: what one kind of run may use and does.
 *
 *   { "description": TEXT, "template": NAME, "harness": HARNESS | null, "egress": EGRESS | null,
 *     "credentials": [ CREDENTIAL ], "repository": true,
 *     "limits": { "memory": SIZE, "vcpus": N, "disk": SIZE, "run": DURATION, "attempts": N,
 *                 "output": SIZE, "bundle": SIZE },
 *     "budget": BUDGET,                    see policy-budget.c
 *     "steps": [ { "name", "kind": "prepare" | "agent" | "check" | "exec", "argv", "cwd", "env",
 *                  "timeout": DURATION, "feedback": { "rounds": N } } ],
 *     "verify": { "egress": EGRESS | null, "steps": [ { … "kind": "prepare" | "check" } ] } }
 *
 * What is checked beyond types: a step has what its kind needs; feedback goes from a check to an agent
 * step before it; every sentinel that an environment names is one of the workflow's credentials; and each
 * credential has a host that the egress policy inspects, and goes with the policy as policy-reach.c has it.
 *
 * The digest is over this file and everything that it names, descriptions left out: it is what a run was
 * frozen under.
 */

#include <string.h>

#include "policy/policy-egress.h"
#include "util/json.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

enum {
        STEPS_MAX = 64,
        CREDENTIALS_MAX = 16,
        DAY = 86400,
};

/* ---- credentials ---- */

static bool workflow_has_credential(const PolicyWorkflow *w, const char *name) {
        for (size_t i = 0; i < json_array_size(w->credentials); i++) {
                const char *s = json_string_value(json_array_get(w->credentials, i));

                if (s && strcmp(s, name) == 0)
                        return true;
        }
        return false;
}

/* Every {"sentinel": NAME} of an environment must be among the workflow's credentials; NULL: there must be none. */
static void check_sentinels(const Node *at, const char *key, const json_t *env, const PolicyWorkflow *w, const char *whose) {
        const char *name;
        json_t *value;

        json_object_foreach((json_t *) env, name, value) {
                const char *credential = json_string_value(json_object_get(value, "sentinel"));

                if (credential && !w)
                        node_fail_at(at, key, "the second microVM gets no credential");
                else if (credential && !workflow_has_credential(w, credential))
                        node_fail_at(at, key, "%s needs the credential \"%s\", which is not among the workflow's", whose, credential);
        }
}

static bool note_breach(const char *reason, void *userdata) {
        const Node *n = userdata;

        if (reason)
                node_fail(n, "%s", reason);
        else
                n->policy->out_of_memory = true;
        return true;
}

/* Can this credential be used under that egress policy, and without harm? */
static void check_reach(const Node *n, const PolicyCredential *c, const EgressPolicy *egress, const char *egress_name) {
        _cleanup_json_ json_t *bounds = policy_credential_bounds(c);
        size_t n_inspected = 0;

        if (!bounds) {
                n->policy->out_of_memory = true;
                return;
        }
        egress_policy_ask_bounds(egress, bounds, false, note_breach, (void *) n);

        for (size_t i = 0; i < json_array_size(c->hosts); i++)
                for (size_t j = 0; j < json_array_size(c->ports); j++) {
                        EgressDecision d;

                        egress_policy_decide(egress, json_string_value(json_array_get(c->hosts, i)), (uint16_t) json_integer_value(json_array_get(c->ports, j)),
                                             NULL, NULL, &d);
                        n_inspected += d.verdict == EGRESS_INSPECT;
                }
        if (n_inspected == 0)
                node_fail(n, "egress policy \"%s\" allows none of the hosts that credential \"%s\" is for", egress_name, c->name);
}

static void check_credentials(const Node *top, PolicyWorkflow *w) {
        Node array;

        w->credentials = top->policy->empty_array;
        if (!node_array(top, "credentials", 0, &array))
                return;
        if (json_array_size(array.value) > CREDENTIALS_MAX)
                node_fail(&array, "must not have more than %d credentials", CREDENTIALS_MAX);
        w->credentials = array.value;

        for (size_t i = 0; i < json_array_size(array.value); i++) {
                Node n = node_element(&array, i);
                PolicyObject *credential, *egress;

                if (!node_resolve(&n, POLICY_CREDENTIALS, &credential))
                        continue;
                for (size_t j = 0; j < i; j++)
                        if (json_equal(n.value, json_array_get(array.value, j)))
                                node_fail(&n, "is listed twice");

                if (!w->egress) {
                        if (json_is_null(json_object_get(top->value, "egress")) || !json_object_get(top->value, "egress"))
                                node_fail(&n, "a workflow without egress cannot use a credential");
                        continue;
                }
                egress = policy_object_find(top->policy, POLICY_EGRESS, w->egress);
                if (!credential->reason && egress && !egress->reason) {
                        check_reach(&n, &credential->credential, egress->egress, w->egress);
                        policy_check_app_reach(&n, &credential->credential, egress->egress, w->egress);
                }
        }
}

/* ---- limits ---- */

static void check_limits(const Node *top, PolicyWorkflow *w) {
        static const char *const known[] = { "memory", "vcpus", "disk", "run", "attempts", "output", "bundle", NULL };
        uint64_t memory = GIB, disk = 8 * GIB;
        Node n;

        w->vcpus = 2;
        w->run_s = 3600;
        w->attempts = 1;
        w->output_bytes = 64 * MIB;
        w->bundle_bytes = 256 * MIB;

        if (node_object(top, "limits", 0, &n) && node_check_object(&n, known)) {
                if (node_size(&n, "memory", 0, 128 * MIB, 1024 * GIB, &memory) && memory % MIB != 0)
                        node_fail_at(&n, "memory", "must be whole mebibytes");
                (void) node_uint(&n, "vcpus", 0, 1, 64, &w->vcpus);
                if (node_size(&n, "disk", 0, 64 * MIB, 4096 * GIB, &disk) && disk % MIB != 0)
                        node_fail_at(&n, "disk", "must be whole mebibytes");
                (void) node_duration(&n, "run", 0, 1, 7 * DAY, &w->run_s);
                (void) node_uint(&n, "attempts", 0, 1, 10, &w->attempts);
                (void) node_size(&n, "output", 0, 4096, 4 * GIB, &w->output_bytes);
                (void) node_size(&n, "bundle", 0, 4096, POLICY_BUNDLE_BYTES_MAX, &w->bundle_bytes);
        }

        w->memory_mib = memory / MIB;
        w->disk_mib = disk / MIB;
}

/* A cap on what nobody counts would be no cap. */
static void check_budget(const Node *top, PolicyWorkflow *w) {
        bool metered = false;

        if (!policy_read_budget(top, false, &w->budget))
                return;
        for (size_t i = 0; i < json_array_size(w->credentials); i++) {
                const char *name = json_string_value(json_array_get(w->credentials, i));
                const PolicyObject *o = name ? policy_object_find(top->policy, POLICY_CREDENTIALS, name) : NULL;

                metered = metered || (o && o->credential.provider);
        }
        if (!metered)
                node_fail_at(top, "budget", "no credential of the workflow names a provider, so that nothing would be counted");
}

/* ---- steps ---- */

/* Every kind that a step of this list may have. */
typedef struct StepRules {
        const char *const *kinds;
        bool repository;
        bool harness;
} StepRules;

static void check_step_kind(const Node *n, const PolicyStep *s, const StepRules *rules, bool after_agent) {
        bool has_argv = json_object_get(n->value, "argv");

        if (strcmp(s->kind, "agent") == 0) {
                if (!rules->harness)
                        node_fail_at(n, "kind", "an agent step needs the workflow to name a harness");
                if (has_argv)
                        node_fail_at(n, "argv", "the harness says how an agent is started");
        } else if (strcmp(s->kind, "exec") == 0) {
                if (has_argv)
                        node_fail_at(n, "argv", "the work item says what an exec step runs");
        } else if (!has_argv) {
                node_fail_at(n, "argv", "is missing");
        }

        if (json_object_get(n->value, "feedback")) {
                if (strcmp(s->kind, "check") != 0)
                        node_fail_at(n, "feedback", "only a check gives feedback");
                else if (!after_agent)
                        node_fail_at(n, "feedback", "there is no agent step before this check that could be told");
        }
}

static bool read_step(const Node *n, const StepRules *rules, bool after_agent, PolicyStep *ret) {
        static const char *const known[] = { "name", "kind", "argv", "cwd", "env", "timeout", "feedback", NULL };
        static const char *const known_feedback[] = { "rounds", NULL };
        PolicyStep s = {};
        uint64_t rounds = 0;
        const char *wrong;
        Node feedback;

        if (!node_check_object(n, known) ||
            !node_string(n, "name", NODE_REQUIRED, &s.name) ||
            !node_choice(n, "kind", NODE_REQUIRED, rules->kinds, &s.kind))
                return false;

        if (!text_is_name(s.name))
                node_fail_at(n, "name", "must be a lower-case letter, then letters, digits and dashes");
        if (node_strings(n, "argv", 0, 1, 256, check_argument, &s.argv) &&
            *json_string_value(json_array_get(s.argv, 0)) == '\0')
                node_fail_at(n, "argv", "must begin with a program");
        if (node_string(n, "cwd", 0, &s.cwd) && (wrong = check_absolute_path(s.cwd)))
                node_fail_at(n, "cwd", "%s", wrong);
        node_environment(n, "env", &s.env);
        (void) node_duration(n, "timeout", NODE_REQUIRED, 1, 7 * DAY, &s.timeout_s);
        if (node_object(n, "feedback", 0, &feedback) && node_check_object(&feedback, known_feedback))
                (void) node_uint(&feedback, "rounds", NODE_REQUIRED, 0, 10, &rounds);
        s.feedback_rounds = (unsigned) rounds;

        check_step_kind(n, &s, rules, after_agent);
        *ret = s;
        return true;
}

static PolicyStep *read_steps(const Node *object, const StepRules *rules, const PolicyWorkflow *w, size_t *ret_n) {
        PolicyStep *steps;
        size_t n_agents = 0, n_execs = 0;
        Node array;
        size_t n;

        if (!node_array(object, "steps", NODE_REQUIRED, &array))
                return NULL;

        n = json_array_size(array.value);
        if (n < 1 || n > STEPS_MAX) {
                node_fail(&array, "must have between 1 and %d steps", STEPS_MAX);
                return NULL;
        }

        steps = calloc(n, sizeof(*steps));
        if (!steps) {
                object->policy->out_of_memory = true;
                return NULL;
        }

        for (size_t i = 0; i < n; i++) {
                Node e = node_element(&array, i);

                if (!read_step(&e, rules, n_agents > 0, &steps[i]))
                        continue;
                for (size_t j = 0; j < i; j++)
                        if (steps[j].name && strcmp(steps[j].name, steps[i].name) == 0)
                                node_fail_at(&e, "name", "another step is called \"%s\" as well", steps[i].name);
                if (strcmp(steps[i].kind, "agent") == 0 && n_agents++ > 0)
                        node_fail_at(&e, "kind", "a workflow has at most one agent step");
                if (strcmp(steps[i].kind, "exec") == 0 && n_execs++ > 0)
                        node_fail_at(&e, "kind", "a workflow has at most one exec step");
                if (steps[i].env)
                        check_sentinels(&e, "env", steps[i].env, w, "the step");
        }

        *ret_n = n;
        return steps;
}

static void check_verify(const Node *top, PolicyObject *o, PolicyWorkflow *w) {
        static const char *const known[] = { "egress", "steps", NULL };
        static const char *const kinds[] = { "prepare", "check", NULL };
        StepRules rules = { .kinds = kinds, .repository = true };
        bool checks = false;
        Node n;

        if (!node_object(top, "verify", NODE_NULLABLE, &n) || !node_check_object(&n, known))
                return;
        if (!w->repository)
                node_fail(&n, "only a workflow with a repository has something to verify");

        (void) node_reference(&n, "egress", NODE_NULLABLE, POLICY_EGRESS, &w->verify_egress);
        o->verify = read_steps(&n, &rules, NULL, &w->n_verify);
        w->verify = o->verify;

        for (size_t i = 0; i < w->n_verify; i++)
                checks |= w->verify[i].kind && strcmp(w->verify[i].kind, "check") == 0;
        if (w->n_verify > 0 && !checks)
                node_fail_at(&n, "steps", "must have a check: it is what decides");
}

/* ---- digest ---- */

static json_t *without_description(const json_t *document) {
        json_t *copy;

        copy = json_copy((json_t *) document);
        if (copy)
                (void) json_object_del(copy, "description");
        return copy;
}

static int add_object(json_t *all, const Policy *p, PolicyKind kind, const char *name) {
        const PolicyObject *o = name ? policy_object_find(p, kind, name) : NULL;

        if (!o)
                return 0;
        if (kind == POLICY_EGRESS)
                return json_object_set_new(all, o->label, json_string(egress_policy_digest(o->egress)));
        return json_object_set_new(all, o->label, without_description(o->document));
}

static int digest_workflow(const Policy *p, PolicyObject *o) {
        const PolicyWorkflow *w = &o->workflow;
        _cleanup_json_ json_t *all = NULL;

        all = json_object();
        if (!all ||
            json_object_set_new(all, "workflow", without_description(o->document)) < 0 ||
            add_object(all, p, POLICY_EGRESS, w->egress) < 0 ||
            add_object(all, p, POLICY_EGRESS, w->verify_egress) < 0 ||
            add_object(all, p, POLICY_HARNESS, w->harness) < 0)
                return -ENOMEM;

        for (size_t i = 0; i < json_array_size(w->credentials); i++) {
                const char *name = json_string_value(json_array_get(w->credentials, i));
                const PolicyObject *credential = policy_object_find(p, POLICY_CREDENTIALS, name);

                if (add_object(all, p, POLICY_CREDENTIALS, name) < 0 ||
                    add_object(all, p, POLICY_PROVIDERS, credential->credential.provider) < 0)
                        return -ENOMEM;
        }

        return json_digest(all, o->digest);
}

/* ---- the whole file ---- */

void policy_check_workflow(Policy *p, PolicyObject *o) {
        static const char *const known[] = {
                "description", "template", "harness", "egress", "credentials", "repository", "limits", "budget", "steps", "verify", NULL,
        };
        static const char *const kinds[] = { "prepare", "agent", "check", "exec", NULL };
        PolicyWorkflow *w = &o->workflow;
        Node top = node_top(p, o);
        PolicyObject *harness;
        StepRules rules;
        const char *text;

        if (!node_check_object(&top, known))
                return;

        *w = (PolicyWorkflow) { .name = o->name, .digest = o->digest };

        (void) node_string(&top, "description", 0, &text);
        if (node_string(&top, "template", NODE_REQUIRED, &w->template_name) && !text_is_name(w->template_name))
                node_fail_at(&top, "template", "must be the name of a template: a lower-case letter, then letters, digits and dashes");
        (void) node_reference(&top, "harness", NODE_NULLABLE, POLICY_HARNESS, &w->harness);
        (void) node_reference(&top, "egress", NODE_NULLABLE, POLICY_EGRESS, &w->egress);
        (void) node_bool(&top, "repository", NODE_REQUIRED, &w->repository);
        check_credentials(&top, w);
        check_limits(&top, w);
        check_budget(&top, w);

        harness = w->harness ? policy_object_find(p, POLICY_HARNESS, w->harness) : NULL;
        if (harness && !harness->reason)
                check_sentinels(&top, "harness", json_object_get(harness->document, "env"), w, "the harness");

        rules = (StepRules) {
                .kinds = kinds,
                .repository = w->repository,
                .harness = json_is_string(json_object_get(o->document, "harness")),
        };
        o->steps = read_steps(&top, &rules, w, &w->n_steps);
        w->steps = o->steps;
        check_verify(&top, o, w);

        if (o->reason || p->out_of_memory)
                return;
        if (digest_workflow(p, o) < 0)
                p->out_of_memory = true;
}
