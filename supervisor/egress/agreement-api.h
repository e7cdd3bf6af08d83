/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Does what a connection says about itself agree with the name that it was allowed under? Pure. */

#include <stdbool.h>
#include <stdint.h>

#include "policy/policy.h"

typedef struct Observed {
        EgressProtocol protocol;  /* of the first bytes */
        const char *sni;          /* NULL: none */
        bool ech;
        const char *host;         /* Host header, perhaps with a port; NULL: none */
} Observed;

/* NULL if it agrees, else the reason: "protocol", "ech", "no-sni", "fronting". `expected` is what the rule
 * says that the port carries; a raw port may carry anything, and then nothing is compared. */
const char *agreement_check(const char *name, uint16_t port, EgressProtocol expected, const Observed *seen);

/* Is "api.example.org", "API.example.org." or "api.example.org:443" this name (and port)? */
bool agreement_host_matches(const char *host, const char *name, uint16_t port);

/* Is this a field by which some servers and their frameworks take another method, path or host than those of the request line and Host
 * ("X-HTTP-Method-Override", "X-Original-URL", "X-Forwarded-Host")? Reverse proxies send most of them, and a guest is none to anybody outside. A decision about the request line would not be about what is done. */
bool agreement_field_overrides(const char *name);

/* Is this a field that names a second path, which the request is about as well: where something goes to (WebDAV's "Destination"), or comes from (what object stores copy)? */
bool agreement_field_names_path(const char *name);

/* Are these one field to some server? Case does not matter, and to whoever makes environment variables of them (CGI, WSGI) "_" is "-". */
bool agreement_same_field(const char *a, const char *b);

int protocol_from_text(const char *s, EgressProtocol *ret);
const char *protocol_to_text(EgressProtocol p);
