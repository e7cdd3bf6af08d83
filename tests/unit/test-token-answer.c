/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What an API answers when it is asked for a token. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "inject/token-answer.h"
#include "util/json.h"

#define NOW (1790000000ULL * 1000000) /* 2026-09-21T14:13:20Z */
#define TOKEN "ghs_0123456789abcdef"

typedef struct Read {
        int r;
        Secret *token;
        uint64_t expires;
        char reason[TOKEN_ANSWER_REASON_SIZE], rest[2048];
} Read;

static Read read_answer(const char *text) {
        static const char asked[] = "{\"contents\": \"write\", \"issues\": \"read\"}";
        _cleanup_json_ json_t *permissions = NULL;
        Read a = {};

        assert_int_equal(json_parse(asked, strlen(asked), &permissions, NULL), 0);
        strcpy(a.rest, text);
        a.r = token_answer_read(a.rest, strlen(a.rest), NULL, permissions, "acme/widgets", NOW, &a.token, &a.expires, a.reason);
        return a;
}

static void test_token(void **state) {
        Read a = read_answer("{\"token\": \"" TOKEN "\", \"expires_at\": \"2026-09-21T15:13:20Z\", \"permissions\": {\"contents\": \"write\","
                             "\"metadata\": \"read\"}, \"repository_selection\": \"selected\", \"repositories\": [{\"full_name\": \"Acme/Widgets\"}]}");

        assert_int_equal(a.r, 0);
        assert_true(secret_equals(a.token, TOKEN, strlen(TOKEN)));
        assert_int_equal(a.expires, NOW + 3600ULL * 1000000);
        assert_null(strstr(a.rest, "ghs_")); /* nothing of it is left in the text */
        assert_non_null(strstr(a.rest, "\"....................\""));
        secret_free(a.token);

        a = read_answer("{\"token\": \"" TOKEN "\", \"expires_at\": \"2026-09-21T15:13:20Z\"}"); /* it need not say for what it is */
        assert_int_equal(a.r, 0);
        secret_free(a.token);
}

static void test_wider(void **state) {
        static const struct {
                const char *more, *reason;
        } cases[] = {
                { "\"permissions\": {\"contents\": \"admin\"}", "contents" },
                { "\"permissions\": {\"issues\": \"write\"}", "issues" },
                { "\"permissions\": {\"metadata\": \"write\"}", "metadata" },
                { "\"permissions\": {\"administration\": \"read\"}", "administration" },
                { "\"permissions\": {\"contents\": \"everything\"}", "contents" },
                { "\"permissions\": {\"contents\": 7}", "contents" },
                { "\"repositories\": [{\"full_name\": \"acme/widgets\"}, {\"full_name\": \"acme/\\u0007other\"}]", "acme/\\x07other" },
                { "\"repositories\": [{\"name\": \"widgets\"}]", "repositories" },
                { "\"repository_selection\": \"all\"", "repository_selection" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char text[512];
                Read a;

                (void) snprintf(text, sizeof(text), "{\"token\": \"" TOKEN "\", \"expires_at\": \"2026-09-21T15:13:20Z\", %s}", cases[i].more);
                a = read_answer(text);
                if (a.r != TOKEN_ANSWER_E_WIDER || !a.token || strcmp(a.reason, cases[i].reason) != 0)
                        fail_msg("%s: %d, \"%s\"", cases[i].more, a.r, a.reason);
                secret_free(a.token); /* it is there, so that it can be revoked */
        }
}

static void test_malformed(void **state) {
        static const struct Case {
                const char *text, *reason;
        } cases[] = {
                { "", "no token" },
                { "<html>", "no token" },
                { "[]", "no token" },
                { "{\"token\": 7}", "no token" },
                { "{\"token\": null}", "no token" },
                { "{\"token\": \"short\"}", "too short" },
                { "{\"token\": \"with a blank\"}", "characters" },
                { "{\"token\": \"ghs_\\u0041bcdefgh\"}", "characters" },
                { "{\"token\": \"ghs_abcdefgh\xc3\xa4\"}", "characters" },
        }, unclear[] = { /* there is a token, which may be good for a day at most: so it is to be revoked */
                { "{\"token\": \"" TOKEN "\"", "no JSON object" },
                { "{\"token\": \"" TOKEN "\", \"token\": 7}", "no JSON object" },
                { "{\"token\": \"" TOKEN "\"}", "does not say when" },
                { "{\"token\": \"" TOKEN "\", \"expires_at\": 7}", "does not say when" },
                { "{\"token\": \"" TOKEN "\", \"expires_at\": \"tomorrow\"}", "does not say when" },
                { "{\"token\": \"" TOKEN "\", \"expires_at\": \"2026-09-21T15:13:20Z!\"}", "does not say when" },
                { "{\"token\": \"" TOKEN "\", \"expires_at\": \"2026-09-21T14:13:20Z\"}", "past, or more" },
                { "{\"token\": \"" TOKEN "\", \"expires_at\": \"2026-09-22T14:13:21Z\"}", "more than a day" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                Read a = read_answer(cases[i].text);

                if (a.r != -EBADMSG || a.token || !strstr(a.reason, cases[i].reason))
                        fail_msg("%s: %d, \"%s\"", cases[i].text, a.r, a.reason);
        }
        for (size_t i = 0; i < ELEMENTSOF(unclear); i++) {
                Read a = read_answer(unclear[i].text);

                if (a.r != TOKEN_ANSWER_E_UNCLEAR || !a.token || a.expires != NOW + 24 * 3600ULL * 1000000 || !strstr(a.reason, unclear[i].reason))
                        fail_msg("%s: %d, \"%s\"", unclear[i].text, a.r, a.reason);
                assert_true(secret_equals(a.token, TOKEN, strlen(TOKEN)));
                secret_free(a.token);
        }
}

static void test_others(void **state) {
        static const char message[] = "{\"message\": \"Bad\\u001b[31m credentials\"}";
        char text[TOKEN_ANSWER_REASON_SIZE];

        assert_int_equal(token_answer_read_installation("{\"id\": 7}", 9), 7);
        assert_int_equal(token_answer_read_installation("{\"id\": -7}", 10), 0);
        assert_int_equal(token_answer_read_installation("{\"id\": \"7\"}", 11), 0);
        assert_int_equal(token_answer_read_installation("[7]", 3), 0);
        assert_int_equal(token_answer_read_installation("", 0), 0);
        token_answer_read_message(message, strlen(message), NULL, text);
        assert_string_equal(text, "Bad\\x1b[31m credentials");
        token_answer_read_message("<html>", 6, NULL, text);
        assert_string_equal(text, "");
}

/* An API that says back what it was asked with, or the token once more: that is not told on, in whatever form it stands. */
static void test_echoes(void **state) {
        static const char *const messages[] = {
                "{\"message\": \"no: Bearer the.signed.proof.0123 is expired\"}",
                "{\"message\": \"no: Bearer the\\u002esigned.proof.0123 is expired\"}",
                "{\"message\": \"no: Bearer the%2Esigned.proof.0123 is expired\"}",
        };
        _cleanup_(secret_freep) Secret *proof = NULL;
        char text[TOKEN_ANSWER_REASON_SIZE];
        Read a;

        assert_int_equal(secret_new(&proof, "the.signed.proof.0123", 21), 0);
        for (size_t i = 0; i < ELEMENTSOF(messages); i++) {
                token_answer_read_message(messages[i], strlen(messages[i]), proof, text);
                assert_string_equal(text, "no: Bearer (secret) is expired");
        }
        token_answer_read_message("{\"message\": \"dGhlLnNpZ25lZC5wcm9vZi4wMTIz\"}", 43, proof, text);
        assert_null(strstr(text, "LnNpZ25lZC5wcm9vZi4"));

        a = read_answer("{\"token\": \"" TOKEN "\", \"expires_at\": \"2026-09-21T15:13:20Z\", \"permissions\": {\"x " TOKEN "\": \"write\"}}");
        assert_int_equal(a.r, TOKEN_ANSWER_E_WIDER);
        assert_string_equal(a.reason, "x (secret)");
        secret_free(a.token);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_token),
                cmocka_unit_test(test_wider),
                cmocka_unit_test(test_malformed),
                cmocka_unit_test(test_others),
                cmocka_unit_test(test_echoes),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
