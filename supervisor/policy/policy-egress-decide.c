/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Asking a compiled egress policy. Pure functions.
 *
 * Which rule decides:
 *
 *  1. The permissions with the most specific pattern that covers the name are the ones that count: an exact
 *     name before any wildcard, a longer wildcard before a shorter one. They replace less specific ones
 *     altogether, so that an operator who names a host narrows what a wildcard gave it.
 *  2. A denial that matches (name, port, method, path) and whose pattern is more specific than that
 *     permission's wins; a less specific one loses.
 *  3. At equal patterns, the longer matching path prefix wins, no path being the shortest; at equal length, the
 *     denial.
 *
 * Before a request has been seen, method and path are not known: then a permission by path or method counts as
 * able to match, a denial by path or method cannot decide yet, and the verdict of a connection that any of these
 * may concern is "inspect", since only someone who sees the requests can finish the decision.
 */

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "policy/policy-internal.h"

/* ---- paths ---- */

static int hex_value(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        c = (char) tolower((unsigned char) c);
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Would a server that decodes, collapses or resolves see another path than the one written? */
static bool path_is_plain(const char *path, size_t n) {
        for (size_t i = 0; i < n; i++) {
                unsigned char c = (unsigned char) path[i];

                if (c <= ' ' || c == 0x7f || c == '\\' || c == '#')
                        return false;

                if (c == '%') {
                        int high, low, v;

                        high = i + 1 < n ? hex_value(path[i + 1]) : -1;
                        low = i + 2 < n ? hex_value(path[i + 2]) : -1;
                        if (high < 0 || low < 0)
                                return false;
                        v = high * 16 + low;
                        if (v < 0x80 && (isalnum(v) || v < ' ' || v == 0x7f || strchr("-._~/\\%", v)))
                                return false;
                        i += 2;
                }

                if (c == '/' && i + 1 < n) {
                        const char *segment = path + i + 1;
                        size_t left = n - i - 1, dots;

                        if (*segment == '/')
                                return false;
                        dots = strspn(segment, ".");
                        /* "." and "..", also with parameters behind a semicolon, which some servers drop */
                        if (dots >= 1 && dots <= 2 && (dots >= left || segment[dots] == '/' || segment[dots] == ';'))
                                return false;
                }
        }

        return true;
}

/* The length of a request path without its query; -1 if it cannot be compared with a prefix. */
static ssize_t path_length(const char *path) {
        size_t n = strcspn(path, "?");

        return path[0] == '/' && path_is_plain(path, n) ? (ssize_t) n : -1;
}

static bool prefix_covers(const char *prefix, const char *path, size_t n) {
        size_t m = strlen(prefix);

        if (m > n || memcmp(prefix, path, m) != 0)
                return false;
        return m == n || prefix[m - 1] == '/' || path[m] == '/';
}

/* The length of the longest prefix that covers the path; -1 if none does. */
static ssize_t longest_prefix(const json_t *prefixes, const char *path) {
        ssize_t longest = -1, n;

        n = path_length(path);
        if (n < 0)
                return -1;

        for (size_t i = 0; i < json_array_size(prefixes); i++) {
                const char *prefix = json_string_value(json_array_get(prefixes, i));

                if (prefix && *prefix && prefix_covers(prefix, path, (size_t) n) && (ssize_t) strlen(prefix) > longest)
                        longest = (ssize_t) strlen(prefix);
        }

        return longest;
}

bool policy_path_matches(const json_t *prefixes, const char *path) {
        return !prefixes || longest_prefix(prefixes, path) >= 0;
}

/* ---- rules ---- */

static bool rule_covers_name(const EgressRule *r, const char *name) {
        size_t n, m;

        if (!r->suffix)
                return strcmp(r->pattern, name) == 0;

        n = strlen(name);
        m = strlen(r->suffix);
        return n > m && strcmp(name + n - m, r->suffix) == 0;
}

/* NULL if the rule has ports and this is none of them. */
static const EgressPort *rule_port(const EgressRule *r, uint16_t port) {
        for (size_t i = 0; i < r->n_ports; i++)
                if (r->ports[i].port == port)
                        return &r->ports[i];
        return NULL;
}

static bool rule_has_method(const EgressRule *r, const char *method) {
        if (!r->methods)
                return true;

        for (size_t i = 0; i < json_array_size(r->methods); i++)
                if (strcmp(json_string_value(json_array_get(r->methods, i)), method) == 0)
                        return true;
        return false;
}

static bool rule_is_conditional(const EgressRule *r) {
        return r->methods || r->paths;
}

/* The specificity of the permissions that count for this name; 0 if there are none. */
static unsigned allow_level(const EgressPolicy *p, const char *name) {
        unsigned level = 0;

        for (size_t i = 0; i < p->n_allow; i++)
                if (p->allow[i].specificity > level && rule_covers_name(&p->allow[i], name))
                        level = p->allow[i].specificity;
        return level;
}

/* How a rule fits a request that its name and port cover. */
typedef struct Fit {
        bool matches;
        ssize_t path; /* length of the matching prefix, 0 without */
} Fit;

static Fit rule_fit(const EgressRule *r, bool deny, const char *method, const char *path) {
        ssize_t n;

        if (!method) {
                if (deny && rule_is_conditional(r))
                        return (Fit) {};
                /* the most that a later request could match */
                return (Fit) { .matches = true, .path = r->paths ? SSIZE_MAX : 0 };
        }

        if (!rule_has_method(r, method))
                return (Fit) {};
        if (!r->paths)
                return (Fit) { .matches = true };

        /* A path that can be read in two ways is outside every permission and inside every denial. */
        n = longest_prefix(r->paths, path);
        if (n < 0 && deny && path_length(path) < 0)
                return (Fit) { .matches = true, .path = SSIZE_MAX };
        return (Fit) { .matches = n >= 0, .path = n };
}

/* What is left when no permission matches: the nearest reason. */
typedef struct Best {
        const EgressRule *rule;
        const EgressPort *port;
        ssize_t path;
        const EgressRule *near; /* covers name and port, but not the request */
        const EgressRule *elsewhere; /* covers the name on another port */
        bool method_missed;
} Best;

static Best find_allow(const EgressPolicy *p, unsigned level, const char *name, uint16_t port,
                       const char *method, const char *path) {
        Best best = { .path = -1, .method_missed = true };

        for (size_t i = 0; i < p->n_allow; i++) {
                const EgressRule *r = &p->allow[i];
                const EgressPort *q;
                Fit fit;

                if (r->specificity != level || !rule_covers_name(r, name))
                        continue;

                q = rule_port(r, port);
                if (!q) {
                        best.elsewhere = best.elsewhere ?: r;
                        continue;
                }

                fit = rule_fit(r, false, method, path);
                if (!fit.matches) {
                        best.near = best.near ?: r;
                        if (method && rule_has_method(r, method))
                                best.method_missed = false;
                } else if (fit.path > best.path) {
                        best.rule = r;
                        best.port = q;
                        best.path = fit.path;
                }
        }

        return best;
}

/* The denial that beats a permission of that level and path, NULL if none. Sets *ret_undecided if one by method or path
 * could, once a request is known. */
static const EgressRule *find_deny(const EgressPolicy *p, unsigned level, ssize_t allow_path, const char *name, uint16_t port,
                                   const char *method, const char *path, bool *ret_undecided) {
        const EgressRule *best = NULL;
        ssize_t best_path = -1;

        for (size_t i = 0; i < p->n_deny; i++) {
                const EgressRule *r = &p->deny[i];
                Fit fit;

                if (r->specificity < level || !rule_covers_name(r, name))
                        continue;
                if (r->n_ports > 0 && !rule_port(r, port))
                        continue;
                if (!method && rule_is_conditional(r)) {
                        *ret_undecided = true;
                        continue;
                }

                fit = rule_fit(r, true, method, path);
                if (!fit.matches || (r->specificity == level && fit.path < allow_path))
                        continue;
                if (!best || r->specificity > best->specificity ||
                    (r->specificity == best->specificity && fit.path > best_path)) {
                        best = r;
                        best_path = fit.path;
                }
        }

        return best;
}

void egress_policy_decide(const EgressPolicy *p, const char *name, uint16_t port,
                          const char *method, const char *path, EgressDecision *ret) {
        bool undecided = false;
        const EgressRule *deny;
        char normal[254];
        unsigned level;
        Best best;

        *ret = (EgressDecision) { .verdict = EGRESS_DENY, .protocol = EGRESS_RAW, .rule = "default", .reason = "no-rule" };

        if (egress_normalise_name(name, normal) < 0)
                return;
        if (method && !path)
                path = "";

        level = allow_level(p, normal);
        best = find_allow(p, level, normal, port, method, path);

        deny = find_deny(p, level, best.rule ? best.path : -1, normal, port, method, path, &undecided);
        if (deny) {
                ret->rule = deny->label;
                ret->reason = "denied-by-rule";
        } else if (best.rule) {
                bool inspect = best.port->protocol == EGRESS_TLS && (best.rule->inspect || undecided);

                *ret = (EgressDecision) {
                        .verdict = inspect ? EGRESS_INSPECT : EGRESS_PASS,
                        .protocol = best.port->protocol,
                        .rule = best.rule->label,
                        .reason = "allowed",
                };
        } else if (best.near) {
                ret->rule = best.near->label;
                ret->reason = best.method_missed ? "method" : "path";
        } else if (best.elsewhere) {
                ret->rule = best.elsewhere->label;
                ret->reason = "port";
        }
}

bool egress_policy_knows(const EgressPolicy *p, const char *name, const char **ret_rule) {
        const char *rule = "default";
        bool denied = false;
        char normal[254];
        unsigned level;

        level = egress_normalise_name(name, normal) < 0 ? 0 : allow_level(p, normal);

        for (size_t i = 0; level > 0 && i < p->n_allow; i++) {
                const EgressRule *r = &p->allow[i];

                if (r->specificity != level || !rule_covers_name(r, normal))
                        continue;
                for (size_t j = 0; j < r->n_ports; j++) {
                        EgressDecision d;

                        egress_policy_decide(p, normal, r->ports[j].port, NULL, NULL, &d);
                        if (d.verdict != EGRESS_DENY) {
                                if (ret_rule)
                                        *ret_rule = d.rule;
                                return true;
                        }
                        if (!denied)
                                rule = d.rule;
                        denied = true;
                }
        }

        /* no permission at all, but perhaps a denial that says so */
        for (size_t i = 0; level == 0 && !denied && i < p->n_deny; i++)
                if (!rule_is_conditional(&p->deny[i]) && p->deny[i].n_ports == 0 &&
                    egress_normalise_name(name, normal) == 0 && rule_covers_name(&p->deny[i], normal)) {
                        rule = p->deny[i].label;
                        denied = true;
                }

        if (ret_rule)
                *ret_rule = rule;
        return false;
}

unsigned egress_policy_name_budget(const EgressPolicy *p, const char *name, const char **ret_pattern) {
        char normal[254];
        unsigned level;

        if (egress_normalise_name(name, normal) < 0)
                return 0;

        level = allow_level(p, normal);
        if (level == 0 || level == UINT_MAX)
                return 0;

        for (size_t i = 0; i < p->n_allow; i++)
                if (p->allow[i].specificity == level && rule_covers_name(&p->allow[i], normal)) {
                        if (ret_pattern)
                                *ret_pattern = p->allow[i].pattern;
                        return p->allow[i].max_names;
                }

        return 0;
}
