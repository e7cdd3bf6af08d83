/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * From the outbox towards the journal, with a journald that the test plays and that never keeps anything: what is sent, in which
 * order, again, and when nobody is there. What is kept, and leaves the list, is in test-audit-journal.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "audit/audit-journal.h"
#include "audit/audit-queue.h"
#include "own-world.h"
#include "util/cleanup.h"

static char folder[] = "/tmp/test-audit-queue-XXXXXX";

typedef struct World {
        sd_event *event;
        AuditQueue *queue;
        int journald;        /* owned */
        char path[64];
        unsigned n_kept, n_resent;
        uint64_t first, last;
} World;

static void on_kept(const AuditHead *kept, void *userdata) {
        World *w = userdata;

        w->n_kept++;
}

static void on_resent(uint64_t first, uint64_t last, void *userdata) {
        World *w = userdata;

        w->n_resent++;
        w->first = first;
        w->last = last;
}

static void journald_start(World *w) {
        struct sockaddr_un un = { .sun_family = AF_UNIX };

        w->journald = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        strcpy(un.sun_path, w->path);
        (void) unlink(w->path);
        assert_int_equal(bind(w->journald, (struct sockaddr *) &un, sizeof(un)), 0);
}

static int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        strcpy(folder + strlen(folder) - 6, "XXXXXX");
        assert_non_null(mkdtemp(folder));
        (void) snprintf(w->path, sizeof(w->path), "%s/socket", folder);
        w->journald = -1;
        assert_int_equal(sd_event_new(&w->event), 0);
        assert_int_equal(audit_queue_new(&w->queue, w->event, w->path, folder, NULL, on_kept, on_resent, w), 0);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        assert_int_equal(w->n_kept, 0);
        audit_queue_free(w->queue);
        (void) fd_close(w->journald);
        sd_event_unref(w->event);
        (void) unlink(w->path);
        (void) rmdir(folder);
        free(w);
        return 0;
}

static void add(World *w, uint64_t seq, bool old) {
        AuditHead head = { .seq = seq };
        char text[32];

        (void) snprintf(text, sizeof(text), "ANCHORHOLD_SEQ=%llu\n", (unsigned long long) seq);
        assert_int_equal(audit_queue_add(w->queue, &head, text, strlen(text), old), 0);
}

/* The number of the next record that journald got, 0 if there is none. */
static uint64_t received(World *w) {
        char data[256] = {};
        ssize_t n = recv(w->journald, data, sizeof(data) - 1, 0);
        char *p = n > 0 ? strstr(data, "ANCHORHOLD_SEQ=") : NULL;

        return p ? strtoull(p + 15, NULL, 10) : 0;
}

static void test_order(void **state) {
        World *w = *state;

        journald_start(w);
        assert_int_equal(audit_queue_stalled_usec(w->queue), 0);
        for (uint64_t i = 1; i <= 5; i++)
                add(w, i, false);
        assert_int_equal(received(w), 0); /* not before it is told to */
        audit_queue_pump(w->queue);
        for (uint64_t i = 1; i <= 5; i++)
                assert_int_equal(received(w), i);
        assert_int_equal(audit_queue_size(w->queue), 5); /* sent is not kept */
        run_for(w->event, 20000);
        assert_true(audit_queue_stalled_usec(w->queue) >= 20000);
}

/* What an earlier life sent is looked for first, and at once sent again if it is not there: with all behind it, in order. */
static void test_earlier_life(void **state) {
        World *w = *state;

        journald_start(w);
        add(w, 7, true);
        add(w, 8, true);
        add(w, 9, false);
        audit_queue_pump(w->queue);
        UNTIL(w->event, w->n_resent == 1);
        assert_int_equal(w->first, 7);
        run_for(w->event, 10000);
        assert_int_equal(received(w), 9); /* the new one went while the others were looked for … */
        assert_int_equal(received(w), 7); /* … and again, so that the journal has the chain in order */
        assert_int_equal(received(w), 8);
        assert_int_equal(received(w), 9);
        assert_int_equal(received(w), 0);
        assert_int_equal(w->n_resent, 1); /* said once */
}

static void test_no_journald(void **state) {
        World *w = *state;
        uint64_t seq;

        add(w, 1, false);
        audit_queue_pump(w->queue);
        run_for(w->event, 150000);
        assert_int_equal(audit_queue_size(w->queue), 1);
        journald_start(w);
        UNTIL(w->event, (seq = received(w)) > 0);
        assert_int_equal(seq, 1);

        /* restarted: another socket under the same name */
        (void) close(w->journald);
        journald_start(w);
        add(w, 2, false);
        audit_queue_pump(w->queue);
        UNTIL(w->event, (seq = received(w)) > 0);
        assert_int_equal(seq, 2);
}

/* A journald that takes its time loses nothing and stops nobody. */
static void test_slow_journald(void **state) {
        World *w = *state;
        uint64_t seq;

        journald_start(w);
        for (uint64_t i = 1; i <= 60; i++)
                add(w, i, false);
        audit_queue_pump(w->queue);
        for (uint64_t i = 1; i <= 60; i++) {
                UNTIL(w->event, (seq = received(w)) > 0);
                assert_int_equal(seq, i);
        }
}

static void test_full(void **state) {
        _cleanup_free_ char *big = calloc(1, 1 << 20);
        World *w = *state;

        assert_false(audit_queue_is_full(w->queue, AUDIT_QUEUE_RECORDS_MAX, 0));
        assert_true(audit_queue_is_full(w->queue, AUDIT_QUEUE_RECORDS_MAX + 1, 0));
        assert_true(audit_queue_is_full(w->queue, 1, AUDIT_QUEUE_BYTES_MAX + 1));
        for (unsigned i = 0; i < 31; i++)
                assert_int_equal(audit_queue_add(w->queue, &(AuditHead) { .seq = i + 1 }, big, 1 << 20, false), 0);
        assert_false(audit_queue_is_full(w->queue, 1, 1 << 20));
        assert_true(audit_queue_is_full(w->queue, 1, (1 << 20) + 1));
}

/* ---- audit-journal.c ---- */

static unsigned n_looked, n_found;

static void on_looked(size_t n_kept, int r, void *userdata) {
        n_looked++;
        n_found += (unsigned) n_kept;
}

static void test_look(void **state) {
        _cleanup_(audit_journal_freep) AuditJournal *j = NULL;
        AuditHead records[2] = { { .seq = 1 }, { .seq = 2 } }, last = { .seq = 77 };
        uint64_t first = 77;
        World *w = *state;

        assert_int_equal(audit_journal_new(&j, w->event, w->path, folder, NULL, on_looked, w), 0);
        assert_int_equal(audit_journal_look(j, records, 0, 0), -EINVAL);
        assert_int_equal(audit_journal_look(j, records, AUDIT_LOOK_MAX + 1, 0), -EINVAL);
        n_looked = n_found = 0;
        assert_int_equal(audit_journal_look(j, records, 2, 60000), 0);
        assert_int_equal(audit_journal_look(j, records, 2, 0), -EBUSY);
        UNTIL(w->event, n_looked == 1);
        assert_int_equal(n_found, 0);
        assert_int_equal(audit_journal_look(j, records, 2, 0), 0);
        UNTIL(w->event, n_looked == 2);

        assert_int_equal(audit_journal_last(folder, NULL, &last), 0);
        assert_int_equal(last.seq, 0); /* an empty journal, and one that is not there yet, have no record */
        assert_int_equal(audit_journal_first("/nonexistent", "a.service", &first), 0);
        assert_int_equal(first, 0);
        assert_true(audit_journal_send(j, "x", 1) < 0);
        assert_int_equal(audit_journal_look(j, records, 1, 100000), 0); /* ends in the middle of it */
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_order, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_earlier_life, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_journald, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_slow_journald, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_full, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_look, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
