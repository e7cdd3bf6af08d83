/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What egress-state.c (runs), egress-names.c and egress-grants.c share. */

#include "egress/egress-state.h"
#include "util/sqlite.h"

typedef struct EgressName {
        char *name;     /* owned */
        char *pattern;  /* owned; NULL if an exact rule admits it */
        uint32_t next;  /* in its bucket: index + 1 */
} EgressName;

struct EgressState {
        Db *db;            /* owned */
        char *dir, *root;  /* owned */
        EgressRun *runs;   /* owned */
        size_t n_runs;
        uint64_t latest_grant; /* that was ever written down */
};

int egress_run_load_names(EgressState *s, EgressRun *run);
void egress_run_names_done(EgressRun *run);
int egress_state_load_latest_grant(EgressState *s);
int egress_run_load_grants(EgressState *s, EgressRun *run);
void egress_run_grants_done(EgressRun *run);
