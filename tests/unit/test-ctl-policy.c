/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchorctl's verbs about egress policy, on files. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ctl-world.h"
#include "ctl/ctl-egress.h"
#include "ctl/ctl-policy-log.h"
#include "util/json.h"

static void test_targets(void **state) {
        static const struct {
                const char *text, *name, *path;
                uint16_t port;
                bool http;
        } good[] = {
                { "a.example.org:443", "a.example.org", "", 443, false },
                { "A.Example.ORG.:8443", "a.example.org", "", 8443, false },
                { "bücher.example:80", "xn--bcher-kva.example", "", 80, false },
                { "https://a.example.org", "a.example.org", "/", 443, true },
                { "HTTPS://a.example.org:8443/x?y=1#z", "a.example.org", "/x?y=1", 8443, true },
                { "http://a.example.org?q", "a.example.org", "/?q", 80, true },
                { "http://a.example.org/?q=\\@x", "a.example.org", "/?q=\\@x", 80, true },
                { "ssh://git@a.example.org/repo", "a.example.org", "", 22, false },
                { "postgres://a.example.org/db", "a.example.org", "", 5432, false },
                { "10.1.2.3:443", "10.1.2.3", "", 443, false },
                { "[FD00::0:1]:443", "fd00::1", "", 443, false },
                { "http://[fd00::1]/x", "fd00::1", "/x", 80, true },
        };
        static const char *const bad[] = {
                "", "a.example.org", "a.example.org:", "a.example.org:0", "a.example.org:65536", "a.example.org:44x", ":443", "a_b.example.org:443",
                "1.2.3:443", "[::1:443", "[fd00::1]", "gopher://a.example.org", "https://", "https://:443/", "https://a b.example.org/",
                "http://user:pw@a.example.org?q", "https://evil.example\\@a.example.org/", "https://evil.example\\.a.example.org/", "https://a.example.org\\x", "https://a.example.org/\\x",
                "ssh://git@evil.example@a.example.org/", "ssh://evil.example\\@a.example.org/", "a.example.org..:443", "https://a.example.org../", "b\xc3\xbc" "cher.example..:80",
        };
        CtlTarget t;

        for (size_t i = 0; i < ELEMENTSOF(good); i++) {
                const char *wrong = ctl_target_parse(good[i].text, &t);

                if (wrong)
                        fail_msg("%s %s", good[i].text, wrong);
                assert_string_equal(t.name, good[i].name);
                assert_string_equal(t.path, good[i].path);
                assert_int_equal(t.port, good[i].port);
                assert_int_equal(t.http, good[i].http);
        }
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (!ctl_target_parse(bad[i], &t))
                        fail_msg("%s is taken for %s:%u", bad[i], t.name, t.port);
}

static void test_explain(void **state) {
        char root[128];
        const char *file = put("etc/anchorhold/policy/egress/anthropic.json",
                               "{'allow': [\n {'name': 'api.anthropic.com', 'ports': [443], 'paths': ['/v1']},\n {'name': '*.example.org', 'ports': [443]}],\n"
                               " 'deny': [{'name': 'x.example.org'}]}");
        const EgressPolicy *e;

        (void) snprintf(root, sizeof(root), "--root=%s/", tree.root);
        tree_load(&tree);
        e = policy_find_egress(tree.policy, "anthropic", NULL);

        assert_int_equal(CTL("policy", "explain", root, "code-fix", "https://api.anthropic.com/v1/messages", "--method=POST"), CTL_OK);
        assert_has(out, "inspected");
        assert_has(out, "egress/anthropic.json#/allow/0");
        assert_has(out, file);
        assert_has(out, ".json:2\n");
        assert_has(out, "secrets: anthropic");
        assert_has(out, egress_policy_digest(e));

        assert_int_equal(CTL("policy", "explain", root, "code-fix", "https://api.anthropic.com/v2", "--json=short"), CTL_REFUSED);
        assert_has(out, "\"reason\":\"path\"");
        assert_has(out, "\"line\":2");
        assert_int_equal(CTL("policy", "explain", root, "code-fix", "a.example.org:443"), CTL_OK);
        assert_has(out, "passed through");
        assert_int_equal(CTL("policy", "explain", root, "code-fix", "X.Example.org:443"), CTL_REFUSED);
        assert_has(out, ".json:4\n");
        assert_int_equal(CTL("policy", "explain", root, "code-fix", "10.0.0.1:443"), CTL_REFUSED);
        assert_has(out, "names its network");
        assert_int_equal(CTL("policy", "explain", root, "exec", "a.example.org:443"), CTL_REFUSED);
        assert_has(out, "digest: none");
        assert_int_equal(CTL("policy", "explain", root, "nothing", "a.example.org:443"), CTL_NOT_FOUND);
        assert_int_equal(CTL("policy", "explain", root, "code-fix", "https://a.example.org/x", "--path=/y"), CTL_USAGE);

        /* a run is egressd's to explain */
        assert_int_equal(CTL("policy", "explain", "raaaaaaaaaaaa", "a.example.org:443"), CTL_FAILED);
        assert_has(err, "anchor-egressd-api.socket");
        assert_int_equal(CTL("policy", "explain", "raaaaaaaaaaaa", "a.example.org:443", "--verify"), CTL_USAGE);
}

/* Rules about git, as an operator sees them. */
static void test_git(void **state) {
        const char *policy = put("g.json", "{'allow': [{'name': 'git.example.org', 'ports': [443], 'git': {'repositories': ['team/app'], 'fetch': true,"
                                           " 'push': {'refs': ['refs/heads/agent/*'], 'max_pack': '10M'}}}]}"),
                   *fine = put("git", "inspect https://git.example.org/team/app/info/refs?service=git-upload-pack\n"
                                      "deny https://git.example.org/team/other/info/refs?service=git-upload-pack\n"
                                      "{'expect': 'allow', 'target': 'https://git.example.org/team/app.git/git-receive-pack', 'ref': 'refs/heads/agent/x'}\n"
                                      "{'expect': 'allow', 'target': 'git.example.org:443', 'path': '/team/app/git-receive-pack', 'ref': 'refs/heads/agent/x', 'change': 'fast-forward'}\n"
                                      "{'expect': 'deny', 'target': 'https://git.example.org/team/app/git-receive-pack', 'ref': 'refs/heads/agent/x', 'change': 'force', 'reason': 'git-force'}\n"
                                      "{'expect': 'deny', 'target': 'https://git.example.org/team/app/git-receive-pack', 'ref': 'refs/heads/agent/x', 'change': 'delete', 'reason': 'git-delete'}\n"
                                      "{'expect': 'deny', 'target': 'https://git.example.org/team/app/git-receive-pack', 'ref': 'refs/heads/main', 'reason': 'git-ref'}\n");
        char root[128];

        if (CTL("policy", "test", policy, fine) != CTL_OK)
                fail_msg("%s%s", out, err);
        assert_has(err, "7 cases, 0 differ");
        assert_int_equal(CTL("policy", "test", policy, put("c", "{'expect': 'deny', 'target': 'https://a.example.org/x', 'ref': 'refs/heads/x', 'change': 'sideways'}\n")), CTL_USAGE);

        (void) put("etc/anchorhold/policy/egress/anthropic.json",
                   "{'allow': [{'name': 'git.example.org', 'ports': [443], 'git': {'repositories': ['team/app'], 'fetch': true,"
                   " 'push': {'refs': ['refs/heads/agent/*'], 'max_pack': '10M'}}}, {'name': 'api.anthropic.com', 'ports': [443], 'tls': 'inspect'}]}");
        (void) snprintf(root, sizeof(root), "--root=%s/", tree.root);
        assert_int_equal(CTL("policy", "explain", root, "code-fix", "https://git.example.org/team/app/git-receive-pack", "--method=POST"), CTL_OK);
        assert_has(out, "git: fetch, push to refs/heads/agent/*; no deletions, no forced updates, packs up to 10485760B");
        assert_int_equal(CTL("policy", "explain", root, "code-fix", "https://git.example.org/team/app/info/refs"), CTL_REFUSED);
        assert_has(out, "git-protocol");
        assert_lacks(out, "no deletions");
}

static void test_check(void **state) {
        const char *good = put("one.json", "{'allow': [{'name': 'x.cloudfront.net', 'ports': [443]}]}"),
                   *bad = put("two.json", "{'allow': [\n{'name': 'a.example.org', 'ports': [443]},\n{'name': '*.com', 'ports': [443]}]}");

        assert_int_equal(CTL("policy", "check", good), CTL_OK);
        assert_has(out, "one.json:1: warning: /allow/0/name");
        assert_has(out, "CloudFront");
        assert_int_equal(CTL("policy", "check", good, bad), CTL_FAILED);
        assert_has(out, "two.json:3: /allow/1/name: ");
        assert_int_equal(CTL("policy", "check", "--json=short", good), CTL_OK);
        assert_has(out, "\"level\":\"warning\"");
        assert_int_equal(CTL("policy", "check", "/nowhere.json"), CTL_FAILED);
        assert_has(out, "cannot be read");
}

/* What submit would refuse for want of a template, or of an agent's image in it. */
static void test_check_templates(void **state) {
        char root[128];

        (void) snprintf(root, sizeof(root), "--root=%s/", tree.root);
        assert_int_equal(CTL("policy", "check", root), CTL_OK); /* files of policy alone: nothing is known of templates */
        (void) put("usr/lib/anchorhold/templates/base/manifest.json", "{}");
        (void) put("usr/lib/anchorhold/templates/base/agents/pi.erofs", "");
        (void) put("usr/lib/anchorhold/templates/base/agents/codex.erofs", "");
        assert_int_equal(CTL("policy", "check", root), CTL_FAILED);
        assert_has(out, "code-fix-claude.json:");
        assert_has(out, ": /template: template base has no image of agent claude, which harness claude takes");
        assert_has(err, "1 finding in");
        (void) put("usr/lib/anchorhold/templates/base/agents/claude.erofs", "");
        assert_int_equal(CTL("policy", "check", root), CTL_OK);

        (void) put("etc/anchorhold/policy/workflows/exec.json",
                   "{'template':\n 'other', 'repository': false, 'steps': [{'name': 'exec', 'kind': 'exec', 'timeout': '1min'}],"
                   " 'limits': {'memory': '512M', 'vcpus': 1, 'disk': '1G', 'run': '1h', 'attempts': 1, 'output': '1M', 'bundle': '1M'}}");
        assert_int_equal(CTL("policy", "check", root), CTL_FAILED);
        assert_has(out, "exec.json:2: /template: template other is not installed (");
        assert_int_equal(CTL("policy", "check", "--json=short", root), CTL_FAILED);
        assert_has(out, "\"level\":\"error\"");
}

static void test_test(void **state) {
        const char *policy = put("p.json", "{'allow': [{'name': 'a.example.org', 'ports': [443, 80]}, {'name': 'b.example.org', 'ports': [443], 'paths': ['/v*/x']}]}"),
                   *fine = put("fine", "# all is well\n\n  allow a.example.org:443\r\npass\thttp://a.example.org/x\ndeny a.example.org:22\n"
                                       "inspect https://b.example.org/v1/x PUT\ndeny https://b.example.org/v1/y\ninspect b.example.org:443\n"
                                       "{'expect': 'deny', 'target': 'b.example.org:443', 'method': 'GET', 'path': '/y', 'rule': 'allow/1', 'reason': 'path'}\n"),
                   *wrong = put("wrong", "deny a.example.org:443\npass https://b.example.org/v1/x\n{'expect': 'pass', 'target': 'a.example.org:443', 'rule': 'allow/1'}\npass a.example.org:443\n");

        if (CTL("policy", "test", policy, fine) != CTL_OK)
                fail_msg("%s%s", out, err);
        assert_has(err, "7 cases, 0 differ");
        assert_int_equal(CTL("policy", "test", policy, wrong), CTL_FAILED);
        assert_has(out, "wrong:1: a.example.org:443: expected deny, got pass (allowed, egress/p.json#/allow/0)");
        assert_has(out, "wrong:2: https://b.example.org/v1/x GET: expected pass, got inspect");
        assert_has(out, "wrong:3: a.example.org:443: expected pass by allow/1, got pass");
        assert_lacks(out, "wrong:4");
        assert_int_equal(CTL("policy", "test", "--json=short", policy, wrong), CTL_FAILED);
        assert_has(out, "\"ok\":false");
        assert_has(out, "\"ok\":true");

        assert_int_equal(CTL("policy", "test", policy, put("c", "maybe a.example.org:443\n")), CTL_USAGE);
        assert_int_equal(CTL("policy", "test", policy, put("c", "deny\n")), CTL_USAGE);
        assert_int_equal(CTL("policy", "test", policy, put("c", "deny a b c d\n")), CTL_USAGE);
        assert_int_equal(CTL("policy", "test", policy, put("c", "{'expect': 'deny'}\n")), CTL_USAGE);
        assert_int_equal(CTL("policy", "test", policy, put("c", "{'expect': 'deny', 'target': 'a.example.org:443', 'nothing': 1}\n")), CTL_USAGE);
        assert_has(err, "c:1: ");
        assert_int_equal(CTL("policy", "test", policy, "/nowhere"), CTL_NOT_FOUND);
        assert_int_equal(CTL("policy", "test", put("b.json", "{'allow': [1]}"), fine), CTL_FAILED);
        assert_has(err, "must be an object");
}

static CtlLogRecord record(const char *event, const char *name, int port, const char *reason, const char *detail) {
        return (CtlLogRecord) {
                .event = (char *) event,
                .data = json_pack("{s:s, s:i, s:s, s:s*, s:i}", "name", name, "port", port, "reason", reason, "detail", detail, "count", 2),
        };
}

/* What is suggested for these records, which it frees; it is in `out`, and what is said about it in `err`. */
static void suggest(CtlLogRecord *records, size_t n) {
        size_t out_size, err_size;
        Ctl ctl = {};

        free(out);
        free(err);
        ctl.out = open_memstream(&out, &out_size);
        ctl.err = open_memstream(&err, &err_size);
        assert_int_equal(ctl_policy_suggest(&ctl, "raaaaaaaaaaaa", records, n), CTL_OK);
        (void) fclose(ctl.out);
        (void) fclose(ctl.err);
        for (size_t i = 0; i < n; i++)
                json_decref(records[i].data);
}

/* What was suggested loads, and answers these questions as they say. */
static void assert_suggested(const char *cases) {
        char a[300];

        tree_put(&tree, "suggested.json", out);
        (void) snprintf(a, sizeof(a), "%s/suggested.json", tree.root);
        if (CTL("policy", "check", a) != CTL_OK || CTL("policy", "test", a, put("cases", cases)) != CTL_OK)
                fail_msg("%s%s", out, err);
}

static void test_suggest(void **state) {
        CtlLogRecord records[] = {
                record("dns.refused", "looked.example.org", 53, "no-rule", "A"),
                record("dns.refused", "both.example.org", 53, "no-rule", "A"),
                record("egress.deny", "both.example.org", 22, "no-rule", NULL),
                record("egress.deny", "both.example.org", 443, "port", NULL),
                record("egress.deny", "both.example.org", 443, "port", NULL),
                record("egress.deny", "api.example.org", 443, "path", "GET /v2/x/below/it"),
                record("egress.deny", "api.example.org", 443, "path", "GET /v2/x"),
                record("egress.deny", "api.example.org", 443, "path", "GET /v2/x/below"),
                record("egress.deny", "api.example.org", 443, "path", "HEAD /v2/x/below"),
                record("egress.deny", "api.example.org", 443, "path", "GET /v2/xbeside"),
                record("egress.deny", "api.example.org", 443, "method", "PUT /v1/y"),
                record("egress.deny", "top.example.org", 443, "path", "GET /"),
                record("egress.deny", "api.example.org", 443, "path", "GET /v2/\\x1b"),
                record("egress.deny", "api.example.org", 443, "path", "GET /v2/a*b"),
                record("egress.deny", "169.254.169.254", 80, "literal-address", NULL),
                record("egress.deny", "rebind.example.org", 443, "metadata", "169.254.169.254"),
                record("egress.deny", "front.example.org", 443, "fronting", "other.example.org"),
                record("egress.deny", "denied.example.org", 443, "denied-by-rule", NULL),
                record("egress.deny", "10.0.0.1", 443, "no-rule", NULL),
                record("egress.deny", "metadata.google.internal", 80, "no-rule", NULL),
                record("egress.deny", "x\\x1b.example.org", 443, "no-rule", NULL),
                record("conn.deny", "192.0.2.7", 25, "guest-network", NULL),
                record("credential.misuse", "leak.example.org", 443, "misuse", NULL),
        };
        static const char *const never[] = { "169.254", "rebind", "front.", "denied.example", "10.0.0.1", "google.internal", "x1b", "192.0.2.7", "leak", "a*b" };

        suggest(records, ELEMENTSOF(records));

        for (size_t i = 0; i < ELEMENTSOF(never); i++)
                assert_lacks(out, never[i]);
        assert_has(err, "# Not suggested: 2 blocked for \"fronting\"");
        assert_has(err, "\"literal-address\"");
        assert_has(err, "\"credential-misuse\"");
        assert_has(err, "looked.example.org was only looked up");
        assert_lacks(err, "both.example.org was only");
        /* what is below a path that is suggested has no rule of its own, and rules that differ in their paths alone are one */
        assert_int_equal(count_of(out, "\"name\": \"api.example.org\""), 3);
        assert_suggested("pass looked.example.org:443\ndeny looked.example.org:80\npass both.example.org:22\npass both.example.org:443\ndeny both.example.org:80\n"
                            "inspect https://api.example.org/v2/x\ndeny https://api.example.org/v2/z\ninspect https://api.example.org/v1/y PUT\n"
                            "inspect https://api.example.org/v2/x/below/it\ninspect https://api.example.org/v2/x/below HEAD\ndeny https://api.example.org/v2/x HEAD\n"
                            "inspect https://api.example.org/v2/xbeside\ndeny https://api.example.org/v1/y GET\ninspect https://top.example.org/\ndeny https://top.example.org/a/b\n");
}

static CtlLogRecord with_details(CtlLogRecord r, json_t *details, int count, int unlisted) {
        (void) json_object_set_new(r.data, "details", details);
        (void) json_object_set_new(r.data, "count", json_integer(count));
        if (unlisted > 0)
                (void) json_object_set_new(r.data, "unlisted", json_integer(unlisted));
        return r;
}

static CtlLogRecord by(CtlLogRecord r, const char *actor) {
        r.actor = (char *) actor;
        return r;
}

/* A record that stands for many has each request that it names suggested, in as few rules as say just that. */
static void test_suggest_details(void **state) {
        CtlLogRecord records[] = {
                with_details(record("egress.deny", "api.example.org", 443, "path", "GET /a"),
                             json_pack("[[s,i],[s,i],[s,i],[s,i],[s,i]]", "GET /a", 3, "GET /b/c", 1, "HEAD /a", 1, "GET /a/below", 1, "HEAD /b/c", 1), 9, 2),
                with_details(record("egress.deny", "api.example.org", 443, "method", "PUT /a"), json_pack("[[s,i],[s,i]]", "PUT /a", 1, "GET /d\\x1b", 4), 5, 0),
                /* the pattern for "/" has "/x" in it, but not what is below */
                with_details(record("egress.deny", "top.example.org", 443, "path", "GET /"), json_pack("[[s,i],[s,i],[s,i]]", "GET /", 1, "GET /x", 1, "GET /x/y", 1), 3, 0),
                /* the same at another port; who looked says what it carries */
                by(record("egress.deny", "two.example.org", 9000, "path", "GET /q"), "anchor-proxy@raaaaaaaaaaaa.service"),
                by(record("egress.deny", "two.example.org", 9001, "path", "GET /q"), "anchor-inject@raaaaaaaaaaaa.service"),
                record("egress.deny", "two.example.org", 80, "path", "GET /q"),
        };

        suggest(records, ELEMENTSOF(records));
        assert_has(err, "# Not suggested: 2 blocked for \"which request it was is not in the log\"");
        assert_has(err, "# Not suggested: 4 blocked for \"a path that is not known or is ambiguous\"");
        assert_lacks(err, "is a guess");
        assert_int_equal(count_of(out, "\"name\": \"api.example.org\""), 2);
        assert_int_equal(count_of(out, "\"name\": \"top.example.org\""), 1);
        assert_int_equal(count_of(out, "\"name\": \"two.example.org\""), 1);
        assert_lacks(out, "below");
        assert_suggested("inspect https://api.example.org/a\ninspect https://api.example.org/a HEAD\ninspect https://api.example.org/a PUT\n"
                         "inspect https://api.example.org/b/c\ninspect https://api.example.org/b/c HEAD\ninspect https://api.example.org/a/below\n"
                         "deny https://api.example.org/b/c PUT\ndeny https://api.example.org/b\ndeny https://api.example.org/a DELETE\ndeny https://api.example.org/d\n"
                         "inspect https://top.example.org/\ninspect https://top.example.org/x\ninspect https://top.example.org/x/y\ndeny https://top.example.org/x/z\n"
                         "pass http://two.example.org:9000/q\ninspect https://two.example.org:9001/q\npass http://two.example.org/q\n"
                         "deny http://two.example.org:9000/r\ndeny https://two.example.org:9001/q PUT\ndeny http://two.example.org/r\n");
}

/* What git asked for is no path: a rule about its repository, or nothing. */
static void test_suggest_git(void **state) {
        CtlLogRecord records[] = {
                with_details(record("egress.deny", "git.example.org", 443, "git-repository", "GET /team/one/info/refs?service=git-upload-pack"),
                             json_pack("[[s,i],[s,i],[s,i],[s,i],[s,i]]", "GET /team/one/info/refs?service=git-upload-pack", 1, "POST /team/one.git/git-upload-pack", 1,
                                       "GET /team/two.git/info/refs?service=git-upload-pack", 1, "GET /team/mine/info/refs?service=git-receive-pack", 2,
                                       "POST /team/mine/info/lfs/objects/batch", 3), 8, 0),
                record("egress.deny", "git.example.org", 443, "git-protocol", "GET /team/one/HEAD"),
                record("egress.deny", "git.example.org", 443, "git-push", "GET /team/app/info/refs?service=git-receive-pack"),
                /* a host that had rules about paths alone, and one in the clear, where git has no rules */
                with_details(record("egress.deny", "api.example.org", 443, "path", "GET /a"),
                             json_pack("[[s,i],[s,i],[s,i]]", "GET /a", 1, "GET /x/y/info/refs?service=git-upload-pack", 1, "GET /x/z/info/refs", 1), 3, 0),
                record("egress.deny", "plain.example.org", 80, "path", "GET /team/one/info/refs?service=git-upload-pack"),
                /* what a repository cannot be called */
                record("egress.deny", "git.example.org", 443, "git-repository", "GET /team/%7eme/info/refs?service=git-upload-pack"),
                record("egress.deny", "git.example.org", 443, "git-repository", "GET /team/*/info/refs?service=git-upload-pack"),
        };

        suggest(records, ELEMENTSOF(records));
        assert_has(err, "# Not suggested: 2 blocked for \"a push, whose rule must name the refs\"");
        assert_has(err, "# Not suggested: 3 blocked for \"Git LFS, which goes with a rule about its repository\"");
        assert_has(err, "# Not suggested: 2 blocked for \"git-protocol\"");
        assert_has(err, "# Not suggested: 2 blocked for \"git-push\"");
        assert_has(err, "# Not suggested: 1 blocked for \"git's dumb protocol\"");
        assert_has(err, "# Not suggested: 2 blocked for \"what no rule can say\"");
        assert_int_equal(count_of(out, "\"name\": \"git.example.org\""), 1);
        assert_suggested("inspect https://git.example.org/team/one/info/refs?service=git-upload-pack\ninspect https://git.example.org/team/one.git/git-upload-pack POST\n"
                         "inspect https://git.example.org/team/two/git-upload-pack POST\ndeny https://git.example.org/team/one/info/refs?service=git-receive-pack\n"
                         "deny https://git.example.org/team/one/git-receive-pack POST\ndeny https://git.example.org/team/one/HEAD\ndeny https://git.example.org/team/one/info/refs\n"
                         "deny https://git.example.org/team/mine/info/refs?service=git-upload-pack\ndeny https://git.example.org/team/x/info/refs?service=git-upload-pack\n"
                         "inspect https://api.example.org/a\ninspect https://api.example.org/x/y/git-upload-pack POST\ndeny https://api.example.org/x/z/info/refs\n"
                         "deny https://api.example.org/x/y/git-receive-pack POST\n"
                         "pass http://plain.example.org/team/one/info/refs\ndeny http://plain.example.org/team/one/git-upload-pack POST\n");
}

/* In the clear a path is as good as anything, but not on a host with rules about git, be they those that are suggested. */
static void test_suggest_git_in_the_clear(void **state) {
        CtlLogRecord records[] = {
                with_details(record("egress.deny", "both.example.org", 80, "path", "GET /a"),
                             json_pack("[[s,i],[s,i]]", "GET /a", 1, "GET /team/one/info/refs?service=git-upload-pack", 3), 4, 0),
                record("egress.deny", "both.example.org", 443, "path", "GET /team/one/info/refs?service=git-upload-pack"),
                record("egress.deny", "ruled.example.org", 80, "git-repository", "POST /team/one/git-upload-pack"),
        };

        suggest(records, ELEMENTSOF(records));
        assert_has(err, "# Not suggested: 5 blocked for \"git in the clear, of a host with rules about git\"");
        assert_lacks(out, "ruled.example.org");
        assert_suggested("inspect https://both.example.org/team/one/info/refs?service=git-upload-pack\npass http://both.example.org/a\n"
                         "deny http://both.example.org/team/one/info/refs?service=git-upload-pack\n");
}

/* Names, methods and paths are a guest's to choose: none makes a file that does not load. */
static void test_suggest_hostile(void **state) {
        static CtlLogRecord records[1400];
        char name[64], detail[64];
        size_t n = 0;

        records[n++] = record("dns.refused", "xn--zz.example.org", 53, "no-rule", "A"); /* no name that IDNA knows */
        records[n++] = record("egress.deny", "good.example.org", 443, "no-rule", NULL);
        records[n++] = by(record("egress.deny", "both.example.org", 443, "path", "GET /x"), "anchor-inject@raaaaaaaaaaaa.service");
        records[n++] = by(record("egress.deny", "both.example.org", 443, "path", "GET /y"), "anchor-proxy@raaaaaaaaaaaa.service");
        for (unsigned i = 0; i < 100; i++) {
                (void) snprintf(detail, sizeof(detail), "M%c%c /x", 'A' + i / 26, 'A' + i % 26);
                records[n++] = record("egress.deny", "methods.example.org", 443, "method", detail);
        }
        for (unsigned i = 0; i < 80; i++)
                records[n++] = record("egress.deny", "ports.example.org", (int) (10000 + i), "port", NULL);
        for (unsigned i = 0; i < 300; i++) {
                (void) snprintf(detail, sizeof(detail), "GET /p/%u", i);
                records[n++] = record("egress.deny", "paths.example.org", 443, "path", detail);
        }
        for (unsigned i = 0; i < 40; i++) {
                (void) snprintf(detail, sizeof(detail), "POST /team/r%u/git-upload-pack", i);
                records[n++] = record("egress.deny", "git.example.org", 443, "git-repository", detail);
        }
        while (n < ELEMENTSOF(records)) {
                (void) snprintf(name, sizeof(name), "n%zu.example.org", n);
                records[n++] = record("egress.deny", name, 443, "no-rule", NULL);
        }

        suggest(records, n);
        assert_has(err, "more are left out");
        assert_has(err, "# Not suggested: 2 blocked for \"a second protocol at one port\"");
        assert_has(err, "\"what no rule can say\"");
        assert_lacks(out, "xn--zz");
        assert_suggested("pass good.example.org:443\ninspect https://both.example.org/x\ndeny https://both.example.org/y\ninspect https://methods.example.org/x MAA\n"
                         "pass ports.example.org:10000\npass ports.example.org:10079\ninspect https://paths.example.org/p/0\ninspect https://paths.example.org/p/299\n"
                         "inspect https://git.example.org/team/r0/git-upload-pack POST\ninspect https://git.example.org/team/r39/git-upload-pack POST\n"
                         "pass n600.example.org:443\ndeny n1399.example.org:443\n");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_targets),
                cmocka_unit_test_setup_teardown(test_explain, setup, teardown),
                cmocka_unit_test_setup_teardown(test_git, setup, teardown),
                cmocka_unit_test_setup_teardown(test_check, setup, teardown),
                cmocka_unit_test_setup_teardown(test_check_templates, setup, teardown),
                cmocka_unit_test_setup_teardown(test_test, setup, teardown),
                cmocka_unit_test_setup_teardown(test_suggest, setup, teardown),
                cmocka_unit_test_setup_teardown(test_suggest_details, setup, teardown),
                cmocka_unit_test_setup_teardown(test_suggest_git, setup, teardown),
                cmocka_unit_test_setup_teardown(test_suggest_git_in_the_clear, setup, teardown),
                cmocka_unit_test_setup_teardown(test_suggest_hostile, setup, teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
