/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <stdlib.h>
#include <string.h>

#include "net/netlog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        NetlogPacket p = {};
        void *copy;

        copy = malloc(size ?: 1); /* aligned, as the kernel's messages are read */
        if (!copy)
                return 0;
        memcpy(copy, data, size);
        if (netlog_parse(copy, size, &p) == 1 && p.denial.packets != 1)
                abort();
        free(copy);
        return 0;
}
