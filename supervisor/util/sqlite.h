/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Everything that speaks SQLite. Foreign error codes end here: functions return negative errno.
 *
 *   -EPERM   a trigger or a CHECK of the schema refused (db_error() has its text)
 *   -EEXIST  a UNIQUE or PRIMARY KEY constraint
 *   -EBUSY   locked by another process      -ENOSPC, -EIO   the disk
 *   -EUCLEAN the file is damaged            -EINVAL         our own SQL is wrong
 */

#include <stdbool.h>
#include <stdint.h>

#include "util/cleanup.h"

typedef struct Db Db;
typedef struct DbStmt DbStmt;

typedef struct DbArg {
        enum { DB_ARG_END, DB_ARG_NULL, DB_ARG_INT, DB_ARG_TEXT } type;
        int64_t i;
        const char *s;
} DbArg;

/* Typed arguments of one statement, in the order of its question marks. A NULL text is SQL's NULL. */
#define DB_INT(v) ((DbArg) { .type = DB_ARG_INT, .i = (int64_t) (v) })
#define DB_TEXT(v) ((DbArg) { .type = DB_ARG_TEXT, .s = (v) })
#define DB_ARGS(...) ((const DbArg[]) { __VA_ARGS__, { .type = DB_ARG_END } })

/* Opens or makes the file: WAL, synchronous=FULL, foreign keys on, another writer waited for at most
 * half a second. */
int db_open(Db **ret, const char *path);
Db *db_close(Db *db);
DEFINE_CLEANUP(Db *, db_close)

/* Runs one or more statements without arguments. */
int db_exec(Db *db, const char *sql);

/* Runs one statement that gives no rows; the number of rows that it changed, or negative errno. */
int db_run(Db *db, const char *sql, const DbArg *args);

/* Starts a query; db_step() gives 1 for a row, 0 after the last. Statements are cached by the address
 * of `sql`, which is therefore a string constant; one query of each text can be open at a time. */
int db_query(Db *db, DbStmt **ret, const char *sql, const DbArg *args);
int db_step(DbStmt *s);
/* The same up to the first row: -ENOENT if there is none. */
int db_query_row(Db *db, DbStmt **ret, const char *sql, const DbArg *args);
DbStmt *db_stmt_done(DbStmt *s);
DEFINE_CLEANUP(DbStmt *, db_stmt_done)

/* Columns of the current row. Text is borrowed until the next step; NULL for SQL's NULL. */
int64_t db_column_int(DbStmt *s, int i);
const char *db_column_text(DbStmt *s, int i);
int db_column_dup(DbStmt *s, int i, char **ret); /* the caller's; NULL for SQL's NULL */
bool db_column_is_null(DbStmt *s, int i);
const char *db_column_name(DbStmt *s, int i);
bool db_column_is_int(DbStmt *s, int i);
int db_column_count(DbStmt *s);

/* One integer of a query that gives at most one row; -ENOENT if there is none. */
int db_get_int(Db *db, const char *sql, const DbArg *args, int64_t *ret);

int64_t db_last_id(Db *db);

/* What SQLite said about the last failure. Borrowed. */
const char *db_error(Db *db);

/* A write transaction. Begin takes the write lock at once; a transaction that is not committed when
 * the guard goes out of scope is rolled back. */
typedef struct DbGuard {
        Db *db;
} DbGuard;
int db_begin(Db *db, DbGuard *ret);
int db_commit(DbGuard *g);
void db_guard_done(DbGuard *g);
#define _cleanup_rollback_ _cleanup_(db_guard_done)
