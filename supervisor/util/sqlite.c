/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Statements are prepared once and kept, keyed by the address of their text: every caller passes a
 * string constant. A ledger operation runs about five statements, and preparing them anew would cost
 * more than running them. A statement in use is marked, so that a nested use of the same text is a
 * bug that is caught instead of a query that silently restarts.
 */

#include <assert.h>
#include <errno.h>
#include <sqlite3.h>
#include <string.h>

#include "util/sqlite.h"

enum { STMT_CACHE_MAX = 128 };

struct DbStmt {
        Db *db;              /* borrowed */
        const char *sql;     /* borrowed; its address is the key */
        sqlite3_stmt *stmt;  /* owned */
        bool busy;
};

struct Db {
        sqlite3 *handle; /* owned */
        DbStmt *cache[STMT_CACHE_MAX];
        size_t n_cache;
};

static int convert(int rc) {
        switch (rc) {
        case SQLITE_CONSTRAINT_UNIQUE:
        case SQLITE_CONSTRAINT_PRIMARYKEY:
        case SQLITE_CONSTRAINT_ROWID:
                return -EEXIST;
        default:
                break;
        }

        switch (rc & 0xff) {
        case SQLITE_OK:
        case SQLITE_DONE:
                return 0;
        case SQLITE_ROW:
                return 1;
        case SQLITE_NOMEM:
                return -ENOMEM;
        case SQLITE_BUSY:
        case SQLITE_LOCKED:
                return -EBUSY;
        case SQLITE_FULL:
                return -ENOSPC;
        case SQLITE_IOERR:
                return -EIO;
        case SQLITE_CORRUPT:
        case SQLITE_NOTADB:
                return -EUCLEAN;
        case SQLITE_READONLY:
                return -EROFS;
        case SQLITE_CANTOPEN:
                return -EACCES;
        case SQLITE_CONSTRAINT:
                return -EPERM;
        case SQLITE_TOOBIG:
                return -E2BIG;
        default:
                return -EINVAL;
        }
}

int db_open(Db **ret, const char *path) {
        _cleanup_(db_closep) Db *db = NULL;
        int r;

        db = calloc(1, sizeof(*db));
        if (!db)
                return -ENOMEM;

        r = convert(sqlite3_open_v2(path, &db->handle,
                                    SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL));
        if (r < 0)
                return r;

        (void) sqlite3_extended_result_codes(db->handle, 1);
        (void) sqlite3_busy_timeout(db->handle, 500);
        (void) sqlite3_db_config(db->handle, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
        (void) sqlite3_db_config(db->handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);

        r = db_exec(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"
                        "PRAGMA recursive_triggers=ON; PRAGMA journal_size_limit=16777216;");
        if (r < 0)
                return r;

        *ret = TAKE_PTR(db);
        return 0;
}

Db *db_close(Db *db) {
        if (!db)
                return NULL;

        for (size_t i = 0; i < db->n_cache; i++) {
                (void) sqlite3_finalize(db->cache[i]->stmt);
                free(db->cache[i]);
        }
        (void) sqlite3_close_v2(db->handle);
        free(db);
        return NULL;
}

int db_exec(Db *db, const char *sql) {
        return convert(sqlite3_exec(db->handle, sql, NULL, NULL, NULL));
}

static int stmt_get(Db *db, const char *sql, DbStmt **ret) {
        _cleanup_free_ DbStmt *s = NULL;
        int r;

        for (size_t i = 0; i < db->n_cache; i++)
                if (db->cache[i]->sql == sql) {
                        assert(!db->cache[i]->busy);
                        *ret = db->cache[i];
                        return 0;
                }

        assert(db->n_cache < STMT_CACHE_MAX);

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (DbStmt) { .db = db, .sql = sql };

        r = convert(sqlite3_prepare_v3(db->handle, sql, -1, SQLITE_PREPARE_PERSISTENT, &s->stmt, NULL));
        if (r < 0)
                return r;

        db->cache[db->n_cache++] = s;
        *ret = TAKE_PTR(s);
        return 0;
}

static int stmt_bind(DbStmt *s, const DbArg *args) {
        int i = 1, r;

        for (const DbArg *a = args; a && a->type != DB_ARG_END; a++, i++) {
                if (a->type == DB_ARG_INT)
                        r = sqlite3_bind_int64(s->stmt, i, a->i);
                else if (a->type == DB_ARG_TEXT && a->s)
                        r = sqlite3_bind_text(s->stmt, i, a->s, -1, SQLITE_TRANSIENT);
                else
                        r = sqlite3_bind_null(s->stmt, i);

                r = convert(r);
                if (r < 0)
                        return r;
        }

        assert(i - 1 == sqlite3_bind_parameter_count(s->stmt));
        return 0;
}

int db_query(Db *db, DbStmt **ret, const char *sql, const DbArg *args) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = stmt_get(db, sql, &s);
        if (r < 0)
                return r;

        s->busy = true;

        r = stmt_bind(s, args);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(s);
        return 0;
}

int db_step(DbStmt *s) {
        return convert(sqlite3_step(s->stmt));
}

int db_query_row(Db *db, DbStmt **ret, const char *sql, const DbArg *args) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query(db, &s, sql, args);
        if (r < 0)
                return r;

        r = db_step(s);
        if (r < 0)
                return r;
        if (r == 0)
                return -ENOENT;

        *ret = TAKE_PTR(s);
        return 0;
}

DbStmt *db_stmt_done(DbStmt *s) {
        if (!s)
                return NULL;

        (void) sqlite3_reset(s->stmt);
        (void) sqlite3_clear_bindings(s->stmt);
        s->busy = false;
        return NULL;
}

int db_run(Db *db, const char *sql, const DbArg *args) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query(db, &s, sql, args);
        if (r < 0)
                return r;

        r = db_step(s);
        if (r < 0)
                return r;
        assert(r == 0);

        return sqlite3_changes(db->handle);
}

int64_t db_column_int(DbStmt *s, int i) {
        return sqlite3_column_int64(s->stmt, i);
}

const char *db_column_text(DbStmt *s, int i) {
        return (const char *) sqlite3_column_text(s->stmt, i);
}

int db_column_dup(DbStmt *s, int i, char **ret) {
        const char *text = db_column_text(s, i);

        *ret = text ? strdup(text) : NULL;
        return text && !*ret ? -ENOMEM : 0;
}

bool db_column_is_null(DbStmt *s, int i) {
        return sqlite3_column_type(s->stmt, i) == SQLITE_NULL;
}

bool db_column_is_int(DbStmt *s, int i) {
        return sqlite3_column_type(s->stmt, i) == SQLITE_INTEGER;
}

const char *db_column_name(DbStmt *s, int i) {
        return sqlite3_column_name(s->stmt, i);
}

int db_column_count(DbStmt *s) {
        return sqlite3_column_count(s->stmt);
}

int db_get_int(Db *db, const char *sql, const DbArg *args, int64_t *ret) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        int r;

        r = db_query_row(db, &s, sql, args);
        if (r < 0)
                return r;

        *ret = db_column_int(s, 0);
        return 0;
}

int64_t db_last_id(Db *db) {
        return sqlite3_last_insert_rowid(db->handle);
}

const char *db_error(Db *db) {
        return db ? sqlite3_errmsg(db->handle) : "no database";
}

int db_begin(Db *db, DbGuard *ret) {
        int r;

        r = db_exec(db, "BEGIN IMMEDIATE");
        if (r < 0)
                return r;

        ret->db = db;
        return 0;
}

int db_commit(DbGuard *g) {
        int r;

        r = db_exec(g->db, "COMMIT");
        if (r < 0)
                return r; /* the guard rolls back */

        g->db = NULL;
        return 0;
}

void db_guard_done(DbGuard *g) {
        if (g->db && !sqlite3_get_autocommit(g->db->handle))
                (void) db_exec(g->db, "ROLLBACK");
        g->db = NULL;
}
