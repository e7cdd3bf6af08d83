/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Reads what a model call used out of a provider's answer, and what that costs. Pure. */

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/cleanup.h"

typedef struct Usage {
        char model[128];
        uint64_t input_tokens, output_tokens, cache_read_tokens, cache_write_tokens;
        bool found; /* any of the numbers was there */
} Usage;

typedef enum UsageFormat {
        USAGE_FORMAT_NONE,   /* nothing that can be read */
        USAGE_FORMAT_JSON,   /* one document */
        USAGE_FORMAT_EVENTS, /* text/event-stream, JSON in its data lines */
} UsageFormat;

UsageFormat usage_format_of(const char *content_type);

/* Is this request one of the calls that the provider's file lists? provider is that file, checked. */
bool usage_is_call(const json_t *provider, const char *host, const char *method, const char *target);

typedef struct UsageReader UsageReader;

/* provider must outlive the reader. */
int usage_reader_new(UsageReader **ret, const json_t *provider, UsageFormat format);
UsageReader *usage_reader_free(UsageReader *r);
DEFINE_CLEANUP(UsageReader *, usage_reader_free)

/* Never fails: what is too long or no JSON is passed over. */
void usage_reader_feed(UsageReader *r, const void *data, size_t size);
void usage_reader_finish(UsageReader *r, Usage *ret);

/* Micro-dollars, rounded up; UINT64_MAX if it would not fit. */
uint64_t usage_cost(const json_t *provider, const Usage *u);
