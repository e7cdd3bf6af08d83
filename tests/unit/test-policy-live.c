/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy-tree.h"
#include "util/json.h"

static EgressDecision ask(const EgressPolicy *e, const char *name, uint16_t port, const char *method, const char *path) {
        EgressDecision d;

        egress_policy_decide(e, name, port, method, path, &d);
        return d;
}

static EgressPolicy *amend(const EgressPolicy *e, bool allow, const char *rule) {
        EgressPolicy *p = NULL;
        char *reason = NULL;

        if (egress_policy_amend(e, allow, rule, "alice", &p, &reason) < 0)
                fail_msg("%s: %s", rule, reason);
        assert_null(reason);
        return p;
}

static void refuse(const EgressPolicy *e, bool allow, const char *rule, int error, const char *why) {
        EgressPolicy *p = NULL;
        char *reason = NULL;

        assert_int_equal(egress_policy_amend(e, allow, rule, "alice", &p, &reason), error);
        assert_null(p);
        assert_non_null(reason);
        if (!strstr(reason, why))
                fail_msg("%s: \"%s\" does not say \"%s\"", rule, reason, why);
        free(reason);
}

/* What would end the run within seconds is not taken; its neighbours are. */
static void test_never(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': '*.google.internal', 'ports': [80]}, {'name': 'metadata.google.example', 'ports': [80]}],"
                                             " 'deny': [{'name': 'metadata.google.internal'}]}"),
                           *fresh;
        EgressPolicy *p, *q = NULL;
        char *reason = NULL;

        assert_int_equal(ask(e, "metadata.google.internal", 80, NULL, NULL).verdict, EGRESS_DENY);
        assert_int_equal(ask(e, "other.google.internal", 80, NULL, NULL).verdict, EGRESS_PASS);
        refuse(e, true, "metadata.google.internal:80", -EPERM, "metadata service");
        refuse(e, true, "Metadata.Google.Internal:443", -EPERM, "metadata service");
        refuse(e, true, "{\"name\":\"localhost\",\"ports\":[80]}", -EPERM, "the host itself");
        refuse(NULL, true, "*.ec2.internal:80", -EPERM, "instance-data.ec2.internal would be allowed");
        egress_policy_free(amend(e, false, "metadata.google.internal:80"));
        egress_policy_free(amend(e, true, "instance.ec2.internal:80"));

        /* denied by the same policy, whichever of its parts says so; and a new file that does not say it any more is not taken */
        p = amend(e, true, "*.google.internal:443");
        fresh = tree_load_egress(*state, "{'allow': [{'name': 'a.example.org', 'ports': [443]}]}");
        assert_int_equal(egress_policy_rebase(fresh, p, &q, &reason), -EPERM);
        assert_non_null(strstr(reason, "metadata.google.internal would be allowed"));
        free(reason);
        egress_policy_free(p);
}

/* The port, and the rule that beats the permission; "" if it takes effect. */
static void assert_overruled(const EgressPolicy *p, int port, const char *rule) {
        json_t *list = egress_policy_overruled(p), *first = json_array_get(list, 0);

        assert_non_null(list);
        assert_string_equal(first ? json_string_value(json_object_get(first, "rule")) : "", rule);
        assert_int_equal(json_integer_value(json_object_get(first, "port")), port);
        json_decref(list);
}

/* A permission that is beaten is known to be, and the live denial that beats it can be taken back. */
static void test_overruled(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'a.example.org', 'ports': [443]}], 'deny': [{'name': 'bad.example.net', 'ports': [80]}]}");
        EgressPolicy *p = amend(e, true, "other.example.net:80"), *q, *again;

        assert_overruled(p, 0, "");
        q = amend(p, false, "other.example.net");
        again = amend(q, true, "other.example.net:80");
        assert_string_equal(egress_policy_digest(again), egress_policy_digest(q));
        assert_overruled(again, 80, "live/2");
        assert_string_equal(ask(again, "other.example.net", 80, NULL, NULL).rule, "live/2");

        refuse(again, false, "live/2", -EINVAL, "taken back by \"allow\"");
        refuse(again, true, "live/9", -EINVAL, "no live rule");
        refuse(again, true, "live/", -EINVAL, "is no rule");
        egress_policy_free(p);
        p = amend(again, true, "live/2");
        assert_int_equal(ask(p, "other.example.net", 80, NULL, NULL).verdict, EGRESS_PASS);
        assert_overruled(p, 0, "");
        egress_policy_free(again);
        egress_policy_free(q);

        /* one of the file's is no live rule, and stands */
        q = amend(p, true, "{\"name\":\"bad.example.net\",\"ports\":[443,80]}");
        assert_overruled(q, 80, "egress/x.json#/deny/0");
        egress_policy_free(q);

        /* without any live rule the policy is the file's again */
        q = amend(e, false, "a.example.org");
        again = amend(q, true, "live/1");
        assert_string_equal(egress_policy_digest(again), egress_policy_digest(e));
        egress_policy_free(again);
        egress_policy_free(q);

        /* a wildcard is narrowed by a denial below it, and beaten by its own */
        q = amend(e, false, "x.example.net");
        again = amend(q, true, "*.example.net:443");
        assert_overruled(again, 0, "");
        egress_policy_free(q);
        q = amend(again, false, "*.example.net");
        egress_policy_free(again);
        again = amend(q, true, "*.example.net:443");
        assert_overruled(again, 443, "live/3");
        egress_policy_free(again);
        egress_policy_free(q);
        egress_policy_free(p);
}

static void test_allow(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': '*.example.org', 'ports': [443]}],\n 'deny': [{'name': 'bad.example.net'}]}");
        EgressPolicy *p = amend(e, true, "db.example.org:5432/raw"), *q;
        EgressDecision d;

        /* it adds, and does not narrow what the wildcard gave */
        d = ask(p, "db.example.org", 5432, NULL, NULL);
        assert_int_equal(d.verdict, EGRESS_PASS);
        assert_int_equal(d.protocol, EGRESS_RAW);
        assert_string_equal(d.rule, "live/1");
        assert_string_equal(d.who, "alice");
        d = ask(p, "db.example.org", 443, NULL, NULL);
        assert_int_equal(d.verdict, EGRESS_PASS);
        assert_string_equal(d.rule, "egress/x.json#/allow/0");
        assert_null(d.who);
        assert_int_equal(ask(e, "db.example.org", 5432, NULL, NULL).verdict, EGRESS_DENY);
        assert_string_not_equal(egress_policy_digest(e), egress_policy_digest(p));

        /* the name can be looked up, and is not counted against the wildcard any more */
        assert_int_equal(egress_policy_name_budget(e, "db.example.org", NULL), 64);
        assert_int_equal(egress_policy_name_budget(p, "db.example.org", NULL), 0);
        q = amend(p, true, "new.example.com:443");
        assert_false(egress_policy_knows(p, "new.example.com", NULL));
        assert_true(egress_policy_knows(q, "new.example.com", NULL));
        assert_string_equal(ask(q, "new.example.com", 443, NULL, NULL).rule, "live/2");
        assert_string_equal(ask(q, "new.example.com", 80, NULL, NULL).reason, "port");
        egress_policy_free(p);

        /* a file's denial stands */
        p = amend(q, true, "bad.example.net:443");
        d = ask(p, "bad.example.net", 443, NULL, NULL);
        assert_int_equal(d.verdict, EGRESS_DENY);
        assert_string_equal(d.rule, "egress/x.json#/deny/0");
        assert_int_equal(d.line, 2);
        egress_policy_free(p);
        egress_policy_free(q);

        /* from nothing */
        p = amend(NULL, true, "a.example.org:443");
        assert_int_equal(ask(p, "a.example.org", 443, NULL, NULL).verdict, EGRESS_PASS);
        assert_int_equal(ask(p, "b.example.org", 443, NULL, NULL).verdict, EGRESS_DENY);
        egress_policy_free(p);
}

/* What anybody may register below is nothing to allow, and something to deny: in a file, and live against all that the file has. */
static void test_deny_suffix(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'me.github.io', 'ports': [443]}, {'name': '*.amazonaws.com', 'ports': [443]}],"
                                             " 'deny': [{'name': '*.s3.amazonaws.com'}, {'name': '*.com'}]}");
        EgressPolicy *p = amend(e, false, "*.github.io"), *q = amend(p, false, "*.com:443");

        assert_int_equal(ask(e, "me.github.io", 443, NULL, NULL).verdict, EGRESS_PASS);
        assert_int_equal(ask(e, "x.amazonaws.com", 443, NULL, NULL).verdict, EGRESS_PASS);
        assert_string_equal(ask(e, "x.s3.amazonaws.com", 443, NULL, NULL).rule, "egress/x.json#/deny/0");
        assert_string_equal(ask(p, "me.github.io", 443, NULL, NULL).rule, "live/1");
        assert_int_equal(ask(p, "x.amazonaws.com", 443, NULL, NULL).verdict, EGRESS_PASS);
        assert_string_equal(ask(q, "x.amazonaws.com", 443, NULL, NULL).rule, "live/2");
        egress_policy_free(q);
        egress_policy_free(p);
}

static void test_deny(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'a.example.org', 'ports': [443, 80], 'paths': ['/v1']},"
                                             " {'name': '*.example.org', 'ports': [443, 80]}]}");
        EgressPolicy *p = amend(e, false, "a.example.org"), *q, *back;
        EgressDecision d;

        /* also against a permission by path, which would win within one file */
        d = ask(p, "a.example.org", 443, NULL, NULL);
        assert_int_equal(d.verdict, EGRESS_DENY);
        assert_string_equal(d.rule, "live/1");
        assert_string_equal(d.reason, "denied-by-rule");
        assert_int_equal(ask(p, "a.example.org", 443, "GET", "/v1").verdict, EGRESS_DENY);
        assert_false(egress_policy_knows(p, "a.example.org", NULL));
        assert_int_equal(ask(p, "b.example.org", 443, NULL, NULL).verdict, EGRESS_PASS);

        /* a wildcard beats exact permissions of the file, not a more specific live one */
        q = amend(e, false, "*.example.org:443");
        assert_int_equal(ask(q, "a.example.org", 443, NULL, NULL).verdict, EGRESS_DENY);
        assert_int_equal(ask(q, "b.example.org", 443, NULL, NULL).verdict, EGRESS_DENY);
        assert_int_equal(ask(q, "b.example.org", 80, NULL, NULL).verdict, EGRESS_PASS);
        back = amend(q, true, "c.example.org:443");
        assert_int_equal(ask(back, "c.example.org", 443, NULL, NULL).verdict, EGRESS_PASS);
        assert_int_equal(ask(back, "b.example.org", 443, NULL, NULL).verdict, EGRESS_DENY);
        egress_policy_free(back);

        /* and is not lessened by a live permission for another port */
        back = amend(q, true, "d.example.org:8443/tls");
        assert_int_equal(ask(back, "d.example.org", 8443, NULL, NULL).verdict, EGRESS_PASS);
        assert_int_equal(ask(back, "d.example.org", 443, NULL, NULL).verdict, EGRESS_DENY);
        egress_policy_free(back);

        /* the opposite takes it back */
        back = amend(q, true, "*.example.org:443");
        assert_int_equal(ask(back, "b.example.org", 443, NULL, NULL).verdict, EGRESS_PASS);
        egress_policy_free(back);
        egress_policy_free(q);
        egress_policy_free(p);
}

static void test_inspection(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'api.example.org', 'ports': [443], 'tls': 'inspect'},"
                                             " {'name': 'b.example.org', 'ports': [443, 80]}]}");
        const char *pattern = NULL;
        EgressPolicy *p;

        refuse(e, true, "{\"name\": \"new.example.org\", \"ports\": [443], \"tls\": \"inspect\"}", -ENOTSUP, "from the next run on");
        refuse(e, true, "{\"name\": \"new.example.org\", \"ports\": [443], \"paths\": [\"/x\"]}", -ENOTSUP, "new.example.org");
        refuse(e, true, "{\"name\": \"*.example.org\", \"ports\": [443], \"tls\": \"inspect\"}", -ENOTSUP, "*.example.org");
        refuse(e, false, "{\"name\": \"b.example.org\", \"paths\": [\"/x\"]}", -ENOTSUP, "b.example.org");
        refuse(NULL, true, "{\"name\": \"new.example.org\", \"ports\": [443], \"tls\": \"inspect\"}", -ENOTSUP, "next run");

        /* what the CA signs for already is fine, and so is what needs no eyes inside TLS */
        p = amend(e, true, "{\"name\": \"api.example.org\", \"ports\": [{\"port\": 8443, \"protocol\": \"tls\"}], \"tls\": \"inspect\"}");
        assert_int_equal(ask(p, "api.example.org", 8443, NULL, NULL).verdict, EGRESS_INSPECT);
        assert_false(egress_policy_inspects_more(p, e, NULL));
        egress_policy_free(p);
        p = amend(e, false, "{\"name\": \"api.example.org\", \"methods\": [\"DELETE\"]}");
        assert_int_equal(ask(p, "api.example.org", 443, "DELETE", "/").verdict, EGRESS_DENY);
        assert_int_equal(ask(p, "api.example.org", 443, "GET", "/").verdict, EGRESS_INSPECT);
        assert_int_equal(ask(p, "api.example.org", 443, NULL, NULL).verdict, EGRESS_INSPECT);
        egress_policy_free(p);
        p = amend(e, false, "{\"name\": \"b.example.org\", \"ports\": [80], \"paths\": [\"/x\"]}");
        assert_int_equal(ask(p, "b.example.org", 80, "GET", "/x").verdict, EGRESS_DENY);
        assert_int_equal(ask(p, "b.example.org", 443, NULL, NULL).verdict, EGRESS_PASS);
        assert_true(egress_policy_inspects_more(p, NULL, &pattern));
        assert_string_equal(pattern, "api.example.org");
        egress_policy_free(p);
}

static void test_bad_rules(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{}");
        EgressPolicy *p, *q;
        char rule[64], *reason = NULL;
        size_t i;

        refuse(e, true, "a.example.org", -EINVAL, "HOST:PORT");
        refuse(e, true, "a.example.org:", -EINVAL, "is no rule");
        refuse(e, true, "a.example.org:0", -EINVAL, "is no rule");
        refuse(e, true, "a.example.org:65536", -EINVAL, "is no rule");
        refuse(e, true, "a.example.org:443x", -EINVAL, "is no rule");
        refuse(e, true, "a.example.org:22", -EINVAL, "what the port carries");
        refuse(e, true, "a.example.org:22/ssh", -EINVAL, "\"tls\", \"http\" or \"raw\"");
        refuse(e, true, "192.0.2.1:443", -EINVAL, "not an address");
        refuse(e, true, "[2001:db8::1]:443", -EINVAL, "host name");
        refuse(e, true, "*.com:443", -EINVAL, "public suffix"); /* a denial of it is another thing: test_deny_suffix() */
        refuse(e, true, "other.example.net..:80", -EINVAL, "empty labels");
        refuse(e, true, "", -EINVAL, "is no rule");
        refuse(e, true, "{\"name\": \"a.example.org\"}", -EINVAL, "/ports: is missing");
        refuse(e, true, "{\"name\": \"a.example.org\", \"ports\": [443], \"origin\": {}}", -EINVAL, "origin");
        refuse(e, true, "{\"network\": \"10.0.0.0/8\", \"ports\": [443]}", -EINVAL, "network");
        refuse(e, true, "{", -EINVAL, "line 1");
        refuse(e, false, "a.example.org:443/tls", -EINVAL, "is no rule");

        /* bounded */
        p = amend(e, false, "x.example.org");
        for (i = 0;; i++) {
                int r;

                (void) snprintf(rule, sizeof(rule), "h%zu.example.org:443", i);
                r = egress_policy_amend(p, true, rule, "alice", &q, &reason);
                if (r < 0)
                        break;
                egress_policy_free(p);
                p = q;
        }
        assert_int_equal(i, 255);
        assert_non_null(strstr(reason, "256 live rules"));
        free(reason);

        /* the same again is no more */
        q = amend(p, true, "h7.example.org:443");
        assert_string_equal(ask(q, "h7.example.org", 443, NULL, NULL).rule, "live/257");
        egress_policy_free(q);
        egress_policy_free(p);
}

static void test_freeze(void **state) {
        Tree *t = *state;
        const EgressPolicy *e;
        EgressPolicy *live, *thawed = NULL;
        char *text, *again, *reason = NULL;
        EgressDecision d;
        size_t size, n;

        tree_put(t, "etc/anchorhold/host.json", "{\"networks\": [\"10.0.0.0/8\"]}");
        e = tree_load_egress(t,
                 "{'description': 'd',\n"
                 " 'allow': [{'name': 'Bücher.example.', 'ports': [443, {'port': 22, 'protocol': 'raw'}]},\n"
                 "           {'name': '*.example.org', 'ports': [443], 'methods': ['GET', 'PUT'], 'paths': ['/a/', '/b/*/c'], 'max_names': 9},\n"
                 "           {'network': '10.1.0.0/16', 'ports': [{'port': 5432, 'protocol': 'raw'}]}],\n"
                 " 'deny': [{'name': '*.example.org', 'ports': [443],\n"
                 "           'paths': ['/a/secret']}]}");
        live = amend(e, false, "q.example.org");

        text = egress_policy_freeze(live, &size);
        assert_non_null(text);
        assert_int_equal(egress_policy_thaw(text, size, &thawed, &reason), 0);
        assert_null(reason);
        assert_string_equal(egress_policy_digest(thawed), egress_policy_digest(live));
        again = egress_policy_freeze(thawed, &n);
        assert_string_equal(again, text);

        d = ask(thawed, "a.example.org", 443, "GET", "/a/secret");
        assert_int_equal(d.verdict, EGRESS_DENY);
        assert_string_equal(d.rule, "egress/x.json#/deny/0");
        assert_non_null(strstr(d.file, "/etc/anchorhold/policy/egress/x.json"));
        assert_int_equal(d.line, 5);
        assert_int_equal(ask(thawed, "a.example.org", 443, "GET", "/a/x").line, 3);
        assert_string_equal(ask(thawed, "q.example.org", 443, NULL, NULL).who, "alice");
        assert_int_equal(ask(thawed, "xn--bcher-kva.example", 22, NULL, NULL).verdict, EGRESS_PASS);
        assert_int_equal(ask(thawed, "10.1.2.3", 5432, NULL, NULL).verdict, EGRESS_PASS);
        assert_int_equal(egress_policy_name_budget(thawed, "a.example.org", NULL), 9);

        for (size_t i = 0; i < size; i++) {
                EgressPolicy *cut = NULL;

                assert_int_equal(egress_policy_thaw(text, i, &cut, NULL), -EINVAL);
        }
        free(text);
        free(again);
        egress_policy_free(thawed);
        egress_policy_free(live);
}

static void test_rebase(void **state) {
        EgressPolicy *live = amend(tree_load_egress(*state, "{'allow': [{'name': 'a.example.org', 'ports': [443]}]}"), true, "l.example.org:443"), *p = NULL;
        const EgressPolicy *fresh;
        char *reason = NULL;

        fresh = tree_load_egress(*state, "{'allow': [{'name': 'b.example.org', 'ports': [443]}]}");
        assert_int_equal(egress_policy_rebase(fresh, live, &p, &reason), 0);
        assert_int_equal(ask(p, "a.example.org", 443, NULL, NULL).verdict, EGRESS_DENY);
        assert_int_equal(ask(p, "b.example.org", 443, NULL, NULL).verdict, EGRESS_PASS);
        assert_int_equal(ask(p, "l.example.org", 443, NULL, NULL).verdict, EGRESS_PASS);
        egress_policy_free(p);
        p = NULL;

        fresh = tree_load_egress(*state, "{'allow': [{'name': 'b.example.org', 'ports': [443], 'tls': 'inspect'}]}");
        assert_int_equal(egress_policy_rebase(fresh, live, &p, &reason), -ENOTSUP);
        assert_non_null(strstr(reason, "b.example.org"));
        free(reason);

        assert_int_equal(egress_policy_rebase(NULL, live, &p, &reason), 0);
        assert_int_equal(ask(p, "l.example.org", 443, NULL, NULL).verdict, EGRESS_PASS);
        egress_policy_free(p);
        egress_policy_free(live);
}

/* The opposite takes a rule back, in whatever order it names methods, paths and ports. */
static void test_order(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'a.example.org', 'ports': [80], 'paths': ['/x']}]}");
        EgressPolicy *first = amend(e, false, "{\"name\": \"b.example.org\", \"ports\": [80], \"methods\": [\"GET\"]}"),
                     *denied = amend(first, false, "{\"name\": \"a.example.org\", \"ports\": [80, 443], \"methods\": [\"PUT\", \"GET\"], \"paths\": [\"/x/1\", \"/x/2\"]}"),
                     *back = amend(denied, true, "{\"name\": \"a.example.org\", \"ports\": [{\"port\": 443, \"protocol\": \"http\"}, 80], \"methods\": [\"PUT\", \"GET\"], \"paths\": [\"/x/2\", \"/x/1\"]}"),
                     *other = amend(denied, true, "{\"name\": \"a.example.org\", \"ports\": [{\"port\": 443, \"protocol\": \"http\"}, 80], \"methods\": [\"PUT\"], \"paths\": [\"/x/2\", \"/x/1\"]}");

        assert_int_equal(ask(denied, "a.example.org", 80, "GET", "/x/1").verdict, EGRESS_DENY);
        assert_int_equal(ask(back, "a.example.org", 80, "GET", "/x/1").verdict, EGRESS_PASS);
        assert_int_equal(ask(back, "b.example.org", 80, "GET", "/").verdict, EGRESS_DENY);
        assert_int_equal(ask(other, "a.example.org", 80, "GET", "/x/1").verdict, EGRESS_DENY);
        egress_policy_free(other);
        egress_policy_free(back);
        egress_policy_free(denied);
        egress_policy_free(first);
}

#define GIT(repository, more) "{\"name\": \"git.example.org\", \"ports\": [443], \"git\": {\"repositories\": [\"" repository "\"], " more "}}"
#define PUSH "\"push\": {\"refs\": [\"refs/heads/x\"]}"

static EgressVerdict git_verdict(const EgressPolicy *e, const char *method, const char *path) {
        return ask(e, "git.example.org", 443, method, path).verdict;
}

/* Rules about git are told apart by what they say of it: none takes the place of another, nor takes back a denial of the whole host. */
static void test_git(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'git.example.org', 'ports': [443], 'git': {'repositories': ['team/app'], 'fetch': true}},"
                                             " {'name': 'git.example.org', 'ports': [443], 'git': {'repositories': ['team/both'], 'fetch': true, 'push': {'refs': ['refs/heads/x']}}}]}");
        EgressPolicy *one = amend(e, true, GIT("team/one", "\"fetch\": true")), *two = amend(one, true, GIT("team/two", "\"fetch\": true")), *denied, *again;

        assert_int_equal(git_verdict(one, "POST", "/team/two/git-upload-pack"), EGRESS_DENY);
        assert_int_equal(git_verdict(two, "POST", "/team/one/git-upload-pack"), EGRESS_INSPECT);
        assert_int_equal(git_verdict(two, "POST", "/team/two/git-upload-pack"), EGRESS_INSPECT);

        denied = amend(e, false, "git.example.org:443");
        assert_int_equal(git_verdict(denied, "POST", "/team/app/git-upload-pack"), EGRESS_DENY);
        again = amend(denied, true, GIT("team/both", "\"fetch\": true"));
        assert_int_equal(git_verdict(again, "POST", "/team/both/git-upload-pack"), EGRESS_INSPECT);
        assert_int_equal(git_verdict(again, "GET", "/team/both/info/refs?service=git-upload-pack"), EGRESS_INSPECT);
        /* the file's permission to push is denied with the rest of the host, at its first request as well */
        assert_int_equal(git_verdict(again, "GET", "/team/both/info/refs?service=git-receive-pack"), EGRESS_DENY);
        assert_int_equal(git_verdict(again, "POST", "/team/both/git-receive-pack"), EGRESS_DENY);
        assert_int_equal(git_verdict(again, "POST", "/team/app/git-upload-pack"), EGRESS_DENY);
        egress_policy_free(again);
        egress_policy_free(denied);
        egress_policy_free(two);
        egress_policy_free(one);

        /* one more service of a repository that the file has: added to what the file allows */
        one = amend(e, true, GIT("team/app", PUSH));
        assert_string_equal(ask(e, "git.example.org", 443, "GET", "/team/app/info/refs?service=git-receive-pack").reason, "git-push");
        assert_string_equal(ask(one, "git.example.org", 443, "GET", "/team/app/info/refs?service=git-receive-pack").rule, "live/1");
        assert_int_equal(git_verdict(one, "POST", "/team/app/git-receive-pack"), EGRESS_INSPECT);
        assert_non_null(ask(one, "git.example.org", 443, "POST", "/team/app/git-receive-pack").git);
        assert_string_equal(ask(one, "git.example.org", 443, "GET", "/team/app/info/refs?service=git-upload-pack").rule, "egress/x.json#/allow/0");
        assert_string_equal(ask(one, "git.example.org", 443, "GET", "/team/app/info/refs").reason, "git-protocol");
        egress_policy_free(one);
}

/* A rule about git says what is done with a repository: what an operator allows of the whole host does not take its place. */
static void test_git_stays_narrow(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'git.example.org', 'ports': [443], 'git': {'repositories': ['team/app'], 'fetch': true}},"
                                             " {'name': 'git.example.org', 'ports': [443], 'git': {'repositories': ['team/both'], 'push': {'refs': ['refs/heads/x']}}}]}");
        static const char *const whole[] = {
                "{\"name\": \"git.example.org\", \"ports\": [443], \"tls\": \"inspect\"}",
                "{\"name\": \"git.example.org\", \"ports\": [443], \"paths\": [\"/team/app.git/git-receive-pack\", \"/team/app/git-receive-pack\"]}",
                "git.example.org:443",
        };

        for (size_t i = 0; i < ELEMENTSOF(whole); i++) {
                EgressPolicy *p = amend(e, true, whole[i]);

                assert_string_equal(ask(p, "git.example.org", 443, "POST", "/team/app/git-receive-pack").reason, "git-push");
                assert_string_equal(ask(p, "git.example.org", 443, "POST", "/team/app.git/git-receive-pack").reason, "git-push");
                assert_string_equal(ask(p, "git.example.org", 443, "GET", "/team/app/info/refs?service=git-receive-pack").reason, "git-push");
                assert_non_null(ask(p, "git.example.org", 443, "POST", "/team/both/git-receive-pack").git);
                /* the control: what it does allow */
                assert_int_equal(git_verdict(p, "GET", "/about"), i == 1 ? EGRESS_DENY : EGRESS_INSPECT);
                assert_int_equal(git_verdict(p, "POST", "/team/app/git-upload-pack"), EGRESS_INSPECT);
                egress_policy_free(p);
        }
}

/* A request is seen because its connection is inspected, whichever rule it is that allows it. */
static void test_request_of_an_inspected_connection(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'a.example.org', 'ports': [443], 'paths': ['/v1']}, {'name': '*.b.example.org', 'ports': [443]}, "
                                             "{'name': 'c.example.org', 'ports': [443]}], 'deny': [{'name': 'x.b.example.org', 'methods': ['DELETE']}]}");
        EgressPolicy *p = amend(e, true, "a.example.org:443"), *q = amend(p, false, "a.example.org");

        assert_int_equal(ask(e, "a.example.org", 443, "GET", "/v2").verdict, EGRESS_DENY);
        assert_int_equal(ask(p, "a.example.org", 443, NULL, NULL).verdict, EGRESS_INSPECT);
        assert_int_equal(ask(p, "a.example.org", 443, "GET", "/v2").verdict, EGRESS_INSPECT);
        assert_int_equal(ask(q, "a.example.org", 443, "GET", "/v2").verdict, EGRESS_DENY);

        assert_int_equal(ask(e, "x.b.example.org", 443, NULL, NULL).verdict, EGRESS_INSPECT);
        assert_int_equal(ask(e, "x.b.example.org", 443, "GET", "/").verdict, EGRESS_INSPECT);
        assert_int_equal(ask(e, "x.b.example.org", 443, "DELETE", "/").verdict, EGRESS_DENY);
        assert_int_equal(ask(e, "c.example.org", 443, "GET", "/").verdict, EGRESS_PASS);
        egress_policy_free(q);
        egress_policy_free(p);
}

/* What a workflow's credentials ask of its policy, they ask of each one that it is changed to. */
static void test_bounds(void **state) {
        static const char *const bounds = "[{\"credential\": \"login\", \"hosts\": [\"api.example.org\", \"other.example.org\"], \"ports\": [443, 8443], \"content\": [\"/login\"]},"
                                          " {\"credential\": \"token\", \"hosts\": [\"head.example.org\"], \"ports\": [443]}]";
        static const struct {
                const char *rule, *reason; /* NULL: fine */
        } cases[] = {
                { "{\"name\": \"api.example.org\", \"ports\": [443], \"methods\": [\"PUT\"], \"paths\": [\"/notes\"]}", "could store the value" },
                { "{\"name\": \"api.example.org\", \"ports\": [443], \"methods\": [\"POST\"]}", "could store the value" },
                { "{\"name\": \"api.example.org\", \"ports\": [443], \"tls\": \"inspect\"}", "could store the value" },
                { "{\"name\": \"*.example.org\", \"ports\": [443], \"tls\": \"pass\"}", "api.example.org:443, where it could store" },
                { "api.example.org:443", "could store the value" },
                { "other.example.org:443", "other.example.org:443, which rule live/1 does not inspect" },
                { "api.example.org:8443/tls", "api.example.org:8443, which rule live/1 does not inspect" },
                { "api.example.org:8443/raw", "does not inspect" },
                { "{\"name\": \"api.example.org\", \"ports\": [443], \"methods\": [\"GET\", \"HEAD\"]}", NULL },
                { "{\"name\": \"api.example.org\", \"ports\": [443], \"methods\": [\"PUT\"], \"paths\": [\"/login\"]}", NULL },
                { "{\"name\": \"head.example.org\", \"ports\": [443], \"methods\": [\"PUT\"], \"paths\": [\"/notes\"]}", NULL },
                { "third.example.org:443", NULL },
                { "api.example.org:80", NULL },
                { "*.api.example.org:443", NULL },
        };
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'api.example.org', 'ports': [443], 'methods': ['POST'], 'paths': ['/login']},"
                                             " {'name': 'head.example.org', 'ports': [443], 'methods': ['POST']}]}");
        _cleanup_json_ json_t *j = json_loads(bounds, 0, NULL);

        assert_non_null(j);
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                EgressPolicy *p = amend(e, true, cases[i].rule);

                for (unsigned live_only = 0; live_only < 2; live_only++) {
                        _cleanup_free_ char *reason = NULL;
                        int r = egress_policy_keeps_bounds(p, j, live_only, &reason);

                        if (r != (cases[i].reason ? -EPERM : 0) || (r < 0 && !strstr(reason, cases[i].reason)))
                                fail_msg("%s: %d %s", cases[i].rule, r, reason ?: "");
                }
                egress_policy_free(p);
        }
}

static EgressPolicy *frozen(const EgressPolicy *e) {
        EgressPolicy *p = NULL;
        size_t size;
        char *text = egress_policy_freeze(e, &size);

        assert_non_null(text);
        assert_int_equal(egress_policy_thaw(text, size, &p, NULL), 0);
        free(text);
        return p;
}

static EgressPolicy *then(EgressPolicy *p, EgressPolicy *next) {
        egress_policy_free(p);
        return next;
}

/* The log goes by labels: none is a second rule's, whichever way the first one went, also over a restart and a reload. */
static void test_labels(void **state) {
        const EgressPolicy *e = tree_load_egress(*state, "{'allow': [{'name': 'a.example.org', 'ports': [443]}]}");
        EgressPolicy *p = amend(e, true, "one.example.org:443"), *q = NULL;
        char *reason = NULL;

        /* taken back by its label, by its opposite, and by a repetition */
        p = then(p, amend(p, false, "live/1"));
        assert_string_equal(egress_policy_digest(p), egress_policy_digest(e));
        p = then(p, amend(p, true, "two.example.org:443"));
        assert_string_equal(ask(p, "two.example.org", 443, NULL, NULL).rule, "live/2");
        p = then(p, amend(p, false, "two.example.org:443"));
        assert_string_equal(ask(p, "two.example.org", 443, NULL, NULL).rule, "live/3");
        p = then(p, amend(p, true, "live/3"));

        /* a restart while nothing is left of them */
        p = then(p, frozen(p));
        p = then(p, amend(p, true, "three.example.org:443"));
        assert_string_equal(ask(p, "three.example.org", 443, NULL, NULL).rule, "live/4");

        /* and while something is, but not the last */
        p = then(p, amend(p, true, "four.example.org:443"));
        p = then(p, amend(p, false, "live/5"));
        p = then(p, frozen(p));
        assert_int_equal(egress_policy_rebase(e, p, &q, &reason), 0);
        p = then(p, q);
        p = then(p, amend(p, true, "five.example.org:443"));
        assert_string_equal(ask(p, "five.example.org", 443, NULL, NULL).rule, "live/6");
        assert_string_equal(ask(p, "three.example.org", 443, NULL, NULL).rule, "live/4");
        refuse(p, false, "live/5", -EINVAL, "no live rule");

        /* nor when all are gone, and the file with them */
        p = then(p, amend(p, false, "live/6"));
        p = then(p, amend(p, false, "live/4"));
        assert_int_equal(egress_policy_rebase(NULL, p, &q, &reason), 0);
        p = then(p, frozen(q));
        egress_policy_free(q);
        p = then(p, amend(p, false, "x.example.org"));
        assert_string_equal(ask(p, "x.example.org", 443, NULL, NULL).rule, "live/7");
        egress_policy_free(p);
}

static void test_frozen_labels(void **state) {
        static const char *const wrong[] = { "0", "-1", "1.5", "\"3\"", "null", "2147483648", "3, \"more\": 1" };
        char text[256];
        EgressPolicy *p = NULL;

        for (size_t i = 0; i < ELEMENTSOF(wrong); i++) {
                (void) snprintf(text, sizeof(text), "{\"frozen\": 1, \"files\": {}, \"live\": {}, \"labels\": %s}", wrong[i]);
                assert_int_equal(egress_policy_thaw(text, strlen(text), &p, NULL), -EINVAL);
        }
        /* as it was before there were any */
        (void) snprintf(text, sizeof(text), "{\"frozen\": 1, \"files\": {}, \"live\": {}}");
        assert_int_equal(egress_policy_thaw(text, strlen(text), &p, NULL), 0);
        egress_policy_free(p);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_never, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_overruled, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_allow, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_deny, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_deny_suffix, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_inspection, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_bad_rules, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_freeze, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_labels, tree_setup, tree_teardown),
                cmocka_unit_test(test_frozen_labels),
                cmocka_unit_test_setup_teardown(test_rebase, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_order, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_git, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_git_stays_narrow, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_request_of_an_inspected_connection, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_bounds, tree_setup, tree_teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
