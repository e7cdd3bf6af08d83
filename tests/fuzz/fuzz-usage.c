/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A provider's answer, as a document and as a stream. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "inject/usage-price.h"
#include "util/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static json_t *provider;

        if (!provider)
                provider = json_pack("{s:{s:[ss], s:[s], s:[ss], s:[s]}, s:b, s:{s:i, s:[ss]}, s:{s:{s:i}}}", "usage", "model", "/message/model", "/model",
                                     "input_tokens", "/usage/input_tokens", "output_tokens", "/usage/0/x~1y", "/usage/output_tokens",
                                     "cache_read_tokens", "/usage/cached_tokens", "input_includes_cache", 1,
                                     "estimate", "bytes_per_token", 3, "text", "/delta", "/choices/0/delta/content",
                                     "prices", "default", "input", 3);

        for (UsageFormat format = USAGE_FORMAT_NONE; format <= USAGE_FORMAT_EVENTS; format++) {
                _cleanup_(usage_reader_freep) UsageReader *r = NULL;
                Usage u;

                if (usage_reader_new(&r, provider, format) < 0)
                        return 0;
                usage_reader_feed(r, data, size / 2);
                usage_reader_feed(r, data + size / 2, size - size / 2);
                usage_conclude(provider, r, &(UsageFacts) { .status = 200, .prompt_bytes = size, .complete = size % 2 }, &u);
                if (u.output_tokens > (1ULL << 50) + size || u.cache_read_tokens > 1ULL << 50)
                        abort();
                (void) usage_cost(provider, &u, NULL);
                (void) usage_cost_at_most(provider, u.model, u.input_tokens, u.output_tokens, NULL);
        }
        return 0;
}
