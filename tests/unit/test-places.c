/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Golden bytes: what an origin gets for each kind of place, what it never gets, and what is refused. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>

#include "inject/body-place.h"
#include "inject/decode.h"
#include "util/json.h"

#define SENTINEL "tok_Sentinel0123456789"
#define OTHER "key_OtherSentinel012345"
#define SECRET "re\"al\\v&a=l%u+e/1" /* a character that means something in each encoding */
#define HOST "api.example.org"

typedef struct Fixture {
        RunSecrets *secrets;
        InjectCredential credentials[2];
} Fixture;

static Fixture *fixture_new(const char *places, const char *more) {
        _cleanup_free_ char *text = text_format("{\"hosts\":[\"" HOST "\"],\"ports\":[443],\"places\":[%s]%s}", places, more);
        _cleanup_json_ json_t *rule = NULL, *other = json_pack("{s:[s], s:[i], s:[{s:b}]}", "hosts", "other.example.org", "ports", 443, "places", "bearer", 1);
        Fixture *f = calloc(1, sizeof(*f));

        assert_int_equal(json_parse(text, strlen(text), &rule, NULL), 0);
        assert_int_equal(run_secrets_new(&f->secrets, "r0123456789ab", "i", "w", "work", 1, 2), 0);
        assert_int_equal(run_secrets_set_credential(f->secrets, 0, "a", SENTINEL, rule, NULL), 0);
        assert_int_equal(run_secrets_set_credential(f->secrets, 1, "b", OTHER, other, NULL), 0);
        assert_int_equal(secret_new(&f->secrets->credentials[0].secret, SECRET, strlen(SECRET)), 0);
        for (size_t i = 0; i < 2; i++)
                assert_int_equal(inject_credential_init(&f->credentials[i], &f->secrets->credentials[i]), 0);
        return f;
}

static Fixture *fixture_free(Fixture *f) {
        run_secrets_free(f->secrets);
        free(f);
        return NULL;
}
DEFINE_CLEANUP(Fixture *, fixture_free)

enum { ENCODED = 100, MALFORMED };

/* The whole of what leaves for a request with that head and body; else the verdict, ENCODED or MALFORMED. */
static int send_request(Fixture *f, const char *first, const char *fields, const char *body, char **ret) {
        _cleanup_free_ char *text = text_format("%s HTTP/1.1\r\nHost: " HOST "\r\n%s%s\r\n", first, fields, body ? "Transfer-Encoding: chunked\r\n" : "");
        _cleanup_(http_reader_freep) HttpReader *reader = NULL;
        Buffer out = {}, rewritten = {};
        const uint8_t *data;
        BodyRewrite rewrite;
        SubstitutePlan plan;
        HttpHead head;
        size_t used, size;
        HttpEvent event;
        int r = 0;

        assert_int_equal(http_reader_new(&reader, HTTP_KIND_REQUEST), 0);
        assert_int_equal(http_reader_feed(reader, text, strlen(text), &used, &event, &data, &size), 0);
        assert_int_equal(event, HTTP_EVENT_HEAD);
        head = *http_reader_head(reader);
        substitute_plan(f->credentials, 2, HOST, 443, &head, &plan);
        if (plan.n_body > 0 && (plan.verdict == SUBSTITUTE_PLAIN || plan.verdict == SUBSTITUTE_REPLACE)) {
                r = body_place_judge(f->credentials, 2, &head, &plan, body, strlen(body), &rewrite);
                assert_true(r >= 0);
                if (r == BODY_E_ENCODED || r == BODY_E_MALFORMED)
                        return r == BODY_E_ENCODED ? ENCODED : MALFORMED;
                assert_int_equal(r == BODY_E_REFUSED, plan.verdict != SUBSTITUTE_PLAIN && plan.verdict != SUBSTITUTE_REPLACE);
                if (r == 0) {
                        assert_int_equal(body_place_write(&rewrite, body, strlen(body), &rewritten), 0);
                        head.framing = HTTP_FRAMING_LENGTH;
                        head.has_length = true;
                        head.length = buffer_size(&rewritten);
                }
        }
        if (ret && (plan.verdict == SUBSTITUTE_PLAIN || plan.verdict == SUBSTITUTE_REPLACE)) {
                assert_int_equal(substitute_write(&head, &plan, HOST, 443, &out), 0);
                assert_int_equal(buffer_append(&out, buffer_data(&rewritten), buffer_size(&rewritten)), 0);
                assert_int_equal(buffer_append(&out, "", 1), 0);
                *ret = strdup((const char *) buffer_data(&out));
        }
        buffer_done(&out);
        buffer_done(&rewritten);
        return (int) plan.verdict;
}

static void expect(Fixture *f, int verdict, const char *first, const char *fields, const char *body, const char *golden) {
        _cleanup_free_ char *text = NULL;
        int got;

        got = send_request(f, first, fields, body, &text);
        if (got != verdict)
                fail_msg("%s | %s | %s: %d, not %d", first, fields, body ? body : "", got, verdict);
        if (golden && (!text || !strstr(text, golden)))
                fail_msg("%s | %s | %s: no\n%s\nin\n%s", first, fields, body ? body : "", golden, text ? text : "");
        if (text && body) {
                const char *length = strstr(text, "Content-Length: ");

                if (length) /* a body that was judged has it, whatever framed it before */
                        assert_int_equal(strtoul(length + strlen("Content-Length: "), NULL, 10), strlen(strstr(text, "\r\n\r\n") + 4));
        }
        if (text)
                assert_null(strstr(text, SENTINEL));
}

/* "u:TOKEN", "TOKEN:x", "TOKEN:TOKEN", "u:TOKENx", "u:OTHER", "me:own" */
#define B_PASSWORD "dTp0b2tfU2VudGluZWwwMTIzNDU2Nzg5"
#define B_USER "dG9rX1NlbnRpbmVsMDEyMzQ1Njc4OTp4"
#define B_BOTH "dG9rX1NlbnRpbmVsMDEyMzQ1Njc4OTp0b2tfU2VudGluZWwwMTIzNDU2Nzg5"
#define B_LONGER "dTp0b2tfU2VudGluZWwwMTIzNDU2Nzg5eA=="
#define B_OTHER "dTprZXlfT3RoZXJTZW50aW5lbDAxMjM0NQ=="
#define B_OWN "bWU6b3du"
/* "u:SECRET", "SECRET:x", "SECRET:SECRET", "me:SECRET" */
#define R_PASSWORD "dTpyZSJhbFx2JmE9bCV1K2UvMQ=="
#define R_USER "cmUiYWxcdiZhPWwldStlLzE6eA=="
#define R_BOTH "cmUiYWxcdiZhPWwldStlLzE6cmUiYWxcdiZhPWwldStlLzE="
#define R_ME "bWU6cmUiYWxcdiZhPWwldStlLzE="
#define A "Authorization: Basic "

static void test_basic(void **state) {
        _cleanup_(fixture_freep) Fixture *password = fixture_new("{\"basic\":\"password\"}", ""), *user = fixture_new("{\"basic\":\"user\"}", ""),
                                         *either = fixture_new("{\"basic\":\"either\"}", "");

        expect(password, SUBSTITUTE_REPLACE, "GET /", A B_PASSWORD "\r\n", NULL, A R_PASSWORD "\r\n");
        expect(password, SUBSTITUTE_MISUSE, "GET /", A B_USER "\r\n", NULL, NULL);
        expect(password, SUBSTITUTE_MISUSE, "GET /", A B_BOTH "\r\n", NULL, NULL);
        expect(password, SUBSTITUTE_MISUSE, "GET /", A B_LONGER "\r\n", NULL, NULL);
        expect(password, SUBSTITUTE_MISUSE, "GET /", A B_OTHER "\r\n", NULL, NULL);
        expect(password, SUBSTITUTE_FOREIGN, "GET /", A B_OWN "\r\n", NULL, NULL);
        expect(password, SUBSTITUTE_MISUSE, "GET /", "X-Authorization: Basic " B_PASSWORD "\r\n", NULL, NULL);
        expect(user, SUBSTITUTE_REPLACE, "GET /", A B_USER "\r\n", NULL, A R_USER "\r\n");
        expect(user, SUBSTITUTE_MISUSE, "GET /", A B_PASSWORD "\r\n", NULL, NULL);
        expect(either, SUBSTITUTE_REPLACE, "GET /", A B_PASSWORD "\r\n", NULL, A R_PASSWORD "\r\n");
        expect(either, SUBSTITUTE_REPLACE, "GET /", A B_USER "\r\n", NULL, A R_USER "\r\n");
        expect(either, SUBSTITUTE_REPLACE, "GET /", A B_BOTH "\r\n", NULL, A R_BOTH "\r\n");
        expect(either, SUBSTITUTE_FOREIGN, "GET /", A "not base64!\r\n", NULL, NULL);
}

static void test_on_foreign(void **state) {
        static const char places[] = "{\"header\":\"x-key\"},{\"bearer\":true},{\"basic\":\"either\"},{\"query\":\"key\",\"method\":\"GET\",\"path\":\"/q\"},"
                                     "{\"json\":\"/key\",\"method\":\"POST\",\"path\":\"/j\"}";
        _cleanup_(fixture_freep) Fixture *refuse = fixture_new(places, ",\"on_foreign\":\"refuse\""), *pass = fixture_new(places, ",\"on_foreign\":\"pass\""),
                                         *replace = fixture_new(places, ",\"on_foreign\":\"replace\"");
        static const char json[] = "Content-Type: application/json\r\n";

        expect(refuse, SUBSTITUTE_FOREIGN, "GET /", "X-Key: own\r\n", NULL, NULL);
        expect(refuse, SUBSTITUTE_FOREIGN, "GET /q?key=own", "", NULL, NULL);
        expect(refuse, SUBSTITUTE_FOREIGN, "POST /j", json, "{\"key\":\"own\"}", NULL);
        expect(refuse, SUBSTITUTE_PLAIN, "GET /q?key=", "X-Key: \r\n", NULL, "GET /q?key= HTTP/1.1\r\n");

        expect(pass, SUBSTITUTE_PLAIN, "GET /", "X-Key: own\r\n", NULL, "X-Key: own\r\n");
        expect(pass, SUBSTITUTE_PLAIN, "GET /q?key=own", "", NULL, "GET /q?key=own HTTP/1.1\r\n");
        expect(pass, SUBSTITUTE_PLAIN, "POST /j", json, "{\"key\":\"own\"}", "\r\n\r\n{\"key\":\"own\"}");
        expect(pass, SUBSTITUTE_REPLACE, "GET /", "X-Key: " SENTINEL "\r\nApi-Key: own\r\n", NULL, "X-Key: " SECRET "\r\nApi-Key: own\r\n");
        expect(pass, SUBSTITUTE_MISUSE, "GET /", "X-Key: " SENTINEL "1\r\n", NULL, NULL); /* nothing that has the sentinel in it is foreign */

        expect(replace, SUBSTITUTE_REPLACE, "GET /", "X-Key: own\r\n", NULL, "X-Key: " SECRET "\r\n");
        expect(replace, SUBSTITUTE_REPLACE, "GET /", "Authorization: bearer own\r\n", NULL, "Authorization: bearer " SECRET "\r\n");
        expect(replace, SUBSTITUTE_REPLACE, "GET /", A B_OWN "\r\n", NULL, A R_ME "\r\n");
        expect(replace, SUBSTITUTE_REPLACE, "GET /q?a=1&key=own&b=2", "", NULL, "GET /q?a=1&key=re%22al%5Cv%26a%3Dl%25u%2Be%2F1&b=2 HTTP/1.1\r\n");
        expect(replace, SUBSTITUTE_REPLACE, "POST /j", json, "{\"key\":\"own\"}", "\r\n\r\n{\"key\":\"re\\\"al\\\\v&a=l%u+e/1\"}");
        expect(replace, SUBSTITUTE_FOREIGN, "GET /", "Authorization: Digest x\r\n", NULL, NULL); /* in no place */
        expect(replace, SUBSTITUTE_FOREIGN, "GET /", "Api-Key: own\r\n", NULL, NULL);
        expect(replace, SUBSTITUTE_FOREIGN, "POST /j", json, "{\"key\":{\"own\":1}}", NULL);
        expect(replace, SUBSTITUTE_MISUSE, "GET /", "X-Key: " OTHER "\r\n", NULL, NULL);
}

/* What many APIs take for a credential is one, wherever the rule's own places are. */
static void test_foreign_names(void **state) {
        static const char *const fields[] = {
                "Authorization", "Proxy-Authorization", "X-Api-Key", "Job-Token", "Deploy-Token", "job_token", "X-Amz-Security-Token", "X-Vault-Token", "Ocp-Apim-Subscription-Key",
        };
        static const char *const parameters[] = {
                "access_token", "Access-Token", "%61ccess_token", "private_token", "job_token", "api_key", "apikey", "client_secret", "X-Amz-Signature", "X-Amz-Credential",
        };
        /* the controls: what looks like one and is none */
        static const char *const plain_fields[] = { "Idempotency-Key", "X-Csrf-Token", "Cookie", "X-Request-Id" };
        static const char *const plain_parameters[] = { "page_token", "key", "token_type", "x" };
        static const char place[] = "{\"header\":\"x-own\"}";
        _cleanup_(fixture_freep) Fixture *refuse = fixture_new(place, ""), *pass = fixture_new(place, ",\"on_foreign\":\"pass\""),
                                         *replace = fixture_new(place, ",\"on_foreign\":\"replace\""), *google = fixture_new("{\"header\":\"x-goog-api-key\"}", "");

        for (size_t i = 0; i < ELEMENTSOF(fields); i++) {
                _cleanup_free_ char *field = text_format("%s: mine\r\n", fields[i]), *empty = text_format("%s: \r\n", fields[i]);

                expect(refuse, SUBSTITUTE_FOREIGN, "GET /", field, NULL, NULL);
                expect(replace, SUBSTITUTE_FOREIGN, "GET /", field, NULL, NULL);
                expect(pass, SUBSTITUTE_PLAIN, "GET /", field, NULL, NULL);
                expect(refuse, SUBSTITUTE_PLAIN, "GET /", empty, NULL, NULL);
        }
        for (size_t i = 0; i < ELEMENTSOF(parameters); i++) {
                _cleanup_free_ char *first = text_format("GET /?a=b&%s=mine&c", parameters[i]), *empty = text_format("GET /?%s=&%s", parameters[i], parameters[i]);

                expect(refuse, SUBSTITUTE_FOREIGN, first, "", NULL, NULL);
                expect(refuse, SUBSTITUTE_FOREIGN, first, "X-Own: " SENTINEL "\r\n", NULL, NULL);
                expect(replace, SUBSTITUTE_FOREIGN, first, "", NULL, NULL);
                expect(pass, SUBSTITUTE_PLAIN, first, "", NULL, first);
                expect(refuse, SUBSTITUTE_PLAIN, empty, "", NULL, NULL);
        }
        for (size_t i = 0; i < ELEMENTSOF(plain_fields); i++) {
                _cleanup_free_ char *field = text_format("%s: mine\r\n", plain_fields[i]), *first = text_format("GET /?%s=mine", plain_parameters[i]);

                expect(refuse, SUBSTITUTE_PLAIN, first, field, NULL, field);
        }
        expect(google, SUBSTITUTE_FOREIGN, "GET /v1/models?key=mine", "", NULL, NULL);
        expect(google, SUBSTITUTE_REPLACE, "GET /v1/models?keys=mine", "X-Goog-Api-Key: " SENTINEL "\r\n", NULL, "X-Goog-Api-Key: " SECRET);
}

/* A reader that knows no case would take this for the place, whether or not the place is there as well. */
static void test_lookalikes(void **state) {
        static const char places[] = "{\"query\":\"key\",\"method\":\"GET\",\"path\":\"/q\"},{\"json\":\"/auth/secret\",\"method\":\"POST\",\"path\":\"/j\"},"
                                     "{\"form\":\"secret\",\"method\":\"POST\",\"path\":\"/f\"}";
        static const char json[] = "Content-Type: application/json\r\n", form[] = "Content-Type: application/x-www-form-urlencoded\r\n";
        static const struct {
                const char *first, *fields, *body;
                int control; /* without what only looks like it */
                const char *control_first, *control_body;
        } cases[] = {
                { "POST /j", json, "{\"auth\":{\"Secret\":\"mine\"}}", SUBSTITUTE_PLAIN, "POST /j", "{\"auth\":{\"secrets\":\"mine\"}}" },
                { "POST /j", json, "{\"Auth\":{\"secret\":\"mine\"}}", SUBSTITUTE_PLAIN, "POST /j", "{\"author\":{\"secret\":\"mine\"}}" },
                { "POST /j", json, "{\"auth\":{\"secret\":\"" SENTINEL "\",\"\\u0053ecret\":\"mine\"}}", SUBSTITUTE_REPLACE, "POST /j", "{\"auth\":{\"secret\":\"" SENTINEL "\"}}" },
                { "POST /f", form, "Secret=mine", SUBSTITUTE_PLAIN, "POST /f", "secrets=mine" },
                { "POST /f", form, "secret=" SENTINEL "&%53ecret=mine", SUBSTITUTE_REPLACE, "POST /f", "secret=" SENTINEL "&b=mine" },
                { "GET /q?Key=mine", "", NULL, SUBSTITUTE_PLAIN, "GET /q?keys=mine", NULL },
                { "GET /q?key=" SENTINEL "&%4Bey=mine", "", NULL, SUBSTITUTE_REPLACE, "GET /q?key=" SENTINEL "&b=mine", NULL },
        };
        _cleanup_(fixture_freep) Fixture *refuse = fixture_new(places, ""), *replace = fixture_new(places, ",\"on_foreign\":\"replace\""),
                                         *pass = fixture_new(places, ",\"on_foreign\":\"pass\"");

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                expect(refuse, SUBSTITUTE_FOREIGN, cases[i].first, cases[i].fields, cases[i].body, NULL);
                expect(replace, SUBSTITUTE_FOREIGN, cases[i].first, cases[i].fields, cases[i].body, NULL);
                expect(pass, cases[i].control, cases[i].first, cases[i].fields, cases[i].body, NULL);
                expect(refuse, cases[i].control, cases[i].control_first, cases[i].fields, cases[i].control_body, NULL);
        }
}

static void test_query(void **state) {
        _cleanup_(fixture_freep) Fixture *f = fixture_new("{\"query\":\"key\",\"method\":\"GET\",\"path\":\"/v1/feed\"},{\"bearer\":true}", "");

        expect(f, SUBSTITUTE_REPLACE, "GET /v1/feed?key=" SENTINEL, "", NULL, "GET /v1/feed?key=re%22al%5Cv%26a%3Dl%25u%2Be%2F1 HTTP/1.1\r\n");
        expect(f, SUBSTITUTE_REPLACE, "GET /v1/feed?%6bey=%74ok_Sentinel0123456789&x=%20+", "", NULL,
               "GET /v1/feed?%6bey=re%22al%5Cv%26a%3Dl%25u%2Be%2F1&x=%20+ HTTP/1.1\r\n");
        expect(f, SUBSTITUTE_PLAIN, "GET /v1/feed?other=1", "", NULL, "GET /v1/feed?other=1 HTTP/1.1\r\n");
        expect(f, SUBSTITUTE_MISUSE, "GET /v1/feed?key=" SENTINEL "&key=" SENTINEL, "", NULL, NULL);
        expect(f, SUBSTITUTE_MISUSE, "GET /v1/feed?key=" SENTINEL "&x=" SENTINEL, "", NULL, NULL);
        expect(f, SUBSTITUTE_MISUSE, "GET /v1/feed?key=a" SENTINEL, "", NULL, NULL);
        expect(f, SUBSTITUTE_MISUSE, "GET /v1/feed?keys=" SENTINEL, "", NULL, NULL);
        expect(f, SUBSTITUTE_MISUSE, "GET /v1/feed?key%00s=" SENTINEL, "", NULL, NULL);
        expect(f, SUBSTITUTE_FOREIGN, "GET /v1/feed?access_token%00s=mine", "", NULL, NULL); /* what a reader in C sees */
        expect(f, SUBSTITUTE_MISUSE, "GET /v1/feed/x?key=" SENTINEL, "", NULL, NULL);
        expect(f, SUBSTITUTE_MISUSE, "GET /v1/feedx?key=" SENTINEL, "", NULL, NULL);
        expect(f, SUBSTITUTE_MISUSE, "POST /v1/feed?key=" SENTINEL, "", NULL, NULL);
        expect(f, SUBSTITUTE_MISUSE, "GET /v1/feed?key=" OTHER, "", NULL, NULL);
        expect(f, SUBSTITUTE_MISUSE, "GET /v1/feed?x=dG9rX1NlbnRpbmVsMDEyMzQ1Njc4OQ", "", NULL, NULL); /* in Base64 */
}

#define J "Content-Type: application/json; charset=utf-8\r\n"
#define SIGN_IN "POST /v1/login"

static void test_json(void **state) {
        _cleanup_(fixture_freep) Fixture *f = fixture_new("{\"json\":\"/auth/0/api~1key\",\"method\":\"POST\",\"path\":\"/v1/login\"},{\"header\":\"x-key\"}", "");
        static const char golden[] = J "\r\n{ \"x\" : [1.50e3,\"\\u00e9\"], \"auth\" :[ {\"api/key\":\t\"re\\\"al\\\\v&a=l%u+e/1\" } ]} \n";

        expect(f, SUBSTITUTE_REPLACE, SIGN_IN, J, "{ \"x\" : [1.50e3,\"\\u00e9\"], \"auth\" :[ {\"api/key\":\t\"" SENTINEL "\" } ]} \n", golden + strlen(J));
        expect(f, SUBSTITUTE_REPLACE, SIGN_IN, J, "{\"auth\":[{\"api/\\u006bey\":\"tok_\\u0053entinel0123456789\"}]}",
               "{\"auth\":[{\"api/\\u006bey\":\"re\\\"al\\\\v&a=l%u+e/1\"}]}");
        expect(f, SUBSTITUTE_PLAIN, SIGN_IN, J, "{\"auth\":[]}", "\r\n\r\n{\"auth\":[]}");
        expect(f, SUBSTITUTE_PLAIN, SIGN_IN, J, "{\"auth\":[{\"api/key\":null}]}", "{\"auth\":[{\"api/key\":null}]}");
        expect(f, SUBSTITUTE_PLAIN, SIGN_IN, J, "[1,2]", "[1,2]");
        expect(f, SUBSTITUTE_PLAIN, SIGN_IN, J, "17", "17");
        expect(f, SUBSTITUTE_FOREIGN, SIGN_IN, J, "{\"auth\":[{\"api/key\":\"own\"}]}", NULL);
        expect(f, SUBSTITUTE_FOREIGN, SIGN_IN, J, "{\"auth\":[{\"api/key\":[]}]}", NULL);
        expect(f, SUBSTITUTE_MISUSE, SIGN_IN, J, "{\"auth\":[{\"api/key\":\"" SENTINEL "\",\"x\":\"" SENTINEL "\"}]}", NULL);
        expect(f, SUBSTITUTE_MISUSE, SIGN_IN, J, "{\"auth\":[{\"api/key\":\"x" SENTINEL "\"}]}", NULL);
        expect(f, SUBSTITUTE_MISUSE, SIGN_IN, J, "{\"auth\":[1,{\"api/key\":\"" SENTINEL "\"}]}", NULL);
        expect(f, SUBSTITUTE_MISUSE, SIGN_IN, J, "{\"auth\":{\"0\":{\"api/key\":\"tok_\\u0053entinel0123456789\"}},\"x\":\"tok_\\u0053entinel0123456789\"}", NULL);
        expect(f, SUBSTITUTE_MISUSE, SIGN_IN, J, "{\"auth\":[{\"api/key\":\"" OTHER "\"}]}", NULL);

        expect(f, MALFORMED, SIGN_IN, J, "{\"auth\":[{\"api/key\":\"" SENTINEL "\",\"api/key\":\"" SENTINEL "\"}]}", NULL); /* which of the two? */
        expect(f, MALFORMED, SIGN_IN, J, "{\"auth\":[{\"api/key\":\"" SENTINEL "\"}]", NULL);
        expect(f, MALFORMED, SIGN_IN, J, "{\"auth\":[{\"api/key\":\"" SENTINEL "\"}]} {}", NULL);
        expect(f, ENCODED, SIGN_IN, J "Content-Encoding: br\r\n", "{}", NULL);
        expect(f, ENCODED, SIGN_IN, J "Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n", "{}", NULL);
        expect(f, ENCODED, SIGN_IN, J "Content-Encoding: gzip, gzip\r\n", "{}", NULL);
        expect(f, ENCODED, SIGN_IN, "Content-Type: application/grpc\r\nGrpc-Encoding: gzip\r\n", "{}", NULL);
        expect(f, ENCODED, SIGN_IN, "Content-Type: text/plain\r\n", "{}", NULL);
        expect(f, ENCODED, SIGN_IN, "", "{}", NULL);
        /* elsewhere the body is nobody's place */
        expect(f, SUBSTITUTE_PLAIN, "POST /v1/other", "Content-Type: text/plain\r\n", "{}", NULL);
        expect(f, SUBSTITUTE_REPLACE, "POST /v1/other", "X-Key: " SENTINEL "\r\n", "{}", "X-Key: " SECRET "\r\n");
        /* both at once */
        expect(f, SUBSTITUTE_REPLACE, SIGN_IN, J "X-Key: " SENTINEL "\r\n", "{\"auth\":[{\"api/key\":\"" SENTINEL "\"}]}", "X-Key: " SECRET "\r\n");
        expect(f, SUBSTITUTE_REPLACE, SIGN_IN, "Expect: 100-continue\r\n" J, "{\"auth\":[{\"api/key\":\"" SENTINEL "\"}]}", "Content-Type");
}

#define F "Content-Type: application/x-www-form-urlencoded\r\n"

static void test_form(void **state) {
        _cleanup_(fixture_freep) Fixture *f = fixture_new("{\"form\":\"client_secret\",\"method\":\"POST\",\"path\":\"/v1/login\"}", "");

        expect(f, SUBSTITUTE_REPLACE, SIGN_IN, F, "a=1+2&client_secret=" SENTINEL "&b=%41&c",
               "\r\n\r\na=1+2&client_secret=re%22al%5Cv%26a%3Dl%25u%2Be%2F1&b=%41&c");
        expect(f, SUBSTITUTE_REPLACE, SIGN_IN, F, "client%5fsecret=tok%5FSentinel0123456789", "\r\n\r\nclient%5fsecret=re%22al");
        expect(f, SUBSTITUTE_PLAIN, SIGN_IN, F, "client_secret=&a", "\r\n\r\nclient_secret=&a");
        expect(f, SUBSTITUTE_FOREIGN, SIGN_IN, F, "client_secret=own", NULL);
        expect(f, SUBSTITUTE_MISUSE, SIGN_IN, F, "x=" SENTINEL, NULL);
        expect(f, SUBSTITUTE_MISUSE, SIGN_IN, F, "x=%74ok_Sentinel0123456789&client_secret=" SENTINEL, NULL);
        expect(f, MALFORMED, SIGN_IN, F, "client_secret=" SENTINEL "&client_secret=" SENTINEL, NULL);
        expect(f, ENCODED, SIGN_IN, J, "{}", NULL);
}

static void test_signed(void **state) {
        _cleanup_(fixture_freep) Fixture *f = fixture_new("{\"header\":\"x-key\"},{\"form\":\"key\",\"method\":\"POST\",\"path\":\"/v1/login\"}", ",\"on_foreign\":\"pass\"");
        static const char *const digests[] = { "Content-MD5: x", "Digest: sha-256=x", "Content-Digest: sha-256=:x:", "Repr-Digest: sha-256=:x:", "X-Amz-Content-Sha256: x" };
        static const char *const signatures[] = { "Authorization: AWS4-HMAC-SHA256 Credential=x", "Signature: sig1=:x:", "Signature-Input: sig1=()",
                                                  "Authorization: Signature keyId=x" };

        expect(f, SUBSTITUTE_CANNOT, "GET /", "Authorization: AWS4-HMAC-SHA256 Credential=" SENTINEL "/x\r\n", NULL, NULL);
        for (size_t i = 0; i < ELEMENTSOF(signatures); i++) {
                _cleanup_free_ char *with = text_format("X-Key: " SENTINEL "\r\n%s\r\n", signatures[i]), *without = text_format("%s\r\n", signatures[i]);

                expect(f, SUBSTITUTE_CANNOT, "GET /", with, NULL, NULL);
                expect(f, SUBSTITUTE_PLAIN, "GET /", without, NULL, without); /* the control: nothing would change */
        }
        for (size_t i = 0; i < ELEMENTSOF(digests); i++) {
                _cleanup_free_ char *fields = text_format(F "%s\r\n", digests[i]), *head = text_format("X-Key: " SENTINEL "\r\n%s\r\n", digests[i]);

                expect(f, SUBSTITUTE_CANNOT, SIGN_IN, fields, "key=" SENTINEL, NULL);
                expect(f, SUBSTITUTE_PLAIN, SIGN_IN, fields, "a=b", digests[i]);
                expect(f, SUBSTITUTE_REPLACE, "POST /v1/other", head, "a=b", digests[i]); /* a digest of a body that stays */
        }
}

static void test_scope(void **state) {
        _cleanup_(fixture_freep) Fixture *f = fixture_new("{\"form\":\"key\",\"method\":\"POST\",\"path\":\"/v1/login\"}", ",\"paths\":[\"/v2\"]");

        expect(f, SUBSTITUTE_NOT_HERE, SIGN_IN, F, "key=" SENTINEL, NULL);
        f->credentials[0].paths = NULL;
        expect(f, SUBSTITUTE_REPLACE, SIGN_IN, F, "key=" SENTINEL, NULL);
        f->credentials[0].revoked = true;
        expect(f, SUBSTITUTE_REVOKED, SIGN_IN, F, "key=" SENTINEL, NULL);
}

static void test_decode_basic(void **state) {
        static const struct {
                const char *value, *user, *password; /* user NULL: it is none */
        } cases[] = {
                { "Basic dTpw", "u", "p" }, { "bASIC   dTpw  ", "u", "p" }, { "Basic Og==", "", "" }, { "Basic Og", "", "" },
                { "Basic dTpwOng=", "u", "p:x" }, { "Basic dTpwOng", "u", "p:x" },
                { "Basic dQ==", NULL, NULL }, { "Basic", NULL, NULL }, { "Basic ", NULL, NULL }, { "Basic dTpw=", NULL, NULL },
                { "Basic d", NULL, NULL }, { "Basic dT*w", NULL, NULL }, { "Basic dToAcA==", NULL, NULL }, { "Bearer dTpw", NULL, NULL },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *user = NULL;
                const char *password;

                if (decode_basic(cases[i].value, &user, &password) != (cases[i].user ? 0 : -EINVAL))
                        fail_msg("%s", cases[i].value);
                if (!cases[i].user)
                        continue;
                assert_string_equal(user, cases[i].user);
                assert_string_equal(password, cases[i].password);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_basic), cmocka_unit_test(test_on_foreign), cmocka_unit_test(test_query), cmocka_unit_test(test_json),
                cmocka_unit_test(test_foreign_names), cmocka_unit_test(test_lookalikes),
                cmocka_unit_test(test_form), cmocka_unit_test(test_signed), cmocka_unit_test(test_scope), cmocka_unit_test(test_decode_basic),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
