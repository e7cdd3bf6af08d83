/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A queue of bytes that may hold secrets: what is consumed, moved or freed is zeroed. */

#include <stddef.h>
#include <stdint.h>

typedef struct Buffer {
        uint8_t *data; /* owned */
        size_t begin, end, capacity;
} Buffer;

static inline size_t buffer_size(const Buffer *b) {
        return b->end - b->begin;
}

/* Never NULL. */
static inline const uint8_t *buffer_data(const Buffer *b) {
        return b->data ? b->data + b->begin : (const uint8_t *) "";
}

/* Room for size bytes behind what is there; fill it, then buffer_commit(). NULL: out of memory. */
uint8_t *buffer_reserve(Buffer *b, size_t size);
void buffer_commit(Buffer *b, size_t size);

int buffer_append(Buffer *b, const void *data, size_t size);
int buffer_append_text(Buffer *b, const char *text);
void buffer_consume(Buffer *b, size_t size);
void buffer_clear(Buffer *b);
void buffer_done(Buffer *b);
