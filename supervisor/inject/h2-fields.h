/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Header fields on their way into a session of nghttp2, which copies them. */

#include <nghttp2/nghttp2.h>

#include "inject/http-message.h"

enum { H2_FIELDS_MAX = HTTP_FIELDS_MAX + 8 }; /* pseudo-header fields and our own */

typedef struct H2Fields {
        Buffer text;
        struct {
                size_t name, name_size, value, value_size; /* in text */
                bool secret;
        } items[H2_FIELDS_MAX];
        size_t n;
} H2Fields;

void h2_fields_done(H2Fields *f);
/* A secret's value is never put into the other side's table of fields. -E2BIG, -ENOMEM. */
int h2_fields_add(H2Fields *f, const char *name, const void *value, size_t size, bool secret);
int h2_fields_add_text(H2Fields *f, const char *name, const char *value);
/* Fills ret with f->n entries that point into f. */
void h2_fields_list(const H2Fields *f, nghttp2_nv ret[H2_FIELDS_MAX]);
