/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Also what is asked about each path: the input's first byte is the size of the pieces in which it comes. */

#include <assert.h>
#include <stdlib.h>

#include "import/raw-diff.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int on_change(const RawChange *c, void *userdata) {
        assert(c->path_size <= sizeof(((RawDiff *) NULL)->buffer));
        (void) tree_path_check(c->path, c->path_size);
        (void) tree_path_is_gitmodules(c->path, c->path_size);
        (void) tree_link_leaves(c->path, c->path_size, c->path, c->path_size);
        return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        size_t step;
        RawDiff d;

        if (size == 0)
                return 0;
        step = data[0] + 1U;
        data++;
        size--;

        raw_diff_init(&d, on_change, NULL);
        while (size > 0) {
                size_t n = step < size ? step : size;

                if (raw_diff_push(&d, (const char *) data, n) < 0)
                        return 0;
                data += n;
                size -= n;
        }
        (void) raw_diff_end(&d);
        return 0;
}
