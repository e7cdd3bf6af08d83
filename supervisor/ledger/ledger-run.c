/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Runs, usage, notes, effects, the hold and the audit outbox: everything that hangs on an item. */

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ledger/ledger-private.h"
#include "util/json.h"

void ledger_run_done(LedgerRun *r) {
        free(r->outcome);
        free(r->reason);
        free(r->facts);
        *r = (LedgerRun) {};
}

void ledger_event_done(LedgerEvent *e) {
        free(e->event);
        free(e->run);
        free(e->item);
        free(e->actor);
        free(e->data);
        *e = (LedgerEvent) {};
}

#define RUN_COLUMNS                                                                                     \
        "SELECT id, item, stage, started_usec, finished_usec, released_usec, attempt, token,"           \
        " outcome, reason, facts FROM run "

static int run_from_row(DbStmt *s, LedgerRun *ret) {
        _cleanup_(ledger_run_done) LedgerRun run = {};
        int r;

        (void) snprintf(run.id, sizeof(run.id), "%s", db_column_text(s, 0));
        (void) snprintf(run.item, sizeof(run.item), "%s", db_column_text(s, 1));
        run.verify = strcmp(db_column_text(s, 2), "verify") == 0;
        run.started = !db_column_is_null(s, 3);
        run.started_usec = run.started ? (uint64_t) db_column_int(s, 3) : 0;
        run.finished = !db_column_is_null(s, 4);
        run.released = !db_column_is_null(s, 5);
        run.attempt = db_column_int(s, 6);
        run.token = db_column_int(s, 7);
        r = db_column_dup(s, 8, &run.outcome);
        if (r >= 0)
                r = db_column_dup(s, 9, &run.reason);
        if (r >= 0)
                r = db_column_dup(s, 10, &run.facts);
        if (r < 0)
                return r;

        *ret = run;
        run = (LedgerRun) {};
        return 0;
}

int ledger_run_get(Ledger *l, const char *run, LedgerRun *ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query_row(l->db, &s, RUN_COLUMNS "WHERE id = ?", DB_ARGS(DB_TEXT(run)));
        if (r == -ENOENT)
                return LEDGER_E_NOT_FOUND;
        if (r < 0)
                return r;

        return run_from_row(s, ret);
}

int ledger_run_start(Ledger *l, const char *run, const char *accel, const char *egress_digest) {
        _cleanup_rollback_ DbGuard guard = {};
        _cleanup_(ledger_run_done) LedgerRun old = {};
        _cleanup_json_ json_t *data = NULL;
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;
        r = ledger_run_get(l, run, &old);
        if (r != 0)
                return r;
        if (old.started)
                return LEDGER_E_DUPLICATE;

        r = db_run(l->db,
                   "UPDATE run SET started_usec = ?2, accel = coalesce(?3, accel), egress_digest = coalesce(?4, egress_digest),"
                   " egress_digests = coalesce(egress_digests, CASE WHEN ?4 IS NULL THEN NULL ELSE json_array(?4) END) WHERE id = ?1",
                   DB_ARGS(DB_TEXT(run), DB_INT(time_realtime()), DB_TEXT(accel), DB_TEXT(egress_digest)));
        if (r < 0)
                return r;

        data = json_pack("{s:s, s:s?, s:s?}", "stage", old.verify ? "verify" : "work", "accel", accel, "egress_digest", egress_digest);
        r = data ? ledger_outbox_put(l, "run.started", run, old.item, NULL, data) : -ENOMEM;
        if (r < 0)
                return r;
        return db_commit(&guard);
}

int ledger_run_release(Ledger *l, const char *run) {
        int r;

        r = db_run(l->db, "UPDATE run SET released_usec = coalesce(released_usec, ?2) WHERE id = ?1",
                   DB_ARGS(DB_TEXT(run), DB_INT(time_realtime())));
        if (r < 0)
                return r;

        return r == 0 ? LEDGER_E_NOT_FOUND : 0;
}

int ledger_run_tell(Ledger *l, const char *run, int64_t call, const LedgerTold *told) {
        _cleanup_rollback_ DbGuard guard = {};
        _cleanup_(ledger_run_done) LedgerRun row = {};
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;
        r = ledger_run_get(l, run, &row);
        if (r != 0)
                return r;

        r = db_run(l->db, "UPDATE run SET boots = boots + ?3, told = max(told, ?2) WHERE id = ?1 AND (?2 = 0 OR told < ?2)",
                   DB_ARGS(DB_TEXT(run), DB_INT(call), DB_INT(told->boot)));
        if (r < 0)
                return r;
        if (r == 0)
                return LEDGER_E_DUPLICATE;
        if (told->event) {
                r = ledger_outbox_put(l, told->event, run, row.item, NULL, told->data);
                if (r < 0)
                        return r;
        }
        if (told->note) {
                r = ledger_add_note(l, row.item, run, told->note, told->text);
                if (r < 0)
                        return r;
        }
        return db_commit(&guard);
}

int ledger_run_set_policies(Ledger *l, const char *run, const json_t *digests) {
        _cleanup_free_ char *text = json_canonical(digests);
        int r;

        if (!text)
                return -ENOMEM;
        r = db_run(l->db, "UPDATE run SET egress_digests = ?2 WHERE id = ?1", DB_ARGS(DB_TEXT(run), DB_TEXT(text)));
        if (r < 0)
                return r;
        return r == 0 ? LEDGER_E_NOT_FOUND : 0;
}

static int queue_finished_event(Ledger *l, const LedgerRun *run, const char *outcome, const char *reason, const char *facts) {
        _cleanup_json_ json_t *data = NULL, *f = NULL;
        _cleanup_free_ char *text = NULL;
        int r;

        if (facts) {
                r = json_parse(facts, strlen(facts), &f, NULL);
                if (r < 0)
                        return r;
        }

        data = json_pack("{s:s, s:s, s:s?, s:O?}", "outcome", outcome, "stage", run->verify ? "verify" : "work",
                         "reason", reason, "facts", f);
        if (!data)
                return -ENOMEM;
        text = json_canonical(data);
        if (!text)
                return -ENOMEM;

        return ledger_outbox_add(l, strcmp(outcome, "stopped") == 0 ? "run.stopped" : "run.finished", run->id, run->item, NULL, text);
}

int ledger_run_finish(Ledger *l, const char *run, const char *outcome, const char *reason, const char *facts) {
        _cleanup_rollback_ DbGuard guard = {};
        _cleanup_(ledger_run_done) LedgerRun old = {};
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;

        r = ledger_run_get(l, run, &old);
        if (r != 0)
                return r;
        if (old.outcome)
                return strcmp(old.outcome, outcome) == 0 ? 0 : LEDGER_E_ILLEGAL;

        r = db_run(l->db, "UPDATE run SET outcome = ?2, reason = ?3, facts = ?4, finished_usec = ?5 WHERE id = ?1",
                   DB_ARGS(DB_TEXT(run), DB_TEXT(outcome), DB_TEXT(reason), DB_TEXT(facts), DB_INT(time_realtime())));
        if (r < 0)
                return r == -EPERM ? LEDGER_E_ILLEGAL : r;

        r = queue_finished_event(l, &old, outcome, reason, facts);
        if (r < 0)
                return r;

        return db_commit(&guard);
}

int ledger_run_list_unreleased(Ledger *l, LedgerRunHandler handler, void *userdata) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query(l->db, &s, RUN_COLUMNS "WHERE released_usec IS NULL ORDER BY created_usec", NULL);
        if (r < 0)
                return r;

        for (;;) {
                _cleanup_(ledger_run_done) LedgerRun run = {};

                r = db_step(s);
                if (r <= 0)
                        return r;
                r = run_from_row(s, &run);
                if (r < 0)
                        return r;
                r = handler(&run, userdata);
                if (r < 0)
                        return r;
        }
}

/* ---- what they are made from ---- */

int ledger_freeze(Ledger *l, int64_t token, const char *plan) {
        int r;

        r = db_run(l->db, "INSERT INTO frozen (token, plan) SELECT token, ?2 FROM lease WHERE token = ?1", DB_ARGS(DB_INT(token), DB_TEXT(plan)));
        if (r == -EEXIST)
                return LEDGER_E_DUPLICATE;
        if (r < 0)
                return r;
        return r == 0 ? LEDGER_E_STALE : 0;
}

int ledger_frozen(Ledger *l, int64_t token, char **ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query_row(l->db, &s, "SELECT plan FROM frozen WHERE token = ?", DB_ARGS(DB_INT(token)));
        if (r == -ENOENT)
                return LEDGER_E_NOT_FOUND;
        return r < 0 ? r : db_column_dup(s, 0, ret);
}

/* ---- usage, notes, effects ---- */

int ledger_add_usage(Ledger *l, const char *run, const LedgerUsage *u) {
        int r;

        r = db_run(l->db,
                   "INSERT INTO usage (run, item, call, provider, model, input_tokens, output_tokens, cache_read_tokens,"
                   " cache_write_tokens, cost_microusd, status, latency_us, time_usec, price, prices_version, estimated)"
                   " SELECT id, item, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15 FROM run WHERE id = ?1",
                   DB_ARGS(DB_TEXT(run), DB_TEXT(u->call), DB_TEXT(u->provider), DB_TEXT(u->model),
                           DB_INT(u->input_tokens), DB_INT(u->output_tokens), DB_INT(u->cache_read_tokens),
                           DB_INT(u->cache_write_tokens), DB_INT(u->cost_microusd), DB_INT(u->status),
                           DB_INT(u->latency_us), DB_INT(time_realtime()), DB_TEXT(u->price), DB_TEXT(u->prices_version),
                           DB_INT(u->estimated)));
        if (r == -EEXIST)
                return LEDGER_E_DUPLICATE;
        if (r < 0)
                return r;

        return r == 0 ? LEDGER_E_NOT_FOUND : 0;
}

int ledger_add_note(Ledger *l, const char *item, const char *run, const char *kind, const char *text) {
        int r;

        r = db_run(l->db, "INSERT INTO note (item, run, kind, text, time_usec) VALUES (?, ?, ?, ?, ?)",
                   DB_ARGS(DB_TEXT(item), DB_TEXT(run), DB_TEXT(kind), DB_TEXT(text), DB_INT(time_realtime())));
        return r < 0 ? r : 0;
}

int ledger_run_note(Ledger *l, const char *item, const char *run, const char *kind, char **ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query_row(l->db, &s, "SELECT text FROM note WHERE item = ? AND run = ? AND kind = ? ORDER BY id LIMIT 1",
                         DB_ARGS(DB_TEXT(item), DB_TEXT(run), DB_TEXT(kind)));
        if (r == -ENOENT)
                return LEDGER_E_NOT_FOUND;
        return r < 0 ? r : db_column_dup(s, 0, ret);
}

int ledger_effect_ask(Ledger *l, const char *key, const char *item, const char *kind) {
        int64_t done;
        int r;

        r = db_run(l->db, "INSERT INTO effect (key, item, kind, state, asked_usec) VALUES (?, ?, ?, 'asked', ?) ON CONFLICT DO NOTHING",
                   DB_ARGS(DB_TEXT(key), DB_TEXT(item), DB_TEXT(kind), DB_INT(time_realtime())));
        if (r < 0)
                return r;
        if (r > 0)
                return 0;

        r = db_get_int(l->db, "SELECT state = 'done' FROM effect WHERE key = ?", DB_ARGS(DB_TEXT(key)), &done);
        if (r < 0)
                return r;

        return done ? LEDGER_E_DUPLICATE : 0;
}

int ledger_effect_done(Ledger *l, const char *key) {
        int r;

        r = db_run(l->db, "UPDATE effect SET state = 'done', done_usec = coalesce(done_usec, ?2) WHERE key = ?1",
                   DB_ARGS(DB_TEXT(key), DB_INT(time_realtime())));
        if (r < 0)
                return r;

        return r == 0 ? LEDGER_E_NOT_FOUND : 0;
}

/* ---- hold ---- */

int ledger_hold_set(Ledger *l, bool active, const char *actor, const char *reason) {
        _cleanup_rollback_ DbGuard guard = {};
        _cleanup_json_ json_t *data = NULL;
        _cleanup_free_ char *text = NULL;
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;

        r = db_run(l->db, "UPDATE hold SET active = ?1, actor = ?2, reason = ?3, time_usec = ?4 WHERE active <> ?1",
                   DB_ARGS(DB_INT(active), DB_TEXT(actor), DB_TEXT(reason), DB_INT(time_realtime())));
        if (r <= 0)
                return r; /* as it was: nothing to record */

        data = json_pack("{s:s?}", "reason", reason);
        if (!data)
                return -ENOMEM;
        text = json_canonical(data);
        if (!text)
                return -ENOMEM;

        r = ledger_outbox_add(l, active ? "hold.set" : "hold.released", NULL, NULL, actor, text);
        if (r < 0)
                return r;

        return db_commit(&guard);
}

int ledger_hold_get(Ledger *l, bool *ret_active, char **ret_reason) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        _cleanup_free_ char *reason = NULL;
        int r;

        r = db_query_row(l->db, &s, "SELECT active, reason FROM hold", NULL);
        if (r < 0)
                return r == -ENOENT ? -EUCLEAN : r;

        r = db_column_dup(s, 1, &reason);
        if (r < 0)
                return r;

        *ret_active = db_column_int(s, 0) != 0;
        if (ret_reason)
                *ret_reason = TAKE_PTR(reason);
        return 0;
}

/* ---- audit outbox ---- */

int ledger_outbox_add(Ledger *l, const char *event, const char *run, const char *item, const char *actor, const char *data) {
        int r;

        r = db_run(l->db, "INSERT INTO outbox (event, run, item, actor, data, time_usec) VALUES (?, ?, ?, ?, ?, ?)",
                   DB_ARGS(DB_TEXT(event), DB_TEXT(run), DB_TEXT(item), DB_TEXT(actor), DB_TEXT(data), DB_INT(time_realtime())));
        return r < 0 ? r : 0;
}

int ledger_outbox_put(Ledger *l, const char *event, const char *run, const char *item, const char *actor, const json_t *data) {
        _cleanup_free_ char *text = NULL;

        text = data ? json_canonical(data) : strdup("{}");
        if (!text)
                return -ENOMEM;

        return ledger_outbox_add(l, event, run, item, actor, text);
}

int ledger_outbox_next(Ledger *l, int64_t after, LedgerEvent *ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        _cleanup_(ledger_event_done) LedgerEvent e = {};
        char **const texts[] = { &e.event, &e.run, &e.item, &e.actor, &e.data };
        int r;

        r = db_query_row(l->db, &s,
                         "SELECT id, event, run, item, actor, json_set(data, '$.key', 'anchord-' || id), time_usec FROM outbox"
                         " WHERE id > ? ORDER BY id LIMIT 1", DB_ARGS(DB_INT(after)));
        if (r == -ENOENT)
                return LEDGER_E_NO_WORK;
        if (r < 0)
                return r;

        e.id = db_column_int(s, 0);
        e.time_usec = (uint64_t) db_column_int(s, 6);
        for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                r = db_column_dup(s, 1 + (int) i, texts[i]);
                if (r < 0)
                        return r;
        }

        *ret = e;
        e = (LedgerEvent) {};
        return 0;
}

int ledger_outbox_remove(Ledger *l, int64_t id) {
        int r;

        r = db_run(l->db, "DELETE FROM outbox WHERE id = ?", DB_ARGS(DB_INT(id)));
        return r < 0 ? r : 0;
}

int ledger_outbox_count(Ledger *l, int64_t *ret) {
        return db_get_int(l->db, "SELECT count(*) FROM outbox", NULL, ret);
}
