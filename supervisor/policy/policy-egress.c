/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Reading egress/NAME.json.
 *
 *   { "description": TEXT,
 *     "allow": [ { "name": "api.example.org" | "*.example.org",
 *                  "ports": [ 443, { "port": 8443, "protocol": "tls" | "http" | "raw" } ],
 *                  "tls": "pass" | "inspect",
 *                  "methods": [ "GET" ], "paths": [ "/v1/" ], "git": { see policy-git-rule.c },
 *                  "max_names": 64,
 *                  "description": TEXT },
 *                { "network": "10.20.0.0/16", "ports", "methods", "paths", "description" } ],
 *     "deny":  [ { "name" | "network", "ports", "methods", "paths", "description" } ] }
 *
 * Nothing is allowed but what "allow" has: a list that is empty, missing or null allows nothing.
 *
 * A wildcard covers every name below its suffix and not the suffix itself. One directly below a public
 * suffix ("*.com", "*.co.uk", "*.github.io") would admit names that anybody may register, and is refused in
 * "allow"; in "deny" it does no such thing.
 * Port 443 carries TLS and port 80 HTTP unless the rule says otherwise; any other port must say what it
 * carries. Methods and paths can only be seen inside TLS when it is terminated, so they imply
 * "tls": "inspect". A denial without ports covers all of them.
 *
 * A rule by network admits literal addresses, which are denied otherwise, since a connection to one belongs to no name. It
 * needs two people's consent: the network must lie within one that host.json lists, and the rule must be there. What is a run's own, or what the
 * agreement check asks for, it must not have (policy-network.c). It says nothing about names that resolve into that network. TLS to an address is never inspected, as the run's CA signs for
 * names only.
 *
 * Two permissions for the same pattern and port must agree on what the port carries and on inspection:
 * otherwise what happens would depend on their order. How rules are weighed is in policy-egress-decide.c.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "policy/policy-egress.h"
#include "util/json-position.h"
#include "util/json.h"

enum {
        NAMES_DEFAULT = 64,
        NAMES_MAX = 4096, /* synthetic addresses of one run */
};

static const char *const protocols[] = {
        [EGRESS_TLS] = "tls",
        [EGRESS_HTTP] = "http",
        [EGRESS_RAW] = "raw",
        NULL,
};

const char *egress_protocol_to_string(EgressProtocol protocol) {
        return protocols[protocol];
}

/* What a rule is read into, and from where. */
typedef struct Reading {
        EgressRules *set;      /* borrowed */
        EgressSource source;
        const json_t *networks; /* borrowed; the host's */
} Reading;

static const char *keep(const Node *n, Reading *reading, const char *text) {
        const char *kept = egress_rules_text(reading->set, text);

        if (!kept)
                n->policy->out_of_memory = true;
        return kept;
}

static void *keep_array(const Node *n, Reading *reading, size_t count, size_t size) {
        void *kept = egress_rules_alloc(reading->set, count * size);

        if (!kept)
                n->policy->out_of_memory = true;
        return kept;
}

/* ---- what a rule is about ---- */

static void read_name(const Node *rule, Reading *reading, const char *written, EgressRule *r) {
        bool wildcard = written[0] == '*';
        const char *wrong;
        char name[256] = "*.";

        if (wildcard && written[1] != '.')
                wrong = "a wildcard must be \"*.\" and a host name";
        else
                wrong = egress_written_name(written + (wildcard ? 2 : 0), name + 2);
        if (!wrong && wildcard && !r->deny && egress_is_public_suffix(name + 2))
                wrong = "a wildcard directly below a public suffix would admit names that anybody may register";
        if (wrong) {
                node_fail_at(rule, "name", "%s", wrong);
                return;
        }

        r->subject = wildcard ? EGRESS_WILDCARD : EGRESS_EXACT;
        r->pattern = keep(rule, reading, wildcard ? name : name + 2);
}

static void read_network(const Node *rule, Reading *reading, const char *written, EgressRule *r) {
        const char *wrong = check_network(written);
        char text[INET6_ADDRSTRLEN + 16];
        EgressNetwork network, wide;
        bool listed = false;

        if (!wrong && !egress_network_parse(written, &network))
                wrong = "must be a network such as \"203.0.113.0/24\"";
        for (size_t i = 0; !wrong && i < json_array_size(reading->networks); i++)
                listed |= egress_network_parse(json_string_value(json_array_get(reading->networks, i)), &wide) && egress_network_within(&network, &wide);
        if (!wrong && !listed && reading->source == EGRESS_FROM_FILE)
                wrong = "must lie within a network that host.json lists under \"networks\": a literal address belongs to no name";
        if (!wrong && !inet_ntop(network.family, network.bytes, text, INET6_ADDRSTRLEN))
                wrong = "must be a network";
        if (wrong) {
                node_fail_at(rule, "network", "%s", wrong);
                return;
        }

        (void) snprintf(text + strlen(text), 16, "/%u", network.length);
        r->subject = EGRESS_NETWORK;
        r->pattern = keep(rule, reading, text);
}

static void read_subject(const Node *rule, Reading *reading, EgressRule *r) {
        const char *name = NULL, *network = NULL;
        bool has_name, has_network;

        has_name = node_string(rule, "name", 0, &name);
        has_network = node_string(rule, "network", 0, &network);
        if (has_name && has_network)
                node_fail_at(rule, "network", "a rule is about a name or about a network");
        else if (has_name)
                read_name(rule, reading, name, r);
        else if (has_network)
                read_network(rule, reading, network, r);
        else if (!json_object_get(rule->value, "name") && !json_object_get(rule->value, "network"))
                node_fail_at(rule, "name", "is missing");
}

/* ---- ports ---- */

static bool port_default_protocol(uint16_t port, EgressProtocol *ret) {
        switch (port) {
        case 443:
                *ret = EGRESS_TLS;
                return true;
        case 80:
                *ret = EGRESS_HTTP;
                return true;
        default:
                return false;
        }
}

static bool read_port(const Node *n, bool deny, EgressPort *ret) {
        static const char *const known[] = { "port", "protocol", NULL };
        EgressPort port = { .protocol = EGRESS_RAW };
        const char *protocol = NULL;
        uint64_t number;

        if (json_is_integer(n->value)) {
                if (json_integer_value(n->value) < 1 || json_integer_value(n->value) > 65535) {
                        node_fail(n, "must be a port between 1 and 65535");
                        return false;
                }
                port.port = (uint16_t) json_integer_value(n->value);
                if (!port_default_protocol(port.port, &port.protocol) && !deny) {
                        node_fail(n, "must say what the port carries: {\"port\": %u, \"protocol\": \"tls\", \"http\" or \"raw\"}", port.port);
                        return false;
                }
        } else if (json_is_object(n->value) && !deny) {
                if (!node_check_object(n, known) ||
                    !node_uint(n, "port", NODE_REQUIRED, 1, 65535, &number) ||
                    !node_choice(n, "protocol", NODE_REQUIRED, protocols, &protocol))
                        return false;
                port.port = (uint16_t) number;
                for (size_t i = 0; protocols[i]; i++)
                        if (protocols[i] == protocol)
                                port.protocol = (EgressProtocol) i;
        } else {
                node_fail(n, deny ? "must be a port" : "must be a port or {\"port\": …, \"protocol\": …}");
                return false;
        }

        *ret = port;
        return true;
}

static void read_ports(const Node *rule, Reading *reading, EgressRule *r) {
        Node array;
        size_t n;

        if (!node_array(rule, "ports", r->deny ? 0 : NODE_REQUIRED, &array))
                return;

        n = json_array_size(array.value);
        if (n < 1 || n > EGRESS_PORTS_MAX) {
                node_fail(&array, "must have between 1 and %d ports", EGRESS_PORTS_MAX);
                return;
        }

        r->ports = keep_array(rule, reading, n, sizeof(*r->ports));
        for (size_t i = 0; r->ports && i < n; i++) {
                Node e = node_element(&array, i);
                EgressPort port;

                if (!read_port(&e, r->deny, &port))
                        continue;
                for (size_t j = 0; j < r->n_ports; j++)
                        if (r->ports[j].port == port.port)
                                node_fail(&e, "port %u is listed twice", port.port);
                r->ports[r->n_ports++] = port;
        }
}

bool egress_rule_carries(const EgressRule *r, EgressProtocol protocol) {
        for (size_t i = 0; i < r->n_ports; i++)
                if (r->ports[i].protocol == protocol)
                        return true;
        return false;
}

/* ---- methods and paths ---- */

static void read_methods(const Node *rule, Reading *reading, EgressRule *r) {
        const json_t *methods;

        r->methods = EGRESS_ANY_METHOD;
        if (!node_strings(rule, "methods", 0, 1, 32, check_method, &methods))
                return;

        r->methods = 0;
        for (size_t i = 0; i < json_array_size(methods); i++) {
                uint64_t bit = egress_rules_method(reading->set, json_string_value(json_array_get(methods, i)));

                if (!bit)
                        node_fail_at(rule, "methods", "a file must not have more than %d different methods", EGRESS_METHODS_MAX - 1);
                r->methods |= bit;
        }
}

static void read_paths(const Node *rule, Reading *reading, EgressRule *r) {
        const json_t *paths;
        size_t n;

        if (!node_strings(rule, "paths", 0, 1, EGRESS_PATHS_MAX, check_path_pattern, &paths))
                return;

        n = json_array_size(paths);
        r->paths = keep_array(rule, reading, n, sizeof(*r->paths));
        for (size_t i = 0; r->paths && i < n; i++) {
                const char *text = keep(rule, reading, json_string_value(json_array_get(paths, i)));
                uint8_t *bytes = text ? keep_array(rule, reading, strlen(text), 1) : NULL;

                if (!bytes || path_pattern_parse(text, bytes, &r->paths[i]))
                        return; /* check_path_pattern() has told */
                r->n_paths++;
        }
}

static void read_inspection(const Node *rule, EgressRule *r) {
        static const char *const choices[] = { "pass", "inspect", NULL };
        bool conditional = r->methods != EGRESS_ANY_METHOD || r->n_paths > 0;
        const char *first = r->git ? "git" : r->methods != EGRESS_ANY_METHOD ? "methods" : "paths", *tls = NULL;

        if (!r->deny) {
                (void) node_choice(rule, "tls", 0, choices, &tls);

                if (conditional && egress_rule_carries(r, EGRESS_RAW))
                        node_fail_at(rule, first, "cannot be seen on a port that carries \"raw\"");
                if (r->git && (egress_rule_carries(r, EGRESS_HTTP) || r->subject == EGRESS_NETWORK))
                        node_fail_at(rule, "git", "is judged inside inspected TLS alone: in the clear nobody reads which refs are pushed");
                if (tls && r->n_ports > 0 && !egress_rule_carries(r, EGRESS_TLS))
                        node_fail_at(rule, "tls", "none of the rule's ports carries TLS");
                if (tls && tls == choices[0] && conditional)
                        node_fail_at(rule, "tls", "%s can only be seen inside inspected TLS", r->git ? "git" : "methods and paths");
        }
        if (r->subject == EGRESS_NETWORK && (tls == choices[1] || (conditional && (r->deny || egress_rule_carries(r, EGRESS_TLS)))))
                node_fail_at(rule, tls == choices[1] ? "tls" : first, "TLS to a literal address cannot be inspected");

        r->inspect = !r->deny && egress_rule_carries(r, EGRESS_TLS) && (conditional || tls == choices[1]);
}

/* ---- rules ---- */

/* Of a rule in a frozen policy: where it stood. */
static void read_origin(const Node *rule, Reading *reading, EgressRule *r) {
        static const char *const known[] = { "label", "file", "line", "who", NULL };
        const char *label = NULL, *file = NULL, *who = NULL;
        uint64_t line = 0;
        Node origin;

        if (!node_object(rule, "origin", NODE_REQUIRED, &origin) || !node_check_object(&origin, known) ||
            !node_string(&origin, "label", NODE_REQUIRED, &label) || !node_string(&origin, "file", NODE_REQUIRED, &file) ||
            !node_uint(&origin, "line", NODE_REQUIRED, 0, UINT_MAX, &line))
                return;

        r->label = keep(rule, reading, label);
        r->file = keep(rule, reading, file);
        r->line = (unsigned) line;
        if (node_string(&origin, "who", 0, &who))
                r->who = keep(rule, reading, who);
}

static void read_rule(const Node *rule, Reading *reading, EgressRule *r) {
        static const char *const known[2][2][13] = {
                { { "description", "name", "network", "ports", "tls", "methods", "paths", "git", "max_names", NULL },
                  { "description", "name", "network", "ports", "methods", "paths", NULL } },
                { { "description", "name", "network", "ports", "tls", "methods", "paths", "git", "max_names", "origin", NULL },
                  { "description", "name", "network", "ports", "methods", "paths", "origin", NULL } },
        };
        uint64_t max_names = NAMES_DEFAULT;
        const char *text;

        if (!node_check_object(rule, known[reading->source == EGRESS_FROM_FROZEN][r->deny]))
                return;

        (void) node_string(rule, "description", 0, &text);
        read_subject(rule, reading, r);
        if (!r->pattern)
                return;
        read_ports(rule, reading, r);
        read_methods(rule, reading, r);
        read_paths(rule, reading, r);
        egress_read_git(rule, reading->set, r);
        read_inspection(rule, r);
        if (reading->source == EGRESS_FROM_FROZEN)
                read_origin(rule, reading, r);
        if (r->deny)
                return;

        if (node_uint(rule, "max_names", 0, 1, NAMES_MAX, &max_names) && r->subject != EGRESS_WILDCARD)
                node_fail_at(rule, "max_names", "only a wildcard has more than one name");
        r->max_names = (unsigned) max_names;
}

/* What pass-through cannot keep apart is not wrong, but should be known. */
static void warn_of_shared_host(const Node *rule, const EgressRule *r) {
        const char *service;

        if (r->deny || r->inspect || r->subject == EGRESS_NETWORK || !egress_rule_carries(r, EGRESS_TLS))
                return;

        service = egress_shared_host(r->pattern + (r->subject == EGRESS_WILDCARD ? 2 : 0));
        if (service)
                node_warn_at(rule, "name", "is served from front ends of %s that have other owners' sites as well: behind an allowed name, "
                             "what is passed through unread can ask for those; \"tls\": \"inspect\" closes that", service);
}

static void read_rules(const Node *array, Reading *reading, const char *key, const uint32_t *lines, size_t n_lines) {
        bool deny = strcmp(key, "deny") == 0;
        EgressRule *rules = reading->set->rules + (deny ? reading->set->n_allow : 0);
        const char *file = keep(array, reading, array->object->file);

        for (size_t i = 0; i < json_array_size(array->value); i++) {
                _cleanup_free_ char *label = NULL;
                Node e = node_element(array, i);
                EgressRule *r = &rules[i];

                r->deny = deny;
                r->line = lines && i < n_lines ? lines[i] : 0;
                r->file = file;
                read_rule(&e, reading, r);

                if (!r->label) {
                        label = text_format("%s#/%s/%zu", array->object->label, key, i);
                        r->label = label ? keep(array, reading, label) : NULL;
                }
                if (!r->label || !r->file)
                        array->policy->out_of_memory = true;
                else if (reading->source == EGRESS_FROM_FILE && r->pattern)
                        warn_of_shared_host(&e, r);
        }
}

/* Same pattern, same port: same protocol and same inspection, or the first one that matches would win by chance. */
static void check_agreement(const Node *allow, const EgressRules *s) {
        for (size_t i = 0; i < s->n_allow; i++) {
                const EgressRule *r = &s->rules[i];
                size_t skip = r->subject == EGRESS_WILDCARD ? 2 : 0;
                const EgressNode *node = egress_rules_find(s, r->subject, r->pattern + skip, strlen(r->pattern) - skip);
                const EgressRule *first = &s->rules[node->first_rule[false]];
                Node n = node_element(allow, i);

                if (r->subject == EGRESS_WILDCARD && r->max_names != first->max_names)
                        node_fail(&n, "%s admits another number of names for the same wildcard", first->label);

                for (size_t k = 0; k < r->n_ports; k++) {
                        const EgressGroup *g = egress_node_group(s, node, false, r->ports[k].port);

                        if (r->ports[k].protocol != g->protocol)
                                node_fail(&n, "%s says that port %u carries \"%s\"", s->rules[g->first].label, g->port, protocols[g->protocol]);
                        else if (g->protocol == EGRESS_TLS && r->inspect != g->inspect)
                                node_fail(&n, "%s %s TLS for the same name and port", s->rules[g->first].label, g->inspect ? "inspects" : "passes");
                }
        }
}

static bool read_list(const Node *top, const char *key, Node *ret) {
        if (!node_array(top, key, NODE_NULLABLE, ret))
                return false;
        if (json_array_size(ret->value) > EGRESS_RULES_MAX) {
                node_fail(ret, "must not have more than %d rules", EGRESS_RULES_MAX);
                return false;
        }
        return true;
}

EgressRules *egress_rules_read(const Node *top, EgressSource source, const uint32_t *const lines[2], const size_t n_lines[2]) {
        _cleanup_(egress_rules_unrefp) EgressRules *s = NULL;
        bool has_allow, has_deny;
        Reading reading;
        Node allow, deny;
        int r;

        has_allow = read_list(top, "allow", &allow);
        has_deny = read_list(top, "deny", &deny);
        r = egress_rules_new(&s, has_allow ? json_array_size(allow.value) : 0, has_deny ? json_array_size(deny.value) : 0);
        if (r < 0) {
                top->policy->out_of_memory = true;
                return NULL;
        }

        reading = (Reading) { .set = s, .source = source, .networks = top->policy->host.networks };
        if (has_allow)
                read_rules(&allow, &reading, "allow", lines ? lines[0] : NULL, lines ? n_lines[0] : 0);
        if (has_deny)
                read_rules(&deny, &reading, "deny", lines ? lines[1] : NULL, lines ? n_lines[1] : 0);
        if (top->object->reason || top->policy->out_of_memory)
                return NULL;

        r = egress_rules_build(s);
        if (r == -E2BIG)
                node_fail(top, "has more than %d combinations of rules, ports and paths", EGRESS_ENTRIES_MAX);
        else if (r < 0)
                top->policy->out_of_memory = true;
        else if (has_allow)
                check_agreement(&allow, s);

        return top->object->reason || top->policy->out_of_memory ? NULL : TAKE_PTR(s);
}

/* ---- what no policy may allow ---- */

static bool allows_on_a_port(const EgressPolicy *p, const EgressRule *r, const char *name) {
        for (size_t k = 0; k < r->n_ports; k++) {
                EgressDecision d;

                egress_policy_decide(p, name, r->ports[k].port, NULL, NULL, &d);
                if (d.verdict != EGRESS_DENY)
                        return true;
        }
        return false;
}

/* A permission for such a name; or one by wildcard that covers it, unless a denial takes the name out. */
static void check_never(const Node *top, const EgressPolicy *p) {
        const EgressRules *s = p->files;
        size_t n_names;
        const EgressNever *names = egress_never(&n_names);
        Node allow;

        if (s->n_allow == 0 || !read_list(top, "allow", &allow))
                return;

        for (size_t i = 0; i < s->n_allow; i++)
                for (size_t k = 0; k < n_names; k++) {
                        const EgressRule *r = &s->rules[i];
                        Node e = node_element(&allow, i);

                        if (r->subject == EGRESS_NETWORK || !egress_never_covers(&names[k], r->pattern))
                                continue;
                        if (r->subject == EGRESS_EXACT)
                                node_fail_at(&e, "name", "%s %s", names[k].name, egress_never_reason(&names[k]));
                        else if (allows_on_a_port(p, r, names[k].name))
                                node_fail_at(&e, "name", "covers %s, which %s; {\"name\": \"%s\"} under \"deny\" takes it out", names[k].name,
                                             egress_never_reason(&names[k]), names[k].name);
                }
}

static void check_never_networks(const Node *top, const EgressRules *s) {
        Node allow;

        if (!s->has_networks || s->n_allow == 0 || !read_list(top, "allow", &allow))
                return;

        for (size_t i = 0; i < s->n_allow; i++) {
                const EgressNeverNetwork *never = egress_never_network(s, &s->rules[i]);
                Node e = node_element(&allow, i);

                if (never && never->inside)
                        node_fail_at(&e, "network", "lies within %s, %s", never->network, never->reason);
                else if (never)
                        node_fail_at(&e, "network", "has addresses of %s, %s; {\"network\": …} under \"deny\" takes out what the two have in common", never->network,
                                     never->reason);
        }
}

/* ---- the whole file ---- */

void policy_check_egress(Policy *p, PolicyObject *o) {
        static const char *const known[] = { "description", "allow", "deny", NULL };
        _cleanup_free_ uint32_t *allow_lines = NULL, *deny_lines = NULL;
        size_t n_lines[2] = {};
        Node top = node_top(p, o);
        EgressRules *files;
        const char *text;
        int r;

        if (!node_check_object(&top, known))
                return;

        (void) node_string(&top, "description", 0, &text);
        if (json_element_lines(o->text, o->text_size, "allow", &allow_lines, &n_lines[0]) == -ENOMEM ||
            json_element_lines(o->text, o->text_size, "deny", &deny_lines, &n_lines[1]) == -ENOMEM)
                p->out_of_memory = true;
        files = egress_rules_read(&top, EGRESS_FROM_FILE, (const uint32_t *const[]) { allow_lines, deny_lines }, n_lines);
        if (!files)
                return;

        r = egress_policy_new(&o->egress, files, NULL);
        if (r == -E2BIG)
                node_fail(&top, "asks for inspection of more than %d names: the run's CA lists each", EGRESS_INSPECTED_MAX);
        else if (r < 0)
                p->out_of_memory = true;
        else {
                check_never(&top, o->egress);
                check_never_networks(&top, o->egress->files);
        }
}
