/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Operators' calls that come before anchord has settled. Until then it does not know its runs: "there is nothing to stop" would be a lie, and what a
 * submission stores would be taken for what an earlier life left. So a call that acts on runs or files begins with
 *
 *         if (!m->settled)
 *                 return operator_wait(m, call, params, HANDLER);
 *
 * and is handled anew once all is settled, in the order of arrival, before anything is leased. What the ledger alone decides (a hold, a drain) holds
 * at once, and what only reads is answered at once. A call whose client has gone meanwhile is dropped: nobody was told that it was done.
 *
 * If anchord dies meanwhile, the connection breaks without an answer.
 */

#include <errno.h>
#include <string.h>

#include "api/operator-internal.h"
#include "util/log.h"

enum { WAITING_MAX = 64 };

struct OperatorWait {
        OperatorWait *next;
        Manager *manager;       /* borrowed */
        IpcCall *call;          /* ref */
        json_t *params;         /* ref */
        IpcHandler handler;
        sd_event_source *timer; /* owned */
};

static OperatorWait *wait_free(OperatorWait *w) {
        if (!w)
                return NULL;

        for (OperatorWait **p = &w->manager->operator_waits; *p; p = &(*p)->next)
                if (*p == w) {
                        *p = w->next;
                        break;
                }
        w->timer = sd_event_source_disable_unref(w->timer);
        (void) ipc_call_unref(w->call);
        json_decref(w->params);
        free(w);
        return NULL;
}
DEFINE_CLEANUP(OperatorWait *, wait_free)

static int refuse(IpcCall *call) {
        return ipc_call_refuse(call, "Unavailable", "anchord has not yet settled what an earlier life left; try again in a moment");
}

static int on_timeout(sd_event_source *source, uint64_t usec, void *userdata) {
        OperatorWait *w = userdata;

        (void) refuse(w->call);
        (void) wait_free(w);
        return 0;
}

int operator_wait(Manager *m, IpcCall *call, json_t *params, IpcHandler handler) {
        _cleanup_(wait_freep) OperatorWait *w = NULL;
        OperatorWait **end = &m->operator_waits;
        size_t n = 0;
        int r;

        for (; *end; end = &(*end)->next)
                n++;
        if (n >= WAITING_MAX)
                return refuse(call);

        w = calloc(1, sizeof(*w));
        if (!w)
                return -ENOMEM;
        *w = (OperatorWait) { .manager = m, .call = ipc_call_ref(call), .params = json_incref(params), .handler = handler };
        r = sd_event_add_time_relative(m->event, &w->timer, CLOCK_MONOTONIC, m->settle_wait_usec, 0, on_timeout, w);
        if (r < 0)
                return r;
        *end = TAKE_PTR(w);
        return 0;
}

void operator_waits_go(Manager *m) {
        while (m->operator_waits) {
                OperatorWait *w = m->operator_waits;
                int r;

                r = ipc_call_is_live(w->call) ? w->handler(w->call, w->params, m) : 0;
                if (r < 0 && ipc_call_is_live(w->call))
                        (void) ipc_call_refuse(w->call, "Unavailable", "%s", strerror(-r));
                (void) wait_free(w);
        }
}

void operator_waits_free(Manager *m) {
        while (m->operator_waits)
                (void) wait_free(m->operator_waits);
}
