/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Compiling egress/NAME.json.
 *
 *   { "description": TEXT,
 *     "allow": [ { "name": "api.example.org" | "*.example.org",
 *                  "ports": [ 443, { "port": 8443, "protocol": "tls" | "http" | "raw" } ],
 *                  "tls": "pass" | "inspect",
 *                  "methods": [ "GET" ], "paths": [ "/v1/" ],
 *                  "max_names": 64,
 *                  "description": TEXT } ],
 *     "deny":  [ { "name", "ports", "methods", "paths", "description" } ] }
 *
 * A wildcard covers every name below its suffix and not the suffix itself. One directly below a public
 * suffix ("*.com", "*.co.uk", "*.github.io") would admit names that anybody may register, and is refused.
 * Port 443 carries TLS and port 80 HTTP unless the rule says otherwise; any other port must say what it
 * carries. Methods and paths can only be seen inside TLS when it is terminated, so they imply
 * "tls": "inspect". A denial without ports covers all of them.
 *
 * Two permissions for the same name and port must agree on what the port carries and on inspection:
 * otherwise what happens would depend on their order. How rules are weighed is in policy-egress-decide.c.
 *
 * The digest is over the compiled form, so that neither a description nor the way in which a default was
 * spelled changes it.
 */

#include <ctype.h>
#include <errno.h>
#include <libpsl.h>
#include <limits.h>
#include <string.h>

#include "policy/policy-internal.h"
#include "util/json.h"

enum {
        RULES_MAX = 1024,
        PORTS_MAX = 64,
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

static bool label_is_fine(const char *s, size_t n) {
        if (n < 1 || n > 63 || s[0] == '-' || s[n - 1] == '-')
                return false;

        for (size_t i = 0; i < n; i++)
                if (!isascii((unsigned char) s[i]) || (!isalnum((unsigned char) s[i]) && s[i] != '-'))
                        return false;
        return true;
}

/* inet_aton() and URL parsers take "127.1" and "0x7f000001" for addresses: they all end in a number. */
static bool label_is_number(const char *s, size_t n) {
        if (n > 1 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X'))
                return strspn(s + 2, "0123456789abcdefABCDEF") >= n - 2;
        return strspn(s, "0123456789") >= n;
}

int egress_normalise_name(const char *name, char ret[static 254]) {
        char copy[254];
        size_t n;

        n = strlen(name);
        if (n > 0 && name[n - 1] == '.')
                n--;
        if (n < 1 || n > 253)
                return -EINVAL;

        for (size_t start = 0; start <= n;) {
                size_t end = start;

                while (end < n && name[end] != '.')
                        end++;
                if (!label_is_fine(name + start, end - start))
                        return -EINVAL;
                if (end == n && label_is_number(name + start, end - start))
                        return -EINVAL;
                start = end + 1;
        }

        for (size_t i = 0; i < n; i++)
                copy[i] = (char) tolower((unsigned char) name[i]);
        copy[n] = '\0';
        memcpy(ret, copy, n + 1);
        return 0;
}

static unsigned count_labels(const char *name) {
        unsigned n = 1;

        for (; *name; name++)
                n += *name == '.';
        return n;
}

bool egress_rules_overlap(const EgressRule *a, const EgressRule *b) {
        const char *x, *y;
        size_t n, m;

        if (!a->suffix && !b->suffix)
                return strcmp(a->pattern, b->pattern) == 0;

        /* two wildcards: one suffix ends in the other; a name and a wildcard: the name ends in the suffix */
        x = a->suffix ?: a->pattern;
        y = b->suffix ?: b->pattern;
        n = strlen(x);
        m = strlen(y);
        if (a->suffix && (!b->suffix || n <= m))
                return m >= n && strcmp(y + m - n, x) == 0 && (b->suffix || m > n);
        return n >= m && strcmp(x + n - m, y) == 0 && (a->suffix || n > m);
}

/* ---- one rule ---- */

static bool read_pattern(const Node *rule, EgressRule *r) {
        const char *pattern, *wrong;

        if (!node_string(rule, "name", NODE_REQUIRED, &pattern))
                return false;

        if (pattern[0] != '*') {
                wrong = check_host_name(pattern);
                r->specificity = UINT_MAX;
        } else if (pattern[1] != '.') {
                wrong = "a wildcard must be \"*.\" and a host name";
        } else {
                wrong = check_host_name(pattern + 2);
                r->suffix = pattern + 1;
                r->specificity = count_labels(pattern + 2);
                if (!wrong && (r->specificity < 2 || psl_is_public_suffix(psl_builtin(), pattern + 2)))
                        wrong = "a wildcard directly below a public suffix would admit names that anybody may register";
        }
        if (wrong) {
                node_fail_at(rule, "name", "%s", wrong);
                return false;
        }

        r->pattern = pattern;
        return true;
}

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

static void read_ports(const Node *rule, bool deny, EgressRule *r) {
        Node array;
        size_t n;

        if (!node_array(rule, "ports", deny ? 0 : NODE_REQUIRED, &array))
                return;

        n = json_array_size(array.value);
        if (n < 1 || n > PORTS_MAX) {
                node_fail(&array, "must have between 1 and %d ports", PORTS_MAX);
                return;
        }

        r->ports = calloc(n, sizeof(*r->ports));
        if (!r->ports) {
                rule->policy->out_of_memory = true;
                return;
        }
        for (size_t i = 0; i < n; i++) {
                Node e = node_element(&array, i);
                EgressPort port;

                if (!read_port(&e, deny, &port))
                        continue;
                for (size_t j = 0; j < r->n_ports; j++)
                        if (r->ports[j].port == port.port)
                                node_fail(&e, "port %u is listed twice", port.port);
                r->ports[r->n_ports++] = port;
        }
}

static bool rule_carries(const EgressRule *r, EgressProtocol protocol) {
        for (size_t i = 0; i < r->n_ports; i++)
                if (r->ports[i].protocol == protocol)
                        return true;
        return false;
}

static void read_inspection(const Node *rule, EgressRule *r) {
        static const char *const choices[] = { "pass", "inspect", NULL };
        bool conditional = r->methods || r->paths;
        const char *tls = NULL;

        (void) node_choice(rule, "tls", 0, choices, &tls);

        if (conditional && rule_carries(r, EGRESS_RAW))
                node_fail_at(rule, r->methods ? "methods" : "paths", "cannot be seen on a port that carries \"raw\"");
        if (tls && r->n_ports > 0 && !rule_carries(r, EGRESS_TLS))
                node_fail_at(rule, "tls", "none of the rule's ports carries TLS");
        if (tls && tls == choices[0] && conditional)
                node_fail_at(rule, "tls", "methods and paths can only be seen inside inspected TLS");

        r->inspect = conditional || tls == choices[1];
}

static void read_rule(const Node *rule, bool deny, EgressRule *r) {
        static const char *const known_allow[] = {
                "description", "name", "ports", "tls", "methods", "paths", "max_names", NULL,
        };
        static const char *const known_deny[] = { "description", "name", "ports", "methods", "paths", NULL };
        uint64_t max_names = NAMES_DEFAULT;
        const char *text;

        if (!node_check_object(rule, deny ? known_deny : known_allow))
                return;

        (void) node_string(rule, "description", 0, &text);
        if (!read_pattern(rule, r))
                return;
        read_ports(rule, deny, r);
        (void) node_strings(rule, "methods", 0, 1, 32, check_method, &r->methods);
        (void) node_strings(rule, "paths", 0, 1, 256, check_path_prefix, &r->paths);
        if (deny)
                return;

        read_inspection(rule, r);
        if (node_uint(rule, "max_names", 0, 1, NAMES_MAX, &max_names) && !r->suffix)
                node_fail_at(rule, "max_names", "only a wildcard has more than one name");
        r->max_names = (unsigned) max_names;
}

static EgressRule *read_rules(const Node *top, const char *key, bool deny, size_t *ret_n) {
        EgressRule *rules;
        Node array;
        size_t n;

        if (!node_array(top, key, 0, &array))
                return NULL;

        n = json_array_size(array.value);
        if (n > RULES_MAX) {
                node_fail(&array, "must not have more than %d rules", RULES_MAX);
                return NULL;
        }
        if (n == 0)
                return NULL;

        rules = calloc(n, sizeof(*rules));
        if (!rules) {
                top->policy->out_of_memory = true;
                return NULL;
        }
        for (size_t i = 0; i < n; i++) {
                Node e = node_element(&array, i);

                read_rule(&e, deny, &rules[i]);
                rules[i].label = text_format("%s#/%s/%zu", top->object->label, key, i);
                if (!rules[i].label)
                        top->policy->out_of_memory = true;
        }

        *ret_n = n;
        return rules;
}

/* ---- the whole file ---- */

/* Same pattern, same port: same protocol and same inspection, or the first one that matches would win by chance. */
static void check_agreement(const Node *top, const EgressPolicy *e) {
        Node array;

        if (!node_array(top, "allow", 0, &array))
                return;

        for (size_t i = 1; i < e->n_allow; i++)
                for (size_t j = 0; j < i; j++) {
                        const EgressRule *a = &e->allow[i], *b = &e->allow[j];
                        Node n = node_element(&array, i);

                        if (!a->pattern || !b->pattern || strcmp(a->pattern, b->pattern) != 0)
                                continue;
                        if (a->suffix && a->max_names != b->max_names)
                                node_fail(&n, "allow/%zu admits another number of names for the same wildcard", j);

                        for (size_t k = 0; k < a->n_ports; k++)
                                for (size_t l = 0; l < b->n_ports; l++) {
                                        if (a->ports[k].port != b->ports[l].port)
                                                continue;
                                        if (a->ports[k].protocol != b->ports[l].protocol)
                                                node_fail(&n, "allow/%zu says that port %u carries \"%s\"", j, a->ports[k].port,
                                                          protocols[b->ports[l].protocol]);
                                        else if (a->ports[k].protocol == EGRESS_TLS && a->inspect != b->inspect)
                                                node_fail(&n, "allow/%zu %s TLS for the same name and port", j,
                                                          b->inspect ? "inspects" : "passes");
                                }
                }
}

static int add_inspected(EgressPolicy *e, const char *pattern) {
        for (size_t i = 0; i < e->n_inspected; i++)
                if (strcmp(e->inspected[i], pattern) == 0)
                        return 0;

        if (!e->inspected) {
                e->inspected = calloc(e->n_allow + e->n_deny, sizeof(*e->inspected));
                if (!e->inspected)
                        return -ENOMEM;
        }
        e->inspected[e->n_inspected++] = pattern;
        return 0;
}

/* What a permission inspects, and what a denial by method or path makes it inspect. */
static int list_inspected(EgressPolicy *e) {
        int r = 0;

        for (size_t i = 0; i < e->n_allow && r == 0; i++)
                if (e->allow[i].inspect && rule_carries(&e->allow[i], EGRESS_TLS))
                        r = add_inspected(e, e->allow[i].pattern);

        for (size_t i = 0; i < e->n_deny && r == 0; i++) {
                const EgressRule *d = &e->deny[i];

                if (!d->methods && !d->paths)
                        continue;
                for (size_t j = 0; j < e->n_allow; j++)
                        if (rule_carries(&e->allow[j], EGRESS_TLS) && e->allow[j].specificity <= d->specificity &&
                            egress_rules_overlap(d, &e->allow[j])) {
                                r = add_inspected(e, d->pattern);
                                break;
                        }
        }

        return r;
}

static json_t *rule_to_json(const EgressRule *r, bool deny) {
        _cleanup_json_ json_t *j = NULL, *ports = NULL;

        ports = json_array();
        if (!ports)
                return NULL;
        for (size_t i = 0; i < r->n_ports; i++)
                if (json_array_append_new(ports, deny ? json_integer(r->ports[i].port) :
                                                        json_pack("[is]", r->ports[i].port, protocols[r->ports[i].protocol])) < 0)
                        return NULL;

        j = json_pack("{s:s, s:O, s:O?, s:O?}", "name", r->pattern, "ports", ports, "methods", r->methods, "paths", r->paths);
        if (!j)
                return NULL;
        if (!deny && (json_object_set_new(j, "tls", json_string(r->inspect ? "inspect" : "pass")) < 0 ||
                      json_object_set_new(j, "max_names", json_integer(r->suffix ? r->max_names : 1)) < 0))
                return NULL;

        return TAKE_PTR(j);
}

static json_t *rules_to_json(const EgressRule *rules, size_t n, bool deny) {
        _cleanup_json_ json_t *array = NULL;

        array = json_array();
        if (!array)
                return NULL;
        for (size_t i = 0; i < n; i++)
                if (json_array_append_new(array, rule_to_json(&rules[i], deny)) < 0)
                        return NULL;

        return TAKE_PTR(array);
}

json_t *egress_policy_to_json(const EgressPolicy *p) {
        return json_pack("{s:o, s:o}", "allow", rules_to_json(p->allow, p->n_allow, false),
                         "deny", rules_to_json(p->deny, p->n_deny, true));
}

static int seal(EgressPolicy *e) {
        _cleanup_json_ json_t *compiled = NULL;
        int r;

        r = list_inspected(e);
        if (r < 0)
                return r;

        compiled = egress_policy_to_json(e);
        if (!compiled)
                return -ENOMEM;

        return json_digest(compiled, e->digest);
}

void policy_check_egress(Policy *p, PolicyObject *o) {
        static const char *const known[] = { "description", "allow", "deny", NULL };
        _cleanup_(egress_policy_freep) EgressPolicy *e = NULL;
        Node top = node_top(p, o);
        const char *text;

        if (!node_check_object(&top, known))
                return;

        e = calloc(1, sizeof(*e));
        if (!e) {
                p->out_of_memory = true;
                return;
        }

        (void) node_string(&top, "description", 0, &text);
        e->allow = read_rules(&top, "allow", false, &e->n_allow);
        e->deny = read_rules(&top, "deny", true, &e->n_deny);
        if (!o->reason)
                check_agreement(&top, e);
        if (o->reason || p->out_of_memory)
                return;

        if (seal(e) < 0) {
                p->out_of_memory = true;
                return;
        }

        o->egress = TAKE_PTR(e);
}

static void free_rules(EgressRule *rules, size_t n) {
        for (size_t i = 0; i < n; i++) {
                free(rules[i].ports);
                free(rules[i].label);
        }
        free(rules);
}

EgressPolicy *egress_policy_free(EgressPolicy *p) {
        if (!p)
                return NULL;

        free_rules(p->allow, p->n_allow);
        free_rules(p->deny, p->n_deny);
        free(p->inspected);
        free(p);
        return NULL;
}

const char *egress_policy_digest(const EgressPolicy *p) {
        return p->digest;
}

size_t egress_policy_inspected(const EgressPolicy *p, const char *const **ret_patterns) {
        *ret_patterns = p->inspected;
        return p->n_inspected;
}
