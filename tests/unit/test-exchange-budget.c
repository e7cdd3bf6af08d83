/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Model calls of a run that has a budget: what is reserved for them, what becomes of one that does not fit, and what when nobody answers. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "budget-world.h"

/* ---- the origin ---- */

static char body[4096];

static const char *says; /* in place of what it uses; "": nothing, and it closes */

static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        _cleanup_free_ char *text = says && *says ? text_format("HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                                                                says[0] == '!' ? "500 No" : "200 OK", strlen(says), says)
                                                  : NULL;

        if (says)
                return text ? origin_send(ssl, text) : false;
        (void) snprintf(body, sizeof(body), "%.*s", (int) length, w->seen + strlen(w->seen) + 2);
        return origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 60\r\n\r\n"
                                "{\"model\":\"m\", \"usage\":{\"input_tokens\":3, \"output_tokens\":4}}");
}

static int begin(void **state) {
        World *w;

        body[0] = 0;
        says = NULL;
        if (set_up(state) != 0)
                return -1;
        w = *state;
        w->answer = origin_answer;
        budget_world_begin(w);
        return 0;
}

static int end(void **state) {
        World *w = *state;

        exchange_close_all(&w->context);
        budget_world_end(w);
        return tear_down(state);
}

/* ---- tests ---- */

#define POST(size) "POST /v1/messages HTTP/1.1\r\nHost: " NAME "\r\n" KEY "Content-Length: " #size "\r\n\r\n"
#define BODY "{\"max_tokens\" : 100,\"model\":\"m\",\"x\":\"\\u00e9\"}"

static char answer[8192];

static void client_of(World *w, const char *request) {
        SSL *ssl = client_connect(w, NAME);

        EXPECT(ssl);
        answer[0] = 0;
        if (!ssl)
                return;
        EXPECT(client_send(ssl, request));
        EXPECT(client_await(ssl, "}", answer, sizeof(answer)));
        (void) client_await(ssl, "}}", answer, sizeof(answer));
        (void) SSL_shutdown(ssl);
        SSL_free(ssl);
}

static void client_of_call(World *w) {
        client_of(w, POST(45) BODY);
}
static void client_of_chunks(World *w) {
        client_of(w, "POST /v1/messages HTTP/1.1\r\nHost: " NAME "\r\n" KEY "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"max\r\n28\r\n_tokens\" : 100,\"model\":\"m\",\"x\":\"\\u00e9\"}\r\n0\r\n\r\n");
}
static void client_of_twice(World *w) {
        client_of(w, POST(35) "{\"max_tokens\":1,\"max_tokens\":90000}");
}
static void client_of_case(World *w) {
        client_of(w, POST(35) "{\"max_tokens\":1,\"Max_To\xe2\x84\xaa"
                              "ens\":9}"
                              "  ");
}
static void client_of_null(World *w) {
        client_of(w, POST(45) "{\"max_output_tokens\":null,\"max_tokens\":70000}");
}
static void client_of_two(World *w) {
        client_of(w, POST(44) "{\"max_output_tokens\":16,\"max_tokens\":70000} ");
}
static void client_of_background(World *w) {
        client_of(w, POST(36) "{\"max_tokens\":9,\"background\":true}  ");
}
static void client_of_foreground(World *w) {
        client_of(w, POST(36) "{\"max_tokens\":9,\"background\":false} ");
}
static void client_of_zero(World *w) {
        client_of(w, POST(16) "{\"max_tokens\":0}");
}
static void client_of_no_json(World *w) {
        client_of(w, POST(2) "xy");
}
static void client_of_no_number(World *w) {
        client_of(w, POST(18) "{\"max_tokens\":\"1\"}");
}
static void client_of_encoded(World *w) {
        client_of(w, "POST /v1/messages HTTP/1.1\r\nHost: " NAME "\r\n" KEY "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}");
}
static void client_of_unknown(World *w) {
        client_of(w, "POST /v1/batches HTTP/1.1\r\nHost: " NAME "\r\n" KEY "Content-Length: 2\r\n\r\n{}");
}
static void client_of_free(World *w) {
        client_of(w, "GET /v1/models HTTP/1.1\r\nHost: " NAME "\r\n" KEY "\r\n");
}
static void client_of_misuse(World *w) {
        client_of(w, POST(37) "{\"x\":\"" OTHER "\"}");
}

/* So that it is known whether there is a cap. */
static void learn_terms(World *w) {
        while (anchord.n_terms == 0)
                assert_true(sd_event_run(w->event, 50000) >= 0);
        while (sd_event_run(w->event, 50000) > 0)
                ;
}

static void test_granted(void **state) {
        World *w = *state;

        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_string_equal(body, BODY);
        assert_int_equal(anchord.n_reserved, 1);
        assert_int_equal(anchord.n_unreserved, 0);
        assert_int_equal(anchord.last_output, 100);
        assert_int_equal(json_integer_value(json_object_get(w->usage, "output_tokens")), 4);
        assert_non_null(json_string_value(json_object_get(w->usage, "call")));

        /* the other framing comes to the same */
        play(w, client_of_chunks);
        assert_string_equal(body, BODY);
        assert_int_equal(anchord.n_reserved, 2);
}

static json_int_t used(const World *w, const char *key) {
        return json_integer_value(json_object_get(w->usage, key));
}

/* What an answer does not say counts as reserved, and is marked; what it says counts as said. Without a budget there is nothing to settle by. */
static void test_unsaid(void **state) {
        static const struct {
                const char *says;
                json_int_t input, output, cost;
                bool estimated;
        } cases[] = {
                { "{\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}", 3, 4, 11, false },
                { "{\"usage\":{\"input_tokens\":3,\"output_tokens\":0}}", 3, 0, 3, false },
                { "{\"usage\":{\"input_tokens\":3}}", 3, 100, 203, true },
                { "{\"usage\":{\"output_tokens\":4}}", 24, 4, 32, true },
                { "{\"text\":{\"a\":\"short\"}}", 24, 100, 224, true },
                { "", 24, 100, 224, true },
                { "!{\"error\":{\"a\":\"too many\"}}", 0, 0, 0, false },
        };
        World *w = *state;

        for (int capped = 1; capped >= 0; capped--)
                for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                        bool said = !cases[i].estimated;

                        says = cases[i].says;
                        play(w, client_of_call);
                        assert_non_null(strstr(answer, *says == '!' ? "HTTP/1.1 500 " : *says ? "HTTP/1.1 200 " : "HTTP/1.1 502 "));
                        assert_int_equal(json_is_true(json_object_get(w->usage, "estimated")), !said);
                        if (capped || said) {
                                assert_int_equal(used(w, "input_tokens"), cases[i].input);
                                assert_int_equal(used(w, "output_tokens"), cases[i].output);
                                assert_int_equal(used(w, "cost_microusd"), cases[i].cost);
                        } else
                                assert_true(used(w, "output_tokens") < 20 && used(w, "input_tokens") <= 12);
                        if (i + 1 == ELEMENTSOF(cases) && capped) {
                                w->context.budget = budget_free(w->context.budget);
                                anchord.capped = false;
                                anchord.n_terms = 0;
                                assert_int_equal(budget_new(&w->context.budget, w->event, RUN_API_SOCKET), 0);
                                learn_terms(w);
                        }
                }
        assert_int_equal(anchord.n_unreserved, 0); /* the report ends each */
}

static void test_not_capped(void **state) {
        World *w = *state;

        anchord.capped = false;
        learn_terms(w);
        play(w, client_of_call);
        play(w, client_of_unknown);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_int_equal(anchord.n_reserved, 0);
}

static void test_refused(void **state) {
        World *w = *state;

        anchord.room_tokens = 50;
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 402 "));
        assert_non_null(strstr(answer, "X-Should-Retry: false\r\n"));
        assert_non_null(strstr(answer, "\"type\":\"billing_error\""));
        assert_non_null(strstr(answer, "over budget: said so"));
        assert_int_equal(w->n_accepted, 0);
        assert_int_equal(anchord.n_over, 1);
        assert_string_equal(anchord.over, "over budget: said so");
        assert_null(w->usage);
        assert_true(logged(w, "\"reason\":\"over-budget\""));

        (void) json_object_set_new(w->credentials[0].source->provider, "api", json_string("openai"));
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 429 "));
        assert_non_null(strstr(answer, "\"code\":\"insufficient_quota\""));
        assert_int_equal(anchord.n_over, 1); /* said once */
}

/* How much output may come is the most of what is said: which of two numbers counts, only the origin knows. */
static void test_said_twice(void **state) {
        World *w = *state;

        (void) json_object_set_new(json_object_get(w->credentials[0].source->provider, "request"), "max_tokens",
                                   json_pack("[s, s]", "/max_output_tokens", "/max_tokens"));
        play(w, client_of_null);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_int_equal(anchord.last_output, 70000);
        play(w, client_of_two);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_int_equal(anchord.last_output, 70000);
        play(w, client_of_zero);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_int_equal(anchord.last_output, 500);
        assert_int_equal(anchord.n_reserved, 3);

        /* one that says it once can be made smaller, null beside it or not; one that says it twice cannot */
        anchord.room_tokens = 90;
        anchord.lower = true;
        play(w, client_of_null);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_string_equal(body, "{\"max_output_tokens\":null,\"max_tokens\":66}");
        play(w, client_of_two);
        assert_non_null(strstr(answer, "HTTP/1.1 402 "));
}

static void test_made_smaller(void **state) {
        World *w = *state;

        anchord.room_tokens = 90;
        anchord.lower = true;
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_int_equal(anchord.last_output, 90 - 24); /* twice 45 bytes' worth of input */
        assert_string_equal(body, "{\"max_tokens\" : 66,\"model\":\"m\",\"x\":\"\\u00e9\"}");
        assert_non_null(strstr(w->seen, "Content-Length: 44\r\n"));
        assert_int_equal(anchord.n_over, 0);

        /* so little is left that it is not worth asking for */
        anchord.room_tokens = 30;
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 402 "));
}

static void test_last_call(void **state) {
        World *w = *state;

        anchord.room_tokens = 90;
        anchord.summary = 20;
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_string_equal(body, "{\"max_tokens\" : 20,\"model\":\"m\",\"x\":\"\\u00e9\"}");
}

static void test_what_cannot_be_counted(void **state) {
        static const struct {
                void (*client)(World *w);
                const char *status, *reason;
        } cases[] = {
                { client_of_twice, " 400 ", "unreadable-request" }, { client_of_case, " 400 ", "unreadable-request" },
                { client_of_no_json, " 400 ", "unreadable-request" },
                { client_of_no_number, " 400 ", "unreadable-request" }, { client_of_encoded, " 415 ", "encoded-request" },
                { client_of_unknown, " 403 ", "unmetered" }, { client_of_misuse, " 403 ", "credential-misuse" },
        };
        World *w = *state;

        learn_terms(w);
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                play(w, cases[i].client);
                assert_non_null(strstr(answer, cases[i].status));
                assert_non_null(strstr(answer, cases[i].reason));
        }
        (void) json_object_del(json_object_get(w->credentials[0].source->provider, "prices"), "default");
        play(w, client_of_call);
        assert_non_null(strstr(answer, "unpriced"));
        assert_int_equal(w->n_accepted, 0);
        assert_int_equal(anchord.n_reserved, 0);
        play(w, client_of_free);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
}

/* No call is made of whose use anchord could not be told. */
static void test_too_many(void **state) {
        World *w = *state;

        learn_terms(w);
        w->context.n_metered = USAGE_REPORTS_MAX;
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 503 "));
        assert_non_null(strstr(answer, "\"busy\""));
        assert_int_equal(w->context.n_metered, USAGE_REPORTS_MAX);
        play(w, client_of_free);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        w->context.n_metered = USAGE_REPORTS_MAX - 1;
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_int_equal(w->context.n_metered, USAGE_REPORTS_MAX - 1);
        w->context.n_metered = 0;

        w->context.n_calls = USAGE_CALLS_MAX - 1;
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 403 "));
        assert_non_null(strstr(answer, "record-budget"));
        assert_int_equal(anchord.n_reserved, 2);
}

/* The bound is the run's, whatever became of the process before. */
static void test_too_many_of_earlier_lives(void **state) {
        World *w = *state;

        anchord.calls = USAGE_CALLS_MAX - 1;
        learn_terms(w);
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 403 "));
        assert_non_null(strstr(answer, "record-budget"));
        assert_int_equal(anchord.n_reserved, 1);
}

static void test_detached(void **state) {
        World *w = *state;

        (void) json_object_set_new(json_object_get(w->credentials[0].source->provider, "request"), "detached", json_pack("[s]", "/background"));
        play(w, client_of_background);
        assert_non_null(strstr(answer, "HTTP/1.1 403 "));
        assert_non_null(strstr(answer, "unmetered"));
        assert_int_equal(w->n_accepted, 0);
        play(w, client_of_foreground);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_int_equal(anchord.n_reserved, 1);
}

/* From the block that came with the last answer: one call fits, and is recorded later; for the next one somebody must answer. */
static void test_nobody_answers(void **state) {
        World *w = *state;

        play(w, client_of_call);
        assert_int_equal(anchord.n_reserved, 1);
        anchord.silent = true;
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_int_equal(anchord.n_taken, 0);
        anchord.silent = false;
        for (unsigned i = 0; i < 100 && anchord.n_taken == 0; i++)
                assert_true(sd_event_run(w->event, 50000) >= 0);
        assert_int_equal(anchord.n_taken, 1);
        while (sd_event_run(w->event, 50000) > 0)
                ;

        play(w, client_of_call);
        assert_int_equal(anchord.n_taken, 1);
        assert_int_equal(anchord.n_reserved, 3);
}

/* What was reserved and did not leave is given back. */
static void test_origin_is_not_there(void **state) {
        World *w = *state;

        (void) shutdown(w->origin_fd, SHUT_RDWR);
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 502 "));
        assert_int_equal(anchord.n_reserved, 1);
        assert_int_equal(anchord.n_unreserved, 1);
        assert_null(w->usage);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_granted), TEST(test_unsaid), TEST(test_not_capped), TEST(test_refused), TEST(test_said_twice), TEST(test_made_smaller), TEST(test_last_call),
                TEST(test_what_cannot_be_counted), TEST(test_too_many), TEST(test_too_many_of_earlier_lives), TEST(test_detached), TEST(test_nobody_answers), TEST(test_origin_is_not_there),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
