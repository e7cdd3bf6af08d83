/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Was a run lost because its slice was stopped? Its microVM is then the first to go, and anchor-run says so, or is gone itself: both look
 * like an accident of that run. So before a run is recorded as lost, systemd is asked about the slice of all runs and about the run's own.
 * A slice was stopped under a run if it is not active, if something is queued for it (for one that is active, only a stop or a restart can be), or if it became
 * active when the run was there already: then it was made anew.
 *
 * systemd answers, or does not within a few seconds: then the run ends as lost as it was said to be.
 */

#include <errno.h>
#include <string.h>

#include "api/flow-internal.h"
#include "util/log.h"

typedef struct Loss {
        Manager *manager; /* borrowed */
        char run[ID_LENGTH + 1];
        char slices[2][48];
        size_t i;         /* which of them is being asked about */
        FlowLost done;
        void *userdata;
} Loss;

static void ask(Loss *l);

/* What is the matter with a slice, by itself and for this run; NULL: nothing. Of a run that had not started yet, nobody knows that it had one. */
static const char *trouble(const Flow *f, const UnitSince *since) {
        bool started = f->started_monotonic > 0 || f->started_realtime > 0;

        if (strcmp(since->active, "active") != 0 && !started)
                return "is not active";
        if (strcmp(since->active, "active") != 0 || since->job)
                return "was stopped";
        if (f->started_monotonic > 0 ? since->active_monotonic > f->started_monotonic : started && since->active_realtime > f->started_realtime)
                return "was stopped";
        return NULL;
}

static void loss_end(Loss *l, const char *what) {
        char text[96] = "";

        if (what)
                (void) snprintf(text, sizeof(text), "%s %s", l->slices[l->i], what);
        l->done(what ? text : NULL, l->userdata);
        free(l);
}

static void on_answer(int r, const UnitSince *since, void *userdata) {
        Loss *l = userdata;
        const Flow *f = r == -ECANCELED ? NULL : flow_find_run(l->manager, l->run);
        const char *what = f && r >= 0 ? trouble(f, since) : NULL;

        if (!f || what)
                loss_end(l, what);
        else {
                l->i++;
                ask(l);
        }
}

static void ask(Loss *l) {
        int r;

        for (; l->i < ELEMENTSOF(l->slices); l->i++) {
                r = units_since(l->manager->units, l->slices[l->i], on_answer, l);
                if (r >= 0)
                        return;
                log_warning_errno(r, "run %s: cannot ask systemd about %s", l->run, l->slices[l->i]);
        }
        loss_end(l, NULL);
}

void flow_ask_slice(Flow *f, FlowLost done, void *userdata) {
        Loss *l = calloc(1, sizeof(*l));

        if (!l) {
                done(NULL, userdata);
                return;
        }
        *l = (Loss) { .manager = f->manager, .done = done, .userdata = userdata };
        memcpy(l->run, f->run, sizeof(l->run));
        (void) snprintf(l->slices[0], sizeof(l->slices[0]), "anchorhold-runs.slice");
        (void) snprintf(l->slices[1], sizeof(l->slices[1]), "anchorhold-runs-%s.slice", f->run);
        ask(l);
}

/* ---- a run that ended without a word of its own ---- */

typedef struct Ended {
        Manager *manager; /* borrowed */
        char run[ID_LENGTH + 1];
        char *reason;     /* owned */
} Ended;

static void on_lost(const char *what, void *userdata) {
        Ended *e = userdata;
        Flow *f = flow_find_run(e->manager, e->run);
        _cleanup_free_ char *reason = flow_lost_reason(what, e->reason);

        if (f)
                flow_end_run(f, "error", reason ?: "lost", NULL);
        free(e->reason);
        free(e);
}

char *flow_lost_reason(const char *what, const char *reason) {
        return what ? text_format("%s: %s", what, reason) : strdup(reason);
}

void flow_end_lost(Flow *f, const char *reason) {
        Ended *e = calloc(1, sizeof(*e));

        if (e)
                *e = (Ended) { .manager = f->manager, .reason = strdup(reason) };
        if (!e || !e->reason) {
                free(e);
                flow_end_run(f, "error", reason, NULL);
                return;
        }
        memcpy(e->run, f->run, sizeof(e->run));
        flow_ask_slice(f, on_lost, e);
}
