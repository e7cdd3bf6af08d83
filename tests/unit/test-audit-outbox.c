/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "audit-test.h"
#include "audit/audit-outbox.h"

static char folder[32], path[64];

static void clean(void) {
        static const char *const suffixes[] = { "", "-wal", "-shm", "-journal" };

        for (size_t i = 0; i < ELEMENTSOF(suffixes); i++) {
                char name[80];

                (void) snprintf(name, sizeof(name), "%s%s", path, suffixes[i]);
                (void) unlink(name);
        }
}

static int setup(void **state) {
        strcpy(folder, "/tmp/test-outbox-XXXXXX");
        assert_non_null(mkdtemp(folder));
        (void) snprintf(path, sizeof(path), "%s/outbox.db", folder);
        return 0;
}

static int teardown(void **state) {
        clean();
        return rmdir(folder);
}

static int append(AuditOutbox *o, unsigned n) {
        _cleanup_(audit_record_done) AuditRecord r = {};

        audit_test_fill(&r, n);
        return audit_outbox_append(o, &r);
}

static void append_one(AuditOutbox *o, unsigned n) {
        assert_int_equal(audit_outbox_begin(o), 0);
        assert_int_equal(append(o, n), 0);
        assert_int_equal(audit_outbox_commit(o), 0);
}

static int count(AuditRecord *r, const char *text, size_t size, void *userdata) {
        ++*(unsigned *) userdata;
        return 0;
}

static void check(AuditOutbox *o, uint64_t head, uint64_t kept) {
        unsigned n = 0;

        assert_int_equal(audit_outbox_head(o)->seq, head);
        assert_int_equal(audit_outbox_kept(o)->seq, kept);
        assert_int_equal(audit_outbox_foreach(o, count, &n), 0);
        assert_int_equal(n, head - kept);
}

static void test_append_and_drop(void **state) {
        _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;
        AuditHead second;
        struct stat st;

        assert_int_equal(audit_outbox_open(&o, path), 0);
        check(o, 0, 0);
        append_one(o, 1);
        append_one(o, 2);
        second = *audit_outbox_head(o);
        append_one(o, 3);
        check(o, 3, 0);

        assert_int_equal(audit_outbox_begin(o), 0);
        assert_int_equal(append(o, 4), 0);
        assert_int_equal(audit_outbox_drop(o, &second), 0);
        assert_int_equal(audit_outbox_commit(o), 0);
        check(o, 4, 2);

        /* what was not committed did not happen */
        assert_int_equal(audit_outbox_begin(o), 0);
        assert_int_equal(append(o, 5), 0);
        audit_outbox_rollback(o);
        check(o, 4, 2);

        o = audit_outbox_free(o);
        assert_int_equal(audit_outbox_open(&o, path), 0);
        check(o, 4, 2);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
}

static void test_adopt(void **state) {
        _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;
        AuditHead head = { .seq = 41, .hash = { 1, 2, 3 } };

        assert_int_equal(audit_outbox_open(&o, path), 0);
        append_one(o, 1);
        assert_int_equal(audit_outbox_begin(o), 0);
        assert_int_equal(audit_outbox_adopt(o, &head), 0);
        assert_int_equal(audit_outbox_commit(o), 0);
        check(o, 41, 41);
        append_one(o, 2);
        check(o, 42, 41);
}

static void test_damaged(void **state) {
        _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;
        unsigned n = 0;
        sqlite3 *db;

        assert_int_equal(audit_outbox_open(&o, path), 0);
        for (unsigned i = 1; i <= 3; i++)
                append_one(o, i);
        o = audit_outbox_free(o);

        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, "DELETE FROM outbox WHERE seq = 2", NULL, NULL, NULL), SQLITE_OK);
        (void) sqlite3_close(db);

        assert_int_equal(audit_outbox_open(&o, path), 0);
        assert_int_equal(audit_outbox_foreach(o, count, &n), -EBADMSG);
}

static void test_told(void **state) {
        enum { MORE = 1024 };
        _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;
        AuditHead found = {};
        char identity[16];

        assert_int_equal(audit_outbox_open(&o, path), 0);
        assert_int_equal(audit_outbox_begin(o), 0);
        assert_int_equal(audit_outbox_find_told(o, "first", &found), 0);
        assert_int_equal(append(o, 1), 0);
        assert_int_equal(audit_outbox_tell(o, "first", "one", false), 0);
        assert_int_equal(audit_outbox_find_told(o, "first", &found), 1); /* also by who comes in the same group */
        assert_int_equal(found.seq, 1);
        audit_outbox_rollback(o);
        assert_int_equal(audit_outbox_find_told(o, "first", &found), 0);

        assert_int_equal(audit_outbox_begin(o), 0);
        assert_int_equal(append(o, 1), 0);
        assert_int_equal(audit_outbox_tell(o, "first", "one", false), 0);
        for (unsigned i = 0; i < AUDIT_OUTBOX_TOLD_MAX + MORE; i++) {
                (void) snprintf(identity, sizeof(identity), "%x", i);
                assert_int_equal(append(o, i), 0);
                assert_int_equal(audit_outbox_tell(o, identity, "two", false), 0);
        }
        assert_int_equal(audit_outbox_commit(o), 0);
        o = audit_outbox_free(o);

        /* the oldest of a source are forgotten, and nobody else's */
        assert_int_equal(audit_outbox_open(&o, path), 0);
        assert_int_equal(audit_outbox_find_told(o, "first", &found), 1);
        assert_int_equal(found.seq, 1);
        assert_int_equal(audit_outbox_find_told(o, "0", &found), 0);
        (void) snprintf(identity, sizeof(identity), "%x", MORE);
        assert_int_equal(audit_outbox_find_told(o, identity, &found), 1);
        (void) snprintf(identity, sizeof(identity), "%x", AUDIT_OUTBOX_TOLD_MAX + MORE - 1);
        assert_int_equal(audit_outbox_find_told(o, identity, &found), 1);
        assert_memory_equal(found.hash, audit_outbox_head(o)->hash, AUDIT_HASH_SIZE);
}

static void tell_many(AuditOutbox *o, const char *source, unsigned n) {
        char identity[64];

        for (unsigned i = 0; i < n; i++) {
                (void) snprintf(identity, sizeof(identity), "%s %u", source, i);
                assert_int_equal(append(o, i), 0);
                assert_int_equal(audit_outbox_tell(o, identity, source, true), 0);
        }
}

static bool is_told(AuditOutbox *o, const char *source, unsigned i) {
        AuditHead found = {};
        char identity[64];
        int r;

        (void) snprintf(identity, sizeof(identity), "%s %u", source, i);
        r = audit_outbox_find_told(o, identity, &found);
        assert_true(r >= 0);
        return r;
}

/* What one run says is forgotten for what the same run says later, and for nobody else's; of many runs, those who said something last are known. */
static void test_told_by_units(void **state) {
        enum { RUNS = AUDIT_OUTBOX_TOLD_UNITS_MAX / 128 };
        _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;
        char unit[32];

        assert_int_equal(audit_outbox_open(&o, path), 0);
        assert_int_equal(audit_outbox_begin(o), 0);
        tell_many(o, "anchor-run@a.service", 3);
        tell_many(o, "anchor-run@b.service", AUDIT_OUTBOX_TOLD_MAX + 300);
        for (unsigned i = 0; i < 3; i++)
                assert_true(is_told(o, "anchor-run@a.service", i));
        assert_true(is_told(o, "anchor-run@b.service", AUDIT_OUTBOX_TOLD_MAX + 299));
        assert_true(is_told(o, "anchor-run@b.service", AUDIT_OUTBOX_TOLD_MAX + 300 - AUDIT_OUTBOX_TOLD_UNIT_MAX));
        assert_false(is_told(o, "anchor-run@b.service", AUDIT_OUTBOX_TOLD_MAX + 300 - AUDIT_OUTBOX_TOLD_UNIT_MAX - 1));

        assert_int_equal(append(o, 1), 0);
        assert_int_equal(audit_outbox_tell(o, "anchord.service 0", "anchord.service", false), 0);
        for (unsigned i = 0; i < RUNS + 4; i++) {
                (void) snprintf(unit, sizeof(unit), "anchor-run@%u.service", i);
                tell_many(o, unit, 128);
        }
        assert_int_equal(audit_outbox_commit(o), 0);
        assert_false(is_told(o, "anchor-run@a.service", 0));
        assert_false(is_told(o, "anchor-run@0.service", 127));
        assert_true(is_told(o, "anchor-run@10.service", 0));
        assert_true(is_told(o, unit, 0));
        assert_true(is_told(o, "anchord.service", 0)); /* the control: no run's */
}

static void exec_on_file(const char *sql) {
        sqlite3 *db;

        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static unsigned n_deletes;

/* A statement ends: how SQLite found what it deleted. */
static int on_statement(unsigned type, void *userdata, void *statement, void *nanoseconds) {
        _cleanup_free_ char *sql = NULL;
        sqlite3_stmt *explain = NULL;

        if (strncmp(sqlite3_sql(statement), "DELETE FROM told", 16) != 0)
                return 0;
        n_deletes++;
        assert_true(asprintf(&sql, "EXPLAIN QUERY PLAN %s", sqlite3_sql(statement)) > 0);
        assert_int_equal(sqlite3_prepare_v2(sqlite3_db_handle(statement), sql, -1, &explain, NULL), SQLITE_OK);
        while (sqlite3_step(explain) == SQLITE_ROW) {
                const char *step = (const char *) sqlite3_column_text(explain, 3);

                assert_null(strstr(step, "TEMP B-TREE")); /* all of them sorted */
                assert_true(strncmp(step, "SCAN told", 9) != 0 || strstr(step, "USING COVERING INDEX")); /* as far as the offset */
        }
        (void) sqlite3_finalize(explain);
        return 0;
}

static int on_open(sqlite3 *db, const char **ret_error, const struct sqlite3_api_routines *api) {
        return sqlite3_trace_v2(db, SQLITE_TRACE_PROFILE, on_statement, NULL);
}

/* What is forgotten is found by an index, in each commit: also in a file from before there was that. */
static void test_forgets_by_index(void **state) {
        _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;

        assert_int_equal(audit_outbox_open(&o, path), 0);
        o = audit_outbox_free(o);
        exec_on_file("DROP INDEX told_by_units");

        n_deletes = 0;
        assert_int_equal(sqlite3_auto_extension((void (*)(void)) on_open), SQLITE_OK);
        assert_int_equal(audit_outbox_open(&o, path), 0);
        sqlite3_reset_auto_extension();
        assert_int_equal(audit_outbox_begin(o), 0);
        tell_many(o, "anchor-run@a.service", 300);
        assert_int_equal(audit_outbox_commit(o), 0);
        assert_true(n_deletes > 300);
}

/* ---- stopped at every write ---- */

/* After a rollback of the host: what the newer image added is no hindrance, and what only it can use is not touched. */
static void test_file_of_a_newer_image(void **state) {
        AuditOutbox *o = NULL;

        assert_int_equal(audit_outbox_open(&o, path), 0);
        append_one(o, 1);
        audit_outbox_free(o);

        exec_on_file("ALTER TABLE head ADD COLUMN newer INTEGER NOT NULL DEFAULT 7; ALTER TABLE outbox ADD COLUMN newer TEXT; CREATE TABLE newer (x)");
        assert_int_equal(audit_outbox_open(&o, path), 0);
        append_one(o, 2);
        check(o, 2, 0);
        audit_outbox_free(o);

        exec_on_file("PRAGMA user_version = 2");
        assert_int_equal(audit_outbox_open(&o, path), -EPROTO);
        exec_on_file("PRAGMA user_version = 1"); /* the newer image returns: all is there */
        assert_int_equal(audit_outbox_open(&o, path), 0);
        check(o, 2, 0);
        audit_outbox_free(o);
}

static unsigned n_calls, stop_at;

/* The process is gone before the system call with that number. */
static void step(void) {
        if (++n_calls == stop_at)
                _exit(99);
}

static ssize_t stopping_pwrite(int fd, const void *data, size_t size, off_t offset) {
        step();
        return pwrite(fd, data, size, offset);
}

static ssize_t stopping_write(int fd, const void *data, size_t size) {
        step();
        return write(fd, data, size);
}

static int stopping_ftruncate(int fd, off_t size) {
        step();
        return ftruncate(fd, size);
}

static void stop_writes(void) {
        sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);

        assert_int_equal(vfs->xSetSystemCall(vfs, "pwrite", (sqlite3_syscall_ptr) stopping_pwrite), SQLITE_OK);
        (void) vfs->xSetSystemCall(vfs, "pwrite64", (sqlite3_syscall_ptr) stopping_pwrite);
        assert_int_equal(vfs->xSetSystemCall(vfs, "write", (sqlite3_syscall_ptr) stopping_write), SQLITE_OK);
        assert_int_equal(vfs->xSetSystemCall(vfs, "ftruncate", (sqlite3_syscall_ptr) stopping_ftruncate), SQLITE_OK);
}

/* Appends three records, one transaction each, dropping what came before; says after each that it is acknowledged. */
static void work(int report_fd) {
        _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;
        AuditHead before = {};

        if (audit_outbox_open(&o, path) < 0)
                _exit(1);
        for (unsigned i = 1; i <= 3; i++) {
                if (audit_outbox_begin(o) < 0 || (before.seq > 0 && audit_outbox_drop(o, &before) < 0) || append(o, i) < 0 ||
                    audit_outbox_tell(o, (char[2]) { (char) ('0' + i) }, "source", false) < 0 || audit_outbox_commit(o) < 0)
                        _exit(1);
                before = *audit_outbox_head(o);
                if (write(report_fd, &(char) { (char) i }, 1) != 1)
                        _exit(1);
        }
        o = audit_outbox_free(o);
        _exit(0);
}

static int work_until(unsigned stop, unsigned *ret_acknowledged) {
        char acknowledged[3] = {};
        int pipes[2], status;
        ssize_t n;
        pid_t pid;

        assert_int_equal(pipe(pipes), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                stop_at = stop;
                n_calls = 0;
                stop_writes();
                work(pipes[1]);
        }
        (void) close(pipes[1]);
        for (*ret_acknowledged = 0; (n = read(pipes[0], acknowledged, 1)) == 1;)
                ++*ret_acknowledged;
        (void) close(pipes[0]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static void test_stopped_at_every_write(void **state) {
        unsigned stop, acknowledged;
        int status = 99;

        for (stop = 1; status == 99; stop++) {
                _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;
                uint64_t head;
                unsigned n = 0;

                clean();
                status = work_until(stop, &acknowledged);
                assert_true(status == 99 || status == 0);

                /* Whatever was acknowledged is there, at most one record that was not, and the chain is whole. */
                assert_int_equal(audit_outbox_open(&o, path), 0);
                head = audit_outbox_head(o)->seq;
                assert_true(head == acknowledged || head == acknowledged + 1);
                assert_int_equal(audit_outbox_foreach(o, count, &n), 0);
                /* and what is there, and nothing else, is recognised */
                for (unsigned i = 1; i <= 3; i++)
                        assert_int_equal(audit_outbox_find_told(o, (char[2]) { (char) ('0' + i) }, &(AuditHead) {}), i <= head);
                append_one(o, 9);
                assert_int_equal(audit_outbox_head(o)->seq, head + 1);
        }
        assert_int_equal(acknowledged, 3);
        assert_true(stop > 10); /* there were writes to stop at */
}

int main(void) {
#define T(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
        const struct CMUnitTest tests[] = {
                T(test_append_and_drop),
                T(test_adopt),
                T(test_damaged),
                T(test_told),
                T(test_told_by_units),
                T(test_forgets_by_index),
                T(test_file_of_a_newer_image),
                T(test_stopped_at_every_write),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
