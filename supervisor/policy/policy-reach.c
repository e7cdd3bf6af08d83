/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What an egress policy must leave alone for a credential's sake, on each of the credential's hosts and ports:
 *
 *  - what it allows is inspected: in passed-through TLS nobody could put the value in the sentinel's place, or miss a sentinel that leaves;
 *  - where a value may be content (a place in a query or a body), nothing may be written but by such a place: what can be stored can be read back.
 *
 * It is asked when a workflow is loaded, and again whenever the policy of a run is changed. A run keeps the credentials that it began with, whatever the files
 * say meanwhile, so that what a change is compared with is frozen as well, as bounds:
 *
 *   [ { "credential": NAME, "hosts": [ HOST ], "ports": [ PORT ], "content": [ PATH ] } ]     "content": the paths of such places, if it has any
 */

#include <errno.h>
#include <string.h>

#include "policy/policy-egress.h"
#include "util/json.h"

static json_t *content_paths(const PolicyCredential *c) {
        json_t *paths = json_array();

        for (size_t i = 0; paths && i < json_array_size(c->places); i++) {
                const json_t *place = json_array_get(c->places, i);

                if ((json_object_get(place, "query") || json_object_get(place, "json") || json_object_get(place, "form")) &&
                    json_array_append(paths, json_object_get(place, "path")) < 0)
                        return json_unref(paths);
        }
        return paths;
}

json_t *policy_credential_bounds(const PolicyCredential *c) {
        _cleanup_json_ json_t *paths = content_paths(c), *bounds = NULL;

        if (!paths)
                return NULL;
        bounds = json_pack("{s:s, s:O, s:O}", "credential", c->name, "hosts", c->hosts, "ports", c->ports);
        if (!bounds || (json_array_size(paths) > 0 && json_object_set(bounds, "content", paths) < 0))
                return NULL;
        return TAKE_PTR(bounds);
}

int policy_workflow_bounds(const Policy *p, const PolicyWorkflow *w, json_t **ret) {
        _cleanup_json_ json_t *all = json_array();

        for (size_t i = 0; all && i < json_array_size(w->credentials); i++) {
                const PolicyCredential *c = policy_find_credential(p, json_string_value(json_array_get(w->credentials, i)), NULL);

                if (c && json_array_append_new(all, policy_credential_bounds(c)) < 0)
                        return -ENOMEM;
        }
        if (!all)
                return -ENOMEM;
        *ret = TAKE_PTR(all);
        return 0;
}

/* ---- may the run store content? ---- */

static bool is_content_path(const json_t *content, const char *pattern) {
        for (size_t i = 0; i < json_array_size(content); i++)
                if (strcmp(json_string_value(json_array_get(content, i)) ?: "", pattern) == 0)
                        return true;
        return false;
}

static bool rule_covers(const EgressRule *r, const char *host, uint16_t port) {
        size_t n_host = strlen(host), n_suffix = strlen(r->pattern);

        if (r->subject == EGRESS_EXACT && strcmp(r->pattern, host) != 0)
                return false;
        /* "*.example.org" */
        if (r->subject == EGRESS_WILDCARD && (n_host < n_suffix || strcmp(host + n_host - (n_suffix - 1), r->pattern + 1) != 0))
                return false;
        if (r->subject == EGRESS_NETWORK)
                return false;
        for (size_t i = 0; i < r->n_ports; i++)
                if (r->ports[i].port == port)
                        return true;
        return false;
}

/* Methods that an origin does not take for a wish to store something (RFC 9110, 9.2.1). */
static bool rule_writes(const EgressRules *s, const EgressRule *r) {
        static const char *const safe[] = { "GET", "HEAD", "OPTIONS" };

        if (r->methods == EGRESS_ANY_METHOD)
                return true;
        for (size_t i = 0; i < s->n_methods; i++) {
                bool is_safe = false;

                for (size_t k = 0; k < ELEMENTSOF(safe); k++)
                        is_safe = is_safe || strcmp(s->methods[i], safe[k]) == 0;
                if (!is_safe && r->methods & (UINT64_C(1) << i))
                        return true;
        }
        return false;
}

/* Denials are not looked at: what is allowed must be narrow by itself. */
static const EgressRule *find_store(const EgressRules *s, const json_t *content, const char *host, uint16_t port) {
        for (size_t i = 0; s && i < s->n_allow; i++) {
                const EgressRule *r = &s->rules[i];

                if (!rule_covers(r, host, port) || !rule_writes(s, r))
                        continue;
                if (r->n_paths == 0)
                        return r;
                for (size_t k = 0; k < r->n_paths; k++)
                        if (!is_content_path(content, r->paths[k].text))
                                return r;
        }
        return NULL;
}

/* ---- asking ---- */

typedef struct Asking {
        const EgressPolicy *policy;
        bool live_only;
        const json_t *bounds;      /* one credential's */
        PolicyBreach on_breach;
        void *userdata;
} Asking;

/* False: no more are wanted. */
static bool ask_host(const Asking *a, const char *host, uint16_t port) {
        const char *name = json_string_value(json_object_get(a->bounds, "credential"));
        const json_t *content = json_object_get(a->bounds, "content");
        _cleanup_free_ char *unread = NULL, *stored = NULL;
        const EgressRule *store = NULL;
        EgressDecision d;

        egress_policy_decide(a->policy, host, port, NULL, NULL, &d);
        if (d.verdict == EGRESS_PASS)
                unread = text_format("credential \"%s\" is for %s:%u, which rule %s does not inspect", name, host, port, d.rule);
        if (d.verdict == EGRESS_PASS && !a->on_breach(unread, a->userdata))
                return false;

        if (content)
                store = (a->live_only ? NULL : find_store(a->policy->files, content, host, port)) ?: find_store(a->policy->live, content, host, port);
        if (!store)
                return true;
        stored = text_format("credential \"%s\" has a place in a query or a body, and rule %s lets the run write elsewhere on %s:%u, "
                             "where it could store the value: list methods, and for those that write the place's own path", name, store->label, host, port);
        return a->on_breach(stored, a->userdata);
}

void egress_policy_ask_bounds(const EgressPolicy *p, const json_t *bounds, bool live_only, PolicyBreach on_breach, void *userdata) {
        const Asking a = { .policy = p, .live_only = live_only, .bounds = bounds, .on_breach = on_breach, .userdata = userdata };
        const json_t *hosts = json_object_get(bounds, "hosts"), *ports = json_object_get(bounds, "ports");

        for (size_t i = 0; i < json_array_size(hosts); i++)
                for (size_t j = 0; j < json_array_size(ports); j++)
                        if (!ask_host(&a, json_string_value(json_array_get(hosts, i)), (uint16_t) json_integer_value(json_array_get(ports, j))))
                                return;
}

typedef struct First {
        bool any;
        char *reason; /* the caller's */
} First;

static bool take_first(const char *reason, void *userdata) {
        First *f = userdata;

        f->any = true;
        f->reason = reason ? strdup(reason) : NULL;
        return false;
}

int egress_policy_keeps_bounds(const EgressPolicy *p, const json_t *bounds, bool live_only, char **ret_reason) {
        for (size_t i = 0; p && i < json_array_size(bounds); i++) {
                First first = {};

                egress_policy_ask_bounds(p, json_array_get(bounds, i), live_only, take_first, &first);
                if (first.any) {
                        *ret_reason = first.reason;
                        return first.reason ? -EPERM : -ENOMEM;
                }
        }
        return 0;
}
