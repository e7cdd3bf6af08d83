/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "ctl/ctl-table.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <wchar.h>

enum { COLUMNS_MAX = 16 };

struct Table {
        const char *titles[COLUMNS_MAX]; /* borrowed, each of them */
        size_t n_columns;
        bool right[COLUMNS_MAX];
        char **cells;              /* owned, row by row */
        size_t n_cells;
};

int table_new(Table **ret, const char *const *titles) {
        Table *t;

        t = calloc(1, sizeof(*t));
        if (!t)
                return -ENOMEM;

        for (; titles[t->n_columns]; t->n_columns++) {
                assert(t->n_columns < COLUMNS_MAX);
                t->titles[t->n_columns] = titles[t->n_columns];
        }

        *ret = t;
        return 0;
}

Table *table_free(Table *t) {
        if (!t)
                return NULL;

        for (size_t i = 0; i < t->n_cells; i++)
                free(t->cells[i]);
        free(t->cells);
        free(t);
        return NULL;
}

void table_align_right(Table *t, size_t column) {
        t->right[column] = true;
}

int table_add(Table *t, const char *text) {
        char **grown, *copy;

        copy = strdup(text && *text ? text : "-");
        if (!copy)
                return -ENOMEM;

        grown = reallocarray(t->cells, t->n_cells + 1, sizeof(*grown));
        if (!grown) {
                free(copy);
                return -ENOMEM;
        }

        t->cells = grown;
        t->cells[t->n_cells++] = copy;
        return 0;
}

size_t table_rows(const Table *t) {
        return t->n_cells / t->n_columns;
}

size_t text_width(const char *s, size_t limit, size_t *ret_bytes) {
        mbstate_t state = {};
        size_t width = 0, used = 0;

        while (s[used]) {
                wchar_t wc;
                size_t n;
                int w;

                n = mbrtowc(&wc, s + used, strlen(s + used), &state);
                if (n == (size_t) -1 || n == (size_t) -2) {
                        memset(&state, 0, sizeof(state));
                        n = 1;
                        w = 1;
                } else {
                        w = wcwidth(wc);
                }
                if (width + (size_t) (w > 0 ? w : 0) > limit)
                        break;
                width += (size_t) (w > 0 ? w : 0);
                used += n;
        }

        if (ret_bytes)
                *ret_bytes = used;
        return width;
}

void table_pad(FILE *f, const char *text, size_t width) {
        size_t own = text_width(text, SIZE_MAX, NULL);

        (void) fprintf(f, "%s%*s", text, (int) (own < width ? width - own : 1), "");
}

static void print_cell(const Table *t, FILE *f, size_t column, const char *text, size_t width, size_t left) {
        bool last = column + 1 == t->n_columns;
        size_t own = text_width(text, SIZE_MAX, NULL), bytes;

        if (last && own > left && left > 1) {
                (void) text_width(text, left - 1, &bytes);
                (void) fprintf(f, "%.*s\u2026\n", (int) bytes, text);
                return;
        }

        if (t->right[column])
                (void) fprintf(f, "%*s", (int) (width - own), "");
        (void) fputs(text, f);
        if (last)
                (void) fputc('\n', f);
        else
                (void) fprintf(f, "%*s", (int) (t->right[column] ? 2 : width - own + 2), "");
}

void table_print(const Table *t, FILE *f, unsigned columns, bool titles) {
        size_t width[COLUMNS_MAX] = {}, left;

        assert(t->n_columns > 0);

        for (size_t c = 0; c < t->n_columns; c++)
                width[c] = titles ? strlen(t->titles[c]) : 0;
        for (size_t i = 0; i < t->n_cells; i++) {
                size_t w = text_width(t->cells[i], SIZE_MAX, NULL);

                if (w > width[i % t->n_columns])
                        width[i % t->n_columns] = w;
        }

        left = columns > 0 ? columns : SIZE_MAX;
        for (size_t c = 0; c + 1 < t->n_columns && left != SIZE_MAX; c++)
                left = left > width[c] + 2 ? left - width[c] - 2 : 0;
        if (left < 8)
                left = SIZE_MAX; /* better wrapped than gone */

        for (size_t c = 0; titles && c < t->n_columns; c++)
                print_cell(t, f, c, t->titles[c], width[c], SIZE_MAX);
        for (size_t i = 0; i < t->n_cells; i++)
                print_cell(t, f, i % t->n_columns, t->cells[i], width[i % t->n_columns], left);
}
