/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Tables on a terminal: aligned columns, cut to its width at the last column. */

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "util/cleanup.h"

typedef struct Table Table;

/* `titles` ends with NULL; each title is borrowed, the list is not. */
int table_new(Table **ret, const char *const *titles);
Table *table_free(Table *t);
DEFINE_CLEANUP(Table *, table_free)

/* Numbers stand to the right. */
void table_align_right(Table *t, size_t column);

/* Adds the next cell, a copy; NULL is "-". Rows fill from the left. The text must be safe to print. */
int table_add(Table *t, const char *text);

size_t table_rows(const Table *t);

/* The terminal columns that the text takes, at most `limit`, and the bytes that fit into them (may be NULL). */
size_t text_width(const char *s, size_t limit, size_t *ret_bytes);

/* Text in a column of that width, one blank at least behind it. */
void table_pad(FILE *f, const char *text, size_t width);

/* columns 0: no limit. */
void table_print(const Table *t, FILE *f, unsigned columns, bool titles);
