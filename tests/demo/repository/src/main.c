/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* csvsum GROUP-COLUMN SUM-COLUMN: sums one column of the CSV on standard input, grouped by another. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "csv.h"
#include "groups.h"

typedef struct Sum {
        const char *group_name, *sum_name;
        size_t group_column, sum_column;
        bool have_header;
        const char *problem;
        Groups groups;
} Sum;

static bool find_column(char *const *fields, size_t n, const char *name, size_t *ret) {
        for (size_t i = 0; i < n; i++)
                if (strcmp(fields[i], name) == 0) {
                        *ret = i;
                        return true;
                }
        return false;
}

static bool on_record(char *const *fields, size_t n, void *userdata) {
        Sum *sum = userdata;
        long long amount;

        if (!sum->have_header) {
                sum->have_header = true;
                if (find_column(fields, n, sum->group_name, &sum->group_column) &&
                    find_column(fields, n, sum->sum_name, &sum->sum_column))
                        return true;
                sum->problem = "no such column";
                return false;
        }
        if (n <= sum->group_column || n <= sum->sum_column)
                sum->problem = "a field is missing";
        else if (parse_amount(fields[sum->sum_column], &amount) < 0)
                sum->problem = "not an amount";
        else if (groups_add(&sum->groups, fields[sum->group_column], amount) < 0)
                sum->problem = "out of memory";
        return !sum->problem;
}

static int read_all(CsvReader *reader) {
        char buffer[4096];
        size_t n;
        int k = 0;

        while (k == 0 && (n = fread(buffer, 1, sizeof(buffer), stdin)) > 0)
                k = csv_reader_feed(reader, buffer, n);
        return k == 0 ? csv_reader_finish(reader) : k;
}

int main(int argc, char **argv) {
        Sum sum = {0};
        CsvReader *reader;
        int k;

        if (argc != 3) {
                fprintf(stderr, "usage: csvsum GROUP-COLUMN SUM-COLUMN < FILE\n");
                return 2;
        }
        sum.group_name = argv[1];
        sum.sum_name = argv[2];

        reader = csv_reader_new(on_record, &sum);
        if (!reader) {
                fprintf(stderr, "csvsum: out of memory\n");
                return 1;
        }
        k = read_all(reader);
        if (k != 0) {
                fprintf(stderr, "csvsum: line %lu: %s\n", csv_reader_line(reader),
                        sum.problem ? sum.problem : k == -2 ? "out of memory" : "malformed CSV");
                return 1;
        }
        for (size_t i = 0; i < sum.groups.n; i++) {
                const Group *g = &sum.groups.all[i];
                long long value = llabs(g->hundredths);

                printf("%s\t%s%lld.%02lld\t%lu\n", g->name, g->hundredths < 0 ? "-" : "", value / 100,
                       value % 100, g->count);
        }
        groups_done(&sum.groups);
        csv_reader_free(reader);
        return 0;
}
