/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Each case: an input, and its records with fields joined by '|' and records by '/'. Every case runs in
 * one piece and byte by byte. */

#include <stdio.h>
#include <string.h>

#include "csv.h"

typedef struct Case {
        const char *name, *input, *expected;
        int result;
} Case;

static const Case cases[] = {
        { "plain fields", "a,b,c\n1,2,3\n", "a|b|c/1|2|3", 0 },
        { "no line break at the end", "a,b\n1,2", "a|b/1|2", 0 },
        { "carriage returns", "a,b\r\n1,2\r\n", "a|b/1|2", 0 },
        { "empty fields", ",\n,,\n", "|/||", 0 },
        { "empty field at the end of the input", "a,", "a|", 0 },
        { "comma in quotes", "\"a,b\",c\n", "a,b|c", 0 },
        { "line break in quotes", "\"a\nb\",c\n", "a\nb|c", 0 },
        { "doubled quotes", "\"say \"\"hi\"\"\",x\n", "say \"hi\"|x", 0 },
        { "quote in a plain field", "a\"b\n", "", -1 },
        { "text behind the closing quote", "\"a\"b\n", "", -1 },
        { "quotes never closed", "\"abc", "", -1 },
};

static bool collect(char *const *fields, size_t n, void *userdata) {
        char *out = userdata;

        if (*out)
                strcat(out, "/");
        for (size_t i = 0; i < n; i++) {
                if (i > 0)
                        strcat(out, "|");
                strcat(out, fields[i]);
        }
        return true;
}

static int run_case(const Case *c, size_t piece) {
        char out[256] = "";
        CsvReader *r = csv_reader_new(collect, out);
        size_t size = strlen(c->input);
        int k = 0;

        for (size_t at = 0; k == 0 && at < size; at += piece)
                k = csv_reader_feed(r, c->input + at, at + piece < size ? piece : size - at);
        if (k == 0)
                k = csv_reader_finish(r);
        csv_reader_free(r);

        if (k == c->result && (k != 0 || strcmp(out, c->expected) == 0))
                return 0;
        printf("FAIL %s (pieces of %zu): result %d, got \"%s\", expected \"%s\"\n", c->name, piece, k,
               out, c->expected);
        return 1;
}

int main(void) {
        int failed = 0, n = 0;

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                failed += run_case(&cases[i], 1000) | run_case(&cases[i], 1);
                n++;
        }
        printf("test-csv: %d of %d cases passed\n", n - failed, n);
        return failed ? 1 : 0;
}
