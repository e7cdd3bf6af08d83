/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * providers/NAME.json: which calls of a model provider are metered, where usage stands in its answers,
 * and what it costs.
 *
 *   { "description": TEXT, "api": NAME, "hosts": [ HOST ],
 *     "calls": [ { "method": "POST", "path": "/v1/messages" } ],
 *     "free": [ { "method": "GET", "path": "/v1/models" } ],
 *     "usage": { "model" | "input_tokens" | "output_tokens" | "cache_read_tokens" | "cache_write_tokens":
 *                [ JSON POINTER, … ] },       the first that is there counts
 *     "input_includes_cache": true,           "input_tokens" counts what was read from a cache as well
 *     "request": { "model" | "max_tokens" | "choices" | "detached": [ JSON POINTER, … ], "max_tokens_default": 32000 },
 *     "estimate": { "bytes_per_token": 4, "text": [ JSON POINTER, … ] },
 *     "prices_version": TEXT,
 *     "prices": { MODEL | "default": { "input", "output", "cache_read", "cache_write" } } }
 *
 * A path of "calls" and "free" is a whole path, with wildcards as in policy-path.c. "calls" cost money; "free" is known to cost
 * nothing; what is neither is not counted, and is refused in a run that has a budget.
 *
 * "api" also says in whose form a refusal is written: "anthropic-messages", "openai", or any other name for the plain form.
 * "request" is where a request says what it may cost at most; what is at a pointer of "detached" makes the provider go on behind its answer, which
 * nobody can count: such a call is refused in a run that has a budget. "estimate" is for answers that broke off before they said what they
 * used: so many bytes of the request, and of the text at these pointers, count as one token.
 *
 * Prices are micro-dollars per million tokens, so that cost is whole numbers throughout.
 */

#include "policy/policy-internal.h"

static void check_calls(const Node *top, const char *key, NodeFlags flags) {
        static const char *const known[] = { "method", "path", NULL };
        Node array;

        if (!node_array(top, key, flags, &array))
                return;
        if (json_array_size(array.value) == 0)
                node_fail(&array, "must not be empty");

        for (size_t i = 0; i < json_array_size(array.value); i++) {
                Node n = node_element(&array, i);
                const char *s, *wrong;

                if (!node_check_object(&n, known))
                        continue;
                if (node_string(&n, "method", NODE_REQUIRED, &s) && (wrong = check_method(s)))
                        node_fail_at(&n, "method", "%s", wrong);
                if (node_string(&n, "path", NODE_REQUIRED, &s) && (wrong = check_path_pattern(s)))
                        node_fail_at(&n, "path", "%s", wrong);
        }
}

static void check_usage(const Node *top) {
        static const char *const known[] = {
                "model", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", NULL,
        };
        const json_t *pointers;
        Node usage;

        if (!node_object(top, "usage", NODE_REQUIRED, &usage) || !node_check_object(&usage, known))
                return;

        for (size_t i = 0; known[i]; i++)
                (void) node_strings(&usage, known[i], i < 3 ? NODE_REQUIRED : 0, 1, 16, check_json_pointer, &pointers);
}

static void check_request(const Node *top) {
        static const char *const known[] = { "model", "max_tokens", "choices", "detached", "max_tokens_default", NULL };
        const json_t *pointers;
        uint64_t number;
        Node n;

        if (!node_object(top, "request", 0, &n) || !node_check_object(&n, known))
                return;
        (void) node_strings(&n, "model", NODE_REQUIRED, 1, 16, check_json_pointer, &pointers);
        (void) node_strings(&n, "max_tokens", NODE_REQUIRED, 1, 16, check_json_pointer, &pointers);
        (void) node_strings(&n, "choices", 0, 1, 16, check_json_pointer, &pointers);
        (void) node_strings(&n, "detached", 0, 1, 16, check_json_pointer, &pointers);
        (void) node_uint(&n, "max_tokens_default", NODE_REQUIRED, 1, 10000000, &number);
}

static void check_estimate(const Node *top) {
        static const char *const known[] = { "bytes_per_token", "text", NULL };
        const json_t *pointers;
        uint64_t number;
        Node n;

        if (!node_object(top, "estimate", 0, &n) || !node_check_object(&n, known))
                return;
        (void) node_uint(&n, "bytes_per_token", NODE_REQUIRED, 1, 64, &number);
        (void) node_strings(&n, "text", 0, 1, 16, check_json_pointer, &pointers);
}

static void check_prices(const Node *top) {
        static const char *const known[] = { "input", "output", "cache_read", "cache_write", NULL };
        const char *model;
        json_t *value;
        Node prices;

        if (!node_object(top, "prices", NODE_REQUIRED, &prices))
                return;

        json_object_foreach(prices.value, model, value) {
                Node n;

                if (!node_object(&prices, model, NODE_REQUIRED, &n) || !node_check_object(&n, known))
                        continue;
                for (size_t i = 0; known[i]; i++) {
                        uint64_t price;

                        (void) node_uint(&n, known[i], i < 2 ? NODE_REQUIRED : 0, 0, UINT64_C(1000000000000), &price);
                }
        }
}

void policy_check_provider(Policy *p, PolicyObject *o) {
        static const char *const known[] = {
                "description", "api", "hosts", "calls", "free", "usage", "input_includes_cache", "request", "estimate",
                "prices_version", "prices", NULL,
        };
        Node top = node_top(p, o);
        const json_t *hosts;
        const char *text;
        bool flag;

        if (!node_check_object(&top, known))
                return;

        (void) node_string(&top, "description", 0, &text);
        if (node_string(&top, "api", NODE_REQUIRED, &text) && !text_is_name(text))
                node_fail_at(&top, "api", "must be a name: a lower-case letter, then letters, digits and dashes");
        (void) node_strings(&top, "hosts", NODE_REQUIRED, 1, 64, check_host_name, &hosts);
        check_calls(&top, "calls", NODE_REQUIRED);
        check_calls(&top, "free", 0);
        check_usage(&top);
        (void) node_bool(&top, "input_includes_cache", 0, &flag);
        check_request(&top);
        check_estimate(&top);
        (void) node_string(&top, "prices_version", NODE_REQUIRED, &text);
        check_prices(&top);
}
