/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The ledger and the images before and after this one: files that they have written, and what waits for an operator when a host goes back. */

#include <errno.h>
#include <string.h>

#include "ledger-world.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/sqlite.h"

/* A ledger of the first version is brought up to date, and keeps what it has. */
static void test_older_schema(void **state) {
        Ledger *l = fresh();
        _cleanup_json_ json_t *show = NULL, *digests = json_pack("[s]", "d1");
        _cleanup_item_ LedgerItem i = {};
        Db *db;

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        assert_int_equal(claim(l, "r000000000001", &i), 0);
        ledger_close(l);
        assert_return_code(db_open(&db, path), 0);
        assert_return_code(db_exec(db, "ALTER TABLE run DROP COLUMN egress_digests; PRAGMA user_version = 1"), 0);
        db_close(db);

        assert_int_equal(ledger_open(&l, path), 0);
        assert_int_equal(ledger_run_set_policies(l, "r000000000001", digests), 0);
        assert_int_equal(ledger_show(l, "i000000000001", &show), 0);
        assert_true(json_equal(json_object_get(json_array_get(json_object_get(show, "runs"), 0), "egress_digests"), digests));
        ledger_close(l);
}

/* What the version before additions wrote with, word for word. */
#define OLDER_USAGE                                                                                                             \
        "INSERT INTO usage (run, item, call, provider, model, input_tokens, output_tokens, cache_read_tokens,"                  \
        " cache_write_tokens, cost_microusd, status, latency_us, time_usec)"                                                    \
        " SELECT id, item, 'old', 'anthropic', 'm', 1, 2, 3, 4, 5, 200, 6, 7 FROM run WHERE id = 'r000000000001'"

/* A file without additions gets them and keeps what it has; one with them still takes what an older anchord writes, under the version that it asks for. */
static void test_additions(void **state) {
        Ledger *l = fresh();
        LedgerUsage u = { .call = "c1", .provider = "anthropic", .model = "m", .price = "default", .prices_version = "1", .cost_microusd = 30, .estimated = true };
        _cleanup_item_ LedgerItem i = {};
        int64_t n;
        Db *db;

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        assert_int_equal(claim(l, "r000000000001", &i), 0);
        ledger_close(l);

        assert_return_code(db_open(&db, path), 0);
        assert_return_code(db_exec(db, "DROP TRIGGER usage_spent; DROP TABLE spent; DROP TABLE reservation; DROP TABLE budget; DROP TABLE budget_said; DROP TABLE site;"
                                       "DROP TABLE pruned; DROP TABLE space; DROP TABLE unreserved; DROP TABLE frozen; DROP TRIGGER frozen_end;"
                                       "DROP INDEX usage_time; ALTER TABLE usage DROP COLUMN price; ALTER TABLE usage DROP COLUMN prices_version;"
                                       "ALTER TABLE usage DROP COLUMN estimated; ALTER TABLE run DROP COLUMN told; DROP TABLE addition;" OLDER_USAGE), 0);
        db_close(db);

        assert_int_equal(ledger_open(&l, path), 0);
        assert_int_equal(ledger_add_usage(l, "r000000000001", &u), 0);
        ledger_close(l);

        /* back to the older one */
        assert_return_code(db_open(&db, path), 0);
        assert_return_code(db_get_int(db, "PRAGMA user_version", NULL, &n), 0);
        assert_int_equal(n, 2);
        assert_return_code(db_get_int(db, "SELECT sum(cost_microusd) FROM usage", NULL, &n), 0);
        assert_int_equal(n, 35);
        assert_int_equal(db_exec(db, OLDER_USAGE), -EEXIST); /* counted already */
        assert_return_code(db_exec(db, "INSERT INTO usage (run, item, provider, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,"
                                       " cost_microusd, status, latency_us, time_usec) SELECT id, item, 'p', 'm', 0, 0, 0, 0, 7, 200, 0, 0 FROM run"), 0);
        db_close(db);

        assert_int_equal(ledger_open(&l, path), 0);
        assert_int_equal(ledger_add_usage(l, "r000000000001", &u), LEDGER_E_DUPLICATE);
        ledger_close(l);
        assert_return_code(db_open(&db, path), 0);
        assert_return_code(db_get_int(db, "SELECT sum(cost_microusd) FROM usage", NULL, &n), 0);
        assert_int_equal(n, 42);
        assert_return_code(db_get_int(db, "SELECT count(*) FROM usage WHERE estimated AND price = 'default' AND prices_version = '1'", NULL, &n), 0);
        assert_int_equal(n, 1);
        db_close(db);
}

/* What the next image may do to the file (docs/upgrade.md): more columns with defaults, more tables, a higher level. This one works on. */
static void test_file_of_a_newer_image(void **state) {
        Ledger *l = fresh();
        _cleanup_item_ LedgerItem i = {};
        int64_t n;
        Db *db;

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        ledger_close(l);

        assert_return_code(db_open(&db, path), 0);
        assert_return_code(db_exec(db, "ALTER TABLE item ADD COLUMN newer TEXT; ALTER TABLE run ADD COLUMN newer INTEGER NOT NULL DEFAULT 7;"
                                       "CREATE TABLE newer (x); CREATE INDEX newer_x ON item (newer); INSERT INTO addition VALUES (99, 0);"
                                       "INSERT INTO outbox (event, actor, data, time_usec) VALUES ('newer.event', 'anchord', '{}', 0)"), 0);
        db_close(db);

        assert_int_equal(ledger_open(&l, path), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);
        assert_int_equal(claim(l, "r000000000001", &i), 0);
        assert_int_equal(submit(l, "i000000000002", NULL), 0);
        ledger_close(l);

        /* and what the newer one had is still there for its return */
        assert_return_code(db_open(&db, path), 0);
        assert_return_code(db_get_int(db, "SELECT newer FROM run", NULL, &n), 0);
        assert_int_equal(n, 7);
        assert_return_code(db_get_int(db, "SELECT max(level) FROM addition", NULL, &n), 0);
        assert_int_equal(n, 99);
        db_close(db);
}

/* The control: a file that it could not use, it does not touch. */
static void test_file_of_another_version(void **state) {
        Ledger *l = fresh();
        int64_t n;
        Db *db;

        ledger_close(l);
        assert_return_code(db_open(&db, path), 0);
        assert_return_code(db_exec(db, "DROP TABLE site; ALTER TABLE run DROP COLUMN told; DELETE FROM addition WHERE level > 2; PRAGMA user_version = 3"), 0);
        db_close(db);

        l = NULL;
        assert_int_equal(ledger_open(&l, path), -EPROTO);
        assert_return_code(db_open(&db, path), 0);
        assert_return_code(db_get_int(db, "SELECT max(level) FROM addition", NULL, &n), 0);
        assert_int_equal(n, 2);
        db_close(db);
}

#define DIGEST_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define DIGEST_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define DIGEST_C "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"

static bool sees(Ledger *l, const char *deployment, const char *digest) {
        bool waits;

        assert_int_equal(ledger_site_see(l, deployment, digest, &waits), 0);
        return waits;
}

static void test_site_waits_for_an_operator(void **state) {
        _cleanup_(ledger_closep) Ledger *l = fresh();
        _cleanup_item_ LedgerItem i = {};
        LedgerSite site;

        assert_int_equal(submit(l, "i000000000001", NULL), 0);
        assert_int_equal(change(l, "i000000000001", ITEM_QUEUED), 0);

        /* the first time; an operator's change; an upgrade, which keeps it; a change that was made in between is seen with either */
        assert_false(sees(l, "one", DIGEST_A));
        assert_false(sees(l, "one", DIGEST_B));
        assert_false(sees(l, "two", DIGEST_B));
        assert_int_equal(ledger_site_accept(l, DIGEST_B, "me"), LEDGER_E_NO_WORK);

        /* back, and with it what was before */
        assert_true(sees(l, "one", DIGEST_A));
        assert_true(sees(l, "one", DIGEST_A));
        assert_int_equal(claim(l, "r000000000001", &i), LEDGER_E_HELD);
        assert_int_equal(ledger_site_get(l, &site), 0);
        assert_true(site.waits);
        assert_string_equal(site.digest, DIGEST_A);
        assert_string_equal(site.previous, DIGEST_B);

        /* a change does not accept it, nor does another deployment; the digest must be the one that holds */
        assert_true(sees(l, "one", DIGEST_C));
        assert_true(sees(l, "three", DIGEST_C));
        assert_int_equal(ledger_site_accept(l, DIGEST_A, "me"), LEDGER_E_CONFLICT);
        assert_int_equal(claim(l, "r000000000001", &i), LEDGER_E_HELD);
        assert_int_equal(ledger_site_accept(l, DIGEST_C, "me"), 0);
        assert_false(sees(l, "three", DIGEST_C));
        assert_int_equal(claim(l, "r000000000001", &i), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_older_schema),
                cmocka_unit_test(test_additions),
                cmocka_unit_test(test_file_of_a_newer_image),
                cmocka_unit_test(test_file_of_another_version),
                cmocka_unit_test(test_site_waits_for_an_operator),
        };

        return cmocka_run_group_tests(tests, set_up, tear_down);
}
