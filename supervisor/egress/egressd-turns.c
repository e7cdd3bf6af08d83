/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One process answers for all runs, in one loop. A run that asks without end, by its own doing or because its proxy was taken over, must
 * not make the others wait: so what a run asks is begun at a bounded rate (TURN_USEC), and what is beyond it waits, unread, on its
 * connection, which carries one call at a time. What waits takes turns by run.
 */

#include <errno.h>
#include <string.h>

#include "egress/egressd-private.h"
#include "egress/fair-queue.h"
#include "util/json.h"
#include "util/log.h"

enum {
        TURN_USEC = 1000,      /* a thousand questions a second in the long run */
        TURNS_AT_ONCE = 500,
        TURNS_WAITING_MAX = 256, /* more connections than a proxy and an inject have */
        AT_A_TIME = 16,        /* then the loop looks at everything else */
};

typedef struct Turn {
        Egressd *egressd;   /* borrowed */
        IpcCall *call;      /* ref */
        json_t *params;     /* ref */
        IpcHandler handler;
} Turn;

static Turn *turn_free(Turn *t) {
        if (!t)
                return NULL;
        (void) ipc_call_unref(t->call);
        json_unref(t->params);
        free(t);
        return NULL;
}
DEFINE_CLEANUP(Turn *, turn_free)

static void drop_turn(void *item) {
        (void) turn_free(item); /* the call is answered "Unavailable" with its last reference */
}

static void arm(Egressd *e) {
        uint64_t wait = fair_queue_wait_usec(e->turns, time_boottime());
        int r;

        if (wait == UINT64_MAX) {
                (void) sd_event_source_set_enabled(e->turn, SD_EVENT_OFF);
                return;
        }
        r = sd_event_source_set_time_relative(e->turn, wait);
        if (r >= 0)
                r = sd_event_source_set_enabled(e->turn, SD_EVENT_ONESHOT);
        if (r < 0)
                (void) sd_event_exit(e->event, r); /* or whoever waits would wait for ever */
}

static int on_turn(sd_event_source *s, uint64_t usec, void *userdata) {
        Egressd *e = userdata;

        for (int i = 0; i < AT_A_TIME; i++) {
                _cleanup_(turn_freep) Turn *t = fair_queue_next(e->turns, time_boottime());
                int r;

                if (!t)
                        break;
                if (!ipc_call_is_live(t->call))
                        continue;
                r = t->handler(t->call, t->params, e);
                if (r < 0)
                        (void) ipc_call_refuse(t->call, "Unavailable", "%s", strerror(-r));
        }
        arm(e);
        return 0;
}

int egressd_take_turn(Egressd *e, IpcCall *call, json_t *params, IpcHandler handler) {
        _cleanup_(turn_freep) Turn *t = NULL;
        int r;

        t = calloc(1, sizeof(*t));
        if (!t)
                return -ENOMEM;
        *t = (Turn) { .egressd = e, .call = ipc_call_ref(call), .params = json_incref(params), .handler = handler };

        r = fair_queue_add(e->turns, time_boottime(), ipc_call_peer(call)->run, t);
        if (r == FAIR_QUEUE_NOW)
                return handler(call, params, e);
        if (r == FAIR_QUEUE_LATER) {
                (void) TAKE_PTR(t);
                arm(e);
                return 0;
        }
        return r;
}

void egressd_turns_forget(Egressd *e, const EgressRun *run) {
        fair_queue_forget(e->turns, run->id);
}

int egressd_start_turns(Egressd *e) {
        static const FairQueueLimits limits = { .interval_usec = TURN_USEC, .burst = TURNS_AT_ONCE, .max_waiting = TURNS_WAITING_MAX };
        int r;

        r = fair_queue_new(&e->turns, &limits, drop_turn);
        if (r < 0)
                return r;
        r = sd_event_add_time_relative(e->event, &e->turn, CLOCK_MONOTONIC, 0, 1000, on_turn, e);
        if (r < 0)
                return r;
        return sd_event_source_set_enabled(e->turn, SD_EVENT_OFF);
}

void egressd_turns_done(Egressd *e) {
        e->turn = sd_event_source_disable_unref(e->turn);
        e->turns = fair_queue_free(e->turns);
}
