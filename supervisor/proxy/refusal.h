/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* How a denied connection is told so, in the protocol that it speaks. Pure. */

#include <stddef.h>
#include <stdint.h>

typedef struct Refusal {
        const char *reason, *rule, *name; /* name may be "" */
        uint16_t port;
} Refusal;

enum { REFUSAL_ALERT_SIZE = 7 };

/* A fatal TLS alert: access_denied, or internal_error for what is no decision (unavailable, unreachable …). */
void refusal_alert(const char *reason, uint8_t ret[static REFUSAL_ALERT_SIZE]);

/* A whole HTTP/1.1 response with a JSON body that names the rule: 403, 421 for `fronting`, 400, 502, 503. The caller's; NULL when out of memory. */
char *refusal_http(const Refusal *r, size_t *ret_size);
