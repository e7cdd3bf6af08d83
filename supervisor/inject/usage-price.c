/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Of the price table, the entry counts whose name is the model's; else the longest that the model's name
 * starts with ("claude-x" for "claude-x-20260101"); else "default".
 */

#include "inject/usage-price.h"

#include <string.h>

#include "util/text.h"

#define MILLION 1000000U

const char *usage_price_name(UsagePrice p) {
        static const char *const names[] = { "model", "default", "none" };

        return names[p];
}

static const json_t *find_prices(const json_t *provider, const char *model, UsagePrice *ret) {
        json_t *prices = json_object_get(provider, "prices"), *value;
        const json_t *best = NULL;
        const char *name;
        size_t longest = 0;

        json_object_foreach(prices, name, value) {
                size_t n = strlen(name);

                if (n > longest && strcmp(name, "default") != 0 && strncmp(name, model, n) == 0) {
                        best = value;
                        longest = n;
                }
        }
        *ret = USAGE_PRICE_MODEL;
        if (!best) {
                best = json_object_get(prices, "default");
                *ret = best ? USAGE_PRICE_DEFAULT : USAGE_PRICE_NONE;
        }
        return best;
}

static uint64_t price_of(const json_t *prices, const char *what) {
        json_int_t price = json_integer_value(json_object_get(prices, what));

        return price > 0 ? (uint64_t) price : 0;
}

static uint64_t to_microusd(unsigned __int128 sum) {
        sum = (sum + MILLION - 1) / MILLION;
        return sum > UINT64_MAX ? UINT64_MAX : (uint64_t) sum;
}

uint64_t usage_cost(const json_t *provider, const Usage *u, UsagePrice *ret_price) {
        UsagePrice kind;
        const json_t *prices = find_prices(provider, u->model, &kind);
        const struct {
                const char *name;
                uint64_t tokens;
        } parts[] = {
                { "input", u->input_tokens },
                { "output", u->output_tokens },
                { "cache_read", u->cache_read_tokens },
                { "cache_write", u->cache_write_tokens },
        };
        unsigned __int128 sum = 0;

        for (size_t i = 0; i < ELEMENTSOF(parts); i++)
                sum += (unsigned __int128) parts[i].tokens * price_of(prices, parts[i].name);
        if (ret_price)
                *ret_price = kind;
        return to_microusd(sum);
}

uint64_t usage_cost_at_most(const json_t *provider, const char *model, uint64_t input_tokens, uint64_t output_tokens, UsagePrice *ret_price) {
        static const char *const inputs[] = { "input", "cache_read", "cache_write" };
        UsagePrice kind;
        const json_t *prices = find_prices(provider, model, &kind);
        uint64_t dearest = 0;

        for (size_t i = 0; i < ELEMENTSOF(inputs); i++) {
                uint64_t price = price_of(prices, inputs[i]);

                dearest = price > dearest ? price : dearest;
        }
        if (ret_price)
                *ret_price = kind;
        return to_microusd((unsigned __int128) input_tokens * dearest + (unsigned __int128) output_tokens * price_of(prices, "output"));
}

uint64_t usage_output_for(const json_t *provider, const char *model, uint64_t microusd) {
        UsagePrice kind;
        uint64_t price = price_of(find_prices(provider, model, &kind), "output");
        unsigned __int128 tokens;

        if (price == 0)
                return UINT64_MAX;
        tokens = (unsigned __int128) microusd * MILLION / price;
        return tokens > UINT64_MAX ? UINT64_MAX : (uint64_t) tokens;
}
