/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * policy log --suggest: the least that would have allowed what was blocked, as a policy file.
 *
 * Only what no rule was there for is suggested: a name, its ports and, where a rule asks for method or path, that method and path of it; of
 * git's smart protocol, the repository that was asked for, and that it may be fetched. A prefix is the narrowest that the language has for a path,
 * so that what is below it is allowed with it. What was blocked for what it is (a literal address, an address that no name may have, a connection
 * that does not agree with itself, a name that a rule denies) is counted and told, and never suggested: those blocks are what the fence is for.
 *
 * The records are a guest's choice as to names, methods and paths. Each wish is compiled by itself before it is taken, so that none can
 * make the file one that does not load.
 *
 *   records → wishes   one for each name, port and request, those left out that another one has in it
 *           → rules    one for each wish, those made one that differ in their methods, their paths or their ports alone
 */

#include <errno.h>
#include <string.h>

#include "ctl/ctl-egress.h"
#include "ctl/ctl-policy-log.h"
#include "policy/policy-git.h"
#include "util/json.h"
#include "util/text.h"

enum {
        WISHES_MAX = 1000,
        METHODS_MAX = 32,        /* different ones; a file may have twice as many */
        PATHS_MAX = 256,         /* of one rule, as are the next */
        PORTS_MAX = 64,
        REPOSITORIES_MAX = 32,
        DETAIL_WHOLE_MAX = 254,  /* egressd cuts what is longer */
        LEFT_OUT_MAX = 64,
};

/* Something that was blocked for want of a rule. */
typedef struct Wish {
        char name[254];
        uint16_t port;           /* 0: only looked up */
        const char *protocol;    /* static; NULL: nobody saw what it carried */
        char method[33];         /* "": the whole connection, or git */
        char *path, *repository; /* owned; one at most */
        uint64_t smart;          /* how often it was git's smart protocol in the clear; 0: it was something else */
        bool dropped;            /* another one has it in it, or keeps it from being any good */
} Wish;

typedef struct Suggestion {
        Wish *wishes; /* owned */
        size_t n, n_dropped;
        struct {
                const char *reason; /* borrowed */
                uint64_t count;
        } left_out[LEFT_OUT_MAX];
        size_t n_left_out;
} Suggestion;

static void wish_done(Wish *w) {
        free(w->path);
        free(w->repository);
}

static void suggestion_done(Suggestion *s) {
        for (size_t i = 0; i < s->n; i++)
                wish_done(&s->wishes[i]);
        free(s->wishes);
}

const char *ctl_guess_protocol(uint16_t port) {
        static const struct {
                uint16_t port;
                const char *protocol;
        } known[] = {
                { 80, "http" },  { 443, "tls" },  { 465, "tls" },   { 563, "tls" },   { 636, "tls" },   { 853, "tls" },   { 989, "tls" },   { 990, "tls" },
                { 993, "tls" },  { 995, "tls" },  { 3000, "http" }, { 5000, "http" }, { 5223, "tls" },  { 6443, "tls" },  { 8000, "http" }, { 8080, "http" },
                { 8081, "http" }, { 8443, "tls" }, { 8883, "tls" },  { 8888, "http" }, { 9443, "tls" },
        };

        for (size_t i = 0; i < ELEMENTSOF(known); i++)
                if (known[i].port == port)
                        return known[i].protocol;
        return "raw";
}

static void leave_out(Suggestion *s, const char *reason, uint64_t count) {
        for (size_t i = 0; i < s->n_left_out; i++)
                if (strcmp(s->left_out[i].reason, reason) == 0) {
                        s->left_out[i].count += count;
                        return;
                }
        if (s->n_left_out < LEFT_OUT_MAX) {
                s->left_out[s->n_left_out].reason = reason;
                s->left_out[s->n_left_out++].count = count;
        }
}

/* ---- a wish as a rule ---- */

static bool is_request(const Wish *w) {
        return w->path || w->repository;
}

static const char *protocol_of(const Wish *w) {
        const char *protocol = w->protocol ?: ctl_guess_protocol(w->port ?: 443);

        return is_request(w) && strcmp(protocol, "raw") == 0 ? "http" : protocol; /* somebody has read it */
}

static json_t *port_to_json(const Wish *w) {
        uint16_t port = w->port ?: 443;
        const char *protocol = protocol_of(w);

        if (port == (strcmp(protocol, "tls") == 0 ? 443 : strcmp(protocol, "http") == 0 ? 80 : 0))
                return json_integer(port);
        return json_pack("{s:i, s:s}", "port", port, "protocol", protocol);
}

/* A prefix covers what is below it, and "/" has everything below it: the pattern is for that level alone. */
static const char *pattern_of(const Wish *w) {
        return strcmp(w->path, "/") == 0 ? "/*" : w->path;
}

static json_t *wish_to_rule(const Wish *w) {
        json_t *rule = json_pack("{s:s, s:[o]}", "name", w->name, "ports", port_to_json(w));
        int r = 0;

        if (rule && w->path)
                r = json_object_update_new(rule, json_pack("{s:[s], s:[s]}", "methods", w->method, "paths", pattern_of(w)));
        else if (rule && w->repository)
                r = json_object_set_new(rule, "git", json_pack("{s:[s], s:b}", "repositories", w->repository, "fetch", 1));
        return r < 0 ? json_unref(rule) : rule;
}

/* Would it load? -ENOTSUP is that a run under way could not have it any more. */
static bool is_loadable(const Wish *w) {
        _cleanup_(egress_policy_freep) EgressPolicy *p = NULL;
        _cleanup_json_ json_t *rule = wish_to_rule(w);
        _cleanup_free_ char *text = rule ? json_dumps(rule, JSON_COMPACT) : NULL, *reason = NULL;
        int r = text ? egress_policy_amend(NULL, true, text, "suggest", &p, &reason) : -ENOMEM;

        return r >= 0 || r == -ENOTSUP;
}

/* ---- records ---- */

static bool same_text(const char *a, const char *b) {
        return strcmp(a ?: "", b ?: "") == 0;
}

static bool is_same(const Wish *a, const Wish *b) {
        return strcmp(a->name, b->name) == 0 && a->port == b->port && strcmp(a->method, b->method) == 0 && same_text(a->path, b->path) &&
               same_text(a->repository, b->repository);
}

static bool has_room_for_method(const Suggestion *s, const char *method) {
        const char *known[METHODS_MAX];
        size_t n = 0;

        for (size_t i = 0; i < s->n; i++) {
                size_t k = 0;

                if (strcmp(s->wishes[i].method, method) == 0)
                        return true;
                while (k < n && strcmp(known[k], s->wishes[i].method) != 0)
                        k++;
                if (k == n)
                        known[n++] = s->wishes[i].method;
                if (n == METHODS_MAX)
                        return false;
        }
        return true;
}

/* Takes what *w owns over. */
static int add_wish(Suggestion *s, Wish *w, uint64_t count) {
        const char *wrong = is_loadable(w) ? NULL : "what no rule can say";
        Wish *grown;

        for (size_t i = 0; i < s->n; i++) {
                const Wish *other = &s->wishes[i];

                if (is_same(other, w)) {
                        s->wishes[i].smart += w->smart;
                        wish_done(w);
                        return 0;
                }
                if (strcmp(other->name, w->name) == 0 && other->port == w->port && is_request(other) && is_request(w) &&
                    strcmp(protocol_of(other), protocol_of(w)) != 0)
                        wrong = "a second protocol at one port";
        }
        if (wrong) {
                leave_out(s, wrong, count);
                wish_done(w);
                return 0;
        }
        if (s->n >= WISHES_MAX || !has_room_for_method(s, w->method)) {
                s->n_dropped++;
                wish_done(w);
                return 0;
        }

        grown = reallocarray(s->wishes, s->n + 1, sizeof(*grown));
        if (!grown) {
                wish_done(w);
                return -ENOMEM;
        }
        s->wishes = grown;
        s->wishes[s->n++] = *w;
        return 0;
}

static const char git_in_the_clear[] = "git in the clear, of a host with rules about git";

/* What cannot be suggested of git, though its rules are what it was refused by. */
static const char *git_left_out(GitService service) {
        switch (service) {
        case GIT_ASK_PUSH:
        case GIT_PUSH:
                return "a push, whose rule must name the refs";
        case GIT_LFS_BATCH:
                return "Git LFS, which goes with a rule about its repository";
        case GIT_DUMB:
                return "git's dumb protocol";
        default:
                return NULL;
        }
}

/* "GET /v1/x", as egressd notes it of a request. ruled: by rules about git, which the host has. */
static int take_request(Suggestion *s, const Wish *whole, const char *detail, bool ruled, uint64_t count) {
        const char *space = detail ? strchr(detail, ' ') : NULL, *repository, *left_out;
        size_t n = space ? (size_t) (space - detail) : 0, size;
        Wish w = *whole;
        GitService service;

        /* escaped text, or text that was cut, is no path */
        if (n == 0 || n >= sizeof(w.method) - 1 || strlen(detail) > DETAIL_WHOLE_MAX || strpbrk(space, "\\*")) {
                leave_out(s, "a path that is not known or is ambiguous", count);
                return 0;
        }
        memcpy(w.method, detail, n);
        w.method[n] = '\0';

        /* in the clear git has no rules of its own; there a path is as good, unless the host has rules about git on another port */
        w.path = strndup(space + 1, strcspn(space + 1, "?"));
        service = git_service_of(w.method, space + 1, &repository, &size);
        if (strcmp(protocol_of(&w), "tls") != 0) {
                w.smart = service != GIT_NONE && service != GIT_DUMB ? count : 0;
                service = GIT_NONE;
        }
        left_out = ruled && w.smart > 0 ? git_in_the_clear : git_left_out(service);
        if (left_out) {
                leave_out(s, left_out, count);
                wish_done(&w);
                return 0;
        }
        if (service != GIT_NONE) {
                free(TAKE_PTR(w.path));
                w.method[0] = '\0';
                w.repository = strndup(repository, size);
        }
        return is_request(&w) ? add_wish(s, &w, count) : -ENOMEM;
}

/* One record stands for many requests, and names those that it has room for. */
static int take_requests(Suggestion *s, const Wish *whole, const json_t *data, uint64_t count) {
        bool ruled = strcmp(ctl_string(data, "reason") ?: "", "git-repository") == 0;
        const json_t *details = json_object_get(data, "details");
        uint64_t unlisted = (uint64_t) json_integer_value(json_object_get(data, "unlisted"));
        int r = 0;

        if (unlisted > 0)
                leave_out(s, "which request it was is not in the log", unlisted);
        if (!details)
                return unlisted < count ? take_request(s, whole, ctl_string(data, "detail"), ruled, count - unlisted) : 0;
        for (size_t i = 0; r >= 0 && i < json_array_size(details); i++) {
                const json_t *one = json_array_get(details, i);

                r = take_request(s, whole, json_string_value(json_array_get(one, 0)), ruled, (uint64_t) json_integer_value(json_array_get(one, 1)));
        }
        return r;
}

/* Who looked at the request knows what it came in: inject ends TLS, the proxy reads what is in the clear. */
static const char *protocol_seen(const CtlLogRecord *r) {
        return !r->actor ? NULL : ctl_record_is_of_inject(r->actor) ? "tls" : "http";
}

static int take_record(Suggestion *s, const CtlLogRecord *r) {
        const char *reason = ctl_string(r->data, "reason") ?: "unknown", *name = ctl_string(r->data, "name");
        json_int_t count = json_integer_value(json_object_get(r->data, "count")), port = json_integer_value(json_object_get(r->data, "port"));
        bool lookup = strcmp(r->event, "dns.refused") == 0, whole = strcmp(reason, "no-rule") == 0 || strcmp(reason, "port") == 0,
             request = strcmp(reason, "method") == 0 || strcmp(reason, "path") == 0 || strcmp(reason, "git-repository") == 0;
        Wish w = {};

        if (count < 1)
                count = 1;
        if (!lookup && strcmp(r->event, "egress.deny") != 0) {
                leave_out(s, strcmp(r->event, "credential.misuse") == 0 ? "credential-misuse" : reason, (uint64_t) count);
                return 0;
        }
        if (port < 1 || port > 65535 || (!whole && !request)) {
                leave_out(s, reason, (uint64_t) count);
                return 0;
        }
        if (!name || egress_normalise_name(name, w.name) < 0) {
                leave_out(s, strcmp(reason, "no-rule") == 0 ? "no host name" : reason, (uint64_t) count);
                return 0;
        }

        if (egress_never_find(w.name)) {
                leave_out(s, "a name that no run may reach", (uint64_t) count);
                return 0;
        }

        w.port = lookup ? 0 : (uint16_t) port;
        if (whole)
                return add_wish(s, &w, (uint64_t) count);
        w.protocol = protocol_seen(r);
        return take_requests(s, &w, r->data, (uint64_t) count);
}

/* ---- what another wish has in it ---- */

static bool same_place(const Wish *a, const Wish *b) {
        return strcmp(a->name, b->name) == 0 && a->port == b->port && strcmp(a->method, b->method) == 0 && a->path && b->path;
}

static bool covers(const Wish *a, const Wish *b) {
        _cleanup_json_ json_t *alone = json_pack("[s]", pattern_of(a));

        return policy_path_matches(alone, b->path);
}

/* Is there one that says more: a port for a name that was only looked up, a request for a connection? */
static bool is_vague(const Suggestion *s, const Wish *w) {
        for (size_t i = 0; !is_request(w) && i < s->n; i++) {
                const Wish *other = &s->wishes[i];

                if (strcmp(other->name, w->name) == 0 && (w->port == 0 ? other->port != 0 : w->port == other->port && is_request(other)))
                        return true;
        }
        return false;
}

/* Is all that this one's path covers covered by others that stay? (Not only itself: "/x" is in the pattern for "/", what is below it is not.) */
static bool is_idle(const Suggestion *s, const Wish *w) {
        for (size_t i = 0; w->path && i < s->n; i++) {
                bool elsewhere = false;

                if (!same_place(w, &s->wishes[i]) || !covers(w, &s->wishes[i]))
                        continue;
                for (size_t k = 0; !elsewhere && k < s->n; k++) {
                        const Wish *other = &s->wishes[k];

                        elsewhere = other != w && !other->dropped && same_place(other, w) && covers(other, &s->wishes[i]);
                }
                if (!elsewhere)
                        return false;
        }
        return w->path;
}

/* Will the rules that are suggested have one about git for the same host? */
static bool is_for_git_alone(const Suggestion *s, const Wish *w) {
        for (size_t i = 0; w->smart > 0 && i < s->n; i++)
                if (s->wishes[i].repository && strcmp(s->wishes[i].name, w->name) == 0)
                        return true;
        return false;
}

static void drop_superseded(Suggestion *s) {
        for (size_t i = 0; i < s->n; i++) {
                bool git = is_for_git_alone(s, &s->wishes[i]);

                s->wishes[i].dropped = git || is_vague(s, &s->wishes[i]);
                if (git)
                        leave_out(s, git_in_the_clear, s->wishes[i].smart);
        }
        for (size_t i = 0; i < s->n; i++)
                if (!s->wishes[i].dropped)
                        s->wishes[i].dropped = is_idle(s, &s->wishes[i]);
}

/* ---- rules ---- */

static bool same_value(const json_t *a, const json_t *b, const char *key) {
        const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);

        return x == y || json_equal(x, y);
}

static json_t *list_of(const json_t *rule, const char *key) {
        return strcmp(key, "repositories") == 0 ? json_object_get(json_object_get(rule, "git"), key) : json_object_get(rule, key);
}

/* Adds what `from` has under that key to `to`, if they differ in nothing else and there is room. */
static bool join_rule(json_t *to, const json_t *from, const char *key, size_t max) {
        static const char *const parts[] = { "name", "ports", "methods", "paths", "git" };
        const char *part = strcmp(key, "repositories") == 0 ? "git" : key;
        json_t *list = list_of(to, key), *more = list_of(from, key);

        for (size_t i = 0; i < ELEMENTSOF(parts); i++)
                if (strcmp(parts[i], part) != 0 && !same_value(to, from, parts[i]))
                        return false;
        if (!list || !more || json_array_size(list) + json_array_size(more) > max)
                return false;
        return json_array_extend(list, more) == 0;
}

/* Rules that differ in this one list alone become one. */
static void join_rules(json_t *rules, const char *key, size_t max) {
        for (size_t i = 0; i < json_array_size(rules); i++)
                for (size_t k = i + 1; k < json_array_size(rules);)
                        if (join_rule(json_array_get(rules, i), json_array_get(rules, k), key, max))
                                (void) json_array_remove(rules, k);
                        else
                                k++;
}

/* In the order of text, so that two rules with the same wishes have the same lists. */
static int compare_wishes(const void *a, const void *b) {
        const Wish *x = a, *y = b;
        int c = strcmp(x->name, y->name) ?: strcmp(x->path ?: "", y->path ?: "") ?: strcmp(x->repository ?: "", y->repository ?: "");

        return c ?: (x->port > y->port) - (x->port < y->port) ?: strcmp(x->method, y->method);
}

static json_t *make_rules(Suggestion *s) {
        json_t *rules = json_array();

        if (s->n > 0)
                qsort(s->wishes, s->n, sizeof(*s->wishes), compare_wishes);
        drop_superseded(s);
        for (size_t i = 0; rules && i < s->n; i++)
                if (!s->wishes[i].dropped && json_array_append_new(rules, wish_to_rule(&s->wishes[i])) < 0)
                        rules = json_unref(rules);

        join_rules(rules, "methods", METHODS_MAX);
        join_rules(rules, "paths", PATHS_MAX);
        join_rules(rules, "repositories", REPOSITORIES_MAX);
        join_rules(rules, "ports", PORTS_MAX);
        return rules;
}

/* ---- telling ---- */

static void tell(Ctl *ctl, const Suggestion *s) {
        for (size_t i = 0; i < s->n; i++) {
                const Wish *w = &s->wishes[i];

                if (w->dropped)
                        continue;
                if (w->port == 0)
                        ctl_note(ctl, "# %s was only looked up; that it is for port 443 is a guess.", w->name);
                else if (w->port != 443 && w->port != 80 && !is_request(w))
                        ctl_note(ctl, "# %s:%u: that it carries \"%s\" is a guess.", w->name, w->port, ctl_guess_protocol(w->port));
        }
        for (size_t i = 0; i < s->n_left_out; i++) {
                _cleanup_free_ char *reason = text_escape(s->left_out[i].reason, strlen(s->left_out[i].reason), false);

                ctl_note(ctl, "# Not suggested: %llu blocked for \"%s\".", (unsigned long long) s->left_out[i].count, reason ?: "?");
        }
        if (s->n_left_out > 0)
                ctl_note(ctl, "# Literal addresses, metadata, names that resolve to what no name may, fronting and what a rule denies are never suggested.");
        if (s->n_dropped > 0)
                ctl_note(ctl, "# %zu more are left out: there are more than %d, or more than %d methods.", s->n_dropped, WISHES_MAX, METHODS_MAX);
}

CtlExit ctl_policy_suggest(Ctl *ctl, const char *subject, const CtlLogRecord *records, size_t n) {
        _cleanup_(suggestion_done) Suggestion s = {};
        _cleanup_free_ char *description = NULL;
        _cleanup_json_ json_t *file = NULL;
        int r = 0;

        for (size_t i = 0; r >= 0 && i < n; i++)
                r = take_record(&s, &records[i]);
        description = text_format("What %s was refused for want of a rule.", subject);
        if (r >= 0 && description)
                file = json_pack("{s:s, s:o}", "description", description, "allow", make_rules(&s));
        if (!file)
                return ctl_report(ctl, "suggest a policy", -ENOMEM, NULL, NULL);

        tell(ctl, &s);
        if (ctl->o.json == CTL_JSON_OFF)
                ctl->o.json = CTL_JSON_PRETTY;
        return ctl_print_json(ctl, file);
}
