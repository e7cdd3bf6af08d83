/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "run/run-text.h"

#include <stdio.h>
#include <string.h>

#include "util/cleanup.h"

/* Length of the character at the start of data: 1 to 4; 0 if it is none; -1 if it may be one, cut off. */
static int utf8_length(const uint8_t *data, size_t size) {
        uint8_t low = 0x80, high = 0xbf;
        int n;

        if (data[0] < 0x80)
                return 1;
        else if (data[0] >= 0xc2 && data[0] <= 0xdf)
                n = 2;
        else if (data[0] >= 0xe0 && data[0] <= 0xef) {
                n = 3;
                if (data[0] == 0xe0)
                        low = 0xa0; /* overlong */
                else if (data[0] == 0xed)
                        high = 0x9f; /* surrogates */
        } else if (data[0] >= 0xf0 && data[0] <= 0xf4) {
                n = 4;
                if (data[0] == 0xf0)
                        low = 0x90; /* overlong */
                else if (data[0] == 0xf4)
                        high = 0x8f; /* beyond U+10FFFF */
        } else
                return 0;

        for (int i = 1; i < n; i++) {
                if ((size_t) i >= size)
                        return -1;
                if (data[i] < (i == 1 ? low : 0x80) || data[i] > (i == 1 ? high : 0xbf))
                        return 0;
        }

        /* Noncharacters (U+FDD0 to U+FDEF, and the last two of each plane): sd-json refuses them. */
        if (n == 3 && data[0] == 0xef && ((data[1] == 0xb7 && data[2] >= 0x90 && data[2] <= 0xaf) || (data[1] == 0xbf && data[2] >= 0xbe)))
                return 0;
        if (n == 4 && (data[1] & 0x0f) == 0x0f && data[2] == 0xbf && data[3] >= 0xbe)
                return 0;

        return n;
}

size_t run_text_encode(const uint8_t *data, size_t size, bool last, char *to, size_t room, size_t *ret_size) {
        static const char digits[] = "0123456789abcdef";
        size_t in = 0, out = 0;

        while (in < size) {
                int n = utf8_length(data + in, size - in);

                if (n < 0 && !last)
                        break;
                if (n > 0 && data[in] != 0 && data[in] != 0x7f) {
                        if (out + (size_t) n > room)
                                break;
                        memcpy(to + out, data + in, (size_t) n);
                        out += (size_t) n;
                        in += (size_t) n;
                        continue;
                }

                if (out + 4 > room)
                        break;
                to[out++] = '\\';
                to[out++] = 'x';
                to[out++] = digits[data[in] >> 4];
                to[out++] = digits[data[in] & 15];
                in++;
        }

        *ret_size = out;
        return in;
}

void run_tail_clear(RunTail *t) {
        t->start = t->size = 0;
        t->cut = false;
}

void run_tail_push(RunTail *t, const void *data, size_t size) {
        const uint8_t *p = data;

        if (size > sizeof(t->data)) {
                p += size - sizeof(t->data);
                size = sizeof(t->data);
                t->cut = true;
        }

        for (size_t i = 0; i < size; i++) {
                t->data[(t->start + t->size) % sizeof(t->data)] = p[i];
                if (t->size < sizeof(t->data))
                        t->size++;
                else {
                        t->start = (t->start + 1) % sizeof(t->data);
                        t->cut = true;
                }
        }
}

char *run_tail_text(const RunTail *t) {
        _cleanup_free_ uint8_t *flat = malloc(t->size + 1);
        char *text = malloc(4 * t->size + 1);
        size_t from = 0, n = 0;

        if (!flat || !text) {
                free(text);
                return NULL;
        }

        for (size_t i = 0; i < t->size; i++)
                flat[i] = t->data[(t->start + i) % sizeof(t->data)];

        if (t->cut) {
                const uint8_t *newline = memchr(flat, '\n', t->size);

                if (newline && (size_t) (newline - flat) + 1 < t->size)
                        from = (size_t) (newline - flat) + 1;
        }

        (void) run_text_encode(flat + from, t->size - from, true, text, 4 * t->size, &n);
        text[n] = 0;
        return text;
}
