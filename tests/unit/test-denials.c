/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "egress/denials.h"

#define SECOND 1000000ULL

typedef struct Told {
        size_t n;
        uint64_t sum;
        char last[512];
        size_t room; /* so many more may be told now; 0: any number */
        bool full;
} Told;

static bool on_tell(const Denial *d, bool last, void *userdata) {
        Told *told = userdata;

        if (told->full && !last)
                return false;
        if (told->room > 0 && --told->room == 0)
                told->full = true;

        told->n++;
        told->sum += d->count;
        (void) snprintf(told->last, sizeof(told->last), "%s %s %s %u %lu", d->run, d->rule, d->name, d->port, (unsigned long) d->count);
        return true;
}

static Denial make(const char *run, const char *name, uint16_t port) {
        Denial d = { .event = "egress.deny", .rule = (char *) "default", .name = (char *) name, .port = port, .reason = (char *) "no-rule" };

        (void) snprintf(d.run, sizeof(d.run), "%s", run);
        return d;
}

static void test_first_at_once(void **state) {
        _cleanup_(denials_freep) Denials *d = NULL;
        Denial one = make("r000000000001", "a.example", 443), two = make("r000000000001", "b.example", 443);
        Told told = {};

        assert_return_code(denials_new(&d, on_tell, &told), 0);
        assert_return_code(denials_add(d, 0, &one), 0);
        assert_int_equal(told.n, 1);
        assert_string_equal(told.last, "r000000000001 default a.example 443 1");

        for (int i = 0; i < 1000; i++)
                assert_return_code(denials_add(d, SECOND, &one), 0);
        assert_int_equal(told.n, 1);

        assert_return_code(denials_add(d, SECOND, &two), 0);
        assert_int_equal(told.n, 2);

        denials_tick(d, 9 * SECOND);
        assert_int_equal(told.n, 2);
        denials_tick(d, 10 * SECOND);
        assert_int_equal(told.n, 3);
        assert_string_equal(told.last, "r000000000001 default a.example 443 1000");

        /* silence for a window: forgotten, so that the next one is told at once */
        denials_tick(d, 20 * SECOND);
        assert_int_equal(denials_count(d), 0);
        assert_return_code(denials_add(d, 21 * SECOND, &one), 0);
        assert_int_equal(told.n, 4);
}

static void test_flush(void **state) {
        _cleanup_(denials_freep) Denials *d = NULL;
        Denial one = make("r000000000001", "a.example", 443), other = make("r000000000002", "a.example", 443);
        Told told = {};

        assert_return_code(denials_new(&d, on_tell, &told), 0);
        for (int i = 0; i < 5; i++) {
                assert_return_code(denials_add(d, 0, &one), 0);
                assert_return_code(denials_add(d, 0, &other), 0);
        }
        assert_int_equal(told.n, 2);
        denials_flush(d, "r000000000001");
        assert_int_equal(told.n, 3);
        assert_int_equal(told.sum, 6);
        assert_int_equal(denials_count(d), 1);
        denials_flush(d, NULL);
        assert_int_equal(told.sum, 10);
        assert_int_equal(denials_count(d), 0);
}

/* Ever new names: bounded memory, bounded records, nothing uncounted, and another run is not touched. */
static void test_flood(void **state) {
        _cleanup_(denials_freep) Denials *d = NULL;
        Denial other = make("r000000000002", "a.example", 443);
        Told told = {};
        char name[64];

        assert_return_code(denials_new(&d, on_tell, &told), 0);
        for (int i = 0; i < 5000; i++) {
                Denial one;

                (void) snprintf(name, sizeof(name), "n%d.example", i);
                one = make("r000000000001", name, 443);
                assert_return_code(denials_add(d, 0, &one), 0);
        }
        assert_int_equal(told.n, DENIALS_MAX + 1);
        assert_return_code(denials_add(d, 0, &other), 0);
        assert_string_equal(told.last, "r000000000002 default a.example 443 1");
        denials_flush(d, NULL);
        assert_int_equal(told.sum, 5001); /* the sum of all records is what there was */
}

/* Whoever writes the records may have enough to do: what was not told is told later, with what came meanwhile. */
static void test_not_now(void **state) {
        _cleanup_(denials_freep) Denials *d = NULL;
        Denial one = make("r000000000001", "a.example", 443), two = make("r000000000001", "b.example", 443);
        Told told = { .full = true };

        assert_return_code(denials_new(&d, on_tell, &told), 0);
        for (int i = 0; i < 3; i++)
                assert_return_code(denials_add(d, SECOND, &one), 0);
        assert_return_code(denials_add(d, SECOND, &two), 0);
        denials_tick(d, 2 * SECOND);
        assert_int_equal(told.n, 0);
        assert_int_equal(denials_count(d), 2);

        told = (Told) { .room = 1 };
        denials_tick(d, 3 * SECOND);
        assert_int_equal(told.n, 1);
        told.full = false;
        denials_tick(d, 4 * SECOND);
        assert_int_equal(told.n, 2);
        assert_int_equal(told.sum, 4);
        denials_tick(d, 20 * SECOND);
        assert_int_equal(denials_count(d), 0);
}

/* At the end there is no later, but there is a limit: the rest is told in sum. */
static void test_last_words(void **state) {
        _cleanup_(denials_freep) Denials *d = NULL;
        Told told = { .full = true };
        char name[64];

        assert_return_code(denials_new(&d, on_tell, &told), 0);
        for (int i = 0; i < 500; i++) {
                Denial one;

                (void) snprintf(name, sizeof(name), "n%d.example", i);
                one = make("r000000000001", name, 443);
                if (i % 2)
                        one.reason = (char *) "port";
                one.count = 3;
                assert_return_code(denials_add(d, 0, &one), 0);
        }
        denials_flush(d, "r000000000001");
        assert_int_equal(told.sum, 1500);
        assert_int_equal(told.n, DENIALS_LAST_MAX + 2);
        assert_int_equal(denials_count(d), 0);
}

/* One that stands for several, as the proxy counts what it refused by itself. */
static void test_many_at_once(void **state) {
        _cleanup_(denials_freep) Denials *d = NULL;
        Told told = {};
        Denial many = make("r000000000001", "a.example", 443);

        many.count = 300;
        assert_return_code(denials_new(&d, on_tell, &told), 0);
        assert_return_code(denials_add(d, 0, &many), 0);
        assert_string_equal(told.last, "r000000000001 default a.example 443 300");
        many.count = 200;
        assert_return_code(denials_add(d, 1, &many), 0);
        assert_return_code(denials_add(d, 2, &many), 0);
        denials_flush(d, NULL);
        assert_int_equal(told.sum, 700);
}

/* What was asked for, of one kind in one window. */
typedef struct Asked {
        char texts[2][128];
        size_t n, most;
        uint64_t listed, sum;
} Asked;

static bool on_asked(const Denial *d, bool last, void *userdata) {
        Asked *a = userdata;
        uint64_t listed = 0;

        a->n = d->n_details;
        if (a->n > a->most)
                a->most = a->n;
        for (size_t i = 0; i < d->n_details; i++) {
                assert_true(strlen(d->details[i].text) <= DENIALS_DETAIL_SIZE);
                listed += d->details[i].count;
                if (i < ELEMENTSOF(a->texts))
                        (void) snprintf(a->texts[i], sizeof(a->texts[i]), "%.100s %lu", d->details[i].text, (unsigned long) d->details[i].count);
        }
        assert_true(listed <= d->count);
        a->listed += listed;
        a->sum += d->count;
        return true;
}

static void ask(Denials *d, uint64_t now, const char *name, const char *detail) {
        Denial one = make("r000000000001", name, 443);

        one.detail = (char *) detail;
        assert_return_code(denials_add(d, now, &one), 0);
}

/* One record has all that was asked for since the last, each once with its count; what was told before is not told again. */
static void test_details(void **state) {
        _cleanup_(denials_freep) Denials *d = NULL;
        char longer[DENIALS_DETAIL_SIZE + 2];
        Asked a = {};

        assert_return_code(denials_new(&d, on_asked, &a), 0);
        ask(d, 0, "a.example", "GET /1");
        assert_int_equal(a.n, 1);
        assert_string_equal(a.texts[0], "GET /1 1");

        ask(d, SECOND, "a.example", "GET /2");
        ask(d, SECOND, "a.example", "GET /3");
        ask(d, SECOND, "a.example", "GET /2");
        denials_tick(d, 10 * SECOND);
        assert_int_equal(a.n, 2);
        assert_string_equal(a.texts[0], "GET /2 2");
        assert_string_equal(a.texts[1], "GET /3 1");
        assert_int_equal(a.listed, a.sum);

        /* one that is too long is counted, and is in full where it is the first */
        memset(longer, 'x', sizeof(longer) - 1);
        longer[sizeof(longer) - 1] = '\0';
        ask(d, 11 * SECOND, "a.example", "GET /4");
        ask(d, 11 * SECOND, "a.example", longer);
        denials_flush(d, NULL);
        assert_int_equal(a.n, 1);
        assert_int_equal(a.sum, a.listed + 1);
}

/* A guest that asks for ever other things gets a bound for each kind and one for the run, however many kinds it has; the counts stay right. */
static void test_many_details(void **state) {
        _cleanup_(denials_freep) Denials *d = NULL;
        char name[32], detail[32];
        Asked a = {};

        assert_return_code(denials_new(&d, on_asked, &a), 0);
        for (unsigned i = 0; i < 1000; i++) {
                (void) snprintf(detail, sizeof(detail), "GET /%u", i);
                ask(d, 0, "one.example", detail);
        }
        denials_tick(d, 10 * SECOND);
        assert_int_equal(a.most, DENIALS_DETAILS_MAX);
        assert_int_equal(a.listed, 1 + DENIALS_DETAILS_MAX);
        assert_int_equal(a.sum, 1000);

        for (unsigned i = 0; i < 20 * 40; i++) {
                (void) snprintf(name, sizeof(name), "n%u.example", i % 20);
                (void) snprintf(detail, sizeof(detail), "GET /%u", i);
                ask(d, 20 * SECOND, name, detail); /* the first of each is told at once, and makes room */
        }
        a = (Asked) {};
        denials_tick(d, 30 * SECOND);
        assert_int_equal(a.listed, DENIALS_DETAILS_OF_RUN_MAX);
        assert_int_equal(a.sum, 20 * 39);

        /* and there is room again */
        ask(d, 31 * SECOND, "n1.example", "GET /again");
        denials_flush(d, NULL);
        assert_int_equal(a.listed, DENIALS_DETAILS_OF_RUN_MAX + 1);
        assert_int_equal(denials_count(d), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_first_at_once),
                cmocka_unit_test(test_flush),
                cmocka_unit_test(test_flood),
                cmocka_unit_test(test_many_at_once),
                cmocka_unit_test(test_not_now),
                cmocka_unit_test(test_last_words),
                cmocka_unit_test(test_details),
                cmocka_unit_test(test_many_details),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
