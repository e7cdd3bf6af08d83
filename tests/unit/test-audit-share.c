/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How much of the log one unit of a run may write. Time is the test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "audit/audit-request.h"
#include "audit/audit-share.h"
#include "audit/notes.h"
#include "inject/tally.h"
#include "inject/usage-report.h"

#define SECOND (1000ULL * 1000)
#define HOUR (3600 * SECOND)

typedef struct World {
        sd_event *event;
        AuditShares *shares;
        AuditOutbox *outbox;
        char folder[32], path[64];
} World;

static int setup(void **state) {
        World *w = calloc(1, sizeof(*w));

        strcpy(w->folder, "/tmp/test-share-XXXXXX");
        assert_non_null(mkdtemp(w->folder));
        (void) snprintf(w->path, sizeof(w->path), "%s/outbox", w->folder);
        assert_int_equal(audit_outbox_open(&w->outbox, w->path), 0);
        assert_int_equal(sd_event_new(&w->event), 0);
        assert_int_equal(audit_shares_new(&w->shares, w->event), 0);
        *state = w;
        return 0;
}

static int teardown(void **state) {
        World *w = *state;

        (void) audit_shares_free(w->shares);
        (void) sd_event_unref(w->event);
        (void) audit_outbox_free(w->outbox);
        (void) unlink(w->path);
        assert_int_equal(rmdir(w->folder), 0);
        free(w);
        return 0;
}

static AuditShare *get(World *w, unsigned roles, const char *unit, uint64_t now) {
        Peer peer = { .roles = roles, .unit = (char *) unit };
        AuditShare *share;

        assert_int_equal(audit_shares_get(w->shares, &peer, w->outbox, now, &share), 0);
        return share;
}

static void spend(AuditShare *share, size_t bytes) {
        audit_share_spend(share, bytes);
        (void) audit_share_begin(share, bytes);
        audit_share_end(share, 0);
}

static void lacks(AuditShare *share, uint64_t now, const char *expected) {
        const char *lack = audit_share_lacks(share, now);

        if (expected)
                assert_string_equal(lack, expected);
        else
                assert_null(lack);
}

static void test_who(void **state) {
        static const unsigned without[] = { PEER_ANCHORD, PEER_EGRESSD, PEER_SECRETD, PEER_ROOT | PEER_OPERATOR };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(without); i++)
                assert_null(get(w, without[i], "anchord.service", 0));
        lacks(NULL, 0, NULL);
        for (unsigned role = 1; role <= PEER_NETLOG; role <<= 1)
                if (role & AUDIT_RUN_ROLES)
                        assert_non_null(get(w, role, "unit", 0));
        assert_ptr_equal(get(w, PEER_RUN, "a", 0), get(w, PEER_RUN, "a", 1));
        assert_ptr_not_equal(get(w, PEER_RUN, "a", 1), get(w, PEER_RUN, "b", 1));
}

/* All of a run's units together: an eighth of the two GiB that the journal keeps, and the burst of one a part of what may wait for it. */
static void test_bounds(void **state) {
        uint64_t all = 0;

        for (unsigned role = 1; role <= PEER_NETLOG; role <<= 1)
                if (role & AUDIT_RUN_ROLES)
                        all += audit_share_total(role);
        assert_true(all <= 256ULL * 1024 * 1024);
}

/* A unit that keeps to its own bounds is never refused: notes and the tally count a record as one more for each KiB that it is long. */
static void test_enough(void **state) {
        enum { MODEL_CALL = 768, COUNTED = AUDIT_SHARE_RECORD + 1024, PROXY_KINDS = 2 };
        const uint64_t notes = (uint64_t) NOTES_RECORDS_MAX * COUNTED;

        assert_true((uint64_t) USAGE_CALLS_MAX * (AUDIT_SHARE_RECORD + MODEL_CALL) + NOTES_KINDS_MAX * notes + (uint64_t) TALLY_RECORDS_MAX * COUNTED <=
                    audit_share_total(PEER_INJECT));
        assert_true(PROXY_KINDS * notes <= audit_share_total(PEER_PROXY));
}

static void test_rate(void **state) {
        World *w = *state;
        AuditShare *a = get(w, PEER_INJECT, "a", HOUR), *b = get(w, PEER_INJECT, "b", HOUR);

        for (size_t i = 0; i < AUDIT_SHARE_BURST / 1024; i++) {
                lacks(a, HOUR, NULL);
                spend(a, 1024);
        }
        lacks(a, HOUR, AUDIT_SHARE_RATE);
        lacks(b, HOUR, NULL);
        assert_true(audit_share_tell(a, AUDIT_SHARE_RATE));
        assert_false(audit_share_tell(a, AUDIT_SHARE_RATE));

        /* as fast as that, for as long as there is a share */
        for (unsigned i = 1; i <= 20; i++) {
                lacks(a, HOUR + i * SECOND, NULL);
                spend(a, AUDIT_SHARE_PER_SECOND);
                lacks(a, HOUR + i * SECOND, AUDIT_SHARE_RATE);
        }
        /* idle for long, it has a burst and no more */
        lacks(a, 100 * HOUR, NULL);
        spend(a, AUDIT_SHARE_BURST);
        lacks(a, 100 * HOUR, AUDIT_SHARE_RATE);
}

static void test_total(void **state) {
        uint64_t left = audit_share_total(PEER_CHECK), now = HOUR;
        World *w = *state;
        AuditShare *a = get(w, PEER_CHECK, "a", now);

        for (; left > 0; left -= 1024, now += SECOND) {
                lacks(a, now, NULL);
                spend(a, 1024);
        }
        lacks(a, now, AUDIT_SHARE_TOTAL);
        assert_true(audit_share_tell(a, AUDIT_SHARE_TOTAL));
        assert_false(audit_share_tell(a, AUDIT_SHARE_TOTAL));
        lacks(get(w, PEER_CHECK, "b", now), now, NULL);

        /* what is sent in vain is none of it */
        a = get(w, PEER_CHECK, "c", now);
        audit_share_spend(a, AUDIT_SHARE_PER_SECOND);
        lacks(a, now + SECOND, NULL);
}

/* What becomes no record is given back, and no more than was there. */
static void test_unwritten(void **state) {
        uint64_t total = audit_share_total(PEER_CHECK);
        World *w = *state;
        AuditShare *a = get(w, PEER_CHECK, "a", HOUR);
        size_t taken;

        for (unsigned i = 0; i < 100; i++)
                audit_share_end(a, audit_share_begin(a, total / 4));
        lacks(a, HOUR, NULL);

        (void) audit_share_begin(a, total - 1);
        audit_share_end(a, 0);
        lacks(a, HOUR, NULL);
        for (unsigned i = 0; i < 100; i++) {
                taken = audit_share_begin(a, 4096);
                assert_int_equal(taken, 1);
                lacks(a, HOUR, AUDIT_SHARE_TOTAL);
                audit_share_end(a, taken);
                lacks(a, HOUR, NULL);
        }
}

static void test_under_way(void **state) {
        World *w = *state;
        AuditShare *a = get(w, PEER_RUN, "a", 0);

        for (unsigned i = 0; i < AUDIT_SHARE_UNDER_WAY_MAX; i++) {
                lacks(a, 0, NULL);
                (void) audit_share_begin(a, 10);
        }
        lacks(a, 0, AUDIT_SHARE_BUSY);
        assert_false(audit_share_tell(a, AUDIT_SHARE_BUSY)); /* that happens */
        assert_ptr_equal(get(w, PEER_RUN, "a", 10 * HOUR), a);
        audit_share_end(a, 10);
        lacks(a, 0, NULL);
}

/* The outbox knows it, for those who wrote last. */
static void test_spent(void **state) {
        enum { MORE = 600 };
        World *w = *state;
        uint64_t spent = 1;
        char unit[16];

        assert_int_equal(audit_outbox_spent(w->outbox, "a", &spent), 0);
        assert_int_equal(spent, 0);
        assert_int_equal(audit_outbox_begin(w->outbox), 0);
        for (unsigned i = 0; i < AUDIT_OUTBOX_SPENT_MAX + MORE; i++) {
                AuditHead next = { .seq = audit_outbox_head(w->outbox)->seq + i + 1 };

                assert_int_equal(audit_outbox_adopt(w->outbox, &next), 0);
                (void) snprintf(unit, sizeof(unit), "u%u", i);
                assert_int_equal(audit_outbox_spend(w->outbox, unit, 5), 0);
                if (i % 100 == 0)
                        assert_int_equal(audit_outbox_spend(w->outbox, "a", audit_share_total(PEER_VM) / 40), 0);
        }
        assert_int_equal(audit_outbox_commit(w->outbox), 0);
        assert_int_equal(audit_outbox_spent(w->outbox, unit, &spent), 0);
        assert_int_equal(spent, 5);
        assert_int_equal(audit_outbox_spent(w->outbox, "u0", &spent), 0);
        assert_int_equal(spent, 0);
        lacks(get(w, PEER_VM, "a", 0), 0, AUDIT_SHARE_TOTAL);
        lacks(get(w, PEER_VM, "b", 0), 0, NULL);
}

int main(void) {
#define T(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
        const struct CMUnitTest tests[] = { T(test_who), T(test_bounds), T(test_enough), T(test_rate), T(test_total), T(test_unwritten), T(test_under_way), T(test_spent) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
