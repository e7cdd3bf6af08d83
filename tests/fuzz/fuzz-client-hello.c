/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A verdict never changes back: once a prefix is complete or refused, more bytes give the same answer. */

#include <stdlib.h>
#include <string.h>

#include "proxy/client-hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        ClientHello whole = {}, part = {};
        ClientHelloOutcome a, b;

        if (size > CLIENT_HELLO_MAX)
                size = CLIENT_HELLO_MAX;

        a = client_hello_parse(data, size, &whole);
        b = client_hello_parse(data, size / 2, &part);
        if (b == CLIENT_HELLO_COMPLETE && (a != b || memcmp(&whole, &part, sizeof(whole)) != 0))
                abort();
        if (b == CLIENT_HELLO_NOT_TLS && a != b)
                abort();
        if (a == CLIENT_HELLO_COMPLETE && whole.has_sni && (whole.sni[0] == '\0' || strlen(whole.sni) > CLIENT_HELLO_NAME_MAX))
                abort();
        return 0;
}
