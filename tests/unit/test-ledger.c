/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The ledger: the whole transition matrix, compare-and-swap, leases and tokens, the outbox, recovery. Death at every write is
 * test-ledger-crash's, files of other images are test-ledger-images'.
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "ledger-world.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/sqlite.h"

/* DESIGN.md 6 once more, by hand: the test must not read it from what it tests. */
static const struct {
        ItemState from;
        ItemState to[7]; /* ends with ITEM_SUBMITTED, which nothing leads to */
} table[] = {
        { ITEM_SUBMITTED, { ITEM_QUEUED, ITEM_DUPLICATE, ITEM_REJECTED, ITEM_CANCELLED } },
        { ITEM_QUEUED, { ITEM_LEASED, ITEM_FAILED, ITEM_CANCELLED } },
        { ITEM_LEASED, { ITEM_RUNNING, ITEM_QUEUED, ITEM_FAILED, ITEM_CANCELLED } },
        { ITEM_RUNNING, { ITEM_VERIFYING, ITEM_WAITING, ITEM_FAILED, ITEM_QUEUED, ITEM_CANCELLED } },
        { ITEM_WAITING, { ITEM_RUNNING, ITEM_QUEUED, ITEM_FAILED, ITEM_CANCELLED } },
        { ITEM_VERIFYING, { ITEM_IN_REVIEW, ITEM_RUNNING, ITEM_WAITING, ITEM_QUEUED, ITEM_FAILED, ITEM_CANCELLED } },
        { ITEM_IN_REVIEW, { ITEM_APPROVED, ITEM_QUEUED, ITEM_REJECTED, ITEM_CLOSED, ITEM_CANCELLED } },
        { ITEM_APPROVED, { ITEM_AUTHORIZED, ITEM_IN_REVIEW, ITEM_REJECTED, ITEM_CANCELLED } },
        { ITEM_AUTHORIZED, { ITEM_PUBLISHING, ITEM_IN_REVIEW, ITEM_CANCELLED } },
        { ITEM_PUBLISHING, { ITEM_PUBLISHED, ITEM_PUBLISH_FAILED, ITEM_IN_REVIEW } },
        { ITEM_PUBLISH_FAILED, { ITEM_AUTHORIZED, ITEM_CANCELLED } },
        { ITEM_PUBLISHED, { ITEM_MERGED, ITEM_CLOSED, ITEM_QUEUED } },
        { ITEM_FAILED, { ITEM_QUEUED, ITEM_EXHAUSTED } },
        { ITEM_DUPLICATE, {} }, { ITEM_REJECTED, {} }, { ITEM_CANCELLED, {} },
        { ITEM_EXHAUSTED, {} }, { ITEM_MERGED, {} }, { ITEM_CLOSED, {} },
};

static bool is_legal(ItemState from, ItemState to) {
        for (size_t i = 0; i < ELEMENTSOF(table); i++)
                for (size_t n = 0; table[i].from == from && n < 7 && table[i].to[n] != ITEM_SUBMITTED; n++)
                        if (table[i].to[n] == to)
                                return true;
        return false;
}

static int step_to(Ledger *l, const char *id, ItemState to) {
        static unsigned n_runs;
        _cleanup_item_ LedgerItem i = {};

        if (to == ITEM_LEASED)
                return claim(l, make_id('r', ++n_runs), &i);
        return change(l, id, to);
}

/* Takes the only item of a fresh ledger along legal edges. */
static void walk_to(Ledger *l, const char *id, ItemState to) {
        static const ItemState spine[] = {
                ITEM_QUEUED, ITEM_LEASED, ITEM_RUNNING, ITEM_VERIFYING, ITEM_IN_REVIEW,
                ITEM_APPROVED, ITEM_AUTHORIZED, ITEM_PUBLISHING, ITEM_PUBLISHED,
        };
        static const struct {
                ItemState target, via;
        } branches[] = {
                { ITEM_DUPLICATE, ITEM_SUBMITTED }, { ITEM_REJECTED, ITEM_SUBMITTED }, { ITEM_CANCELLED, ITEM_SUBMITTED },
                { ITEM_FAILED, ITEM_QUEUED }, { ITEM_WAITING, ITEM_RUNNING }, { ITEM_EXHAUSTED, ITEM_FAILED },
                { ITEM_PUBLISH_FAILED, ITEM_PUBLISHING }, { ITEM_MERGED, ITEM_PUBLISHED }, { ITEM_CLOSED, ITEM_IN_REVIEW },
        };

        if (to == ITEM_SUBMITTED)
                return;

        for (size_t i = 0; i < ELEMENTSOF(branches); i++)
                if (branches[i].target == to) {
                        walk_to(l, id, branches[i].via);
                        assert_int_equal(step_to(l, id, to), 0);
                        return;
                }

        for (size_t i = 0; i < ELEMENTSOF(spine); i++) {
                assert_int_equal(step_to(l, id, spine[i]), 0);
                if (spine[i] == to)
                        return;
        }
        fail();
}

static void test_matrix(void **state) {
        const char *id = "i000000000001";
        unsigned legal = 0;

        for (ItemState from = 0; from < _ITEM_STATE_MAX; from++) {
                _cleanup_(ledger_closep) Ledger *l = fresh();

                assert_int_equal(submit(l, id, NULL), 0);
                walk_to(l, id, from);

                for (ItemState to = 0; to < _ITEM_STATE_MAX; to++) {
                        _cleanup_item_ LedgerItem before = get(l, id), after = {};

                        if (to == from || is_legal(from, to))
                                continue;
                        assert_int_equal(change(l, id, to), LEDGER_E_ILLEGAL);
                        after = get(l, id);
                        assert_int_equal(after.state, from);
                        assert_int_equal(after.revision, before.revision);
                }

                for (ItemState to = 0; to < _ITEM_STATE_MAX; to++) {
                        _cleanup_(ledger_closep) Ledger *m = NULL;
                        _cleanup_item_ LedgerItem after = {};

                        if (!is_legal(from, to))
                                continue;
                        legal++;
                        l = ledger_close(l);
                        m = fresh();
                        assert_int_equal(submit(m, id, NULL), 0);
                        walk_to(m, id, from);
                        assert_int_equal(step_to(m, id, to), 0);
                        after = get(m, id);
                        assert_int_equal(after.state, to);
                        /* a lease exists exactly in these */
                        assert_int_equal(after.token != 0, to == ITEM_LEASED || to == ITEM_RUNNING || to == ITEM_WAITING || to == ITEM_VERIFYING);
                }
        }

        assert_int_equal(legal, 48);
}

static void test_end_states_never_change(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_(db_closep) Db *db = NULL;
        const char *id = "i000000000001";

        assert_int_equal(submit(l, id, NULL), 0);
        assert_int_equal(change(l, id, ITEM_CANCELLED), 0);
        assert_int_equal(change(l, id, ITEM_CANCELLED), LEDGER_E_ILLEGAL);

        /* not even past the code, with SQL */
        assert_int_equal(db_open(&db, path), 0);
        assert_int_equal(db_exec(db, "UPDATE item SET reason = 'x', revision = revision + 1"), -EPERM);
        assert_int_equal(db_exec(db, "DELETE FROM item"), -EPERM);
        assert_int_equal(db_exec(db, "UPDATE history SET reason = 'x'"), -EPERM);
        assert_int_equal(db_exec(db, "DELETE FROM history"), -EPERM);
        assert_int_equal(db_exec(db, "INSERT INTO edge VALUES ('cancelled', 'queued')"), -EPERM);
        assert_int_equal(db_exec(db, "DELETE FROM edge"), -EPERM);
        assert_int_equal(db_exec(db, "INSERT OR REPLACE INTO edge VALUES ('queued', 'leased')"), -EPERM);
        assert_int_equal(db_exec(db, "UPDATE outbox SET data = '{}'"), -EPERM);
}

static void test_direct_sql_is_refused(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_(db_closep) Db *db = NULL;

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        assert_int_equal(db_open(&db, path), 0);
        assert_int_equal(db_exec(db, "UPDATE item SET state = 'failed'"), -EPERM);                               /* no revision */
        assert_int_equal(db_exec(db, "UPDATE item SET state = 'in_review', revision = revision + 1"), -EPERM);   /* no edge */
        assert_int_equal(db_exec(db, "UPDATE item SET task = 'x', revision = revision + 1"), -EPERM);            /* identity */
        assert_int_equal(db_exec(db, "UPDATE item SET attempt = 2, revision = revision + 1"), -EPERM);
        assert_int_equal(db_exec(db, "UPDATE fence SET token = 0"), -EPERM);
        assert_int_equal(db_exec(db, "UPDATE item SET state = 'leased', revision = revision + 1"), -EPERM);      /* not counted */
        assert_int_equal(db_exec(db, "UPDATE item SET state = 'failed', revision = revision + 1"), 0);           /* control */
}

static void test_compare_and_swap(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        LedgerChange c = { .item = "i000000000001", .revision = 1, .to = ITEM_QUEUED, .actor = "a" };
        int64_t revision = 0;

        assert_int_equal(submit(l, c.item, NULL), 0);
        assert_int_equal(ledger_transition(l, &c, &revision), 0);
        assert_int_equal(revision, 2);
        c.to = ITEM_CANCELLED;
        assert_int_equal(ledger_transition(l, &c, &revision), LEDGER_E_CONFLICT);
        c.revision = revision;
        assert_int_equal(ledger_transition(l, &c, NULL), 0);
        c.item = "i999999999999";
        assert_int_equal(ledger_transition(l, &c, NULL), LEDGER_E_NOT_FOUND);
}

/* What a lease's runs are made from is there as long as the lease, and stays what it was. */
static void test_frozen(void **state) {
        _cleanup_free_ char *plan = NULL;
        _cleanup_item_ LedgerItem i = {};
        Ledger *l = fresh();
        int64_t n;
        Db *db;

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        assert_int_equal(claim(l, "r000000000001", &i), 0);
        assert_int_equal(ledger_frozen(l, i.token, &plan), LEDGER_E_NOT_FOUND);
        assert_int_equal(ledger_freeze(l, i.token + 1, "{}"), LEDGER_E_STALE);
        assert_int_equal(ledger_freeze(l, i.token, "{\"a\":1}"), 0);
        assert_int_equal(ledger_freeze(l, i.token, "{\"a\":2}"), LEDGER_E_DUPLICATE);
        ledger_close(l);

        assert_return_code(db_open(&db, path), 0);
        assert_int_equal(db_exec(db, "UPDATE frozen SET plan = '{}'"), -EPERM);
        db_close(db);
        assert_int_equal(ledger_open(&l, path), 0);
        assert_int_equal(ledger_frozen(l, i.token, &plan), 0);
        assert_string_equal(plan, "{\"a\":1}");

        assert_int_equal(change(l, i.id, ITEM_QUEUED), 0);
        free(plan);
        plan = NULL;
        assert_int_equal(ledger_frozen(l, i.token, &plan), LEDGER_E_NOT_FOUND);
        ledger_close(l);
        assert_return_code(db_open(&db, path), 0);
        assert_return_code(db_get_int(db, "SELECT count(*) FROM frozen", NULL, &n), 0);
        assert_int_equal(n, 0);
        db_close(db);
}

/* A drain is of one boot: it outlives anchord, and no reboot. */
static void test_drain(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_(ledger_drain_done) LedgerDrain drain = {};
        _cleanup_item_ LedgerItem a = {}, none = {};
        LedgerEvent e = {};
        int64_t before = 0, after = 0;

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        assert_int_equal(ledger_drain_get(l, BOOT, &drain), 0);
        assert_false(drain.active);

        assert_int_equal(ledger_drain_set(l, BOOT, 1000, "uid 0", "upgrade"), 0);
        assert_int_equal(claim(l, "r000000000001", &none), LEDGER_E_HELD);
        l = ledger_close(l);
        assert_int_equal(ledger_open(&l, path), 0);
        assert_int_equal(claim(l, "r000000000001", &none), LEDGER_E_HELD);
        assert_int_equal(ledger_drain_get(l, BOOT, &drain), 0);
        assert_true(drain.active);
        assert_int_equal(drain.until_usec, 1000);
        assert_string_equal(drain.actor, "uid 0");
        assert_string_equal(drain.reason, "upgrade");
        ledger_drain_done(&drain);

        /* another time */
        assert_int_equal(ledger_drain_set(l, BOOT, 2000, "uid 1", NULL), 0);
        assert_int_equal(ledger_drain_get(l, BOOT, &drain), 0);
        assert_int_equal(drain.until_usec, 2000);
        assert_null(drain.reason);

        /* the next boot */
        assert_int_equal(ledger_claim_next(l, "r000000000001", "another boot", 5000, 1, &a), 0);
        assert_int_equal(change(l, a.id, ITEM_QUEUED), 0);
        assert_int_equal(claim(l, "r000000000002", &none), LEDGER_E_HELD);

        assert_int_equal(ledger_drain_clear(l, BOOT, "uid 0"), 0);
        assert_int_equal(claim(l, "r000000000002", &none), 0);
        assert_int_equal(ledger_outbox_count(l, &before), 0);
        assert_int_equal(ledger_drain_clear(l, BOOT, "uid 0"), 0); /* there is none: nothing is recorded */
        assert_int_equal(ledger_outbox_count(l, &after), 0);
        assert_int_equal(before, after);

        for (int64_t id = 0; ledger_outbox_next(l, id, &e) == 0; ledger_event_done(&e)) {
                id = e.id;
                before -= strncmp(e.event, "drain.", strlen("drain.")) == 0;
        }
        assert_int_equal(after - before, 3);
}

static void test_leases(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_item_ LedgerItem a = {}, b = {}, none = {};
        LedgerChange c = {};

        assert_int_equal(claim(l, "r000000000001", &none), LEDGER_E_NO_WORK);
        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(submit(l, "i000000000002", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        assert_int_equal(change(l, "i000000000002", ITEM_QUEUED), 0);

        assert_int_equal(ledger_hold_set(l, true, "uid 0", "maintenance"), 0);
        assert_int_equal(claim(l, "r000000000001", &none), LEDGER_E_HELD);
        assert_int_equal(ledger_hold_set(l, false, "uid 0", NULL), 0);

        assert_int_equal(claim(l, "r000000000001", &a), 0);
        assert_string_equal(a.id, "i000000000001");
        assert_string_equal(a.run, "r000000000001");
        assert_int_equal(a.token, 1);
        assert_int_equal(claim(l, "r000000000002", &b), 0);
        assert_string_equal(b.id, "i000000000002");
        assert_int_equal(b.token, 2);
        assert_int_equal(claim(l, "r000000000003", &none), LEDGER_E_NO_WORK);

        /* expired, back in the queue, leased again: the old token does nothing any more */
        assert_int_equal(change(l, a.id, ITEM_QUEUED), 0);
        assert_int_equal(claim(l, "r000000000003", &none), 0);
        assert_int_equal(none.token, 3);
        c = (LedgerChange) { .item = a.id, .revision = none.revision, .token = a.token, .to = ITEM_RUNNING, .actor = "x" };
        assert_int_equal(ledger_transition(l, &c, NULL), LEDGER_E_STALE);
        assert_int_equal(ledger_lease_extend(l, a.id, a.token, 5000), LEDGER_E_STALE);
        assert_int_equal(ledger_lease_extend(l, a.id, none.token, 5000), 0);
        assert_int_equal(ledger_run_add(l, a.id, a.token, "r000000000009"), LEDGER_E_STALE);
        c.token = none.token;
        assert_int_equal(ledger_transition(l, &c, NULL), 0);
}

static int collect(const LedgerItem *i, void *userdata) {
        unsigned *n = userdata;

        (*n)++;
        return 0;
}

static void test_expiry(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_item_ LedgerItem a = {};
        unsigned n = 0;

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        assert_int_equal(claim(l, "r000000000001", &a), 0);
        assert_int_equal(ledger_lease_expired(l, BOOT, 999, collect, &n), 0);
        assert_int_equal(n, 0);
        assert_int_equal(ledger_lease_expired(l, BOOT, 1000, collect, &n), 0);
        assert_int_equal(n, 1);
}

/* Whoever got nothing at some time finds in ledger_next_time() when to ask again: later than that time, or nothing would ever wake them. */
static void test_time_of_the_next(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_item_ LedgerItem failed = {}, none = {}, leased = {};
        const char *id = "i000000000001";
        const uint64_t due = 5000000;
        uint64_t next;

        assert_int_equal(ledger_next_time(l, &next), LEDGER_E_NO_WORK);
        assert_int_equal(submit(l, id, NULL), 0);
        walk_to(l, id, ITEM_FAILED);
        failed = get(l, id);
        assert_int_equal(ledger_transition(l, &(LedgerChange) { .item = id, .revision = failed.revision, .to = ITEM_QUEUED, .actor = "test",
                                                                .reason = "next attempt", .not_before_usec = (int64_t) due }, NULL), 0);

        assert_int_equal(ledger_claim_next(l, "r000000000009", BOOT, 1000, due - 1, &none), LEDGER_E_NO_WORK);
        assert_int_equal(ledger_next_time(l, &next), 0);
        assert_int_equal(next, due);
        assert_int_equal(ledger_claim_next(l, "r000000000009", BOOT, 1000, due, &leased), 0);
        assert_int_equal(ledger_next_time(l, &next), LEDGER_E_NO_WORK);
}

static void test_attempts(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        const char *id = "i000000000001";

        assert_int_equal(submit(l, id, NULL), 0);
        walk_to(l, id, ITEM_RUNNING);
        assert_int_equal(change(l, id, ITEM_FAILED), 0);
        assert_int_equal(change(l, id, ITEM_QUEUED), 0);
        for (ItemState s = ITEM_LEASED; s <= ITEM_RUNNING; s++)
                assert_int_equal(step_to(l, id, s), 0);
        {
                _cleanup_item_ LedgerItem i = get(l, id);
                assert_int_equal(i.attempt, 2);
        }
        assert_int_equal(change(l, id, ITEM_FAILED), 0);
        assert_int_equal(change(l, id, ITEM_QUEUED), LEDGER_E_ILLEGAL); /* of two attempts, none left */
        assert_int_equal(change(l, id, ITEM_EXHAUSTED), 0);
}

static void test_verdict_is_for_one_commit(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_item_ LedgerItem i = {}, after = {};
        const char *id = "i000000000001";
        LedgerChange c;

        assert_int_equal(submit(l, id, NULL), 0);
        walk_to(l, id, ITEM_IN_REVIEW);
        i = get(l, id);
        assert_string_equal(i.result_commit, COMMIT_B);

        c = (LedgerChange) { .item = id, .revision = i.revision, .to = ITEM_APPROVED, .actor = "x", .approvals = "[]", .reviewed_commit = COMMIT_A };
        assert_int_equal(ledger_transition(l, &c, NULL), LEDGER_E_ILLEGAL);
        c.reviewed_commit = COMMIT_B;
        assert_int_equal(ledger_transition(l, &c, &c.revision), 0);

        c = (LedgerChange) { .item = id, .revision = c.revision, .to = ITEM_AUTHORIZED, .actor = "x", .authorization = "{}", .result_commit = COMMIT_A };
        assert_int_equal(ledger_transition(l, &c, NULL), LEDGER_E_ILLEGAL);
        c.to = ITEM_IN_REVIEW; /* the commit moved */
        c.authorization = NULL;
        assert_int_equal(ledger_transition(l, &c, &c.revision), 0);
        c = (LedgerChange) { .item = id, .revision = c.revision, .to = ITEM_APPROVED, .actor = "x" };
        assert_int_equal(ledger_transition(l, &c, NULL), LEDGER_E_ILLEGAL); /* the approval went with the old commit */
        after = get(l, id);
        assert_int_equal(after.state, ITEM_IN_REVIEW);
}

static void test_source_and_duplicates(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_item_ LedgerItem duplicate = {};

        assert_int_equal(submit(l, "i000000000001", "github:1"), 0);
        assert_int_equal(submit(l, "i000000000002", "github:1"), LEDGER_E_DUPLICATE);
        duplicate = get(l, "i000000000002");
        assert_string_equal(duplicate.reason, "item i000000000001 with this source is still open");
        assert_int_equal(submit(l, "i000000000003", NULL), 0);
        assert_int_equal(submit(l, "i000000000004", NULL), 0); /* never merged without a source */
        assert_int_equal(submit(l, "i000000000004", NULL), -EEXIST);
        assert_int_equal(change(l, "i000000000001", ITEM_CANCELLED), 0);
        assert_int_equal(submit(l, "i000000000005", "github:1"), 0);
}

static void test_runs_and_usage(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_item_ LedgerItem i = {};
        _cleanup_(ledger_run_done) LedgerRun run = {};
        _cleanup_json_ json_t *show = NULL, *policies = NULL, *expected = json_pack("{s:[s]}", "r000000000001", "d1");
        _cleanup_free_ char *note = NULL;
        LedgerUsage u = { .call = "c1", .provider = "anthropic", .model = "m", .input_tokens = 10, .cost_microusd = 30 };
        int64_t n, after;

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        assert_int_equal(claim(l, "r000000000001", &i), 0);
        assert_int_equal(ledger_policies(l, "i000000000001", 1, &policies), 0);
        assert_int_equal(json_object_size(policies), 0);
        json_decref(policies);
        assert_int_equal(ledger_outbox_count(l, &n), 0);
        assert_int_equal(ledger_run_start(l, "r000000000001", "tcg", "d1"), 0);
        assert_int_equal(ledger_run_start(l, "r000000000001", "tcg", "d1"), LEDGER_E_DUPLICATE);
        assert_int_equal(ledger_run_start(l, "r000000000009", "tcg", "d1"), LEDGER_E_NOT_FOUND);
        assert_int_equal(ledger_outbox_count(l, &after), 0);
        assert_int_equal(after, n + 1); /* run.started */
        assert_int_equal(ledger_policies(l, "i000000000001", 1, &policies), 0);
        assert_true(json_equal(policies, expected));
        assert_int_equal(json_array_append_new(json_object_get(expected, "r000000000001"), json_string("d2")), 0);
        assert_int_equal(ledger_run_set_policies(l, "r000000000001", json_object_get(expected, "r000000000001")), 0);
        assert_int_equal(ledger_run_set_policies(l, "r000000000009", json_object_get(expected, "r000000000001")), LEDGER_E_NOT_FOUND);
        json_decref(policies);
        assert_int_equal(ledger_policies(l, "i000000000001", 1, &policies), 0);
        assert_true(json_equal(policies, expected));
        assert_int_equal(ledger_run_tell(l, "r000000000001", 1, &(LedgerTold) { .boot = true }), 0);
        assert_int_equal(ledger_run_tell(l, "r000000000001", 1, &(LedgerTold) { .boot = true }), LEDGER_E_DUPLICATE);
        assert_int_equal(ledger_run_tell(l, "r000000000009", 1, &(LedgerTold) { .boot = true }), LEDGER_E_NOT_FOUND);
        assert_int_equal(ledger_add_usage(l, "r000000000001", &u), 0);
        assert_int_equal(ledger_add_usage(l, "r000000000001", &u), LEDGER_E_DUPLICATE);
        u.call = NULL;
        assert_int_equal(ledger_add_usage(l, "r000000000001", &u), 0);
        assert_int_equal(ledger_add_usage(l, "r000000000002", &u), LEDGER_E_NOT_FOUND);
        assert_int_equal(ledger_run_finish(l, "r000000000001", "ok", "", "{\"exit\":0}"), 0);
        assert_int_equal(ledger_run_finish(l, "r000000000001", "ok", "", NULL), 0);
        assert_int_equal(ledger_run_finish(l, "r000000000001", "failed", "no", NULL), LEDGER_E_ILLEGAL);
        assert_int_equal(ledger_run_add(l, i.id, i.token, "r000000000002"), 0);
        assert_int_equal(ledger_run_get(l, "r000000000002", &run), 0);
        assert_true(run.verify);
        assert_int_equal(ledger_add_note(l, i.id, NULL, "enforcer.lost", "egressd does not answer"), 0);
        assert_int_equal(ledger_run_note(l, i.id, "r000000000002", "enforcer.lost", &note), LEDGER_E_NOT_FOUND);
        assert_int_equal(ledger_add_note(l, i.id, "r000000000001", "enforcement.mismatch", "one"), 0);
        assert_int_equal(ledger_add_note(l, i.id, "r000000000001", "enforcement.mismatch", "two"), 0);
        assert_int_equal(ledger_run_note(l, i.id, "r000000000002", "enforcement.mismatch", &note), LEDGER_E_NOT_FOUND);
        assert_int_equal(ledger_run_note(l, i.id, "r000000000001", "enforcement.mismatch", &note), 0);
        assert_string_equal(note, "one");

        assert_int_equal(ledger_show(l, i.id, &show), 0);
        assert_int_equal(json_integer_value(json_object_get(show, "cost_microusd")), 60);
        assert_int_equal(json_array_size(json_object_get(show, "runs")), 2);
        /* a time has one name, whether it has come or not */
        assert_true(json_is_null(json_object_get(json_array_get(json_object_get(show, "runs"), 1), "released")));
        assert_null(json_object_get(json_array_get(json_object_get(show, "runs"), 1), "released_usec"));
        assert_int_equal(json_array_size(json_object_get(show, "history")), 3);
        assert_int_equal(json_array_size(json_object_get(show, "notes")), 3);
        assert_string_equal(json_string_value(json_object_get(show, "run")), "r000000000002");
        assert_int_equal(ledger_show(l, "i999999999999", &show), LEDGER_E_NOT_FOUND);
}

static int prune(Ledger *l, const char *item, LedgerPart part) {
        LedgerPrune p = { .part = part, .bytes = 7, .why = "age" };

        (void) snprintf(p.item, sizeof(p.item), "%s", item);
        return ledger_prune(l, &p, 1, "test");
}

static int count_kept(const LedgerKept *item, void *userdata) {
        unsigned *n = userdata;

        n[item->ended]++;
        return 0;
}

/* What has ended may be pruned, once; nothing else, and what was pruned stays so. */
static void test_pruned(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        unsigned kept[2] = {};
        char item[ID_LENGTH + 1];
        LedgerPart part;
        uint64_t usec;
        Db *db;

        for (unsigned i = 1; i <= 2; i++)
                assert_int_equal(submit(l, make_id('i', i), NULL), 0);
        assert_int_equal(prune(l, "i000000000001", LEDGER_PART_BUNDLES), LEDGER_E_ILLEGAL);
        assert_int_equal(prune(l, "i000000000009", LEDGER_PART_BUNDLES), LEDGER_E_ILLEGAL);
        assert_int_equal(ledger_prune_next(l, item, &part), LEDGER_E_NO_WORK);

        assert_int_equal(change(l, "i000000000001", ITEM_CANCELLED), 0);
        assert_int_equal(ledger_kept(l, count_kept, kept), 0);
        assert_true(kept[0] == 1 && kept[1] == 1);
        assert_int_equal(prune(l, "i000000000001", LEDGER_PART_BUNDLES), 0);
        assert_int_equal(prune(l, "i000000000001", LEDGER_PART_BUNDLES), LEDGER_E_ILLEGAL);
        assert_int_equal(ledger_pruned(l, "i000000000001", LEDGER_PART_LOGS, &usec), LEDGER_E_NOT_FOUND);
        assert_int_equal(prune(l, "i000000000001", LEDGER_PART_LOGS), 0);
        assert_int_equal(ledger_pruned(l, "i000000000001", LEDGER_PART_LOGS, &usec), 0);
        assert_true(usec > 0);
        assert_int_equal(ledger_kept(l, count_kept, kept), 0);
        assert_true(kept[0] == 2 && kept[1] == 1); /* nothing is left of the first */

        assert_int_equal(ledger_prune_next(l, item, &part), 0);
        assert_string_equal(item, "i000000000001");
        assert_int_equal(ledger_prune_done(l, item, part), 0);
        assert_int_equal(ledger_prune_next(l, item, &part), 0);
        assert_int_equal(ledger_prune_done(l, item, part), 0);
        assert_int_equal(ledger_prune_next(l, item, &part), LEDGER_E_NO_WORK);

        assert_return_code(db_open(&db, path), 0);
        assert_int_equal(db_exec(db, "DELETE FROM pruned"), -EPERM);
        assert_int_equal(db_exec(db, "UPDATE pruned SET bytes = 0"), -EPERM);
        db_close(db);
}

static void test_cost(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        json_t *rows[_LEDGER_COST_BY_MAX + 2] = {};
        LedgerUsage u = { .provider = "p", .model = "m", .status = 200, .input_tokens = 10, .output_tokens = 1, .cost_microusd = 30 };
        _cleanup_item_ LedgerItem i = {}, j = {};
        uint64_t before = time_realtime();

        assert_int_equal(ledger_cost(l, LEDGER_COST_BY_ITEM, NULL, 0, &rows[0]), 0);
        assert_int_equal(json_array_size(rows[0]), 0);
        json_decref(rows[0]);

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(submit(l, "i000000000002", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        assert_int_equal(change(l, "i000000000002", ITEM_QUEUED), 0);
        assert_int_equal(claim(l, "r000000000001", &i), 0);
        assert_int_equal(claim(l, "r000000000002", &j), 0);
        assert_int_equal(ledger_add_usage(l, "r000000000001", &u), 0);
        u.status = 500;
        u.estimated = true;
        u.model = "n";
        assert_int_equal(ledger_add_usage(l, "r000000000001", &u), 0);
        assert_int_equal(ledger_add_usage(l, "r000000000002", &u), 0);

        for (LedgerCostBy by = 0; by < _LEDGER_COST_BY_MAX; by++) {
                json_int_t cost = 0, calls = 0, failed = 0;

                assert_int_equal(ledger_cost(l, by, NULL, before, &rows[by]), 0);
                for (size_t k = 0; k < json_array_size(rows[by]); k++) {
                        const json_t *row = json_array_get(rows[by], k);

                        cost += json_integer_value(json_object_get(row, "cost_microusd"));
                        calls += json_integer_value(json_object_get(row, "calls"));
                        failed += json_integer_value(json_object_get(row, "failed"));
                }
                assert_int_equal(cost, 90);
                assert_int_equal(calls, 3);
                assert_int_equal(failed, 2);
        }
        assert_int_equal(json_array_size(rows[LEDGER_COST_BY_RUN]), 3);
        assert_int_equal(json_array_size(rows[LEDGER_COST_BY_ITEM]), 2);
        assert_int_equal(json_array_size(rows[LEDGER_COST_BY_WORKFLOW]), 1);
        assert_int_equal(json_array_size(rows[LEDGER_COST_BY_DAY]), 1);
        assert_int_equal(json_array_size(rows[LEDGER_COST_BY_MODEL]), 2);
        assert_int_equal(strlen(json_string_value(json_object_get(json_array_get(rows[LEDGER_COST_BY_DAY], 0), "day"))), 10);

        assert_int_equal(ledger_cost(l, LEDGER_COST_BY_MODEL, "i000000000002", 0, &rows[_LEDGER_COST_BY_MAX]), 0);
        assert_int_equal(json_array_size(rows[_LEDGER_COST_BY_MAX]), 1);
        assert_int_equal(json_integer_value(json_object_get(json_array_get(rows[_LEDGER_COST_BY_MAX], 0), "estimated")), 1);
        assert_int_equal(ledger_cost(l, LEDGER_COST_BY_DAY, NULL, time_realtime() + 1000000, &rows[_LEDGER_COST_BY_MAX + 1]), 0);
        assert_int_equal(json_array_size(rows[_LEDGER_COST_BY_MAX + 1]), 0);
        for (size_t k = 0; k < ELEMENTSOF(rows); k++)
                json_decref(rows[k]);
}

static void test_effects(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(ledger_effect_done(l, "k"), LEDGER_E_NOT_FOUND);
        assert_int_equal(ledger_effect_ask(l, "k", "i000000000001", "push"), 0);
        assert_int_equal(ledger_effect_ask(l, "k", "i000000000001", "push"), 0); /* not known to be done: ask again */
        assert_int_equal(ledger_effect_done(l, "k"), 0);
        assert_int_equal(ledger_effect_ask(l, "k", "i000000000001", "push"), LEDGER_E_DUPLICATE);
}

static void test_rebind(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_item_ LedgerItem i = {}, after = {};
        int64_t before, n;

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        assert_int_equal(claim(l, "r000000000001", &i), 0);
        assert_int_equal(ledger_outbox_count(l, &before), 0);
        assert_int_equal(ledger_item_rebind(l, &i, "u"), 0);
        assert_string_equal(i.template_digest, "u");
        after = get(l, i.id);
        assert_string_equal(after.template_digest, "u");
        assert_int_equal(after.state, ITEM_LEASED);
        assert_int_equal(after.revision, i.revision);
        assert_int_equal(ledger_outbox_count(l, &n), 0);
        assert_int_equal(n, before + 1);

        /* somebody else changed it meanwhile: nothing is written */
        i.revision--;
        assert_int_equal(ledger_item_rebind(l, &i, "v"), LEDGER_E_CONFLICT);
        assert_string_equal(i.template_digest, "u");
        assert_int_equal(ledger_outbox_count(l, &n), 0);
        assert_int_equal(n, before + 1);
}

static void test_outbox(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_(ledger_event_done) LedgerEvent e = {}, f = {};
        int64_t n;

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        assert_int_equal(ledger_outbox_count(l, &n), 0);
        assert_int_equal(n, 2);
        assert_int_equal(ledger_outbox_next(l, 0, &e), 0);
        assert_string_equal(e.event, "item.submitted");
        assert_non_null(strstr(e.data, "\"key\":\"anchord-1\""));
        assert_int_equal(ledger_outbox_next(l, e.id, &f), 0);
        assert_string_equal(f.event, "item.transition");
        assert_int_equal(ledger_outbox_remove(l, e.id), 0);
        assert_int_equal(ledger_outbox_count(l, &n), 0);
        assert_int_equal(n, 1);
}

static void test_recover(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_item_ LedgerItem a = {}, b = {}, after = {}, fresh_item = {}, failed = {};
        unsigned n = 0;

        for (unsigned i = 1; i <= 4; i++)
                assert_int_equal(submit(l, make_id('i', i), NULL), 0);
        for (unsigned i = 1; i <= 3; i++)
                assert_int_equal(change(l, make_id('i', i), ITEM_QUEUED), 0);
        assert_int_equal(ledger_claim_next(l, "r000000000001", "boot-0", 1000, 1, &a), 0);
        assert_int_equal(ledger_claim_next(l, "r000000000002", BOOT, 1000, 1, &b), 0);
        assert_int_equal(change(l, a.id, ITEM_RUNNING), 0);
        assert_int_equal(change(l, "i000000000003", ITEM_FAILED), 0);

        assert_int_equal(ledger_recover(l, BOOT, collect, &n), 0);
        assert_int_equal(n, 1); /* only the lease of this boot is asked about */
        after = get(l, a.id);
        assert_int_equal(after.state, ITEM_QUEUED);
        assert_int_equal(after.attempt, 1); /* kept */
        assert_int_equal(after.token, 0);
        fresh_item = get(l, "i000000000004");
        assert_int_equal(fresh_item.state, ITEM_QUEUED);
        failed = get(l, "i000000000003");
        assert_int_equal(failed.state, ITEM_QUEUED);
        assert_int_equal(failed.attempt, 2);
}

/* Whoever was told that an item is stopped can rely on it, also if the host goes down before its run is cleaned up. Stopped in order to be handed back is another thing. */
static void test_recover_stopped(void **state) {
        static const struct { const char *outcome, *note, *note2, *reason; ItemState becomes; } cases[] = {
                { "stopped", NULL, NULL, "by outcome", ITEM_CANCELLED },
                { "ok", "run.stopping", NULL, "by note", ITEM_CANCELLED },
                { NULL, "run.stopping", NULL, "by note", ITEM_CANCELLED },
                { "stopped", "run.handed_back", "run.stopping", "by note", ITEM_CANCELLED },
                { "stopped", "run.handed_back", NULL, "host rebooted during the run", ITEM_QUEUED },
                { "error", "run.handed_back", NULL, "host rebooted during the run", ITEM_QUEUED },
                { "failed", NULL, NULL, "host rebooted during the run", ITEM_QUEUED },
                { NULL, NULL, NULL, "host rebooted during the run", ITEM_QUEUED },
        };

        for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                _cleanup_(ledger_closep) Ledger *l = fresh();
                _cleanup_item_ LedgerItem a = {}, after = {};

                assert_int_equal(submit(l, "i000000000001", NULL), 0);
                assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
                assert_int_equal(ledger_claim_next(l, "r000000000001", "boot-0", 1000, 1, &a), 0);
                assert_int_equal(change(l, a.id, ITEM_RUNNING), 0);
                if (cases[i].outcome)
                        assert_int_equal(ledger_run_finish(l, a.run, cases[i].outcome, "by outcome", NULL), 0);
                if (cases[i].note)
                        assert_int_equal(ledger_add_note(l, a.id, a.run, cases[i].note, "by note"), 0);
                if (cases[i].note2)
                        assert_int_equal(ledger_add_note(l, a.id, a.run, cases[i].note2, "by note"), 0);
                assert_int_equal(ledger_recover(l, BOOT, NULL, NULL), 0);
                after = get(l, a.id);
                assert_int_equal(after.state, cases[i].becomes);
                assert_string_equal(after.reason, cases[i].reason);
                assert_int_equal(after.token, 0);
                assert_int_equal(after.attempt, 1);
        }
}

static void test_recover_is_bounded(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_item_ LedgerItem after = {};
        char boot[32];
        unsigned leases = 0;

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        for (unsigned i = 1; i < 100; i++) {
                _cleanup_item_ LedgerItem a = {};

                (void) snprintf(boot, sizeof(boot), "boot-%u", i);
                assert_int_equal(ledger_recover(l, boot, NULL, NULL), 0);
                if (ledger_claim_next(l, make_id('r', i), boot, 1000, time_realtime(), &a) != 0)
                        break;
                leases++;
        }
        after = get(l, "i000000000001");
        assert_int_equal(after.state, ITEM_EXHAUSTED);
        assert_int_equal(leases, 2 * LEDGER_LEASES_PER_ATTEMPT);
}

static int count_row(json_t *row, void *userdata) {
        struct {
                unsigned n;
                char last[16];
        } *seen = userdata;
        const char *id = json_string_value(json_object_get(row, "id"));

        assert_true(strcmp(id, seen->last) > 0);
        (void) snprintf(seen->last, sizeof(seen->last), "%s", id);
        seen->n++;
        return 0;
}

static void test_huge_list(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_(db_closep) Db *db = NULL;
        struct { unsigned n; char last[16]; } seen = {};
        const char *const none[] = { "in_review", NULL };
        unsigned before;

        assert_int_equal(db_open(&db, path), 0);
        assert_int_equal(db_exec(db,
                        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 10000)"
                        " INSERT INTO item (id, state, revision, actor, requester, workflow, workflow_digest, template, template_digest,"
                        " max_attempts, created_usec, changed_usec)"
                        " SELECT printf('i%012d', n), 'submitted', 1, 'a', 'a', 'w', 'd', 't', 'd', 3, 1, 1 FROM c"), 0);
        db = db_close(db);

        do {
                before = seen.n;
                assert_int_equal(ledger_list(l, NULL, seen.last[0] ? seen.last : NULL, 1000, count_row, &seen), 0);
        } while (seen.n > before);
        assert_int_equal(seen.n, 10000);

        assert_int_equal(ledger_list(l, none, NULL, 1000, count_row, &seen), 0);
        assert_int_equal(seen.n, 10000);
        assert_int_equal(ledger_list(l, NULL, NULL, 0, count_row, &seen), -EINVAL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_matrix),
                cmocka_unit_test(test_end_states_never_change),
                cmocka_unit_test(test_direct_sql_is_refused),
                cmocka_unit_test(test_compare_and_swap),
                cmocka_unit_test(test_leases),
                cmocka_unit_test(test_frozen),
                cmocka_unit_test(test_drain),
                cmocka_unit_test(test_expiry),
                cmocka_unit_test(test_time_of_the_next),
                cmocka_unit_test(test_attempts),
                cmocka_unit_test(test_verdict_is_for_one_commit),
                cmocka_unit_test(test_source_and_duplicates),
                cmocka_unit_test(test_runs_and_usage),
                cmocka_unit_test(test_pruned),
                cmocka_unit_test(test_cost),
                cmocka_unit_test(test_effects),
                cmocka_unit_test(test_rebind),
                cmocka_unit_test(test_outbox),
                cmocka_unit_test(test_recover),
                cmocka_unit_test(test_recover_stopped),
                cmocka_unit_test(test_recover_is_bounded),
                cmocka_unit_test(test_huge_list),
        };

        return cmocka_run_group_tests(tests, set_up, tear_down);
}
