/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A server's answer (the first byte says how long it is), then a client's bytes behind its first hello: however they are cut, no hello with another
 * name passes unseen, and no more passes than there is. */

#include <stdlib.h>

#include "proxy/hello-retry.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        HelloRetry whole = { .seen_first = true }, cut = { .seen_first = true };
        HelloRetryOutcome a = HELLO_RETRY_PASS, b = HELLO_RETRY_PASS;
        size_t n, pass = 0, passed = 0;
        ClientHello hello;

        if (size < 1 || size > 4096)
                return 0;
        n = data[0] < size - 1 ? data[0] : size - 1;
        data++;
        size--;

        hello_retry_feed_server(&whole, data, n);
        for (size_t i = 0; i < n; i++)
                hello_retry_feed_server(&cut, data + i, 1);
        if (whole.state != cut.state)
                abort();

        a = hello_retry_check_client(&whole, data + n, size - n, &pass, &hello);
        if (pass > size - n)
                abort();

        for (size_t i = passed; i <= size - n && b == HELLO_RETRY_PASS; i++) {
                size_t more;

                b = hello_retry_check_client(&cut, data + n + passed, i - passed, &more, &hello);
                if (more > i - passed)
                        abort();
                passed += more;
        }
        if (a == HELLO_RETRY_SECOND && b != HELLO_RETRY_SECOND)
                abort();
        if (b == HELLO_RETRY_SECOND && a != HELLO_RETRY_SECOND && a != HELLO_RETRY_BROKEN)
                abort();
        return 0;
}
