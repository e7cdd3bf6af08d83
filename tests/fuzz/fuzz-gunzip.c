/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* In pieces, whose sizes the first byte says, it decodes as it does in one; and it stays within its bounds. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "inject/gunzip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int decode(const uint8_t *data, size_t size, size_t piece, Buffer *out) {
        _cleanup_(gunzip_freep) Gunzip *g = NULL;

        if (gunzip_new(&g) < 0)
                __builtin_trap();
        for (size_t i = 0; i < size; i += piece)
                if (gunzip_feed(g, data + i, piece < size - i ? piece : size - i, out) < 0)
                        break;
        return gunzip_finish(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        Buffer whole = {}, pieces = {};
        int a, b;

        if (size < 1)
                return 0;
        a = decode(data + 1, size - 1, size, &whole);
        b = decode(data + 1, size - 1, data[0] % 16 + 1, &pieces);
        if (buffer_size(&whole) > GUNZIP_FREE + size * GUNZIP_RATIO + 16384)
                __builtin_trap();
        if (a == 0 && (b != 0 || buffer_size(&whole) != buffer_size(&pieces) ||
                       memcmp(buffer_data(&whole), buffer_data(&pieces), buffer_size(&whole)) != 0))
                __builtin_trap();
        buffer_done(&whole);
        buffer_done(&pieces);
        return 0;
}
