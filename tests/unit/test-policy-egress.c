/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy-tree.h"

/* Which names have rules by method or path, whatever these say: for the others one verdict holds for all requests. */
static void test_weighs_requests(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'a.example.org', 'ports': [443]}, {'name': 'b.example.org', 'ports': [443], 'methods': ['GET']},"
                                             " {'name': '*.c.example.org', 'ports': [443], 'paths': ['/x']}, {'name': 'y.c.example.org', 'ports': [443]},"
                                             " {'name': 'd.example.org', 'ports': [443, {'port': 8443, 'protocol': 'tls'}]},"
                                             " {'name': 'g.example.org', 'ports': [443], 'git': {'repositories': ['a'], 'fetch': true}}],"
                                             " 'deny': [{'name': '*.e.example.org', 'paths': ['/x']}, {'name': 'd.example.org', 'ports': [8443], 'methods': ['PUT']}, {'name': 'a.example.org', 'ports': [80]}]}");

        assert_false(egress_policy_weighs_requests(e, "a.example.org", 443));
        assert_true(egress_policy_weighs_requests(e, "b.example.org", 443));
        assert_false(egress_policy_weighs_requests(e, "b.example.org", 8080)); /* not allowed there at all */
        assert_true(egress_policy_weighs_requests(e, "z.c.example.org", 443));
        assert_true(egress_policy_weighs_requests(e, "y.c.example.org", 443)); /* also a rule that gives way to another */
        assert_false(egress_policy_weighs_requests(e, "d.example.org", 443));
        assert_true(egress_policy_weighs_requests(e, "d.example.org", 8443));
        assert_true(egress_policy_weighs_requests(e, "x.e.example.org", 1));
        assert_true(egress_policy_weighs_requests(e, "g.example.org", 443)); /* git's rules are about paths */
        assert_false(egress_policy_weighs_requests(e, "e.example.org", 1));

        /* by path: methods alone are not enough */
        assert_false(egress_policy_weighs_paths(e, "a.example.org", 443));
        assert_false(egress_policy_weighs_paths(e, "b.example.org", 443));
        assert_true(egress_policy_weighs_paths(e, "z.c.example.org", 443));
        assert_true(egress_policy_weighs_paths(e, "y.c.example.org", 443));
        assert_false(egress_policy_weighs_paths(e, "d.example.org", 8443));
        assert_true(egress_policy_weighs_paths(e, "x.e.example.org", 1));
        assert_true(egress_policy_weighs_paths(e, "g.example.org", 443));
        assert_false(egress_policy_weighs_paths(e, "e.example.org", 1));
}

static void test_normalise(void **state) {
        static const char *const bad[] = {
                "", ".", "a..b", ".a", "a.", "-a.b", "a-.b", "a_b.c", "a b.c", "\xc3\xa9.org", "1.2.3.4", "127.1", "0x7f000001",
                "2130706433", "[::1]", "::1", "a.b..", "a.0x1f", "a.123.",
        };
        char name[254], label[65], big[300];

        assert_int_equal(egress_normalise_name("Api.Example.ORG.", name), 0);
        assert_string_equal(name, "api.example.org");
        assert_int_equal(egress_normalise_name("a.", name), 0);
        assert_int_equal(egress_normalise_name("1and1.1a", name), 0);
        assert_int_equal(egress_normalise_name("0xg.org", name), 0);
        assert_int_equal(egress_normalise_name("xn--bcher-kva.example", name), 0);
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (strcmp(bad[i], "a.") != 0)
                        assert_int_equal(egress_normalise_name(bad[i], name), -EINVAL);

        memset(label, 'a', 64);
        label[64] = '\0';
        assert_int_equal(egress_normalise_name(label, name), -EINVAL);
        label[63] = '\0';
        assert_int_equal(egress_normalise_name(label, name), 0);

        (void) snprintf(big, sizeof(big), "%s.%s.%s.%.61s", label, label, label, label);
        assert_int_equal(strlen(big), 253);
        assert_int_equal(egress_normalise_name(big, name), 0);
        strcat(big, "a");
        assert_int_equal(egress_normalise_name(big, name), -EINVAL);
}

static void test_names_and_ports(void **state) {
        const EgressPolicy *e = tree_load_egress(*state,
                "{'allow': [{'name': 'a.example.org', 'ports': [443, 80, {'port': 22, 'protocol': 'raw'}]},"
                "           {'name': '*.example.net', 'ports': [443], 'tls': 'inspect', 'max_names': 7}]}");
        const char *const *inspected;
        const char *rule, *pattern;
        EgressDecision d;

        tree_expect(e, "a.example.org", 443, NULL, NULL, EGRESS_PASS, "allow/0", "allowed");
        tree_expect(e, "A.Example.Org.", 443, NULL, NULL, EGRESS_PASS, "allow/0", "allowed");
        tree_expect(e, "a.example.org", 8080, NULL, NULL, EGRESS_DENY, "allow/0", "port");
        tree_expect(e, "b.example.org", 443, NULL, NULL, EGRESS_DENY, "", "no-rule");
        tree_expect(e, "x.a.example.org", 443, NULL, NULL, EGRESS_DENY, "", "no-rule");
        tree_expect(e, "192.0.2.1", 443, NULL, NULL, EGRESS_DENY, "", "no-rule");

        tree_expect(e, "x.example.net", 443, NULL, NULL, EGRESS_INSPECT, "allow/1", "allowed");
        tree_expect(e, "y.x.example.net", 443, NULL, NULL, EGRESS_INSPECT, "allow/1", "allowed");
        tree_expect(e, "example.net", 443, NULL, NULL, EGRESS_DENY, "", "no-rule");
        tree_expect(e, "badexample.net", 443, NULL, NULL, EGRESS_DENY, "", "no-rule");

        egress_policy_decide(e, "a.example.org", 22, NULL, NULL, &d);
        assert_int_equal(d.protocol, EGRESS_RAW);
        egress_policy_decide(e, "a.example.org", 80, NULL, NULL, &d);
        assert_int_equal(d.protocol, EGRESS_HTTP);
        egress_policy_decide(e, "a.example.org", 443, NULL, NULL, &d);
        assert_int_equal(d.protocol, EGRESS_TLS);

        assert_true(egress_policy_knows(e, "a.example.org", &rule));
        assert_string_equal(rule, "egress/x.json#/allow/0");
        assert_false(egress_policy_knows(e, "example.net", &rule));
        assert_string_equal(rule, "default");

        assert_int_equal(egress_policy_name_budget(e, "x.example.net", &pattern), 7);
        assert_string_equal(pattern, "*.example.net");
        assert_int_equal(egress_policy_name_budget(e, "a.example.org", NULL), 0);

        assert_int_equal(egress_policy_inspected(e, &inspected), 1);
        assert_string_equal(inspected[0], "*.example.net");
}

/* An exact name narrows what a wildcard gave; denials win at equal or greater specificity. */
static void test_precedence(void **state) {
        const EgressPolicy *e = tree_load_egress(*state,
                "{'allow': [{'name': '*.example.org', 'ports': [443, 80]},"
                "           {'name': 'git.example.org', 'ports': [443]},"
                "           {'name': '*.deep.example.org', 'ports': [80]},"
                "           {'name': 'ok.bad.example.org', 'ports': [443]},"
                "           {'name': 'both.example.org', 'ports': [443]}],"
                " 'deny': [{'name': '*.bad.example.org'},"
                "          {'name': 'both.example.org'},"
                "          {'name': 'web.example.org', 'ports': [80]},"
                "          {'name': 'lonely.example.com'}]}");
        const char *rule;

        tree_expect(e, "x.example.org", 80, NULL, NULL, EGRESS_PASS, "allow/0", "allowed");
        tree_expect(e, "git.example.org", 443, NULL, NULL, EGRESS_PASS, "allow/1", "allowed");
        tree_expect(e, "git.example.org", 80, NULL, NULL, EGRESS_DENY, "allow/1", "port");
        tree_expect(e, "a.deep.example.org", 443, NULL, NULL, EGRESS_DENY, "allow/2", "port");
        tree_expect(e, "a.deep.example.org", 80, NULL, NULL, EGRESS_PASS, "allow/2", "allowed");
        tree_expect(e, "x.bad.example.org", 443, NULL, NULL, EGRESS_DENY, "deny/0", "denied-by-rule");
        tree_expect(e, "ok.bad.example.org", 443, NULL, NULL, EGRESS_PASS, "allow/3", "allowed");
        tree_expect(e, "both.example.org", 443, NULL, NULL, EGRESS_DENY, "deny/1", "denied-by-rule");
        tree_expect(e, "web.example.org", 80, NULL, NULL, EGRESS_DENY, "deny/2", "denied-by-rule");
        tree_expect(e, "web.example.org", 443, NULL, NULL, EGRESS_PASS, "allow/0", "allowed");
        tree_expect(e, "lonely.example.com", 443, NULL, NULL, EGRESS_DENY, "deny/3", "denied-by-rule");

        assert_false(egress_policy_knows(e, "x.bad.example.org", &rule));
        assert_string_equal(rule, "egress/x.json#/deny/0");
        assert_false(egress_policy_knows(e, "lonely.example.com", &rule));
        assert_string_equal(rule, "egress/x.json#/deny/3");
        assert_true(egress_policy_knows(e, "web.example.org", &rule));
}

static void test_requests(void **state) {
        const EgressPolicy *e = tree_load_egress(*state,
                "{'allow': [{'name': 'api.example.org', 'ports': [443], 'methods': ['GET', 'POST'], 'paths': ['/v1', '/v2/']},"
                "           {'name': 'open.example.org', 'ports': [443, 80]},"
                "           {'name': 'api.example.org', 'ports': [443], 'methods': ['DELETE'], 'paths': ['/v1/drafts/']}],"
                " 'deny': [{'name': 'open.example.org', 'paths': ['/admin']},"
                "          {'name': 'api.example.org', 'paths': ['/v1/drafts']},"
                "          {'name': 'api.example.org', 'methods': ['POST'], 'paths': ['/v2/']}]}");
        static const char *const odd[] = {
                "/v1/../admin", "/v1/./x", "/v1//x", "/v1/..", "/v1/%2e%2e/x", "/v1/%2E./x", "/v1/%61", "/v1/%2f", "/v1/%5c",
                "/v1/\\..", "/v1/%", "/v1/%zz", "/v1/..;a/x", "/v1/..%3b/x", "/v1/.%3B/x", "v1", "", "/v1/a b", "/v1/%00", "/v1/%25", "/v1/#",
        };
        const char *const *inspected;

        tree_expect(e, "api.example.org", 443, NULL, NULL, EGRESS_INSPECT, "allow/0", "allowed");
        tree_expect(e, "api.example.org", 443, "GET", "/v1", EGRESS_INSPECT, "allow/0", "allowed");
        tree_expect(e, "api.example.org", 443, "GET", "/v1?q=//../", EGRESS_INSPECT, "allow/0", "allowed");
        tree_expect(e, "api.example.org", 443, "POST", "/v1/messages?beta=true", EGRESS_INSPECT, "allow/0", "allowed");
        tree_expect(e, "api.example.org", 443, "GET", "/v1/%20%C3%A9", EGRESS_INSPECT, "allow/0", "allowed");
        tree_expect(e, "api.example.org", 443, "GET", "/v1x", EGRESS_DENY, "allow/0", "path");
        tree_expect(e, "api.example.org", 443, "GET", "/v2", EGRESS_DENY, "allow/0", "path");
        tree_expect(e, "api.example.org", 443, "GET", "/v2/x", EGRESS_INSPECT, "allow/0", "allowed");
        tree_expect(e, "api.example.org", 443, "POST", "/v2/x", EGRESS_DENY, "deny/2", "denied-by-rule");
        tree_expect(e, "api.example.org", 443, "PUT", "/v1/x", EGRESS_DENY, "allow/0", "method");

        /* the longer path wins, the denial at equal length */
        tree_expect(e, "api.example.org", 443, "GET", "/v1/drafts", EGRESS_DENY, "deny/1", "denied-by-rule");
        tree_expect(e, "api.example.org", 443, "GET", "/v1/drafts/1", EGRESS_DENY, "deny/1", "denied-by-rule");
        tree_expect(e, "api.example.org", 443, "DELETE", "/v1/drafts/1", EGRESS_INSPECT, "allow/2", "allowed");

        for (size_t i = 0; i < ELEMENTSOF(odd); i++) {
                EgressDecision d;

                egress_policy_decide(e, "api.example.org", 443, "GET", odd[i], &d);
                assert_int_equal(d.verdict, EGRESS_DENY);
                egress_policy_decide(e, "open.example.org", 443, "GET", odd[i], &d);
                assert_int_equal(d.verdict, EGRESS_DENY);
        }

        /* a denial by path needs eyes, also where the permission passes */
        tree_expect(e, "open.example.org", 443, NULL, NULL, EGRESS_INSPECT, "allow/1", "allowed");
        tree_expect(e, "open.example.org", 80, NULL, NULL, EGRESS_PASS, "allow/1", "allowed");
        tree_expect(e, "open.example.org", 80, "GET", "/admin/x", EGRESS_DENY, "deny/0", "denied-by-rule");
        tree_expect(e, "open.example.org", 80, "GET", "/administrator", EGRESS_PASS, "allow/1", "allowed");

        /* parameters of a segment: an origin may drop them, and then these are the path that is denied */
        tree_expect(e, "open.example.org", 80, "GET", "/admin;x/y", EGRESS_DENY, "deny/0", "denied-by-rule");
        tree_expect(e, "open.example.org", 80, "GET", "/admin%3bx=1", EGRESS_DENY, "deny/0", "denied-by-rule");
        tree_expect(e, "open.example.org", 80, "GET", "/;x/admin", EGRESS_DENY, "deny/0", "denied-by-rule");
        tree_expect(e, "open.example.org", 80, "GET", "/x?admin;x", EGRESS_PASS, "allow/1", "allowed");
        tree_expect(e, "api.example.org", 443, "GET", "/v1;x/y", EGRESS_DENY, "deny/1", "denied-by-rule");
        tree_expect(e, "api.example.org", 443, "DELETE", "/v1/drafts/1;x", EGRESS_DENY, "deny/1", "denied-by-rule");

        assert_int_equal(egress_policy_inspected(e, &inspected), 2);
        assert_string_equal(inspected[0], "api.example.org");
        assert_string_equal(inspected[1], "open.example.org");
}

static void test_path_matches(void **state) {
        json_t *prefixes = json_pack("[s,s]", "/v1/", "/exact");

        assert_true(policy_path_matches(NULL, "//anything"));
        assert_true(policy_path_matches(prefixes, "/v1/messages?x=1"));
        assert_true(policy_path_matches(prefixes, "/exact"));
        assert_true(policy_path_matches(prefixes, "/exact/y"));
        assert_false(policy_path_matches(prefixes, "/exactly"));
        assert_false(policy_path_matches(prefixes, "/v1"));
        assert_false(policy_path_matches(prefixes, "/v1/../v2"));
        json_decref(prefixes);
}

/* Beyond ASCII: bytes that some decoders take for a dot or a slash, and characters that some origins fold into one, are outside a
 * permission and inside a denial; a letter is a letter. */
static void test_folded_paths(void **state) {
        static const char *const odd[] = {
                "/api/%c0%ae%c0%ae/admin", "/api/%c0%ae%c0%ae%c0%afadmin", "/api/%e0%80%ae%e0%80%ae/admin", "/api/%F0%80%80%AE./x", "/api/%c1%9cx",
                "/api/%ef%bc%8e%ef%bc%8e/admin", "/api/\xef\xbc\x8e\xef\xbc\x8e/admin", "/api/.%ef%bc%8e/admin", "/api/..%ef%bc%8fadmin", "/api/..%ef%bc%bcadmin",
                "/api/%e2%80%a4%e2%80%a4/admin", "/api/%e2%80%a5/admin", "/api/..%e2%88%95admin", "/api/..%e2%81%84admin", "/api/..%e2%88%96x", "/api/..%c2%a5x",
                "/api/%ef%b9%92%ef%b9%92/admin", "/api/..%ef%b9%a8admin", "/api/%ef%bc%852e./x", "/api/x%ef%bc%9by", "/api/x%cd%bey", "/api/x%ef%bc%9fy",
                "/api/%ed%a0%80", "/api/caf%e9", "/api/%c3", "/api/%c3/x", "/api/\xc3%28", "/api/%a9", "/api/%f4%90%80%80", "/api/%f8%88%80%80%ae", "/api/%fe", "/api/%c2%85",
        };
        static const char *const plain[] = {
                "/api/caf%c3%a9", "/api/caf\xc3\xa9", "/api/caf\xc3%a9", "/api/%E6%97%A5%E6%9C%AC", "/api/日本", "/api/%f0%9f%98%80", "/api/%e2%80%a6", "/api/%ef%bc%88x%ef%bc%89",
                "/api/x?%c0%ae%c0%ae",
        };
        const EgressPolicy *e = tree_load_egress(*state,
                "{'allow': [{'name': 'a.example.org', 'ports': [443], 'paths': ['/api/']}, {'name': 'b.example.org', 'ports': [443]}],"
                " 'deny': [{'name': 'b.example.org', 'paths': ['/secret']}]}");
        json_t *all = json_pack("[s]", "/**");

        for (size_t i = 0; i < ELEMENTSOF(odd); i++) {
                if (policy_path_matches(all, odd[i]))
                        fail_msg("%s is read in one way", odd[i]);
                tree_expect(e, "a.example.org", 443, "GET", odd[i], EGRESS_DENY, "allow/0", "path");
                tree_expect(e, "b.example.org", 443, "GET", odd[i], EGRESS_DENY, "deny/0", "denied-by-rule");
        }
        for (size_t i = 0; i < ELEMENTSOF(plain); i++) {
                if (!policy_path_matches(all, plain[i]))
                        fail_msg("%s is ambiguous", plain[i]);
                tree_expect(e, "a.example.org", 443, "GET", plain[i], EGRESS_INSPECT, "allow/0", "allowed");
                tree_expect(e, "b.example.org", 443, "GET", plain[i], EGRESS_INSPECT, "allow/1", "allowed");
        }
        json_decref(all);
}

/* As people write names; what is one name to DNS is one to a policy. */
static void test_written_names(void **state) {
        static const char *const same[][2] = {
                { "Bücher.example", "xn--bcher-kva.example" },
                { "BÜCHER.Example.", "xn--bcher-kva.example" },
                { "bu\xcc\x88" "cher.example", "xn--bcher-kva.example" },
                { "XN--bcher-KVA.example", "xn--bcher-kva.example" },
                { "bücher\xe3\x80\x82" "example", "xn--bcher-kva.example" },
                { "faß.example", "xn--fa-hia.example" },
                { "例え.テスト", "xn--r8jz45g.xn--zckzah" },
                { "r3---sn-x.example.org", "r3---sn-x.example.org" },
                { "A.Example.ORG.", "a.example.org" },
                { "bücher.example\xe3\x80\x82", "xn--bcher-kva.example" },
                { "xn--bcher-kva.example.", "xn--bcher-kva.example" },
        };
        static const char *const bad[] = {
                "", ".", "xn--.example", "xn--a.example", "xn--0.example", "xn--bcher-kv.example", "xn--BCHER-kva\xc3\xbc.example",
                "a\xe2\x80\x8d" "b.example", "\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.0.0.1", "bü cher.example", "bü_cher.example", "-bü.example", "bü..example",
                "\xc3.example", "192.0.2.1", "a/b.example", "a.example.org..", "a.example.org...", "bücher.example..", "bücher.example\xe3\x80\x82.",
                "bücher.example.\xe3\x80\x82", "bücher.example\xe3\x80\x82\xe3\x80\x82", "xn--bcher-kva.example..",
        };
        char name[254];

        for (size_t i = 0; i < ELEMENTSOF(same); i++) {
                if (egress_written_name(same[i][0], name))
                        fail_msg("%s is refused", same[i][0]);
                assert_string_equal(name, same[i][1]);
        }
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (!egress_written_name(bad[i], name))
                        fail_msg("%s is taken for %s", bad[i], name);
}

static void test_globs(void **state) {
        static const struct {
                const char *pattern, *path;
                bool covers;
        } cases[] = {
                { "/repos/*/issues", "/repos/x/issues", true },
                { "/repos/*/issues", "/repos/x/issues?q=1", true },
                { "/repos/*/issues", "/repos/x/y/issues", false },
                { "/repos/*/issues", "/repos/x/issues/1", false },
                { "/repos/*/issues", "/repos//issues", false },
                { "/repos/*/issues", "/repos/x;y=1/issues", true },
                { "/repos/*/issues", "/repos/x%3By/issues", true },
                { "/repos/*/issues", "/repos/..%3b/issues", false },
                { "/repos/*/issues/**", "/repos/x/issues/1/2", true },
                { "/repos/*/issues/**", "/repos/x/issues/", true },
                { "/repos/*/issues/**", "/repos/x/issues", false },
                { "/pkg/**/meta.json", "/pkg/a/b/meta.json", true },
                { "/pkg/**/meta.json", "/pkg/meta.json", true },
                { "/pkg/**/meta.json", "/pkg/xmeta.json", false },
                { "/pkg/**/meta.json", "/pkg/a/meta.json.gz", false },
                { "/pkg/**/**", "/pkg/a", true },
                { "/v*/x", "/v1/x", true },
                { "/v*/x", "/v/x", true },
                { "/v*/x", "/v1/2/x", false },
                { "/v**x", "/v1/2/x", true },
                { "/*.git/info/refs", "/a.git/info/refs", true },
                { "/*.git/info/refs", "/a/b.git/info/refs", false },
                { "/**.git/info/refs", "/a/b.git/info/refs", true },
                { "/**", "/", true },
                { "/*a*b*c", "/xaybzc", true },
                { "/*a*b*c", "/xaybzcd", false },
                { "/*aa", "/aaa", true },
                { "/**/a/**/b", "/a/b", true },
                { "/**/a/**/b", "/x/a/y/z/b", true },
                { "/**/a/**/b", "/x/ab", false },
                { "/x%2Ay", "/x*y", true },
                { "/x%2Ay", "/x%2ay", true },
                { "/x%2Ay", "/xzy", false },
                { "/caf%C3%A9", "/caf%c3%a9", true },
                { "/caf%C3%A9", "/caf\xc3\xa9/x", true },
                { "/a!b", "/a%21b", true },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                json_t *patterns = json_pack("[s]", cases[i].pattern);

                if (policy_path_matches(patterns, cases[i].path) != cases[i].covers)
                        fail_msg("%s: %s", cases[i].pattern, cases[i].path);
                json_decref(patterns);
        }
}

/* Globs and prefixes side by side: the one with more literal text wins, the denial at equal length. */
static void test_glob_precedence(void **state) {
        const EgressPolicy *e = tree_load_egress(*state,
                "{'allow': [{'name': 'a.example.org', 'ports': [443], 'paths': ['/repos/', '/repos/mine/issues']},"
                "           {'name': 'a.example.org', 'ports': [443], 'paths': ['/**/read']}],"
                " 'deny': [{'name': 'a.example.org', 'paths': ['/repos/*/issues']},"
                "          {'name': 'a.example.org', 'paths': ['/repos/**']}]}");

        tree_expect(e, "a.example.org", 443, "GET", "/repos/x", EGRESS_DENY, "deny/1", "denied-by-rule");
        tree_expect(e, "a.example.org", 443, "GET", "/repos/x/issues", EGRESS_DENY, "deny/0", "denied-by-rule");
        tree_expect(e, "a.example.org", 443, "GET", "/repos/mine/issues", EGRESS_INSPECT, "allow/0", "allowed");
        tree_expect(e, "a.example.org", 443, "GET", "/x/y/read", EGRESS_INSPECT, "allow/1", "allowed");
        tree_expect(e, "a.example.org", 443, "GET", "/x/y/write", EGRESS_DENY, "allow/0", "path");
}

/* A literal address is allowed by rules about networks alone, and these only within what host.json lists. */
static void test_networks(void **state) {
        Tree *t = *state;
        const EgressPolicy *e;

        tree_put(t, "etc/anchorhold/host.json", "{\"networks\": [\"10.0.0.0/8\", \"fd00:1::/32\"]}");
        e = tree_load_egress(t, "{'allow': [{'network': '10.1.0.0/16', 'ports': [443, {'port': 5432, 'protocol': 'raw'}]},"
                    "           {'network': '10.1.2.0/24', 'ports': [80], 'paths': ['/x']},"
                    "           {'network': 'fd00:1:0::/48', 'ports': [443]}, {'name': '*.example.org', 'ports': [443]}],"
                    " 'deny': [{'network': '10.1.3.4/32'}, {'name': '*.example.org'}]}");

        tree_expect(e, "10.1.9.9", 443, NULL, NULL, EGRESS_PASS, "allow/0", "allowed");
        tree_expect(e, "10.1.9.9", 80, NULL, NULL, EGRESS_DENY, "allow/0", "port");
        tree_expect(e, "10.2.0.1", 443, NULL, NULL, EGRESS_DENY, "", "no-rule");
        tree_expect(e, "10.1.2.1", 443, NULL, NULL, EGRESS_DENY, "allow/1", "port");
        tree_expect(e, "10.1.2.1", 80, NULL, NULL, EGRESS_PASS, "allow/1", "allowed");
        tree_expect(e, "10.1.2.1", 80, "GET", "/y", EGRESS_DENY, "allow/1", "path");
        tree_expect(e, "10.1.3.4", 443, NULL, NULL, EGRESS_DENY, "deny/0", "denied-by-rule");
        tree_expect(e, "fd00:1::7", 443, NULL, NULL, EGRESS_PASS, "allow/2", "allowed");
        tree_expect(e, "fd00:1:1::7", 443, NULL, NULL, EGRESS_DENY, "", "no-rule");
        tree_expect(e, "010.1.9.9", 443, NULL, NULL, EGRESS_DENY, "", "no-rule");
        tree_expect(e, "167839497", 443, NULL, NULL, EGRESS_DENY, "", "no-rule");
        tree_expect(e, "::ffff:10.1.9.9", 443, NULL, NULL, EGRESS_DENY, "", "no-rule");
        tree_expect(e, "10.1.0.0/16", 443, NULL, NULL, EGRESS_DENY, "", "no-rule");
        assert_false(egress_policy_knows(e, "x.example.org", NULL));
}

/* What is a run's own, and what the agreement check asks each policy for: no rule about a network has it. */
static void test_never_networks(void **state) {
        static const struct {
                const char *allow, *deny, *range; /* NULL: nothing is wrong */
        } cases[] = {
                { "192.0.2.0/24", NULL, "192.0.2.1/32" },
                { "192.0.2.1/32", NULL, "192.0.2.1/32" },
                { "192.0.0.0/16", NULL, "192.0.2.1/32" },
                { "192.0.2.0/24", "{'network': '192.0.2.1/32'}", NULL },
                { "192.0.2.0/24", "{'network': '192.0.2.0/30'}", NULL },
                { "192.0.2.0/24", "{'network': '192.0.2.1/32', 'ports': [22]}", "192.0.2.1/32" },
                { "192.0.2.0/24", "{'network': '192.0.2.2/32'}", "192.0.2.1/32" },
                { "192.0.2.0/24", "{'network': '192.0.0.0/16'}", "192.0.2.1/32" }, /* what is less specific loses */
                { "192.0.2.2/32", NULL, NULL },
                { "192.0.2.128/25", NULL, NULL },
                { "198.18.0.0/15", NULL, "198.18.0.0/15" },
                { "198.18.5.0/24", NULL, "198.18.0.0/15" },
                { "198.16.0.0/12", NULL, "198.18.0.0/15" },
                { "198.16.0.0/12", "{'network': '198.18.0.0/16'}", "198.18.0.0/15" },
                { "198.16.0.0/12", "{'network': '198.18.0.0/15'}", NULL },
                { "198.20.0.0/16", NULL, NULL },
                { "127.0.0.1/32", NULL, "127.0.0.0/8" },
                { "169.254.169.254/32", NULL, "169.254.0.0/16" },
                { "168.0.0.0/6", NULL, "169.254.0.0/16" },
                { "10.255.255.1/32", NULL, "10.255.255.0/30" },
                { "10.255.255.0/30", NULL, "10.255.255.0/30" },
                { "10.255.255.4/30", NULL, NULL },
                { "10.0.0.0/8", NULL, NULL }, /* a site's own, of which the proxy reaches no run's link */
                { "2001:db8::/32", NULL, NULL },
        };
        Tree *t = *state;

        tree_put(t, "etc/anchorhold/host.json", "{\"networks\": [\"0.0.0.0/1\", \"128.0.0.0/1\", \"2001:db8::/32\"]}");
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char text[512];

                (void) snprintf(text, sizeof(text), "{'allow': [{'name': 'a.example.org', 'ports': [443]}, {'network': '%s', 'ports': [80]}], 'deny': [%s]}",
                                cases[i].allow, cases[i].deny ?: "");
                for (char *p = text; (p = strchr(p, '\''));)
                        *p = '"';
                tree_put(t, "etc/anchorhold/policy/egress/x.json", text);
                tree_load(t);
                assert_int_equal(t->n_findings, cases[i].range ? 1 : 0);
                if (!cases[i].range)
                        continue;
                assert_string_equal(t->findings[0].pointer, "/allow/1/network");
                assert_non_null(strstr(t->findings[0].reason, cases[i].range));
        }
}

/* Each address that is asked for is among them. */
static void test_asked_addresses(void **state) {
        static const char *const asked[] = { EGRESS_ASKED_METADATA, EGRESS_ASKED_LOOPBACK, EGRESS_ASKED_HOST };
        Tree *t = *state;

        tree_put(t, "etc/anchorhold/host.json", "{\"networks\": [\"0.0.0.0/1\", \"128.0.0.0/1\"]}");
        for (size_t i = 0; i < ELEMENTSOF(asked); i++) {
                char text[256];

                (void) snprintf(text, sizeof(text), "{\"allow\": [{\"network\": \"%s/32\", \"ports\": [80]}]}", asked[i]);
                tree_put(t, "etc/anchorhold/policy/egress/x.json", text);
                tree_load(t);
                assert_int_equal(t->n_findings, 1);
                assert_null(policy_find_egress(t->policy, "x", NULL));
        }
}

static void test_lines_and_warnings(void **state) {
        Tree *t = *state;
        const EgressPolicy *e = tree_load_egress(t,
                "{'allow':\n [\n  {'name': 'x.cloudfront.net', 'ports': [443]}, {'name': 'a.example.org',\n   'ports': [443]},\n\n"
                "  {'name': 'y.cloudfront.net', 'ports': [443], 'tls': 'inspect'},\n  {'name': 'me.github.io', 'ports': [443]}]}");
        const PolicyFinding *warnings;
        EgressDecision d;

        egress_policy_decide(e, "a.example.org", 443, NULL, NULL, &d);
        assert_int_equal(d.line, 3);
        assert_non_null(strstr(d.file, "etc/anchorhold/policy/egress/x.json"));
        egress_policy_decide(e, "y.cloudfront.net", 443, NULL, NULL, &d);
        assert_int_equal(d.line, 6);

        assert_int_equal(t->n_findings, 0);
        assert_int_equal(policy_warnings(t->policy, &warnings), 2);
        assert_string_equal(warnings[0].pointer, "/allow/0/name");
        assert_int_equal(warnings[0].line, 3);
        assert_non_null(strstr(warnings[0].reason, "CloudFront"));
        assert_string_equal(warnings[1].pointer, "/allow/3/name");

        tree_put(t, "etc/anchorhold/policy/egress/x.json", "{\"allow\": [\n{\"name\": \"a.example.org\",\n\"ports\": [443,\n8443]}]}");
        tree_load(t);
        assert_int_equal(t->n_findings, 1);
        assert_int_equal(t->findings[0].line, 4);
}

/* Nothing is allowed by what says nothing. */
static void test_empty(void **state) {
        static const char *const texts[] = { "{}", "{'allow': []}", "{'allow': null}", "{'allow': null, 'deny': null}", "{'deny': []}" };
        char first[65] = "";

        for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                const EgressPolicy *e = tree_load_egress(*state, texts[i]);

                tree_expect(e, "a.example.org", 443, NULL, NULL, EGRESS_DENY, "", "no-rule");
                assert_false(egress_policy_knows(e, "a.example.org", NULL));
                if (i > 0)
                        assert_string_equal(first, egress_policy_digest(e));
                strcpy(first, egress_policy_digest(e));
        }
}

static void test_digest(void **state) {
        char first[65];

        strcpy(first, egress_policy_digest(tree_load_egress(*state, "{'allow': [{'name': 'a.example.org', 'ports': [443], 'paths': ['/x']}]}")));
        assert_string_equal(first, egress_policy_digest(tree_load_egress(*state,
                "{'description': 'x', 'deny': [], 'allow': [{'ports': [{'port': 443, 'protocol': 'tls'}], 'tls': 'inspect',"
                " 'paths': ['/x'], 'name': 'a.example.org'}]}")));
        assert_string_not_equal(first, egress_policy_digest(tree_load_egress(*state,
                "{'allow': [{'name': 'a.example.org', 'ports': [443]}]}")));

        /* neither does the order of rules, ports, methods or paths matter, nor the way in which a name is written */
        strcpy(first, egress_policy_digest(tree_load_egress(*state,
                "{'allow': [{'name': 'bücher.example', 'ports': [443, 80], 'methods': ['GET', 'PUT'], 'paths': ['/x', '/y']},"
                " {'name': 'b.example.org', 'ports': [443]}]}")));
        assert_string_equal(first, egress_policy_digest(tree_load_egress(*state,
                "{'allow': [{'name': 'b.example.org', 'ports': [443]}, {'name': 'xn--bcher-kva.example.', 'ports': [80, 443],"
                " 'paths': ['/y', '/x'], 'methods': ['PUT', 'GET']}]}")));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_normalise),
                cmocka_unit_test_setup_teardown(test_names_and_ports, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_precedence, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_requests, tree_setup, tree_teardown),
                cmocka_unit_test(test_path_matches),
                cmocka_unit_test_setup_teardown(test_folded_paths, tree_setup, tree_teardown),
                cmocka_unit_test(test_written_names),
                cmocka_unit_test(test_globs),
                cmocka_unit_test_setup_teardown(test_glob_precedence, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_networks, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_never_networks, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_asked_addresses, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_lines_and_warnings, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_empty, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_weighs_requests, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_digest, tree_setup, tree_teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
