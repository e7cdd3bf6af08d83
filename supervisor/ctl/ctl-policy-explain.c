/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * policy explain: what becomes of one connection or one request, and which rule says so. For a run egressd answers, from the policy
 * that it enforces; for a workflow the same library compiles the files into the same object here. The digest tells whether the two
 * are one policy.
 */

#include <errno.h>
#include <string.h>

#include "ctl/ctl-egress.h"
#include "util/json.h"
#include "util/text.h"

static bool array_has(const json_t *array, const char *s) {
        for (size_t i = 0; i < json_array_size(array); i++) {
                const char *entry = json_string_value(json_array_get(array, i));

                if (entry && strcmp(entry, s) == 0)
                        return true;
        }
        return false;
}

/* The credentials that would be put in place there. */
static json_t *credentials_for(const Policy *p, const PolicyWorkflow *w, const char *host, uint16_t port) {
        json_t *names = json_array();

        for (size_t i = 0; i < json_array_size(w->credentials); i++) {
                const char *name = json_string_value(json_array_get(w->credentials, i));
                const PolicyCredential *c = policy_find_credential(p, name, NULL);

                if (!c || !array_has(c->hosts, host))
                        continue;
                for (size_t j = 0; j < json_array_size(c->ports); j++)
                        if (json_integer_value(json_array_get(c->ports, j)) == port)
                                (void) json_array_append_new(names, json_string(name));
        }
        return names;
}

static void print_rule(Ctl *ctl, const json_t *d) {
        _cleanup_free_ char *rule = ctl_text(d, "rule", "-"), *file = ctl_text(d, "file", ""), *who = ctl_text(d, "who", "");
        json_int_t line = json_integer_value(json_object_get(d, "line"));

        (void) fprintf(ctl->out, "     rule: %s\n", rule);
        if (file && *file) {
                (void) fprintf(ctl->out, "       at: %s", file);
                if (line > 0)
                        (void) fprintf(ctl->out, ":%lld", (long long) line);
                (void) fputc('\n', ctl->out);
        }
        if (who && *who)
                (void) fprintf(ctl->out, " added by: %s\n", who);
}

static void print_texts(Ctl *ctl, const json_t *texts) {
        for (size_t i = 0; i < json_array_size(texts); i++) {
                const char *text = json_string_value(json_array_get(texts, i));
                _cleanup_free_ char *safe = text ? text_escape(text, strlen(text), false) : NULL;

                (void) fprintf(ctl->out, "%s%s", i > 0 ? ", " : "", safe ?: "?");
        }
}

/* What else is asked of a request by a rule about git. */
static void print_git(Ctl *ctl, const json_t *git) {
        const json_t *push = json_object_get(git, "push");

        if (!git)
                return;
        (void) fprintf(ctl->out, "      git: %s%s, %s", json_is_true(json_object_get(git, "fetch")) ? "fetch" : "no fetch",
                       json_is_true(json_object_get(git, "lfs")) ? ", LFS" : "", push ? "push" : "no push");
        if (push) {
                _cleanup_free_ char *size = ctl_text(push, "max_pack", "-");

                (void) fputs(" to ", ctl->out);
                print_texts(ctl, json_object_get(push, "refs"));
                (void) fprintf(ctl->out, "; %s, %s, packs up to %s", json_is_true(json_object_get(push, "delete")) ? "deletions" : "no deletions",
                               json_is_true(json_object_get(push, "force")) ? "forced updates" : "no forced updates", size);
        }
        (void) fputc('\n', ctl->out);
}

/* d: what egress_decision_to_json() or egressd says, with the question and the digest. */
static CtlExit print(Ctl *ctl, const json_t *d, bool none) {
        const char *verdict = ctl_string(d, "verdict") ?: "deny", *protocol = ctl_string(d, "protocol") ?: "raw";
        _cleanup_free_ char *host = ctl_text(d, "host", "-"), *reason = ctl_text(d, "reason", "-"), *digest = ctl_text(d, "digest", "-");
        const json_t *credentials = json_object_get(d, "credentials");
        bool denied = strcmp(verdict, "deny") == 0, inspected = strcmp(verdict, "inspect") == 0;
        int port = (int) json_integer_value(json_object_get(d, "port"));

        if (ctl->o.json != CTL_JSON_OFF)
                return ctl_print_json(ctl, d) ?: denied ? CTL_REFUSED : CTL_OK;

        if (denied) {
                char normal[254];

                (void) fprintf(ctl->out, "%s:%d is denied: %s\n", host, port, reason);
                print_rule(ctl, d);
                if (ctl_string(d, "host") && egress_normalise_name(ctl_string(d, "host"), normal) < 0)
                        (void) fputs("     note: a literal address is denied unless host.json and a rule names its network\n", ctl->out);
                if (none)
                        (void) fprintf(ctl->out, "   egress: the workflow has none%s\n", ctl->o.verify ? " in its second microVM" : "");
        } else {
                (void) fprintf(ctl->out, "%s:%d is allowed: %s\n", host, port,
                               inspected ? "inspected" : strcmp(protocol, "tls") == 0 ? "passed through, encrypted end to end" : "passed");
                print_rule(ctl, d);
                (void) fprintf(ctl->out, " protocol: %s\n", protocol);
                print_git(ctl, json_object_get(d, "git"));
        }
        for (size_t i = 0; i < json_array_size(credentials); i++)
                (void) fprintf(ctl->out, "%s%s", i == 0 ? "  secrets: " : ", ", json_string_value(json_array_get(credentials, i)));
        if (json_array_size(credentials) > 0)
                (void) fputs(" in place of the sentinel\n", ctl->out);
        (void) fprintf(ctl->out, "   digest: %s\n", digest);
        return denied ? CTL_REFUSED : CTL_OK;
}

static CtlExit explain_run(Ctl *ctl, const char *run, const CtlTarget *t, const char *method, const char *path) {
        _cleanup_json_ json_t *answer = NULL;
        CtlExit r;

        if (ctl->o.verify)
                return ctl_usage(ctl, "A run has its stage already; --verify is for workflows.");

        r = ctl_call_egress(ctl, "explain the policy", "Explain",
                            json_pack("{s:s, s:s, s:i, s:s*, s:s*}", "run", run, "name", t->name, "port", t->port, "method", method, "path", path),
                            &answer);
        if (r == CTL_NOT_FOUND)
                ctl_note(ctl, "A run's policy is forgotten when the run ends; \"anchorctl policy log %s\" shows what came of it.", run);
        if (r != CTL_OK)
                return r;

        if (json_object_set_new(answer, "run", json_string(run)) < 0 || json_object_set_new(answer, "host", json_string(t->name)) < 0 ||
            json_object_set_new(answer, "port", json_integer(t->port)) < 0)
                return ctl_report(ctl, "explain the policy", -ENOMEM, NULL, NULL);
        return print(ctl, answer, strcmp(ctl_string(answer, "digest") ?: "", "none") == 0);
}

static CtlExit explain_workflow(Ctl *ctl, const Policy *p, const PolicyWorkflow *w, const CtlTarget *t, const char *method, const char *path) {
        EgressDecision d = { .verdict = EGRESS_DENY, .protocol = EGRESS_RAW, .rule = "default", .file = "", .reason = "no-rule" };
        const char *policy_name = ctl->o.verify ? w->verify_egress : w->egress, *reason = NULL, *digest = "none";
        _cleanup_json_ json_t *answer = NULL, *credentials = NULL;
        const EgressPolicy *egress;

        if (policy_name) {
                egress = policy_find_egress(p, policy_name, &reason);
                if (!egress) {
                        ctl_error(ctl, "The egress policy %s cannot be used: %s", policy_name, reason);
                        return CTL_REFUSED;
                }
                egress_policy_decide(egress, t->name, t->port, method, path, &d);
                digest = egress_policy_digest(egress);
        }
        credentials = d.verdict == EGRESS_INSPECT && !ctl->o.verify ? credentials_for(p, w, t->name, t->port) : json_array();

        answer = egress_decision_to_json(&d);
        if (!answer || json_object_update_new(answer, json_pack("{s:s, s:s, s:i, s:s*, s:s, s:O}", "workflow", w->name, "host", t->name,
                                                                "port", t->port, "egress", policy_name, "digest", digest, "credentials", credentials)) < 0)
                return ctl_report(ctl, "explain the policy", -ENOMEM, NULL, NULL);
        return print(ctl, answer, !policy_name);
}

CtlExit ctl_verb_policy_explain(Ctl *ctl) {
        const char *name = ctl->o.args[1], *target = ctl->o.args[2], *reason = NULL, *wrong, *method, *path;
        _cleanup_(ctl_policy_done) CtlPolicy l = {};
        const PolicyWorkflow *w;
        char run[ID_LENGTH + 1];
        CtlTarget t;
        CtlExit r;

        wrong = ctl_target_parse(target, &t);
        if (wrong)
                return ctl_usage(ctl, "\"%s\" %s: it must be a URL or HOST:PORT.", target, wrong);
        if (ctl->o.path && t.http)
                return ctl_usage(ctl, "The URL has a path; --path= is for HOST:PORT.");
        if (ctl->o.path && !ctl->o.method)
                return ctl_usage(ctl, "--path= needs --method=.");
        method = ctl->o.method ?: t.http ? ctl->o.method ?: "GET" : NULL;
        path = !method ? NULL : t.http ? t.path : ctl->o.path ?: "/";

        if (text_is_id('r', name) && !ctl->o.root)
                return explain_run(ctl, name, &t, method, path);

        r = ctl_policy_load(ctl, &l);
        if (r != CTL_OK)
                return r;
        w = policy_find_workflow(l.policy, name, &reason);
        if (!w) {
                const char *const *names;
                size_t n = policy_list(l.policy, "workflows", &names);

                for (size_t i = 0; i < n; i++)
                        if (strcmp(names[i], name) == 0) {
                                ctl_error(ctl, "The workflow %s cannot be used: %s", name, reason);
                                return CTL_REFUSED;
                        }
                /* after the workflows, since one of them may be called as an item could be */
                if (text_is_id('i', name) && !ctl->o.root) {
                        r = ctl_find_live_run(ctl, "explain the policy", name, run);
                        return r == CTL_OK ? explain_run(ctl, run, &t, method, path) : r;
                }
                ctl_error(ctl, "There is no workflow \"%s\".", name);
                return CTL_NOT_FOUND;
        }

        return explain_workflow(ctl, l.policy, w, &t, method, path);
}
