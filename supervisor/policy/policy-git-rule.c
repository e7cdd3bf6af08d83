/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Reading the "git" of a permission in egress/NAME.json:
 *
 *   "git": { "repositories": [ "team/app", "team/lib-*" ],
 *            "fetch": true,
 *            "push": { "refs": [ "refs/heads/agent/x", "refs/heads/wip-*" ], "delete": false, "force": false, "max_pack": "256M" },
 *            "lfs": true }
 *
 * Nothing is allowed but what it has: "fetch" and "lfs" are false if left out, and without "push" nothing is pushed. "delete" and "force" are false, and "max_pack" is 256M, if
 * left out. "lfs" is the batch API of Git LFS: for downloads where fetches are allowed, for uploads where pushes are.
 *
 * A repository is what stands before git's own part of the path, without ".git" at its end, which requests may have or not; "*" is any text within
 * one segment. From these come the rule's methods and paths, so that it is weighed like any rule with paths: the most specific one counts, and what is no request of git's
 * smart protocol is allowed by none of them. The paths are those of all services: what a rule does not say is refused by it, whatever is allowed of the rest of the host.
 */

#include <string.h>

#include "policy/policy-egress.h"
#include "util/json.h"
#include "util/text.h"

enum { REPOSITORIES_MAX = 32, REFS_MAX = 64 };

#define MAX_PACK_DEFAULT (UINT64_C(256) << 20)
#define MAX_PACK_MAX (UINT64_C(1) << 40)

static const char *check_repository(const char *s) {
        size_t n = strlen(s);

        if (n == 0 || n > 512 || s[0] == '/' || s[n - 1] == '/' || s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~/*")] != '\0')
                return "must be a path such as \"team/app\": letters, digits, '-', '_', '.', '~', '/', and '*' for any text within a segment";
        if (n > 4 && strcmp(s + n - 4, ".git") == 0)
                return "must be without \".git\" at its end: both ways to write it are meant";
        if (strstr(s, "**"))
                return "must have no \"**\": a wildcard stands for text within one segment";
        return NULL;
}

static const char *check_ref_pattern(const char *s) {
        _cleanup_free_ char *sample = strdup(s);
        char *star = sample ? strchr(sample, '*') : NULL;

        if (!sample)
                return "needs more memory";
        if (star)
                *star = 'x';
        if (!git_ref_is_valid(sample))
                return "must be a ref such as \"refs/heads/agent/topic\", with at most one \"*\" for any text";
        return NULL;
}

/* ---- the full form ---- */

static int compare_texts(const void *a, const void *b) {
        return strcmp(*(const char *const *) a, *(const char *const *) b);
}

/* Sorted, so that the policy's digest does not depend on the order. NULL: out of memory. */
static json_t *sorted(const json_t *texts) {
        const char *list[REFS_MAX] = {};
        size_t n = json_array_size(texts);
        json_t *array = json_array();

        for (size_t i = 0; i < n; i++)
                list[i] = json_string_value(json_array_get(texts, i));
        qsort(list, n, sizeof(*list), compare_texts);
        for (size_t i = 0; array && i < n; i++)
                if (json_array_append_new(array, json_string(list[i])) < 0) {
                        json_decref(array);
                        return NULL;
                }
        return array;
}

static json_t *read_push(const Node *push) {
        static const char *const known[] = { "refs", "delete", "force", "max_pack", NULL };
        bool delete = false, force = false;
        uint64_t max = MAX_PACK_DEFAULT;
        const json_t *refs;
        char size[32];

        if (!node_check_object(push, known) || !node_strings(push, "refs", NODE_REQUIRED, 1, REFS_MAX, check_ref_pattern, &refs))
                return NULL;
        (void) node_bool(push, "delete", 0, &delete);
        (void) node_bool(push, "force", 0, &force);
        (void) node_size(push, "max_pack", 0, 1024, MAX_PACK_MAX, &max);
        (void) snprintf(size, sizeof(size), "%lluB", (unsigned long long) max);
        return json_pack("{s:o, s:b, s:b, s:s}", "refs", sorted(refs), "delete", delete, "force", force, "max_pack", size);
}

/* ---- methods and paths ---- */

static void add_path(const Node *rule, EgressRules *set, EgressRule *r, const char *repository, const char *suffix, const char *ending) {
        _cleanup_free_ char *text = text_format("/%s%s%s", repository, suffix, ending);
        const char *kept = text ? egress_rules_text(set, text) : NULL, *wrong;
        uint8_t *bytes = kept ? egress_rules_alloc(set, strlen(kept)) : NULL;

        if (!bytes) {
                rule->policy->out_of_memory = true;
                return;
        }
        wrong = path_pattern_parse(kept, bytes, &r->paths[r->n_paths]);
        if (wrong)
                node_fail_at(rule, "git", "the repository %s gives no path: it %s", repository, wrong);
        else
                r->n_paths++;
}

/* Those of every service, also of one that the rule does not allow: it is what counts for them, and no wider rule for the host takes its place. */
static void make_paths(const Node *rule, EgressRules *set, EgressRule *r, const json_t *repositories) {
        static const char *const endings[] = { "/info/refs", "/git-upload-pack", "/git-receive-pack", "/info/lfs/objects/batch" };
        size_t n = json_array_size(repositories);

        r->methods = egress_rules_method(set, "GET") | egress_rules_method(set, "POST");
        r->paths = egress_rules_alloc(set, n * ELEMENTSOF(endings) * 2 * sizeof(*r->paths));
        if (!r->paths) {
                rule->policy->out_of_memory = true;
                return;
        }
        for (size_t i = 0; i < n; i++) {
                const char *repository = json_string_value(json_array_get(repositories, i));

                for (size_t k = 0; k < ELEMENTSOF(endings); k++) {
                        add_path(rule, set, r, repository, "", endings[k]);
                        if (repository[strlen(repository) - 1] != '*') /* which stands for the ending as well */
                                add_path(rule, set, r, repository, ".git", endings[k]);
                }
        }
}

void egress_read_git(const Node *rule, EgressRules *set, EgressRule *r) {
        static const char *const known[] = { "repositories", "fetch", "push", "lfs", NULL };
        _cleanup_json_ json_t *full = NULL, *push = NULL;
        bool fetch = false, lfs = false, has_push;
        _cleanup_free_ char *text = NULL;
        const json_t *repositories;
        Node git, node;

        if (r->deny || !node_object(rule, "git", 0, &git) || !node_check_object(&git, known))
                return;
        if (r->n_paths > 0 || r->methods != EGRESS_ANY_METHOD) {
                node_fail_at(rule, "git", "stands for methods and paths: the rule must have none of its own");
                return;
        }
        has_push = node_object(&git, "push", 0, &node);
        if (has_push)
                push = read_push(&node);
        (void) node_bool(&git, "fetch", 0, &fetch);
        (void) node_bool(&git, "lfs", 0, &lfs);
        if (!node_strings(&git, "repositories", NODE_REQUIRED, 1, REPOSITORIES_MAX, check_repository, &repositories) || rule->object->reason)
                return;
        if (!fetch && !push) {
                node_fail(&git, "allows nothing: it must have \"fetch\": true, or \"push\"");
                return;
        }

        full = json_pack("{s:o, s:b, s:b, s:O*}", "repositories", sorted(repositories), "fetch", fetch, "lfs", lfs, "push", push);
        text = full ? json_dumps(full, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
        r->git = text ? egress_rules_text(set, text) : NULL;
        if (!r->git) {
                rule->policy->out_of_memory = true;
                return;
        }
        make_paths(rule, set, r, repositories);
}
