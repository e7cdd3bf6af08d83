/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * policy log --suggest: the least that would have allowed what was blocked, as a policy file.
 *
 * Only what no rule was there for is suggested: a name, its ports and, where a rule asks for method or path, that method and path of it.
 * What was blocked for what it is (a literal address, an address that no name may have, a connection that does not agree with itself, a name
 * that a rule denies) is counted and told, and never suggested: those blocks are what the fence is for.
 */

#include <errno.h>
#include <string.h>

#include "ctl/ctl-egress.h"
#include "ctl/ctl-policy-log.h"
#include "util/json.h"
#include "util/text.h"

enum {
        WISHES_MAX = 1000,
        LEFT_OUT_MAX = 64,
};

/* Something that was blocked for want of a rule. */
typedef struct Wish {
        char name[254];
        uint16_t port;           /* 0: only looked up */
        char method[33], *path;  /* path owned; "" and NULL: the whole connection */
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

static void suggestion_done(Suggestion *s) {
        for (size_t i = 0; i < s->n; i++)
                free(s->wishes[i].path);
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

static bool same_path(const Wish *a, const Wish *b) {
        return strcmp(a->path ?: "", b->path ?: "") == 0;
}

static int add_wish(Suggestion *s, Wish *w) {
        Wish *grown;

        for (size_t i = 0; i < s->n; i++)
                if (strcmp(s->wishes[i].name, w->name) == 0 && s->wishes[i].port == w->port && strcmp(s->wishes[i].method, w->method) == 0 &&
                    same_path(&s->wishes[i], w)) {
                        free(w->path);
                        return 0;
                }
        if (s->n >= WISHES_MAX) {
                s->n_dropped++;
                free(w->path);
                return 0;
        }

        grown = reallocarray(s->wishes, s->n + 1, sizeof(*grown));
        if (!grown)
                return -ENOMEM;
        s->wishes = grown;
        s->wishes[s->n++] = *w;
        return 0;
}

/* "GET /v1/x", as egressd notes it of a request. */
static bool parse_request(const char *detail, Wish *w) {
        _cleanup_json_ json_t *alone = NULL;
        const char *space = detail ? strchr(detail, ' ') : NULL;
        size_t n = space ? (size_t) (space - detail) : 0;

        /* escaped text, or text that was cut, is no path */
        if (n == 0 || n >= sizeof(w->method) || detail[strspn(detail, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-")] != ' ' || strpbrk(space, "\\*") || strlen(space) > 200)
                return false;
        alone = json_pack("[s]", space + 1);
        if (!policy_path_matches(alone, space + 1))
                return false;

        memcpy(w->method, detail, n);
        w->method[n] = '\0';
        w->path = strdup(space + 1);
        return w->path;
}

static int take_record(Suggestion *s, const CtlLogRecord *r) {
        const char *reason = ctl_string(r->data, "reason") ?: "unknown", *name = ctl_string(r->data, "name");
        json_int_t count = json_integer_value(json_object_get(r->data, "count")), port = json_integer_value(json_object_get(r->data, "port"));
        bool lookup = strcmp(r->event, "dns.refused") == 0;
        Wish w = {};

        if (!lookup && strcmp(r->event, "egress.deny") != 0) {
                leave_out(s, strcmp(r->event, "credential.misuse") == 0 ? "credential-misuse" : reason, count > 0 ? (uint64_t) count : 1);
                return 0;
        }
        if (!name || egress_normalise_name(name, w.name) < 0 || port < 1 || port > 65535 ||
            (strcmp(reason, "no-rule") != 0 && strcmp(reason, "port") != 0 && strcmp(reason, "method") != 0 && strcmp(reason, "path") != 0)) {
                leave_out(s, name && egress_normalise_name(name, w.name) < 0 && strcmp(reason, "no-rule") == 0 ? "no host name" : reason,
                          count > 0 ? (uint64_t) count : 1);
                return 0;
        }

        w.port = lookup ? 0 : (uint16_t) port;
        if ((strcmp(reason, "method") == 0 || strcmp(reason, "path") == 0) && !parse_request(ctl_string(r->data, "detail"), &w)) {
                leave_out(s, "a path that is not known or is ambiguous", count > 0 ? (uint64_t) count : 1);
                return 0;
        }
        return add_wish(s, &w);
}

/* A rule of its own covers what is below its path; but "/" becomes a pattern of that level alone. */
static bool covers_path(const Wish *a, const Wish *b) {
        _cleanup_json_ json_t *alone = json_pack("[s]", a->path);

        return strcmp(a->path, "/") != 0 && strcmp(a->method, b->method) == 0 && policy_path_matches(alone, b->path);
}

/* Is there, for a wish, one that says more (a port for a name that was only looked up, a request for a connection), or one whose rule has it in it? */
static bool is_superseded(const Suggestion *s, const Wish *w) {
        for (size_t i = 0; i < s->n; i++) {
                const Wish *other = &s->wishes[i];

                if (strcmp(other->name, w->name) != 0)
                        continue;
                if (w->port == 0 && other->port != 0)
                        return true;
                if (w->port == other->port && !w->path && other->path)
                        return true;
                if (w->port == other->port && other != w && w->path && other->path && covers_path(other, w) && (other < w || !covers_path(w, other)))
                        return true;
        }
        return false;
}

static json_t *port_to_json(uint16_t port) {
        if (port == 443 || port == 80)
                return json_integer(port);
        return json_pack("{s:i, s:s}", "port", port, "protocol", ctl_guess_protocol(port));
}

static json_t *wish_to_rule(const Wish *w) {
        json_t *rule = json_pack("{s:s, s:[o]}", "name", w->name, "ports", port_to_json(w->port ?: 443));

        /* a prefix covers what is below it, and "/" has everything below it: the pattern is for that level alone */
        const char *path = w->path && strcmp(w->path, "/") == 0 ? "/*" : w->path;

        if (rule && path && json_object_update_new(rule, json_pack("{s:[s], s:[s]}", "methods", w->method, "paths", path)) < 0)
                return json_unref(rule);
        return rule;
}

/* One more port of a name that has a rule already, if both are about whole connections. */
static bool join_rule(const json_t *rules, const Wish *w) {
        for (size_t i = 0; !w->path && i < json_array_size(rules); i++) {
                json_t *rule = json_array_get(rules, i), *ports = json_object_get(rule, "ports");

                if (strcmp(ctl_string(rule, "name"), w->name) == 0 && !json_object_get(rule, "paths") && json_array_size(ports) < 64)
                        return json_array_append_new(ports, port_to_json(w->port ?: 443)) == 0;
        }
        return false;
}

static json_t *make_rules(const Suggestion *s) {
        json_t *rules = json_array();

        for (size_t i = 0; rules && i < s->n; i++) {
                const Wish *w = &s->wishes[i];

                if (is_superseded(s, w) || join_rule(rules, w))
                        continue;
                if (json_array_append_new(rules, wish_to_rule(w)) < 0)
                        return json_unref(rules);
        }
        return rules;
}

static void tell(Ctl *ctl, const Suggestion *s) {
        for (size_t i = 0; i < s->n; i++) {
                const Wish *w = &s->wishes[i];

                if (is_superseded(s, w))
                        continue;
                if (w->port == 0)
                        ctl_note(ctl, "# %s was only looked up; that it is for port 443 is a guess.", w->name);
                else if (w->port != 443 && w->port != 80)
                        ctl_note(ctl, "# %s:%u: that it carries \"%s\" is a guess.", w->name, w->port, ctl_guess_protocol(w->port));
        }
        for (size_t i = 0; i < s->n_left_out; i++) {
                _cleanup_free_ char *reason = text_escape(s->left_out[i].reason, strlen(s->left_out[i].reason), false);

                ctl_note(ctl, "# Not suggested: %llu blocked for \"%s\".", (unsigned long long) s->left_out[i].count, reason ?: "?");
        }
        if (s->n_left_out > 0)
                ctl_note(ctl, "# Literal addresses, metadata, names that resolve to what no name may, fronting and what a rule denies are never suggested.");
        if (s->n_dropped > 0)
                ctl_note(ctl, "# %zu more are left out: there are more than %d.", s->n_dropped, WISHES_MAX);
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
