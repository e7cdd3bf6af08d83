/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A provider's answer, as a document and as a stream. */

#include <stddef.h>
#include <stdint.h>

#include "inject/usage.h"
#include "util/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static json_t *provider;

        if (!provider)
                provider = json_pack("{s:{s:[ss], s:[s], s:[s]}, s:{s:{s:i}}}", "usage", "model", "/message/model", "/model",
                                     "input_tokens", "/usage/input_tokens", "output_tokens", "/usage/0/x~1y",
                                     "prices", "default", "input", 3);

        for (UsageFormat format = USAGE_FORMAT_NONE; format <= USAGE_FORMAT_EVENTS; format++) {
                _cleanup_(usage_reader_freep) UsageReader *r = NULL;
                Usage u;

                if (usage_reader_new(&r, provider, format) < 0)
                        return 0;
                usage_reader_feed(r, data, size / 2);
                usage_reader_feed(r, data + size / 2, size - size / 2);
                usage_reader_finish(r, &u);
                (void) usage_cost(provider, &u);
        }
        return 0;
}
