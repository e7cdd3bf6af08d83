/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Sessions of TLS with origins, to come back with: half of a handshake's cost is to verify a chain that was verified a moment ago. */

#include <openssl/ssl.h>

#include "util/cleanup.h"

enum {
        TLS_SESSIONS_MAX = 64,
        TLS_SESSIONS_OF_KEY_MAX = 4,
        TLS_SESSION_SECONDS = 300, /* then the chain is verified again */
};

typedef struct TlsSessions TlsSessions;
int tls_sessions_new(TlsSessions **ret);
TlsSessions *tls_sessions_free(TlsSessions *s);
DEFINE_CLEANUP(TlsSessions *, tls_sessions_free)

/* Takes the session over. The key says with whom, and as whom; a full store drops its oldest one. */
void tls_sessions_put(TlsSessions *s, const char *key, SSL_SESSION *session);
/* The newest one of that key, which is then the caller's alone (RFC 8446, C.4: a ticket is used once); NULL: none. */
SSL_SESSION *tls_sessions_take(TlsSessions *s, const char *key);
