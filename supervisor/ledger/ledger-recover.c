/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What concerns many items at once: leases that expired, and what earlier lives of anchord, or of the host, left behind.
 * Each item is settled in a transaction of its own: a crash in between leaves the rest for the next time. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ledger/ledger-private.h"

typedef struct ItemList {
        LedgerItem *items; /* owned */
        size_t n;
} ItemList;

static void item_list_done(ItemList *list) {
        for (size_t i = 0; i < list->n; i++)
                ledger_item_done(&list->items[i]);
        free(list->items);
        *list = (ItemList) {};
}

/* Reads them all first: handlers change what is being read. */
static int item_list_read(Ledger *l, const char *sql, const DbArg *args, ItemList *ret) {
        _cleanup_(item_list_done) ItemList list = {};
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query(l->db, &s, sql, args);
        if (r < 0)
                return r;

        for (;;) {
                LedgerItem *items;

                r = db_step(s);
                if (r < 0)
                        return r;
                if (r == 0)
                        break;

                items = reallocarray(list.items, list.n + 1, sizeof(*items));
                if (!items)
                        return -ENOMEM;
                list.items = items;

                r = ledger_item_from_row(s, &list.items[list.n]);
                if (r < 0)
                        return r;
                list.n++;
        }

        *ret = list;
        list = (ItemList) {};
        return 0;
}

int ledger_lease_expired(Ledger *l, const char *boot, uint64_t now, LedgerItemHandler handler, void *userdata) {
        _cleanup_(item_list_done) ItemList list = {};
        int r;

        r = item_list_read(l, LEDGER_ITEM_COLUMNS "WHERE l.boot = ? AND l.expires_usec <= ?", DB_ARGS(DB_TEXT(boot), DB_INT(now)), &list);
        for (size_t i = 0; r >= 0 && i < list.n; i++)
                r = handler(&list.items[i], userdata);
        return r;
}

static int recover_one(Ledger *l, const LedgerItem *i, ItemState to, const char *reason) {
        int r;

        r = ledger_transition(l, &(LedgerChange) {
                        .item = i->id,
                        .revision = i->revision,
                        .to = to,
                        .actor = to == ITEM_CANCELLED ? "operator" : "anchord",
                        .reason = reason,
                        .stage = to == ITEM_QUEUED ? "work" : NULL,
                }, NULL);
        if (r > 0)
                return -EUCLEAN; /* nobody else writes: the file is not what we believe */
        return r;
}

static int recover_list(Ledger *l, const char *sql, const DbArg *args, int (*settle)(Ledger *l, const LedgerItem *i)) {
        _cleanup_(item_list_done) ItemList list = {};
        int r;

        r = item_list_read(l, sql, args, &list);
        for (size_t i = 0; r >= 0 && i < list.n; i++)
                r = settle(l, &list.items[i]);
        return r;
}

/* Was somebody told that the item is stopped? A note says so of a run that had ended, its outcome of any other; and that it was stopped in order to be
 * handed back, a note as well. The reason is the caller's, NULL: nobody was. */
static int stop_reason(Ledger *l, const LedgerItem *i, char **ret) {
        _cleanup_(ledger_run_done) LedgerRun run = {};
        _cleanup_free_ char *handed_back = NULL;
        int r;

        *ret = NULL;
        if (!i->run[0])
                return 0;
        r = ledger_run_note(l, i->id, i->run, NOTE_STOP, ret);
        if (r <= 0)
                return r;

        r = ledger_run_get(l, i->run, &run);
        if (r != 0 || !run.outcome || strcmp(run.outcome, "stopped") != 0)
                return r < 0 ? r : 0;
        r = ledger_run_note(l, i->id, i->run, NOTE_HANDED_BACK, &handed_back);
        if (r <= 0)
                return r;
        *ret = strdup(run.reason ?: "stopped");
        return *ret ? 0 : -ENOMEM;
}

static int settle_rebooted(Ledger *l, const LedgerItem *i) {
        _cleanup_free_ char *stopped = NULL;
        int r;

        r = stop_reason(l, i, &stopped);
        if (r < 0)
                return r;
        if (stopped)
                return recover_one(l, i, ITEM_CANCELLED, stopped);
        if (i->leases >= i->attempt * LEDGER_LEASES_PER_ATTEMPT)
                return recover_one(l, i, ITEM_FAILED, "the host went down during this item too often");
        return recover_one(l, i, ITEM_QUEUED, "host rebooted during the run");
}

static int settle_failed(Ledger *l, const LedgerItem *i) {
        if (i->attempt < i->max_attempts && !ledger_reason_is_over_budget(i->reason))
                return recover_one(l, i, ITEM_QUEUED, "next attempt");
        return recover_one(l, i, ITEM_EXHAUSTED, i->reason ?: "no attempts are left");
}

static int settle_submitted(Ledger *l, const LedgerItem *i) {
        return recover_one(l, i, ITEM_QUEUED, NULL);
}

int ledger_recover(Ledger *l, const char *boot, LedgerItemHandler handler, void *userdata) {
        _cleanup_(item_list_done) ItemList list = {};
        int r;

        r = recover_list(l, LEDGER_ITEM_COLUMNS "WHERE l.boot <> ?", DB_ARGS(DB_TEXT(boot)), settle_rebooted);
        if (r < 0)
                return r;

        /* An item is worked on only under a lease; one without is from a crash of this code's own making. */
        r = recover_list(l, LEDGER_ITEM_COLUMNS "WHERE i.state IN ('leased','running','waiting','verifying') AND l.item IS NULL",
                         NULL, settle_rebooted);
        if (r < 0)
                return r;

        r = recover_list(l, LEDGER_ITEM_COLUMNS "WHERE i.state = 'failed'", NULL, settle_failed);
        if (r < 0)
                return r;
        r = recover_list(l, LEDGER_ITEM_COLUMNS "WHERE i.state = 'submitted'", NULL, settle_submitted);
        if (r < 0)
                return r;

        r = item_list_read(l, LEDGER_ITEM_COLUMNS "WHERE l.boot = ? ORDER BY i.seq", DB_ARGS(DB_TEXT(boot)), &list);
        for (size_t i = 0; r >= 0 && i < list.n; i++)
                r = handler ? handler(&list.items[i], userdata) : 0;
        return r;
}
