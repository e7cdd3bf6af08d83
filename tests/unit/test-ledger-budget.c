/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Budgets in the ledger: caps that several runs share, and what becomes of blocks and reservations when somebody dies. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ledger/ledger-budget.h"
#include "util/json.h"
#include "util/sqlite.h"

#define BOOT "boot1"

static char directory[] = "/tmp/anchorhold-budget-XXXXXX";
static char path[128];

static Ledger *open_ledger(void) {
        Ledger *l = NULL;

        assert_int_equal(ledger_open(&l, path), 0);
        return l;
}

/* With items i…1, i…2, … of one workflow, each leased to run r…N. */
static Ledger *fresh(unsigned n_runs) {
        static const char *const ends[] = { "", "-wal", "-shm" };
        Ledger *l;

        for (size_t i = 0; i < 3; i++) {
                char name[160];

                (void) snprintf(name, sizeof(name), "%s%s", path, ends[i]);
                (void) unlink(name);
        }
        l = open_ledger();
        for (unsigned n = 1; n <= n_runs; n++) {
                _cleanup_item_ LedgerItem item = {};
                char id[16], run[16];

                (void) snprintf(id, sizeof(id), "i%012u", n);
                (void) snprintf(run, sizeof(run), "r%012u", n);
                assert_int_equal(ledger_submit(l, &(LedgerSubmission) {
                        .id = id, .requester = "uid 1000", .workflow = "code-fix", .workflow_digest = "w", .task = "fix it",
                        .template_name = "base", .template_digest = "t", .max_attempts = 2,
                }), 0);
                assert_int_equal(ledger_transition(l, &(LedgerChange) { .item = id, .revision = 1, .to = ITEM_QUEUED, .actor = "test" }, NULL), 0);
                assert_int_equal(ledger_claim_next(l, run, BOOT, 1000, 1, &item), 0);
        }
        return l;
}

static LedgerCaps no_caps(void) {
        LedgerCaps caps;

        for (LedgerScope s = 0; s < _LEDGER_SCOPE_MAX; s++)
                caps.of[s] = (LedgerAmount) { LEDGER_UNLIMITED, LEDGER_UNLIMITED, LEDGER_UNLIMITED };
        return caps;
}

static int reserve(Ledger *l, const LedgerCaps *caps, unsigned run, const char *life, const char *call, int64_t tokens, int64_t cost, LedgerBudget *ret) {
        LedgerBudget b = {};
        char id[16];
        int r;

        (void) snprintf(id, sizeof(id), "r%012u", run);
        r = ledger_reserve(l, &(LedgerReservation) {
                .run = id, .life = life, .call = call, .provider = "p", .model = "m", .input_tokens = tokens / 2, .output_tokens = tokens - tokens / 2,
                .cost_microusd = cost,
        }, caps, &b);
        if (ret)
                *ret = b;
        return r;
}

static int report(Ledger *l, unsigned run, const char *call, int64_t tokens, int64_t cost) {
        char id[16];

        (void) snprintf(id, sizeof(id), "r%012u", run);
        return ledger_add_usage(l, id, &(LedgerUsage) { .call = call, .provider = "p", .model = "m", .output_tokens = tokens, .cost_microusd = cost, .status = 200 });
}

static int64_t number(const char *sql) {
        int64_t n;
        Db *db;

        assert_return_code(db_open(&db, path), 0);
        assert_return_code(db_get_int(db, sql, NULL, &n), 0);
        db_close(db);
        return n;
}

static void test_reserve_and_settle(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh(1);
        LedgerCaps caps = no_caps();
        LedgerBudget b;

        caps.of[LEDGER_SCOPE_RUN].cost_microusd = 100;
        assert_int_equal(reserve(l, &caps, 1, "a", "c1", 10, 60, &b), 0);
        assert_int_equal(b.percent, 60);
        assert_string_equal(b.what, "cost");
        assert_int_equal(b.scope, LEDGER_SCOPE_RUN);
        assert_true(b.block.cost_microusd > 0 && b.block.cost_microusd <= 40);
        assert_true(b.block.tokens >= 20); /* no cap on these */

        /* the worst case of a second one does not fit beside it, and a smaller one does */
        assert_int_equal(reserve(l, &caps, 1, "a", "c2", 10, 41, &b), LEDGER_E_OVER_BUDGET);
        assert_int_equal(b.room.cost_microusd, 40);
        assert_true(b.room.tokens == LEDGER_UNLIMITED);
        assert_int_equal(number("SELECT count(*) FROM reservation"), 1);
        assert_int_equal(reserve(l, &caps, 1, "a", "c2", 10, 40, &b), 0);
        assert_int_equal(b.percent, 100);
        assert_int_equal(b.block.cost_microusd, 0);

        /* said again, or with its answer lost: counted once */
        assert_int_equal(reserve(l, &caps, 1, "a", "c2", 10, 40, &b), 0);
        assert_int_equal(number("SELECT count(*) FROM reservation"), 2);

        /* what a call did not use is free again; what did not take place as well */
        assert_int_equal(report(l, 1, "c1", 5, 10), 0);
        assert_int_equal(report(l, 1, "c1", 5, 10), LEDGER_E_DUPLICATE);
        assert_int_equal(ledger_unreserve(l, "r000000000001", "c2"), 0);
        assert_int_equal(reserve(l, &caps, 1, "a", "c3", 10, 91, &b), LEDGER_E_OVER_BUDGET);
        assert_int_equal(b.room.cost_microusd, 90);
        assert_int_equal(reserve(l, &caps, 1, "a", "c3", 10, 90, &b), 0);
        assert_int_equal(reserve(l, &caps, 1, "a", "c1", 10, 90, &b), 0); /* reported long ago */
        assert_int_equal(number("SELECT count(*) FROM reservation"), 1);
        assert_int_equal(reserve(l, &caps, 2, "a", "c1", 1, 1, &b), LEDGER_E_NOT_FOUND);
}

static void test_each_cap(void **state) {
        static const LedgerAmount one = { 1, LEDGER_UNLIMITED, LEDGER_UNLIMITED }, tokens = { LEDGER_UNLIMITED, 15, LEDGER_UNLIMITED };
        LedgerBudget b;

        for (LedgerScope s = 0; s < _LEDGER_SCOPE_MAX; s++)
                for (unsigned k = 0; k < 2; k++) {
                        _cleanup_(ledger_closep) Ledger *l = fresh(2);
                        LedgerCaps caps = no_caps();
                        /* a cap of the run or the item is not the neighbour's */
                        bool shared = s >= LEDGER_SCOPE_WORKFLOW;

                        caps.of[s] = k == 0 ? one : tokens;
                        assert_int_equal(reserve(l, &caps, 1, "a", "c1", 10, 60, &b), 0);
                        assert_int_equal(reserve(l, &caps, 1, "a", "c2", 10, 60, &b), LEDGER_E_OVER_BUDGET);
                        assert_int_equal(b.scope, s);
                        assert_string_equal(b.what, k == 0 ? "requests" : "tokens");
                        assert_int_equal(reserve(l, &caps, 2, "b", "c1", 10, 60, &b), shared ? LEDGER_E_OVER_BUDGET : 0);
                }
}

/* Another life of the enforcer: what it had under way is charged once, what was granted ahead returns. */
static void test_life(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh(2);
        LedgerCaps caps = no_caps();
        LedgerBudget b;

        caps.of[LEDGER_SCOPE_HOST].cost_microusd = 1000;
        assert_int_equal(reserve(l, &caps, 1, "a", "a-1", 10, 100, &b), 0);
        assert_int_equal(reserve(l, &caps, 1, "a", "a-2", 10, 100, &b), 0);
        assert_true(b.block.cost_microusd > 0);
        assert_int_equal(report(l, 1, "a-1", 1, 30), 0);

        assert_int_equal(reserve(l, &caps, 1, "b", "b-1", 10, 100, &b), 0);
        assert_int_equal(number("SELECT sum(cost_microusd) FROM usage"), 130);
        assert_int_equal(number("SELECT estimated FROM usage WHERE call = 'a-2'"), 1);
        assert_int_equal(number("SELECT cost FROM spent WHERE scope = 'run'"), 130);
        /* its report was on its way: counted already */
        assert_int_equal(report(l, 1, "a-2", 1, 30), LEDGER_E_DUPLICATE);
        assert_int_equal(number("SELECT sum(cost_microusd) FROM usage"), 130);
        assert_int_equal(number("SELECT count(*) FROM reservation"), 1);

        /* the run's end: again, and everything else is the other run's */
        assert_int_equal(ledger_budget_close(l, "r000000000001"), 0);
        assert_int_equal(ledger_budget_close(l, "r000000000001"), 0);
        assert_int_equal(number("SELECT sum(cost_microusd) FROM usage"), 230);
        assert_int_equal(reserve(l, &caps, 2, "c", "c-1", 10, 771, &b), LEDGER_E_OVER_BUDGET);
        assert_int_equal(reserve(l, &caps, 2, "c", "c-1", 10, 770, &b), 0);
}

/* We were away while the run went on: calls may have left that nobody knows of. */
static void test_doubt(void **state) {
        LedgerCaps caps = no_caps();
        LedgerBudget b;

        caps.of[LEDGER_SCOPE_RUN].cost_microusd = 1000;
        for (unsigned heard = 0; heard < 2; heard++) {
                _cleanup_(ledger_closep) Ledger *l = fresh(1);
                int64_t block;

                assert_int_equal(reserve(l, &caps, 1, "a", "a-1", 10, 100, &b), 0);
                assert_int_equal(report(l, 1, "a-1", 1, 50), 0);
                block = b.block.cost_microusd + 50; /* what a call did not use is the block's */
                ledger_close(l);
                l = open_ledger();
                assert_int_equal(ledger_budget_doubt(l, "r000000000001"), 0);

                /* the same life, with nothing pending: no doubt is left */
                if (heard)
                        assert_int_equal(reserve(l, &caps, 1, "a", "a-1", 10, 100, &b), 0);
                assert_int_equal(ledger_budget_close(l, "r000000000001"), 0);
                assert_int_equal(number("SELECT sum(cost_microusd) FROM usage"), heard ? 50 : 50 + block);
        }
}

/* Taken from the block while nobody could be asked: recorded whatever the caps say, and counted once. */
static void test_taken(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh(2);
        LedgerCaps caps = no_caps();
        LedgerReservation v = { .run = "r000000000001", .life = "a", .call = "a-2", .provider = "p", .model = "m", .cost_microusd = 50, .taken = true };
        LedgerBudget b;

        caps.of[LEDGER_SCOPE_HOST].cost_microusd = 100;
        assert_int_equal(reserve(l, &caps, 1, "a", "a-1", 1, 40, &b), 0);
        assert_int_equal(reserve(l, &caps, 2, "b", "b-1", 1, 100 - 40 - b.block.cost_microusd, &b), 0);
        assert_int_equal(ledger_reserve(l, &v, &caps, &b), 0);
        assert_int_equal(ledger_reserve(l, &v, &caps, &b), 0);
        assert_int_equal(number("SELECT sum(cost) FROM reservation WHERE run = 'r000000000001'"), 90);
        assert_int_equal(report(l, 1, "a-2", 1, 50), 0);
        assert_int_equal(ledger_reserve(l, &v, &caps, &b), 0); /* the report overtook it */
        assert_int_equal(number("SELECT count(*) FROM reservation WHERE run = 'r000000000001'"), 1);
}

/* What gives a call back is read before what reserves it: nothing is reserved then, in whatever order and however often both are said, and nothing is charged. */
static void test_given_back_first(void **state) {
        Ledger *l = fresh(2);
        LedgerReservation late = { .run = "r000000000001", .life = "a", .call = "c2", .provider = "p", .model = "m", .cost_microusd = 60 };
        LedgerCaps caps = no_caps();
        LedgerBudget b;

        caps.of[LEDGER_SCOPE_HOST].cost_microusd = 100;
        assert_int_equal(ledger_unreserve(l, "r000000000001", "c1"), 0); /* the run's first of all */
        assert_int_equal(reserve(l, &caps, 1, "a", "c1", 10, 60, &b), LEDGER_E_SETTLED);
        assert_int_equal(number("SELECT count(*) FROM budget"), 0);
        assert_int_equal(reserve(l, &caps, 1, "a", "c2", 10, 60, &b), 0);
        assert_int_equal(ledger_unreserve(l, "r000000000001", "c2"), 0);
        assert_int_equal(ledger_unreserve(l, "r000000000001", "c2"), 0);
        assert_int_equal(ledger_budget_doubt(l, "r000000000001"), 0);

        ledger_close(l); /* as durable as a reservation */
        l = open_ledger();
        assert_int_equal(ledger_budget_close_stray(l), 0);
        assert_int_equal(reserve(l, &caps, 1, "a", "c2", 10, 60, &b), LEDGER_E_SETTLED); /* a try before the one that was answered */
        late.taken = true;
        assert_int_equal(ledger_reserve(l, &late, &caps, &b), LEDGER_E_SETTLED);
        assert_int_equal(number("SELECT count(*) FROM budget WHERE doubt"), 1); /* it is no word of the present */
        assert_int_equal(reserve(l, &caps, 2, "b", "c1", 10, 30, &b), 0);       /* that name is another run's as well; the 30 are what the first one's block leaves */
        assert_int_equal(number("SELECT count(*) FROM reservation"), 1);

        /* the end: nothing of it is left, and what comes still later opens nothing */
        assert_int_equal(report(l, 2, "c1", 1, 10), 0);
        assert_int_equal(ledger_unreserve(l, "r000000000002", "c2"), 0);
        for (unsigned i = 1; i <= 2; i++)
                assert_int_equal(ledger_budget_close(l, i == 1 ? "r000000000001" : "r000000000002"), 0);
        assert_int_equal(number("SELECT count(*) FROM unreserved"), 0);
        assert_int_equal(reserve(l, &caps, 2, "b", "c2", 10, 50, &b), LEDGER_E_SETTLED);
        assert_int_equal(ledger_unreserve(l, "r000000000002", "c3"), 0);
        assert_int_equal(number("SELECT count(*) FROM unreserved"), 0);
        assert_int_equal(number("SELECT count(*) FROM reservation"), 0);
        ledger_close(l);
}

/* Of runs that are gone without having been closed. */
static void test_given_back_stray(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh(1);

        assert_int_equal(ledger_unreserve(l, "r000000000001", "c1"), 0);
        assert_int_equal(ledger_budget_close_stray(l), 0);
        assert_int_equal(number("SELECT count(*) FROM unreserved"), 1);
        assert_int_equal(ledger_recover(l, "boot2", NULL, NULL), 0);
        assert_int_equal(ledger_budget_close_stray(l), 0);
        assert_int_equal(number("SELECT count(*) FROM unreserved"), 0);
}

static void test_stray_and_show(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh(1);
        _cleanup_json_ json_t *show = NULL;
        LedgerCaps caps = no_caps();
        LedgerBudget b;

        caps.of[LEDGER_SCOPE_ITEM] = (LedgerAmount) { 7, LEDGER_UNLIMITED, 100 };
        assert_int_equal(reserve(l, &caps, 1, "a", "a-1", 1, 40, &b), 0);
        assert_int_equal(ledger_budget_close_stray(l), 0);
        assert_int_equal(number("SELECT count(*) FROM budget WHERE closed"), 0);
        assert_int_equal(ledger_recover(l, "boot2", NULL, NULL), 0);
        assert_int_equal(ledger_budget_close_stray(l), 0);
        assert_int_equal(number("SELECT count(*) FROM budget WHERE closed"), 1);
        assert_int_equal(number("SELECT sum(cost_microusd) FROM usage"), 40);

        assert_int_equal(ledger_budget_show(l, "i000000000001", &caps, &show), 0);
        assert_int_equal(json_object_size(show), 1);
        show = (json_decref(show), NULL);
        assert_int_equal(ledger_budget_show(l, "i000000000001", &caps, &show), 0);
        assert_int_equal(json_integer_value(json_object_get(json_object_get(json_object_get(show, "item"), "cost"), "used")), 40);
        assert_int_equal(json_integer_value(json_object_get(json_object_get(json_object_get(show, "item"), "requests"), "cap")), 7);
        assert_int_equal(ledger_budget_say(l, "k"), 0);
        assert_int_equal(ledger_budget_say(l, "k"), LEDGER_E_DUPLICATE);
}

/* Runs race for the last dollar, and both sides die now and then: never more than the cap is used, and every call counts once. */
static void test_race(void **state) {
        enum { RUNS = 6, ROUNDS = 1500, CAP = 20000 };
        Ledger *l = fresh(RUNS);
        struct {
                unsigned life, next;
                char open[8][24]; /* calls under way */
                int64_t worst[8];
        } runs[RUNS + 1] = {};
        LedgerCaps caps = no_caps();
        int64_t refused = 0, reported = 0;

        caps.of[LEDGER_SCOPE_HOST].cost_microusd = CAP;
        caps.of[LEDGER_SCOPE_RUN].cost_microusd = CAP / 2;
        srand(1);
        for (unsigned round = 0; round < ROUNDS; round++) {
                unsigned n = 1 + (unsigned) rand() % RUNS, k = (unsigned) rand() % 8;
                char life[16];

                (void) snprintf(life, sizeof(life), "%u-%u", n, runs[n].life);
                if (rand() % 97 == 0) { /* we die; the enforcers do not */
                        ledger_close(l);
                        l = open_ledger();
                } else if (rand() % 53 == 0) { /* this enforcer dies */
                        runs[n].life++;
                        (void) memset(runs[n].open, 0, sizeof(runs[n].open));
                } else if (runs[n].open[k][0]) {
                        int64_t cost = rand() % (runs[n].worst[k] + 1);

                        assert_int_equal(report(l, n, runs[n].open[k], 1, cost), 0);
                        if (rand() % 4 == 0)
                                assert_int_equal(report(l, n, runs[n].open[k], 1, cost), LEDGER_E_DUPLICATE);
                        runs[n].open[k][0] = 0;
                        reported++;
                } else {
                        int64_t worst = 1 + rand() % 400;
                        int r;

                        (void) snprintf(runs[n].open[k], sizeof(runs[n].open[k]), "%s-%u", life, ++runs[n].next);
                        r = reserve(l, &caps, n, life, runs[n].open[k], 2, worst, NULL);
                        if (r == 0)
                                runs[n].worst[k] = worst;
                        else {
                                assert_int_equal(r, LEDGER_E_OVER_BUDGET);
                                runs[n].open[k][0] = 0;
                                refused++;
                        }
                }
                if (round % 50 == 0)
                        assert_true(number("SELECT coalesce((SELECT sum(cost_microusd) FROM usage), 0) + coalesce((SELECT sum(cost) FROM reservation), 0)") <= CAP);
        }
        assert_true(refused > 0);
        assert_true(reported > 100);
        for (unsigned n = 1; n <= RUNS; n++) {
                char run[16];

                (void) snprintf(run, sizeof(run), "r%012u", n);
                assert_int_equal(ledger_budget_close(l, run), 0);
        }
        assert_int_equal(number("SELECT count(*) FROM reservation"), 0);
        assert_true(number("SELECT sum(cost_microusd) FROM usage") <= CAP);
        assert_int_equal(number("SELECT sum(cost_microusd) FROM usage"), number("SELECT sum(cost) FROM spent WHERE scope = 'host'"));
        assert_int_equal(number("SELECT sum(cost_microusd) FROM usage"), number("SELECT sum(cost) FROM spent WHERE scope = 'run'"));
        assert_int_equal(number("SELECT count(*) FROM usage"), number("SELECT sum(requests) FROM spent WHERE scope = 'item'"));
        ledger_close(l);
}

static int setup(void **state) {
        if (!mkdtemp(directory))
                return -1;
        (void) snprintf(path, sizeof(path), "%s/ledger.db", directory);
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_reserve_and_settle),
                cmocka_unit_test(test_each_cap),
                cmocka_unit_test(test_life),
                cmocka_unit_test(test_doubt),
                cmocka_unit_test(test_taken),
                cmocka_unit_test(test_given_back_first),
                cmocka_unit_test(test_given_back_stray),
                cmocka_unit_test(test_stray_and_show),
                cmocka_unit_test(test_race),
        };

        return cmocka_run_group_tests(tests, setup, NULL);
}
