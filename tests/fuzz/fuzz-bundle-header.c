/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <assert.h>
#include <string.h>

#include "import/bundle-header.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        const char *reason = NULL;
        BundleHeader h;

        if (bundle_header_parse(data, size, &h, &reason) < 0) {
                assert(reason);
                return 0;
        }

        assert(h.pack_offset + 12 <= size);
        assert(memcmp(data + h.pack_offset, "PACK", 4) == 0);
        for (size_t i = 0; i < h.n_refs && i < BUNDLE_REFS_MAX; i++)
                assert(strlen(h.refs[i].oid) == h.oid_length && strlen(h.refs[i].name) > 0);
        return 0;
}
