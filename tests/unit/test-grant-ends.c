/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* That a grant is over, egressd hears in the end, however long it was away or hung. */

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "egress/egress-api.h"
#include "egress/grant-ends-api.h"
#include "ipc/ipc.h"
#include "own-world.h"
#include "util/json.h"

enum { GRANTS = 20 };

typedef struct World {
        sd_event *event;
        IpcServer *server;
        GrantEnds *ends;
        const char *refuses;        /* with this error */
        bool hangs;
        IpcCall *held[GRANTS];      /* ref; of what is not answered */
        unsigned n_held, n_refused, n_done, done[GRANTS + 1];
        char last[256];
} World;

static int on_done(IpcCall *call, json_t *params, void *userdata) {
        json_int_t grant = json_integer_value(json_object_get(params, "grant"));
        _cleanup_free_ char *text = json_canonical(params);
        World *w = userdata;

        if (w->hangs) {
                assert_true(w->n_held < GRANTS);
                w->held[w->n_held++] = ipc_call_ref(call);
                return 0;
        }
        if (w->refuses) {
                w->n_refused++;
                return ipc_call_refuse(call, w->refuses, "not now");
        }
        assert_in_range(grant, 1, GRANTS);
        w->n_done++;
        w->done[grant]++;
        (void) snprintf(w->last, sizeof(w->last), "%s", text);
        return ipc_call_reply(call, NULL);
}

static void egressd_starts(World *w) {
        static const IpcMethod methods[] = { { EGRESS_INTERFACE ".Done", PEER_ROOT, on_done }, {} };

        assert_return_code(ipc_server_new(&w->server, w->event, methods, w), 0);
        assert_return_code(ipc_server_listen_fd(w->server, own_world_listen(EGRESS_SOCKET)), 0);
}

static void egressd_dies(World *w) {
        while (w->n_held > 0)
                (void) ipc_call_unref(w->held[--w->n_held]);
        w->server = ipc_server_free(w->server);
}

static int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        assert_return_code(sd_event_new(&w->event), 0);
        assert_return_code(grant_ends_new(&w->ends, w->event, EGRESS_SOCKET), 0);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        grant_ends_free(w->ends);
        egressd_dies(w);
        sd_event_unref(w->event);
        (void) unlink(EGRESS_SOCKET);
        free(w);
        return 0;
}

static void add_all(World *w) {
        for (int i = 1; i <= GRANTS; i++)
                grant_ends_add(w->ends, i, 10, 20, 30);
}

static void assert_each_once(World *w) {
        UNTIL(w->event, w->n_done == GRANTS);
        for (int i = 1; i <= GRANTS; i++)
                assert_int_equal(w->done[i], 1);
}

static void test_told(void **state) {
        World *w = *state;

        egressd_starts(w);
        add_all(w);
        assert_each_once(w);
        grant_ends_add(w->ends, 7, 1, 2, 3);
        UNTIL(w->event, w->done[7] == 2);
        assert_string_equal(w->last, "{\"bytes_in\":1,\"bytes_out\":2,\"duration_us\":3,\"grant\":7}");
}

static void test_away(void **state) {
        World *w = *state;

        add_all(w);
        run_for(w->event, 50000);
        egressd_starts(w);
        assert_each_once(w);
}

/* It is told of a few at a time, and of all when it is back. */
static void test_hangs_and_dies(void **state) {
        World *w = *state;

        egressd_starts(w);
        w->hangs = true;
        add_all(w);
        UNTIL(w->event, w->n_held > 1);
        run_for(w->event, 20000);
        assert_in_range(w->n_held, 2, 4);
        w->hangs = false;
        egressd_dies(w);
        run_for(w->event, 20000);
        egressd_starts(w);
        assert_each_once(w);
}

static void test_too_busy(void **state) {
        World *w = *state;

        egressd_starts(w);
        w->refuses = "Unavailable";
        add_all(w);
        UNTIL(w->event, w->n_refused > 0);
        w->refuses = NULL;
        assert_each_once(w);
}

/* What it does not understand, it would not another time either. */
static void test_not_understood(void **state) {
        World *w = *state;

        egressd_starts(w);
        w->refuses = "BadInput";
        add_all(w);
        UNTIL(w->event, w->n_refused == GRANTS);
        w->refuses = NULL;
        grant_ends_add(w->ends, 3, 1, 2, 3);
        UNTIL(w->event, w->n_done == 1);
        assert_int_equal(w->done[3], 1);
}

static void test_ends_before(void **state) {
        World *w = *state;

        add_all(w);
        run_for(w->event, 5000);
        w->ends = grant_ends_free(w->ends);
        egressd_starts(w);
        run_for(w->event, 20000);
        assert_int_equal(w->n_done, 0);
}

/* ---- the last turn, in which there is no loop ---- */

typedef struct Elsewhere {
        pthread_t thread;
        int fd;               /* owned by the server */
        sem_t ready;
        const char *refuses;  /* the third with this error */
        json_int_t third;
        unsigned wanted, n_done, n_grants[GRANTS + 1];
} Elsewhere;

static int on_last(IpcCall *call, json_t *params, void *userdata) {
        json_int_t grant = json_integer_value(json_object_get(params, "grant"));
        Elsewhere *x = userdata;

        if (grant >= 1 && grant <= GRANTS)
                x->n_grants[grant]++;
        x->n_done++;
        if (x->n_done == 3)
                x->third = grant;
        return x->n_done == 3 && x->refuses ? ipc_call_refuse(call, x->refuses, "not this one") : ipc_call_reply(call, NULL);
}

static void *serve_elsewhere(void *userdata) {
        static const IpcMethod methods[] = { { EGRESS_INTERFACE ".Done", PEER_ROOT, on_last }, {} };
        uint64_t end = time_monotonic() + 5000000;
        Elsewhere *x = userdata;
        IpcServer *server = NULL;
        sd_event *event = NULL;

        (void) sd_event_new(&event);
        (void) ipc_server_new(&server, event, methods, x);
        (void) ipc_server_listen_fd(server, x->fd);
        (void) sem_post(&x->ready);
        while (x->n_done < x->wanted && time_monotonic() < end)
                (void) sd_event_run(event, 20000);
        while (sd_event_run(event, 20000) > 0) /* the last answer goes out */
                ;
        ipc_server_free(server);
        sd_event_unref(event);
        return NULL;
}

static void tell_elsewhere(World *w, Elsewhere *x) {
        assert_int_equal(sem_init(&x->ready, 0, 0), 0);
        x->fd = own_world_listen(EGRESS_SOCKET);
        assert_int_equal(pthread_create(&x->thread, NULL, serve_elsewhere, x), 0);
        assert_int_equal(sem_wait(&x->ready), 0);
        grant_ends_tell_last(w->ends, time_monotonic() + 1500000);
        assert_int_equal(pthread_join(x->thread, NULL), 0);
        (void) sem_destroy(&x->ready);
        (void) unlink(EGRESS_SOCKET);
}

/* Those that wait, and those that are under way with an egressd that hangs: each is told, also behind one that is not understood. */
static void test_last(void **state) {
        World *w = *state;
        Elsewhere x = { .refuses = "BadInput", .wanted = GRANTS };

        egressd_starts(w);
        w->hangs = true;
        add_all(w);
        UNTIL(w->event, w->n_held == 4);
        egressd_dies(w);
        tell_elsewhere(w, &x);
        assert_int_equal(x.n_done, GRANTS);
        for (int i = 1; i <= GRANTS; i++)
                assert_int_equal(x.n_grants[i], 1);
}

/* What egressd has too much to do for was not told: it is there still, with all behind it. */
static void test_last_too_busy(void **state) {
        Elsewhere busy = { .refuses = "Unavailable", .wanted = 3 }, well = { .wanted = GRANTS - 2 };
        World *w = *state;

        add_all(w);
        tell_elsewhere(w, &busy);
        assert_int_equal(busy.n_done, 3);
        tell_elsewhere(w, &well);
        assert_int_equal(well.n_done, GRANTS - 2);
        for (int i = 1; i <= GRANTS; i++)
                assert_int_equal(busy.n_grants[i] + well.n_grants[i], i == busy.third ? 2 : 1);
}

/* It takes no longer than it may, with an egressd that hangs, and no time without one. */
static void test_last_is_bounded(void **state) {
        World *w = *state;
        uint64_t begin = time_monotonic();
        int fd;

        grant_ends_tell_last(NULL, 0);
        grant_ends_tell_last(w->ends, time_monotonic() + 1500000);
        grant_ends_add(w->ends, 1, 0, 0, 0); /* too late, which is no harm */
        grant_ends_free(w->ends);
        for (unsigned there = 0; there < 2; there++) {
                assert_return_code(grant_ends_new(&w->ends, w->event, EGRESS_SOCKET), 0);
                add_all(w);
                if (there) {
                        assert_true(time_monotonic() - begin < 500000);
                        fd = own_world_listen(EGRESS_SOCKET);
                }
                grant_ends_tell_last(w->ends, time_monotonic() + 1500000);
                if (!there)
                        grant_ends_free(w->ends);
        }
        assert_in_range(time_monotonic() - begin, 1400000, 3000000);
        (void) close(fd);
}

static int enter_world(void **state) {
        own_world_enter(0);
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_told, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_away, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_hangs_and_dies, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_too_busy, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_not_understood, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_ends_before, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_last, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_last_too_busy, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_last_is_bounded, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
