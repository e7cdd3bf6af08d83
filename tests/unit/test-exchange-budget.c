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

/* A stream that says one token at its beginning, as many do. */
typedef enum Streaming { STREAM_NONE, STREAM_WHOLE, STREAM_BREAKS, STREAM_WAITS } Streaming;

static Streaming streaming;

#define CHUNK(size, text) size "\r\n" text "\r\n"
#define FIRST_EVENT CHUNK("4e", "data: {\"message\":{\"model\":\"m\",\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}\n\n")
#define LAST_EVENT CHUNK("27", "data: {\"usage\":{\"output_tokens\":7}}  \n\n")

static bool origin_stream(World *w, SSL *ssl) {
        char scrap[16];

        if (!origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" FIRST_EVENT))
                return false;
        if (streaming == STREAM_WAITS) { /* for the guest to leave, and then goes on */
                (void) sem_wait(&w->may_go_on);
                return origin_send(ssl, CHUNK("a", "data: {}\n\n")) && SSL_read(ssl, scrap, sizeof(scrap)) > 0;
        }
        return streaming == STREAM_WHOLE && origin_send(ssl, LAST_EVENT "0\r\n\r\n");
}

static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        _cleanup_free_ char *text = says && *says ? text_format("HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                                                                says[0] == '!' ? "500 No" : "200 OK", strlen(says), says)
                                                  : NULL;

        if (streaming)
                return origin_stream(w, ssl);
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
        streaming = STREAM_NONE;
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
/* It leaves as soon as the first event is there. */
static void client_of_first_event(World *w) {
        SSL *ssl = client_connect(w, NAME);

        EXPECT(ssl);
        if (!ssl)
                return;
        answer[0] = 0;
        EXPECT(client_send(ssl, POST(45) BODY));
        EXPECT(client_await(ssl, "\"output_tokens\":1", answer, sizeof(answer)));
        SSL_free(ssl);
        (void) shutdown(w->guest_fd, SHUT_RDWR);
        (void) sem_post(&w->may_go_on);
}
static void client_of_whole_stream(World *w) {
        SSL *ssl = client_connect(w, NAME);

        EXPECT(ssl);
        if (!ssl)
                return;
        answer[0] = 0;
        EXPECT(client_send(ssl, POST(45) BODY));
        EXPECT(client_await(ssl, streaming == STREAM_BREAKS ? "\"output_tokens\":1" : "\r\n0\r\n\r\n", answer, sizeof(answer)));
        SSL_free(ssl);
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

/* From here on a run without a budget. */
static void lift_cap(World *w) {
        w->context.budget = budget_free(w->context.budget);
        anchord.capped = false;
        anchord.n_terms = 0;
        assert_int_equal(budget_new(&w->context.budget, w->event, RUN_API_SOCKET), 0);
        learn_terms(w);
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
                        if (i + 1 == ELEMENTSOF(cases) && capped)
                                lift_cap(w);
                }
        assert_int_equal(anchord.n_unreserved, 0); /* the report ends each */
}

/* What an origin says back of the key, in place of its model's name, is in no record; nor are the numbers beside it lost. */
static void test_echoed_key(void **state) {
        static const char *const echoes[] = {
                "{\"model\":\"m " SECRET "\",\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}",
                "{\"usage\":{\"input_tokens\":3,\"output_tokens\":4},\"model\":\"m \\u0073k-ant-the-real-one-0123\"}",
        };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(echoes); i++) {
                says = echoes[i];
                play(w, client_of_call);
                assert_string_equal(json_string_value(json_object_get(w->usage, "model")), "m " SENTINEL);
                assert_int_equal(used(w, "input_tokens"), 3);
                assert_int_equal(used(w, "output_tokens"), 4);
                assert_true(logged(w, "\"event\":\"model.call\""));
                assert_false(logged(w, SECRET));
        }
}

/* Whoever ended it: a number at the beginning of a stream is not the last word. Beside it one that was read to its end, and runs without a budget. */
static void test_cut_stream(void **state) {
        static const struct {
                Streaming streaming;
                void (*client)(World *w);
                json_int_t output, output_uncapped;
                bool estimated;
        } cases[] = {
                { STREAM_WHOLE, client_of_whole_stream, 7, 7, false },
                { STREAM_BREAKS, client_of_whole_stream, 100, 1, true },
                { STREAM_WAITS, client_of_first_event, 100, 2, true }, /* the former, and what came for nobody */
        };
        World *w = *state;

        (void) json_object_set_new(json_object_get(w->credentials[0].source->provider, "usage"), "output_tokens",
                                   json_pack("[s, s]", "/message/usage/output_tokens", "/usage/output_tokens"));
        for (int capped = 1; capped >= 0; capped--) {
                if (!capped)
                        lift_cap(w);
                for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                        streaming = cases[i].streaming;
                        play(w, cases[i].client);
                        assert_int_equal(used(w, "input_tokens"), 3);
                        assert_int_equal(used(w, "output_tokens"), capped ? cases[i].output : cases[i].output_uncapped);
                        assert_int_equal(used(w, "cost_microusd"), 3 + 2 * used(w, "output_tokens"));
                        assert_int_equal(json_is_true(json_object_get(w->usage, "estimated")), cases[i].estimated && used(w, "output_tokens") > 1);
                }
        }
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

#define HOUSE_CALL "POST /generate HTTP/1.1\r\nHost: " NAME "\r\n" KEY "Content-Length: 45\r\n\r\n{\"engine\": \"e-1\", \"opts\": {\"limit\" : 100}}   "

static void client_of_house(World *w) {
        client_of(w, HOUSE_CALL);
}

/* Of a provider that nobody here has heard of all is by its file's pointers: its calls, its numbers, what is made smaller; and a refusal has our own form. */
static void test_third_api(void **state) {
        static const char file[] = "{\"api\":\"house\",\"calls\":[{\"method\":\"POST\",\"path\":\"/generate\"}],"
                                   "\"usage\":{\"model\":[\"/engine\"],\"input_tokens\":[\"/meter/0\"],\"output_tokens\":[\"/meter/1\"],\"cache_read_tokens\":[\"/meter/2\"]},"
                                   "\"request\":{\"model\":[\"/engine\"],\"max_tokens\":[\"/opts/limit\"],\"max_tokens_default\":500},"
                                   "\"prices\":{\"e-1\":{\"input\":1000000,\"output\":2000000}}}";
        World *w = *state;
        json_t *provider = w->credentials[0].source->provider, *house = NULL;
        json_t *paths = json_object_get(w->credentials[0].source->rule, "paths");

        assert_int_equal(json_parse(file, strlen(file), &house, NULL), 0);
        (void) json_object_del(provider, "prices");
        assert_int_equal(json_object_update(provider, house), 0);
        json_decref(house);
        assert_int_equal(json_array_append_new(paths, json_string("/generate")), 0);

        says = "{\"engine\":\"e-1\",\"meter\":[9, 7, 2],\"usage\":{\"output_tokens\":4000}}";
        play(w, client_of_house);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_int_equal(anchord.last_output, 100);
        assert_string_equal(json_string_value(json_object_get(w->usage, "model")), "e-1");
        assert_int_equal(used(w, "input_tokens"), 9);
        assert_int_equal(used(w, "output_tokens"), 7);
        assert_int_equal(used(w, "cache_read_tokens"), 2);
        assert_int_equal(used(w, "cost_microusd"), 9 + 14);
        assert_string_equal(json_string_value(json_object_get(w->usage, "price")), "model");

        says = NULL;
        anchord.room_tokens = 90;
        anchord.lower = true;
        play(w, client_of_house);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        assert_string_equal(body, "{\"engine\": \"e-1\", \"opts\": {\"limit\" : 66}}   ");

        anchord.room_tokens = 30;
        play(w, client_of_house);
        assert_non_null(strstr(answer, "HTTP/1.1 402 "));
        assert_non_null(strstr(answer, "X-Should-Retry: false\r\n"));
        assert_non_null(strstr(answer, "Anchorhold-Reason: over-budget\r\n"));
        assert_non_null(strstr(answer, "{\"type\":\"error\",\"error\":{\"type\":\"anchorhold_refused\",\"reason\":\"over-budget\",\"rule\":\"default\","
                                       "\"message\":\"over budget: said so\"}}"));
        assert_int_equal(anchord.n_over, 1);
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

enum { LARGE = 12 * 1024 * 1024 }; /* more than sockets hold */

static char *large; /* a body of that size */

static void client_of_large(World *w) {
        SSL *ssl = client_connect(w, NAME);
        _cleanup_free_ char *head = text_format("POST /v1/messages HTTP/1.1\r\nHost: " NAME "\r\n" KEY "Content-Length: %d\r\n\r\n", LARGE);

        EXPECT(ssl);
        answer[0] = 0;
        if (!ssl)
                return;
        EXPECT(client_send(ssl, head));
        EXPECT(SSL_write(ssl, large, LARGE) == LARGE);
        EXPECT(client_await(ssl, "\r\n0\r\n\r\n", answer, sizeof(answer)) || strstr(answer, "}}"));
        (void) SSL_shutdown(ssl);
        SSL_free(ssl);
}

static void make_large(const char *begin, const char *more, const char *end) {
        size_t n = strlen(begin);

        large = malloc(LARGE + 1);
        strcpy(large, begin);
        for (; n + strlen(more) + strlen(end) <= LARGE; n += strlen(more))
                strcpy(large + n, more);
        memset(large + n, ' ', LARGE - n);
        memcpy(large + LARGE - strlen(end), end, strlen(end) + 1);
}

/* An origin that does not read leaves the body in our memory: that counts until it has left, and others have to wait. */
static void test_slow_origin(void **state) {
        World *w = *state;
        eventfd_t value;
        pthread_t thread;
        size_t waiting;
        int fds[2];

        make_large("{\"max_tokens\":100,\"model\":\"m\",\"x\":\"", "[x,", "\"}");
        learn_terms(w);
        w->dawdles = true;
        w->client = client_of_large;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        w->guest_fd = fds[0];
        assert_int_equal(exchange_start(&w->context, fds[1], NAME, w->port, "10.255.255.2", INSPECT_RULE), 0);
        assert_int_equal(pthread_create(&thread, NULL, client_main, w), 0);
        for (unsigned i = 0; i < 400 && anchord.n_reserved == 0; i++)
                assert_true(sd_event_run(w->event, 50000) >= 0);
        while (sd_event_run(w->event, 200000) > 0) /* as much has left as will */
                ;
        waiting = w->context.gathered;
        assert_int_equal(sem_post(&w->may_go_on), 0);
        while (eventfd_read(w->client_done, &value) < 0)
                assert_true(sd_event_run(w->event, 50000) >= 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(w->disappointed, 0);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        while (sd_event_run(w->event, 50000) > 0)
                ;
        assert_int_equal(anchord.n_reserved, 1);
        assert_int_equal(waiting, LARGE);
        assert_int_equal(w->context.gathered, 0);

        w->dawdles = false;
        w->context.gathered = SIZE_MAX / 2; /* of others */
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 503 "));
        assert_non_null(strstr(answer, "\"busy\""));
        w->context.gathered = 0;
        play(w, client_of_call);
        assert_non_null(strstr(answer, "HTTP/1.1 200 "));
        free(large);
}

/* Few bytes, and a hundred times as many once they are read as JSON. test_slow_origin() is the control: there the same is a text. */
static void test_many_values(void **state) {
        World *w = *state;

        make_large("{\"max_tokens\":100,\"model\":\"m\",\"x\":[0", ",0", "]}");
        play(w, client_of_large);
        assert_non_null(strstr(answer, "HTTP/1.1 413 "));
        assert_non_null(strstr(answer, "too many values"));
        assert_int_equal(w->n_accepted, 0);
        assert_int_equal(w->context.gathered, 0);
        free(large);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_granted), TEST(test_unsaid), TEST(test_echoed_key), TEST(test_cut_stream), TEST(test_not_capped), TEST(test_refused), TEST(test_third_api), TEST(test_said_twice), TEST(test_made_smaller), TEST(test_last_call),
                TEST(test_what_cannot_be_counted), TEST(test_too_many), TEST(test_too_many_of_earlier_lives), TEST(test_detached), TEST(test_nobody_answers), TEST(test_slow_origin), TEST(test_many_values), TEST(test_origin_is_not_there),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
