/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy-tree.h"
#include "policy/policy-git.h"
#include "util/json.h"

#define GIT_RULES                                                                                                                       \
        "{'allow': [{'name': 'git.example.org', 'ports': [443], 'git': {'repositories': ['team/app', 'team/lib-*'], 'fetch': true, 'lfs': true,"  \
        " 'push': {'refs': ['refs/heads/agent/*', 'refs/heads/x']}}},"                                                                      \
        " {'name': 'git.example.org', 'ports': [443], 'git': {'repositories': ['team/app-docs'], 'fetch': true}},"                         \
        " {'name': 'git.example.org', 'ports': [443], 'paths': ['/static/']}]}"

static void test_git(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, GIT_RULES);
        _cleanup_json_ json_t *git = NULL;
        EgressDecision d;

        tree_expect(e, "git.example.org", 443, NULL, NULL, EGRESS_INSPECT, "allow/0", "allowed");
        tree_expect(e, "git.example.org", 443, "GET", "/team/app/info/refs?service=git-upload-pack", EGRESS_INSPECT, "allow/0", "allowed");
        tree_expect(e, "git.example.org", 443, "GET", "/team/app.git/info/refs?service=git-receive-pack", EGRESS_INSPECT, "allow/0", "allowed");
        tree_expect(e, "git.example.org", 443, "POST", "/team/app.git/git-receive-pack", EGRESS_INSPECT, "allow/0", "allowed");
        tree_expect(e, "git.example.org", 443, "POST", "/team/lib-x.git/git-upload-pack", EGRESS_INSPECT, "allow/0", "allowed");
        tree_expect(e, "git.example.org", 443, "POST", "/team/app.git/info/lfs/objects/batch", EGRESS_INSPECT, "allow/0", "allowed");
        /* another repository, another service, another protocol */
        tree_expect(e, "git.example.org", 443, "GET", "/team/other/info/refs?service=git-upload-pack", EGRESS_DENY, "allow/0", "git-repository");
        tree_expect(e, "git.example.org", 443, "GET", "/team/lib/x/info/refs?service=git-upload-pack", EGRESS_DENY, "allow/0", "git-repository");
        tree_expect(e, "git.example.org", 443, "GET", "/team/app-docs/info/refs?service=git-upload-pack", EGRESS_INSPECT, "allow/1", "allowed");
        tree_expect(e, "git.example.org", 443, "GET", "/team/app-docs/info/refs?service=git-receive-pack", EGRESS_DENY, "allow/1", "git-push");
        tree_expect(e, "git.example.org", 443, "POST", "/team/app-docs/git-receive-pack", EGRESS_DENY, "allow/1", "git-push");
        tree_expect(e, "git.example.org", 443, "POST", "/team/app-docs.git/info/lfs/objects/batch", EGRESS_DENY, "allow/1", "git-lfs");
        tree_expect(e, "git.example.org", 443, "GET", "/team/app.git/info/refs", EGRESS_DENY, "allow/0", "git-protocol");
        tree_expect(e, "git.example.org", 443, "GET", "/team/app.git/git-upload-pack", EGRESS_DENY, "allow/0", "git-protocol");
        tree_expect(e, "git.example.org", 443, "GET", "/team/app.git/HEAD", EGRESS_DENY, "allow/0", "path");
        tree_expect(e, "git.example.org", 443, "PUT", "/team/app.git/git-receive-pack", EGRESS_DENY, "allow/0", "path");
        tree_expect(e, "git.example.org", 443, "GET", "/team/other/info/refs", EGRESS_DENY, "allow/0", "path");
        /* what another rule allows is none of git's */
        tree_expect(e, "git.example.org", 443, "GET", "/static/x.css", EGRESS_INSPECT, "allow/2", "allowed");

        egress_policy_decide(e, "git.example.org", 443, "POST", "/team/app/git-receive-pack", &d);
        git = json_loads(d.git, 0, NULL);
        assert_null(git_rule_check_ref(git, "refs/heads/agent/a", GIT_CREATE));
        assert_string_equal(git_rule_check_ref(git, "refs/heads/main", GIT_CREATE), "git-ref");
        assert_int_equal(git_rule_max_pack(git), 256 << 20);
        egress_policy_decide(e, "git.example.org", 443, "GET", "/static/x.css", &d);
        assert_null(d.git);

        /* where every rule is about git, so is every reason */
        e = tree_load_egress(*state, "{'allow': [{'name': 'git.example.org', 'ports': [443], 'git': {'repositories': ['team/app'], 'fetch': true}}]}");
        tree_expect(e, "git.example.org", 443, "GET", "/team/other/info/refs?service=git-upload-pack", EGRESS_DENY, "allow/0", "git-repository");
        tree_expect(e, "git.example.org", 443, "GET", "/team/other/info/refs", EGRESS_DENY, "allow/0", "git-protocol");
        tree_expect(e, "git.example.org", 443, "GET", "/team/app/archive.zip", EGRESS_DENY, "allow/0", "git-protocol");
        tree_expect(e, "git.example.org", 443, "PUT", "/team/app", EGRESS_DENY, "allow/0", "git-protocol");
        tree_expect(e, "git.example.org", 22, NULL, NULL, EGRESS_DENY, "allow/0", "port");

        /* what such a rule does not say is not made good by one for the whole host, at none of the requests of a push */
        e = tree_load_egress(*state, "{'allow': [{'name': 'git.example.org', 'ports': [443], 'tls': 'inspect'},"
                         " {'name': 'git.example.org', 'ports': [443], 'git': {'repositories': ['team/app'], 'fetch': true}}]}");
        tree_expect(e, "git.example.org", 443, "GET", "/team/app/info/refs?service=git-receive-pack", EGRESS_DENY, "allow/1", "git-push");
        tree_expect(e, "git.example.org", 443, "POST", "/team/app/git-receive-pack", EGRESS_DENY, "allow/1", "git-push");
        tree_expect(e, "git.example.org", 443, "POST", "/team/app.git/git-receive-pack", EGRESS_DENY, "allow/1", "git-push");
        tree_expect(e, "git.example.org", 443, "POST", "/team/app.git/info/lfs/objects/batch", EGRESS_DENY, "allow/1", "git-lfs");
        tree_expect(e, "git.example.org", 443, "POST", "/team/app/git-upload-pack", EGRESS_INSPECT, "allow/1", "allowed");
        tree_expect(e, "git.example.org", 443, "POST", "/team/other/git-receive-pack", EGRESS_DENY, "allow/1", "git-repository");
}

/* Requests of git's smart protocol to a host with rules about git are for those alone, however they are written and whatever else is allowed there. */
static void test_git_alone(void **state) {
        static const struct {
                const char *method, *target, *reason; /* NULL: allowed */
        } cases[] = {
                { "GET", "/team/other/info/refs?service=git-upload-pack", "git-repository" },
                { "GET", "/team/other/info/refs?service=git-receive-pack", "git-repository" },
                { "POST", "/team/other/git-upload-pack", "git-repository" },
                { "POST", "/team/other.git/git-receive-pack", "git-repository" },
                { "POST", "/team/other.git/info/lfs/objects/batch", "git-repository" },
                { "POST", "/wide/x/git-upload-pack", "git-repository" }, /* also where another rule names the path, and more of it */
                { "POST", "/wide/x/git-receive-pack", "git-repository" },
                /* written in other ways */
                { "GET", "/team/other/info/refs?service=git%2Dupload-pack", "git-protocol" },
                { "GET", "/team/other/info/refs?x=1&service=git-upload-pack", "git-protocol" },
                { "GET", "/team/other/info/refs?service=git-upload-pack&x", "git-protocol" },
                { "GET", "/team/other/info/refs?service=git-upload-archive", "git-protocol" },
                { "GET", "/team/other/info/refs?", "git-protocol" },
                { "GET", "/team/other/info%2Frefs?service=git-upload-pack", "git-protocol" },
                { "GET", "/team/other/info/re%66s?service=git-upload-pack", "git-protocol" },
                { "GET", "/team/other/info/re%2566s?service=git-upload-pack", "git-protocol" },
                { "GET", "/team/other/info//refs?service=git-upload-pack", "git-protocol" },
                { "GET", "/team/other/info/./refs?service=git-upload-pack", "git-protocol" },
                { "GET", "/team/other/INFO/Refs?service=git-upload-pack", "git-protocol" },
                { "GET", "/team/other/info;x/refs/?service=git-upload-pack", "git-protocol" },
                { "POST", "/team/other/git-upload-pack?x", "git-protocol" },
                { "POST", "/team/other/git-upload-pack/", "git-protocol" },
                { "POST", "/team/other/git-upload-pack;x=y", "git-protocol" },
                { "POST", "/team/other/git%2Dupload-pack", "git-protocol" },
                { "POST", "/team/other/git%252Dupload-pack", "git-protocol" },
                { "POST", "/team/other/git\xc0\xadupload-pack", "git-protocol" },
                { "POST", "/team/other/git%c0%adupload-pack", "git-protocol" },
                { "POST", "/team/other/git-upload-archive", "git-protocol" },
                { "POST", "/team/other//git-upload-pack", "git-repository" },
                { "PUT", "/team/other/git-upload-pack", "git-protocol" },
                { "POST", "/git-upload-pack", "git-protocol" },
                { "POST", "/team/app/git-upload-pack?x", "git-protocol" },
                /* the controls: what the rules about git allow, and all else on the host */
                { "POST", "/team/app/git-upload-pack", NULL },
                { "GET", "/team/app.git/info/refs?service=git-upload-pack", NULL },
                { "GET", "/team/other", NULL },
                { "POST", "/team/other", NULL },
                { "GET", "/team/other/info/refs", NULL },
                { "GET", "/team/other/HEAD", NULL },
                { "GET", "/team/other/archive.zip?ref=git-upload-pack", NULL },
                { "GET", "/team/other/blob/main/git-upload-pack", NULL },
                { "POST", "/team/other/git-upload-pack-notes", NULL },
                { "GET", "/api/v4/projects/team%2Fother/issues", NULL },
                { "POST", "/api//batches/1", "git-protocol" }, /* with two readings, one word is enough */
                { "POST", "/api//x/1", NULL },
        };
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'git.example.org', 'ports': [443], 'tls': 'inspect'},"
                                             " {'name': 'git.example.org', 'ports': [443], 'paths': ['/wide/x/git-upload-pack', '/wide/x/git-receive-pack']},"
                                             " {'name': 'git.example.org', 'ports': [443], 'git': {'repositories': ['team/app'], 'fetch': true}}]}");
        EgressDecision d;

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                egress_policy_decide(e, "git.example.org", 443, cases[i].method, cases[i].target, &d);
                if (strcmp(d.reason, cases[i].reason ?: "allowed") != 0 || (d.verdict == EGRESS_DENY) != (cases[i].reason != NULL))
                        fail_msg("%s %s: %s by %s", cases[i].method, cases[i].target, d.reason, d.rule);
        }

        /* the control for all of them: without a rule about git such a rule is one like any other */
        e = tree_load_egress(*state, "{'allow': [{'name': 'git.example.org', 'ports': [443], 'tls': 'inspect'}]}");
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                tree_expect(e, "git.example.org", 443, cases[i].method, cases[i].target, EGRESS_INSPECT, "allow/0", "allowed");
}

/* The host is what counts: neither another port nor a pattern that is closer opens what the rule about git is for. */
static void test_git_alone_on_the_host(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'git.example.org', 'ports': [80]}, {'name': 'git.example.org', 'ports': [{'port': 8443, 'protocol': 'tls'}], 'tls': 'inspect'},"
                                             " {'name': 'git.example.org', 'ports': [443], 'git': {'repositories': ['team/app'], 'fetch': true}},"
                                             " {'name': '*.example.net', 'ports': [443], 'git': {'repositories': ['team/app'], 'fetch': true}},"
                                             " {'name': 'git.example.net', 'ports': [443], 'tls': 'inspect'}, {'name': 'a.example.org', 'ports': [443], 'tls': 'inspect'}]}");
        static const uint16_t ports[] = { 80, 8443 };

        for (size_t i = 0; i < ELEMENTSOF(ports); i++) {
                EgressVerdict open = ports[i] == 80 ? EGRESS_PASS : EGRESS_INSPECT;
                const char *rule = ports[i] == 80 ? "allow/0" : "allow/1";

                tree_expect(e, "git.example.org", ports[i], "GET", "/team/app/info/refs?service=git-upload-pack", EGRESS_DENY, "allow/2", "git-repository");
                tree_expect(e, "git.example.org", ports[i], "POST", "/team/other/git-receive-pack", EGRESS_DENY, "allow/2", "git-repository");
                tree_expect(e, "git.example.org", ports[i], "GET", "/team/app", open, rule, "allowed");
                tree_expect(e, "git.example.org", ports[i], NULL, NULL, open, rule, "allowed");
                /* so somebody must ask about each request */
                assert_true(egress_policy_weighs_requests(e, "git.example.org", ports[i]));
        }
        tree_expect(e, "git.example.net", 443, "POST", "/team/app/git-upload-pack", EGRESS_DENY, "allow/3", "git-repository");
        tree_expect(e, "git.example.net", 443, "GET", "/team/app", EGRESS_INSPECT, "allow/4", "allowed");
        tree_expect(e, "b.example.net", 443, "POST", "/team/app/git-upload-pack", EGRESS_INSPECT, "allow/3", "allowed");
        tree_expect(e, "a.example.org", 443, "POST", "/team/app/git-upload-pack", EGRESS_INSPECT, "allow/5", "allowed");
        assert_false(egress_policy_weighs_requests(e, "a.example.org", 443));
}

static void test_git_frozen(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, GIT_RULES);
        _cleanup_(egress_policy_freep) EgressPolicy *thawed = NULL;
        _cleanup_free_ char *text = NULL;
        char first[65];
        size_t size;

        text = egress_policy_freeze(e, &size);
        assert_non_null(text);
        assert_int_equal(egress_policy_thaw(text, size, &thawed, NULL), 0);
        assert_string_equal(egress_policy_digest(e), egress_policy_digest(thawed));
        tree_expect(thawed, "git.example.org", 443, "GET", "/team/app-docs/info/refs?service=git-receive-pack", EGRESS_DENY, "allow/1", "git-push");
        tree_expect(thawed, "git.example.org", 443, "POST", "/team/app.git/git-receive-pack", EGRESS_INSPECT, "allow/0", "allowed");

        /* what may be pushed is in the digest; in which order it is written is not */
        strcpy(first, egress_policy_digest(tree_load_egress(*state, "{'allow': [{'name': 'a.example.org', 'ports': [443], 'git': {'repositories': ['a', 'b'], 'push': {'refs': ['refs/heads/x'], 'max_pack': '1K'}}}]}")));
        assert_string_equal(first, egress_policy_digest(tree_load_egress(*state, "{'allow': [{'name': 'a.example.org', 'ports': [443], 'git': {'repositories': ['b', 'a'], 'fetch': false, 'push': {'force': false, 'refs': ['refs/heads/x'], 'max_pack': '1024B'}}}]}")));
        assert_string_not_equal(first, egress_policy_digest(tree_load_egress(*state, "{'allow': [{'name': 'a.example.org', 'ports': [443], 'git': {'repositories': ['a', 'b'], 'push': {'refs': ['refs/heads/x'], 'max_pack': '1K', 'force': true}}}]}")));
}

static void test_git_findings(void **state) {
        static const struct {
                const char *git, *pointer, *ports;
        } cases[] = {
                { "{'fetch': true}", "/allow/0/git/repositories" },
                { "{'repositories': []}", "/allow/0/git/repositories" },
                { "{'repositories': ['a']}", "/allow/0/git" },
                { "{'repositories': ['a'], 'lfs': true}", "/allow/0/git" },
                { "{'repositories': ['/a'], 'fetch': true}", "/allow/0/git/repositories/0" },
                { "{'repositories': ['a.git'], 'fetch': true}", "/allow/0/git/repositories/0" },
                { "{'repositories': ['b', 'a/**'], 'fetch': true}", "/allow/0/git/repositories/1" },
                { "{'repositories': ['a/../b'], 'fetch': true}", "/allow/0/git" },
                { "{'repositories': ['a b'], 'fetch': true}", "/allow/0/git/repositories/0" },
                { "{'repositories': ['a'], 'fetch': 1}", "/allow/0/git/fetch" },
                { "{'repositories': ['a'], 'pull': true}", "/allow/0/git/pull" },
                { "{'repositories': ['a'], 'push': {}}", "/allow/0/git/push/refs" },
                { "{'repositories': ['a'], 'push': true}", "/allow/0/git/push" },
                { "{'repositories': ['a'], 'push': {'refs': ['main']}}", "/allow/0/git/push/refs/0" },
                { "{'repositories': ['a'], 'push': {'refs': ['refs/heads/*/*']}}", "/allow/0/git/push/refs/0" },
                { "{'repositories': ['a'], 'push': {'refs': ['refs/heads/x'], 'max_pack': 5}}", "/allow/0/git/push/max_pack" },
                { "{'repositories': ['a'], 'push': {'refs': ['refs/heads/x'], 'forced': true}}", "/allow/0/git/push/forced" },
                { "{'repositories': ['a'], 'fetch': true}, 'paths': ['/x']", "/allow/0/git" },
                { "{'repositories': ['a'], 'fetch': true}, 'tls': 'pass'", "/allow/0/tls" },
                /* in the clear nobody reads what is pushed */
                { "{'repositories': ['a'], 'fetch': true}", "/allow/0/git", "80" },
                { "{'repositories': ['a'], 'fetch': true}", "/allow/0/git", "443, {'port': 8080, 'protocol': 'http'}" },
                { "{'repositories': ['a'], 'fetch': true}", "/allow/0/git", "{'port': 9418, 'protocol': 'raw'}" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                Tree *t = *state;
                char text[512];

                (void) snprintf(text, sizeof(text), "{'allow': [{'name': 'a.example.org', 'ports': [%s], 'git': %s}]}", cases[i].ports ?: "443", cases[i].git);
                for (char *p = text; (p = strchr(p, '\''));)
                        *p = '"';
                tree_put(t, "etc/anchorhold/policy/egress/x.json", text);
                tree_load(t);
                assert_true(t->n_findings > 0);
                assert_string_equal(t->findings[0].pointer, cases[i].pointer);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_git, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_git_alone, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_git_alone_on_the_host, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_git_frozen, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_git_findings, tree_setup, tree_teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
