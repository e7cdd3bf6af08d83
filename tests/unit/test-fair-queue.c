/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>

#include "egress/fair-queue.h"
#include "util/cleanup.h"

static const FairQueueLimits limits = { .interval_usec = 10, .burst = 3, .max_waiting = 4 };
static unsigned n_dropped;

static void drop(void *item) {
        n_dropped++;
}

static FairQueue *make(void) {
        FairQueue *q = NULL;

        n_dropped = 0;
        assert_return_code(fair_queue_new(&q, &limits, drop), 0);
        return q;
}

static void test_rate(void **state) {
        FairQueue *q = make();
        int items[8];

        /* a burst, and one more that is being paid off */
        for (int i = 0; i < 4; i++)
                assert_int_equal(fair_queue_add(q, 1000, "a", &items[i]), FAIR_QUEUE_NOW);
        assert_int_equal(fair_queue_wait_usec(q, 1000), UINT64_MAX);
        assert_int_equal(fair_queue_add(q, 1000, "a", &items[4]), FAIR_QUEUE_LATER);
        assert_int_equal(fair_queue_add(q, 1000, "a", &items[5]), FAIR_QUEUE_LATER);
        assert_null(fair_queue_next(q, 1000));
        assert_int_equal(fair_queue_wait_usec(q, 1000), 10);

        /* in their order, at the rate, and nobody overtakes */
        assert_ptr_equal(fair_queue_next(q, 1010), &items[4]);
        assert_null(fair_queue_next(q, 1010));
        assert_int_equal(fair_queue_add(q, 1020, "a", &items[6]), FAIR_QUEUE_LATER);
        assert_ptr_equal(fair_queue_next(q, 1020), &items[5]);
        assert_null(fair_queue_next(q, 1020));
        assert_ptr_equal(fair_queue_next(q, 1030), &items[6]);

        /* a pause gives the burst back, and no more than that */
        for (int i = 0; i < 4; i++)
                assert_int_equal(fair_queue_add(q, 100000, "a", &items[i]), FAIR_QUEUE_NOW);
        assert_int_equal(fair_queue_add(q, 100000, "a", &items[4]), FAIR_QUEUE_LATER);
        fair_queue_free(q);
        assert_int_equal(n_dropped, 1);
}

static void test_others_are_not_held_up(void **state) {
        FairQueue *q = make();
        int a[8], b[8], c;

        for (int i = 0; i < 8; i++)
                assert_int_equal(fair_queue_add(q, 0, "a", &a[i]), i < 4 ? FAIR_QUEUE_NOW : FAIR_QUEUE_LATER);
        assert_int_equal(fair_queue_add(q, 0, "a", &a[0]), -EBUSY);
        assert_int_equal(fair_queue_add(q, 0, "c", &c), FAIR_QUEUE_NOW);
        for (int i = 0; i < 8; i++)
                assert_int_equal(fair_queue_add(q, 0, "b", &b[i]), i < 4 ? FAIR_QUEUE_NOW : FAIR_QUEUE_LATER);

        /* both are due for everything: they take turns */
        for (int i = 4; i < 8; i++) {
                void *first = fair_queue_next(q, 1000000), *second = fair_queue_next(q, 1000000);

                assert_true((first == &a[i] && second == &b[i]) || (first == &b[i] && second == &a[i]));
        }
        assert_null(fair_queue_next(q, 1000000));
        fair_queue_free(q);
        assert_int_equal(n_dropped, 0);
}

static void test_forget(void **state) {
        FairQueue *q = make();
        int a[6], b[6];

        for (int i = 0; i < 6; i++) {
                (void) fair_queue_add(q, 0, "a", &a[i]);
                (void) fair_queue_add(q, 0, "b", &b[i]);
        }
        fair_queue_forget(q, "a");
        fair_queue_forget(q, "nobody");
        assert_int_equal(n_dropped, 2);
        assert_ptr_equal(fair_queue_next(q, 1000), &b[4]);
        assert_ptr_equal(fair_queue_next(q, 1000), &b[5]);
        assert_null(fair_queue_next(q, 1000));

        /* the last one of the ring, and one that comes after it */
        (void) fair_queue_add(q, 2000, "c", &a[0]);
        fair_queue_forget(q, "c");
        for (int i = 0; i < 5; i++)
                (void) fair_queue_add(q, 3000, "d", &a[i]);
        assert_ptr_equal(fair_queue_next(q, 4000), &a[4]);
        assert_null(fair_queue_free(q));
        assert_null(fair_queue_free(NULL));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_rate),
                cmocka_unit_test(test_others_are_not_held_up),
                cmocka_unit_test(test_forget),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
