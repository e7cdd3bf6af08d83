/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* policy import: what it makes of sandbox-runtime's settings. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ctl-world.h"
#include "policy/policy.h"
#include "util/json.h"

static void test_import(void **state) {
        const char *settings = put("srt-settings.json",
                "{'network': {'allowedDomains': ['github.com', '*.npmjs.org', 'api.example.com:8443', 'Bücher.example', 'localhost', '*.com', 'evil.example.org',"
                " '10.0.0.1', 'git.example.org:22'], 'deniedDomains': ['*.example.org', 'malicious.com:22'], 'deniedDomainReasons': {'malicious.com:22': 'no ssh'},"
                " 'allowUnixSockets': [], 'allowLocalBinding': false, 'httpProxyPort': 3128, 'novelty': 1},"
                " 'filesystem': {'denyRead': ['~/.ssh'], 'allowWrite': ['.'], 'denyWrite': []}, 'ignoreViolations': {'*': ['/usr']}}");
        static const char *const named[] = {
                "network.allowUnixSockets", "network.allowLocalBinding", "network.httpProxyPort", "network.novelty", "filesystem.denyRead",
                "filesystem.allowWrite", "filesystem.denyWrite", "ignoreViolations", "\"localhost\"", "\"*.com\"", "\"evil.example.org\"", "\"10.0.0.1\"",
        };
        char *policy;

        assert_int_equal(CTL("policy", "import", settings, "--name=ours"), CTL_OK);
        for (size_t i = 0; i < ELEMENTSOF(named); i++)
                assert_has(err, named[i]);
        assert_lacks(err, "allowedDomains has no");
        assert_has(err, "/etc/anchorhold/policy/egress/ours.json");
        assert_has(out, "xn--bcher-kva.example");
        assert_has(out, "no ssh");
        assert_lacks(out, "evil");

        policy = strdup(out);
        tree_put(&tree, "imported.json", policy);
        free(policy);
        (void) put("cases", "pass github.com:443\npass github.com:80\ndeny github.com:22\npass www.npmjs.org:443\ndeny npmjs.org:443\npass api.example.com:8443\n"
                            "pass bücher.example:443\ndeny evil.example.org:443\ndeny localhost:443\ndeny malicious.com:22\ndeny anything.com:443\n");
        {
                char a[300], b[300];

                (void) snprintf(a, sizeof(a), "%s/imported.json", tree.root);
                (void) snprintf(b, sizeof(b), "%s/cases", tree.root);
                assert_int_equal(CTL("policy", "check", a), CTL_OK);
                if (CTL("policy", "test", a, b) != CTL_OK)
                        fail_msg("%s%s", out, err);
        }

        assert_int_equal(CTL("policy", "import", settings, "--name=Not"), CTL_USAGE);
        assert_int_equal(CTL("policy", "import", put("s", "[]")), CTL_FAILED);
        assert_int_equal(CTL("policy", "import", put("s", "{'network': {'allowedDomains': 'x'}}")), CTL_USAGE);
        assert_int_equal(CTL("policy", "import", "/nowhere"), CTL_NOT_FOUND);
}

/* Inspection where it was asked for, but for hosts that are excluded. Those still get no port that a denial takes. */
static void test_import_inspection(void **state) {
        const char *settings = put("srt.json", "{'network': {'allowedDomains': ['api.example.org', '*.example.net'], 'deniedDomains': ['*.half.example.net:80'],"
                                               " 'tlsTerminate': {'excludeDomains': ['pinned.example.net', 'a.half.example.net'], 'caCertPath': '/x', 'caKeyPath': '/y'}}}");
        char a[300], b[300];

        assert_int_equal(CTL("policy", "import", settings), CTL_OK);
        assert_has(err, "caKeyPath");
        assert_lacks(err, "excludeDomains");
        tree_put(&tree, "imported.json", out);
        (void) put("cases", "inspect api.example.org:443\ninspect x.example.net:443\npass pinned.example.net:443\npass pinned.example.net:80\n"
                            "pass a.half.example.net:443\ndeny a.half.example.net:80\n");
        (void) snprintf(a, sizeof(a), "%s/imported.json", tree.root);
        (void) snprintf(b, sizeof(b), "%s/cases", tree.root);
        if (CTL("policy", "test", a, b) != CTL_OK)
                fail_msg("%s%s", out, err);
}

/* ---- whatever the settings are, what import prints loads, and allows nothing that they do not ---- */

/* {"network": {"allowedDomains": […], more}} with n entries like "h7.example.org:8007"; entry has a %zu for the number, or two. */
static const char *many(const char *entry, size_t n, const char *more) {
        static char path[300];
        size_t size;
        char *text;
        FILE *f = open_memstream(&text, &size);

        (void) fputs("{\"network\": {\"allowedDomains\": [", f);
        for (size_t k = 0; k < n; k++) {
                char number[16];

                (void) snprintf(number, sizeof(number), "%zu", 1000 + k);
                (void) fputs(k > 0 ? ", \"" : "\"", f);
                for (const char *p = entry; *p; p++)
                        if (*p == '#')
                                (void) fputs(number, f);
                        else
                                (void) fputc(*p, f);
                (void) fputc('"', f);
        }
        (void) fprintf(f, "]%s}}", more);
        (void) fclose(f);
        tree_put(&tree, "many.json", text);
        free(text);
        (void) snprintf(path, sizeof(path), "%s/many.json", tree.root);
        return path;
}

/* Imports, and checks what comes of it; the policy that it makes, the caller's. */
static Policy *import(const char *settings) {
        PolicyFinding *findings = NULL;
        size_t n_findings = 0;
        Policy *p = NULL;
        char a[300];

        if (CTL("policy", "import", settings) != CTL_OK)
                fail_msg("%s", err);
        tree_put(&tree, "imported.json", out);
        (void) snprintf(a, sizeof(a), "%s/imported.json", tree.root);
        assert_int_equal(policy_load_egress_file(&p, tree.root, a, &findings, &n_findings), 0);
        if (n_findings > 0)
                fail_msg("%s: %s\n%s", findings[0].pointer, findings[0].reason, out);
        return p;
}

static EgressVerdict asked(const Policy *p, const char *name, uint16_t port) {
        const char *const *names;
        EgressDecision d;

        assert_int_equal(policy_list(p, "egress", &names), 1);
        egress_policy_decide(policy_find_egress(p, names[0], NULL), name, port, NULL, NULL, &d);
        return d.verdict;
}

static void refuse_import(const char *settings, const char *why) {
        assert_int_equal(CTL("policy", "import", settings), CTL_FAILED);
        assert_string_equal(out, "");
        assert_has(err, why);
}

static void test_import_bounds(void **state) {
        static const size_t counts[] = { 63, 64, 65, 128, 200, 3000 };
        Policy *p;

        for (size_t i = 0; i < ELEMENTSOF(counts); i++) {
                p = import(many("a.example.org:#", counts[i], ", \"tlsTerminate\": {}"));
                assert_int_not_equal(asked(p, "a.example.org", 1000), EGRESS_DENY);
                assert_int_not_equal(asked(p, "a.example.org", (uint16_t) (1000 + counts[i] - 1)), EGRESS_DENY);
                assert_int_equal(asked(p, "a.example.org", (uint16_t) (1000 + counts[i])), EGRESS_DENY);
                policy_free(p);
        }
        /* TLS among ports of which the last rule has none, and a host without inspection below */
        p = import(many("*.example.org:#", 200, ", \"tlsTerminate\": {\"excludeDomains\": [\"b.example.org\"]}, \"deniedDomains\": [\"*.example.org:1001\"]"));
        assert_int_equal(asked(p, "b.example.org", 1199), EGRESS_PASS);
        assert_int_equal(asked(p, "b.example.org", 1001), EGRESS_DENY);
        assert_int_equal(asked(p, "b.example.org", 1200), EGRESS_DENY);
        policy_free(p);

        p = import(many("h#.example.org", 1024, ", \"tlsTerminate\": {}"));
        assert_int_equal(asked(p, "h2023.example.org", 443), EGRESS_INSPECT);
        policy_free(p);
        refuse_import(many("h#.example.org", 1025, ", \"tlsTerminate\": {}"), "inspection of more than 1024 names");
        p = import(many("h#.example.org", 10000, ""));
        assert_int_equal(asked(p, "h10999.example.org", 443), EGRESS_PASS);
        policy_free(p);
        refuse_import(many("h#.example.org", 10001, ""), "more than 10000 entries");

        /* what the file is called is only a description */
        policy_free(import(put("a\xff\n\"b.json", "{'network': {'allowedDomains': ['a.example.org']}}")));
}

/* What no run may reach is left out, and said. */
static void test_import_never(void **state) {
        Policy *p = import(put("srt.json", "{'network': {'allowedDomains': ['metadata.google.internal', '*.google.internal:80', 'metadata.google.example', 'x.ec2.internal']}}"));

        assert_has(err, "\"metadata.google.internal\" is left out: it is a name that no run may reach");
        assert_has(err, "\"*.google.internal:80\" is left out: it covers a cloud's metadata service");
        assert_int_equal(asked(p, "metadata.google.example", 443), EGRESS_PASS);
        assert_int_equal(asked(p, "x.ec2.internal", 443), EGRESS_PASS);
        policy_free(p);
}

/* A denial of all that is below a public suffix is one like any other: it takes the permissions with it which it covers, as they would
 * win here and do not there, and stands against those that are wider. */
static void test_import_denied_suffix(void **state) {
        Policy *p = import(put("srt.json", "{'network': {'allowedDomains': ['a.example.com', '*.example.com', '*.amazonaws.com', 'b.example.org'],"
                                           " 'deniedDomains': ['*.com:443', '*.s3.amazonaws.com']}}"));

        assert_has(err, "\"a.example.com\" is left out for port 443: network.deniedDomains denies it");
        assert_lacks(err, "network.deniedDomains: ");
        assert_has(out, "\"*.com\"");
        assert_int_equal(asked(p, "a.example.com", 443), EGRESS_DENY);
        assert_int_equal(asked(p, "x.example.com", 443), EGRESS_DENY);
        assert_int_equal(asked(p, "x.s3.amazonaws.com", 80), EGRESS_DENY);
        assert_int_equal(asked(p, "x.amazonaws.com", 443), EGRESS_DENY);
        assert_int_equal(asked(p, "x.amazonaws.com", 80), EGRESS_PASS);
        assert_int_equal(asked(p, "a.example.com", 80), EGRESS_PASS);
        assert_int_equal(asked(p, "b.example.org", 443), EGRESS_PASS);
        policy_free(p);

        p = import(put("srt.json", "{'network': {'allowedDomains': ['octo.github.io', '*.example.org', 'a.example.net', 'b.example.net'],"
                                   " 'deniedDomains': ['*.github.io', '*.example.org', 'a.example.net']}}"));
        assert_has(err, "\"octo.github.io\" is left out");
        assert_has(err, "\"*.example.org\" is left out");
        assert_has(err, "\"a.example.net\" is left out");
        assert_lacks(err, "b.example.net");
        assert_has(out, "\"*.github.io\"");
        assert_int_equal(asked(p, "octo.github.io", 443), EGRESS_DENY);
        assert_int_equal(asked(p, "x.example.org", 443), EGRESS_DENY);
        assert_int_equal(asked(p, "a.example.net", 443), EGRESS_DENY);
        assert_int_equal(asked(p, "b.example.net", 443), EGRESS_PASS);
        policy_free(p);
}

static const char *const entries[] = {
        "a.example.org", "b.example.org", "*.example.org", "*.a.example.org", "x.a.example.org", "a.example.net", "*.example.net", "example.net", "A.Example.NET",
        "b\xc3\xbc" "cher.example", "xn--bcher-kva.example", "a.example.org.", "*", "*.com", "*.org", "*.github.io", "www.github.io", "localhost", "127.0.0.1", "10.0.0.1:80",
        "::1", "[::1]:443", "1", "a..b", "-a.example.org", "a_b.example.org", "*.*.example.org", "a.*.org", "http://a.example.org", "a.example.org/x", "",
        "xn--.example", "a.example.org:", "a.example.org:0", "a.example.org:65536", "a.example.org:x", "*.net:22", "*:22", "*:443",
};
static const char *const asked_names[] = {
        "a.example.org", "b.example.org", "c.example.org", "x.a.example.org", "y.a.example.org", "example.org", "a.example.net", "z.example.net", "example.net",
        "xn--bcher-kva.example", "www.github.io", "localhost", "example.com",
};
static const uint16_t asked_ports[] = { 22, 80, 443, 1000, 1063, 1064, 1100, 8443 };

static unsigned draw(unsigned *seed, unsigned n) {
        *seed = *seed * 1103515245U + 12345U;
        return (*seed >> 16) % n;
}

/* Entries, each also with a port or a range of them; n_ports is of the largest range. */
static json_t *draw_domains(unsigned *seed, unsigned n, unsigned n_ports) {
        json_t *list = json_array();

        for (unsigned k = draw(seed, n + 1); k > 0; k--) {
                const char *entry = entries[draw(seed, ELEMENTSOF(entries))];
                unsigned first = draw(seed, 3) == 0 ? 1000 : asked_ports[draw(seed, ELEMENTSOF(asked_ports))], ports = draw(seed, 2) ? 0 : draw(seed, 4) ? 1 : n_ports;

                if (ports == 0)
                        (void) json_array_append_new(list, json_string(entry));
                for (unsigned i = 0; i < ports; i++)
                        (void) json_array_append_new(list, json_sprintf("%s:%u", entry, first + i));
        }
        return list;
}

/* Of the pool: has it no counterpart as a permission, or as a denial? */
static bool is_left_out(const char *entry, bool deny) {
        static const char *const hosts[] = { "localhost", "*", "*.com", "*.org", "*.net", "*.github.io" };

        for (size_t i = 0; i < (deny ? 1 : ELEMENTSOF(hosts)); i++)
                if (strncmp(entry, hosts[i], strlen(hosts[i])) == 0 && strchr(":", entry[strlen(hosts[i])]))
                        return true;
        return false;
}

/* What sandbox-runtime says: does an entry of the list cover this? An independent, small reading of names in ASCII. `exact`: by an entry that has a
 * counterpart, which without a port is 443 and 80. */
static bool listed(const json_t *list, const char *name, uint16_t port, bool exact) {
        static const char idn[] = "b\xc3\xbc"
                                  "cher.example";

        for (size_t i = 0; i < json_array_size(list); i++) {
                const char *text = json_string_value(json_array_get(list, i));
                bool is_idn = strncmp(text, idn, strlen(idn)) == 0;
                char entry[128], *colon;
                size_t n;

                (void) snprintf(entry, sizeof(entry), "%s%s", is_idn ? "xn--bcher-kva.example" : "", text + (is_idn ? strlen(idn) : 0));
                colon = strrchr(entry, ':');
                if ((colon && (unsigned) atoi(colon + 1) != port) || (exact && (is_left_out(entry, false) || (!colon && port != 443 && port != 80))))
                        continue;
                if (colon)
                        *colon = '\0';
                n = strlen(entry);
                if (n > 0 && entry[n - 1] == '.')
                        entry[--n] = '\0';
                if (strcmp(entry, "*") == 0 || strcasecmp(entry, name) == 0 ||
                    (entry[0] == '*' && strlen(name) >= n && strcasecmp(name + strlen(name) - (n - 1), entry + 1) == 0))
                        return true;
        }
        return false;
}

/* Has the policy in `out` two permissions for one name? */
static bool has_split_rule(void) {
        _cleanup_json_ json_t *policy = json_loads(out, 0, NULL);
        const json_t *allow = json_object_get(policy, "allow");

        for (size_t i = 1; i < json_array_size(allow); i++)
                if (json_equal(json_object_get(json_array_get(allow, i - 1), "name"), json_object_get(json_array_get(allow, i), "name")))
                        return true;
        return false;
}

static void test_import_generated(void **state) {
        unsigned seed = 7, allowed = 0, split = 0;

        for (unsigned round = 0; round < 250; round++) {
                _cleanup_json_ json_t *allow = draw_domains(&seed, 20, 130), *deny = draw_domains(&seed, 2, 3), *exclude = draw_domains(&seed, 2, 1), *settings = NULL;
                _cleanup_free_ char *text = NULL;
                bool whole = true;
                char a[300];
                Policy *p;

                for (size_t i = 0; i < json_array_size(deny); i++)
                        whole = whole && !is_left_out(json_string_value(json_array_get(deny, i)), true);
                settings = json_pack("{s:{s:O, s:O}}", "network", "allowedDomains", allow, "deniedDomains", deny);
                if (draw(&seed, 2))
                        (void) json_object_set_new(json_object_get(settings, "network"), "tlsTerminate", json_pack("{s:O}", "excludeDomains", exclude));
                text = json_dumps(settings, 0);
                assert_non_null(text);
                tree_put(&tree, "generated.json", text);
                (void) snprintf(a, sizeof(a), "%s/generated.json", tree.root);
                p = import(a);
                split += has_split_rule();
                for (size_t i = 0; i < ELEMENTSOF(asked_names); i++)
                        for (size_t k = 0; k < ELEMENTSOF(asked_ports); k++) {
                                const char *name = asked_names[i];
                                uint16_t port = asked_ports[k];
                                bool denied = listed(deny, name, port, false), ours = asked(p, name, port) != EGRESS_DENY;

                                if (ours && (denied || !listed(allow, name, port, false)))
                                        fail_msg("%s:%u is allowed by what came of %s: %s", name, port, text, out);
                                if (!ours && whole && !denied && listed(allow, name, port, true))
                                        fail_msg("%s:%u is not allowed by what came of %s: %s", name, port, text, out);
                                allowed += ours;
                        }
                policy_free(p);
        }
        if (allowed < 1000)
                fail_msg("%u", allowed);
        assert_true(split > 10);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_import, setup, teardown),
                cmocka_unit_test_setup_teardown(test_import_inspection, setup, teardown),
                cmocka_unit_test_setup_teardown(test_import_bounds, setup, teardown),
                cmocka_unit_test_setup_teardown(test_import_never, setup, teardown),
                cmocka_unit_test_setup_teardown(test_import_denied_suffix, setup, teardown),
                cmocka_unit_test_setup_teardown(test_import_generated, setup, teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
