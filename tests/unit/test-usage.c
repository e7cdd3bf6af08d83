/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "inject/usage-price.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

/* The vendor's own file: the pointers in it are under test as well. */
static json_t *load(const char *name) {
        _cleanup_free_ char *text = NULL, *file = text_format("policy/providers/%s.json", name);
        json_t *j = NULL;
        size_t size;

        assert_non_null(file);
        assert_int_equal(io_read_file(AT_FDCWD, file, 65536, &text, &size), 0);
        assert_int_equal(json_parse(text, size, &j, NULL), 0);
        return j;
}

static const UsageFacts whole = { .status = 200, .complete = true, .prompt_bytes = 4000 };

static const char stream[] =
        "event: message_start\n"
        "data: {\"type\":\"message_start\",\"message\":{\"model\":\"claude-sonnet-4-5\",\"usage\":{\"input_tokens\":100,"
        "\"cache_read_input_tokens\":7,\"cache_creation_input_tokens\":5,\"output_tokens\":1}}}\n\n"
        "event: content_block_delta\r\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"usage\"}}\r\n\r\n"
        ": a comment\n\ndata: no json\n\n"
        "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":20}}\n\n"
        "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":42,\"input_tokens\":-1}}\n\n"
        "data: {\"type\":\"message_stop\"}\n\n";

static void test_events(void **state) {
        json_t *provider = load("anthropic");

        for (size_t piece = 1; piece < sizeof(stream); piece++) {
                _cleanup_(usage_reader_freep) UsageReader *r = NULL;
                Usage u;

                assert_int_equal(usage_reader_new(&r, provider, USAGE_FORMAT_EVENTS), 0);
                for (size_t at = 0; at < sizeof(stream) - 1; at += piece)
                        usage_reader_feed(r, stream + at, sizeof(stream) - 1 - at < piece ? sizeof(stream) - 1 - at : piece);
                usage_conclude(provider, r, &whole, &u);
                assert_true(u.found);
                assert_false(u.estimated);
                assert_string_equal(u.model, "claude-sonnet-4-5");
                assert_int_equal(u.input_tokens, 100);
                assert_int_equal(u.output_tokens, 42);
                assert_int_equal(u.cache_read_tokens, 7);
                assert_int_equal(u.cache_write_tokens, 5);
        }
        json_decref(provider);
}

static void test_document(void **state) {
        static const char text[] = "{\"model\":\"m\\u001b[31m\",\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}";
        _cleanup_(usage_reader_freep) UsageReader *r = NULL, *none = NULL;
        json_t *provider = load("anthropic");
        Usage u;

        assert_int_equal(usage_reader_new(&r, provider, USAGE_FORMAT_JSON), 0);
        usage_reader_feed(r, text, 10);
        usage_reader_feed(r, text + 10, sizeof(text) - 11);
        usage_conclude(provider, r, &whole, &u);
        assert_int_equal(u.input_tokens, 3);
        assert_int_equal(u.output_tokens, 4);
        assert_null(strchr(u.model, 0x1b));

        assert_int_equal(usage_reader_new(&none, provider, USAGE_FORMAT_JSON), 0);
        usage_reader_feed(none, "{\"error\":{}}", 12);
        usage_conclude(provider, none, &(UsageFacts) { .status = 500, .complete = true, .prompt_bytes = 400 }, &u);
        assert_false(u.found);
        assert_false(u.estimated);
        assert_int_equal(u.input_tokens, 0); /* what failed costs what it says */
        json_decref(provider);
}

static void read_text(const json_t *provider, UsageFormat format, const char *text, const UsageFacts *facts, Usage *ret) {
        _cleanup_(usage_reader_freep) UsageReader *r = NULL;

        assert_int_equal(usage_reader_new(&r, provider, format), 0);
        usage_reader_feed(r, text, strlen(text));
        usage_conclude(provider, r, facts, ret);
}

static void test_openai(void **state) {
        json_t *provider = load("openai");
        Usage u;

        read_text(provider, USAGE_FORMAT_JSON,
                  "{\"model\":\"gpt-x\",\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":60}}}", &whole, &u);
        assert_string_equal(u.model, "gpt-x");
        assert_int_equal(u.input_tokens, 40);
        assert_int_equal(u.cache_read_tokens, 60);
        assert_int_equal(u.output_tokens, 7);
        assert_false(u.estimated);

        read_text(provider, USAGE_FORMAT_JSON,
                  "{\"model\":\"gpt-x\",\"usage\":{\"input_tokens\":10,\"output_tokens\":8,\"input_tokens_details\":{\"cached_tokens\":11}}}", &whole, &u);
        assert_int_equal(u.input_tokens, 0);
        assert_int_equal(u.output_tokens, 8);

        read_text(provider, USAGE_FORMAT_EVENTS,
                  "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"model\":\"gpt-x\",\"usage\":null}}\n\n"
                  "data: {\"type\":\"response.output_text.delta\",\"delta\":\"0123456789\"}\n\n"
                  "data: {\"type\":\"response.completed\",\"response\":{\"model\":\"gpt-x\",\"usage\":{\"input_tokens\":10,\"output_tokens\":3,"
                  "\"input_tokens_details\":{\"cached_tokens\":4}}}}\n\n", &whole, &u);
        assert_int_equal(u.input_tokens, 6);
        assert_int_equal(u.output_tokens, 3);
        assert_false(u.estimated);

        /* Chat Completions with include_usage: the last chunk has it */
        read_text(provider, USAGE_FORMAT_EVENTS,
                  "data: {\"model\":\"gpt-x\",\"choices\":[{\"delta\":{\"content\":\"0123456789\"}}],\"usage\":null}\n\n"
                  "data: {\"model\":\"gpt-x\",\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n", &whole, &u);
        assert_int_equal(u.input_tokens, 10);
        assert_int_equal(u.output_tokens, 3);
        assert_false(u.estimated);

        /* and without: 4000 bytes of prompt, ten of text and six of arguments */
        read_text(provider, USAGE_FORMAT_EVENTS,
                  "data: {\"model\":\"gpt-x\",\"choices\":[{\"delta\":{\"content\":\"0123456789\"}}]}\n\n"
                  "data: {\"model\":\"gpt-x\",\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{\\\"a\\\":1\"}}]}}]}\n\ndata: [DONE]\n\n",
                  &whole, &u);
        assert_string_equal(u.model, "gpt-x");
        assert_int_equal(u.input_tokens, 1000);
        assert_int_equal(u.output_tokens, 4);
        assert_true(u.estimated);
        json_decref(provider);
}

static void test_cut_off(void **state) {
        static const UsageFacts cut = { .status = 200, .prompt_bytes = 4001 };
        json_t *provider = load("anthropic"), *bare = json_pack("{s:{}}", "usage");
        Usage u;

        /* before the last word: one token said, then 9 bytes seen */
        read_text(provider, USAGE_FORMAT_EVENTS,
                  "data: {\"message\":{\"model\":\"m\",\"usage\":{\"input_tokens\":100,\"output_tokens\":1}}}\n\n"
                  "data: {\"delta\":{\"text\":\"01234\"}}\n\ndata: {\"delta\":{\"partial_json\":\"0123\"}}\n\ndata: {\"delta\":{\"te", &cut, &u);
        assert_int_equal(u.input_tokens, 100);
        assert_int_equal(u.output_tokens, 1 + 3);
        assert_true(u.estimated);

        /* after it: nothing is left to guess */
        read_text(provider, USAGE_FORMAT_EVENTS,
                  "data: {\"message\":{\"usage\":{\"input_tokens\":100,\"output_tokens\":1}}}\n\n"
                  "data: {\"delta\":{\"text\":\"01234\"}}\n\ndata: {\"usage\":{\"output_tokens\":2}}\n\n", &cut, &u);
        assert_int_equal(u.output_tokens, 2);
        assert_false(u.estimated);
        assert_true(u.output_unsaid); /* whether more would have come, nobody knows */
        assert_false(u.input_unsaid);

        /* a document of which only the beginning came */
        read_text(provider, USAGE_FORMAT_JSON, "{\"content\":\"0", &cut, &u);
        assert_int_equal(u.input_tokens, 1001);
        assert_int_equal(u.output_tokens, 4);
        assert_true(u.estimated);

        /* no answer: the origin may have worked on it all the same */
        usage_conclude(provider, NULL, &(UsageFacts) { .prompt_bytes = 8 }, &u);
        assert_int_equal(u.input_tokens, 2);
        assert_int_equal(u.output_tokens, 0);
        assert_true(u.estimated);

        /* an answer of a form that nobody told us */
        read_text(bare, USAGE_FORMAT_NONE, "01234567", &cut, &u);
        assert_int_equal(u.output_tokens, 2);
        read_text(bare, USAGE_FORMAT_EVENTS, "data: {\"x\":1}\n\n", &whole, &u);
        assert_int_equal(u.output_tokens, 2);
        json_decref(provider);
        json_decref(bare);
}

static void test_cost(void **state) {
        static const char text[] = "{\"prices\":{\"default\":{\"input\":3000000,\"output\":15000000},"
                                   "\"claude-x\":{\"input\":1},\"claude-x-9\":{\"input\":9000000,\"cache_read\":1000000}}}";
        Usage u = { .model = "other", .input_tokens = 1000, .output_tokens = 100, .cache_read_tokens = 5 };
        json_t *provider = NULL;
        UsagePrice price;

        assert_int_equal(json_parse(text, sizeof(text) - 1, &provider, NULL), 0);
        assert_int_equal(usage_cost(provider, &u, &price), 4500);
        assert_string_equal(usage_price_name(price), "default");
        strcpy(u.model, "claude-x-20260101");
        assert_int_equal(usage_cost(provider, &u, &price), 1); /* rounded up */
        assert_string_equal(usage_price_name(price), "model");
        strcpy(u.model, "claude-x-9-1");
        assert_int_equal(usage_cost(provider, &u, NULL), 9005);
        assert_int_equal(usage_cost_at_most(provider, "claude-x-9", 10, 10, NULL), 90);
        assert_int_equal(usage_cost_at_most(provider, "other", 10, 10, &price), 180);
        assert_int_equal(price, USAGE_PRICE_DEFAULT);
        assert_int_equal(usage_output_for(provider, "other", 150), 10);
        assert_true(usage_output_for(provider, "claude-x", 1) == UINT64_MAX);
        u.input_tokens = UINT64_MAX;
        u.cache_read_tokens = UINT64_MAX;
        assert_true(usage_cost(provider, &u, NULL) == UINT64_MAX);

        assert_int_equal(json_object_del(json_object_get(provider, "prices"), "default"), 0);
        strcpy(u.model, "other");
        assert_int_equal(usage_cost(provider, &u, &price), 0);
        assert_int_equal(price, USAGE_PRICE_NONE);
        json_decref(provider);
}

static void test_calls(void **state) {
        static const char wild[] = "{\"hosts\":[\"a.example\"],\"calls\":[{\"method\":\"POST\",\"path\":\"/openai/deployments/*/chat/completions\"},"
                                   "{\"method\":\"POST\",\"path\":\"/v2/**\"}]}";
        json_t *provider = load("anthropic");

        assert_true(usage_is_call(provider, "api.anthropic.com", "POST", "/v1/messages?beta=true"));
        assert_true(usage_is_call(provider, "API.anthropic.com", "POST", "/v1/messages"));
        assert_false(usage_is_call(provider, "api.anthropic.com", "GET", "/v1/messages"));
        assert_false(usage_is_call(provider, "api.anthropic.com", "POST", "/v1/messages/count_tokens"));
        assert_false(usage_is_call(provider, "elsewhere.example", "POST", "/v1/messages"));
        assert_true(usage_is_call(provider, "api.anthropic.com", "POST", "/v1/messages/"));
        /* what some origin may take for a call counts as one */
        assert_true(usage_is_call(provider, "api.anthropic.com", "POST", "/v1/%6dessages"));
        assert_true(usage_is_call(provider, "api.anthropic.com", "POST", "/v1//messages"));
        assert_true(usage_is_call(provider, "api.anthropic.com", "POST", "/v1/messages;x=y?z"));
        assert_int_equal(usage_kind(provider, "api.anthropic.com", "POST", "/v1/messages/count_tokens?beta=true"), USAGE_FREE);
        assert_int_equal(usage_kind(provider, "api.anthropic.com", "GET", "/v1/models/x/y"), USAGE_FREE);
        assert_int_equal(usage_kind(provider, "api.anthropic.com", "GET", "/v1/models//x"), USAGE_UNKNOWN);
        assert_int_equal(usage_kind(provider, "api.anthropic.com", "POST", "/v1/messages/batches"), USAGE_UNKNOWN);
        assert_int_equal(usage_kind(provider, "elsewhere.example", "POST", "/v1/messages"), USAGE_ELSEWHERE);
        json_decref(provider);

        assert_int_equal(json_parse(wild, sizeof(wild) - 1, &provider, NULL), 0);
        assert_true(usage_is_call(provider, "a.example", "POST", "/openai/deployments/d1/chat/completions?api-version=1"));
        assert_false(usage_is_call(provider, "a.example", "POST", "/openai/deployments/d1/x/chat/completions"));
        assert_true(usage_is_call(provider, "a.example", "POST", "/v2/any/thing"));
        assert_false(usage_is_call(provider, "a.example", "POST", "/v3"));
        json_decref(provider);

        assert_int_equal(usage_format_of("text/event-stream; charset=utf-8"), USAGE_FORMAT_EVENTS);
        assert_int_equal(usage_format_of("application/json"), USAGE_FORMAT_JSON);
        assert_int_equal(usage_format_of("text/html"), USAGE_FORMAT_NONE);
        assert_int_equal(usage_format_of(""), USAGE_FORMAT_NONE);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_events),
                cmocka_unit_test(test_document),
                cmocka_unit_test(test_openai),
                cmocka_unit_test(test_cut_off),
                cmocka_unit_test(test_cost),
                cmocka_unit_test(test_calls),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
