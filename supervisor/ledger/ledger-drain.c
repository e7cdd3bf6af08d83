/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The drain: this boot takes up no more work. Its one row names the boot, so that the next one begins without it; it is
 * a table of its own and no part of the schema's version, so that an older anchord, after a rollback, opens the same file. */

#include <errno.h>

#include "ledger/ledger-private.h"
#include "util/json.h"

int ledger_drain_set(Ledger *l, const char *boot, uint64_t until, const char *actor, const char *reason) {
        _cleanup_rollback_ DbGuard guard = {};
        _cleanup_json_ json_t *data = NULL;
        _cleanup_free_ char *text = NULL;
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;

        r = db_run(l->db, "INSERT OR REPLACE INTO drain (id, boot, until_usec, actor, reason, time_usec) VALUES (1, ?, ?, ?, ?, ?)",
                   DB_ARGS(DB_TEXT(boot), DB_INT(until), DB_TEXT(actor), DB_TEXT(reason), DB_INT(time_realtime())));
        if (r < 0)
                return r;

        data = json_pack("{s:s?}", "reason", reason);
        text = data ? json_canonical(data) : NULL;
        if (!text)
                return -ENOMEM;
        r = ledger_outbox_add(l, "drain.begun", NULL, NULL, actor, text);
        if (r < 0)
                return r;

        return db_commit(&guard);
}

int ledger_drain_clear(Ledger *l, const char *boot, const char *actor) {
        _cleanup_rollback_ DbGuard guard = {};
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;

        r = db_run(l->db, "DELETE FROM drain WHERE boot = ?", DB_ARGS(DB_TEXT(boot)));
        if (r <= 0)
                return r; /* as it was: nothing to record */
        r = ledger_outbox_add(l, "drain.ended", NULL, NULL, actor, "{}");
        if (r < 0)
                return r;

        return db_commit(&guard);
}

int ledger_drain_get(Ledger *l, const char *boot, LedgerDrain *ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        _cleanup_free_ char *actor = NULL, *reason = NULL;
        int r;

        r = db_query_row(l->db, &s, "SELECT until_usec, actor, reason FROM drain WHERE boot = ?", DB_ARGS(DB_TEXT(boot)));
        if (r == -ENOENT) {
                *ret = (LedgerDrain) {};
                return 0;
        }
        if (r < 0)
                return r;

        r = db_column_dup(s, 1, &actor);
        if (r >= 0)
                r = db_column_dup(s, 2, &reason);
        if (r < 0)
                return r;

        *ret = (LedgerDrain) { .active = true, .until_usec = (uint64_t) db_column_int(s, 0), .actor = TAKE_PTR(actor), .reason = TAKE_PTR(reason) };
        return 0;
}

void ledger_drain_done(LedgerDrain *d) {
        free(d->actor);
        free(d->reason);
        *d = (LedgerDrain) {};
}
