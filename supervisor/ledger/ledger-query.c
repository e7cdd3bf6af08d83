/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What people ask of the ledger. Rows become JSON objects by their column names: "x_usec" is shown as
 * "x" in RFC 3339, and columns that hold JSON text as the value that they hold.
 *
 * A listing is one indexed range scan a page, joined with the sums of its own rows only, so that page
 * N of a huge ledger costs what page 1 does.
 */

#include <errno.h>
#include <string.h>

#include "ledger/ledger-private.h"
#include "util/json.h"

static bool holds_json(const char *column) {
        static const char *const names[] = { "command", "options", "evidence", "approvals", "authorization", "facts", "egress_digests" };

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (strcmp(names[i], column) == 0)
                        return true;
        return false;
}

static int column_to_json(DbStmt *s, int i, json_t *object) {
        const char *name = db_column_name(s, i), *text;
        size_t length = strlen(name);
        bool is_time = length > 5 && strcmp(name + length - 5, "_usec") == 0;
        char key[64], when[TIME_TEXT_SIZE];
        json_t *value = NULL;
        int r;

        (void) snprintf(key, sizeof(key), "%.*s", (int) (is_time ? length - 5 : length), name);

        if (db_column_is_null(s, i))
                value = json_null();
        else if (is_time) {
                text_time((uint64_t) db_column_int(s, i), when);
                value = json_string(when);
        } else if (db_column_is_int(s, i))
                value = json_integer(db_column_int(s, i));
        else {
                text = db_column_text(s, i);
                if (!text)
                        return -ENOMEM;
                if (holds_json(name)) {
                        r = json_parse(text, strlen(text), &value, NULL);
                        if (r < 0)
                                return r;
                } else
                        value = json_string(text);
        }

        return json_object_set_new(object, key, value) < 0 ? -ENOMEM : 0;
}

static int row_to_json(DbStmt *s, json_t **ret) {
        _cleanup_json_ json_t *object = json_object();
        int r;

        if (!object)
                return -ENOMEM;

        for (int i = 0; i < db_column_count(s); i++) {
                r = column_to_json(s, i, object);
                if (r < 0)
                        return r;
        }

        *ret = TAKE_PTR(object);
        return 0;
}

int ledger_query_array(Ledger *l, const char *sql, const DbArg *args, json_t **ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        _cleanup_json_ json_t *array = json_array();
        int r;

        if (!array)
                return -ENOMEM;

        r = db_query(l->db, &s, sql, args);
        if (r < 0)
                return r;

        for (;;) {
                json_t *row;

                r = db_step(s);
                if (r < 0)
                        return r;
                if (r == 0)
                        break;
                r = row_to_json(s, &row);
                if (r < 0)
                        return r;
                if (json_array_append_new(array, row) < 0)
                        return -ENOMEM;
        }

        *ret = TAKE_PTR(array);
        return 0;
}

/* The states as one JSON array for json_each(): no SQL is put together from input. */
static int states_argument(const char *const *states, char **ret) {
        _cleanup_json_ json_t *array = json_array();
        char *text;

        if (!array)
                return -ENOMEM;
        for (size_t i = 0; states && states[i]; i++)
                if (json_array_append_new(array, json_string(states[i])) < 0)
                        return -ENOMEM;

        text = json_canonical(array);
        if (!text)
                return -ENOMEM;

        *ret = text;
        return 0;
}

int ledger_list(Ledger *l, const char *const *states, const char *after, uint64_t limit, LedgerJsonHandler handler, void *userdata) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        _cleanup_free_ char *argument = NULL;
        int r;

        if (limit == 0 || limit > 10000)
                return -EINVAL;

        r = states_argument(states, &argument);
        if (r < 0)
                return r;

        r = db_query(l->db, &s,
                     "SELECT i.id, i.state, i.revision, i.reason, i.source, i.requester, i.workflow, i.repository, i.base,"
                     " i.agent, i.stage, i.attempt, i.max_attempts, i.run, i.result_commit, i.created_usec, i.changed_usec,"
                     " substr(i.task, 1, 200) AS task, i.command,"
                     " (SELECT coalesce(sum(cost_microusd), 0) FROM usage u WHERE u.item = i.id) AS cost_microusd"
                     " FROM item i WHERE i.seq > coalesce((SELECT seq FROM item WHERE id = ?1), 0)"
                     " AND (json_array_length(?2) = 0 OR i.state IN (SELECT value FROM json_each(?2)))"
                     " ORDER BY i.seq LIMIT ?3",
                     DB_ARGS(DB_TEXT(after), DB_TEXT(argument), DB_INT(limit)));
        if (r < 0)
                return r;

        for (;;) {
                _cleanup_json_ json_t *row = NULL;

                r = db_step(s);
                if (r <= 0)
                        return r;
                r = row_to_json(s, &row);
                if (r >= 0)
                        r = handler(row, userdata);
                if (r != 0)
                        return r < 0 ? r : 0;
        }
}

static const struct {
        const char *key, *sql;
} show_parts[] = {
        { "runs",
          "SELECT id, stage, attempt, accel, egress_digest, egress_digests, boots, created_usec, started_usec, finished_usec, released_usec,"
          " outcome, reason, facts FROM run WHERE item = ? ORDER BY created_usec" },
        { "history",
          "SELECT revision, from_state AS \"from\", to_state AS \"to\", reason, actor, run, attempt, time_usec FROM history"
          " WHERE item = ? ORDER BY revision" },
        { "usage",
          "SELECT provider, model, count(*) AS calls, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,"
          " sum(cache_read_tokens) AS cache_read_tokens, sum(cache_write_tokens) AS cache_write_tokens,"
          " sum(cost_microusd) AS cost_microusd FROM usage WHERE item = ? GROUP BY provider, model" },
        { "notes", "SELECT kind, run, text, time_usec FROM note WHERE item = ? ORDER BY id DESC LIMIT 200" },
        /* what an operator must not overlook among the notes */
        { "flags",
          "SELECT kind, run, text, count(*) AS count, min(time_usec) AS time_usec FROM note WHERE item = ? AND kind = 'credential.misuse'"
          " GROUP BY kind, run, text ORDER BY min(id)" },
        { "pruned", "SELECT part, bytes, why, actor, time_usec FROM pruned WHERE item = ? ORDER BY part" },
        { "failures",
          "SELECT attempt, run, reason, time_usec FROM history WHERE item = ? AND to_state = 'failed' ORDER BY revision" },
};

int ledger_policies(Ledger *l, const char *item, int64_t attempt, json_t **ret) {
        _cleanup_json_ json_t *rows = NULL, *object = json_object();
        json_t *row;
        size_t i;
        int r;

        if (!object)
                return -ENOMEM;
        r = ledger_query_array(l, "SELECT id, egress_digests FROM run WHERE item = ? AND attempt = ? AND egress_digests IS NOT NULL ORDER BY created_usec",
                               DB_ARGS(DB_TEXT(item), DB_INT(attempt)), &rows);
        if (r < 0)
                return r;

        json_array_foreach(rows, i, row)
                if (json_object_set(object, json_string_value(json_object_get(row, "id")), json_object_get(row, "egress_digests")) < 0)
                        return -ENOMEM;
        *ret = TAKE_PTR(object);
        return 0;
}

int ledger_story(Ledger *l, const char *item, int64_t revision, int64_t note, json_t **ret_states, json_t **ret_notes) {
        _cleanup_json_ json_t *states = NULL;
        int r;

        r = ledger_query_array(l, "SELECT revision, from_state AS \"from\", to_state AS \"to\", reason, run FROM history WHERE item = ? AND revision > ?"
                                  " ORDER BY revision", DB_ARGS(DB_TEXT(item), DB_INT(revision)), &states);
        if (r < 0)
                return r;
        r = ledger_query_array(l, "SELECT id, kind, text, run FROM note WHERE item = ? AND id > ? ORDER BY id", DB_ARGS(DB_TEXT(item), DB_INT(note)),
                               ret_notes);
        if (r < 0)
                return r;
        *ret_states = TAKE_PTR(states);
        return 0;
}

int ledger_show(Ledger *l, const char *item, json_t **ret) {
        _cleanup_json_ json_t *rows = NULL;
        json_t *object, *part;
        int r;

        r = ledger_query_array(l,
                        "SELECT i.*, (SELECT coalesce(sum(cost_microusd), 0) FROM usage u WHERE u.item = i.id) AS cost_microusd"
                        " FROM item i WHERE i.id = ?", DB_ARGS(DB_TEXT(item)), &rows);
        if (r < 0)
                return r;
        object = json_array_get(rows, 0);
        if (!object)
                return LEDGER_E_NOT_FOUND;

        (void) json_object_del(object, "seq");
        for (size_t i = 0; i < ELEMENTSOF(show_parts); i++) {
                r = ledger_query_array(l, show_parts[i].sql, DB_ARGS(DB_TEXT(item)), &part);
                if (r < 0)
                        return r;
                if (json_object_set_new(object, show_parts[i].key, part) < 0)
                        return -ENOMEM;
        }

        *ret = json_incref(object);
        return 0;
}

int ledger_counts(Ledger *l, json_t **ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        _cleanup_json_ json_t *object = json_object();
        int r;

        if (!object)
                return -ENOMEM;

        r = db_query(l->db, &s, "SELECT state, count(*) FROM item GROUP BY state", NULL);
        if (r < 0)
                return r;

        for (;;) {
                r = db_step(s);
                if (r < 0)
                        return r;
                if (r == 0)
                        break;
                if (json_object_set_new(object, db_column_text(s, 0), json_integer(db_column_int(s, 1))) < 0)
                        return -ENOMEM;
        }

        *ret = TAKE_PTR(object);
        return 0;
}
