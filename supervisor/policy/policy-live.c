/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A run's own policy: the rules of a file, and those that operators added since.
 *
 * A policy is two sets of rules. The file's set is shared by every policy that is made from it, so that one more live rule costs
 * what the live rules cost, however large the file. Nothing changes a policy: a change is a new one with another digest.
 * Without live rules the digest is the file's, as `anchorctl policy explain` prints it for a workflow.
 *
 * The frozen form is JSON:
 *
 *   { "frozen": 1, "files": { "allow": [ RULE ], "deny": [ RULE ] }, "live": { "allow", "deny" }, "labels": 3 }
 *
 * in which RULE is a rule of the policy file's language and, besides, "origin": { "label", "file", "line", "who" }. "labels", which is left out where no live rule says less, is the
 * highest number that a live rule of the run has had as its label: the log goes by labels, so that none is given twice, whatever was taken back meanwhile. It says nothing about what is allowed
 * and is not in the digest. The reader is that of the file. Networks are not compared with host.json again: that was done when the policy was read, and each
 * address is compared when it is connected to.
 */

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <openssl/sha.h>
#include <string.h>

#include "policy/policy-egress.h"
#include "util/json.h"

/* ---- the object ---- */

EgressPolicy *egress_policy_free(EgressPolicy *p) {
        if (!p)
                return NULL;

        egress_rules_unref(p->files);
        egress_rules_unref(p->live);
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

static int add_inspected(EgressPolicy *p, const char *pattern) {
        for (size_t i = 0; i < p->n_inspected; i++)
                if (strcmp(p->inspected[i], pattern) == 0)
                        return 0;

        if (p->n_inspected >= EGRESS_INSPECTED_MAX)
                return -E2BIG;
        p->inspected[p->n_inspected++] = pattern;
        return 0;
}

static bool is_conditional(const EgressRule *r) {
        return r->n_paths > 0 || r->methods != EGRESS_ANY_METHOD;
}

static bool has_port(const EgressRule *r, uint16_t port) {
        for (size_t i = 0; i < r->n_ports; i++)
                if (r->ports[i].port == port)
                        return true;
        return r->n_ports == 0;
}

/* Has this node a permission for TLS on a port of the denial's? */
static bool node_carries_tls(const EgressRules *s, const EgressNode *node, const EgressRule *deny) {
        for (size_t i = 0; node && i < node->n_groups[false]; i++) {
                const EgressGroup *g = &s->groups[node->groups[false] + i];

                if (g->protocol == EGRESS_TLS && has_port(deny, g->port))
                        return true;
        }
        return false;
}

/* Does a denial by method or path stand against a permission for TLS of its own set? One of the same pattern, or of a wildcard that
 * covers it: a more specific permission beats the denial. */
static bool deny_needs_eyes(const EgressRules *s, const EgressRule *deny) {
        const char *name = deny->pattern;

        if (deny->subject == EGRESS_EXACT && node_carries_tls(s, egress_rules_find(s, EGRESS_EXACT, name, strlen(name)), deny))
                return true;
        for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.'))
                if (node_carries_tls(s, egress_rules_find(s, EGRESS_WILDCARD, dot + 1, strlen(dot + 1)), deny))
                        return true;
        return false;
}

/* A live denial stands against every permission that it overlaps with. */
static bool live_deny_needs_eyes(const EgressRules *s, const EgressRule *deny) {
        for (size_t i = 0; s && i < s->n_allow; i++)
                for (size_t k = 0; k < s->rules[i].n_ports; k++)
                        if (s->rules[i].ports[k].protocol == EGRESS_TLS && has_port(deny, s->rules[i].ports[k].port) &&
                            egress_rules_overlap(&s->rules[i], deny))
                                return true;
        return false;
}

/* What a permission inspects, and what a denial by method or path makes it inspect. */
static int list_inspected(EgressPolicy *p) {
        const EgressRules *sets[] = { p->files, p->live };
        int r = 0;

        p->inspected = calloc(EGRESS_INSPECTED_MAX, sizeof(*p->inspected));
        if (!p->inspected)
                return -ENOMEM;

        for (size_t k = 0; k < ELEMENTSOF(sets); k++)
                for (size_t i = 0; r == 0 && sets[k] && i < sets[k]->n_rules; i++) {
                        const EgressRule *rule = &sets[k]->rules[i];
                        bool live = k > 0;

                        if (rule->deny ? is_conditional(rule) && (live ? live_deny_needs_eyes(p->files, rule) || live_deny_needs_eyes(p->live, rule)
                                                                       : deny_needs_eyes(p->files, rule) || live_deny_needs_eyes(p->live, rule))
                                       : rule->inspect)
                                r = add_inspected(p, rule->pattern);
                }
        return r;
}

static unsigned highest_label(const EgressRules *live) {
        unsigned highest = 0, v;

        for (size_t i = 0; live && i < live->n_rules; i++)
                if (sscanf(live->rules[i].label, "live/%u", &v) == 1 && v > highest)
                        highest = v;
        return highest;
}

/* What was given before this policy, too. */
static void keep_labels(EgressPolicy *p, unsigned given) {
        if (given > p->n_labels)
                p->n_labels = given;
}

static int digest_policy(EgressPolicy *p) {
        uint8_t digest[SHA256_DIGEST_LENGTH];
        char both[2 * HEX_SHA256_SIZE];

        if (!p->live) {
                strcpy(p->digest, p->files->digest);
                return 0;
        }

        (void) snprintf(both, sizeof(both), "%s\n%s", p->files->digest, p->live->digest);
        if (!SHA256((const uint8_t *) both, strlen(both), digest))
                return -EIO;
        text_hex(digest, sizeof(digest), p->digest);
        return 0;
}

int egress_policy_new(EgressPolicy **ret, EgressRules *files, EgressRules *live) {
        _cleanup_(egress_policy_freep) EgressPolicy *p = NULL;
        int r;

        assert(files);

        p = calloc(1, sizeof(*p));
        if (!p) {
                egress_rules_unref(files);
                egress_rules_unref(live);
                return -ENOMEM;
        }
        p->files = files;
        p->live = live;
        p->n_labels = highest_label(live);

        r = list_inspected(p) ?: digest_policy(p);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(p);
        return 0;
}

/* Is each name of this pattern one of that? */
static bool pattern_within(const char *pattern, const char *wide) {
        size_t n = strlen(pattern), m = strlen(wide);

        if (strcmp(pattern, wide) == 0)
                return true;
        return *wide == '*' && n >= m && strcmp(pattern + n - (m - 1), wide + 1) == 0;
}

bool egress_policy_inspects_more(const EgressPolicy *p, const EgressPolicy *before, const char **ret_pattern) {
        for (size_t i = 0; i < p->n_inspected; i++) {
                bool covered = false;

                for (size_t k = 0; before && k < before->n_inspected && !covered; k++)
                        covered = pattern_within(p->inspected[i], before->inspected[k]);
                if (!covered) {
                        if (ret_pattern)
                                *ret_pattern = p->inspected[i];
                        return true;
                }
        }
        return false;
}

/* ---- reading what no file has ---- */

static void take_reason(char **ret_reason, const PolicyFinding *finding) {
        if (ret_reason)
                *ret_reason = finding ? text_format("%s%s%s", finding->pointer, *finding->pointer ? ": " : "", finding->reason) : NULL;
}

/* One set of rules with origins, from an object {"allow", "deny"}. */
static int read_set(json_t *object, EgressRules **ret, char **ret_reason) {
        static const char *const known[] = { "allow", "deny", NULL };
        _cleanup_(policy_freep) Policy *scratch = NULL;
        PolicyFinding *findings = NULL;
        EgressRules *set = NULL;
        PolicyObject *o;
        size_t n = 0;
        Node top;
        int r;

        r = policy_new_scratch(&scratch, object, &o);
        if (r < 0)
                return r;

        top = node_top(scratch, o);
        if (node_check_object(&top, known))
                set = egress_rules_read(&top, EGRESS_FROM_FROZEN, NULL, NULL);
        if (scratch->out_of_memory)
                return -ENOMEM;
        if (!set) {
                findings = scratch->findings;
                n = scratch->n_findings;
                take_reason(ret_reason, n > 0 ? findings : NULL);
                return -EINVAL;
        }

        *ret = set;
        return 0;
}

/* ---- freezing ---- */

static json_t *set_to_json(const EgressRules *s) {
        _cleanup_json_ json_t *allow = json_array(), *deny = json_array();

        for (size_t i = 0; s && i < s->n_rules; i++)
                if (json_array_append_new(s->rules[i].deny ? deny : allow, egress_rule_to_json(s, &s->rules[i], true)) < 0)
                        return NULL;
        return json_pack("{s:O, s:O}", "allow", allow, "deny", deny);
}

char *egress_policy_freeze(const EgressPolicy *p, size_t *ret_size) {
        _cleanup_json_ json_t *j = NULL;
        char *text;

        j = json_pack("{s:i, s:o, s:o}", "frozen", 1, "files", set_to_json(p->files), "live", set_to_json(p->live));
        if (j && p->n_labels > highest_label(p->live) && json_object_set_new(j, "labels", json_integer(p->n_labels)) < 0)
                return NULL;
        text = j ? json_canonical(j) : NULL;
        if (text)
                *ret_size = strlen(text);
        return text;
}

static bool is_frozen(const json_t *j) {
        const json_t *labels = json_object_get(j, "labels");

        return json_is_object(j) && json_integer_value(json_object_get(j, "frozen")) == 1 && json_object_size(j) == (labels ? 4 : 3) &&
               (!labels || (json_is_integer(labels) && json_integer_value(labels) > 0 && json_integer_value(labels) <= INT_MAX));
}

int egress_policy_thaw(const char *data, size_t size, EgressPolicy **ret, char **ret_reason) {
        _cleanup_(egress_rules_unrefp) EgressRules *files = NULL, *live = NULL;
        _cleanup_(egress_policy_freep) EgressPolicy *p = NULL;
        _cleanup_json_ json_t *j = NULL;
        json_t *live_part;
        int r;

        if (ret_reason)
                *ret_reason = NULL;
        r = json_parse(data, size, &j, ret_reason);
        if (r < 0)
                return r;
        if (!is_frozen(j)) {
                if (ret_reason)
                        *ret_reason = strdup("is no frozen policy");
                return -EINVAL;
        }

        live_part = json_object_get(j, "live");
        r = read_set(json_object_get(j, "files"), &files, ret_reason);
        if (r == 0)
                r = read_set(live_part, &live, ret_reason);
        if (r < 0)
                return r;
        if (live && live->n_rules == 0)
                live = egress_rules_unref(live);

        r = egress_policy_new(&p, TAKE_PTR(files), TAKE_PTR(live));
        if (r < 0)
                return r;
        keep_labels(p, (unsigned) json_integer_value(json_object_get(j, "labels")));
        *ret = TAKE_PTR(p);
        return 0;
}

/* ---- live rules ---- */

/* HOST, HOST:PORT or HOST:PORT/PROTOCOL in the language of the file. */
static json_t *parse_short_rule(const char *text, bool allow, char **ret_reason) {
        const char *colon = strrchr(text, ':'), *slash = colon ? strchr(colon, '/') : NULL;
        _cleanup_json_ json_t *rule = NULL, *port = NULL;
        unsigned long number = 0;
        char *end = NULL;

        if (colon && colon[1] >= '0' && colon[1] <= '9')
                number = strtoul(colon + 1, &end, 10);
        if ((colon && (!end || (*end != '\0' && end != slash) || number < 1 || number > 65535)) || (!colon && allow) || (slash && !allow)) {
                *ret_reason = text_format("\"%s\" is no rule: it must be %s, or one rule in the JSON of policy files", text,
                                          allow ? "HOST:PORT or HOST:PORT/PROTOCOL, such as api.example.org:443 or db.example.org:5432/raw"
                                                : "HOST or HOST:PORT");
                return NULL;
        }

        rule = json_pack("{s:s%}", "name", text, colon ? (size_t) (colon - text) : strlen(text));
        if (colon) {
                port = slash ? json_pack("{s:i, s:s}", "port", (int) number, "protocol", slash + 1) : json_integer((json_int_t) number);
                if (!rule || json_object_set_new(rule, "ports", json_pack("[O]", port)) < 0)
                        return NULL;
        }
        return TAKE_PTR(rule);
}

static json_t *parse_rule(const char *text, bool allow, char **ret_reason) {
        json_t *rule = NULL;

        if (text[strspn(text, " \t\n")] != '{')
                return parse_short_rule(text, allow, ret_reason);

        if (json_parse(text, strlen(text), &rule, ret_reason) < 0)
                return NULL;
        if (json_object_get(rule, "origin") || json_object_get(rule, "network")) {
                *ret_reason = text_format("a live rule must not have \"%s\"%s", json_object_get(rule, "origin") ? "origin" : "network",
                                          json_object_get(rule, "origin") ? "" : ": which addresses are reached without a name is for a policy file to say");
                return json_unref(rule);
        }
        return rule;
}

static bool list_has(const json_t *list, const json_t *value) {
        for (size_t i = 0; i < json_array_size(list); i++)
                if (json_equal(json_array_get(list, i), value))
                        return true;
        return false;
}

/* Of lists the order does not matter. */
static bool same_value(const json_t *a, const json_t *b) {
        if (!json_is_array(a) || json_array_size(a) != json_array_size(b))
                return (!a && !b) || json_equal(a, b);
        for (size_t i = 0; i < json_array_size(a); i++)
                if (!list_has(b, json_array_get(a, i)))
                        return false;
        return true;
}

static bool same_subject(const EgressRules *s, const EgressRule *a, const EgressRules *t, const EgressRule *b) {
        _cleanup_json_ json_t *x = egress_rule_to_json(s, a, false), *y = egress_rule_to_json(t, b, false);
        static const char *const keys[] = { "name", "methods", "paths", "git" };

        for (size_t i = 0; i < ELEMENTSOF(keys); i++)
                if (!same_value(json_object_get(x, keys[i]), json_object_get(y, keys[i])))
                        return false;
        if (a->n_ports != b->n_ports)
                return false;
        for (size_t i = 0; i < a->n_ports; i++)
                if (!has_port(b, a->ports[i].port))
                        return false;
        return true;
}

/* The live rules so far, without what the new one takes back or repeats. */
static json_t *keep_live(const EgressRules *live, const EgressRules *new) {
        _cleanup_json_ json_t *allow = json_array(), *deny = json_array();

        for (size_t i = 0; live && i < live->n_rules; i++) {
                const EgressRule *r = &live->rules[i];

                if (same_subject(live, r, new, &new->rules[0]))
                        continue;
                if (json_array_append_new(r->deny ? deny : allow, egress_rule_to_json(live, r, true)) < 0)
                        return NULL;
        }
        return json_pack("{s:O, s:O}", "allow", allow, "deny", deny);
}

bool egress_is_live_label(const char *text) {
        return strncmp(text, "live/", 5) == 0 && text[5] != '\0' && text[5 + strspn(text + 5, "0123456789")] == '\0';
}

/* A denial goes by an "allow", a permission by a "deny". */
static int take_back(const EgressRules *old, bool allow, const char *label, EgressRules **ret, char **ret_reason) {
        _cleanup_json_ json_t *allowed = json_array(), *denied = json_array(), *kept = NULL;
        const EgressRule *gone = NULL;

        for (size_t i = 0; old && i < old->n_rules; i++)
                if (strcmp(old->rules[i].label, label) == 0)
                        gone = &old->rules[i];
                else if (json_array_append_new(old->rules[i].deny ? denied : allowed, egress_rule_to_json(old, &old->rules[i], true)) < 0)
                        return -ENOMEM;
        if (!gone || gone->deny != allow) {
                *ret_reason = !gone ? text_format("there is no live rule %s", label)
                                    : text_format("%s is a %s: it is taken back by \"%s\"", label, gone->deny ? "denial" : "permission", gone->deny ? "allow" : "deny");
                return -EINVAL;
        }

        kept = json_pack("{s:O, s:O}", "allow", allowed, "deny", denied);
        return kept ? read_set(kept, ret, ret_reason) : -ENOMEM;
}

static int make_live(const EgressPolicy *p, bool allow, const char *text, const char *who, EgressRules **ret, char **ret_reason) {
        const EgressRules *old = p ? p->live : NULL;
        _cleanup_(egress_rules_unrefp) EgressRules *alone = NULL;
        _cleanup_json_ json_t *rule = NULL, *object = NULL, *kept = NULL;
        _cleanup_free_ char *label = NULL;
        const char *key = allow ? "allow" : "deny";
        const EgressNever *never;
        int r;

        rule = parse_rule(text, allow, ret_reason);
        if (!rule)
                return *ret_reason ? -EINVAL : -ENOMEM;

        label = text_format("live/%u", (p ? p->n_labels : 0) + 1);
        if (!label || json_object_set_new(rule, "origin", json_pack("{s:s, s:s, s:i, s:s}", "label", label, "file", "", "line", 0, "who", who)) < 0)
                return -ENOMEM;
        object = json_pack("{s:[O]}", key, rule);
        r = object ? read_set(object, &alone, ret_reason) : -ENOMEM;
        if (r < 0)
                return r;

        never = allow ? egress_never_find(alone->rules[0].pattern) : NULL;
        if (never && alone->rules[0].subject == EGRESS_EXACT) {
                *ret_reason = text_format("%s %s", never->name, egress_never_reason(never));
                return -EPERM;
        }

        kept = keep_live(old, alone);
        if (!kept || json_array_append(json_object_get(kept, key), rule) < 0)
                return -ENOMEM;
        if (json_array_size(json_object_get(kept, "allow")) + json_array_size(json_object_get(kept, "deny")) > EGRESS_LIVE_MAX) {
                *ret_reason = text_format("a run has at most %d live rules", EGRESS_LIVE_MAX);
                return -E2BIG;
        }
        return read_set(kept, ret, ret_reason);
}

static int empty_rules(EgressRules **ret) {
        int r;

        r = egress_rules_new(ret, 0, 0);
        if (r < 0)
                return r;

        r = egress_rules_build(*ret);
        if (r < 0)
                *ret = egress_rules_unref(*ret);
        return r;
}

/* The policy of these two sets, if the run's CA, made for what `before` inspects, will do. */
static int join(const EgressPolicy *before, EgressRules *files, EgressRules *live, EgressPolicy **ret, char **ret_reason) {
        _cleanup_(egress_policy_freep) EgressPolicy *p = NULL;
        const EgressNever *never;
        const char *pattern;
        int r;

        r = egress_policy_new(&p, files, live);
        if (r == -E2BIG)
                *ret_reason = text_format("more than %d names would be inspected", EGRESS_INSPECTED_MAX);
        if (r < 0)
                return r;
        keep_labels(p, before ? before->n_labels : 0);
        if (egress_policy_inspects_more(p, before, &pattern)) {
                *ret_reason = text_format("%s would have to be inspected, and the guest trusts no certificate for it: from the next run on", pattern);
                return -ENOTSUP;
        }

        never = egress_policy_allows_never(p);
        if (never) {
                *ret_reason = text_format("%s would be allowed, which %s", never->name, egress_never_reason(never));
                return -EPERM;
        }

        *ret = TAKE_PTR(p);
        return 0;
}

int egress_policy_amend(const EgressPolicy *p, bool allow, const char *rule, const char *who, EgressPolicy **ret, char **ret_reason) {
        _cleanup_(egress_rules_unrefp) EgressRules *files = NULL, *live = NULL;
        int r;

        *ret_reason = NULL;
        r = egress_is_live_label(rule) ? take_back(p ? p->live : NULL, allow, rule, &live, ret_reason)
                                       : make_live(p, allow, rule, who, &live, ret_reason);
        if (r < 0)
                return r;
        if (live && live->n_rules == 0)
                live = egress_rules_unref(live);
        if (p)
                files = egress_rules_ref(p->files);
        else
                r = empty_rules(&files);
        if (r < 0)
                return r;

        return join(p, TAKE_PTR(files), TAKE_PTR(live), ret, ret_reason);
}

int egress_policy_rebase(const EgressPolicy *fresh, const EgressPolicy *old, EgressPolicy **ret, char **ret_reason) {
        _cleanup_(egress_rules_unrefp) EgressRules *files = NULL;
        int r = 0;

        *ret_reason = NULL;
        if (fresh)
                files = egress_rules_ref(fresh->files);
        else
                r = empty_rules(&files);
        if (r < 0)
                return r;

        return join(old, TAKE_PTR(files), old ? egress_rules_ref(old->live) : NULL, ret, ret_reason);
}
