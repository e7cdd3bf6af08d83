/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The frames of git's protocol (gitprotocol-common(5), "pkt-line Format"). Pure. */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "inject/buffer.h"

enum {
        PKT_LINE_MAX = 65520, /* with its four digits */
        PKT_DATA_MAX = PKT_LINE_MAX - 4,
};

typedef enum PktKind {
        PKT_DATA,
        PKT_FLUSH,        /* 0000 */
        PKT_DELIM,        /* 0001 */
        PKT_RESPONSE_END, /* 0002 */
} PktKind;

typedef struct PktLine {
        PktKind kind;
        const uint8_t *data; /* points into what was read */
        size_t size;
} PktLine;

/* The one at the beginning of data: the number of its bytes, 0 if not all of it is there, -EBADMSG if that is none. */
ssize_t pkt_line_read(const void *data, size_t size, PktLine *ret);

/* Its size without the line's end that most of them have. */
size_t pkt_line_text_size(const PktLine *p);

/* -E2BIG: it does not fit into one. */
int pkt_line_append(Buffer *out, const void *data, size_t size);
int pkt_line_append_flush(Buffer *out);
