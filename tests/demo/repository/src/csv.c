/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One state machine over bytes. Fields of the record under way lie one after the other in `text`, each
 * ended by a zero byte; `starts` has their offsets, because `text` moves when it grows.
 */

#include <stdlib.h>
#include <string.h>

#include "csv.h"

typedef enum State {
        FIELD_START,
        PLAIN,          /* in a field without quotes */
        QUOTED,         /* between the quotes */
        QUOTE_SEEN,     /* a quote inside a quoted field: its end, or half of a doubled one */
        CR_SEEN,        /* a carriage return, the line feed must follow */
} State;

struct CsvReader {
        CsvRecord on_record;
        void *userdata;
        State state;
        unsigned long line;
        char *text;
        size_t n_text, text_size;
        size_t *starts;
        size_t n_starts, starts_size;
};

CsvReader *csv_reader_new(CsvRecord on_record, void *userdata) {
        CsvReader *r = calloc(1, sizeof(*r));

        if (!r)
                return NULL;
        r->on_record = on_record;
        r->userdata = userdata;
        r->line = 1;
        return r;
}

void csv_reader_free(CsvReader *r) {
        if (!r)
                return;
        free(r->text);
        free(r->starts);
        free(r);
}

unsigned long csv_reader_line(const CsvReader *r) {
        return r->line;
}

static int put(CsvReader *r, char c) {
        if (r->n_text == r->text_size) {
                size_t size = r->text_size ? 2 * r->text_size : 64;
                char *text = realloc(r->text, size);

                if (!text)
                        return -2;
                r->text = text;
                r->text_size = size;
        }
        r->text[r->n_text++] = c;
        return 0;
}

static int begin_field(CsvReader *r) {
        if (r->n_starts == r->starts_size) {
                size_t size = r->starts_size ? 2 * r->starts_size : 8;
                size_t *starts = realloc(r->starts, size * sizeof(*starts));

                if (!starts)
                        return -2;
                r->starts = starts;
                r->starts_size = size;
        }
        r->starts[r->n_starts++] = r->n_text;
        return 0;
}

static int end_record(CsvReader *r) {
        char **fields;
        bool more;

        fields = malloc(r->n_starts * sizeof(*fields));
        if (!fields)
                return -2;
        for (size_t i = 0; i < r->n_starts; i++)
                fields[i] = r->text + r->starts[i];

        more = r->on_record(fields, r->n_starts, r->userdata);
        free(fields);
        r->n_text = 0;
        r->n_starts = 0;
        r->state = FIELD_START;
        return more ? 0 : 1;
}

/* What ends a field: a comma, or the end of the line. */
static int end_field(CsvReader *r, char c) {
        int k = put(r, '\0');

        if (k < 0)
                return k;
        switch (c) {
        case ',':
                r->state = FIELD_START;
                return 0;
        case '\r':
                r->state = CR_SEEN;
                return 0;
        default:
                return end_record(r);
        }
}

static int feed_char(CsvReader *r, char c) {
        int k;

        switch (r->state) {
        case FIELD_START:
                k = begin_field(r);
                if (k < 0)
                        return k;
                if (c == '"') {
                        r->state = QUOTED;
                        return 0;
                }
                r->state = PLAIN;
                /* fall through */
        case PLAIN:
                if (c == ',' || c == '\n' || c == '\r')
                        return end_field(r, c);
                if (c == '"')
                        return -1;
                return put(r, c);
        case QUOTED:
                if (c == '"') {
                        r->state = QUOTE_SEEN;
                        return 0;
                }
                return put(r, c);
        case QUOTE_SEEN:
                if (c == '"') {
                        r->state = QUOTED;
                        return 0;
                }
                if (c == ',' || c == '\n' || c == '\r')
                        return end_field(r, c);
                return -1;
        case CR_SEEN:
                return c == '\n' ? end_record(r) : -1;
        }
        return -1;
}

int csv_reader_feed(CsvReader *r, const char *data, size_t size) {
        for (size_t i = 0; i < size; i++) {
                int k = feed_char(r, data[i]);

                if (data[i] == '\n')
                        r->line++;
                if (k != 0)
                        return k;
        }
        return 0;
}

int csv_reader_finish(CsvReader *r) {
        if (r->state == QUOTED || r->state == CR_SEEN)
                return -1;
        if (r->n_starts == 0)
                return 0;
        if (r->state == FIELD_START) {
                /* the input ended behind a comma: one more field, an empty one */
                int k = begin_field(r);

                if (k < 0)
                        return k;
        }
        return end_field(r, '\n');
}
