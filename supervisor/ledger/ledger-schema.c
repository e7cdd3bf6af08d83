/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The ledger's schema, version 2, with additions. `PRAGMA user_version` carries the version: it grows when an older anchord could no
 * longer use the file. What only adds (columns with defaults, tables, indexes) is a level, kept in `addition`, so that after
 * a rollback of the host the older anchord works on with the same file, and the newer one again after that.
 *
 * item        One work item and everything that it is bound to. `revision` grows by one with every
 *             change, and a change names the revision that it was decided on (compare-and-swap).
 *             Rows are never deleted; a row in an end state never changes again.
 * edge        Which state may follow which (DESIGN.md 6). Filled below and closed to every write.
 * history     One row for each change of state, written by a trigger, so that no writer can forget it.
 *             `revision` is the item's after the change. Never changed, never deleted.
 * run         One microVM's life for an item: stage `work`, or `verify` for the second, fresh one. Outcome, reason
 *             and facts are written once.
 * lease       Who works on the item: the run, the boot id, an expiry in CLOCK_BOOTTIME microseconds,
 *             and a fencing token that grows over the whole ledger. It exists exactly while the item is in `leased`,
 *             `running`, `waiting` or `verifying`; a change that carries an old token is refused.
 * usage       One model call. `call` makes a repeated report count once. `price` and `prices_version` say what its cost is by,
 *             `estimated` that a part of the numbers is worked out from bytes (level 1).
 * spent, budget, reservation, budget_said   What runs may use (level 2): ledger-budget.c.
 * unreserved  Calls of runs that go on which were given back (level 6): ledger-budget.c.
 * run.told    The number of the last call of its anchor-run that changed something here (level 4): the same call again changes nothing.
 * space       At most one row: was it low (level 5; ledger-space.c).
 * pruned      Which files of an item were taken off the disk to make room, when and why (level 5; ledger-space.c). Never deleted.
 * frozen      What the runs of a lease are made from (level 7): api/flow-plan.c. It ends with the lease, and does not change.
 * addition    The levels that this file has.
 * site        One row: which policy of the site's own was last seen, and whether it waits for an operator (level 3; ledger-site.c).
 * note        What happened to an item beside its states (an enforcer was lost, a retry of a boot); of some kinds, what was decided of a run (ledger.h, flow-internal.h).
 * hold        One row: are leases refused, by whom, why.
 * drain       At most one row: a boot that leases nothing more, and until when its runs may go on (ledger-drain.c).
 * effect      External writes, by idempotency key: what was asked, and whether it was seen done.
 * outbox      Audit events that auditd has not acknowledged yet. A trigger adds `item.submitted` and
 *             `item.transition` in the transaction that makes the change: after a crash either both are
 *             there or neither. `id` is part of each event's data ("key"), so that an event
 *             sent twice is recognised.
 *
 * Limits that the database itself keeps: the edges; revisions; identity columns; the attempts of an
 * item; that `approved` and `authorized` name the commit that is the result; history, runs' outcomes and
 * usage are append-only. What it cannot keep, time, is checked by ledger.c.
 *
 * The text below is executed once, in one transaction, when the file is new.
 */

#include <errno.h>

#include "ledger/ledger-private.h"

static const char schema_tables[] =
        "CREATE TABLE edge (from_state TEXT NOT NULL, to_state TEXT NOT NULL, PRIMARY KEY (from_state, to_state)) WITHOUT ROWID;"

        "CREATE TABLE item ("
        "  seq INTEGER PRIMARY KEY AUTOINCREMENT,"
        "  id TEXT NOT NULL UNIQUE CHECK (length(id) = 13),"
        "  state TEXT NOT NULL, revision INTEGER NOT NULL,"
        "  reason TEXT, actor TEXT NOT NULL,"
        "  source TEXT, requester TEXT NOT NULL,"
        "  workflow TEXT NOT NULL, workflow_digest TEXT NOT NULL,"
        "  repository TEXT, base TEXT, task TEXT, command TEXT CHECK (command IS NULL OR json_valid(command)),"
        "  options TEXT CHECK (options IS NULL OR json_valid(options)),"
        "  template TEXT NOT NULL, template_digest TEXT NOT NULL, policy_digest TEXT, agent TEXT,"
        "  stage TEXT NOT NULL DEFAULT 'work' CHECK (stage IN ('work', 'import', 'verify', 'done')),"
        "  attempt INTEGER NOT NULL DEFAULT 1, max_attempts INTEGER NOT NULL CHECK (max_attempts BETWEEN 1 AND 100),"
        "  leases INTEGER NOT NULL DEFAULT 0,"
        "  not_before_usec INTEGER NOT NULL DEFAULT 0,"
        "  result_commit TEXT, reviewed_commit TEXT,"
        "  evidence TEXT CHECK (evidence IS NULL OR json_valid(evidence)), evidence_digest TEXT,"
        "  approvals TEXT CHECK (approvals IS NULL OR json_valid(approvals)),"
        "  authorization TEXT CHECK (authorization IS NULL OR json_valid(authorization)),"
        "  run TEXT,"
        "  created_usec INTEGER NOT NULL, changed_usec INTEGER NOT NULL);"
        "CREATE INDEX item_state ON item (state, seq);"
        "CREATE INDEX item_source ON item (source) WHERE source IS NOT NULL;"

        "CREATE TABLE history ("
        "  id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT NOT NULL REFERENCES item (id),"
        "  revision INTEGER NOT NULL, from_state TEXT, to_state TEXT NOT NULL,"
        "  reason TEXT, actor TEXT NOT NULL, run TEXT, attempt INTEGER NOT NULL, time_usec INTEGER NOT NULL,"
        "  UNIQUE (item, revision));"

        "CREATE TABLE run ("
        "  id TEXT PRIMARY KEY CHECK (length(id) = 13), item TEXT NOT NULL REFERENCES item (id),"
        "  stage TEXT NOT NULL CHECK (stage IN ('work', 'verify')), attempt INTEGER NOT NULL, token INTEGER NOT NULL,"
        "  accel TEXT, egress_digest TEXT, egress_digests TEXT CHECK (egress_digests IS NULL OR json_valid(egress_digests)), boots INTEGER NOT NULL DEFAULT 0,"
        "  created_usec INTEGER NOT NULL, started_usec INTEGER, finished_usec INTEGER, released_usec INTEGER,"
        "  outcome TEXT CHECK (outcome IS NULL OR outcome IN ('ok', 'failed', 'error', 'stopped')),"
        "  reason TEXT, facts TEXT CHECK (facts IS NULL OR json_valid(facts))) WITHOUT ROWID;"
        "CREATE INDEX run_item ON run (item);"
        "CREATE INDEX run_live ON run (id) WHERE released_usec IS NULL;"

        "CREATE TABLE lease ("
        "  item TEXT PRIMARY KEY REFERENCES item (id), run TEXT NOT NULL REFERENCES run (id),"
        "  boot TEXT NOT NULL, expires_usec INTEGER NOT NULL, token INTEGER NOT NULL UNIQUE) WITHOUT ROWID;"
        "CREATE TABLE fence (id INTEGER PRIMARY KEY CHECK (id = 1), token INTEGER NOT NULL);"
        "INSERT INTO fence VALUES (1, 0);"

        "CREATE TABLE usage ("
        "  id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL REFERENCES run (id), item TEXT NOT NULL REFERENCES item (id),"
        "  call TEXT, provider TEXT NOT NULL, model TEXT NOT NULL,"
        "  input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cache_read_tokens INTEGER NOT NULL, cache_write_tokens INTEGER NOT NULL,"
        "  cost_microusd INTEGER NOT NULL, status INTEGER NOT NULL, latency_us INTEGER NOT NULL, time_usec INTEGER NOT NULL,"
        "  UNIQUE (run, call));"
        "CREATE INDEX usage_item ON usage (item);"

        "CREATE TABLE note ("
        "  id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT NOT NULL REFERENCES item (id), run TEXT,"
        "  kind TEXT NOT NULL, text TEXT NOT NULL, time_usec INTEGER NOT NULL);"
        "CREATE INDEX note_item ON note (item);"

        "CREATE TABLE hold (id INTEGER PRIMARY KEY CHECK (id = 1), active INTEGER NOT NULL CHECK (active IN (0, 1)),"
        "  actor TEXT NOT NULL, reason TEXT, time_usec INTEGER NOT NULL);"
        "INSERT INTO hold VALUES (1, 0, '', NULL, 0);"

        "CREATE TABLE effect (key TEXT PRIMARY KEY, item TEXT NOT NULL REFERENCES item (id), kind TEXT NOT NULL,"
        "  state TEXT NOT NULL CHECK (state IN ('asked', 'done')), asked_usec INTEGER NOT NULL, done_usec INTEGER) WITHOUT ROWID;"

        "CREATE TABLE outbox ("
        "  id INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL, run TEXT, item TEXT, actor TEXT,"
        "  data TEXT NOT NULL CHECK (json_valid(data)), time_usec INTEGER NOT NULL);";

/* DESIGN.md 6, row by row. */
static const char schema_edges[] =
        "INSERT INTO edge VALUES"
        " ('submitted','queued'),('submitted','duplicate'),('submitted','rejected'),('submitted','cancelled'),"
        " ('queued','leased'),('queued','failed'),('queued','cancelled'),"
        " ('leased','running'),('leased','queued'),('leased','failed'),('leased','cancelled'),"
        " ('running','verifying'),('running','waiting'),('running','failed'),('running','queued'),('running','cancelled'),"
        " ('waiting','running'),('waiting','queued'),('waiting','failed'),('waiting','cancelled'),"
        " ('verifying','in_review'),('verifying','running'),('verifying','waiting'),('verifying','queued'),"
        " ('verifying','failed'),('verifying','cancelled'),"
        " ('in_review','approved'),('in_review','queued'),('in_review','rejected'),('in_review','closed'),('in_review','cancelled'),"
        " ('approved','authorized'),('approved','in_review'),('approved','rejected'),('approved','cancelled'),"
        " ('authorized','publishing'),('authorized','in_review'),('authorized','cancelled'),"
        " ('publishing','published'),('publishing','publish_failed'),('publishing','in_review'),"
        " ('publish_failed','authorized'),('publish_failed','cancelled'),"
        " ('published','merged'),('published','closed'),('published','queued'),"
        " ('failed','queued'),('failed','exhausted');";

#define END_STATES "('duplicate','rejected','cancelled','exhausted','merged','closed')"
#define WORKED_ON "('leased','running','waiting','verifying')"

#define NEVER(name, operation, table, text)                                                     \
        "CREATE TRIGGER " name " BEFORE " operation " ON " table                                \
        " BEGIN SELECT RAISE(ABORT, '" text "'); END;"

static const char schema_triggers[] =
        NEVER("edge_insert", "INSERT", "edge", "the transition table is fixed")
        NEVER("edge_update", "UPDATE", "edge", "the transition table is fixed")
        NEVER("edge_delete", "DELETE", "edge", "the transition table is fixed")
        NEVER("item_delete", "DELETE", "item", "items are never deleted")
        NEVER("history_update", "UPDATE", "history", "history is never changed")
        NEVER("history_delete", "DELETE", "history", "history is never deleted")
        NEVER("run_delete", "DELETE", "run", "runs are never deleted")
        NEVER("usage_update", "UPDATE", "usage", "usage is never changed")
        NEVER("usage_delete", "DELETE", "usage", "usage is never deleted")
        NEVER("outbox_update", "UPDATE", "outbox", "audit events are never changed")

        "CREATE TRIGGER item_insert BEFORE INSERT ON item WHEN NEW.state <> 'submitted' OR NEW.revision <> 1 OR NEW.attempt <> 1"
        "  OR NEW.leases <> 0 OR NEW.result_commit IS NOT NULL OR NEW.approvals IS NOT NULL OR NEW.authorization IS NOT NULL"
        " BEGIN SELECT RAISE(ABORT, 'an item starts as submitted, at revision 1, with nothing decided'); END;"

        "CREATE TRIGGER item_end BEFORE UPDATE ON item WHEN OLD.state IN " END_STATES
        " BEGIN SELECT RAISE(ABORT, 'an end state never changes'); END;"

        "CREATE TRIGGER item_edge BEFORE UPDATE ON item WHEN NEW.state <> OLD.state"
        "  AND NOT EXISTS (SELECT 1 FROM edge WHERE from_state = OLD.state AND to_state = NEW.state)"
        " BEGIN SELECT RAISE(ABORT, 'no such transition'); END;"

        "CREATE TRIGGER item_revision BEFORE UPDATE ON item WHEN NEW.revision <> OLD.revision + 1"
        " BEGIN SELECT RAISE(ABORT, 'a change takes the next revision'); END;"

        "CREATE TRIGGER item_identity BEFORE UPDATE ON item WHEN NEW.seq <> OLD.seq OR NEW.id <> OLD.id"
        "  OR NEW.source IS NOT OLD.source OR NEW.requester <> OLD.requester OR NEW.workflow <> OLD.workflow"
        "  OR NEW.repository IS NOT OLD.repository OR NEW.base IS NOT OLD.base OR NEW.task IS NOT OLD.task"
        "  OR NEW.command IS NOT OLD.command OR NEW.options IS NOT OLD.options OR NEW.created_usec <> OLD.created_usec"
        " BEGIN SELECT RAISE(ABORT, 'what an item is never changes'); END;"

        "CREATE TRIGGER item_attempt BEFORE UPDATE ON item WHEN NEW.attempt <> OLD.attempt AND NOT"
        "  (NEW.attempt = OLD.attempt + 1 AND NEW.state = 'queued' AND OLD.state IN ('failed','in_review','published'))"
        " BEGIN SELECT RAISE(ABORT, 'an attempt starts when an item is queued again'); END;"

        "CREATE TRIGGER item_attempts BEFORE UPDATE ON item WHEN OLD.state = 'failed' AND NEW.state = 'queued'"
        "  AND (NEW.attempt <> OLD.attempt + 1 OR NEW.attempt > OLD.max_attempts OR NEW.max_attempts <> OLD.max_attempts)"
        " BEGIN SELECT RAISE(ABORT, 'no attempts are left'); END;"

        "CREATE TRIGGER item_leased BEFORE UPDATE ON item WHEN NEW.state = 'leased' AND OLD.state <> 'leased'"
        "  AND (NEW.leases <> OLD.leases + 1 OR (SELECT active FROM hold) <> 0)"
        " BEGIN SELECT RAISE(ABORT, 'leases are counted, and refused on hold'); END;"

        "CREATE TRIGGER item_approved BEFORE UPDATE ON item WHEN NEW.state IN ('approved','authorized','publishing')"
        "  AND (NEW.result_commit IS NULL OR NEW.reviewed_commit IS NOT NEW.result_commit OR NEW.approvals IS NULL)"
        " BEGIN SELECT RAISE(ABORT, 'approval is for the commit that was reviewed'); END;"

        "CREATE TRIGGER item_authorized BEFORE UPDATE ON item WHEN NEW.state IN ('authorized','publishing') AND NEW.authorization IS NULL"
        " BEGIN SELECT RAISE(ABORT, 'publishing needs an authorization'); END;"

        /* A new result voids every verdict on the old one. */
        "CREATE TRIGGER item_result BEFORE UPDATE ON item WHEN NEW.result_commit IS NOT OLD.result_commit"
        "  AND (NEW.approvals IS NOT NULL OR NEW.authorization IS NOT NULL OR NEW.reviewed_commit IS NOT NULL)"
        " BEGIN SELECT RAISE(ABORT, 'a verdict on another commit does not count'); END;"

        "CREATE TRIGGER item_history AFTER UPDATE ON item WHEN NEW.state <> OLD.state"
        " BEGIN"
        "  INSERT INTO history (item, revision, from_state, to_state, reason, actor, run, attempt, time_usec)"
        "   VALUES (NEW.id, NEW.revision, OLD.state, NEW.state, NEW.reason, NEW.actor, NEW.run, NEW.attempt, NEW.changed_usec);"
        "  INSERT INTO outbox (event, run, item, actor, data, time_usec)"
        "   VALUES ('item.transition', NEW.run, NEW.id, NEW.actor,"
        "    json_object('from', OLD.state, 'to', NEW.state, 'revision', NEW.revision, 'attempt', NEW.attempt, 'reason', NEW.reason),"
        "    NEW.changed_usec);"
        " END;"
        "CREATE TRIGGER item_first AFTER INSERT ON item"
        " BEGIN"
        "  INSERT INTO history (item, revision, from_state, to_state, reason, actor, run, attempt, time_usec)"
        "   VALUES (NEW.id, 1, NULL, 'submitted', NEW.reason, NEW.actor, NULL, 1, NEW.created_usec);"
        "  INSERT INTO outbox (event, run, item, actor, data, time_usec)"
        "   VALUES ('item.submitted', NULL, NEW.id, NEW.actor,"
        "    json_object('workflow', NEW.workflow, 'workflow_digest', NEW.workflow_digest, 'requester', NEW.requester,"
        "     'source', NEW.source, 'repository', NEW.repository, 'base', NEW.base, 'template_digest', NEW.template_digest),"
        "    NEW.created_usec);"
        " END;"

        /* The lease lives exactly as long as somebody works on the item. */
        "CREATE TRIGGER item_lease AFTER UPDATE ON item WHEN NEW.state NOT IN " WORKED_ON
        " BEGIN DELETE FROM lease WHERE item = NEW.id; END;"
        "CREATE TRIGGER lease_insert BEFORE INSERT ON lease WHEN NEW.token <> (SELECT token FROM fence)"
        "  OR (SELECT state FROM item WHERE id = NEW.item) IS NOT 'leased'"
        " BEGIN SELECT RAISE(ABORT, 'a lease takes the newest token'); END;"
        "CREATE TRIGGER lease_update BEFORE UPDATE ON lease WHEN NEW.item <> OLD.item OR NEW.token <> OLD.token OR NEW.boot <> OLD.boot"
        " BEGIN SELECT RAISE(ABORT, 'a lease is only extended or handed to the next run'); END;"
        "CREATE TRIGGER lease_delete BEFORE DELETE ON lease WHEN (SELECT state FROM item WHERE id = OLD.item) IN " WORKED_ON
        " BEGIN SELECT RAISE(ABORT, 'a lease ends with its state'); END;"
        "CREATE TRIGGER fence_update BEFORE UPDATE ON fence WHEN NEW.token <> OLD.token + 1"
        " BEGIN SELECT RAISE(ABORT, 'tokens grow by one'); END;"
        NEVER("fence_delete", "DELETE", "fence", "tokens are never forgotten")

        "CREATE TRIGGER run_outcome BEFORE UPDATE ON run WHEN NEW.id <> OLD.id OR NEW.item <> OLD.item OR NEW.stage <> OLD.stage"
        "  OR NEW.token <> OLD.token OR (OLD.outcome IS NOT NULL AND (NEW.outcome IS NOT OLD.outcome OR NEW.reason IS NOT OLD.reason))"
        " BEGIN SELECT RAISE(ABORT, 'an outcome is written once'); END;";

/* Not in every file of version 2: made when it is missing. */
static const char schema_drain[] =
        "CREATE TABLE IF NOT EXISTS drain (id INTEGER PRIMARY KEY CHECK (id = 1), boot TEXT NOT NULL, until_usec INTEGER NOT NULL,"
        "  actor TEXT NOT NULL, reason TEXT, time_usec INTEGER NOT NULL)";

#define SUM_OF_TOKENS "sum(input_tokens + output_tokens + cache_read_tokens + cache_write_tokens)"

/* Each is executed once, in the order of the list, in the transaction that opens the file. What an older anchord writes must stay right
 * under it: new columns have defaults. */
static const char *const schema_additions[] = {
        /* 1: what a cost is by; and sums over time */
        "ALTER TABLE usage ADD COLUMN price TEXT;"
        "ALTER TABLE usage ADD COLUMN prices_version TEXT;"
        "ALTER TABLE usage ADD COLUMN estimated INTEGER NOT NULL DEFAULT 0;"
        "CREATE INDEX usage_time ON usage (time_usec);",

        /* 2: budgets; see the head of ledger-budget.c */
        "CREATE TABLE spent (scope TEXT NOT NULL, name TEXT NOT NULL, requests INTEGER NOT NULL, tokens INTEGER NOT NULL, cost INTEGER NOT NULL,"
        "  PRIMARY KEY (scope, name)) WITHOUT ROWID;"
        "CREATE TABLE budget (run TEXT PRIMARY KEY REFERENCES run (id), item TEXT NOT NULL REFERENCES item (id), workflow TEXT NOT NULL, life TEXT NOT NULL,"
        "  requests INTEGER NOT NULL DEFAULT 0, tokens INTEGER NOT NULL DEFAULT 0, cost INTEGER NOT NULL DEFAULT 0,"
        "  doubt INTEGER NOT NULL DEFAULT 0, closed INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;"
        "CREATE INDEX budget_open ON budget (run) WHERE closed = 0;"
        "CREATE TABLE reservation (run TEXT NOT NULL REFERENCES budget (run), call TEXT NOT NULL, provider TEXT NOT NULL, model TEXT NOT NULL,"
        "  price TEXT, prices_version TEXT, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cost INTEGER NOT NULL,"
        "  PRIMARY KEY (run, call)) WITHOUT ROWID;"
        "CREATE TABLE budget_said (key TEXT PRIMARY KEY, time_usec INTEGER NOT NULL) WITHOUT ROWID;"
        "INSERT INTO spent SELECT 'run', run, count(*), " SUM_OF_TOKENS ", sum(cost_microusd) FROM usage GROUP BY run;"
        "INSERT INTO spent SELECT 'item', item, count(*), " SUM_OF_TOKENS ", sum(cost_microusd) FROM usage GROUP BY item;"
        "INSERT INTO spent SELECT 'host', strftime('%Y-%m', time_usec / 1000000, 'unixepoch') AS month, count(*), " SUM_OF_TOKENS ", sum(cost_microusd)"
        "  FROM usage GROUP BY month;"
        "INSERT INTO spent SELECT 'workflow', i.workflow || ' ' || strftime('%Y-%m', u.time_usec / 1000000, 'unixepoch') AS name, count(*), " SUM_OF_TOKENS ","
        "  sum(cost_microusd) FROM usage u JOIN item i ON i.id = u.item GROUP BY name;"
        "CREATE TRIGGER usage_spent AFTER INSERT ON usage BEGIN"
        "  INSERT INTO spent"
        "   SELECT n.scope, n.name, 1, NEW.input_tokens + NEW.output_tokens + NEW.cache_read_tokens + NEW.cache_write_tokens, NEW.cost_microusd"
        "   FROM (SELECT 'run' AS scope, NEW.run AS name UNION ALL SELECT 'item', NEW.item"
        "    UNION ALL SELECT 'host', strftime('%Y-%m', NEW.time_usec / 1000000, 'unixepoch')"
        "    UNION ALL SELECT 'workflow', (SELECT workflow FROM item WHERE id = NEW.item) || ' ' || strftime('%Y-%m', NEW.time_usec / 1000000, 'unixepoch')) n"
        "   WHERE true ON CONFLICT (scope, name) DO UPDATE SET requests = requests + 1, tokens = tokens + excluded.tokens, cost = cost + excluded.cost;"
        "  DELETE FROM reservation WHERE run = NEW.run AND call = NEW.call;"
        " END;",
        /* 3: the site's policy, and under which deployment */
        ("CREATE TABLE site (id INTEGER PRIMARY KEY CHECK (id = 1), deployment TEXT NOT NULL, digest TEXT NOT NULL, previous TEXT NOT NULL,"
         "  waits INTEGER NOT NULL, time_usec INTEGER NOT NULL);"),

        /* 4: calls of a run that are repeated count once */
        "ALTER TABLE run ADD COLUMN told INTEGER NOT NULL DEFAULT 0;",

        /* 5: space; what was taken off the disk */
        "CREATE TABLE space (id INTEGER PRIMARY KEY CHECK (id = 1), low INTEGER NOT NULL CHECK (low IN (0, 1)), time_usec INTEGER NOT NULL);"
        "CREATE TABLE pruned (item TEXT NOT NULL REFERENCES item (id), part TEXT NOT NULL CHECK (part IN ('bundles', 'logs')), bytes INTEGER NOT NULL,"
        "  why TEXT NOT NULL, actor TEXT NOT NULL, time_usec INTEGER NOT NULL, done INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (item, part)) WITHOUT ROWID;"
        "CREATE INDEX pruned_open ON pruned (item) WHERE done = 0;"
        "CREATE TRIGGER pruned_insert BEFORE INSERT ON pruned WHEN (SELECT state FROM item WHERE id = NEW.item) NOT IN " END_STATES
        "  BEGIN SELECT RAISE(ABORT, 'only what has ended is pruned'); END;"
        "CREATE TRIGGER pruned_update BEFORE UPDATE ON pruned WHEN NEW.item <> OLD.item OR NEW.part <> OLD.part OR NEW.bytes <> OLD.bytes OR NEW.why <> OLD.why"
        "  OR NEW.actor <> OLD.actor OR NEW.time_usec <> OLD.time_usec BEGIN SELECT RAISE(ABORT, 'what was pruned stays so'); END;"
        NEVER("pruned_delete", "DELETE", "pruned", "what was pruned stays so"),

        /* 6: what was given back is not reserved by a call that comes late */
        "CREATE TABLE unreserved (run TEXT NOT NULL, call TEXT NOT NULL, PRIMARY KEY (run, call)) WITHOUT ROWID;",

        /* 7: what the runs of a lease are made from */
        "CREATE TABLE frozen (token INTEGER PRIMARY KEY, plan TEXT NOT NULL CHECK (json_valid(plan)));"
        NEVER("frozen_update", "UPDATE", "frozen", "what is frozen stays so")
        "CREATE TRIGGER frozen_end AFTER DELETE ON lease BEGIN DELETE FROM frozen WHERE token = OLD.token; END;",
};

static int apply_additions(Db *db) {
        int64_t level;
        int r;

        r = db_exec(db, "CREATE TABLE IF NOT EXISTS addition (level INTEGER PRIMARY KEY, time_usec INTEGER NOT NULL)");
        if (r < 0)
                return r;
        r = db_get_int(db, "SELECT coalesce(max(level), 0) FROM addition", NULL, &level);
        if (r < 0)
                return r;

        for (; level < (int64_t) ELEMENTSOF(schema_additions); level++) {
                r = db_exec(db, schema_additions[level]);
                if (r < 0)
                        return r;
                r = db_run(db, "INSERT INTO addition (level, time_usec) VALUES (?, ?)", DB_ARGS(DB_INT(level + 1), DB_INT(time_realtime())));
                if (r < 0)
                        return r;
        }
        return 0;
}

static int apply_version(Db *db) {
        int64_t version;
        int r;

        r = db_get_int(db, "PRAGMA user_version", NULL, &version);
        if (r < 0)
                return r;
        if (version == LEDGER_SCHEMA_VERSION)
                return 0;
        if (version == 1)
                /* a run's policies, one after the other */
                return db_exec(db, "ALTER TABLE run ADD COLUMN egress_digests TEXT CHECK (egress_digests IS NULL OR json_valid(egress_digests));"
                                   "PRAGMA user_version = 2");
        if (version != 0)
                return -EPROTO;

        r = db_exec(db, schema_tables);
        if (r < 0)
                return r;
        r = db_exec(db, schema_edges);
        if (r < 0)
                return r;
        r = db_exec(db, schema_triggers);
        if (r < 0)
                return r;
        return db_exec(db, "PRAGMA user_version = 2");
}

int ledger_schema_apply(Db *db) {
        _cleanup_rollback_ DbGuard guard = {};
        int r;

        r = db_begin(db, &guard);
        if (r < 0)
                return r;
        r = apply_version(db);
        if (r < 0)
                return r;
        r = db_exec(db, schema_drain);
        if (r < 0)
                return r;
        r = apply_additions(db);
        if (r < 0)
                return r;
        return db_commit(&guard);
}
