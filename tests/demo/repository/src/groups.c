/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "groups.h"

static Group *find(Groups *g, const char *name) {
        for (size_t i = 0; i < g->n; i++)
                if (strcmp(g->all[i].name, name) == 0)
                        return &g->all[i];
        return NULL;
}

int groups_add(Groups *g, const char *name, long long hundredths) {
        Group *group = find(g, name);

        if (!group) {
                if (g->n == g->size) {
                        size_t size = g->size ? 2 * g->size : 16;
                        Group *all = realloc(g->all, size * sizeof(*all));

                        if (!all)
                                return -1;
                        g->all = all;
                        g->size = size;
                }
                group = &g->all[g->n];
                *group = (Group) { .name = strdup(name) };
                if (!group->name)
                        return -1;
                g->n++;
        }
        group->hundredths += hundredths;
        group->count++;
        return 0;
}

void groups_done(Groups *g) {
        for (size_t i = 0; i < g->n; i++)
                free(g->all[i].name);
        free(g->all);
        *g = (Groups) {0};
}

int parse_amount(const char *s, long long *ret) {
        long long value = 0;
        int negative = *s == '-', digits = 0, decimals = -1;

        for (s += negative; *s; s++) {
                if (*s == '.' && decimals < 0) {
                        decimals = 0;
                        continue;
                }
                if (!isdigit((unsigned char) *s) || decimals == 2 || value > LLONG_MAX / 1000)
                        return -1;
                value = value * 10 + (*s - '0');
                digits++;
                if (decimals >= 0)
                        decimals++;
        }
        if (digits == 0 || decimals == 0)
                return -1;
        for (int i = decimals < 0 ? 0 : decimals; i < 2; i++)
                value *= 10;
        *ret = negative ? -value : value;
        return 0;
}
