/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * How many denials of each run were counted and are not in the audit log yet, in memory that outlives this process: a file
 * that is mapped. See untold.c.
 */

#include <stdint.h>

#include "util/cleanup.h"
#include "util/text.h"

enum { UNTOLD_RUNS_MAX = 1024 };

typedef enum UntoldEvent {
        UNTOLD_EGRESS_DENY,
        UNTOLD_DNS_REFUSED,
        UNTOLD_N_EVENTS,
} UntoldEvent;

typedef struct Untold Untold;

/* What an earlier life left; it is forgotten after this call. */
typedef void (*UntoldLeft)(const char *run, UntoldEvent event, uint64_t count, void *userdata);

/* Opens or makes the file `untold` in the folder `path`. What is no such file is begun anew. */
int untold_open(Untold **ret, const char *path);
Untold *untold_free(Untold *u);
DEFINE_CLEANUP(Untold *, untold_free)

/* Calls `left` for each count there is and sets it to zero; for the start. */
void untold_take(Untold *u, UntoldLeft left, void *userdata);

/* -ENOSPC if there are too many runs; then these are not covered. */
int untold_add(Untold *u, const char *run, UntoldEvent event, uint64_t n);
/* They are in the log. */
void untold_told(Untold *u, const char *run, UntoldEvent event, uint64_t n);
