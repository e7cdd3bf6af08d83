/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Work beside the loop: it goes on meanwhile, so many at once, and none is forgotten. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "util/background.h"

enum { JOBS = 4 };

typedef struct Work {
        struct World *world;
        pid_t thread;
        unsigned begun, n_done; /* begun: which one it was */
        int r;
} Work;

typedef struct World {
        sd_event *event;
        Background *background;
        Work works[JOBS];
        atomic_uint n_begun, n_running, most_running;
        pthread_mutex_t gate; /* no work ends while the test has it */
} World;

static void work(void *userdata) {
        Work *x = userdata;
        World *w = x->world;
        unsigned running = atomic_fetch_add(&w->n_running, 1) + 1;

        x->begun = atomic_fetch_add(&w->n_begun, 1) + 1;
        x->thread = gettid();
        if (running > atomic_load(&w->most_running))
                atomic_store(&w->most_running, running);
        (void) pthread_mutex_lock(&w->gate);
        atomic_fetch_sub(&w->n_running, 1);
        (void) pthread_mutex_unlock(&w->gate);
}

static void done(int r, void *userdata) {
        Work *x = userdata;

        x->n_done++;
        x->r = r;
}

static int on_time(sd_event_source *s, uint64_t usec, void *userdata) {
        return 0;
}

/* Goes round until it holds; a test that hangs is ended from outside. */
#define UNTIL(condition)                                                 \
        while (!(condition)) {                                           \
                assert_true(sd_event_run(w->event, 10000) >= 0);         \
        }

static int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        assert_int_equal(sd_event_new(&w->event), 0);
        assert_int_equal(background_new(&w->background, w->event, 2), 0);
        assert_int_equal(pthread_mutex_init(&w->gate, NULL), 0);
        for (unsigned i = 0; i < JOBS; i++)
                w->works[i].world = w;
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        background_free(w->background);
        sd_event_unref(w->event);
        free(w);
        return 0;
}

static void start_all(World *w) {
        for (unsigned i = 0; i < JOBS; i++)
                assert_int_equal(background_start(w->background, work, done, &w->works[i]), 0);
}

/* Two at once, the oldest first, each told once; the loop goes round meanwhile. */
static void test_all(void **state) {
        World *w = *state;

        (void) pthread_mutex_lock(&w->gate);
        start_all(w);
        assert_int_equal(sd_event_add_time_relative(w->event, NULL, CLOCK_MONOTONIC, 1, 0, on_time, NULL), 0);
        UNTIL(atomic_load(&w->n_running) == 2);
        for (unsigned i = 0; i < 20; i++)
                assert_true(sd_event_run(w->event, 1000) >= 0);
        assert_int_equal(atomic_load(&w->n_begun), 2);
        for (unsigned i = 0; i < JOBS; i++)
                assert_int_equal(w->works[i].n_done, 0);
        (void) pthread_mutex_unlock(&w->gate);

        for (unsigned i = 0; i < JOBS; i++)
                UNTIL(w->works[i].n_done > 0);
        for (unsigned i = 0; i < 20; i++)
                assert_true(sd_event_run(w->event, 1000) >= 0);
        for (unsigned i = 0; i < JOBS; i++) {
                assert_int_equal(w->works[i].n_done, 1);
                assert_int_equal(w->works[i].r, 0);
                assert_int_not_equal(w->works[i].thread, gettid());
                assert_int_equal((w->works[i].begun - 1) / 2, i / 2);
        }
        assert_int_equal(atomic_load(&w->most_running), 2);
}

/* One that waits is forgotten; one that is worked on is waited for. Nobody is told of either, and the others have their turn. */
static void test_cancel(void **state) {
        World *w = *state;

        (void) pthread_mutex_lock(&w->gate);
        start_all(w);
        UNTIL(atomic_load(&w->n_running) == 2);
        assert_false(background_cancel(w->background, &w->works[2]));
        assert_false(background_cancel(w->background, w));
        (void) pthread_mutex_unlock(&w->gate);
        assert_true(background_cancel(w->background, &w->works[0]));
        UNTIL(w->works[1].n_done && w->works[3].n_done);
        assert_int_equal(w->works[0].n_done, 0);
        assert_true(w->works[0].thread > 0);
        assert_int_equal(w->works[2].begun, 0);
}

/* What is being done is waited for, what is not is not done. */
static void test_freed(void **state) {
        World *w = *state;

        (void) pthread_mutex_lock(&w->gate);
        start_all(w);
        UNTIL(atomic_load(&w->n_running) == 2);
        (void) pthread_mutex_unlock(&w->gate);
        w->background = background_free(w->background);
        assert_int_equal(atomic_load(&w->n_running), 0);
        assert_int_equal(atomic_load(&w->n_begun), 2);
        for (unsigned i = 0; i < JOBS; i++)
                assert_int_equal(w->works[i].n_done, 0);
}

static void done_and_free(int r, void *userdata) {
        Work *x = userdata;

        done(r, x);
        x->world->background = background_free(x->world->background);
}

static void test_freed_by_who_is_told(void **state) {
        World *w = *state;

        assert_int_equal(background_start(w->background, work, done_and_free, &w->works[0]), 0);
        assert_int_equal(background_start(w->background, work, done_and_free, &w->works[1]), 0);
        UNTIL(!w->background);
        assert_int_equal(w->works[0].n_done + w->works[1].n_done, 1); /* whichever was told first */
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_all, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_cancel, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_freed, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_freed_by_who_is_told, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
