/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Sums in hundredths, by name, in the order in which the names first came. */

#include <stddef.h>

typedef struct Group {
        char *name;
        long long hundredths;
        unsigned long count;
} Group;

typedef struct Groups {
        Group *all;
        size_t n, size;
} Groups;

/* 0, or -1 when out of memory. */
int groups_add(Groups *g, const char *name, long long hundredths);
void groups_done(Groups *g);

/* "12", "-3.5", "0.25" in hundredths; -1 if it is no such number. */
int parse_amount(const char *s, long long *ret);
