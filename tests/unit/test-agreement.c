/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "egress/agreement-api.h"
#include "util/cleanup.h"

static void test_agreement(void **state) {
        static const struct {
                EgressProtocol expected;
                Observed seen;
                const char *reason;
        } cases[] = {
                { EGRESS_TLS,  { EGRESS_TLS, .sni = "api.example.org" }, NULL },
                { EGRESS_TLS,  { EGRESS_TLS, .sni = "API.Example.ORG" }, NULL },
                { EGRESS_TLS,  { EGRESS_TLS, .sni = "api.example.org." }, NULL },
                { EGRESS_TLS,  { EGRESS_TLS }, "no-sni" },
                { EGRESS_TLS,  { EGRESS_TLS, .sni = "other.example.org" }, "fronting" },
                { EGRESS_TLS,  { EGRESS_TLS, .sni = "api.example.org:443" }, "fronting" },
                { EGRESS_TLS,  { EGRESS_TLS, .sni = "203.0.113.1" }, "fronting" },
                { EGRESS_TLS,  { EGRESS_TLS, .sni = "api.example.org", .ech = true }, "ech" },
                { EGRESS_TLS,  { EGRESS_HTTP, .host = "api.example.org" }, "protocol" },
                { EGRESS_TLS,  { EGRESS_RAW }, "protocol" },
                { EGRESS_HTTP, { EGRESS_HTTP, .host = "api.example.org" }, NULL },
                { EGRESS_HTTP, { EGRESS_HTTP, .host = "api.example.org:8080" }, NULL },
                { EGRESS_HTTP, { EGRESS_HTTP, .host = "api.example.org:80" }, "fronting" },
                { EGRESS_HTTP, { EGRESS_HTTP, .host = "other.example.org" }, "fronting" },
                { EGRESS_HTTP, { EGRESS_HTTP, .host = "" }, "fronting" },
                { EGRESS_HTTP, { EGRESS_HTTP }, "fronting" },
                { EGRESS_HTTP, { EGRESS_TLS, .sni = "api.example.org" }, "protocol" },
                { EGRESS_RAW,  { EGRESS_RAW }, NULL },
                { EGRESS_RAW,  { EGRESS_TLS, .sni = "other.example.org" }, NULL },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                const char *reason = agreement_check("api.example.org", 8080, cases[i].expected, &cases[i].seen);

                if (!reason != !cases[i].reason || (reason && strcmp(reason, cases[i].reason) != 0))
                        fail_msg("case %zu: %s instead of %s", i, reason ?: "fine", cases[i].reason ?: "fine");
        }
}

/* What a rule about a network admits has no name to agree with. */
static void test_literal(void **state) {
        static const struct {
                const char *address;
                EgressProtocol expected;
                Observed seen;
                const char *reason;
        } cases[] = {
                { "10.0.0.1", EGRESS_TLS,  { EGRESS_TLS }, NULL },
                { "10.0.0.1", EGRESS_TLS,  { EGRESS_TLS, .sni = "api.example.org" }, "fronting" },
                { "10.0.0.1", EGRESS_TLS,  { EGRESS_TLS, .sni = "10.0.0.1" }, "fronting" },
                { "10.0.0.1", EGRESS_TLS,  { EGRESS_TLS, .ech = true }, "ech" },
                { "10.0.0.1", EGRESS_TLS,  { EGRESS_RAW }, "protocol" },
                { "10.0.0.1", EGRESS_HTTP, { EGRESS_HTTP, .host = "10.0.0.1" }, NULL },
                { "10.0.0.1", EGRESS_HTTP, { EGRESS_HTTP, .host = "10.0.0.1:8080" }, NULL },
                { "10.0.0.1", EGRESS_HTTP, { EGRESS_HTTP, .host = "10.0.0.1:80" }, "fronting" },
                { "10.0.0.1", EGRESS_HTTP, { EGRESS_HTTP, .host = "10.0.0.2" }, "fronting" },
                { "10.0.0.1", EGRESS_HTTP, { EGRESS_HTTP, .host = "api.example.org" }, "fronting" },
                { "fd00::1",  EGRESS_HTTP, { EGRESS_HTTP, .host = "[FD00::1]:8080" }, NULL },
                { "fd00::1",  EGRESS_HTTP, { EGRESS_HTTP, .host = "fd00::1" }, "fronting" },
                { "10.0.0.1", EGRESS_RAW,  { EGRESS_RAW }, NULL },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                const char *reason = agreement_check(cases[i].address, 8080, cases[i].expected, &cases[i].seen);

                if (!reason != !cases[i].reason || (reason && strcmp(reason, cases[i].reason) != 0))
                        fail_msg("case %zu: %s instead of %s", i, reason ?: "fine", cases[i].reason ?: "fine");
        }
}

static void test_overrides(void **state) {
        static const char *const yes[] = {
                "X-HTTP-Method-Override", "x-http-method", "X-Method-Override", "X-Original-URL", "x-rewrite-url", "X_HTTP_Method_Override", "X-Forwarded-Method",
                "X-Original-Method", "X-Envoy-Original-Method", "X-Original-URI", "x_original_uri", "X-Original-Path", "X-Forwarded-Uri", "X-Forwarded-Path",
                "X-Forwarded-Prefix", "X-Replaced-Path", "X-Envoy-Original-Path", "Forwarded", "X-Forwarded-Host", "x_forwarded_host", "X-Forwarded-Server", "X-Host",
                "X-Original-Host", "X-HTTP-Host-Override", "X-Envoy-Original-Host",
        };
        static const char *const no[] = {
                "", "Host", "X-HTTP", "X HTTP-Method", "X-HTTP-Method-Overrides", "X-Original-Hosts", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Port", "Forward", "X",
        };

        for (size_t i = 0; i < ELEMENTSOF(yes); i++)
                assert_true(agreement_field_overrides(yes[i]));
        for (size_t i = 0; i < ELEMENTSOF(no); i++)
                assert_false(agreement_field_overrides(no[i]));
}

static void test_second_paths(void **state) {
        static const char *const yes[] = {
                "Destination", "destination", "X-Amz-Copy-Source", "x_amz_copy_source", "x-amz-rename-source", "X-Goog-Copy-Source", "x-oss-copy-source", "x-ms-copy-source",
                "X-MS-Rename-Source", "x-ms-file-rename-source", "X-Copy-From", "x-object-manifest",
        };
        static const char *const no[] = { "", "Destinations", "Dest", "X-Destination", "Source", "Overwrite", "X-Amz-Copy-Source-If-Match", "x-ms-source-if-match", "X-Copy" };

        for (size_t i = 0; i < ELEMENTSOF(yes); i++)
                assert_true(agreement_field_names_path(yes[i]));
        for (size_t i = 0; i < ELEMENTSOF(no); i++)
                assert_false(agreement_field_names_path(no[i]));
}

static void test_protocols(void **state) {
        EgressProtocol p;

        for (int i = EGRESS_TLS; i <= EGRESS_RAW; i++) {
                assert_return_code(protocol_from_text(protocol_to_text((EgressProtocol) i), &p), 0);
                assert_int_equal(p, i);
        }
        assert_true(protocol_from_text("quic", &p) < 0);
        assert_true(protocol_from_text("", &p) < 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_agreement),
                cmocka_unit_test(test_literal),
                cmocka_unit_test(test_overrides),
                cmocka_unit_test(test_second_paths),
                cmocka_unit_test(test_protocols),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
