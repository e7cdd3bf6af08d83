/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Credentials of the kind "github-app": what the files must say, and what a workflow's egress policy must allow for them. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy-tree.h"
#include "util/json.h"
#include "util/text.h"

#define REST "\"sentinel\": {\"prefix\": \"ghs_\", \"alphabet\": \"alnum\", \"length\": 40}, \"hosts\": [\"git.example.org\"], \"ports\": [443], " \
             "\"places\": [{\"basic\": \"password\"}]}"
#define APP "{\"id\": \"42\", \"installation\": 7, \"api\": \"https://api.example.org/v3\", \"repositories\": [\"acme/*\", \"other/One\"], " \
            "\"permissions\": {\"contents\": \"write\"}}"
#define FILE_OF_IT "/etc/anchorhold/policy/credentials/app.json"

static void load(Tree *t, const char *kind, const char *app) {
        _cleanup_free_ char *text = text_format("{%s%s%s " REST, kind, app ? "\"app\": " : "", app ?: "");

        assert_non_null(text);
        tree_put(t, FILE_OF_IT + 1, text);
        tree_load(t);
}

static void fails(Tree *t, const char *kind, const char *app, const char *pointer, const char *reason) {
        const char *found;

        load(t, kind, app);
        found = tree_finding(t, FILE_OF_IT, pointer);
        if (!found || !strstr(found, reason)) {
                tree_print(t);
                fail_msg("%s: no \"%s\" at %s", app, reason, pointer);
        }
}

#define KIND "\"kind\": \"github-app\", "

static void test_files(void **state) {
        Tree t;

        tree_new(&t);
        load(&t, KIND, APP ",");
        tree_print(&t);
        assert_int_equal(t.n_findings, 0);
        fails(&t, "", APP ",", "/app", "belongs to");
        fails(&t, KIND, NULL, "/app", "");
        fails(&t, KIND, "{\"repositories\": [\"a/b\"], \"permissions\": {\"contents\": \"read\"}},", "/app/id", "");
        fails(&t, KIND, "{\"id\": 42, \"repositories\": [\"a/b\"], \"permissions\": {\"contents\": \"read\"}},", "/app/id", "string");
        fails(&t, KIND, "{\"id\": \"4 2\", \"repositories\": [\"a/b\"], \"permissions\": {\"contents\": \"read\"}},", "/app/id", "app's id");
        fails(&t, KIND, "{\"id\": \"42\", \"permissions\": {\"contents\": \"read\"}},", "/app/repositories", "");
        fails(&t, KIND, "{\"id\": \"42\", \"repositories\": [\"*\"], \"permissions\": {\"contents\": \"read\"}},", "/app/repositories/0", "OWNER/NAME");
        fails(&t, KIND, "{\"id\": \"42\", \"repositories\": [\"a/..\"], \"permissions\": {\"contents\": \"read\"}},", "/app/repositories/0", "OWNER/NAME");
        fails(&t, KIND, "{\"id\": \"42\", \"repositories\": [\"a/b/c\"], \"permissions\": {\"contents\": \"read\"}},", "/app/repositories/0", "OWNER/NAME");
        fails(&t, KIND, "{\"id\": \"42\", \"repositories\": [\"a/b\"], \"permissions\": {}},", "/app/permissions", "between 1 and 64");
        fails(&t, KIND, "{\"id\": \"42\", \"repositories\": [\"a/b\"], \"permissions\": {\"contents\": \"all\"}},", "/app/permissions/contents", "\"write\"");
        fails(&t, KIND, "{\"id\": \"42\", \"installation\": 0, \"repositories\": [\"a/b\"], \"permissions\": {\"contents\": \"read\"}},", "/app/installation", "");
        fails(&t, KIND, "{\"id\": \"42\", \"owner\": \"a\", \"repositories\": [\"a/b\"], \"permissions\": {\"contents\": \"read\"}},", "/app/owner", "");
        tree_free(&t);
}

static void test_api(void **state) {
        static const char *const wrong[] = {
                "http://api.example.org", "https://", "https://api.example.org/", "https://Api.example.org", "https://127.0.0.1",
                "https://api.example.org:0", "https://api.example.org:65536", "https://api.example.org:443x", "https://u@api.example.org",
                "https://api.example.org/a//b", "https://api.example.org/../b", "https://api.example.org/a?b", "api.example.org",
        };
        Tree t;

        tree_new(&t);
        for (size_t i = 0; i < ELEMENTSOF(wrong); i++) {
                _cleanup_free_ char *app = text_format("{\"id\": \"42\", \"api\": \"%s\", \"repositories\": [\"a/b\"], \"permissions\": {\"contents\": \"read\"}},", wrong[i]);

                fails(&t, KIND, app, "/app/api", "must be https://HOST");
        }
        tree_free(&t);
}

static void test_read(void **state) {
        static const char other[] = "{\"app\": {\"id\": \"x\", \"api\": \"https://h.example:8443\", \"repositories\": [\"a/b\"], \"permissions\": {\"a\": \"read\"}}}";
        _cleanup_json_ json_t *file = NULL, *second = NULL;
        PolicyApp app;

        assert_int_equal(json_parse("{\"app\": " APP "}", strlen("{\"app\": " APP "}"), &file, NULL), 0);
        assert_int_equal(policy_app_read(file, &app), 0);
        assert_string_equal(app.id, "42");
        assert_int_equal(app.installation, 7);
        assert_string_equal(app.host, "api.example.org");
        assert_int_equal(app.port, 443);
        assert_string_equal(app.base, "/v3");
        assert_true(policy_app_covers(&app, "acme/widgets"));
        assert_true(policy_app_covers(&app, "Acme/Widgets")); /* the host's names have no case */
        assert_true(policy_app_covers(&app, "other/one"));
        assert_false(policy_app_covers(&app, "other/one2"));
        assert_false(policy_app_covers(&app, "acme2/widgets"));
        assert_false(policy_app_covers(&app, "acm/e"));

        assert_int_equal(json_parse(other, strlen(other), &second, NULL), 0);
        assert_int_equal(policy_app_read(second, &app), 0);
        assert_int_equal(app.port, 8443);
        assert_int_equal(app.installation, 0);
        assert_string_equal(app.base, "");
        assert_int_equal(policy_app_read(NULL, &app), -EINVAL);

        assert_true(policy_is_repository("a/b.c-d_e"));
        assert_false(policy_is_repository(NULL));
        assert_false(policy_is_repository("a"));
        assert_false(policy_is_repository("a/"));
        assert_false(policy_is_repository("/b"));
        assert_false(policy_is_repository("a/b/c"));
        assert_false(policy_is_repository("a/."));
        assert_false(policy_is_repository("a/b c"));
}

/* A workflow whose egress policy would not let its tokens be made, or taken back, does not load. */
static void test_workflow(void **state) {
        static const char workflow[] = "{\"template\": \"base\", \"egress\": \"app\", \"credentials\": [\"app\"], \"repository\": false,"
                                       "\"steps\": [{\"name\": \"exec\", \"kind\": \"exec\", \"timeout\": \"1min\"}]}";
        static const struct {
                const char *methods, *paths, *wrong;
        } cases[] = {
                { "[\"POST\", \"DELETE\"]", "[\"/v3/app/installations/7/access_tokens\", \"/v3/app/installations/*/access_tokens\", \"/v3/installation/token\"]", NULL },
                { "[\"POST\", \"DELETE\"]", "[\"/v3/\"]", NULL },
                { "[\"POST\"]", "[\"/v3/\"]", "does not allow DELETE /v3/installation/token" },
                { "[\"POST\", \"DELETE\"]", "[\"/v3/installation/token\"]", "does not allow POST /v3/app/installations" },
        };
        Tree t;

        tree_new(&t);
        load(&t, KIND, APP ",");
        tree_put(&t, "etc/anchorhold/policy/workflows/app.json", workflow);
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *egress = text_format("{\"allow\": [{\"name\": \"git.example.org\", \"ports\": [443], \"tls\": \"inspect\"},"
                                                          "{\"name\": \"api.example.org\", \"ports\": [443], \"tls\": \"inspect\", \"methods\": %s, \"paths\": %s}]}",
                                                          cases[i].methods, cases[i].paths);
                const char *found;

                tree_put(&t, "etc/anchorhold/policy/egress/app.json", egress);
                tree_load(&t);
                found = tree_finding(&t, "/etc/anchorhold/policy/workflows/app.json", "/credentials/0");
                if (!found != !cases[i].wrong || (found && !strstr(found, cases[i].wrong))) {
                        tree_print(&t);
                        fail_msg("case %zu: %s", i, found ?: "nothing");
                }
                if (!policy_find_workflow(t.policy, "app", NULL) != !!cases[i].wrong) {
                        tree_print(&t);
                        fail_msg("case %zu", i);
                }
        }
        tree_free(&t);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_files),
                cmocka_unit_test(test_api),
                cmocka_unit_test(test_read),
                cmocka_unit_test(test_workflow),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
