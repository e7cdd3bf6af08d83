/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Requests that nobody was asked about, counted. See also test-exchange.c. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fake-auditd.h"
#include "inject/tally.h"

#define RUN "r3k9x0a1b2c3d"

typedef struct World {
        sd_event *event;
        FakeAuditd auditd;
        AuditClient *audit;
        Tally *tally;
        unsigned n_records;
} World;

static void on_record(const char *event, void *userdata) {
        assert_string_equal(event, "egress.requests");
        ++*(unsigned *) userdata;
}

static int set_up(void **state) {
        static World w;

        w = (World) {};
        assert_true(sd_event_new(&w.event) >= 0);
        fake_auditd_start(&w.auditd, w.event);
        w.auditd.on_append = on_record;
        w.auditd.userdata = &w.n_records;
        assert_int_equal(audit_client_new(&w.audit, w.event), 0);
        assert_int_equal(tally_new(&w.tally, w.event, w.audit, RUN), 0);
        *state = &w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        audit_client_free(w->audit);
        tally_free(w->tally);
        fake_auditd_stop(&w->auditd);
        sd_event_unref(w->event);
        return 0;
}

/* Tells what was counted, and waits for so many records. */
static void tell(World *w, unsigned n) {
        unsigned before = w->n_records;

        free(w->auditd.records);
        w->auditd.records = NULL;
        tally_tell(w->tally);
        UNTIL(w->event, w->n_records == before + n && audit_pending(w->audit, RUN) == 0);
}

static void count_hosts(World *w, unsigned n, const char *path) {
        char name[32];

        for (unsigned i = 0; i < n; i++) {
                (void) snprintf(name, sizeof(name), "h%u.example.org", i);
                tally_count(w->tally, name, 443, "allow/0", "GET", path);
        }
}

/* After so many records all hosts are counted together. */
static void test_budget(void **state) {
        World *w = *state;

        for (unsigned n = 0; n < TALLY_RECORDS_MAX; n += TALLY_HOSTS_MAX) {
                count_hosts(w, TALLY_HOSTS_MAX, "/");
                tell(w, TALLY_HOSTS_MAX);
        }
        assert_non_null(strstr(w->auditd.records, "\"name\":\"h7.example.org\""));
        count_hosts(w, 9, "/");
        tell(w, 1);
        assert_non_null(strstr(w->auditd.records, "{\"count\":9,\"name\":\"-\",\"port\":0,\"requests\":[],\"rule\":\"overflow\"}"));
}

/* Who changes the policy meanwhile finds each rule's requests by themselves. */
static void test_rules(void **state) {
        World *w = *state;

        for (unsigned i = 0; i < 3; i++)
                tally_count(w->tally, "a.example.org", 443, "allow/0", "GET", "/x?y");
        tally_count(w->tally, "a.example.org", 443, "live/0", "GET", "/x");
        tell(w, 2);
        assert_non_null(strstr(w->auditd.records, "{\"count\":3,\"name\":\"a.example.org\",\"port\":443,\"requests\":[[\"GET\",\"/x\",3]],\"rule\":\"allow/0\"}"));
        assert_non_null(strstr(w->auditd.records, "{\"count\":1,\"name\":\"a.example.org\",\"port\":443,\"requests\":[[\"GET\",\"/x\",1]],\"rule\":\"live/0\"}"));
}

/* One that is long counts as several. */
static void test_long(void **state) {
        char path[128], method[16];
        World *w = *state;
        unsigned n = 0;

        memset(path, 'x', sizeof(path) - 1);
        path[0] = '/';
        path[sizeof(path) - 1] = '\0';
        while (!w->auditd.records || strstr(w->auditd.records, "example.org")) {
                for (unsigned i = 0; i < TALLY_REQUESTS_MAX; i++) {
                        (void) snprintf(method, sizeof(method), "M%u", i);
                        count_hosts(w, 1, path);
                        tally_count(w->tally, "h0.example.org", 443, "allow/0", method, path);
                }
                tell(w, 1);
                n++;
        }
        assert_true(n > TALLY_RECORDS_MAX / 8 && n < TALLY_RECORDS_MAX / 3);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_budget, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_rules, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_long, set_up, tear_down),
        };

        own_world_enter(0);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
