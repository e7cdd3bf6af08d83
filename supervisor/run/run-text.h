/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Bytes of a guest as text for JSON. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Encodes as much of data as fits into room bytes: valid UTF-8 as it is, zero bytes, DEL, noncharacters (which
 * sd-json cannot carry, see ipc/json-convert.h) and whatever is not UTF-8 as \xNN. A character that is cut off at the end of data is left there, unless `last`. Returns the
 * bytes of data that were used, *ret_size the bytes written; no zero byte is added.
 */
size_t run_text_encode(const uint8_t *data, size_t size, bool last, char *to, size_t room, size_t *ret_size);

/* The last bytes of something longer. */
typedef struct RunTail {
        uint8_t data[16 * 1024];
        size_t start, size;
        bool cut;
} RunTail;

void run_tail_clear(RunTail *t);
void run_tail_push(RunTail *t, const void *data, size_t size);

/* As encoded text, from the beginning of a line if something was cut. The caller's; NULL: out of memory. */
char *run_tail_text(const RunTail *t);
