/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A writer of the ledger that dies at every single write: a SQLite VFS that tears the write and exits. What was acknowledged is there afterwards, and
 * the step under way as a whole or not at all.
 */

#include <sqlite3.h>
#include <sys/wait.h>

#include "ledger-world.h"
#include "util/cleanup.h"
#include "util/sqlite.h"

static struct CrashMethods {
        sqlite3_io_methods methods; /* first: a file's pMethods points here */
        const sqlite3_io_methods *real;
} crash_methods[4];
static size_t n_crash_methods;
static sqlite3_vfs crash_vfs;
static sqlite3_vfs *real_vfs;
static unsigned crash_at, crash_count; /* only the child counts */

static const sqlite3_io_methods *real_methods(sqlite3_file *f) {
        return ((const struct CrashMethods *) f->pMethods)->real;
}

static int crash_write(sqlite3_file *f, const void *data, int size, sqlite3_int64 offset) {
        if (crash_at != 0 && ++crash_count == crash_at) {
                (void) real_methods(f)->xWrite(f, data, size / 2, offset); /* torn */
                _exit(77);
        }
        return real_methods(f)->xWrite(f, data, size, offset);
}

static int crash_sync(sqlite3_file *f, int flags) {
        if (crash_at != 0 && ++crash_count == crash_at)
                _exit(77);
        return real_methods(f)->xSync(f, flags);
}

static int crash_open(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *f, int flags, int *ret_flags) {
        int rc = real_vfs->xOpen(real_vfs, name, f, flags, ret_flags);
        size_t i;

        if (rc != SQLITE_OK || !f->pMethods)
                return rc;

        for (i = 0; i < n_crash_methods; i++)
                if (crash_methods[i].real == f->pMethods)
                        break;
        if (i == n_crash_methods) {
                assert_true(n_crash_methods < ELEMENTSOF(crash_methods));
                crash_methods[i].methods = *f->pMethods;
                crash_methods[i].methods.xWrite = crash_write;
                crash_methods[i].methods.xSync = crash_sync;
                crash_methods[i].real = f->pMethods;
                n_crash_methods++;
        }
        f->pMethods = &crash_methods[i].methods;
        return SQLITE_OK;
}

enum { N_SCRIPT = 9 };

/* A whole item's life; after each step one byte goes to the pipe. */
static void crash_script(int progress) {
        _cleanup_(ledger_closep) Ledger *l = NULL;
        const char *id = "i000000000001";
        LedgerItem i = {};
        int r = -1;

        if (ledger_open(&l, path) < 0)
                _exit(1);
        for (unsigned step = 0; step < N_SCRIPT; step++) {
                switch (step) {
                case 0: r = submit(l, id, NULL); break;
                case 1: r = change(l, id, ITEM_QUEUED); break;
                case 2: r = claim(l, "r000000000001", &i); break;
                case 3: r = change(l, id, ITEM_RUNNING); break;
                case 4: r = ledger_run_finish(l, "r000000000001", "ok", "", NULL); break;
                case 5: r = change(l, id, ITEM_VERIFYING); break;
                case 6: r = ledger_run_add(l, id, i.token, "r000000000002"); break;
                case 7: r = change(l, id, ITEM_IN_REVIEW); break;
                case 8: r = ledger_hold_set(l, true, "x", NULL); break;
                default: break;
                }
                if (r != 0 || write(progress, "+", 1) != 1)
                        _exit(1);
        }
}

static int64_t count(Db *db, const char *sql) {
        int64_t n = -1;

        assert_int_equal(db_get_int(db, sql, NULL, &n), 0);
        return n;
}

/* What must be true whatever happened; done is the number of acknowledged steps. */
static void check_invariants(unsigned done) {
        static const ItemState expected[] = {
                ITEM_SUBMITTED, ITEM_SUBMITTED, ITEM_QUEUED, ITEM_LEASED, ITEM_RUNNING, ITEM_RUNNING, ITEM_VERIFYING, ITEM_VERIFYING,
                ITEM_IN_REVIEW, ITEM_IN_REVIEW,
        };
        _cleanup_(ledger_closep) Ledger *l = NULL;
        _cleanup_(db_closep) Db *db = NULL;
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        _cleanup_item_ LedgerItem i = {};
        int r;

        assert_int_equal(ledger_open(&l, path), 0);
        assert_int_equal(db_open(&db, path), 0);
        assert_int_equal(db_query(db, &s, "PRAGMA integrity_check", NULL), 0);
        assert_int_equal(db_step(s), 1);
        assert_string_equal(db_column_text(s, 0), "ok");

        assert_int_equal(count(db, "SELECT count(*) FROM item i WHERE state IS NOT"
                                   " (SELECT to_state FROM history h WHERE h.item = i.id ORDER BY id DESC LIMIT 1)"), 0);
        assert_int_equal(count(db, "SELECT (SELECT count(*) FROM history) - (SELECT count(*) FROM outbox WHERE event LIKE 'item.%')"), 0);
        assert_int_equal(count(db, "SELECT (SELECT count(*) FROM run) - (SELECT count(*) FROM outbox WHERE event = 'run.leased')"), 0);
        assert_int_equal(count(db, "SELECT (SELECT count(*) FROM run WHERE outcome IS NOT NULL)"
                                   " - (SELECT count(*) FROM outbox WHERE event = 'run.finished')"), 0);
        assert_int_equal(count(db, "SELECT (SELECT active FROM hold) - (SELECT count(*) FROM outbox WHERE event = 'hold.set')"), 0);
        assert_int_equal(count(db, "SELECT count(*) FROM item i WHERE (state IN ('leased','running','waiting','verifying'))"
                                   " <> EXISTS (SELECT 1 FROM lease WHERE item = i.id)"), 0);

        r = ledger_get(l, "i000000000001", &i);
        if (done == 0) {
                assert_true(r == LEDGER_E_NOT_FOUND || i.state == ITEM_SUBMITTED);
                return;
        }
        assert_int_equal(r, 0);
        /* what was acknowledged is there; the step under way may be there too, as a whole */
        assert_true(i.state == expected[done] || (done < N_SCRIPT && i.state == expected[done + 1]));
}

static bool crash_once(unsigned at) {
        int pipe_fds[2], status;
        unsigned done = 0;
        char buffer[64];
        ssize_t n;
        pid_t pid;

        forget_file();
        assert_int_equal(pipe(pipe_fds), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                crash_at = at;
                crash_script(pipe_fds[1]);
                _exit(0);
        }
        (void) close(pipe_fds[1]);
        while ((n = read(pipe_fds[0], buffer, sizeof(buffer))) > 0)
                done += (unsigned) n;
        (void) close(pipe_fds[0]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_true(WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 0);

        check_invariants(done);
        return WEXITSTATUS(status) == 77;
}

static void test_death_at_every_write(void **state) {
        unsigned at = 1;

        real_vfs = sqlite3_vfs_find(NULL);
        crash_vfs = *real_vfs;
        crash_vfs.zName = "crash";
        crash_vfs.xOpen = crash_open;
        assert_int_equal(sqlite3_vfs_register(&crash_vfs, 1), SQLITE_OK);

        while (crash_once(at))
                at++;
        assert_true(at > 50); /* the script did write, many times */

        (void) sqlite3_vfs_unregister(&crash_vfs);
        assert_int_equal(sqlite3_vfs_register(real_vfs, 1), SQLITE_OK);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_death_at_every_write),
        };

        return cmocka_run_group_tests(tests, set_up, tear_down);
}
