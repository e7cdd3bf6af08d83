/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The outbox.
 *
 *     head(id = 1, seq, hash, kept_seq, kept_hash, touched)   where the chain is
 *     outbox(seq primary key, record)                         what the journal is not yet known to keep
 *     told(identity primary key, source, seq, hash)           what may be sent once more, by who lost our answer: the newest of each source
 *                                                             (units of runs come and go: also no more than so many of all of them)
 *     spent(source primary key, bytes, seq)                   how much each unit of a run has written so far, and the number of its last record
 *
 * Invariant, between transactions: outbox holds exactly the records kept_seq + 1 … seq, each in the text form of
 * audit-record.c, and each follows from the one before. WAL with synchronous=FULL: a commit that returned is on
 * disk, and one that did not is not there after a crash. A record is acknowledged after its commit; it leaves with
 * the transaction that writes kept_seq, which is after it was read back from the journal and that file fsynced. So at
 * every instruction each acknowledged record is durable in at least one of the two places.
 *
 * A row of `told` is written by the transaction that writes its record: a record that is there is recognised, and one that is recognised is there.
 *
 * One writer (auditd, locking_mode=EXCLUSIVE). No SQLite code leaves this file; sqlite_errno() converts.
 */
#include "audit/audit-outbox.h"

#include <assert.h>
#include <errno.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/stat.h>

#include "util/log.h"

enum {
        SCHEMA_VERSION = 1,
        PRUNE_EVERY = 256, /* what is too old is kept for so many more */
};

/* The second is what they were called together by an older auditd. In the same words in the index and in the statement, so that SQLite sees that the one is for the
 * other: no commit waits for a walk through all that was told. */
#define TOLD_BY_UNITS "(source GLOB 'anchor-*@*' OR source GLOB '* of runs')"

struct AuditOutbox {
        sqlite3 *db;
        sqlite3_stmt *insert, *drop, *update, *touch, *find_told, *tell, *prune, *prune_units, *spend, *spent, *prune_spent;
        unsigned n_told, n_units_told, n_spent; /* since they were pruned */
        AuditHead head, kept;           /* as committed */
        AuditHead next_head, next_kept; /* as they will be after the commit */
        bool changed;
};

static int sqlite_errno(sqlite3 *db, int code, const char *what) {
        switch (code & 0xff) {
        case SQLITE_OK:
        case SQLITE_ROW:
        case SQLITE_DONE:
                return 0;
        case SQLITE_NOMEM:
                return -ENOMEM;
        case SQLITE_FULL:
                return -ENOSPC;
        case SQLITE_BUSY:
        case SQLITE_LOCKED:
                return -EBUSY;
        case SQLITE_READONLY:
                return -EROFS;
        case SQLITE_CANTOPEN:
                return -ENOENT;
        case SQLITE_CORRUPT:
        case SQLITE_NOTADB:
                return -EBADMSG;
        default:
                log_debug("Outbox: %s: %s", what, db ? sqlite3_errmsg(db) : sqlite3_errstr(code));
                return -EIO;
        }
}

static int outbox_exec(AuditOutbox *o, const char *sql) {
        return sqlite_errno(o->db, sqlite3_exec(o->db, sql, NULL, NULL, NULL), sql);
}

static int outbox_step(AuditOutbox *o, sqlite3_stmt *statement) {
        int code = sqlite3_step(statement), r;

        r = sqlite_errno(o->db, code, sqlite3_sql(statement));
        (void) sqlite3_reset(statement);
        return r;
}

static int outbox_prepare(AuditOutbox *o, const char *sql, sqlite3_stmt **ret) {
        return sqlite_errno(o->db, sqlite3_prepare_v3(o->db, sql, -1, SQLITE_PREPARE_PERSISTENT, ret, NULL), sql);
}

static bool column_hash(sqlite3_stmt *s, int column, uint8_t ret[static AUDIT_HASH_SIZE]) {
        if (sqlite3_column_type(s, column) != SQLITE_BLOB || sqlite3_column_bytes(s, column) != AUDIT_HASH_SIZE)
                return false;

        memcpy(ret, sqlite3_column_blob(s, column), AUDIT_HASH_SIZE);
        return true;
}

static int outbox_read_head(AuditOutbox *o) {
        sqlite3_stmt *s = NULL;
        int r;

        r = outbox_prepare(o, "SELECT seq, hash, kept_seq, kept_hash FROM head WHERE id = 1", &s);
        if (r < 0)
                return r;

        r = sqlite3_step(s) == SQLITE_ROW ? 0 : -EBADMSG;
        if (r >= 0) {
                o->head.seq = (uint64_t) sqlite3_column_int64(s, 0);
                o->kept.seq = (uint64_t) sqlite3_column_int64(s, 2);
                if (!column_hash(s, 1, o->head.hash) || !column_hash(s, 3, o->kept.hash) || o->kept.seq > o->head.seq)
                        r = -EBADMSG;
        }
        (void) sqlite3_finalize(s);
        return r;
}

/* A file that only a newer auditd can use is left as it is: this host went back to an older image. What a newer one merely adds (tables, columns with
 * defaults) needs no other version. */
static int outbox_check_version(AuditOutbox *o) {
        sqlite3_stmt *s = NULL;
        int r, version = 0;

        r = outbox_prepare(o, "PRAGMA user_version", &s);
        if (r < 0)
                return r;
        if (sqlite3_step(s) == SQLITE_ROW)
                version = sqlite3_column_int(s, 0);
        (void) sqlite3_finalize(s);
        if (version <= SCHEMA_VERSION)
                return 0;
        return log_error_errno(-EPROTO, "the audit log's outbox is of version %d, this auditd knows version %d: it was written by a newer image",
                               version, SCHEMA_VERSION);
}

static int outbox_setup(AuditOutbox *o) {
        static const char *const steps[] = {
                "PRAGMA locking_mode = EXCLUSIVE",
                "PRAGMA journal_mode = WAL",
                "PRAGMA synchronous = FULL",
                "PRAGMA trusted_schema = OFF",
                "BEGIN IMMEDIATE",
                ("CREATE TABLE IF NOT EXISTS head (id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL, hash BLOB NOT NULL,"
                 " kept_seq INTEGER NOT NULL, kept_hash BLOB NOT NULL, touched INTEGER NOT NULL) STRICT"),
                "CREATE TABLE IF NOT EXISTS outbox (seq INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT",
                "CREATE TABLE IF NOT EXISTS told (identity TEXT PRIMARY KEY, source TEXT NOT NULL, seq INTEGER NOT NULL, hash BLOB NOT NULL) STRICT",
                "CREATE INDEX IF NOT EXISTS told_by_source ON told (source, seq)",
                "CREATE INDEX IF NOT EXISTS told_by_units ON told (seq, source) WHERE " TOLD_BY_UNITS,
                "CREATE TABLE IF NOT EXISTS spent (source TEXT PRIMARY KEY, bytes INTEGER NOT NULL, seq INTEGER NOT NULL) STRICT",
                "INSERT OR IGNORE INTO head (id, seq, hash, kept_seq, kept_hash, touched) VALUES (1, 0, zeroblob(32), 0, zeroblob(32), 0)",
                "PRAGMA user_version = 1",
                "COMMIT",
        };
        static_assert(SCHEMA_VERSION == 1, "the statements above make version 1");
        int r;

        r = outbox_check_version(o);
        if (r < 0)
                return r;
        for (size_t i = 0; i < ELEMENTSOF(steps); i++) {
                r = outbox_exec(o, steps[i]);
                if (r < 0)
                        return r;
        }

        r = outbox_prepare(o, "INSERT INTO outbox (seq, record) VALUES (?1, ?2)", &o->insert);
        if (r >= 0)
                r = outbox_prepare(o, "DELETE FROM outbox WHERE seq <= ?1", &o->drop);
        if (r >= 0)
                r = outbox_prepare(o, "UPDATE head SET seq = ?1, hash = ?2, kept_seq = ?3, kept_hash = ?4 WHERE id = 1", &o->update);
        if (r >= 0)
                r = outbox_prepare(o, "UPDATE head SET touched = touched + 1 WHERE id = 1", &o->touch);
        if (r >= 0)
                r = outbox_prepare(o, "SELECT seq, hash FROM told WHERE identity = ?1", &o->find_told);
        if (r >= 0)
                r = outbox_prepare(o, "INSERT INTO told (identity, source, seq, hash) VALUES (?1, ?2, ?3, ?4)", &o->tell);
        if (r >= 0)
                r = outbox_prepare(o, "DELETE FROM told WHERE source = ?1 AND seq <="
                                      " (SELECT seq FROM told WHERE source = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)", &o->prune);
        if (r >= 0)
                r = outbox_prepare(o, "DELETE FROM told WHERE " TOLD_BY_UNITS " AND seq <="
                                      " (SELECT seq FROM told WHERE " TOLD_BY_UNITS " ORDER BY seq DESC LIMIT 1 OFFSET ?1)", &o->prune_units);
        if (r >= 0)
                r = outbox_prepare(o, "INSERT INTO spent (source, bytes, seq) VALUES (?1, ?2, ?3)"
                                      " ON CONFLICT (source) DO UPDATE SET bytes = bytes + excluded.bytes, seq = excluded.seq", &o->spend);
        if (r >= 0)
                r = outbox_prepare(o, "SELECT bytes FROM spent WHERE source = ?1", &o->spent);
        if (r >= 0)
                r = outbox_prepare(o, "DELETE FROM spent WHERE seq <= (SELECT seq FROM spent ORDER BY seq DESC LIMIT 1 OFFSET ?1)", &o->prune_spent);
        if (r >= 0)
                r = outbox_read_head(o);
        return r;
}

int audit_outbox_open(AuditOutbox **ret, const char *path) {
        _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;
        mode_t mask;
        int r;

        o = calloc(1, sizeof(*o));
        if (!o)
                return -ENOMEM;

        mask = umask(0077);
        r = sqlite_errno(NULL, sqlite3_open_v2(path, &o->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL), "open");
        if (r >= 0)
                r = outbox_setup(o);
        (void) umask(mask);
        if (r < 0)
                return r;

        o->next_head = o->head;
        o->next_kept = o->kept;
        *ret = TAKE_PTR(o);
        return 0;
}

AuditOutbox *audit_outbox_free(AuditOutbox *o) {
        if (!o)
                return NULL;

        (void) sqlite3_finalize(o->insert);
        (void) sqlite3_finalize(o->drop);
        (void) sqlite3_finalize(o->update);
        (void) sqlite3_finalize(o->touch);
        (void) sqlite3_finalize(o->find_told);
        (void) sqlite3_finalize(o->tell);
        (void) sqlite3_finalize(o->prune);
        (void) sqlite3_finalize(o->prune_units);
        (void) sqlite3_finalize(o->spend);
        (void) sqlite3_finalize(o->spent);
        (void) sqlite3_finalize(o->prune_spent);
        (void) sqlite3_close(o->db);
        free(o);
        return NULL;
}

const AuditHead *audit_outbox_head(const AuditOutbox *o) {
        return &o->head;
}

const AuditHead *audit_outbox_kept(const AuditOutbox *o) {
        return &o->kept;
}

int audit_outbox_begin(AuditOutbox *o) {
        o->next_head = o->head;
        o->next_kept = o->kept;
        o->changed = false;
        return outbox_exec(o, "BEGIN IMMEDIATE");
}

int audit_outbox_append(AuditOutbox *o, AuditRecord *record) {
        _cleanup_free_ char *text = NULL;
        size_t size;
        int r;

        r = audit_record_seal(record, o->next_head.seq + 1, o->next_head.hash);
        if (r < 0)
                return r;
        r = audit_record_text(record, &text, &size);
        if (r < 0)
                return r;

        (void) sqlite3_bind_int64(o->insert, 1, (sqlite3_int64) record->seq);
        (void) sqlite3_bind_text(o->insert, 2, text, (int) size, SQLITE_STATIC);
        r = outbox_step(o, o->insert);
        (void) sqlite3_clear_bindings(o->insert);
        if (r < 0)
                return r;

        o->next_head.seq = record->seq;
        memcpy(o->next_head.hash, record->hash, AUDIT_HASH_SIZE);
        o->changed = true;
        return 0;
}

int audit_outbox_find_told(AuditOutbox *o, const char *identity, AuditHead *ret) {
        int r, code;

        (void) sqlite3_bind_text(o->find_told, 1, identity, -1, SQLITE_STATIC);
        code = sqlite3_step(o->find_told);
        r = sqlite_errno(o->db, code, "look for what was told");
        if (r >= 0 && code == SQLITE_ROW) {
                ret->seq = (uint64_t) sqlite3_column_int64(o->find_told, 0);
                r = column_hash(o->find_told, 1, ret->hash) ? 1 : -EBADMSG;
        }
        (void) sqlite3_reset(o->find_told);
        (void) sqlite3_clear_bindings(o->find_told);
        return r;
}

static int outbox_prune_told(AuditOutbox *o, const char *source, int max) {
        int r;

        (void) sqlite3_bind_text(o->prune, 1, source, -1, SQLITE_STATIC);
        (void) sqlite3_bind_int64(o->prune, 2, max);
        r = outbox_step(o, o->prune);
        (void) sqlite3_clear_bindings(o->prune);
        return r;
}

int audit_outbox_tell(AuditOutbox *o, const char *identity, const char *source, bool unit_of_run) {
        int r;

        (void) sqlite3_bind_text(o->tell, 1, identity, -1, SQLITE_STATIC);
        (void) sqlite3_bind_text(o->tell, 2, source, -1, SQLITE_STATIC);
        (void) sqlite3_bind_int64(o->tell, 3, (sqlite3_int64) o->next_head.seq);
        (void) sqlite3_bind_blob(o->tell, 4, o->next_head.hash, AUDIT_HASH_SIZE, SQLITE_STATIC);
        r = outbox_step(o, o->tell);
        (void) sqlite3_clear_bindings(o->tell);
        if (r < 0)
                return r;
        if (!unit_of_run)
                return ++o->n_told % PRUNE_EVERY == 0 ? outbox_prune_told(o, source, AUDIT_OUTBOX_TOLD_MAX) : 0;

        /* each time: that somebody else's turn comes every so often is nothing to rely on */
        r = outbox_prune_told(o, source, AUDIT_OUTBOX_TOLD_UNIT_MAX);
        if (r < 0 || ++o->n_units_told % PRUNE_EVERY != 0)
                return r;
        (void) sqlite3_bind_int64(o->prune_units, 1, AUDIT_OUTBOX_TOLD_UNITS_MAX);
        return outbox_step(o, o->prune_units);
}

int audit_outbox_spent(AuditOutbox *o, const char *source, uint64_t *ret) {
        int r, code;

        (void) sqlite3_bind_text(o->spent, 1, source, -1, SQLITE_STATIC);
        code = sqlite3_step(o->spent);
        r = sqlite_errno(o->db, code, "look for what was spent");
        if (r >= 0)
                *ret = code == SQLITE_ROW ? (uint64_t) sqlite3_column_int64(o->spent, 0) : 0;
        (void) sqlite3_reset(o->spent);
        (void) sqlite3_clear_bindings(o->spent);
        return r;
}

int audit_outbox_spend(AuditOutbox *o, const char *source, uint64_t bytes) {
        int r;

        (void) sqlite3_bind_text(o->spend, 1, source, -1, SQLITE_STATIC);
        (void) sqlite3_bind_int64(o->spend, 2, (sqlite3_int64) bytes);
        (void) sqlite3_bind_int64(o->spend, 3, (sqlite3_int64) o->next_head.seq);
        r = outbox_step(o, o->spend);
        (void) sqlite3_clear_bindings(o->spend);
        if (r < 0 || ++o->n_spent % PRUNE_EVERY != 0)
                return r;

        (void) sqlite3_bind_int64(o->prune_spent, 1, AUDIT_OUTBOX_SPENT_MAX);
        return outbox_step(o, o->prune_spent);
}

int audit_outbox_drop(AuditOutbox *o, const AuditHead *kept) {
        int r;

        assert(kept->seq >= o->next_kept.seq && kept->seq <= o->next_head.seq);

        (void) sqlite3_bind_int64(o->drop, 1, (sqlite3_int64) kept->seq);
        r = outbox_step(o, o->drop);
        if (r < 0)
                return r;

        o->next_kept = *kept;
        o->changed = true;
        return 0;
}

int audit_outbox_adopt(AuditOutbox *o, const AuditHead *head) {
        assert(head->seq > o->next_head.seq);

        o->next_head = *head;
        o->changed = true;
        return audit_outbox_drop(o, head);
}

int audit_outbox_touch(AuditOutbox *o) {
        return outbox_step(o, o->touch);
}

int audit_outbox_commit(AuditOutbox *o) {
        int r = 0;

        if (o->changed) {
                (void) sqlite3_bind_int64(o->update, 1, (sqlite3_int64) o->next_head.seq);
                (void) sqlite3_bind_blob(o->update, 2, o->next_head.hash, AUDIT_HASH_SIZE, SQLITE_STATIC);
                (void) sqlite3_bind_int64(o->update, 3, (sqlite3_int64) o->next_kept.seq);
                (void) sqlite3_bind_blob(o->update, 4, o->next_kept.hash, AUDIT_HASH_SIZE, SQLITE_STATIC);
                r = outbox_step(o, o->update);
        }
        if (r >= 0)
                r = outbox_exec(o, "COMMIT");
        if (r < 0) {
                audit_outbox_rollback(o);
                return r;
        }

        o->head = o->next_head;
        o->kept = o->next_kept;
        return 0;
}

void audit_outbox_rollback(AuditOutbox *o) {
        /* SQLite may have rolled back by itself */
        if (!sqlite3_get_autocommit(o->db))
                (void) outbox_exec(o, "ROLLBACK");
        o->next_head = o->head;
        o->next_kept = o->kept;
}

/* One row: is it the record that must follow `last`? */
static int outbox_row(sqlite3_stmt *s, AuditHead *last, int (*handler)(AuditRecord *r, const char *text, size_t size, void *userdata), void *userdata) {
        _cleanup_(audit_record_done) AuditRecord record = {};
        const char *text = (const char *) sqlite3_column_text(s, 0);
        size_t size = (size_t) sqlite3_column_bytes(s, 0);
        int r;

        if (!text)
                return -ENOMEM;
        r = audit_record_parse(text, size, &record);
        if (r < 0)
                return r;
        if (record.seq != last->seq + 1 || memcmp(record.prev, last->hash, AUDIT_HASH_SIZE) != 0)
                return -EBADMSG;

        last->seq = record.seq;
        memcpy(last->hash, record.hash, AUDIT_HASH_SIZE);
        return handler(&record, text, size, userdata);
}

int audit_outbox_foreach(AuditOutbox *o, int (*handler)(AuditRecord *r, const char *text, size_t size, void *userdata), void *userdata) {
        AuditHead last = o->kept;
        sqlite3_stmt *s = NULL;
        int r, code;

        r = outbox_prepare(o, "SELECT record FROM outbox ORDER BY seq", &s);
        if (r < 0)
                return r;

        while (r >= 0 && (code = sqlite3_step(s)) == SQLITE_ROW)
                r = outbox_row(s, &last, handler, userdata);
        if (r >= 0)
                r = sqlite_errno(o->db, code, "read");
        if (r >= 0 && (last.seq != o->head.seq || memcmp(last.hash, o->head.hash, AUDIT_HASH_SIZE) != 0))
                r = -EBADMSG;

        (void) sqlite3_finalize(s);
        return r < 0 ? r : 0;
}
