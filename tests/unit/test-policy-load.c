/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy-tree.h"
#include "util/json.h"

static void test_vendor(void **state) {
        Tree *t = *state;
        const PolicyWorkflow *w;
        const PolicyCredential *c;
        const char *const *names;
        const char *reason;

        tree_add_vendor(t);
        tree_load(t);
        tree_print(t);
        assert_int_equal(t->n_findings, 0);

        w = policy_find_workflow(t->policy, "code-fix", &reason);
        assert_non_null(w);
        assert_null(reason);
        assert_string_equal(w->template_name, "base");
        assert_string_equal(w->harness, "pi");
        assert_string_equal(w->egress, "anthropic");
        assert_null(w->verify_egress);
        assert_true(w->repository);
        assert_int_equal(w->memory_mib, 1024);
        assert_int_equal(w->disk_mib, 8192);
        assert_int_equal(w->run_s, 3600);
        assert_int_equal(w->n_steps, 2);
        assert_string_equal(w->steps[0].kind, "agent");
        assert_int_equal(w->steps[0].timeout_s, 1800);
        assert_null(w->steps[1].cwd);
        assert_int_equal(w->steps[1].feedback_rounds, 2);
        assert_int_equal(w->n_verify, 1);
        assert_int_equal(strlen(w->digest), 64);

        w = policy_find_workflow(t->policy, "exec", NULL);
        assert_non_null(w);
        assert_null(w->harness);
        assert_null(w->egress);
        assert_int_equal(json_array_size(w->credentials), 0);

        c = policy_find_credential(t->policy, "anthropic", NULL);
        assert_non_null(c);
        assert_string_equal(c->provider, "anthropic");
        assert_int_equal(c->length, 108);

        assert_int_equal(policy_list(t->policy, "workflows", &names), 4);
        assert_string_equal(names[0], "code-fix");
        assert_string_equal(names[3], "exec");
        assert_int_equal(policy_list(t->policy, "nothing", &names), 0);

        assert_non_null(policy_authority(t->policy));
        assert_non_null(policy_find_harness(t->policy, "pi", NULL));
        assert_non_null(policy_find_provider(t->policy, "anthropic", NULL));
        assert_null(policy_find_workflow(t->policy, "nothing", &reason));
        assert_string_equal(reason, "no workflow of that name");
        assert_null(policy_find_workflow(t->policy, NULL, &reason));
}

static void test_empty(void **state) {
        Tree *t = *state;

        tree_load(t);
        assert_int_equal(t->n_findings, 0);
        assert_string_equal(policy_host(t->policy)->accel, "auto");
        assert_null(policy_authority(t->policy));
        assert_int_equal(policy_load(&t->policy, "/dev/null", NULL, NULL), -ENOTDIR);
}

/* The operator's file replaces the vendor's of that name, as a whole; an empty one masks it. */
static void test_override(void **state) {
        Tree *t = *state;
        char digest[65], set[65];
        const char *reason;

        tree_add_vendor(t);
        tree_load(t);
        strcpy(digest, policy_find_workflow(t->policy, "code-fix", NULL)->digest);
        strcpy(set, policy_digest(t->policy));

        /* a description changes nothing but the set's own digest */
        tree_put(t, "etc/anchorhold/policy/egress/anthropic.json",
                 "{\"description\": \"ours\", \"allow\": [{\"name\": \"api.anthropic.com\", \"ports\": [443], \"tls\": \"inspect\"}]}");
        tree_load(t);
        assert_int_equal(t->n_findings, 0);
        assert_string_equal(digest, policy_find_workflow(t->policy, "code-fix", NULL)->digest);
        assert_string_not_equal(set, policy_digest(t->policy));

        tree_put(t, "etc/anchorhold/policy/egress/anthropic.json",
                 "{\"allow\": [{\"name\": \"api.anthropic.com\", \"ports\": [443], \"tls\": \"inspect\"},"
                 "             {\"name\": \"git.example.org\", \"ports\": [443]}]}");
        tree_load(t);
        assert_int_equal(t->n_findings, 0);
        assert_string_not_equal(digest, policy_find_workflow(t->policy, "code-fix", NULL)->digest);
        assert_true(egress_policy_knows(policy_find_egress(t->policy, "anthropic", NULL), "git.example.org", NULL));

        tree_put(t, "etc/anchorhold/policy/workflows/exec.json", "");
        tree_put(t, "etc/anchorhold/policy/workflows/.hidden.json", "{");
        tree_put(t, "etc/anchorhold/policy/workflows/exec.json.orig", "{");
        tree_put(t, "etc/anchorhold/host.json", "{\"accel\": \"tcg\", \"networks\": [\"203.0.113.0/24\"], \"boot_timeout\": \"2min\"}");
        tree_load(t);
        assert_int_equal(t->n_findings, 0);
        assert_null(policy_find_workflow(t->policy, "exec", NULL));
        assert_string_equal(policy_host(t->policy)->accel, "tcg");
        assert_int_equal(policy_host(t->policy)->max_runs, 3);
        assert_int_equal(policy_host(t->policy)->boot_timeout_s, 120);
        assert_int_equal(json_array_size(policy_host(t->policy)->networks), 1);

        /* one bad file takes along what names it, and nothing else; the finding is there once */
        tree_put(t, "etc/anchorhold/policy/providers/anthropic.json", "{");
        tree_load(t);
        assert_int_equal(t->n_findings, 1);
        assert_non_null(tree_finding(t, "/etc/anchorhold/policy/providers/anthropic.json", ""));
        assert_null(policy_find_workflow(t->policy, "code-fix", &reason));
        assert_non_null(strstr(reason, "providers/anthropic.json: line 1"));
        assert_null(policy_find_credential(t->policy, "anthropic", &reason));
        assert_non_null(policy_find_egress(t->policy, "anthropic", NULL));
}

typedef struct Case {
        const char *file;     /* below the policy folder, or host.json, authority.json */
        const char *text;     /* with ' for " */
        const char *pointer;
        const char *reason;   /* a part of it */
} Case;

#define RULE(s) "{'allow': [{" s "}]}"
#define CREDENTIAL(sentinel, rest) "{'sentinel': {" sentinel "}, 'hosts': ['a.example.org'], 'ports': [443], " rest "}"
#define FLOW(rest) "{'template': 'base', 'repository': true, " rest "}"
#define CHECK "{'name': 'c', 'kind': 'check', 'argv': ['make'], 'timeout': '1min'}"
#define AGENT "{'name': 'a', 'kind': 'agent', 'timeout': '1min'}"

static const Case cases[] = {
        { "egress/x.json", "[]", "", "must be an object" },
        { "egress/x.json", "{'allow': [], 'allow': []}", "", "duplicate" },
        { "egress/x.json", "{} {}", "", "line 1" },
        { "egress/Bad.json", "{}", "", "the file's name" },
        { "things/x.json", "{}", NULL, "is no kind of policy" },
        { "egress/x.json", "{'alow': []}", "/alow", "unknown key" },
        { "egress/x.json", "{'a/b~c': 1}", "/a~1b~0c", "unknown key" },
        { "egress/x.json", "{'allow': {}}", "/allow", "must be an array" },
        { "egress/x.json", "{'allow': [1]}", "/allow/0", "must be an object" },
        { "egress/x.json", RULE("'ports': [443]"), "/allow/0/name", "is missing" },
        { "egress/x.json", RULE("'name': 'a.example.org'"), "/allow/0/ports", "is missing" },
        { "egress/x.json", RULE("'name': 'a_b.example.org', 'ports': [443]"), "/allow/0/name", "none has \"_\"" },
        { "egress/x.json", RULE("'name': 'xn--a.example.org', 'ports': [443]"), "/allow/0/name", "IDNA" },
        { "egress/x.json", RULE("'name': 'a\u2488b.example.org', 'ports': [443]"), "/allow/0/name", "IDNA" },
        { "egress/x.json", RULE("'name': '*.github.io', 'ports': [443]"), "/allow/0/name", "public suffix" },
        { "egress/x.json", RULE("'name': '*.xn--p1ai', 'ports': [443]"), "/allow/0/name", "public suffix" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'network': '192.0.2.0/24', 'ports': [443]"), "/allow/0/network", "or about a network" },
        { "egress/x.json", RULE("'network': '192.0.2.0/24', 'ports': [443]"), "/allow/0/network", "host.json lists" },
        { "egress/x.json", RULE("'network': '192.0.2.1/24', 'ports': [443]"), "/allow/0/network", "bits set" },
        { "egress/x.json", RULE("'network': '0.0.0.0/0', 'ports': [443]"), "/allow/0/network", "all addresses" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [443], 'paths': ['/a/***']"), "/allow/0/paths/0", "two \"*\"" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [443], 'paths': ['/*a*b*c*d*e*f*g*h*i']"), "/allow/0/paths/0", "eight wildcards" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [443], 'origin': {}"), "/allow/0/origin", "unknown key" },
        { "egress/x.json", RULE("'name': '192.0.2.1', 'ports': [443]"), "/allow/0/name", "not an address" },
        { "egress/x.json", RULE("'name': '*.com', 'ports': [443]"), "/allow/0/name", "public suffix" },
        { "egress/x.json", RULE("'name': '*.co.uk', 'ports': [443]"), "/allow/0/name", "public suffix" },
        { "egress/x.json", RULE("'name': '*.internal', 'ports': [443]"), "/allow/0/name", "public suffix" },
        { "egress/x.json", RULE("'name': 'metadata.google.internal', 'ports': [80]"), "/allow/0/name", "metadata.google.internal is a cloud's metadata service" },
        { "egress/x.json", RULE("'name': 'Metadata.Google.Internal.', 'ports': [443]"), "/allow/0/name", "metadata service" },
        { "egress/x.json", RULE("'name': 'metadata.tencentyun.com', 'ports': [80]"), "/allow/0/name", "metadata service" },
        { "egress/x.json", RULE("'name': '*.google.internal', 'ports': [80]"), "/allow/0/name", "covers metadata.google.internal" },
        { "egress/x.json", RULE("'name': 'localhost', 'ports': [80]"), "/allow/0/name", "the host itself" },
        { "egress/x.json", RULE("'name': 'anchor-check.invalid', 'ports': [443]"), "/allow/0/name", "agreement check" },
        { "egress/x.json", "{'allow': [{'name': 'a.example.org', 'ports': [443]}, {'name': '*.google.internal', 'ports': [80, 443]}],"
                           " 'deny': [{'name': 'metadata.google.internal', 'ports': [80]}]}",
          "/allow/1/name", "covers metadata.google.internal" },
        { "egress/x.json", RULE("'name': '*', 'ports': [443]"), "/allow/0/name", "wildcard" },
        { "egress/x.json", RULE("'name': 'a.*.org', 'ports': [443]"), "/allow/0/name", "\"*\" stands in one place" },
        { "egress/x.json", RULE("'name': '*.*.org', 'ports': [443]"), "/allow/0/name", "\"*\" stands in one place" },
        { "egress/x.json", RULE("'name': 'a..b', 'ports': [443]"), "/allow/0/name", "empty labels" },
        { "egress/x.json", RULE("'name': '.a.example.org', 'ports': [443]"), "/allow/0/name", "empty labels" },
        { "egress/x.json", RULE("'name': 'a.example.org..', 'ports': [443]"), "/allow/0/name", "empty labels" },
        { "egress/x.json", RULE("'name': 'bücher.example..', 'ports': [443]"), "/allow/0/name", "empty labels" },
        { "egress/x.json", RULE("'name': '-a.example.org', 'ports': [443]"), "/allow/0/name", "begins or ends" },
        { "egress/x.json", RULE("'name': 'a.example.org:443', 'ports': [443]"), "/allow/0/name", "without a port" },
        { "egress/x.json", RULE("'name': '2001:db8::1', 'ports': [443]"), "/allow/0/name", "not an address" },
        { "egress/x.json", RULE("'name': '0x7f.1', 'ports': [443]"), "/allow/0/name", "not an address" },
        { "egress/x.json", RULE("'name': '', 'ports': [443]"), "/allow/0/name", "not empty" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': []"), "/allow/0/ports", "between 1 and" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [0]"), "/allow/0/ports/0", "between 1 and 65535" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [443, 443]"), "/allow/0/ports/1", "twice" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [8443]"), "/allow/0/ports/0", "what the port carries" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [{'port': 22, 'protocol': 'ssh'}]"),
          "/allow/0/ports/0/protocol", "must be \"tls\", \"http\" or \"raw\"" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [443], 'tls': 'maybe'"), "/allow/0/tls", "must be" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [443], 'tls': 'pass', 'paths': ['/x']"),
          "/allow/0/tls", "only be seen inside inspected TLS" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [80], 'tls': 'pass'"), "/allow/0/tls", "carries TLS" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [{'port': 22, 'protocol': 'raw'}], 'methods': ['GET']"),
          "/allow/0/methods", "cannot be seen" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [443], 'methods': ['get']"),
          "/allow/0/methods/0", "capital" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [443], 'paths': ['/a/../b']"),
          "/allow/0/paths/0", "dot segments" },
        { "egress/x.json", RULE("'name': 'a.example.org', 'ports': [443], 'max_names': 2"),
          "/allow/0/max_names", "only a wildcard" },
        { "egress/x.json", "{'allow': [{'name': 'a.example.org', 'ports': [443]},"
                           "           {'name': 'a.example.org', 'ports': [443], 'tls': 'inspect'}]}",
          "/allow/1", "allow/0 passes TLS" },
        { "egress/x.json", "{'deny': [{'name': 'a.example.org', 'tls': 'pass'}]}", "/deny/0/tls", "unknown key" },

        { "providers/x.json", "{'api': 'X', 'hosts': [], 'calls': [], 'usage': {}, 'prices_version': 1, 'prices': {'m': {'input': -1, 'output': 1}}}",
          "/prices/m/input", "between 0 and" },
        { "providers/x.json", "{'usage': {'model': ['usage']}}", "/usage/model/0", "JSON pointer" },
        { "providers/x.json", "{'calls': [{'method': 'POST'}]}", "/calls/0/path", "is missing" },
        { "providers/x.json", "{'calls': [{'method': 'POST', 'path': '/a/***'}]}", "/calls/0/path", "two \"*\"" },
        { "providers/x.json", "{'free': [{'method': 'get', 'path': '/a'}]}", "/free/0/method", "must" },
        { "providers/x.json", "{'request': {'model': ['/m'], 'max_tokens': ['/n']}}", "/request/max_tokens_default", "is missing" },
        { "providers/x.json", "{'estimate': {'bytes_per_token': 0}}", "/estimate/bytes_per_token", "between 1 and 64" },

        { "workflows/x.json", "{'budget': {'run': {'cost': '2.5'}}}", "/budget/run/cost", "2.50 USD" },
        { "workflows/x.json", "{'budget': {'run': {}}}", "/budget/run", "at least one" },
        { "workflows/x.json", "{'budget': {'soft': 80}}", "/budget", "must have a cap" },
        { "workflows/x.json", "{'budget': {'item': {'tokens': 5}}}", "/budget", "nothing would be counted" },
        { "workflows/x.json", "{'budget': {'week': {'tokens': 5}}}", "/budget/week", "unknown key" },

        { "credentials/x.json", CREDENTIAL("'alphabet': 'alnum', 'length': 40", "'places': [{'bearer': true}], 'provider': 'nobody'"),
          "/provider", "there is no provider \"nobody\"" },
        { "credentials/x.json", CREDENTIAL("'prefix': 'sk-', 'alphabet': 'alnum', 'length': 20", "'places': [{'bearer': true}]"),
          "/sentinel/length", "128 random bits" },
        { "credentials/x.json", CREDENTIAL("'prefix': 'a b', 'alphabet': 'alnum', 'length': 99", "'places': [{'bearer': true}]"),
          "/sentinel/prefix", "letters" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'runes', 'length': 40", "'places': [{'bearer': true}]"),
          "/sentinel/alphabet", "must be \"hex\"" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': []"), "/places", "between 1 and" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'bearer': false}]"),
          "/places/0/bearer", "must be true" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'git': 'x-access-token'}, {'git': 'a b'}]"),
          "/places/1/git", "must be a user's name" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'query': 'key'}]"),
          "/places/0/path", "is missing" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'query': 'key', 'method': 'GET', 'path': '/v1/*'}]"),
          "/places/0/path", "no wildcard" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'query': 'key', 'method': 'GET', 'path': '/v1/'}]"),
          "/places/0/path", "not all that is below" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'query': 'a b', 'method': 'GET', 'path': '/v1'}]"),
          "/places/0/query", "letters" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'json': '/key', 'path': '/v1'}]"),
          "/places/0/method", "is missing" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'json': '/key', 'method': 'GET', 'path': '/v1'}]"),
          "/places/0/method", "has a body" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'json': 'key', 'method': 'POST', 'path': '/v1'}]"),
          "/places/0/json", "JSON pointer" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'json': '', 'method': 'POST', 'path': '/v1'}]"),
          "/places/0/json", "whole body" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'form': '', 'method': 'POST', 'path': '/v1'}]"),
          "/places/0/form", "letters" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'basic': 'both'}]"), "/places/0/basic", "must be" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'bearer': true, 'path': '/v1'}]"),
          "/places/0", "belong to a place in a query" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'bearer': true, 'header': 'a'}]"),
          "/places/0", "exactly one" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'bearer': true}], 'on_foreign': 'allow'"),
          "/on_foreign", "must be" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'bearer': true}], 'kind': 'vault'"),
          "/kind", "must be" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40, 'checksum': 'crc32-base62'", "'places': [{'bearer': true}]"),
          "/sentinel/checksum", "alnum" },
        { "credentials/x.json", CREDENTIAL("'prefix': 'ghp_', 'alphabet': 'alnum', 'length': 31, 'checksum': 'crc32-base62'", "'places': [{'bearer': true}]"),
          "/sentinel/length", "between prefix and checksum" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'header': 'Host'}]"),
          "/places/0/header", "lower case" },
        { "credentials/x.json", CREDENTIAL("'alphabet': 'hex', 'length': 40", "'places': [{'header': 'host'}]"),
          "/places/0/header", "routes" },

        { "harness/x.json", "{'argv': ['x'], 'output': 'text'}", "/argv", "{task}" },
        { "harness/x.json", "{'argv': ['x', '{task}'], 'output': 'text', 'env': {'1A': 'x'}}", "/env/1A", "no name for" },
        { "harness/x.json", "{'argv': ['x', '{task}'], 'output': 'text', 'env': {'A': {'sentinel': 'nobody'}}}",
          "/env/A/sentinel", "there is no credential" },
        { "harness/x.json", "{'argv': ['x', '{task}'], 'output': 'text', 'files': [{'path': 'x', 'content': ''}]}",
          "/files/0/path", "absolute" },
        { "harness/x.json", "{'argv': ['x', '{task}'], 'output': 'loud'}", "/output", "must be" },

        { "workflows/x.json", "{'repository': true, 'steps': [" CHECK "]}", "/template", "is missing" },
        { "workflows/x.json", "{'template': '../x', 'repository': true, 'steps': [" CHECK "]}", "/template", "name of a template" },
        { "workflows/x.json", FLOW("'steps': []"), "/steps", "between 1 and" },
        { "workflows/x.json", FLOW("'harness': 'nobody', 'steps': [" CHECK "]"), "/harness", "there is no harness" },
        { "workflows/x.json", FLOW("'egress': 'nowhere', 'steps': [" CHECK "]"), "/egress", "there is no egress policy" },
        { "workflows/x.json", FLOW("'egress': 'anthropic', 'credentials': ['nobody'], 'steps': [" CHECK "]"),
          "/credentials/0", "there is no credential" },
        { "workflows/x.json", FLOW("'credentials': ['anthropic'], 'steps': [" CHECK "]"), "/credentials/0", "without egress" },
        { "workflows/x.json", FLOW("'harness': 'pi', 'steps': [" AGENT "]"), "/harness", "needs the credential \"anthropic\"" },
        { "workflows/x.json", FLOW("'steps': [" AGENT "]"), "/steps/0/kind", "name a harness" },
        { "workflows/x.json", FLOW("'steps': [" CHECK ", " CHECK "]"), "/steps/1/name", "another step" },
        { "workflows/x.json", FLOW("'steps': [{'name': 'c', 'kind': 'check', 'timeout': '1min'}]"), "/steps/0/argv", "is missing" },
        { "workflows/x.json", FLOW("'steps': [{'name': 'c', 'kind': 'check', 'argv': ['make'], 'timeout': 60}]"),
          "/steps/0/timeout", "duration with a unit" },
        { "workflows/x.json", FLOW("'steps': [{'name': 'c', 'kind': 'check', 'argv': ['make'], 'timeout': '8d'}]"),
          "/steps/0/timeout", "between 1s and 7d" },
        { "workflows/x.json", FLOW("'steps': [{'name': 'c', 'kind': 'check', 'argv': ['make'], 'timeout': '1min', 'feedback': {'rounds': 1}}]"),
          "/steps/0/feedback", "no agent step before" },
        { "workflows/x.json", FLOW("'steps': [{'name': 'c', 'kind': 'check', 'argv': ['make', 1], 'timeout': '1min'}]"),
          "/steps/0/argv/1", "must be a string" },
        { "workflows/x.json", FLOW("'steps': [{'name': 'c', 'kind': 'check', 'argv': ['make'], 'timeout': '1min', 'cwd': '/a/../b'}]"),
          "/steps/0/cwd", "\"..\"" },
        { "workflows/x.json", FLOW("'limits': {'memory': 512}, 'steps': [" CHECK "]"), "/limits/memory", "size with a unit" },
        { "workflows/x.json", FLOW("'limits': {'memory': '1M'}, 'steps': [" CHECK "]"), "/limits/memory", "between 128M and 1T" },
        { "workflows/x.json", FLOW("'limits': {'memory': '200000K'}, 'steps': [" CHECK "]"), "/limits/memory", "whole mebibytes" },
        { "workflows/x.json", FLOW("'limits': {'vcpus': 2.5}, 'steps': [" CHECK "]"), "/limits/vcpus", "whole number" },
        { "workflows/x.json", FLOW("'limits': {'cpus': 2}, 'steps': [" CHECK "]"), "/limits/cpus", "unknown key" },
        { "workflows/x.json", FLOW("'steps': [" CHECK "], 'verify': {'steps': [" AGENT "]}"), "/verify/steps/0/kind", "must be" },
        { "workflows/x.json", FLOW("'steps': [" CHECK "], 'verify': {'egress': 'nowhere', 'steps': [" CHECK "]}"),
          "/verify/egress", "there is no egress policy" },
        { "workflows/x.json", FLOW("'egress': 'anthropic', 'credentials': ['anthropic'], 'steps': [" CHECK "], 'verify': {'steps': ["
          "{'name': 'c', 'kind': 'check', 'argv': ['make'], 'timeout': '1min', 'env': {'K': {'sentinel': 'anthropic'}}}]}"),
          "/verify/steps/0/env", "no credential" },
        { "workflows/x.json", "{'template': 'base', 'repository': false, 'steps': [{'name': 'e', 'kind': 'exec', 'timeout': '1h', 'argv': ['x']}]}",
          "/steps/0/argv", "the work item says" },

        { "host.json", "{'accel': 'fast'}", "/accel", "must be \"auto\", \"kvm\" or \"tcg\"" },
        { "host.json", "{'resolvers': ['dns.example.org']}", "/resolvers/0", "address" },
        { "host.json", "{'networks': ['203.0.113.1/24']}", "/networks/0", "bits set" },
        { "host.json", "{'networks': ['203.0.113.0/33']}", "/networks/0", "must be a network" },
        { "host.json", "{'networks': ['0.0.0.0/0']}", "/networks/0", "all addresses" },
        { "host.json", "{'max_runs': 0}", "/max_runs", "between 1 and" },
        { "host.json", "{'boot_timeout': 30}", "/boot_timeout", "must be a duration with a unit" },
        { "host.json", "{'boot_timeout': '30'}", "/boot_timeout", "must be a duration with a unit" },
        { "host.json", "{'boot_timeout': '0s'}", "/boot_timeout", "must be between 1s and 2min" },
        { "host.json", "{'boot_timeout': '121s'}", "/boot_timeout", "must be between 1s and 2min" },
        { "host.json", "{'boot_timeout': '1d'}", "/boot_timeout", "must be between 1s and 2min" },
        { "host.json", "{'strict': true}", "/strict", "must be an object" },
        { "host.json", "{'strict': {}}", "/strict/units", "missing" },
        { "host.json", "{'strict': {'units': ['ssh']}}", "/strict/units/0", "must be a unit" },
        { "host.json", "{'strict': {'units': ['*.service']}}", "/strict/units/0", "must be a unit" },
        { "host.json", "{'strict': {'units': ['a@*b.service']}}", "/strict/units/0", "must be a unit" },
        { "host.json", "{'strict': {'units': ['a/b.service']}}", "/strict/units/0", "must be a unit" },
        { "host.json", "{'strict': {'units': ['.service']}}", "/strict/units/0", "must be a unit" },
        { "host.json", "{'strict': {'units': ['-.slice']}}", "/strict/units/0", "every unit" },
        { "host.json", "{'strict': {'units': ['anchorhold-runs.slice']}}", "/strict/units/0", "grants instead" },
        { "host.json", "{'strict': {'units': [], 'on': false}}", "/strict/on", "unknown key" },
        { "host.json", "{'space': {'bundle': {}}}", "/space/bundle", "unknown key" },
        { "host.json", "{'space': {'reserve': '1G'}}", "/space/reserve", "must be an object" },
        { "host.json", "{'space': {'reserve': {}}}", "/space/reserve", "is no reserve" },
        { "host.json", "{'space': {'reserve': {'age': '1d'}}}", "/space/reserve/age", "unknown key" },
        { "host.json", "{'space': {'reserve': {'percent': 101}}}", "/space/reserve/percent", "between 0 and 100" },
        { "host.json", "{'space': {'bundles': {'size': 1073741824}}}", "/space/bundles/size", "size with a unit" },
        { "host.json", "{'space': {'bundles': {'size': '0B'}}}", "/space/bundles/size", "between 1B and 1024T" },
        { "host.json", "{'space': {'logs': {'age': '0s'}}}", "/space/logs/age", "between 1s and 36500d" },
        { "host.json", "{'space': {'scratch': {'percent': 0}}}", "/space/scratch/percent", "between 1 and 100" },
        { "authority.json", "{'submit': {'groups': ['a b']}}", "/submit/groups/0", "name of a group" },
        { "authority.json", "{'submit': {'users': []}}", "/submit/users", "unknown key" },
};

/* What is left out of "space" is as the vendor has it, also in the vendor's own file; what is there says all about its kind. */
static void test_space(void **state) {
        static const uint64_t gib = UINT64_C(1) << 30;
        _cleanup_(policy_freep) Policy *p = NULL;
        const PolicySpace *space;
        PolicySpace vendor;
        char *reason = NULL;
        Tree t;

        policy_space_init(&vendor);
        tree_new(&t);
        tree_add_vendor(&t);
        assert_int_equal(policy_load_host(&p, t.root, &reason), 0);
        assert_memory_equal(&policy_host(p)->space, &vendor, sizeof(vendor));
        p = policy_free(p);

        tree_put(&t, "etc/anchorhold/host.json", "{\"space\": {\"bundles\": {\"size\": \"8G\"}, \"logs\": {}, \"scratch\": {\"percent\": 50, \"size\": \"6G\"}}}");
        assert_int_equal(policy_load_host(&p, t.root, &reason), 0);
        space = &policy_host(p)->space;
        assert_memory_equal(&space->reserve, &vendor.reserve, sizeof(vendor.reserve));
        assert_int_equal(space->bundles.age_s, 0);
        assert_int_equal(policy_amount_smallest(&space->bundles.max, 10 * gib), 8 * gib);
        assert_true(policy_amount_smallest(&space->logs.max, 10 * gib) == UINT64_MAX);

        /* a maximum is the smaller of both, a reserve the larger */
        assert_int_equal(policy_amount_smallest(&space->scratch, 10 * gib), 5 * gib);
        assert_int_equal(policy_amount_smallest(&space->scratch, 100 * gib), 6 * gib);
        assert_int_equal(policy_amount_largest(&space->reserve, 10 * gib), gib);
        assert_int_equal(policy_amount_largest(&space->reserve, 100 * gib), 5 * gib);
        tree_free(&t);
}

/* What cannot be read as a whole is no configuration; least of all one that says "off". */
static void test_host_alone(void **state) {
        static const char *const wrong[] = { "", "{", "{} {}", "[]", "null", "{\"strict\": 1}", "{\"accel\": \"x\", \"strict\": {\"units\": []}}" };
        _cleanup_(policy_freep) Policy *p = NULL;
        char *reason = NULL;
        Tree t;

        tree_new(&t);
        assert_int_equal(policy_load_host(&p, t.root, &reason), -EINVAL);
        free(reason);

        tree_put(&t, "usr/lib/anchorhold/host.json", "{}");
        tree_put(&t, "etc/anchorhold/policy/egress/x.json", "{"); /* not asked about */
        assert_int_equal(policy_load_host(&p, t.root, &reason), 0);
        assert_null(policy_host(p)->strict_units);
        p = policy_free(p);

        tree_put(&t, "etc/anchorhold/host.json", "{\"strict\": {\"units\": [\"ssh.service\", \"getty@*.service\", \"dev-a\\\\x2db.swap\"]}}");
        assert_int_equal(policy_load_host(&p, t.root, &reason), 0);
        assert_int_equal(json_array_size(policy_host(p)->strict_units), 3);
        p = policy_free(p);

        for (size_t i = 0; i < ELEMENTSOF(wrong); i++) {
                tree_put(&t, "etc/anchorhold/host.json", wrong[i]);
                assert_int_equal(policy_load_host(&p, t.root, &reason), -EINVAL);
                assert_non_null(strstr(reason, "host.json"));
                free(reason);
        }
        tree_free(&t);
}

static void test_findings(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                const Case *c = &cases[i];
                char path[256], reported[300], text[2048];
                const char *reason;
                Tree t;

                tree_new(&t);
                tree_add_vendor(&t);
                (void) snprintf(text, sizeof(text), "%s", c->text);
                for (char *p = text; (p = strchr(p, '\'')); p++)
                        *p = '"';
                (void) snprintf(path, sizeof(path), "etc/anchorhold/%s%s", strchr(c->file, '/') ? "policy/" : "", c->file);
                tree_put(&t, path, text);

                if (c->pointer)
                        (void) snprintf(reported, sizeof(reported), "/%s", path);
                else
                        (void) snprintf(reported, sizeof(reported), "/etc/anchorhold/policy/%.*s",
                                        (int) strcspn(c->file, "/"), c->file);
                tree_load(&t);
                reason = tree_finding(&t, reported, c->pointer ?: "");
                if (!reason || !strstr(reason, c->reason)) {
                        tree_print(&t);
                        fail_msg("case %zu: %s: no finding at %s with \"%s\"", i, c->text, c->pointer, c->reason);
                }

                assert_null(policy_find_workflow(t.policy, "x", NULL));
                assert_null(policy_find_egress(t.policy, "x", NULL));
                assert_string_equal(policy_host(t.policy)->accel, "auto");
                assert_non_null(policy_find_workflow(t.policy, "code-fix", NULL));
                tree_free(&t);
        }
}

/* Five mistakes, five findings. */
static void test_all_findings(void **state) {
        Tree *t = *state;

        tree_add_vendor(t);
        tree_put(t, "etc/anchorhold/policy/workflows/x.json",
                 "{\"templte\": \"base\", \"repository\": 1, \"limits\": {\"run\": \"1y\"}, \"harness\": \"none\", \"steps\": 7}");
        tree_load(t);
        assert_int_equal(t->n_findings, 6);
        assert_non_null(tree_finding(t, "/etc/anchorhold/policy/workflows/x.json", "/templte"));
        assert_non_null(tree_finding(t, "/etc/anchorhold/policy/workflows/x.json", "/template"));
        assert_non_null(tree_finding(t, "/etc/anchorhold/policy/workflows/x.json", "/repository"));
        assert_non_null(tree_finding(t, "/etc/anchorhold/policy/workflows/x.json", "/limits/run"));
        assert_non_null(tree_finding(t, "/etc/anchorhold/policy/workflows/x.json", "/harness"));
        assert_non_null(tree_finding(t, "/etc/anchorhold/policy/workflows/x.json", "/steps"));
}

/* A credential is only of use where its host is inspected. */
static void test_reach(void **state) {
        Tree *t = *state;
        static const char file[] = "/etc/anchorhold/policy/workflows/code-fix.json";

        tree_add_vendor(t);
        tree_copy(t, "policy/workflows/code-fix.json", file + 1);
        tree_put(t, "etc/anchorhold/policy/egress/anthropic.json",
                 "{\"allow\": [{\"name\": \"api.anthropic.com\", \"ports\": [443], \"tls\": \"pass\"}]}");
        tree_load(t);
        assert_non_null(strstr(tree_finding(t, file, "/credentials/0"), "does not inspect"));

        tree_put(t, "etc/anchorhold/policy/egress/anthropic.json", "{\"allow\": []}");
        tree_load(t);
        assert_non_null(strstr(tree_finding(t, file, "/credentials/0"), "allows none of the hosts"));
}

#define GATEWAY_PROVIDER "{'api': 'openai', 'hosts': ['llm-gw.example.org'], 'calls': [{'method': 'POST', 'path': '/v1/chat/completions'}]," \
                         " 'usage': {'model': ['/model'], 'input_tokens': ['/in'], 'output_tokens': ['/out']}, 'prices_version': '1', 'prices': {}}"

/* A value is used, and what that costs is counted: by no file may it be the one and not the other. */
static void test_metered_hosts(void **state) {
        static const char file[] = "/etc/anchorhold/policy/credentials/x.json";
        static const struct {
                const char *hosts, *provider, *pointer, *reason; /* the last two NULL: fine */
        } metered[] = {
                { "'llm-gw.example.org'", "'anthropic'", "/hosts/0", "none of the hosts of provider \"anthropic\"" },
                { "'api.anthropic.com', 'llm-gw.example.org'", "'anthropic'", "/hosts/1", "none of the hosts of provider \"anthropic\"" },
                { "'a.example.org', 'api.openai.com'", "null", "/hosts/1", "a host of provider \"openai\", which the credential does not name" },
                { "'llm-gw.example.org'", "null", "/hosts/0", "a host of provider \"gateway\"" },
                { "'api.anthropic.com'", "'openai'", "/hosts/0", "none of the hosts of provider \"openai\"" },
                { "'api.anthropic.com'", "'anthropic'", NULL, NULL },
                { "'llm-gw.example.org'", "'gateway'", NULL, NULL },
                { "'a.example.org'", "null", NULL, NULL },
        };

        for (size_t i = 0; i < ELEMENTSOF(metered); i++) {
                _cleanup_free_ char *credential = NULL, *provider = strdup(GATEWAY_PROVIDER);
                const char *reason;
                Tree *t = *state;

                credential = text_format("{'sentinel': {'alphabet': 'hex', 'length': 40}, 'hosts': [%s], 'provider': %s, 'ports': [443], 'places': [{'bearer': true}]}",
                                         metered[i].hosts, metered[i].provider);
                for (char *p = credential; *p; p++)
                        *p = *p == '\'' ? '"' : *p;
                for (char *p = provider; *p; p++)
                        *p = *p == '\'' ? '"' : *p;
                tree_add_vendor(t);
                tree_put(t, file + 1, credential);
                tree_put(t, "etc/anchorhold/policy/providers/gateway.json", provider);
                tree_load(t);
                assert_int_equal(t->n_findings, metered[i].reason ? 1 : 0);
                if (metered[i].reason)
                        assert_non_null(strstr(tree_finding(t, file, metered[i].pointer), metered[i].reason));
                assert_int_equal(policy_find_credential(t->policy, "x", &reason) != NULL, !metered[i].reason);
        }
}

/* A value that is content to an origin, where the run can store content. */
static void test_stores(void **state) {
        static const char file[] = "/etc/anchorhold/policy/workflows/x.json";
        static const struct {
                const char *place, *allow, *reason; /* NULL: fine */
        } stores[] = {
                { "{'json': '/key', 'method': 'POST', 'path': '/login'}", "'methods': ['POST', 'GET'], 'paths': ['/login']", NULL },
                { "{'form': 'key', 'method': 'POST', 'path': '/login'}", "'methods': ['GET']", NULL },
                { "{'header': 'x-key'}", "'tls': 'inspect'", NULL },
                { "{'json': '/key', 'method': 'POST', 'path': '/login'}", "'methods': ['POST']", "where it could store the value" },
                { "{'json': '/key', 'method': 'POST', 'path': '/login'}", "'paths': ['/login', '/notes']", "where it could store the value" },
                { "{'query': 'key', 'method': 'GET', 'path': '/feed'}", "'methods': ['PUT'], 'paths': ['/']", "where it could store the value" },
                { "{'query': 'key', 'method': 'GET', 'path': '/feed'}", "'methods': ['GET', 'HEAD', 'OPTIONS']", NULL },
        };

        for (size_t i = 0; i < ELEMENTSOF(stores); i++) {
                _cleanup_free_ char *credential = NULL, *egress = NULL;
                Tree *t = *state;

                credential = text_format("{'sentinel': {'alphabet': 'hex', 'length': 40}, 'hosts': ['api.example.org'], 'ports': [443], 'places': [%s]}",
                                         stores[i].place);
                egress = text_format("{'allow': [{'name': '%s', 'ports': [443], 'tls': 'inspect'%s%s}]}", i % 2 ? "api.example.org" : "*.example.org",
                                     strstr(stores[i].allow, "tls") ? "" : ", ", strstr(stores[i].allow, "tls") ? "" : stores[i].allow);
                for (size_t k = 0; credential[k]; k++)
                        if (credential[k] == '\'')
                                credential[k] = '"';
                for (size_t k = 0; egress[k]; k++)
                        if (egress[k] == '\'')
                                egress[k] = '"';
                tree_add_vendor(t);
                tree_put(t, "etc/anchorhold/policy/credentials/x.json", credential);
                tree_put(t, "etc/anchorhold/policy/egress/x.json", egress);
                tree_put(t, file + 1, "{\"template\": \"base\", \"repository\": false, \"egress\": \"x\", \"credentials\": [\"x\"],"
                                      "\"steps\": [{\"name\": \"p\", \"kind\": \"exec\", \"timeout\": \"1h\"}]}");
                tree_load(t);
                if (stores[i].reason)
                        assert_non_null(strstr(tree_finding(t, file, "/credentials/0"), stores[i].reason));
                else if (!policy_find_workflow(t->policy, "x", NULL)) {
                        const char *why = NULL;

                        (void) policy_find_workflow(t->policy, "x", &why);
                        fail_msg("case %zu: %s", i, why);
                }
        }
}

static void test_odd_files(void **state) {
        Tree *t = *state;
        char path[256], *big;

        tree_put(t, "etc/anchorhold/policy/egress/a.json", "{}");
        (void) snprintf(path, sizeof(path), "%s/etc/anchorhold/policy/egress/b.json", t->root);
        assert_int_equal(mkfifo(path, 0600), 0);
        (void) snprintf(path, sizeof(path), "%s/etc/anchorhold/policy/egress/c.json", t->root);
        assert_int_equal(symlink("nowhere", path), 0);
        (void) snprintf(path, sizeof(path), "%s/etc/anchorhold/policy/egress/d.json", t->root);
        assert_int_equal(symlink("/dev/null", path), 0);
        big = malloc((2 << 20) + 1);
        memset(big, ' ', 2 << 20);
        big[2 << 20] = '\0';
        tree_put(t, "etc/anchorhold/policy/workflows/e.json", big);
        free(big);

        tree_load(t);
        assert_int_equal(t->n_findings, 3);
        assert_string_equal(tree_finding(t, "/etc/anchorhold/policy/egress/b.json", ""), "is not a regular file");
        assert_non_null(strstr(tree_finding(t, "/etc/anchorhold/policy/egress/c.json", ""), "cannot be read"));
        assert_string_equal(tree_finding(t, "/etc/anchorhold/policy/workflows/e.json", ""), "is larger than 1M");
}

static void test_budget(void **state) {
        static const struct {
                const char *text;
                uint64_t value;
        } good[] = { { "2.50 USD", 2500000 }, { "0 USD", 0 }, { "0.000001 USD", 1 }, { "10000000 USD", 10000000000000 }, { "7.1 USD", 7100000 } };
        static const char *const bad[] = { "", "2.50", "2.50USD", "-1 USD", ".5 USD", "1. USD", "0.0000001 USD", "1 EUR", "100000000 USD", "1e3 USD", "10000001 USD" };
        uint64_t value;

        for (size_t i = 0; i < ELEMENTSOF(good); i++) {
                assert_int_equal(policy_parse_cost(good[i].text, &value), 0);
                assert_true(value == good[i].value);
        }
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_true(policy_parse_cost(bad[i], &value) < 0);
}

/* Also what a host's file means that cannot be read: not "no cap". */
static void test_host_budget(void **state) {
        Tree *t = *state;

        tree_put(t, "etc/anchorhold/host.json", "{\"budget\": {\"month\": {\"cost\": \"5 USD\", \"requests\": 7}, \"soft\": 90}}");
        tree_load(t);
        assert_true(policy_host(t->policy)->budget.month.cost_microusd == 5000000);
        assert_true(policy_host(t->policy)->budget.month.requests == 7);
        assert_true(policy_host(t->policy)->budget.month.tokens == POLICY_NO_CAP);
        assert_int_equal(policy_host(t->policy)->budget.soft_percent, 90);
        tree_put(t, "etc/anchorhold/host.json", "{\"budget\": {\"month\": {\"cost\": \"5\"}}}");
        tree_load(t);
        assert_true(policy_host(t->policy)->budget.month.cost_microusd == 0);
        assert_non_null(policy_host_reason(t->policy));
        tree_put(t, "etc/anchorhold/host.json", "{\"budget\": {\"month\": {\"cost\": \"5 USD\"}},}"); /* not even JSON */
        tree_load(t);
        assert_true(policy_host(t->policy)->budget.month.cost_microusd == 0);
        assert_non_null(policy_host_reason(t->policy));
        tree_put(t, "etc/anchorhold/host.json", "{\"max_runs\": 0}"); /* it has none, that much is known */
        tree_load(t);
        assert_true(policy_host(t->policy)->budget.month.cost_microusd == POLICY_NO_CAP);
        assert_non_null(policy_host_reason(t->policy));
        tree_put(t, "etc/anchorhold/host.json", "{}");
        tree_load(t);
        assert_null(policy_host_reason(t->policy));
}

static void test_units(void **state) {
        static const char *const bad_sizes[] = { "", "1", "M", "-1M", "1MB", "1m", "1.5G", " 1M", "1 M" };
        static const char *const bad_durations[] = { "", "1", "s", "-1s", "1m", "1sec", "1h  1s", " 1s", "1h,1s" };
        uint64_t v;

        assert_int_equal(policy_parse_size("512M", &v), 0);
        assert_int_equal(v, 512 << 20);
        assert_int_equal(policy_parse_size("7B", &v), 0);
        assert_int_equal(v, 7);
        assert_int_equal(policy_parse_size("99999999999T", &v), -ERANGE);
        assert_int_equal(policy_parse_size("99999999999999999999B", &v), -ERANGE);
        for (size_t i = 0; i < ELEMENTSOF(bad_sizes); i++)
                assert_int_equal(policy_parse_size(bad_sizes[i], &v), -EINVAL);

        assert_int_equal(policy_parse_duration("1h 30min", &v), 0);
        assert_int_equal(v, 5400);
        assert_int_equal(policy_parse_duration("1d2h3min4s", &v), 0);
        assert_int_equal(v, 86400 + 7200 + 180 + 4);
        assert_int_equal(policy_parse_duration("18446744073709551615d", &v), -ERANGE);
        for (size_t i = 0; i < ELEMENTSOF(bad_durations); i++)
                assert_int_equal(policy_parse_duration(bad_durations[i], &v), -EINVAL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_vendor, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_empty, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_override, tree_setup, tree_teardown),
                cmocka_unit_test(test_space),
                cmocka_unit_test(test_host_alone),
                cmocka_unit_test(test_findings),
                cmocka_unit_test_setup_teardown(test_all_findings, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_reach, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_metered_hosts, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_stores, tree_setup, tree_teardown),
                cmocka_unit_test_setup_teardown(test_odd_files, tree_setup, tree_teardown),
                cmocka_unit_test(test_units),
                cmocka_unit_test(test_budget),
                cmocka_unit_test_setup_teardown(test_host_budget, tree_setup, tree_teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
