/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Does a live permission take effect? A denial of the same specificity, or any live one that covers it, beats it; whoever adds it should hear that.
 *
 * A rule is asked for what it says: its name, each port, and its first method and path where it has any. A wildcard is asked for a name
 * below it that nobody has, so that a denial of single names below it, which narrows it, is no objection.
 */

#include <string.h>

#include "policy/policy-egress.h"
#include "util/json.h"

#define ANY_NAME "anchorhold-any"

static const char *first_method(const EgressRules *s, const EgressRule *r) {
        for (size_t i = 0; r->methods != EGRESS_ANY_METHOD && i < s->n_methods; i++)
                if (r->methods & UINT64_C(1) << i)
                        return s->methods[i];
        return "GET";
}

static void ask(const EgressPolicy *p, const EgressRule *r, const char *name, uint16_t port, EgressDecision *ret) {
        const char *path = r->n_paths > 0 ? r->paths[0].text : "/";
        bool whole = (r->n_paths == 0 && r->methods == EGRESS_ANY_METHOD) || r->git || strchr(path, '*');

        egress_policy_decide(p, name, port, whole ? NULL : first_method(p->live, r), whole ? NULL : path, ret);
}

json_t *egress_policy_overruled(const EgressPolicy *p) {
        const EgressRule *r = p->live && p->live->n_allow > 0 ? &p->live->rules[p->live->n_allow - 1] : NULL;
        json_t *list = json_array();
        char name[sizeof(ANY_NAME) + 254];

        if (!r || !list)
                return list;

        (void) snprintf(name, sizeof(name), "%s%s", r->subject == EGRESS_WILDCARD ? ANY_NAME : "", r->pattern + (r->subject == EGRESS_WILDCARD ? 1 : 0));
        for (size_t i = 0; i < r->n_ports; i++) {
                EgressDecision d;

                ask(p, r, name, r->ports[i].port, &d);
                if (d.verdict != EGRESS_DENY || strcmp(d.reason, "denied-by-rule") != 0)
                        continue;
                if (json_array_append_new(list, json_pack("{s:s, s:i, s:s, s:s, s:i, s:s*}", "name", r->pattern, "port", (int) r->ports[i].port, "rule", d.rule,
                                                          "file", d.file, "line", (int) d.line, "who", d.who)) < 0) {
                        json_decref(list);
                        return NULL;
                }
        }
        return list;
}
