/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* policy check, policy explain: the files, read with the caller's own rights. */

#include <errno.h>
#include <string.h>

#include "ctl/ctl.h"
#include "policy/policy.h"
#include "util/json.h"
#include "util/text.h"

typedef struct Loaded {
        Policy *policy;
        PolicyFinding *findings;
        size_t n_findings;
} Loaded;

static void loaded_done(Loaded *l) {
        policy_free(l->policy);
        policy_findings_free(l->findings, l->n_findings);
}

static CtlExit load(Ctl *ctl, Loaded *ret) {
        _cleanup_free_ char *root = strdup(ctl->o.root ?: "");
        int r;

        if (!root)
                return ctl_report(ctl, "load the policy", -ENOMEM, NULL, NULL);
        while (*root && root[strlen(root) - 1] == '/')
                root[strlen(root) - 1] = '\0';
        if (ctl->o.root && access(*root ? root : "/", F_OK) < 0) {
                ctl_error(ctl, "Cannot read %s: %s", ctl->o.root, strerror(errno));
                return CTL_NOT_FOUND;
        }

        r = policy_load(&ret->policy, root, &ret->findings, &ret->n_findings);
        if (r < 0) {
                ctl_error(ctl, "Cannot load the policy files: %s", strerror(-r));
                return r == -EACCES ? CTL_REFUSED : CTL_FAILED;
        }
        return CTL_OK;
}

/* ---- check ---- */

static CtlExit check_json(Ctl *ctl, const Loaded *l) {
        _cleanup_json_ json_t *array = json_array();

        for (size_t i = 0; array && i < l->n_findings; i++)
                (void) json_array_append_new(array, json_pack("{s:s, s:s, s:s}", "file", l->findings[i].file,
                                                              "pointer", l->findings[i].pointer, "reason", l->findings[i].reason));
        return ctl_print_json(ctl, array);
}

CtlExit ctl_verb_policy_check(Ctl *ctl) {
        static const char *const kinds[] = { "workflows", "egress", "credentials", "harness", "providers" };
        _cleanup_(loaded_done) Loaded l = {};
        size_t n_files = 0;
        CtlExit r;

        r = load(ctl, &l);
        if (r != CTL_OK)
                return r;

        for (size_t i = 0; i < ELEMENTSOF(kinds); i++) {
                const char *const *names;

                n_files += policy_list(l.policy, kinds[i], &names);
        }

        if (ctl->o.json != CTL_JSON_OFF) {
                r = check_json(ctl, &l);
                return r != CTL_OK ? r : l.n_findings > 0 ? CTL_FAILED : CTL_OK;
        }

        for (size_t i = 0; i < l.n_findings; i++) {
                _cleanup_free_ char *line = text_format("%s: %s%s%s", l.findings[i].file, l.findings[i].pointer,
                                                        *l.findings[i].pointer ? ": " : "", l.findings[i].reason);
                _cleanup_free_ char *safe = line ? text_escape(line, strlen(line), false) : NULL;

                (void) fprintf(ctl->out, "%s\n", safe ?: "out of memory");
        }
        if (l.n_findings > 0)
                ctl_note(ctl, "%zu finding%s in %zu files.", l.n_findings, l.n_findings == 1 ? "" : "s", n_files);
        else
                ctl_note(ctl, "%zu files, no finding. Digest %.16s.", n_files, policy_digest(l.policy));
        return l.n_findings > 0 ? CTL_FAILED : CTL_OK;
}

/* ---- explain ---- */

static CtlExit parse_target(Ctl *ctl, const char *s, char ret_name[static 254], uint16_t *ret_port) {
        const char *colon = strrchr(s, ':');
        _cleanup_free_ char *host = NULL;
        unsigned long port;
        char *end;

        if (!colon || colon[1] < '0' || colon[1] > '9')
                return ctl_usage(ctl, "\"%s\" is not HOST:PORT.", s);
        port = strtoul(colon + 1, &end, 10);
        if (*end != '\0' || port < 1 || port > 65535)
                return ctl_usage(ctl, "\"%s\" is no port.", colon + 1);

        host = strndup(s, (size_t) (colon - s));
        if (!host || egress_normalise_name(host, ret_name) < 0)
                return ctl_usage(ctl, "\"%s\" is no host name. A connection to an address that no name was looked up for is always denied.",
                                 host ?: s);

        *ret_port = (uint16_t) port;
        return CTL_OK;
}

static const char *verdict_text(EgressVerdict v) {
        switch (v) {
        case EGRESS_PASS:
                return "pass";
        case EGRESS_INSPECT:
                return "inspect";
        case EGRESS_DENY:
                break;
        }
        return "deny";
}

static const char *protocol_text(EgressProtocol p) {
        switch (p) {
        case EGRESS_TLS:
                return "tls";
        case EGRESS_HTTP:
                return "http";
        case EGRESS_RAW:
                break;
        }
        return "raw";
}

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

static CtlExit explain(Ctl *ctl, const Policy *p, const PolicyWorkflow *w, const char *host, uint16_t port) {
        const char *policy_name = ctl->o.verify ? w->verify_egress : w->egress, *reason = NULL;
        EgressDecision d = { .verdict = EGRESS_DENY, .protocol = EGRESS_RAW, .rule = "default", .reason = "no-rule" };
        _cleanup_json_ json_t *credentials = NULL;
        const EgressPolicy *egress;

        if (policy_name) {
                egress = policy_find_egress(p, policy_name, &reason);
                if (!egress) {
                        ctl_error(ctl, "The egress policy %s cannot be used: %s", policy_name, reason);
                        return CTL_REFUSED;
                }
                egress_policy_decide(egress, host, port, ctl->o.method, ctl->o.method ? ctl->o.path ?: "/" : NULL, &d);
        }
        credentials = d.verdict == EGRESS_INSPECT && !ctl->o.verify ? credentials_for(p, w, host, port) : json_array();

        if (ctl->o.json != CTL_JSON_OFF) {
                _cleanup_json_ json_t *j = json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:s?, s:s?, s:O?}", "workflow", w->name, "host", host,
                                                     "port", port, "verdict", verdict_text(d.verdict), "rule", d.rule,
                                                     "reason", d.reason, "egress", policy_name,
                                                     "protocol", d.verdict == EGRESS_DENY ? NULL : protocol_text(d.protocol),
                                                     "credentials", credentials);

                return ctl_print_json(ctl, j) ?: d.verdict == EGRESS_DENY ? CTL_REFUSED : CTL_OK;
        }

        if (d.verdict == EGRESS_DENY) {
                (void) fprintf(ctl->out, "%s:%u is denied: %s\n", host, port, d.reason);
                (void) fprintf(ctl->out, "     rule: %s\n", d.rule);
                if (!policy_name)
                        (void) fprintf(ctl->out, "   egress: the workflow has none%s\n", ctl->o.verify ? " in its second microVM" : "");
                return CTL_REFUSED;
        }

        (void) fprintf(ctl->out, "%s:%u is allowed: %s\n", host, port,
                       d.verdict == EGRESS_INSPECT ? "inspected" : d.protocol == EGRESS_TLS ? "passed through, encrypted end to end" : "passed");
        (void) fprintf(ctl->out, "     rule: %s\n protocol: %s\n", d.rule, protocol_text(d.protocol));
        for (size_t i = 0; i < json_array_size(credentials); i++)
                (void) fprintf(ctl->out, "%s%s", i == 0 ? "  secrets: " : ", ", json_string_value(json_array_get(credentials, i)));
        if (json_array_size(credentials) > 0)
                (void) fputs(" in place of the sentinel\n", ctl->out);
        return CTL_OK;
}

CtlExit ctl_verb_policy_explain(Ctl *ctl) {
        const char *name = ctl->o.args[1], *reason = NULL;
        _cleanup_(loaded_done) Loaded l = {};
        const PolicyWorkflow *w;
        char host[254];
        uint16_t port = 0;
        CtlExit r;

        if (ctl->o.path && !ctl->o.method)
                return ctl_usage(ctl, "--path= needs --method=.");
        r = parse_target(ctl, ctl->o.args[2], host, &port);
        if (r == CTL_OK)
                r = load(ctl, &l);
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
                ctl_error(ctl, "There is no workflow \"%s\".", name);
                return CTL_NOT_FOUND;
        }

        return explain(ctl, l.policy, w, host, port);
}
