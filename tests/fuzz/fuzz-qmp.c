/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Bytes from a QEMU that is not ours any more, in pieces, into the reader of QMP. */

#include <stddef.h>
#include <stdint.h>

#include "vmm/qmp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_(qmp_reader_freep) QmpReader *r = NULL;
        QmpMessage m;

        if (qmp_reader_new(&r) < 0)
                return 0;

        while (size > 0) {
                size_t n = 1 + data[0] % 97;

                n = n < size ? n : size;
                if (qmp_reader_feed(r, data, n) < 0)
                        break;
                data += n;
                size -= n;
                while (qmp_reader_next(r, &m) > 0)
                        qmp_message_done(&m);
        }
        return 0;
}
