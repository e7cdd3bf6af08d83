/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/pkt-line.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "util/text.h"

ssize_t pkt_line_read(const void *data, size_t size, PktLine *ret) {
        static const PktKind short_ones[] = { PKT_FLUSH, PKT_DELIM, PKT_RESPONSE_END };
        const uint8_t *p = data;
        size_t n = 0;

        for (size_t i = 0; i < 4 && i < size; i++) {
                int d = text_hex_digit((char) p[i]);

                if (d < 0)
                        return -EBADMSG;
                n = n * 16 + (size_t) d;
        }
        if (size < 4)
                return 0;

        if (n < sizeof(short_ones) / sizeof(*short_ones)) {
                *ret = (PktLine) { .kind = short_ones[n], .data = p + 4 };
                return 4;
        }
        if (n < 4 || n > PKT_LINE_MAX)
                return -EBADMSG;
        if (size < n)
                return 0;
        *ret = (PktLine) { .kind = PKT_DATA, .data = p + 4, .size = n - 4 };
        return (ssize_t) n;
}

size_t pkt_line_text_size(const PktLine *p) {
        return p->size > 0 && p->data[p->size - 1] == '\n' ? p->size - 1 : p->size;
}

int pkt_line_append(Buffer *out, const void *data, size_t size) {
        char digits[5];
        int r;

        if (size > PKT_DATA_MAX)
                return -E2BIG;
        (void) snprintf(digits, sizeof(digits), "%04zx", size + 4);
        r = buffer_append(out, digits, 4);
        return r < 0 ? r : buffer_append(out, data, size);
}

int pkt_line_append_flush(Buffer *out) {
        return buffer_append(out, "0000", 4);
}
