/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* For tests of what is done beside a loop (util/background.h): while the gate is closed every thread is taken, and no other work begins. */

#include <pthread.h>

#include "util/background.h"

enum { GATE_THREADS_MAX = 4 };

/* Static, and made once: a thread may pass through long after the gate was opened, and beside its next closing. */
typedef struct Gate {
        pthread_mutex_t lock;
        struct Gate *jobs[GATE_THREADS_MAX]; /* each names one */
} Gate;

#define GATE_OPEN                                \
        {                                        \
                .lock = PTHREAD_MUTEX_INITIALIZER \
        }

static inline void gate_work(void *userdata) {
        Gate *g = *(Gate **) userdata;

        (void) pthread_mutex_lock(&g->lock);
        (void) pthread_mutex_unlock(&g->lock);
}

static inline void gate_done(int r, void *userdata) {
        assert_int_equal(r, 0);
}

static inline void gate_close(Gate *g, Background *b, unsigned n_threads) {
        (void) pthread_mutex_lock(&g->lock);
        for (unsigned i = 0; i < n_threads; i++) {
                g->jobs[i] = g;
                assert_int_equal(background_start(b, gate_work, gate_done, &g->jobs[i]), 0);
        }
}

static inline void gate_open(Gate *g) {
        (void) pthread_mutex_unlock(&g->lock);
}
