/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * policy test FILE CASES: a table of questions to one egress policy, without a run. Each line of CASES is blank, a comment ("#"), or
 *
 *   VERDICT TARGET [METHOD]
 *   { "expect": VERDICT, "target": TARGET, "method": METHOD, "path": PATH, "rule": RULE, "reason": REASON, "ref": REF, "change": CHANGE }
 *
 * VERDICT is "pass", "inspect", "deny", or "allow" for either of the first two; TARGET a URL or HOST:PORT. A URL without a METHOD asks for
 * GET; HOST:PORT without one asks for the connection. REF asks for a push by git that makes this CHANGE ("create", which is meant if it is left out, "fast-forward", "force",
 * "delete") to it; TARGET is what it is posted to then. RULE and REASON are compared if they are there, RULE without the file ("allow/0").
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "ctl/ctl-egress.h"
#include "policy/policy-git.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

enum { CASES_MAX_SIZE = 64 * 1024 * 1024 };

typedef struct Case {
        const char *expect, *target, *method, *path, *rule, *reason, *ref; /* borrowed */
        GitChange change;                                            /* to ref, if there is one */
        json_t *document;                                            /* ref; what they point to */
} Case;

typedef struct Testing {
        Ctl *ctl;
        const EgressPolicy *policy;
        const char *file;      /* the table's */
        json_t *results;       /* ref; NULL: not asked for */
        size_t n_cases, n_wrong;
} Testing;

static void case_done(Case *c) {
        json_unref(c->document);
}

static const char *verdict_name(EgressVerdict v) {
        static const char *const names[] = {
                [EGRESS_DENY] = "deny",
                [EGRESS_PASS] = "pass",
                [EGRESS_INSPECT] = "inspect",
        };

        return names[v];
}

static bool is_verdict(const char *s) {
        return strcmp(s, "pass") == 0 || strcmp(s, "inspect") == 0 || strcmp(s, "deny") == 0 || strcmp(s, "allow") == 0;
}

static const char *parse_words(char *line, Case *ret) {
        const char *words[3] = {}, *word;
        size_t n = 0;
        char *rest = line;

        while ((word = strsep(&rest, " \t"))) {
                if (*word == '\0')
                        continue;
                if (n == ELEMENTSOF(words))
                        return "has more than VERDICT TARGET METHOD";
                words[n++] = word;
        }
        if (n < 2)
                return "is not VERDICT TARGET [METHOD]";

        *ret = (Case) { .expect = words[0], .target = words[1], .method = words[2] };
        return NULL;
}

static const char *parse_object(const char *line, Case *ret) {
        static const char *const known[] = { "expect", "target", "method", "path", "rule", "reason", "ref", "change", NULL };
        const char *change = NULL;
        JsonReader reader = {};
        Case c = {};
        bool failed;

        if (json_parse(line, strlen(line), &c.document, NULL) < 0)
                return "is not one JSON object";
        if (!json_is_object(c.document)) {
                json_unref(c.document);
                return "is not one JSON object";
        }

        json_check_keys(&reader, c.document, "", known);
        (void) json_read_string(&reader, c.document, "", "expect", JSON_F_REQUIRED, &c.expect);
        (void) json_read_string(&reader, c.document, "", "target", JSON_F_REQUIRED, &c.target);
        (void) json_read_string(&reader, c.document, "", "method", JSON_F_NULLABLE, &c.method);
        (void) json_read_string(&reader, c.document, "", "path", JSON_F_NULLABLE, &c.path);
        (void) json_read_string(&reader, c.document, "", "rule", JSON_F_NULLABLE, &c.rule);
        (void) json_read_string(&reader, c.document, "", "reason", JSON_F_NULLABLE, &c.reason);
        (void) json_read_string(&reader, c.document, "", "ref", JSON_F_NULLABLE, &c.ref);
        (void) json_read_string(&reader, c.document, "", "change", JSON_F_NULLABLE, &change);
        failed = reader.failed || (change && (!c.ref || git_change_from_string(change, &c.change) < 0));
        json_reader_done(&reader);
        if (failed) {
                json_unref(c.document);
                return "must have \"expect\" and \"target\", and may have \"method\", \"path\", \"rule\", \"reason\", \"ref\" and \"change\" "
                       "(create, fast-forward, force or delete)";
        }

        *ret = c;
        return NULL;
}

/* "egress/x.json#/allow/0" → "allow/0" */
static const char *short_rule(const char *rule) {
        const char *hash = strstr(rule, "#/");

        return hash ? hash + 2 : rule;
}

static bool agrees(const Case *c, const EgressDecision *d) {
        if (strcmp(c->expect, "allow") == 0 ? d->verdict == EGRESS_DENY : strcmp(c->expect, verdict_name(d->verdict)) != 0)
                return false;
        return (!c->rule || strcmp(c->rule, short_rule(d->rule)) == 0 || strcmp(c->rule, d->rule) == 0) &&
               (!c->reason || strcmp(c->reason, d->reason) == 0);
}

/* A push is denied by what inject would find, in a request that is allowed so far. */
static void decide_ref(const Case *c, EgressDecision *d) {
        _cleanup_json_ json_t *rule = NULL;
        const char *reason = "git-protocol";

        if (!c->ref || d->verdict == EGRESS_DENY)
                return;
        rule = d->git ? json_loads(d->git, 0, NULL) : NULL;
        if (rule)
                reason = git_rule_check_ref(rule, c->ref, c->change);
        if (reason) {
                d->verdict = EGRESS_DENY;
                d->reason = reason;
        }
}

/* One line of the table; what is wrong with it, or NULL. */
static const char *run_case(Testing *t, unsigned line, const Case *c) {
        const char *wrong, *method, *path;
        CtlTarget target;
        EgressDecision d;
        bool fine;

        if (!is_verdict(c->expect))
                return "expects something else than pass, inspect, allow or deny";
        wrong = ctl_target_parse(c->target, &target);
        if (wrong)
                return wrong;
        if (c->path && (target.http || (!c->method && !c->ref)))
                return target.http ? "has a path twice" : "has a path without a method";

        method = c->method ?: c->ref ? c->method ?: "POST" : target.http ? "GET" : NULL;
        path = target.http ? target.path : c->path ?: "/";
        egress_policy_decide(t->policy, target.name, target.port, method, method ? path : NULL, &d);
        decide_ref(c, &d);
        fine = agrees(c, &d);
        t->n_cases++;
        t->n_wrong += !fine;

        if (t->results) {
                json_t *j = egress_decision_to_json(&d);

                if (!j || json_object_update_new(j, json_pack("{s:i, s:s, s:s, s:b}", "case", (int) line, "target", c->target, "expect", c->expect,
                                                              "ok", fine)) < 0 ||
                    json_array_append_new(t->results, j) < 0)
                        return "needs more memory";
        } else if (!fine) {
                _cleanup_free_ char *text = text_format("%s:%u: %s%s%s: expected %s%s%s%s%s, got %s (%s, %s)", t->file, line, c->target,
                                                        method ? " " : "", method ?: "", c->expect, c->rule ? " by " : "", c->rule ?: "",
                                                        c->reason ? ", " : "", c->reason ?: "", verdict_name(d.verdict), d.reason, d.rule),
                                    *safe = text ? text_escape(text, strlen(text), false) : NULL;

                (void) fprintf(t->ctl->out, "%s\n", safe ?: "out of memory");
        }
        return NULL;
}

static CtlExit run_table(Testing *t, char *text) {
        unsigned line = 0;
        char *rest = text, *p;

        while ((p = strsep(&rest, "\n"))) {
                _cleanup_(case_done) Case c = {};
                const char *wrong;
                size_t n;

                line++;
                p += strspn(p, " \t");
                n = strlen(p);
                if (n > 0 && p[n - 1] == '\r')
                        p[n - 1] = '\0';
                if (*p == '\0' || *p == '#')
                        continue;

                wrong = *p == '{' ? parse_object(p, &c) : parse_words(p, &c);
                if (!wrong)
                        wrong = run_case(t, line, &c);
                if (wrong)
                        return ctl_usage(t->ctl, "%s:%u: %s.", t->file, line, wrong);
        }
        return CTL_OK;
}

CtlExit ctl_verb_policy_test(Ctl *ctl) {
        Testing t = { .ctl = ctl, .file = ctl->o.args[2] };
        _cleanup_(ctl_policy_done) CtlPolicy l = {};
        _cleanup_json_ json_t *results = NULL;
        _cleanup_free_ char *text = NULL;
        size_t size;
        CtlExit e;
        int r;

        e = ctl_policy_load_file(ctl, ctl->o.args[1], &l, &t.policy);
        if (e != CTL_OK)
                return e;
        r = strcmp(t.file, "-") == 0 ? io_read_fd(STDIN_FILENO, CASES_MAX_SIZE, &text, &size)
                                     : io_read_file(AT_FDCWD, t.file, CASES_MAX_SIZE, &text, &size);
        if (r < 0) {
                ctl_error(ctl, "Cannot read %s: %s", t.file, strerror(-r));
                return ctl_exit_of_errno(r);
        }
        if (strlen(text) != size)
                return ctl_usage(ctl, "%s is no text.", t.file);
        if (ctl->o.json != CTL_JSON_OFF)
                t.results = results = json_array();

        e = run_table(&t, text);
        if (e == CTL_OK && results)
                e = ctl_print_json(ctl, results);
        if (e != CTL_OK)
                return e;

        ctl_note(ctl, "%zu case%s, %zu differ%s. Digest %.16s.", t.n_cases, t.n_cases == 1 ? "" : "s", t.n_wrong, t.n_wrong == 1 ? "s" : "",
                 egress_policy_digest(t.policy));
        return t.n_wrong > 0 ? CTL_FAILED : CTL_OK;
}
