/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "egress/egress-state.h"
#include "util/io.h"
#include "util/sqlite.h"

#define RUN_A "raaaaaaaaaaaa"
#define RUN_B "rbbbbbbbbbbbb"

static char root[] = "/tmp/test-egress-state.XXXXXX";
static char dir[64];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        return remove(path);
}

static void put(const char *path, const char *text) {
        char full[512], *p;

        (void) snprintf(full, sizeof(full), "%s%s", root, path);
        for (p = full + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
                *p = '\0';
                (void) mkdir(full, 0755);
        }
        assert_return_code(io_write_file_atomic(AT_FDCWD, full, text, strlen(text), 0644), 0);
}

static int setup(void **state) {
        strcpy(strchr(root, '.') + 1, "XXXXXX");
        if (!mkdtemp(root))
                return -1;
        (void) snprintf(dir, sizeof(dir), "%s/state", root);
        if (mkdir(dir, 0700) < 0)
                return -1;

        put("/usr/lib/anchorhold/policy/egress/some.json",
            "{\"allow\": [{\"name\": \"api.example.org\", \"ports\": [443]}, {\"name\": \"*.cdn.example.org\", \"ports\": [443], \"max_names\": 3}]}");
        put("/usr/lib/anchorhold/policy/workflows/fix.json",
            "{\"template\": \"base\", \"egress\": \"some\", \"repository\": true,"
            " \"steps\": [{\"name\": \"check\", \"kind\": \"check\", \"argv\": [\"make\"], \"timeout\": \"1min\"}],"
            " \"verify\": {\"egress\": null, \"steps\": [{\"name\": \"check\", \"kind\": \"check\", \"argv\": [\"make\"], \"timeout\": \"1min\"}]}}");
        return 0;
}

static int teardown(void **state) {
        return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static EgressState *reopen(EgressState *s) {
        egress_state_free(s);
        assert_return_code(egress_state_open(&s, dir, root), 0);
        return s;
}

static EgressRun *enroll(EgressState *s, const char *id, const char *stage) {
        EgressRun *run = NULL;
        EgressFrozen frozen;
        int r;

        egress_state_freeze(s, id, "fix", stage, &frozen);
        assert_null(egress_state_find(s, id)); /* that alone is none */
        r = egress_state_register(s, id, "fix", stage, &frozen, &run);
        if (r != 0)
                fail_msg("register: %d %s", r, frozen.reason ?: "");
        egress_frozen_done(&frozen);
        return run;
}

static void test_register(void **state) {
        EgressState *s = reopen(NULL);
        EgressRun *run, *again;
        EgressFrozen frozen;
        EgressDecision d;

        run = enroll(s, RUN_A, "work");
        assert_non_null(run->policy);
        assert_int_equal(strlen(run->digest), 64);
        egress_policy_decide(run->policy, "api.example.org", 443, NULL, NULL, &d);
        assert_int_equal(d.verdict, EGRESS_PASS);
        assert_string_equal(d.rule, "egress/some.json#/allow/0");

        assert_return_code(egress_state_register(s, RUN_A, "fix", "work", NULL, &again), 0);
        assert_ptr_equal(run, again);
        assert_int_equal(egress_state_register(s, RUN_A, "fix", "verify", NULL, &again), EGRESS_STATE_E_CONFLICT);

        egress_state_freeze(s, RUN_B, "nope", "work", &frozen);
        assert_int_equal(egress_state_register(s, RUN_B, "nope", "work", &frozen, &again), EGRESS_STATE_E_NO_POLICY);
        assert_non_null(frozen.reason);
        egress_frozen_done(&frozen);

        /* the verify stage has its own egress: none */
        run = enroll(s, RUN_B, "verify");
        assert_null(run->policy);
        assert_string_equal(run->digest, "none");
        assert_int_equal(egress_state_count(s), 2);

        egress_state_release(s, run);
        egress_state_release(s, egress_state_find(s, RUN_A));
        assert_int_equal(egress_state_count(s), 0);
        s = reopen(s);
        assert_int_equal(egress_state_count(s), 0);
        egress_state_free(s);
}

/* What is on disk may change; a run's policy does not, and not by a restart either. */
static void test_frozen(void **state) {
        EgressState *s = reopen(NULL);
        char path[512], digest[HEX_SHA256_SIZE];
        EgressDecision d;
        EgressRun *run;

        run = enroll(s, RUN_A, "work");
        strcpy(digest, run->digest);
        put("/etc/anchorhold/policy/egress/some.json", "{\"allow\": [{\"name\": \"*.example.net\", \"ports\": [443]}]}");

        s = reopen(s);
        run = egress_state_find(s, RUN_A);
        assert_non_null(run);
        assert_false(run->lost);
        assert_string_equal(run->digest, digest);
        egress_policy_decide(run->policy, "api.example.org", 443, NULL, NULL, &d);
        assert_int_equal(d.verdict, EGRESS_PASS);
        egress_policy_decide(run->policy, "x.example.net", 443, NULL, NULL, &d);
        assert_int_equal(d.verdict, EGRESS_DENY);

        run = enroll(s, RUN_B, "work");
        assert_string_not_equal(run->digest, digest);

        /* a frozen copy that somebody changed is not believed */
        (void) snprintf(path, sizeof(path), "/state/frozen/%s-%s.json", RUN_A, digest);
        put(path, "{\"frozen\": 1, \"files\": {\"allow\": [{\"name\": \"*.example.net\", \"ports\": [443],"
                  " \"origin\": {\"label\": \"x\", \"file\": \"\", \"line\": 0}}]}, \"live\": {}}");
        s = reopen(s);
        run = egress_state_find(s, RUN_A);
        assert_true(run->lost);
        assert_null(run->policy);

        egress_state_release(s, run);
        (void) snprintf(path, sizeof(path), "%s/state/frozen/%s-%s.json", root, RUN_A, digest);
        assert_int_equal(access(path, F_OK), -1);
        egress_state_free(s);
}

static void test_names(void **state) {
        EgressState *s = reopen(NULL);
        uint32_t first, second, address;
        EgressRun *run, *other;
        char name[64];
        Address a;
        bool new;

        run = enroll(s, RUN_A, "work");
        other = enroll(s, RUN_B, "work");
        assert_return_code(egress_run_admit_name(s, run, "api.example.org", &first, &new), 0);
        assert_true(new);
        assert_int_equal(first, SYNTHETIC_NETWORK + 1);
        assert_return_code(egress_run_admit_name(s, run, "a.cdn.example.org", &second, &new), 0);
        assert_int_not_equal(first, second);
        assert_return_code(egress_run_admit_name(s, run, "api.example.org", &address, &new), 0);
        assert_false(new);
        assert_int_equal(address, first);

        a = address_from_ipv4(second);
        assert_string_equal(egress_run_name_of(run, &a), "a.cdn.example.org");
        assert_null(egress_run_name_of(other, &a));
        a = address_from_ipv4(SYNTHETIC_NETWORK);
        assert_null(egress_run_name_of(run, &a));
        a = address_from_ipv4(0xc6140001); /* 198.20.0.1, just outside */
        assert_null(egress_run_name_of(run, &a));
        assert_return_code(address_parse("1.1.1.1", &a), 0);
        assert_null(egress_run_name_of(run, &a));

        /* the wildcard says three; its budget is not the other run's, and survives a restart */
        assert_return_code(egress_run_admit_name(s, run, "b.cdn.example.org", &address, &new), 0);
        s = reopen(s);
        run = egress_state_find(s, RUN_A);
        a = address_from_ipv4(second);
        assert_string_equal(egress_run_name_of(run, &a), "a.cdn.example.org");
        assert_return_code(egress_run_admit_name(s, run, "c.cdn.example.org", &address, &new), 0);
        assert_int_equal(egress_run_admit_name(s, run, "d.cdn.example.org", &address, &new), EGRESS_STATE_E_BUDGET);
        assert_return_code(egress_run_admit_name(s, run, "a.cdn.example.org", &address, &new), 0);
        assert_int_equal(address, second);
        assert_return_code(egress_run_admit_name(s, egress_state_find(s, RUN_B), "d.cdn.example.org", &address, &new), 0);

        for (int i = (int) egress_run_count_names(run); i < RUN_NAMES_MAX; i++) {
                (void) snprintf(name, sizeof(name), "n%d.example.com", i); /* not of a wildcard: no budget */
                assert_return_code(egress_run_admit_name(s, run, name, &address, &new), 0);
        }
        assert_int_equal(egress_run_admit_name(s, run, "last.example.com", &address, &new), EGRESS_STATE_E_NAMES);
        egress_state_free(s);
}

static void test_grants(void **state) {
        EgressState *s = reopen(NULL);
        EgressGrant *g, *h;
        Address two[2];
        EgressRun *run;
        uint64_t id;

        assert_return_code(address_parse("203.0.113.5", &two[0]), 0);
        assert_return_code(address_parse("2001:db8::5", &two[1]), 0);
        run = enroll(s, RUN_A, "work");
        assert_return_code(egress_run_add_grant(s, run, "anchor-proxy@" RUN_A ".service", 77, "api.example.org", 443, "rule",
                                                two, 2, &g),
                           0);
        id = g->id;
        assert_return_code(egress_run_add_grant(s, run, "u", 78, "api.example.org", 443, "rule", two, 1, &h), 0);
        assert_ptr_equal(egress_run_find_grant(run, id, 77), g);
        assert_null(egress_run_find_grant(run, id, 78)); /* another cgroup's */

        s = reopen(s);
        run = egress_state_find(s, RUN_A);
        g = egress_run_find_grant(run, id, 77);
        assert_non_null(g);
        assert_int_equal(g->n_fence, 0);
        assert_int_equal(g->n_addresses, 2);
        assert_true(address_equal(&g->addresses[0], &two[0]) && address_equal(&g->addresses[1], &two[1]));
        assert_null(g->streams);
        assert_true(g->unlisted); /* what was asked about within it in the life before */
        assert_return_code(egress_grant_set_request(g, "GET", "/v1"), 0);
        assert_string_equal(g->streams->path, "/v1");
        assert_return_code(egress_grant_set_request(g, NULL, NULL), 0);
        assert_null(g->streams);
        assert_string_equal(g->name, "api.example.org");
        egress_run_remove_grant(s, g);
        assert_int_equal(run->n_addresses, 1);

        /* an id is never used twice, not even across restarts */
        s = reopen(s);
        run = egress_state_find(s, RUN_A);
        egress_run_remove_grant(s, run->grants);
        s = reopen(s);
        run = egress_state_find(s, RUN_A);
        assert_return_code(egress_run_add_grant(s, run, "u", 78, "n", 1, "r", two, 1, &h), 0);
        assert_true(h->id > id + 1);
        egress_state_free(s);
}

/* A run has a share of the map, and what it gives back it may use again; another run's share is its own. */
static void test_grants_of_a_run_are_bounded(void **state) {
        EgressState *s = reopen(NULL);
        Address eight[GRANT_ADDRESSES_MAX];
        EgressRun *run, *other;
        EgressGrant *g;

        for (size_t i = 0; i < GRANT_ADDRESSES_MAX; i++)
                assert_return_code(address_parse("203.0.113.5", &eight[i]), 0);
        run = enroll(s, RUN_A, "work");
        other = enroll(s, RUN_B, "work");
        for (size_t i = 0; i < RUN_ADDRESSES_MAX / GRANT_ADDRESSES_MAX; i++)
                assert_return_code(egress_run_add_grant(s, run, "u", 7, "n", 1, "r", eight, GRANT_ADDRESSES_MAX, &g), 0);
        assert_int_equal(egress_run_add_grant(s, run, "u", 7, "n", 1, "r", eight, 1, &g), -ENOSPC);
        assert_return_code(egress_run_add_grant(s, other, "u", 8, "n", 1, "r", eight, 1, &g), 0);

        egress_run_remove_grant(s, run->grants);
        assert_return_code(egress_run_add_grant(s, run, "u", 7, "n", 1, "r", eight, 1, &g), 0);
        egress_state_free(s);
}

/* Takes the policy over. */
static void change(EgressState *s, EgressRun *run, EgressPolicy *policy) {
        EgressPolicy *old;

        assert_return_code(egress_state_write(s, run->id, policy), 0);
        assert_return_code(egress_state_change(s, run, policy, &old), 0);
        egress_policy_free(old);
}

/* What an operator changed holds, and after a restart as well; what holds and what held is remembered in its order. */
static void test_change(void **state) {
        EgressState *s = reopen(NULL);
        _cleanup_free_ char *reason = NULL;
        char first[HEX_SHA256_SIZE];
        EgressPolicy *changed = NULL;
        EgressDecision d;
        EgressRun *run;

        run = enroll(s, RUN_A, "work");
        strcpy(first, run->digest);
        assert_return_code(egress_policy_amend(run->policy, true, "db.example.net:5432/raw", "uid 1000", &changed, &reason), 0);
        change(s, run, changed);
        assert_string_not_equal(run->digest, first);
        run->n_records = 41;
        egress_state_save_records(s, run);

        for (int i = 0; i < 2; i++) {
                egress_policy_decide(run->policy, "db.example.net", 5432, NULL, NULL, &d);
                assert_int_equal(d.verdict, EGRESS_PASS);
                assert_string_equal(d.who, "uid 1000");
                assert_int_equal(json_array_size(run->digests), 2);
                assert_string_equal(json_string_value(json_array_get(run->digests, 0)), first);
                assert_string_equal(json_string_value(json_array_get(run->digests, 1)), run->digest);
                assert_int_equal(run->n_records, 41);
                s = reopen(s);
                run = egress_state_find(s, RUN_A);
                assert_false(run->lost);
        }

        /* a run that had nothing may get something */
        run = enroll(s, RUN_B, "verify");
        assert_null(run->policy);
        assert_return_code(egress_policy_amend(NULL, true, "www.example.net:443", "uid 1000", &changed, &reason), 0);
        change(s, run, changed);
        s = reopen(s);
        run = egress_state_find(s, RUN_B);
        assert_non_null(run->policy);
        assert_string_equal(json_string_value(json_array_get(run->digests, 0)), "none");
        egress_state_free(s);
}

/* The files as they are now, for a run that goes on. */
static void test_files_read_anew(void **state) {
        EgressState *s = reopen(NULL);
        _cleanup_(policy_freep) Policy *set = NULL;
        _cleanup_free_ char *reason = NULL;
        const EgressPolicy *fresh = NULL;
        EgressRun *run;

        run = enroll(s, RUN_A, "work");
        put("/etc/anchorhold/policy/egress/some.json", "{\"allow\": [{\"name\": \"*.example.net\", \"ports\": [443]}]}");
        assert_return_code(egress_state_load_policy(s, run->workflow, run->stage, &set, &fresh, &reason), 0);
        assert_string_not_equal(egress_policy_digest(fresh), run->digest);

        put("/etc/anchorhold/policy/egress/some.json", "{");
        assert_int_equal(egress_state_load_policy(s, run->workflow, run->stage, &set, &fresh, &reason), EGRESS_STATE_E_NO_POLICY);
        assert_non_null(reason);
        egress_state_free(s);
}

/* Another version's database is not read as if it were this one's. */
static void test_another_version(void **state) {
        EgressState *s = reopen(NULL);
        char path[128];
        Db *db;

        (void) enroll(s, RUN_A, "work");
        egress_state_free(s);
        (void) snprintf(path, sizeof(path), "%s/egress.db", dir);
        assert_return_code(db_open(&db, path), 0);
        assert_return_code(db_exec(db, "PRAGMA user_version = 1"), 0);
        db_close(db);
        s = reopen(NULL);
        assert_int_equal(egress_state_count(s), 0);
        (void) enroll(s, RUN_A, "work");
        s = reopen(s);
        assert_int_equal(egress_state_count(s), 1);
        egress_state_free(s);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_register, setup, teardown),
                cmocka_unit_test_setup_teardown(test_frozen, setup, teardown),
                cmocka_unit_test_setup_teardown(test_names, setup, teardown),
                cmocka_unit_test_setup_teardown(test_grants, setup, teardown),
                cmocka_unit_test_setup_teardown(test_grants_of_a_run_are_bounded, setup, teardown),
                cmocka_unit_test_setup_teardown(test_change, setup, teardown),
                cmocka_unit_test_setup_teardown(test_files_read_anew, setup, teardown),
                cmocka_unit_test_setup_teardown(test_another_version, setup, teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
