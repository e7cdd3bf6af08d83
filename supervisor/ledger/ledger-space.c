/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Whether space was low when somebody last looked (table `space`), so that a change of it is recorded once, whoever restarts. And
 * what was taken off the disk to make room: of each item its bundles, or its logs (table `pruned`; both are level 5 of the schema).
 *
 * The rows come first, in one transaction with the audit event that counts them; only when that event is with auditd are files removed
 * (api/prune.c), and then the row is `done`. So a crash in between leaves rows that are not done, and the next life goes on with those;
 * never a file that is gone and nobody knows why. Only what has ended is pruned: a trigger sees to it.
 */

#include <errno.h>
#include <string.h>

#include "ledger/ledger-private.h"
#include "util/json.h"

int ledger_space_see(Ledger *l, bool low, const json_t *data) {
        _cleanup_rollback_ DbGuard guard = {};
        int64_t before = 0;
        int r;

        r = db_get_int(l->db, "SELECT low FROM space WHERE id = 1", NULL, &before);
        if (r < 0 && r != -ENOENT)
                return r;
        if ((before != 0) == low)
                return 0;

        r = db_begin(l->db, &guard);
        if (r >= 0)
                r = db_run(l->db, "INSERT OR REPLACE INTO space (id, low, time_usec) VALUES (1, ?, ?)", DB_ARGS(DB_INT(low), DB_INT(time_realtime())));
        if (r >= 0)
                r = ledger_outbox_put(l, low ? "space.low" : "space.back", NULL, NULL, NULL, data);
        return r < 0 ? r : db_commit(&guard);
}

static const char *const parts[_LEDGER_PART_MAX] = {
        [LEDGER_PART_BUNDLES] = "bundles",
        [LEDGER_PART_LOGS] = "logs",
};

const char *ledger_part_name(LedgerPart part) {
        return parts[part];
}

static LedgerPart part_from_name(const char *name) {
        return name && strcmp(name, parts[LEDGER_PART_LOGS]) == 0 ? LEDGER_PART_LOGS : LEDGER_PART_BUNDLES;
}

int ledger_kept(Ledger *l, LedgerKeptHandler handler, void *userdata) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        /* what nothing is left of is most of an old ledger */
        r = db_query(l->db, &s,
                     "SELECT i.id, i.state, i.changed_usec, b.item IS NOT NULL, g.item IS NOT NULL FROM item i"
                     " LEFT JOIN pruned b ON b.item = i.id AND b.part = 'bundles' LEFT JOIN pruned g ON g.item = i.id AND g.part = 'logs'"
                     " WHERE b.item IS NULL OR g.item IS NULL ORDER BY i.changed_usec, i.seq", NULL);
        if (r < 0)
                return r;

        for (;;) {
                LedgerKept k = {};

                r = db_step(s);
                if (r <= 0)
                        return r;
                text_fit(db_column_text(s, 0) ?: "", k.item, sizeof(k.item));
                k.ended = item_state_is_end((ItemState) item_state_from_name(db_column_text(s, 1)));
                k.changed_usec = (uint64_t) db_column_int(s, 2);
                k.pruned[LEDGER_PART_BUNDLES] = db_column_int(s, 3) != 0;
                k.pruned[LEDGER_PART_LOGS] = db_column_int(s, 4) != 0;
                r = handler(&k, userdata);
                if (r < 0)
                        return r;
        }
}

static int queue_event(Ledger *l, const LedgerPrune *list, size_t n, const char *actor) {
        _cleanup_json_ json_t *data = json_object(), *items = json_array();
        _cleanup_free_ char *text = NULL;

        for (LedgerPart part = 0; part < _LEDGER_PART_MAX; part++) {
                json_int_t n_items = 0, bytes = 0;

                for (size_t i = 0; i < n; i++)
                        if (list[i].part == part) {
                                n_items++;
                                bytes += (json_int_t) list[i].bytes;
                                (void) json_array_append_new(items, json_pack("[s, s, s]", list[i].item, parts[part], list[i].why));
                        }
                if (json_object_set_new(data, parts[part], json_pack("{s:I, s:I}", "items", n_items, "bytes", bytes)) < 0)
                        return -ENOMEM;
        }
        if (json_object_set(data, "items", items) < 0)
                return -ENOMEM;
        text = json_canonical(data);
        return text ? ledger_outbox_add(l, "space.pruned", NULL, NULL, actor, text) : -ENOMEM;
}

int ledger_prune(Ledger *l, const LedgerPrune *list, size_t n, const char *actor) {
        _cleanup_rollback_ DbGuard guard = {};
        int64_t now = (int64_t) time_realtime();
        int r;

        if (n == 0 || n > LEDGER_PRUNE_MAX)
                return -EINVAL;
        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;

        for (size_t i = 0; i < n; i++) {
                r = db_run(l->db, "INSERT INTO pruned (item, part, bytes, why, actor, time_usec) VALUES (?, ?, ?, ?, ?, ?)",
                           DB_ARGS(DB_TEXT(list[i].item), DB_TEXT(parts[list[i].part]), DB_INT(list[i].bytes), DB_TEXT(list[i].why), DB_TEXT(actor), DB_INT(now)));
                if (r == -EPERM || r == -EEXIST)
                        return LEDGER_E_ILLEGAL;
                if (r < 0)
                        return r;
        }
        r = queue_event(l, list, n, actor);
        if (r < 0)
                return r;
        return db_commit(&guard);
}

int ledger_prune_next(Ledger *l, char ret_item[static ID_LENGTH + 1], LedgerPart *ret_part) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query_row(l->db, &s, "SELECT item, part FROM pruned WHERE done = 0 LIMIT 1", NULL);
        if (r == -ENOENT)
                return LEDGER_E_NO_WORK;
        if (r < 0)
                return r;
        text_fit(db_column_text(s, 0) ?: "", ret_item, ID_LENGTH + 1);
        *ret_part = part_from_name(db_column_text(s, 1));
        return 0;
}

int ledger_prune_done(Ledger *l, const char *item, LedgerPart part) {
        int r;

        r = db_run(l->db, "UPDATE pruned SET done = 1 WHERE item = ? AND part = ?", DB_ARGS(DB_TEXT(item), DB_TEXT(parts[part])));
        return r < 0 ? r : 0;
}

int ledger_pruned(Ledger *l, const char *item, LedgerPart part, uint64_t *ret_usec) {
        int64_t usec;
        int r;

        r = db_get_int(l->db, "SELECT time_usec FROM pruned WHERE item = ? AND part = ?", DB_ARGS(DB_TEXT(item), DB_TEXT(parts[part])), &usec);
        if (r == -ENOENT)
                return LEDGER_E_NOT_FOUND;
        if (r < 0)
                return r;
        *ret_usec = (uint64_t) usec;
        return 0;
}
