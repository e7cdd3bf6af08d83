/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A ledger in a file of the test's own, and items in it. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "ledger/ledger.h"

#define BOOT "boot-1"
#define COMMIT_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define COMMIT_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static char directory[] = "/tmp/anchorhold-ledger-XXXXXX";
static char path[128];

static inline void forget_file(void) {
        char name[160];

        (void) unlink(path);
        (void) snprintf(name, sizeof(name), "%s-wal", path);
        (void) unlink(name);
        (void) snprintf(name, sizeof(name), "%s-shm", path);
        (void) unlink(name);
}

static inline Ledger *fresh(void) {
        Ledger *l = NULL;

        forget_file();
        assert_int_equal(ledger_open(&l, path), 0);
        return l;
}

/* Ids that sort by n. */
static inline const char *make_id(char kind, unsigned n) {
        static char ids[8][16];
        static unsigned next;
        char *id = ids[next++ % 8];

        (void) snprintf(id, 16, "%c%012u", kind, n);
        return id;
}

static inline int submit(Ledger *l, const char *id, const char *source) {
        return ledger_submit(l, &(LedgerSubmission) {
                        .id = id,
                        .requester = "uid 1000",
                        .source = source,
                        .workflow = "code-fix",
                        .workflow_digest = "w",
                        .repository = "demo",
                        .base = COMMIT_A,
                        .task = "fix it",
                        .template_name = "base",
                        .template_digest = "t",
                        .max_attempts = 2,
                });
}

static inline LedgerItem get(Ledger *l, const char *id) {
        LedgerItem i = {};

        assert_int_equal(ledger_get(l, id, &i), 0);
        return i;
}

static inline int change(Ledger *l, const char *id, ItemState to) {
        _cleanup_item_ LedgerItem i = get(l, id);

        return ledger_transition(l, &(LedgerChange) {
                        .item = id,
                        .revision = i.revision,
                        .to = to,
                        .actor = "test",
                        .reason = "because",
                        .result_commit = to == ITEM_IN_REVIEW && i.state == ITEM_VERIFYING ? COMMIT_B : NULL,
                        .reviewed_commit = to == ITEM_APPROVED ? COMMIT_B : NULL,
                        .approvals = to == ITEM_APPROVED ? "[\"somebody\"]" : NULL,
                        .authorization = to == ITEM_AUTHORIZED ? "{\"rule\":\"r\"}" : NULL,
                }, NULL);
}

static inline int claim(Ledger *l, const char *run, LedgerItem *ret) {
        return ledger_claim_next(l, run, BOOT, 1000, 1, ret);
}

static inline int set_up(void **state) {
        if (!mkdtemp(directory))
                return -1;
        (void) snprintf(path, sizeof(path), "%s/ledger.db", directory);
        return 0;
}

static inline int tear_down(void **state) {
        forget_file();
        return rmdir(directory);
}
