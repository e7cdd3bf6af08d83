/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Tables (schema level 2):
 *
 *   spent        sums of `usage` by (scope, name): ('run', RUN), ('item', ITEM), ('workflow', "NAME 2026-11"), ('host', "2026-11"). Kept by a
 *                trigger, so that whoever writes a call writes its sums.
 *   budget       one row for each run that has a cap: whom it belongs to, and `granted`: how much it may use in all, what it used included.
 *   reservation  calls that are under way. The trigger takes a call's reservation away when the call is written to `usage`.
 *   budget_said  what was announced.
 *   unreserved   (level 6) the calls of an open run that were given back. An enforcer that has given up waiting gives its call back on another connection, and
 *                that may be read here before the reservation is: which then reserves nothing any more, or it would stay until the run's end and be charged there.
 *
 * Of an open run counts what it used, and beyond that the larger of what is left of its grant and what it has reserved. Invariant at the
 * end of every transaction here: for each cap, the sum of that over all runs of the scope is at most the cap, unless a call
 * used more than its worst case, or was recorded as taken.
 *
 * A crash of the enforcer shows as another `life`: its reservations become calls with their worst case, since they may have been
 * made, marked as estimated, under the ids that they had, so that a report that was on its way counts them no second time. What was
 * granted beyond them returns. If the writer of this file was away as well (`doubt`), calls may have left that nobody recorded:
 * then all that was granted is charged.
 */

#include "ledger/ledger-budget.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ledger/ledger-private.h"
#include "util/json.h"

enum { MONTH_SIZE = 8, N_WHATS = 3 };

static const char *const scope_names[] = { "run", "item", "workflow", "host" };
static const char *const what_names[N_WHATS] = { "requests", "tokens", "cost" };

const char *ledger_scope_name(LedgerScope s) {
        return scope_names[s];
}

static int64_t part(const LedgerAmount *a, size_t what) {
        return what == 0 ? a->requests : what == 1 ? a->tokens : a->cost_microusd;
}

static int64_t *part_of(LedgerAmount *a, size_t what) {
        return what == 0 ? &a->requests : what == 1 ? &a->tokens : &a->cost_microusd;
}

static void month_of(uint64_t usec, char ret[static MONTH_SIZE]) {
        time_t t = (time_t) (usec / 1000000);
        struct tm tm;

        if (!gmtime_r(&t, &tm) || strftime(ret, MONTH_SIZE, "%Y-%m", &tm) == 0)
                strcpy(ret, "0000-00");
}

/* ---- sums ---- */

static int read_amount(Ledger *l, const char *sql, const DbArg *args, LedgerAmount *ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        *ret = (LedgerAmount) {};
        r = db_query_row(l->db, &s, sql, args);
        if (r == -ENOENT)
                return 0;
        if (r < 0)
                return r;
        *ret = (LedgerAmount) { db_column_int(s, 0), db_column_int(s, 1), db_column_int(s, 2) };
        return 0;
}

static int read_spent(Ledger *l, const char *scope, const char *name, LedgerAmount *ret) {
        return read_amount(l, "SELECT requests, tokens, cost FROM spent WHERE scope = ? AND name = ?", DB_ARGS(DB_TEXT(scope), DB_TEXT(name)), ret);
}

static int read_reserved(Ledger *l, const char *run, LedgerAmount *ret) {
        return read_amount(l, "SELECT count(*), coalesce(sum(input_tokens + output_tokens), 0), coalesce(sum(cost), 0) FROM reservation WHERE run = ?",
                           DB_ARGS(DB_TEXT(run)), ret);
}

/* What open runs but this one may still use, in a scope. */
static int read_outstanding(Ledger *l, const char *but_run, const char *item, const char *workflow, LedgerAmount *ret) {
        return read_amount(l,
                           "SELECT coalesce(sum(max(b.requests - coalesce(s.requests, 0), coalesce(v.requests, 0), 0)), 0),"
                           " coalesce(sum(max(b.tokens - coalesce(s.tokens, 0), coalesce(v.tokens, 0), 0)), 0),"
                           " coalesce(sum(max(b.cost - coalesce(s.cost, 0), coalesce(v.cost, 0), 0)), 0)"
                           " FROM budget b LEFT JOIN spent s ON s.scope = 'run' AND s.name = b.run"
                           " LEFT JOIN (SELECT run, count(*) AS requests, sum(input_tokens + output_tokens) AS tokens, sum(cost) AS cost"
                           "  FROM reservation GROUP BY run) v ON v.run = b.run"
                           " WHERE b.closed = 0 AND b.run <> ?1 AND (?2 IS NULL OR b.item = ?2) AND (?3 IS NULL OR b.workflow = ?3)",
                           DB_ARGS(DB_TEXT(but_run), DB_TEXT(item), DB_TEXT(workflow)), ret);
}

typedef struct Owner {
        char item[ID_LENGTH + 1], month[MONTH_SIZE];
        char *workflow, *workflow_month; /* owned */
} Owner;

static void owner_done(Owner *o) {
        free(o->workflow);
        free(o->workflow_month);
}

static int read_owner(Ledger *l, const char *run, Owner *ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query_row(l->db, &s, "SELECT r.item, i.workflow FROM run r JOIN item i ON i.id = r.item WHERE r.id = ?", DB_ARGS(DB_TEXT(run)));
        if (r == -ENOENT)
                return LEDGER_E_NOT_FOUND;
        if (r < 0)
                return r;
        (void) snprintf(ret->item, sizeof(ret->item), "%s", db_column_text(s, 0));
        month_of(time_realtime(), ret->month);
        ret->workflow = strdup(db_column_text(s, 1));
        ret->workflow_month = ret->workflow ? text_format("%s %s", ret->workflow, ret->month) : NULL;
        return ret->workflow_month ? 0 : -ENOMEM;
}

/* What of a scope is used or promised to others, without this run's own reservations. */
static int read_committed(Ledger *l, LedgerScope scope, const char *run, const Owner *o, LedgerAmount *ret) {
        const char *const names[] = { run, o->item, o->workflow_month, o->month };
        LedgerAmount others = {};
        int r;

        r = read_spent(l, scope_names[scope], names[scope], ret);
        if (r >= 0 && scope != LEDGER_SCOPE_RUN)
                r = read_outstanding(l, run, scope == LEDGER_SCOPE_ITEM ? o->item : NULL, scope == LEDGER_SCOPE_WORKFLOW ? o->workflow : NULL, &others);
        for (size_t w = 0; w < N_WHATS; w++)
                *part_of(ret, w) += part(&others, w);
        return r;
}

/* ---- a life's end ---- */

/* What an enforcer that is gone had under way. */
static int charge(Ledger *l, const char *run) {
        int64_t now = (int64_t) time_realtime();
        int r;

        r = db_run(l->db,
                   "INSERT INTO usage (run, item, call, provider, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,"
                   " cost_microusd, status, latency_us, time_usec, price, prices_version, estimated)"
                   " SELECT v.run, b.item, v.call, v.provider, v.model, v.input_tokens, v.output_tokens, 0, 0, v.cost, 0, 0, ?2, v.price, v.prices_version, 1"
                   " FROM reservation v JOIN budget b ON b.run = v.run WHERE v.run = ?1"
                   "  AND NOT EXISTS (SELECT 1 FROM usage u WHERE u.run = v.run AND u.call = v.call)",
                   DB_ARGS(DB_TEXT(run), DB_INT(now)));
        if (r < 0)
                return r;
        r = db_run(l->db, "DELETE FROM reservation WHERE run = ?", DB_ARGS(DB_TEXT(run)));
        if (r < 0)
                return r;

        r = db_run(l->db,
                   "INSERT INTO usage (run, item, call, provider, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,"
                   " cost_microusd, status, latency_us, time_usec, estimated)"
                   " SELECT b.run, b.item, 'lost-' || b.life, '', '', 0, max(b.tokens - coalesce(s.tokens, 0), 0), 0, 0, max(b.cost - coalesce(s.cost, 0), 0), 0, 0, ?2, 1"
                   " FROM budget b LEFT JOIN spent s ON s.scope = 'run' AND s.name = b.run"
                   " WHERE b.run = ?1 AND b.doubt AND (b.tokens > coalesce(s.tokens, 0) OR b.cost > coalesce(s.cost, 0))",
                   DB_ARGS(DB_TEXT(run), DB_INT(now)));
        if (r < 0)
                return r;
        r = db_run(l->db,
                   "UPDATE budget SET doubt = 0, requests = coalesce((SELECT requests FROM spent WHERE scope = 'run' AND name = ?1), 0),"
                   " tokens = coalesce((SELECT tokens FROM spent WHERE scope = 'run' AND name = ?1), 0),"
                   " cost = coalesce((SELECT cost FROM spent WHERE scope = 'run' AND name = ?1), 0) WHERE run = ?1",
                   DB_ARGS(DB_TEXT(run)));
        return r < 0 ? r : 0;
}

int ledger_budget_close(Ledger *l, const char *run) {
        _cleanup_rollback_ DbGuard guard = {};
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;
        r = charge(l, run);
        if (r < 0)
                return r;
        r = db_run(l->db, "UPDATE budget SET closed = 1 WHERE run = ?", DB_ARGS(DB_TEXT(run)));
        if (r < 0)
                return r;
        r = db_run(l->db, "DELETE FROM unreserved WHERE run = ?", DB_ARGS(DB_TEXT(run)));
        if (r < 0)
                return r;
        return db_commit(&guard);
}

int ledger_budget_close_stray(Ledger *l) {
        for (;;) {
                _cleanup_(db_stmt_donep) DbStmt *s = NULL;
                char run[ID_LENGTH + 1];
                int r;

                r = db_query_row(l->db, &s, "SELECT run FROM budget WHERE closed = 0 AND run NOT IN (SELECT run FROM lease) LIMIT 1", NULL);
                if (r == -ENOENT) {
                        /* of runs that reserved nothing, or that an older anchord has closed */
                        r = db_run(l->db, "DELETE FROM unreserved WHERE run NOT IN (SELECT run FROM lease)", NULL);
                        return r < 0 ? r : 0;
                }
                if (r < 0)
                        return r;
                (void) snprintf(run, sizeof(run), "%s", db_column_text(s, 0));
                s = db_stmt_done(s);
                r = ledger_budget_close(l, run);
                if (r < 0)
                        return r;
        }
}

int ledger_budget_doubt(Ledger *l, const char *run) {
        int r;

        r = db_run(l->db, "UPDATE budget SET doubt = 1 WHERE run = ? AND closed = 0", DB_ARGS(DB_TEXT(run)));
        return r < 0 ? r : 0;
}

/* ---- reserving ---- */

/* The run's row, of this life. */
static int enter_life(Ledger *l, const LedgerReservation *v, const Owner *o) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        bool same;
        int r;

        r = db_run(l->db, "INSERT INTO budget (run, item, workflow, life) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                   DB_ARGS(DB_TEXT(v->run), DB_TEXT(o->item), DB_TEXT(o->workflow), DB_TEXT(v->life)));
        if (r < 0)
                return r;
        r = db_query_row(l->db, &s, "SELECT life = ?2 FROM budget WHERE run = ?1", DB_ARGS(DB_TEXT(v->run), DB_TEXT(v->life)));
        if (r < 0)
                return r;
        same = db_column_int(s, 0);
        s = db_stmt_done(s);

        if (!same) {
                r = charge(l, v->run);
                if (r < 0)
                        return r;
                r = db_run(l->db, "UPDATE budget SET life = ?2 WHERE run = ?1", DB_ARGS(DB_TEXT(v->run), DB_TEXT(v->life)));
        } else if (!v->more_taken)
                r = db_run(l->db, "UPDATE budget SET doubt = 0 WHERE run = ? AND doubt", DB_ARGS(DB_TEXT(v->run)));
        return r < 0 ? r : 0;
}

static int is_known(Ledger *l, const LedgerReservation *v) {
        int64_t n;
        int r;

        r = db_get_int(l->db, "SELECT (SELECT count(*) FROM reservation WHERE run = ?1 AND call = ?2) + (SELECT count(*) FROM usage WHERE run = ?1 AND call = ?2)",
                       DB_ARGS(DB_TEXT(v->run), DB_TEXT(v->call)), &n);
        return r < 0 ? r : n > 0;
}

/* Given back, or of a run whose account is closed: then a late one must not open it again. */
static int is_settled(Ledger *l, const LedgerReservation *v) {
        int64_t n;
        int r;

        r = db_get_int(l->db, "SELECT EXISTS (SELECT 1 FROM unreserved WHERE run = ?1 AND call = ?2) OR EXISTS (SELECT 1 FROM budget WHERE run = ?1 AND closed = 1)",
                       DB_ARGS(DB_TEXT(v->run), DB_TEXT(v->call)), &n);
        return r < 0 ? r : n > 0;
}

static int insert_reservation(Ledger *l, const LedgerReservation *v) {
        int r;

        r = db_run(l->db,
                   "INSERT INTO reservation (run, call, provider, model, price, prices_version, input_tokens, output_tokens, cost)"
                   " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                   DB_ARGS(DB_TEXT(v->run), DB_TEXT(v->call), DB_TEXT(v->provider), DB_TEXT(v->model), DB_TEXT(v->price), DB_TEXT(v->prices_version),
                           DB_INT(v->input_tokens), DB_INT(v->output_tokens), DB_INT(v->cost_microusd)));
        return r < 0 ? r : 0;
}

/* Where the caps are: the room that they leave, and the one that is nearest. */
static int measure(Ledger *l, const LedgerReservation *v, const LedgerCaps *caps, const Owner *o, const LedgerAmount *own, const LedgerAmount *wanted,
                   LedgerBudget *ret) {
        double nearest = -1;

        *ret = (LedgerBudget) { .room = { LEDGER_UNLIMITED, LEDGER_UNLIMITED, LEDGER_UNLIMITED } };
        for (LedgerScope scope = 0; scope < _LEDGER_SCOPE_MAX; scope++) {
                LedgerAmount committed;
                int r;

                r = read_committed(l, scope, v->run, o, &committed);
                if (r < 0)
                        return r;
                for (size_t w = 0; w < N_WHATS; w++) {
                        int64_t cap = part(&caps->of[scope], w), used = part(&committed, w) + part(own, w), room = cap - used;
                        double share;

                        if (cap == LEDGER_UNLIMITED)
                                continue;
                        if (room < part(&ret->room, w))
                                *part_of(&ret->room, w) = room;
                        share = cap > 0 ? (double) (used + part(wanted, w)) / (double) cap : 2;
                        if (share > nearest) {
                                nearest = share;
                                ret->scope = scope;
                                ret->what = what_names[w];
                                ret->used = used;
                                ret->cap = cap;
                                ret->percent = share > 100 ? 10000 : (unsigned) (share * 100);
                        }
                }
        }
        return 0;
}

/* A little more than what was asked for, less and less of it as the caps come near. */
static int64_t ahead(int64_t wanted, int64_t room) {
        int64_t rest = room == LEDGER_UNLIMITED ? INT64_MAX / 4 : (room - wanted) / 4;

        return rest <= 0 ? 0 : 2 * wanted < rest ? 2 * wanted : rest;
}

static int raise_grant(Ledger *l, const LedgerReservation *v, const LedgerAmount *own, const LedgerAmount *wanted, LedgerBudget *b) {
        LedgerAmount spent, granted, to;
        int r;

        r = read_spent(l, "run", v->run, &spent);
        if (r >= 0)
                r = read_amount(l, "SELECT requests, tokens, cost FROM budget WHERE run = ?", DB_ARGS(DB_TEXT(v->run)), &granted);
        if (r < 0)
                return r;

        for (size_t w = 0; w < N_WHATS; w++) {
                int64_t base = part(&spent, w) + part(own, w) + part(wanted, w), up;

                up = base + (v->taken ? 0 : ahead(part(wanted, w), part(&b->room, w)));
                *part_of(&to, w) = up > part(&granted, w) ? up : part(&granted, w);
                *part_of(&b->block, w) = part(&to, w) - base;
        }
        r = db_run(l->db, "UPDATE budget SET requests = ?2, tokens = ?3, cost = ?4 WHERE run = ?1",
                   DB_ARGS(DB_TEXT(v->run), DB_INT(to.requests), DB_INT(to.tokens), DB_INT(to.cost_microusd)));
        return r < 0 ? r : 0;
}

int ledger_reserve(Ledger *l, const LedgerReservation *v, const LedgerCaps *caps, LedgerBudget *ret) {
        LedgerAmount wanted = { 1, v->input_tokens + v->output_tokens, v->cost_microusd }, own;
        _cleanup_rollback_ DbGuard guard = {};
        _cleanup_(owner_done) Owner o = {};
        int r, known;

        if (v->input_tokens < 0 || v->output_tokens < 0 || v->cost_microusd < 0 || wanted.tokens < 0)
                return -EINVAL;
        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;
        r = read_owner(l, v->run, &o);
        if (r != 0)
                return r;
        r = is_settled(l, v);
        if (r != 0)
                return r < 0 ? r : LEDGER_E_SETTLED;
        r = enter_life(l, v, &o);
        if (r < 0)
                return r;
        known = is_known(l, v);
        if (known < 0)
                return known;
        if (known)
                wanted = (LedgerAmount) {};

        r = read_reserved(l, v->run, &own);
        if (r >= 0)
                r = measure(l, v, caps, &o, &own, &wanted, ret);
        if (r < 0)
                return r;
        for (size_t w = 0; !known && !v->taken && w < N_WHATS; w++)
                if (part(&ret->room, w) != LEDGER_UNLIMITED && part(&wanted, w) + part(&v->keep, w) > part(&ret->room, w)) {
                        r = db_commit(&guard); /* whose life it is holds all the same */
                        return r < 0 ? r : LEDGER_E_OVER_BUDGET;
                }

        if (!known) {
                r = insert_reservation(l, v);
                if (r < 0)
                        return r;
        }
        r = raise_grant(l, v, &own, &wanted, ret);
        if (r < 0)
                return r;
        return db_commit(&guard);
}

int ledger_unreserve(Ledger *l, const char *run, const char *call) {
        _cleanup_rollback_ DbGuard guard = {};
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;
        r = db_run(l->db, "DELETE FROM reservation WHERE run = ? AND call = ?", DB_ARGS(DB_TEXT(run), DB_TEXT(call)));
        if (r < 0)
                return r;
        r = db_run(l->db,
                   "INSERT INTO unreserved (run, call) SELECT ?1, ?2"
                   " WHERE EXISTS (SELECT 1 FROM lease WHERE run = ?1) AND NOT EXISTS (SELECT 1 FROM budget WHERE run = ?1 AND closed = 1) ON CONFLICT DO NOTHING",
                   DB_ARGS(DB_TEXT(run), DB_TEXT(call)));
        if (r < 0)
                return r;
        return db_commit(&guard);
}

int ledger_count_calls(Ledger *l, const char *run, int64_t *ret) {
        LedgerAmount spent;
        int r;

        r = read_spent(l, "run", run, &spent);
        if (r >= 0)
                *ret = spent.requests;
        return r < 0 ? r : 0;
}

int ledger_budget_say(Ledger *l, const char *key) {
        int r;

        r = db_run(l->db, "INSERT INTO budget_said (key, time_usec) VALUES (?, ?) ON CONFLICT DO NOTHING", DB_ARGS(DB_TEXT(key), DB_INT(time_realtime())));
        return r < 0 ? r : r == 0 ? LEDGER_E_DUPLICATE : 0;
}

/* ---- for people ---- */

int ledger_budget_show(Ledger *l, const char *item, const LedgerCaps *caps, json_t **ret) {
        _cleanup_json_ json_t *all = json_object();
        _cleanup_item_ LedgerItem i = {};
        _cleanup_(owner_done) Owner o = {};
        int r;

        if (!all)
                return -ENOMEM;
        r = ledger_get(l, item, &i);
        if (r != 0)
                return r;
        if (i.run[0] && (r = read_owner(l, i.run, &o)) != 0)
                return r;

        for (LedgerScope scope = 0; i.run[0] && scope < _LEDGER_SCOPE_MAX; scope++) {
                const char *const names[] = { i.run, o.item, o.workflow_month, o.month };
                _cleanup_json_ json_t *one = json_object();
                LedgerAmount spent;

                r = read_spent(l, scope_names[scope], names[scope], &spent);
                if (r < 0)
                        return r;
                for (size_t w = 0; w < N_WHATS; w++)
                        if (part(&caps->of[scope], w) != LEDGER_UNLIMITED &&
                            json_object_set_new(one, what_names[w], json_pack("{s:I, s:I}", "used", (json_int_t) part(&spent, w), "cap", (json_int_t) part(&caps->of[scope], w))) < 0)
                                return -ENOMEM;
                if (json_object_size(one) > 0 && json_object_set(all, scope_names[scope], one) < 0)
                        return -ENOMEM;
        }
        *ret = TAKE_PTR(all);
        return 0;
}
