/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/buffer.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint8_t *buffer_reserve(Buffer *b, size_t size) {
        size_t used = buffer_size(b), capacity;
        uint8_t *data;

        if (b->capacity - b->end >= size)
                return b->data + b->end;

        if (b->capacity - used >= size) {
                memmove(b->data, b->data + b->begin, used);
                explicit_bzero(b->data + used, b->end - used);
                b->begin = 0;
                b->end = used;
                return b->data + used;
        }

        capacity = b->capacity ? b->capacity : 4096;
        while (capacity - used < size)
                capacity *= 2;
        data = malloc(capacity);
        if (!data)
                return NULL;

        if (used > 0)
                memcpy(data, b->data + b->begin, used);
        buffer_done(b);
        *b = (Buffer) { .data = data, .end = used, .capacity = capacity };
        return data + used;
}

void buffer_commit(Buffer *b, size_t size) {
        assert(b->capacity - b->end >= size);
        b->end += size;
}

int buffer_append(Buffer *b, const void *data, size_t size) {
        uint8_t *p;

        if (size == 0)
                return 0;
        p = buffer_reserve(b, size);
        if (!p)
                return -ENOMEM;
        memcpy(p, data, size);
        buffer_commit(b, size);
        return 0;
}

int buffer_append_text(Buffer *b, const char *text) {
        return buffer_append(b, text, strlen(text));
}

void buffer_consume(Buffer *b, size_t size) {
        assert(size <= buffer_size(b));
        if (size == 0)
                return;
        explicit_bzero(b->data + b->begin, size);
        b->begin += size;
        if (b->begin == b->end)
                b->begin = b->end = 0;
}

void buffer_clear(Buffer *b) {
        buffer_consume(b, buffer_size(b));
}

void buffer_done(Buffer *b) {
        if (b->data)
                explicit_bzero(b->data + b->begin, buffer_size(b));
        free(b->data);
        *b = (Buffer) {};
}
