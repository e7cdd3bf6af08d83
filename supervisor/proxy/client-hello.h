/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Reads the name out of a TLS ClientHello without speaking TLS. Pure: the bytes peeked so far in, a verdict out. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
        CLIENT_HELLO_MAX = 16 * 1024, /* of wire bytes; a hello with post-quantum key shares is below 3 KiB */
        CLIENT_HELLO_NAME_MAX = 253,
};

typedef enum ClientHelloOutcome {
        CLIENT_HELLO_COMPLETE,
        CLIENT_HELLO_MORE,    /* a prefix of a hello: ask again with more bytes */
        CLIENT_HELLO_NOT_TLS, /* the first bytes are of another protocol */
        CLIENT_HELLO_BROKEN,  /* TLS, but not a hello that we accept (or larger than CLIENT_HELLO_MAX) */
} ClientHelloOutcome;

typedef struct ClientHello {
        bool has_sni;
        bool has_ech;                          /* an encrypted_client_hello extension, real or GREASE */
        char sni[CLIENT_HELLO_NAME_MAX + 1];   /* as sent: printable ASCII without spaces, not normalised */
} ClientHello;

/* The hello may be cut into any number of records. `ret` is written only for CLIENT_HELLO_COMPLETE. */
ClientHelloOutcome client_hello_parse(const uint8_t *data, size_t size, ClientHello *ret);
