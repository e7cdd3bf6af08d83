/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What a model call costs by a provider's price table. Pure. */

#include "inject/usage.h"

typedef enum UsagePrice {
        USAGE_PRICE_MODEL,   /* the table has the model */
        USAGE_PRICE_DEFAULT, /* it has not; its "default" was taken */
        USAGE_PRICE_NONE,    /* nor a default: the cost is 0 */
} UsagePrice;

const char *usage_price_name(UsagePrice p); /* "model", "default", "none" */

/* Micro-dollars, rounded up; UINT64_MAX if it would not fit. ret_price may be NULL. */
uint64_t usage_cost(const json_t *provider, const Usage *u, UsagePrice *ret_price);

/* The most that so many tokens can cost: those of the input at the dearest of what input may turn out to be (plain, or written to a cache). */
uint64_t usage_cost_at_most(const json_t *provider, const char *model, uint64_t input_tokens, uint64_t output_tokens, UsagePrice *ret_price);

/* How many output tokens such an amount buys at the model's price; UINT64_MAX if they cost nothing. */
uint64_t usage_output_for(const json_t *provider, const char *model, uint64_t microusd);
