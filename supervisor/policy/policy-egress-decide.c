/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Asking a compiled egress policy. Pure functions; the cost does not depend on how many rules there are (policy-rules.c).
 *
 * Which rule of a set decides:
 *
 *  1. The permissions with the most specific pattern that covers the name are the ones that count: an exact
 *     name before any wildcard, a longer wildcard before a shorter one; of networks, the smaller one. They replace less specific
 *     ones altogether, so that an operator who names a host narrows what a wildcard gave it.
 *  2. A denial that matches (name, port, method, path) and whose pattern is more specific than that
 *     permission's wins; a less specific one loses.
 *  3. At equal patterns, the matching path with more literal text wins, no path having none; at equal length, the
 *     denial.
 *
 * A policy has two sets: its file's, and what operators added while the run was under way.
 *
 *  4. A live denial that stands against the live permissions by these rules beats whatever the file says.
 *  5. A live permission adds to the file's permissions and never narrows them; the file's denials stand against it as against
 *     any permission.
 *
 *  6. A rule about git that counts for a request by its path and does not allow the service that is asked for is no permission of its
 *     set for it, and no other one of that set takes its place. Of a live set, one about git takes the place of one of the file's, and no other.
 *  7. Of a host about which the file has a rule about git, whatever that rule's port and whichever pattern covers the host, requests of git's smart protocol are for rules about git
 *     alone: no other permission is one for them, however specific. A live rule about git does so to other live ones; rule 5 keeps it from taking anything of the file's away. What
 *     an origin might take for such a request is one (policy-git.c).
 *
 * Before a request has been seen, method and path are not known: then a permission by path or method counts as
 * able to match, a denial by path or method cannot decide yet, and the verdict of a connection that any of these
 * may concern is "inspect", since only someone who sees the requests can finish the decision. So it is then of each request on
 * that connection, whichever permission it is that allows it.
 */

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "policy/policy-egress.h"
#include "util/json.h"

enum { PATH_UNKNOWN = INT_MAX }; /* longer than any path that a rule can have */

typedef struct Request {
        const char *method;  /* NULL: not known yet */
        const char *target;  /* the path as it was asked for, with its query */
        const PathText *path;
        bool smart;          /* git's smart protocol, or what might be */
} Request;

/* The rule of a group that fits best, NULL if none does, and how much of its path is literal. */
typedef struct Fit {
        const EgressRule *rule;
        int path;
} Fit;

/* What one set says about one question. */
typedef struct Said {
        const EgressRules *set;
        const EgressNode *nodes[EGRESS_COVERING_MAX];
        size_t n_nodes;
        const EgressNode *level;     /* whose permissions count; NULL if there are none */
        const EgressGroup *group;    /* of these, for this port */
        Fit allow;
        const EgressRule *refused;   /* about git: the one that matches, but not for this service; then allow has none */
        const char *refusal;         /* static; why */
        const EgressRule *git;       /* of a request of the smart protocol: a rule about git that covers the host, so that only such are permissions */
        bool closed;                 /* for lack of one, though another would be */
} Said;

static uint64_t method_bit(const EgressRules *s, const char *method) {
        for (size_t i = 0; i < s->n_methods; i++)
                if (strcmp(s->methods[i], method) == 0)
                        return UINT64_C(1) << i;
        return UINT64_C(1) << (EGRESS_METHODS_MAX - 1);
}

static void improve(const EgressRules *s, Fit *best, uint32_t rule, int path) {
        if (path > best->path || (path == best->path && &s->rules[rule] < best->rule))
                *best = (Fit) { &s->rules[rule], path };
}

/* The last head that is not behind the path in the order of bytes: it, or one of its parents, is the longest that begins it. */
static uint32_t last_head_before(const EgressRules *s, const EgressGroup *g, const PathText *path) {
        uint32_t low = g->heads, high = low + g->n_heads;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;
                const EgressHead *h = &s->heads[middle];
                int c = memcmp(h->bytes, path->bytes, h->n < path->n ? h->n : path->n);

                if (c < 0 || (c == 0 && h->n <= path->n))
                        low = middle + 1;
                else
                        high = middle;
        }
        return low > g->heads ? low - 1 : EGRESS_NO_RULE;
}

/* Rules about git have paths: of those without, git_only has none. */
static Fit fit_request(const EgressRules *s, const EgressGroup *g, bool deny, bool git_only, const Request *q) {
        uint64_t bit = method_bit(s, q->method);
        Fit best = { .path = -1 };

        for (size_t i = 0; !git_only && i < g->n_open; i++)
                if (s->entries[g->open + i].methods & bit) {
                        improve(s, &best, s->entries[g->open + i].rule, 0);
                        break;
                }
        if (g->n_heads == 0)
                return best;

        /* a path that can be read in two ways is outside every permission and inside every denial; one with parameters is only the latter */
        for (size_t i = 0; (q->path->ambiguous || q->path->has_parameters) && deny && i < g->n_odd; i++)
                if (s->entries[g->odd + i].methods & bit)
                        return (Fit) { &s->rules[s->entries[g->odd + i].rule], PATH_UNKNOWN };
        if (q->path->ambiguous)
                return best;

        for (uint32_t i = last_head_before(s, g, q->path); i != EGRESS_NO_RULE; i = s->heads[i].parent)
                for (uint32_t k = s->heads[i].first; k < s->heads[i].first + s->heads[i].n_entries; k++) {
                        const EgressEntry *e = &s->entries[k];

                        if ((e->methods & bit) && (!git_only || s->rules[e->rule].git) && path_pattern_matches(e->pattern, q->path))
                                improve(s, &best, e->rule, e->pattern->n_bytes);
                }
        return best;
}

static Fit fit_group(const EgressRules *s, const EgressGroup *g, bool deny, bool git_only, const Request *q) {
        const EgressRule *r;

        if (q->method)
                return fit_request(s, g, deny, git_only, q);
        if (deny && g->unconditional == EGRESS_NO_RULE)
                return (Fit) { .path = -1 };
        if (deny)
                return (Fit) { &s->rules[g->unconditional], 0 };

        /* the most that a later request could match */
        r = &s->rules[g->connect];
        return (Fit) { r, r->n_paths > 0 ? PATH_UNKNOWN : 0 };
}

/* What a rule about git allows by path is further of its services alone; which refs a push may change, inject judges. NULL: nothing speaks against it. */
static const char *git_refusal(const EgressRule *r, const Request *q) {
        _cleanup_json_ json_t *rule = NULL;

        if (!r->git || !q->method)
                return NULL;
        rule = json_loads(r->git, 0, NULL);
        return rule ? git_rule_check_service(rule, git_service_of(q->method, q->target, NULL, NULL)) : "git-protocol";
}

/* The first rule about git of the most specific pattern that has any. */
static const EgressRule *find_git(const Said *said) {
        for (size_t i = 0; i < said->n_nodes; i++)
                if (said->nodes[i]->git != EGRESS_NO_RULE)
                        return &said->set->rules[said->nodes[i]->git];
        return NULL;
}

/* git: of the file, when live rules are asked. */
static void ask(const EgressRules *s, const char *subject, uint16_t port, const Request *q, const EgressRule *git, Said *ret) {
        ret->set = s;
        ret->n_nodes = egress_rules_covering(s, subject, ret->nodes);
        ret->level = NULL;
        ret->group = NULL;
        ret->allow = (Fit) { .path = -1 };
        ret->refused = NULL;

        for (size_t i = 0; i < ret->n_nodes && !ret->level; i++)
                if (ret->nodes[i]->n_groups[false] > 0)
                        ret->level = ret->nodes[i];
        if (ret->level)
                ret->group = egress_node_group(s, ret->level, false, port);
        ret->git = q->smart ? find_git(ret) ?: git : NULL;
        ret->closed = false;
        if (ret->group) {
                ret->allow = fit_group(s, ret->group, false, ret->git, q);
                ret->closed = ret->git && !ret->allow.rule && fit_group(s, ret->group, false, false, q).rule;
        }

        ret->refusal = ret->allow.rule ? git_refusal(ret->allow.rule, q) : NULL;
        if (ret->refusal) {
                ret->refused = ret->allow.rule;
                ret->allow = (Fit) { .path = -1 };
        }
}

/* The denial of a set that beats a permission of that specificity and path, NULL if none does. Sets *ret_undecided if one by
 * method or path could, once a request is known. */
static const EgressRule *find_deny(const Said *said, unsigned specificity, int allow_path, uint16_t port, const Request *q,
                                   bool *ret_undecided) {
        for (size_t i = 0; i < said->n_nodes && said->nodes[i]->specificity >= specificity; i++) {
                const EgressNode *node = said->nodes[i];
                const EgressGroup *groups[] = {
                        egress_node_group(said->set, node, true, 0),
                        egress_node_group(said->set, node, true, port),
                };
                Fit best = { .path = -1 };

                for (size_t k = 0; k < ELEMENTSOF(groups); k++) {
                        Fit fit;

                        if (!groups[k])
                                continue;
                        if (!q->method && groups[k]->conditional)
                                *ret_undecided = true;
                        fit = fit_group(said->set, groups[k], true, false, q);
                        if (fit.rule && (node->specificity > specificity || fit.path >= allow_path))
                                improve(said->set, &best, (uint32_t) (fit.rule - said->set->rules), fit.path);
                }
                if (best.rule)
                        return best.rule;
        }
        return NULL;
}

static void set_rule(EgressDecision *d, const EgressRule *r, const char *reason) {
        d->rule = r->label;
        d->file = r->file;
        d->line = r->line;
        d->who = r->who;
        d->reason = reason;
}

/* git: it is about a request, which the rest of what the rule says is for. */
static void set_allow(EgressDecision *d, const Said *said, bool undecided, bool git) {
        bool inspect = said->group->protocol == EGRESS_TLS && (said->group->inspect || undecided) && said->allow.rule->subject != EGRESS_NETWORK;

        set_rule(d, said->allow.rule, "allowed");
        d->verdict = inspect ? EGRESS_INSPECT : EGRESS_PASS;
        d->protocol = said->group->protocol;
        d->git = git ? said->allow.rule->git : NULL;
}

/* Why no permission of a group is for this request. Where rules are about git, so is the reason: one with methods and paths would be no answer to it. */
static const char *group_reason(const Said *said, const Request *q) {
        const EgressGroup *g = said->group;
        GitService service = q->method && (g->some_git || said->closed) ? git_service_of(q->method, q->target, NULL, NULL) : GIT_NONE;

        if (service != GIT_NONE && service != GIT_DUMB)
                return "git-repository";
        if (q->method && (g->all_git || said->closed))
                return "git-protocol";
        return q->method && !(g->methods & method_bit(said->set, q->method)) ? "method" : "path";
}

/* No permission matches, and no denial says why: the nearest reason. False if this set has none. */
static bool set_nearest(EgressDecision *d, const Said *said, const Request *q) {
        if (!said->level)
                return false;

        if (said->group)
                set_rule(d, said->closed ? said->git : &said->set->rules[said->group->first], group_reason(said, q));
        else
                set_rule(d, &said->set->rules[said->level->first_rule[false]], "port");
        return true;
}

static void decide(const EgressPolicy *p, const char *subject, uint16_t port, const Request *q, EgressDecision *ret) {
        bool undecided = false, live_undecided = false;
        const EgressRule *live_deny = NULL, *deny;
        Said files, live = {};

        ask(p->files, subject, port, q, NULL, &files);

        /* what stands against a live permission that does not match is not lessened by it */
        if (p->live) {
                ask(p->live, subject, port, q, files.git, &live);
                live_deny = find_deny(&live, live.allow.rule ? live.level->specificity : 0, live.allow.path, port, q, &live_undecided);
        }
        if (live_deny) {
                set_rule(ret, live_deny, "denied-by-rule");
                return;
        }

        deny = find_deny(&files, files.level ? files.level->specificity : 0, files.allow.path, port, q, &undecided);
        if (files.allow.rule && !deny) {
                set_allow(ret, &files, undecided || live_undecided, q->method);
                return;
        }

        /* rule 6 of the file holds against what an operator adds without a word about git */
        if (live.allow.rule && (!files.refused || live.allow.rule->git)) {
                undecided = live_undecided;
                deny = find_deny(&files, live.level->specificity, live.allow.path, port, q, &undecided);
                if (!deny) {
                        set_allow(ret, &live, undecided, q->method);
                        return;
                }
        }

        if (deny)
                set_rule(ret, deny, "denied-by-rule");
        else if (files.refused)
                set_rule(ret, files.refused, files.refusal);
        else if (live.refused)
                set_rule(ret, live.refused, live.refusal);
        else if (!set_nearest(ret, &files, q) && p->live)
                (void) set_nearest(ret, &live, q);
}

void egress_policy_decide(const EgressPolicy *p, const char *name, uint16_t port,
                          const char *method, const char *path, EgressDecision *ret) {
        Request q = { .method = method, .target = path ?: "" };
        PathText text;

        *ret = (EgressDecision) { .verdict = EGRESS_DENY, .protocol = EGRESS_RAW, .rule = "default", .file = "", .reason = "no-rule" };

        if (method) {
                path_text_parse(q.target, &text);
                q.path = &text;
                q.smart = git_is_smart(method, q.target, text.ambiguous ? NULL : text.bytes, text.n);
        }
        decide(p, name, port, &q, ret);

        /* a permission that inspects nothing, for a request that is seen since another rule has its connection inspected */
        if (method && ret->verdict == EGRESS_PASS && ret->protocol == EGRESS_TLS) {
                EgressDecision connection = { .verdict = EGRESS_DENY };

                decide(p, name, port, &(Request) { .target = "" }, &connection);
                if (connection.verdict == EGRESS_INSPECT)
                        ret->verdict = EGRESS_INSPECT;
        }
}

/* paths: by path alone. */
static bool set_weighs(const EgressRules *s, const char *subject, uint16_t port, bool paths) {
        const EgressNode *nodes[EGRESS_COVERING_MAX];
        size_t n = s ? egress_rules_covering(s, subject, nodes) : 0;

        for (size_t i = 0; i < n; i++) {
                const EgressGroup *groups[] = {
                        egress_node_group(s, nodes[i], false, port),
                        egress_node_group(s, nodes[i], true, port),
                        egress_node_group(s, nodes[i], true, 0),
                };

                if (nodes[i]->git != EGRESS_NO_RULE) /* git's requests are its own, on whichever port */
                        return true;
                for (size_t k = 0; k < ELEMENTSOF(groups); k++)
                        if (groups[k] && (paths ? groups[k]->n_heads > 0 : groups[k]->conditional))
                                return true;
        }
        return false;
}

bool egress_policy_weighs_requests(const EgressPolicy *p, const char *name, uint16_t port) {
        return set_weighs(p->files, name, port, false) || set_weighs(p->live, name, port, false);
}

bool egress_policy_weighs_paths(const EgressPolicy *p, const char *name, uint16_t port) {
        return set_weighs(p->files, name, port, true) || set_weighs(p->live, name, port, true);
}

json_t *egress_decision_to_json(const EgressDecision *d) {
        static const char *const verdicts[] = {
                [EGRESS_DENY] = "deny",
                [EGRESS_PASS] = "pass",
                [EGRESS_INSPECT] = "inspect",
        };

        return json_pack("{s:s, s:s, s:s, s:s, s:i, s:s*, s:s*, s:o*}", "verdict", verdicts[d->verdict], "reason", d->reason, "rule", d->rule,
                         "file", d->file, "line", (int) d->line,
                         "protocol", d->verdict == EGRESS_DENY ? NULL : egress_protocol_to_string(d->protocol), "who", d->who, "git", d->git ? json_loads(d->git, 0, NULL) : NULL);
}

/* ---- names ---- */

/* Some port of the permissions that count for this name, in one set, at which it may be connected to. */
static bool set_knows(const EgressPolicy *p, const EgressRules *s, const char *name, EgressDecision *ret_first) {
        const EgressNode *nodes[EGRESS_COVERING_MAX];
        size_t n = egress_rules_covering(s, name, nodes);
        bool first = true;

        for (size_t i = 0; i < n; i++) {
                if (nodes[i]->n_groups[false] == 0)
                        continue;
                for (size_t k = 0; k < nodes[i]->n_groups[false]; k++) {
                        EgressDecision d;

                        egress_policy_decide(p, name, s->groups[nodes[i]->groups[false] + k].port, NULL, NULL, &d);
                        if (first || d.verdict != EGRESS_DENY)
                                *ret_first = d;
                        if (d.verdict != EGRESS_DENY)
                                return true;
                        first = false;
                }
                break;
        }
        return false;
}

/* A denial of the whole name, for lack of any permission. */
static const EgressRule *find_blanket_deny(const EgressRules *s, const char *name) {
        const EgressNode *nodes[EGRESS_COVERING_MAX];
        size_t n = egress_rules_covering(s, name, nodes);

        for (size_t i = 0; i < n; i++) {
                const EgressGroup *g = egress_node_group(s, nodes[i], true, 0);

                if (g && g->unconditional != EGRESS_NO_RULE)
                        return &s->rules[g->unconditional];
        }
        return NULL;
}

bool egress_policy_knows(const EgressPolicy *p, const char *name, const char **ret_rule) {
        EgressDecision d = { .rule = NULL };
        const EgressRule *blanket;
        bool known;

        known = set_knows(p, p->files, name, &d) || set_knows(p, p->live, name, &d);
        if (!known && !d.rule) {
                blanket = find_blanket_deny(p->live, name) ?: find_blanket_deny(p->files, name);
                d.rule = blanket ? blanket->label : "default";
        }

        if (ret_rule)
                *ret_rule = d.rule;
        return known;
}

unsigned egress_policy_name_budget(const EgressPolicy *p, const char *name, const char **ret_pattern) {
        const EgressRules *sets[] = { p->files, p->live };
        const EgressNode *counts = NULL;

        for (size_t i = 0; i < ELEMENTSOF(sets); i++) {
                const EgressNode *nodes[EGRESS_COVERING_MAX];
                size_t n = egress_rules_covering(sets[i], name, nodes);

                for (size_t k = 0; k < n; k++)
                        if (nodes[k]->n_groups[false] > 0) {
                                if (!counts || nodes[k]->specificity > counts->specificity)
                                        counts = nodes[k];
                                break;
                        }
        }

        if (!counts || counts->subject != EGRESS_WILDCARD)
                return 0;
        if (ret_pattern)
                *ret_pattern = counts->pattern;
        return counts->max_names;
}

static bool names_port(const EgressRules *set, uint16_t port) {
        for (size_t i = 0; set && i < set->n_allow; i++)
                for (size_t k = 0; k < set->rules[i].n_ports; k++)
                        if (set->rules[i].ports[k].port == port)
                                return true;
        return false;
}

bool egress_policy_example(const EgressPolicy *p, char ret_name[static 254], uint16_t *ret_port, uint16_t *ret_unlisted) {
        const EgressRules *sets[] = { p->files, p->live };
        uint16_t unlisted = 1;

        while (unlisted < UINT16_MAX && (names_port(p->files, unlisted) || names_port(p->live, unlisted)))
                unlisted++;

        for (size_t s = 0; s < ELEMENTSOF(sets); s++)
                for (size_t i = 0; sets[s] && i < sets[s]->n_allow; i++) {
                        const EgressRule *rule = &sets[s]->rules[i];
                        EgressDecision d;

                        if (rule->subject != EGRESS_EXACT || rule->n_ports == 0 || egress_normalise_name(rule->pattern, ret_name) < 0)
                                continue;
                        egress_policy_decide(p, ret_name, rule->ports[0].port, NULL, NULL, &d);
                        if (d.verdict == EGRESS_DENY) /* a denial has the last word */
                                continue;
                        *ret_port = rule->ports[0].port;
                        *ret_unlisted = unlisted;
                        return true;
                }
        return false;
}
