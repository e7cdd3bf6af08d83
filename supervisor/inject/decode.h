/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The encodings in which a credential travels in a request: percent-encoding, forms, Basic authorization. Pure. */

#include <stdbool.h>
#include <stddef.h>

#include "inject/buffer.h"

/* Percent-escapes (and with form set, "+") become what they stand for; ret has room for size bytes. The number of bytes. Anything that is no escape stays. */
size_t decode_percent(const char *data, size_t size, bool form, char *ret);

typedef struct DecodedParameter {
        char *name;        /* owned; decoded, with a zero byte behind it. NULL: out of memory */
        size_t n_name;
        size_t begin, end; /* of its value, as it stands in the target */
} DecodedParameter;

/* The parameter of a target whose "?" or "&" is at *at, which moves behind it. False: there is none. */
bool decode_next_parameter(const char *target, size_t *at, DecodedParameter *ret);
void decode_parameter_done(DecodedParameter *p);

/* Appends data with everything but letters, digits and "-._~" as escapes. */
int encode_percent(Buffer *out, const void *data, size_t size);

/* The two halves of "Basic BASE64" (RFC 7617): decoded, both in one text of the caller's, the first from its beginning, the second from *ret_password on,
 * each with a zero byte behind it. -EINVAL: it is no Basic authorization, or has a zero byte in it. */
int decode_basic(const char *value, char **ret, const char **ret_password);

/* Appends "Basic " and the Base64 of both halves. Its copies are zeroed. */
int encode_basic(Buffer *out, const void *user, size_t user_size, const void *password, size_t password_size);
