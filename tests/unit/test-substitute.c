/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "inject/substitute.h"
#include "util/json.h"

#define SENTINEL "sk-ant-api03-Sentinel0123456789"
#define SECRET "sk-ant-the-real-one"
#define OTHER "ghp_OtherSentinel0123456789"

typedef struct Fixture {
        RunSecrets *secrets;
        InjectCredential credentials[2];
} Fixture;

static json_t *parse(const char *text) {
        json_t *j = NULL;

        assert_int_equal(json_parse(text, strlen(text), &j, NULL), 0);
        return j;
}

static int set_up(void **state) {
        json_t *anthropic = parse("{\"hosts\":[\"api.anthropic.com\"],\"ports\":[443],\"methods\":[\"POST\",\"GET\"],\"paths\":[\"/v1/\"],"
                                  "\"places\":[{\"header\":\"x-api-key\"},{\"bearer\":true}]}");
        json_t *other = parse("{\"hosts\":[\"git.example.org\"],\"ports\":[8443],\"places\":[{\"header\":\"private-token\"}]}");
        Fixture *f = calloc(1, sizeof(*f));

        assert_non_null(f);
        assert_int_equal(run_secrets_new(&f->secrets, "r0123456789ab", "i", "w", "work", 1, 2), 0);
        assert_int_equal(run_secrets_set_credential(f->secrets, 0, "anthropic", SENTINEL, anthropic, NULL), 0);
        assert_int_equal(run_secrets_set_credential(f->secrets, 1, "git", OTHER, other, NULL), 0);
        assert_int_equal(secret_new(&f->secrets->credentials[0].secret, SECRET, strlen(SECRET)), 0);
        json_decref(anthropic);
        json_decref(other);
        for (size_t i = 0; i < 2; i++)
                assert_int_equal(inject_credential_init(&f->credentials[i], &f->secrets->credentials[i]), 0);
        *state = f;
        return 0;
}

static int tear_down(void **state) {
        Fixture *f = *state;

        run_secrets_free(f->secrets);
        free(f);
        return 0;
}

static SubstituteVerdict judge(Fixture *f, const char *host, uint16_t port, const char *first, const char *fields,
                               const char *where, char **ret_written) {
        _cleanup_(http_reader_freep) HttpReader *reader = NULL;
        _cleanup_free_ char *text = text_format("%s HTTP/1.1\r\nHost: %s\r\n%s\r\n", first, host, fields);
        const uint8_t *body;
        size_t used, body_size;
        SubstitutePlan plan;
        HttpEvent event;

        assert_int_equal(http_reader_new(&reader, HTTP_KIND_REQUEST), 0);
        assert_int_equal(http_reader_feed(reader, text, strlen(text), &used, &event, &body, &body_size), 0);
        assert_int_equal(event, HTTP_EVENT_HEAD);
        substitute_plan(f->credentials, 2, host, port, http_reader_head(reader), &plan);
        if (where)
                assert_string_equal(plan.where, where);
        if (ret_written) {
                Buffer out = {};

                assert_int_equal(substitute_write(http_reader_head(reader), &plan, host, port, &out), 0);
                assert_int_equal(buffer_append(&out, "", 1), 0);
                *ret_written = strdup((const char *) buffer_data(&out));
                buffer_done(&out);
        }
        return plan.verdict;
}

#define API "api.anthropic.com"
#define CALL "POST /v1/messages?beta=true"

/* What an origin that does not read the body of a GET or a DELETE would take for the next request must be the last thing on its connection. */
static void test_body_of_get(void **state) {
        _cleanup_free_ char *get = NULL, *chunked = NULL, *delete = NULL, *none = NULL, *empty = NULL, *post = NULL;

        assert_int_equal(judge(*state, API, 443, "GET /v1/x", "Content-Length: 5\r\n", NULL, &get), SUBSTITUTE_PLAIN);
        assert_non_null(strstr(get, "Content-Length: 5\r\nConnection: close\r\n"));
        assert_int_equal(judge(*state, API, 443, "HEAD /v1/x", "Transfer-Encoding: chunked\r\n", NULL, &chunked), SUBSTITUTE_PLAIN);
        assert_non_null(strstr(chunked, "chunked\r\nConnection: close\r\n"));
        assert_int_equal(judge(*state, API, 443, "DELETE /v1/x", "Content-Length: 5\r\n", NULL, &delete), SUBSTITUTE_PLAIN);
        assert_non_null(strstr(delete, "Content-Length: 5\r\nConnection: close\r\n"));
        assert_int_equal(judge(*state, API, 443, "DELETE /v1/x", "", NULL, &none), SUBSTITUTE_PLAIN);
        assert_null(strstr(none, "Connection"));
        assert_int_equal(judge(*state, API, 443, "GET /v1/x", "Content-Length: 0\r\n", NULL, &empty), SUBSTITUTE_PLAIN);
        assert_null(strstr(empty, "Connection"));
        assert_int_equal(judge(*state, API, 443, "POST /v1/x", "Content-Length: 5\r\n", NULL, &post), SUBSTITUTE_PLAIN);
        assert_null(strstr(post, "Connection"));
}

static void test_replace(void **state) {
        _cleanup_free_ char *one = NULL, *two = NULL, *three = NULL;

        assert_int_equal(judge(*state, API, 443, CALL, "X-Api-Key: " SENTINEL "\r\nContent-Length: 5\r\nAccept-Encoding: gzip\r\nA: b\r\n",
                               "X-Api-Key", &one),
                         SUBSTITUTE_REPLACE);
        assert_string_equal(one, "POST /v1/messages?beta=true HTTP/1.1\r\nHost: api.anthropic.com\r\nContent-Length: 5\r\n"
                                 "Accept-Encoding: identity\r\nX-Api-Key: " SECRET "\r\nA: b\r\n\r\n");
        assert_int_equal(judge(*state, API, 443, CALL, "Authorization: Bearer " SENTINEL "\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n",
                               NULL, &two),
                         SUBSTITUTE_REPLACE);
        assert_string_equal(two, "POST /v1/messages?beta=true HTTP/1.1\r\nHost: api.anthropic.com\r\nTransfer-Encoding: chunked\r\n"
                                 "Accept-Encoding: identity\r\nAuthorization: Bearer " SECRET "\r\n\r\n");
        assert_int_equal(judge(*state, API, 443, CALL, "Authorization: bearer " SENTINEL "\r\nx-api-key: " SENTINEL "\r\n", NULL, &three),
                         SUBSTITUTE_REPLACE);
        assert_null(strstr(three, SENTINEL));
}

static CredentialChange change(Fixture *f, const char *value) {
        _cleanup_(secret_freep) Secret *secret = NULL;

        if (value)
                assert_int_equal(secret_new(&secret, value, strlen(value)), 0);
        return inject_credential_update(&f->credentials[0], &f->secrets->credentials[0], &secret);
}

static void test_update(void **state) {
        _cleanup_free_ char *rotated = NULL, *again = NULL;
        Fixture *f = *state;

        assert_int_equal(change(f, SECRET), CREDENTIAL_SAME);
        assert_int_equal(change(f, "the-second-value"), CREDENTIAL_CHANGED);
        assert_true(secret_equals(f->credentials[0].former[0], SECRET, strlen(SECRET))); /* which is masked still */
        assert_int_equal(judge(f, API, 443, CALL, "x-api-key: " SENTINEL "\r\n", NULL, &rotated), SUBSTITUTE_REPLACE);
        assert_non_null(strstr(rotated, "x-api-key: the-second-value\r\n"));

        assert_int_equal(change(f, NULL), CREDENTIAL_GONE);
        assert_int_equal(change(f, NULL), CREDENTIAL_SAME);
        assert_int_equal(judge(f, API, 443, CALL, "x-api-key: " SENTINEL "\r\n", NULL, NULL), SUBSTITUTE_REVOKED);
        assert_true(secret_equals(f->secrets->credentials[0].secret, "the-second-value", strlen("the-second-value")));

        assert_int_equal(change(f, "the-second-value"), CREDENTIAL_CHANGED);
        assert_int_equal(judge(f, API, 443, CALL, "x-api-key: " SENTINEL "\r\n", NULL, NULL), SUBSTITUTE_REPLACE);
        assert_int_equal(change(f, "the-third-value"), CREDENTIAL_CHANGED);
        assert_true(secret_equals(f->credentials[0].former[0], "the-second-value", strlen("the-second-value")));
        assert_true(secret_equals(f->credentials[0].former[1], SECRET, strlen(SECRET)));
        assert_int_equal(change(f, "the-fourth-value"), CREDENTIAL_CHANGED);
        assert_int_equal(change(f, "the-fifth-value"), CREDENTIAL_CHANGED);
        assert_true(secret_equals(f->credentials[0].former[CREDENTIAL_FORMER_MAX - 1], SECRET, strlen(SECRET)));
        assert_int_equal(change(f, "the-sixth-value"), CREDENTIAL_CHANGED);
        assert_true(secret_equals(f->credentials[0].former[CREDENTIAL_FORMER_MAX - 1], "the-second-value", strlen("the-second-value")));
        inject_credential_done(&f->credentials[0]);
        assert_null(f->credentials[0].former[0]);
}

/* Beside a secret nothing is compressed; else gzip is asked for if the client takes it, and nothing else ever. */
static void test_accept_encoding(void **state) {
        static const struct {
                const char *offer, *asked;
        } cases[] = {
                { "Accept-Encoding: gzip, deflate, br, zstd\r\n", "gzip" },
                { "Accept-Encoding: br;q=1.0, GZIP;q=0.5\r\n", "gzip" },
                { "Accept-Encoding: gzip;q=0\r\n", "identity" },
                { "Accept-Encoding: gzip; q=0.000, br\r\n", "identity" },
                { "Accept-Encoding: br, x-gzip-like\r\n", "identity" },
                { "Accept-Encoding: *\r\n", "identity" },
                { "Accept-Encoding: gzip\r\nAccept-Encoding: br\r\n", "identity" },
                { "", "identity" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *plain = NULL, *with = NULL, *line = text_format("\r\nAccept-Encoding: %s\r\n", cases[i].asked);
                _cleanup_free_ char *fields = text_format("x-api-key: " SENTINEL "\r\n%s", cases[i].offer);

                assert_int_equal(judge(*state, API, 443, "GET /v1/files", cases[i].offer, NULL, &plain), SUBSTITUTE_PLAIN);
                assert_non_null(strstr(plain, line));
                assert_null(strstr(strstr(plain, line) + 2, "\r\nAccept-Encoding"));
                assert_int_equal(judge(*state, API, 443, CALL, fields, NULL, &with), SUBSTITUTE_REPLACE);
                assert_non_null(strstr(with, "\r\nAccept-Encoding: identity\r\n"));
        }
}

static void test_plain(void **state) {
        _cleanup_free_ char *text = NULL;

        assert_int_equal(judge(*state, API, 443, "GET /v1/models", "A: b\r\n", NULL, &text), SUBSTITUTE_PLAIN);
        assert_null(strstr(text, SECRET));
        free(text);
        assert_int_equal(judge(*state, "elsewhere.example", 8443, "GET /", "Authorization: Bearer own-key\r\n", NULL, &text), SUBSTITUTE_PLAIN);
        assert_non_null(strstr(text, "Host: elsewhere.example:8443\r\n"));
        assert_non_null(strstr(text, "Authorization: Bearer own-key\r\n"));
}

static void test_misuse(void **state) {
        static const char basic[] = "Authorization: Basic dTpzay1hbnQtYXBpMDMtU2VudGluZWwwMTIzNDU2Nzg5\r\n"; /* u:SENTINEL */
        static const struct {
                const char *host;
                uint16_t port;
                const char *first, *fields, *where;
        } cases[] = {
                { "elsewhere.example", 443, CALL, "X-Api-Key: " SENTINEL "\r\n", "X-Api-Key" },
                { "elsewhere.example", 443, CALL, "Authorization: Bearer " SENTINEL "\r\n", "Authorization" },
                { API, 8443, CALL, "X-Api-Key: " SENTINEL "\r\n", "X-Api-Key" },
                { API, 443, CALL, "Cookie: k=" SENTINEL "\r\n", "Cookie" },
                { API, 443, CALL, "X-Other: " SENTINEL "\r\n", "X-Other" },
                { API, 443, CALL, "X-Api-Key: " SENTINEL "x\r\n", "X-Api-Key" },
                { API, 443, CALL, "X-Api-Key: a, " SENTINEL "\r\n", "X-Api-Key" },
                { API, 443, CALL, "X-Api-Key: " SENTINEL "\r\nX-Api-Key: " SENTINEL "\r\n", "X-Api-Key" },
                { API, 443, CALL, "Authorization: Token " SENTINEL "\r\n", "Authorization" },
                { API, 443, CALL, basic, "Authorization" },
                { API, 443, CALL, "sk-ANT-api03-sentinel0123456789: 1\r\n", "sk-ANT-api03-sentinel0123456789" },
                { API, 443, "GET /v1/x?k=" SENTINEL, "", "target" },
                { API, 443, "GET /v1/x?k=%73k-ant-api03-Sentinel012345678%39", "", "target" },
                /* in each form that is found in a body as well: percent-encoded, with escapes of JSON, in Base64 at each alignment */
                { "elsewhere.example", 443, CALL, "X-Other: a=%73k-ant-api03-Sentinel012345678%39\r\n", "X-Other" },
                { "elsewhere.example", 443, CALL, "X-Other: \"\\u0073k-ant-api03-Sentinel0123456789\"\r\n", "X-Other" },
                { "elsewhere.example", 443, CALL, "X-Other: c2stYW50LWFwaTAzLVNlbnRpbmVsMDEyMzQ1Njc4OQ==\r\n", "X-Other" },
                { "elsewhere.example", 443, CALL, "X-Other: YXNrLWFudC1hcGkwMy1TZW50aW5lbDAxMjM0NTY3ODk=\r\n", "X-Other" },
                { "elsewhere.example", 443, "GET /a/YWFzay1hbnQtYXBpMDMtU2VudGluZWwwMTIzNDU2Nzg5/b", "", "target" },
                { "elsewhere.example", 443, "GET /?q=c2stYW50LWFwaTAzLVNlbnRpbmVsMDEyMzQ1Njc4OQ", "", "target" },
                { API, 443, CALL, "X-Api-Key: " OTHER "\r\n", "X-Api-Key" },
                { API, 443, CALL, "Private-Token: " OTHER "\r\nX-Api-Key: " SENTINEL "\r\n", "Private-Token" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                if (judge(*state, cases[i].host, cases[i].port, cases[i].first, cases[i].fields, cases[i].where, NULL) != SUBSTITUTE_MISUSE)
                        fail_msg("case %zu is not misuse", i);
}

static void test_foreign(void **state) {
        assert_int_equal(judge(*state, API, 443, CALL, "X-Api-Key: sk-ant-somebody-elses\r\n", "X-Api-Key", NULL), SUBSTITUTE_FOREIGN);
        assert_int_equal(judge(*state, API, 443, CALL, "Authorization: Bearer other\r\n", "Authorization", NULL), SUBSTITUTE_FOREIGN);
        assert_int_equal(judge(*state, API, 443, CALL, "X-Api-Key: " SENTINEL "\r\nAuthorization: Bearer other\r\n", "Authorization", NULL),
                         SUBSTITUTE_FOREIGN);
        assert_int_equal(judge(*state, API, 443, CALL, "Api-Key: x\r\n", "Api-Key", NULL), SUBSTITUTE_FOREIGN);
}

static void test_not_here_and_revoked(void **state) {
        Fixture *f = *state;

        assert_int_equal(judge(f, API, 443, "DELETE /v1/messages", "X-Api-Key: " SENTINEL "\r\n", NULL, NULL), SUBSTITUTE_NOT_HERE);
        assert_int_equal(judge(f, API, 443, "GET /admin", "X-Api-Key: " SENTINEL "\r\n", NULL, NULL), SUBSTITUTE_NOT_HERE);
        assert_int_equal(judge(f, API, 443, "GET /v1/../admin", "X-Api-Key: " SENTINEL "\r\n", NULL, NULL), SUBSTITUTE_NOT_HERE);
        f->credentials[0].revoked = true;
        assert_int_equal(judge(f, API, 443, CALL, "X-Api-Key: " SENTINEL "\r\n", NULL, NULL), SUBSTITUTE_REVOKED);
        f->credentials[0].revoked = false;
        f->secrets->credentials[0].secret = secret_free(f->secrets->credentials[0].secret);
        assert_int_equal(judge(f, API, 443, CALL, "X-Api-Key: " SENTINEL "\r\n", NULL, NULL), SUBSTITUTE_REVOKED);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_body_of_get, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_replace, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_update, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_accept_encoding, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_plain, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_misuse, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_foreign, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_not_here_and_revoked, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
