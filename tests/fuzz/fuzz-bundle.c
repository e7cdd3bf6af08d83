/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What inject reads from PID 1, and what secretd reads back from disk. */

#include <stddef.h>
#include <stdint.h>

#include "secret/bundle-api.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL, *again = NULL;
        char *text;
        size_t text_size;

        if (bundle_parse(&s, data, size) < 0)
                return 0;
        /* what was accepted can be written and read again */
        if (bundle_format(s, BUNDLE_WITH_SECRETS, &text, &text_size) < 0)
                return 0;
        if (bundle_parse(&again, text, text_size) < 0)
                __builtin_trap();
        secret_erase(text, text_size);
        return 0;
}
