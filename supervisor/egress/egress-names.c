/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The names that a run was given, and their synthetic addresses: number n has SYNTHETIC_NETWORK + n, the first one is 1. */

#include <errno.h>
#include <string.h>

#include "egress/egress-state-private.h"

/* How many: RUN_NAMES_MAX is what bounds the chains, which a guest may choose through a wildcard. */
static uint32_t *bucket_of(EgressRun *run, const char *name) {
        uint32_t h = 2166136261u;

        for (; *name; name++)
                h = (h ^ (uint8_t) *name) * 16777619u;
        return &run->name_buckets[(h ^ h >> 16) % RUN_NAME_BUCKETS];
}

static int remember_name(EgressRun *run, const char *name, const char *pattern) {
        uint32_t *bucket = bucket_of(run, name);
        EgressName n;

        if (run->n_names == run->n_names_allocated) {
                size_t wanted = run->n_names_allocated ? run->n_names_allocated * 2 : 16;
                EgressName *names;

                names = reallocarray(run->names, wanted, sizeof(*names));
                if (!names)
                        return -ENOMEM;
                run->names = names;
                run->n_names_allocated = wanted;
        }

        n = (EgressName) { .name = strdup(name), .pattern = pattern ? strdup(pattern) : NULL };
        if (!n.name || (pattern && !n.pattern)) {
                free(n.name);
                free(n.pattern);
                return -ENOMEM;
        }
        n.next = *bucket;
        run->names[run->n_names++] = n;
        *bucket = (uint32_t) run->n_names;
        return 0;
}

int egress_run_load_names(EgressState *s, EgressRun *run) {
        _cleanup_(db_stmt_donep) DbStmt *q = NULL;
        int r;

        r = db_query(s->db, &q, "SELECT number, name, pattern FROM name WHERE run = ? ORDER BY number", DB_ARGS(DB_TEXT(run->id)));
        if (r < 0)
                return r;
        while ((r = db_step(q)) > 0) {
                if (db_column_int(q, 0) != (int64_t) run->n_names)
                        return -EUCLEAN;
                r = remember_name(run, db_column_text(q, 1), db_column_text(q, 2));
                if (r < 0)
                        return r;
        }
        return r;
}

void egress_run_names_done(EgressRun *run) {
        for (size_t i = 0; i < run->n_names; i++) {
                free(run->names[i].name);
                free(run->names[i].pattern);
        }
        free(run->names);
        run->names = NULL;
        run->n_names = 0;
}

static size_t count_pattern(const EgressRun *run, const char *pattern) {
        size_t n = 0;

        for (size_t i = 0; i < run->n_names; i++)
                n += run->names[i].pattern && strcmp(run->names[i].pattern, pattern) == 0;
        return n;
}

int egress_run_admit_name(EgressState *s, EgressRun *run, const char *name, uint32_t *ret_address, bool *ret_new) {
        const char *pattern = NULL;
        unsigned budget;
        uint32_t number;
        int r;

        number = *bucket_of(run, name);
        while (number > 0 && strcmp(run->names[number - 1].name, name) != 0)
                number = run->names[number - 1].next;
        if (number > 0) {
                *ret_address = SYNTHETIC_NETWORK + number;
                *ret_new = false;
                return 0;
        }

        if (run->n_names >= RUN_NAMES_MAX)
                return EGRESS_STATE_E_NAMES;
        budget = egress_policy_name_budget(run->policy, name, &pattern);
        if (budget > 0 && count_pattern(run, pattern) >= budget)
                return EGRESS_STATE_E_BUDGET;
        if (budget == 0)
                pattern = NULL;

        r = db_run(s->db, "INSERT INTO name(run, number, name, pattern) VALUES(?, ?, ?, ?)",
                   DB_ARGS(DB_TEXT(run->id), DB_INT(run->n_names), DB_TEXT(name), DB_TEXT(pattern)));
        if (r < 0)
                return r;
        r = remember_name(run, name, pattern);
        if (r < 0) {
                (void) db_run(s->db, "DELETE FROM name WHERE run = ? AND number = ?", DB_ARGS(DB_TEXT(run->id), DB_INT(run->n_names)));
                return r;
        }

        *ret_address = SYNTHETIC_NETWORK + (uint32_t) run->n_names;
        *ret_new = true;
        return 0;
}

const char *egress_run_name_of(const EgressRun *run, const Address *address) {
        uint32_t v = 0;

        if (address->family != AF_INET)
                return NULL;

        for (size_t i = 0; i < 4; i++)
                v = v << 8 | address->bytes[i];
        if ((v & SYNTHETIC_MASK) != SYNTHETIC_NETWORK)
                return NULL;

        v -= SYNTHETIC_NETWORK;
        return v >= 1 && v <= run->n_names ? run->names[v - 1].name : NULL;
}

size_t egress_run_count_names(const EgressRun *run) {
        return run->n_names;
}
