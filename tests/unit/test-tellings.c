/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Records that stand for a count, with an auditd that goes, refuses and comes back. */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "audit/tellings.h"
#include "fake-auditd.h"
#include "log-capture.h"

#define RUN "r3k9x0a1b2c3d"
#define OTHER "r000000000000"

typedef struct World {
        sd_event *event;
        FakeAuditd auditd;
        AuditClient *audit;
        Tellings *tellings;
        uint64_t n_recorded[2], n_answers;
        int last;
} World;

static void on_answered(const char *run, unsigned kind, uint64_t count, int r, void *userdata) {
        World *w = userdata;

        assert_string_equal(run, kind == 0 ? RUN : OTHER);
        w->n_answers++;
        w->last = r;
        if (r >= 0)
                w->n_recorded[kind] += count;
}

static int set_up(void **state) {
        static World w;

        w = (World) {};
        assert_true(sd_event_new(&w.event) >= 0);
        fake_auditd_start(&w.auditd, w.event);
        assert_int_equal(audit_client_new(&w.audit, w.event), 0);
        assert_int_equal(tellings_new(&w.tellings, w.audit, on_answered, &w), 0);
        *state = &w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        audit_client_free(w->audit);
        tellings_free(w->tellings);
        fake_auditd_stop(&w->auditd);
        sd_event_unref(w->event);
        return 0;
}

static void tell(World *w, unsigned kind, int count) {
        assert_int_equal(tellings_tell(w->tellings, "conn.deny", kind == 0 ? RUN : OTHER, NULL, json_pack("{s:i}", "count", count), (uint64_t) count, kind), 0);
}

static unsigned n_with(const char *records, const char *what) {
        unsigned n = 0;

        for (const char *p = records; p && (p = strstr(p, what)); p += strlen(what))
                n++;
        return n;
}

static void test_taken_at_once(void **state) {
        World *w = *state;

        assert_true(tellings_is_empty(w->tellings));
        tell(w, 0, 3);
        tell(w, 1, 4);
        assert_true(tellings_is_under_way(w->tellings));
        UNTIL(w->event, tellings_is_empty(w->tellings));
        assert_int_equal(w->n_recorded[0], 3);
        assert_int_equal(w->n_recorded[1], 4);
        assert_false(tellings_is_under_way(w->tellings));
}

/* Gone, or full: kept, and taken once when it comes back, under the key that it had. */
static void test_again(void **state) {
        World *w = *state;
        const char *key;
        char first[64];

        w->auditd.refuses = "";
        tell(w, 0, 3);
        UNTIL(w->event, w->n_answers == 1);
        assert_true(w->last < 0);
        assert_true(tellings_is_refused(w->tellings, RUN));
        assert_false(tellings_is_refused(w->tellings, OTHER));
        assert_false(tellings_is_under_way(w->tellings));
        assert_false(tellings_is_empty(w->tellings));

        /* written, and the answer is lost */
        w->auditd.refuses = NULL;
        w->auditd.waits = true;
        tellings_again(w->tellings, 8);
        UNTIL(w->event, w->auditd.records);
        key = strstr(w->auditd.records, "\"key\":\"");
        assert_non_null(key);
        (void) snprintf(first, sizeof(first), "%.*s", (int) strcspn(key + 7, "\""), key + 7);
        fake_auditd_stop(&w->auditd);
        UNTIL(w->event, w->n_answers == 2);
        assert_true(tellings_is_refused(w->tellings, RUN));

        fake_auditd_start(&w->auditd, w->event);
        tellings_again(w->tellings, 8);
        UNTIL(w->event, tellings_is_empty(w->tellings));
        assert_int_equal(n_with(w->auditd.records, first), 1);
        assert_int_equal(w->n_recorded[0], 3);

        /* the next has another */
        tell(w, 0, 1);
        UNTIL(w->event, tellings_is_empty(w->tellings));
        assert_int_equal(n_with(w->auditd.records, first), 1);
        assert_int_equal(n_with(w->auditd.records, "\"key\""), 2);
}

/* What it will never take is not kept. */
static void test_never(void **state) {
        _cleanup_free_ char *long_text = calloc(1, AUDIT_DATA_MAX + 1);
        World *w = *state;

        memset(long_text, 'x', AUDIT_DATA_MAX);
        assert_int_equal(tellings_tell(w->tellings, "conn.deny", RUN, NULL, json_pack("{s:s}", "detail", long_text), 5, 0), 0);
        UNTIL(w->event, w->n_answers == 1);
        assert_int_equal(w->last, -EINVAL);
        assert_true(tellings_is_empty(w->tellings));
        assert_int_equal(w->n_recorded[0], 0);
        assert_int_equal(tellings_tell(w->tellings, "conn.deny", RUN, NULL, NULL, 5, 0), -ENOMEM);
        assert_true(tellings_is_empty(w->tellings));
}

/* Sent again in the order in which it was counted, also if some of it was taken meanwhile. */
static void test_order(void **state) {
        static const int counts[] = { 11, 12, 13, 14 };
        World *w = *state;
        const char *last;

        w->auditd.refuses = "";
        for (size_t i = 0; i < 3; i++)
                tell(w, 0, counts[i]);
        UNTIL(w->event, w->n_answers == 3);
        tellings_again(w->tellings, 1);
        UNTIL(w->event, w->n_answers == 4);
        w->auditd.refuses = NULL;
        tellings_again(w->tellings, 1);
        UNTIL(w->event, w->n_answers == 5);
        w->auditd.refuses = "";
        tell(w, 0, counts[3]);
        UNTIL(w->event, w->n_answers == 6);
        w->auditd.refuses = NULL;
        tellings_again(w->tellings, 8);
        UNTIL(w->event, tellings_is_empty(w->tellings));

        last = w->auditd.records;
        for (size_t i = 0; i < ELEMENTSOF(counts); i++) {
                char text[32];

                (void) snprintf(text, sizeof(text), "\"count\":%d", counts[i]);
                last = strstr(last, text);
                assert_non_null(last);
        }
        assert_int_equal(n_with(w->auditd.records, "\n"), ELEMENTSOF(counts));
}

/* That nothing is taken is said once, with the reason, and so is its end. */
static void test_said(void **state) {
        _cleanup_free_ char *during = NULL, *after = NULL, *later = NULL;
        World *w = *state;

        w->auditd.refuses = "";
        log_begin();
        tell(w, 0, 3);
        tell(w, 1, 4);
        UNTIL(w->event, w->n_answers == 2);
        tellings_again(w->tellings, 8);
        UNTIL(w->event, w->n_answers == 4);
        during = log_end();
        assert_int_equal(n_with(during, "does not take"), 1);
        assert_int_equal(n_with(during, strerror(EHOSTDOWN)), 1);

        w->auditd.refuses = NULL;
        log_begin();
        tellings_again(w->tellings, 8);
        UNTIL(w->event, tellings_is_empty(w->tellings));
        after = log_end();
        assert_int_equal(n_with(after, "again"), 1);
        assert_int_equal(n_with(after, "\n"), 1);

        /* the control: while it takes all, nothing is said */
        log_begin();
        tell(w, 0, 1);
        UNTIL(w->event, tellings_is_empty(w->tellings));
        later = log_end();
        assert_string_equal(later, "");
}

/* What is refused for good is said each time, with auditd's own reason. */
static void test_said_for_good(void **state) {
        _cleanup_free_ char *long_text = calloc(1, AUDIT_DATA_MAX + 1), *said = NULL;
        World *w = *state;

        memset(long_text, 'x', AUDIT_DATA_MAX);
        log_begin();
        assert_int_equal(tellings_tell(w->tellings, "conn.deny", RUN, NULL, json_pack("{s:s}", "detail", long_text), 5, 0), 0);
        UNTIL(w->event, w->n_answers == 1);
        said = log_end();
        assert_int_equal(n_with(said, "conn.deny was not recorded: too large: "), 1);
        assert_int_equal(n_with(said, "\n"), 1);
}

/* Who cannot go on without: until the time is over, and no longer than that where it is of no use. */
static void test_sync_until(void **state) {
        World *w = *state;
        uint64_t begin = time_monotonic();

        fake_auditd_stop(&w->auditd);
        assert_true(audit_append_sync_until("k", "egress.totals", RUN, json_object(), begin + 700000) < 0);
        assert_true(time_monotonic() - begin >= 400000);

        begin = time_monotonic();
        assert_int_equal(audit_append_sync_until("k", "egress.totals", RUN, NULL, begin + 5000000), -ENOMEM);
        assert_true(time_monotonic() - begin < 1000000);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_taken_at_once, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_again, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_never, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_order, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_said, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_said_for_good, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_sync_until, set_up, tear_down),
        };

        own_world_enter(0);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
