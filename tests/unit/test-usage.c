/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "inject/usage.h"
#include "util/io.h"
#include "util/json.h"

/* The vendor's own file: the pointers in it are under test as well. */
static json_t *load_provider(void) {
        _cleanup_free_ char *text = NULL;
        json_t *j = NULL;
        size_t size;

        assert_int_equal(io_read_file(AT_FDCWD, "policy/providers/anthropic.json", 65536, &text, &size), 0);
        assert_int_equal(json_parse(text, size, &j, NULL), 0);
        return j;
}

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
        json_t *provider = load_provider();

        for (size_t piece = 1; piece < sizeof(stream); piece++) {
                _cleanup_(usage_reader_freep) UsageReader *r = NULL;
                Usage u;

                assert_int_equal(usage_reader_new(&r, provider, USAGE_FORMAT_EVENTS), 0);
                for (size_t at = 0; at < sizeof(stream) - 1; at += piece)
                        usage_reader_feed(r, stream + at, sizeof(stream) - 1 - at < piece ? sizeof(stream) - 1 - at : piece);
                usage_reader_finish(r, &u);
                assert_true(u.found);
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
        json_t *provider = load_provider();
        Usage u;

        assert_int_equal(usage_reader_new(&r, provider, USAGE_FORMAT_JSON), 0);
        usage_reader_feed(r, text, 10);
        usage_reader_feed(r, text + 10, sizeof(text) - 11);
        usage_reader_finish(r, &u);
        assert_int_equal(u.input_tokens, 3);
        assert_int_equal(u.output_tokens, 4);
        assert_null(strchr(u.model, 0x1b));

        assert_int_equal(usage_reader_new(&none, provider, USAGE_FORMAT_JSON), 0);
        usage_reader_feed(none, "{\"error\":{}}", 12);
        usage_reader_finish(none, &u);
        assert_false(u.found);
        json_decref(provider);
}

static void test_cost(void **state) {
        static const char text[] = "{\"prices\":{\"default\":{\"input\":3000000,\"output\":15000000},"
                                   "\"claude-x\":{\"input\":1},\"claude-x-9\":{\"input\":9000000,\"cache_read\":1000000}}}";
        Usage u = { .model = "other", .input_tokens = 1000, .output_tokens = 100, .cache_read_tokens = 5 };
        json_t *provider = NULL;

        assert_int_equal(json_parse(text, sizeof(text) - 1, &provider, NULL), 0);
        assert_int_equal(usage_cost(provider, &u), 4500);
        strcpy(u.model, "claude-x-20260101");
        assert_int_equal(usage_cost(provider, &u), 1); /* rounded up */
        strcpy(u.model, "claude-x-9-1");
        assert_int_equal(usage_cost(provider, &u), 9005);
        u.input_tokens = UINT64_MAX;
        u.cache_read_tokens = UINT64_MAX;
        assert_true(usage_cost(provider, &u) == UINT64_MAX);
        json_decref(provider);
}

static void test_calls(void **state) {
        json_t *provider = load_provider();

        assert_true(usage_is_call(provider, "api.anthropic.com", "POST", "/v1/messages?beta=true"));
        assert_true(usage_is_call(provider, "API.anthropic.com", "POST", "/v1/messages"));
        assert_false(usage_is_call(provider, "api.anthropic.com", "GET", "/v1/messages"));
        assert_false(usage_is_call(provider, "api.anthropic.com", "POST", "/v1/messages/count_tokens"));
        assert_false(usage_is_call(provider, "elsewhere.example", "POST", "/v1/messages"));
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
                cmocka_unit_test(test_cost),
                cmocka_unit_test(test_calls),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
