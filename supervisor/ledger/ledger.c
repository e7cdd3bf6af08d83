/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The items' side of the ledger: submitting, claiming, changing.
 *
 * Invariant: every public function is one IMMEDIATE transaction on a WAL file with synchronous=FULL.
 * A process that dies anywhere leaves either the state before or the state after, and in the second
 * case with history row and audit event, since triggers write those (ledger-schema.c).
 *
 * Callers: anchord only, on its event loop; one transaction costs one fsync. Decisions of callers carry the
 * revision that they were made on. Time comes in from the caller where a test must control it.
 */

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ledger/ledger-private.h"
#include "util/json.h"

static const char *const state_names[_ITEM_STATE_MAX] = {
        [ITEM_SUBMITTED] = "submitted",
        [ITEM_QUEUED] = "queued",
        [ITEM_LEASED] = "leased",
        [ITEM_RUNNING] = "running",
        [ITEM_WAITING] = "waiting",
        [ITEM_VERIFYING] = "verifying",
        [ITEM_IN_REVIEW] = "in_review",
        [ITEM_APPROVED] = "approved",
        [ITEM_AUTHORIZED] = "authorized",
        [ITEM_PUBLISHING] = "publishing",
        [ITEM_PUBLISH_FAILED] = "publish_failed",
        [ITEM_PUBLISHED] = "published",
        [ITEM_FAILED] = "failed",
        [ITEM_DUPLICATE] = "duplicate",
        [ITEM_REJECTED] = "rejected",
        [ITEM_CANCELLED] = "cancelled",
        [ITEM_EXHAUSTED] = "exhausted",
        [ITEM_MERGED] = "merged",
        [ITEM_CLOSED] = "closed",
};

const char *item_state_name(ItemState s) {
        return s < _ITEM_STATE_MAX ? state_names[s] : "invalid";
}

int item_state_from_name(const char *name) {
        for (int i = 0; i < _ITEM_STATE_MAX; i++)
                if (strcmp(state_names[i], name) == 0)
                        return i;
        return -EINVAL;
}

bool item_state_is_end(ItemState s) {
        return s == ITEM_DUPLICATE || s == ITEM_REJECTED || s == ITEM_CANCELLED || s == ITEM_EXHAUSTED ||
               s == ITEM_MERGED || s == ITEM_CLOSED;
}

bool ledger_reason_is_over_budget(const char *reason) {
        return reason && strncmp(reason, LEDGER_OVER_BUDGET, strlen(LEDGER_OVER_BUDGET)) == 0;
}

bool item_state_is_resting(ItemState s) {
        return item_state_is_end(s) || s == ITEM_IN_REVIEW || s == ITEM_APPROVED || s == ITEM_AUTHORIZED ||
               s == ITEM_PUBLISHED || s == ITEM_PUBLISH_FAILED;
}

void ledger_item_done(LedgerItem *i) {
        free(i->workflow);
        free(i->workflow_digest);
        free(i->base);
        free(i->task);
        free(i->command);
        free(i->template_name);
        free(i->template_digest);
        free(i->agent);
        free(i->stage);
        free(i->result_commit);
        free(i->reason);
        free(i->options);
        *i = (LedgerItem) {};
}

int ledger_open(Ledger **ret, const char *path) {
        _cleanup_(ledger_closep) Ledger *l = NULL;
        int r;

        l = calloc(1, sizeof(*l));
        if (!l)
                return -ENOMEM;

        r = db_open(&l->db, path);
        if (r < 0)
                return r;

        r = ledger_schema_apply(l->db);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(l);
        return 0;
}

Ledger *ledger_close(Ledger *l) {
        if (!l)
                return NULL;

        l->db = db_close(l->db);
        free(l);
        return NULL;
}

const char *ledger_error(Ledger *l) {
        return db_error(l->db);
}

/* ---- reading ---- */

static void copy_id(char to[static ID_LENGTH + 1], const char *from) {
        to[0] = 0;
        if (from && strlen(from) == ID_LENGTH)
                memcpy(to, from, ID_LENGTH + 1);
}

int ledger_item_from_row(DbStmt *s, LedgerItem *ret) {
        _cleanup_item_ LedgerItem i = {};
        char **const texts[] = {
                &i.workflow, &i.workflow_digest, &i.base, &i.task, &i.command, &i.template_name,
                &i.template_digest, &i.agent, &i.stage, &i.result_commit, &i.reason,
        };
        int state, r;

        state = item_state_from_name(db_column_text(s, 2));
        if (state < 0)
                return -EUCLEAN;

        copy_id(i.id, db_column_text(s, 0));
        copy_id(i.run, db_column_text(s, 1));
        i.state = state;
        i.revision = db_column_int(s, 3);
        i.attempt = db_column_int(s, 4);
        i.max_attempts = db_column_int(s, 5);
        i.leases = db_column_int(s, 6);
        i.token = db_column_int(s, 7);
        i.repository = !db_column_is_null(s, 19);
        for (size_t n = 0; n < ELEMENTSOF(texts); n++) {
                r = db_column_dup(s, 8 + (int) n, texts[n]);
                if (r < 0)
                        return r;
        }
        r = db_column_dup(s, 20, &i.options);
        if (r < 0)
                return r;

        *ret = i;
        i = (LedgerItem) {};
        return 0;
}

int ledger_item_read(Ledger *l, const char *id, LedgerItem *ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query_row(l->db, &s, LEDGER_ITEM_COLUMNS "WHERE i.id = ?", DB_ARGS(DB_TEXT(id)));
        if (r == -ENOENT)
                return LEDGER_E_NOT_FOUND;
        if (r < 0)
                return r;

        return ledger_item_from_row(s, ret);
}

int ledger_get(Ledger *l, const char *item, LedgerItem *ret) {
        return ledger_item_read(l, item, ret);
}

/* ---- changing ---- */

/* The database's refusal is an outcome here, not an error. */
static int refused(int r) {
        return r == -EPERM ? LEDGER_E_ILLEGAL : r;
}

static bool begins_attempt(ItemState from, ItemState to) {
        return to == ITEM_QUEUED && (from == ITEM_FAILED || from == ITEM_IN_REVIEW || from == ITEM_PUBLISHED);
}

/* Inside a transaction. */
static int change_item(Ledger *l, const LedgerItem *i, const LedgerChange *c) {
        bool new_attempt = begins_attempt(i->state, c->to);
        bool new_result = c->result_commit && (!i->result_commit || strcmp(c->result_commit, i->result_commit) != 0);
        char digest[HEX_SHA256_SIZE] = "";
        int r;

        if (c->evidence) {
                _cleanup_json_ json_t *j = NULL;

                r = json_parse(c->evidence, strlen(c->evidence), &j, NULL);
                if (r < 0)
                        return r;
                r = json_digest(j, digest);
                if (r < 0)
                        return r;
        }

        r = db_run(l->db,
                   "UPDATE item SET state = ?2, revision = revision + 1, reason = ?3, actor = ?4, changed_usec = ?5,"
                   " stage = coalesce(?6, stage), attempt = attempt + ?7,"
                   " max_attempts = CASE WHEN ?7 AND state <> 'failed' THEN max(max_attempts, attempt + 1) ELSE max_attempts END,"
                   " result_commit = coalesce(?8, result_commit),"
                   " reviewed_commit = CASE WHEN ?9 THEN NULL ELSE coalesce(?10, reviewed_commit) END,"
                   " evidence = coalesce(?11, evidence), evidence_digest = coalesce(?12, evidence_digest),"
                   " approvals = CASE WHEN ?9 THEN NULL ELSE coalesce(?13, approvals) END,"
                   " authorization = CASE WHEN ?9 THEN NULL ELSE coalesce(?14, authorization) END,"
                   " not_before_usec = ?15"
                   " WHERE id = ?1",
                   DB_ARGS(DB_TEXT(i->id), DB_TEXT(item_state_name(c->to)), DB_TEXT(c->reason), DB_TEXT(c->actor),
                           DB_INT(time_realtime()), DB_TEXT(new_attempt ? "work" : c->stage), DB_INT(new_attempt),
                           DB_TEXT(c->result_commit), DB_INT(new_result), DB_TEXT(c->reviewed_commit),
                           DB_TEXT(c->evidence), DB_TEXT(c->evidence ? digest : NULL),
                           DB_TEXT(c->approvals), DB_TEXT(c->authorization),
                           DB_INT(c->to == ITEM_QUEUED ? c->not_before_usec : 0)));
        return r < 0 ? r : 0;
}

int ledger_transition(Ledger *l, const LedgerChange *c, int64_t *ret_revision) {
        _cleanup_rollback_ DbGuard guard = {};
        _cleanup_item_ LedgerItem i = {};
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;

        r = ledger_item_read(l, c->item, &i);
        if (r != 0)
                return r;
        if (i.revision != c->revision)
                return LEDGER_E_CONFLICT;
        if (c->token != 0 && i.token != c->token)
                return LEDGER_E_STALE;
        if (c->to == ITEM_LEASED && i.state != ITEM_LEASED)
                return LEDGER_E_ILLEGAL; /* only ledger_claim_next() leases */

        r = change_item(l, &i, c);
        if (r < 0)
                return refused(r);

        r = db_commit(&guard);
        if (r < 0)
                return r;

        if (ret_revision)
                *ret_revision = i.revision + 1;
        return 0;
}

/* *ret stays NULL if no item with this source is live. */
static int why_duplicate(Ledger *l, const char *source, char **ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query_row(l->db, &s,
                         "SELECT id FROM item WHERE source = ? AND state NOT IN"
                         " ('duplicate','rejected','cancelled','exhausted','merged','closed') ORDER BY seq LIMIT 1",
                         DB_ARGS(DB_TEXT(source)));
        if (r < 0)
                return r == -ENOENT ? 0 : r;

        *ret = text_format("item %s with this source is still open", db_column_text(s, 0));
        return *ret ? 0 : -ENOMEM;
}

int ledger_submit(Ledger *l, const LedgerSubmission *s) {
        _cleanup_rollback_ DbGuard guard = {};
        _cleanup_free_ char *reason = NULL;
        _cleanup_item_ LedgerItem i = {};
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;

        if (s->source) {
                r = why_duplicate(l, s->source, &reason);
                if (r < 0)
                        return r;
        }

        r = db_run(l->db,
                   "INSERT INTO item (id, state, revision, actor, source, requester, workflow, workflow_digest, repository,"
                   " base, task, command, options, template, template_digest, agent, max_attempts, created_usec, changed_usec)"
                   " VALUES (?1, 'submitted', 1, ?2, ?3, ?2, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?15)",
                   DB_ARGS(DB_TEXT(s->id), DB_TEXT(s->requester), DB_TEXT(s->source), DB_TEXT(s->workflow),
                           DB_TEXT(s->workflow_digest), DB_TEXT(s->repository), DB_TEXT(s->base), DB_TEXT(s->task),
                           DB_TEXT(s->command), DB_TEXT(s->options), DB_TEXT(s->template_name), DB_TEXT(s->template_digest),
                           DB_TEXT(s->agent), DB_INT(s->max_attempts), DB_INT(time_realtime())));
        if (r < 0)
                return r;

        if (reason) {
                r = ledger_item_read(l, s->id, &i);
                if (r != 0)
                        return r < 0 ? r : -EUCLEAN;
                r = change_item(l, &i, &(LedgerChange) {
                                .to = ITEM_DUPLICATE,
                                .actor = s->requester,
                                .reason = reason,
                        });
                if (r < 0)
                        return r;
        }

        r = db_commit(&guard);
        if (r < 0)
                return r;

        return reason ? LEDGER_E_DUPLICATE : 0;
}

/* ---- leases ---- */

static int insert_run(Ledger *l, const LedgerItem *i, const char *run, const char *stage, int64_t token) {
        int r;

        r = db_run(l->db, "INSERT INTO run (id, item, stage, attempt, token, created_usec) VALUES (?, ?, ?, ?, ?, ?)",
                   DB_ARGS(DB_TEXT(run), DB_TEXT(i->id), DB_TEXT(stage), DB_INT(i->attempt), DB_INT(token), DB_INT(time_realtime())));
        return r < 0 ? r : 0;
}

static int queue_leased_event(Ledger *l, const LedgerItem *i, const char *run, const char *stage) {
        _cleanup_json_ json_t *data = NULL;
        _cleanup_free_ char *text = NULL;

        data = json_pack("{s:s, s:I, s:s, s:s, s:s}", "stage", stage, "attempt", (json_int_t) i->attempt,
                         "workflow", i->workflow, "workflow_digest", i->workflow_digest, "template_digest", i->template_digest);
        if (!data)
                return -ENOMEM;
        text = json_canonical(data);
        if (!text)
                return -ENOMEM;

        return ledger_outbox_add(l, "run.leased", run, i->id, NULL, text);
}

static int claim(Ledger *l, const LedgerItem *i, const char *run, const char *boot, uint64_t expires) {
        int64_t token;
        int r;

        r = db_run(l->db, "UPDATE fence SET token = token + 1", NULL);
        if (r < 0)
                return r;
        r = db_get_int(l->db, "SELECT token FROM fence", NULL, &token);
        if (r < 0)
                return r;

        r = insert_run(l, i, run, "work", token);
        if (r < 0)
                return r;

        r = db_run(l->db,
                   "UPDATE item SET state = 'leased', revision = revision + 1, leases = leases + 1, run = ?2, stage = 'work',"
                   " reason = NULL, actor = 'anchord', changed_usec = ?3 WHERE id = ?1",
                   DB_ARGS(DB_TEXT(i->id), DB_TEXT(run), DB_INT(time_realtime())));
        if (r < 0)
                return r;

        r = db_run(l->db, "INSERT INTO lease (item, run, boot, expires_usec, token) VALUES (?, ?, ?, ?, ?)",
                   DB_ARGS(DB_TEXT(i->id), DB_TEXT(run), DB_TEXT(boot), DB_INT(expires), DB_INT(token)));
        if (r < 0)
                return r;

        return queue_leased_event(l, i, run, "work");
}

static int find_claimable(Ledger *l, uint64_t now, LedgerItem *ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query_row(l->db, &s, LEDGER_ITEM_COLUMNS "WHERE i.state = 'queued' AND i.not_before_usec <= ? ORDER BY i.seq LIMIT 1",
                         DB_ARGS(DB_INT(now)));
        if (r == -ENOENT)
                return LEDGER_E_NO_WORK;
        if (r < 0)
                return r;

        return ledger_item_from_row(s, ret);
}

int ledger_peek_next(Ledger *l, uint64_t now, LedgerItem *ret) {
        return find_claimable(l, now, ret);
}

int ledger_claim_next(Ledger *l, const char *run, const char *boot, uint64_t expires, uint64_t now, LedgerItem *ret) {
        _cleanup_rollback_ DbGuard guard = {};
        _cleanup_item_ LedgerItem i = {}, leased = {};
        int64_t held;
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;

        r = db_get_int(l->db, "SELECT active OR EXISTS (SELECT 1 FROM drain WHERE boot = ?) OR EXISTS (SELECT 1 FROM site WHERE waits) FROM hold", DB_ARGS(DB_TEXT(boot)), &held);
        if (r < 0)
                return r;
        if (held)
                return LEDGER_E_HELD;

        r = find_claimable(l, now, &i);
        if (r != 0)
                return r;

        r = claim(l, &i, run, boot, expires);
        if (r < 0)
                return refused(r);

        r = ledger_item_read(l, i.id, &leased);
        if (r != 0)
                return r < 0 ? r : -EUCLEAN;

        r = db_commit(&guard);
        if (r < 0)
                return r;

        *ret = leased;
        leased = (LedgerItem) {};
        return 0;
}

int ledger_item_rebind(Ledger *l, LedgerItem *i, const char *template_digest) {
        _cleanup_free_ char *digest = strdup(template_digest), *text = NULL;
        _cleanup_rollback_ DbGuard guard = {};
        _cleanup_json_ json_t *data = NULL;
        int r;

        data = json_pack("{s:s, s:s, s:s}", "name", i->template_name, "digest", template_digest, "previous", i->template_digest);
        text = data ? json_canonical(data) : NULL;
        if (!digest || !text)
                return -ENOMEM;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;
        r = db_run(l->db, "UPDATE item SET template_digest = ?3, revision = revision + 1, changed_usec = ?4 WHERE id = ?1 AND revision = ?2",
                   DB_ARGS(DB_TEXT(i->id), DB_INT(i->revision), DB_TEXT(digest), DB_INT(time_realtime())));
        if (r == 0)
                return LEDGER_E_CONFLICT;
        if (r > 0)
                r = ledger_outbox_add(l, "item.template", i->run, i->id, NULL, text);
        if (r >= 0)
                r = db_commit(&guard);
        if (r < 0)
                return r;

        i->revision++;
        free(i->template_digest);
        i->template_digest = TAKE_PTR(digest);
        return 0;
}

int ledger_next_time(Ledger *l, uint64_t *ret_usec) {
        int64_t usec;
        int r;

        r = db_get_int(l->db, "SELECT not_before_usec FROM item WHERE state = 'queued' ORDER BY not_before_usec LIMIT 1", NULL, &usec);
        if (r == -ENOENT)
                return LEDGER_E_NO_WORK;
        if (r < 0)
                return r;

        *ret_usec = (uint64_t) usec;
        return 0;
}

int ledger_lease_extend(Ledger *l, const char *item, int64_t token, uint64_t expires) {
        int r;

        r = db_run(l->db, "UPDATE lease SET expires_usec = ?3 WHERE item = ?1 AND token = ?2",
                   DB_ARGS(DB_TEXT(item), DB_INT(token), DB_INT(expires)));
        if (r < 0)
                return r;

        return r == 0 ? LEDGER_E_STALE : 0;
}

int ledger_run_add(Ledger *l, const char *item, int64_t token, const char *run) {
        _cleanup_rollback_ DbGuard guard = {};
        _cleanup_item_ LedgerItem i = {};
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;

        r = ledger_item_read(l, item, &i);
        if (r != 0)
                return r;
        if (i.token != token)
                return LEDGER_E_STALE;

        r = insert_run(l, &i, run, "verify", token);
        if (r < 0)
                return r;

        r = db_run(l->db, "UPDATE lease SET run = ?2 WHERE item = ?1", DB_ARGS(DB_TEXT(item), DB_TEXT(run)));
        if (r < 0)
                return r;

        r = db_run(l->db, "UPDATE item SET run = ?2, stage = 'verify', revision = revision + 1, changed_usec = ?3 WHERE id = ?1",
                   DB_ARGS(DB_TEXT(item), DB_TEXT(run), DB_INT(time_realtime())));
        if (r < 0)
                return refused(r);

        r = queue_leased_event(l, &i, run, "verify");
        if (r < 0)
                return r;

        return db_commit(&guard);
}
