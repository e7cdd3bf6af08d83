/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Records of ends of connections that auditd does not have yet, for the next life of this process. They outlive their run, and not the boot. */

#include <errno.h>

#include "egress/egress-state-private.h"
#include "util/json.h"

static int delete_grant(EgressState *s, const char *run, const json_t *id) {
        return json_is_integer(id) ? db_run(s->db, "DELETE FROM grant_ WHERE id = ? AND run = ?", DB_ARGS(DB_INT(json_integer_value(id)), DB_TEXT(run))) : 0;
}

static int keep_close(EgressState *s, const EgressClose *c) {
        const json_t *others = json_object_get(c->data, "others");
        _cleanup_free_ char *data = json_canonical(c->data);
        int r;

        if (!data)
                return -ENOMEM;
        r = db_run(s->db, "INSERT OR REPLACE INTO close_(key, run, actor, data) VALUES(?, ?, ?, ?)",
                   DB_ARGS(DB_TEXT(c->key), DB_TEXT(c->run), DB_TEXT(c->actor ?: ""), DB_TEXT(data)));
        if (r >= 0)
                r = delete_grant(s, c->run, json_object_get(c->data, "grant"));
        for (size_t i = 0; r >= 0 && i < json_array_size(others); i++)
                r = delete_grant(s, c->run, json_array_get(others, i));
        return r;
}

int egress_state_keep_closes(EgressState *s, const EgressClose *closes, size_t n) {
        _cleanup_rollback_ DbGuard guard = {};
        int r;

        r = db_begin(s->db, &guard);
        for (size_t i = 0; r >= 0 && i < n; i++)
                r = keep_close(s, &closes[i]);
        return r < 0 ? r : db_commit(&guard);
}

int egress_state_drop_close(EgressState *s, const char *key) {
        return db_run(s->db, "DELETE FROM close_ WHERE key = ?", DB_ARGS(DB_TEXT(key)));
}

int egress_state_load_closes(EgressState *s, EgressCloseHandler handler, void *userdata) {
        _cleanup_(db_stmt_donep) DbStmt *q = NULL;
        int r;

        r = db_query(s->db, &q, "SELECT key, run, actor, data FROM close_ ORDER BY rowid", NULL);
        if (r < 0)
                return r;
        while ((r = db_step(q)) > 0) {
                _cleanup_json_ json_t *data = json_loads(db_column_text(q, 3), 0, NULL);
                const char *actor = db_column_text(q, 2);

                if (!data)
                        continue; /* of nobody's making */
                r = handler(&(EgressClose) { .key = db_column_text(q, 0), .run = db_column_text(q, 1), .actor = *actor ? actor : NULL, .data = data }, userdata);
                if (r < 0)
                        return r;
        }
        return r;
}
