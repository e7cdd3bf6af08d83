/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Was a run lost because its slice was stopped? Its microVM is then the first to go, and anchor-run says so, or is gone itself: both look
 * like an accident of that run. So before a run is recorded as lost, systemd is asked about the slice of all runs and about the run's own.
 * A slice was stopped under a run if it is not active, if something is queued for it (for one that is active, only a stop or a restart can be), or if it became
 * active when the run was there already: then it was made anew.
 *
 * systemd answers, or does not within a few seconds: then the run ends as lost as it was said to be.
 *
 * If it was no slice, it may have been a unit that the run cannot do without: unit-trail.c knows which was the first to go. By the time of the answer everything that systemd
 * had to tell of it is here; but if anchor-run says that the microVM is gone, systemd may not even have noticed, and gets a moment for that.
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
        bool vm_gone;     /* says the run */
        unsigned n_vm;    /* how often systemd was asked about that */
        FlowLost done;
        void *userdata;
} Loss;

enum { VM_ASKS_MAX = 20, VM_ASK_USEC = 50 * 1000 };

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
        l->done(what, l->userdata);
        free(l);
}

static void loss_end_slice(Loss *l, const char *trouble) {
        char text[96];

        (void) snprintf(text, sizeof(text), "%s %s", l->slices[l->i], trouble);
        loss_end(l, text);
}

/* No slice was stopped. The run's own unit that ends by itself is no cause of its end, nor is a microVM that is over: the guest may have done that. */
static void loss_end_unit(Loss *l, const Flow *f) {
        const TrailUnit *u = unit_trail_first(&f->trail);
        char text[192], run[ID_LENGTH + 1];

        if (!u || (u->died && (unit_name_run(u->name, "anchor-run", run) || unit_name_run(u->name, "anchor-import", run) ||
                               (unit_name_run(u->name, "anchor-vm", run) && strncmp(u->why, "signal", strlen("signal")) != 0)))) {
                loss_end(l, NULL);
                return;
        }
        if (u->stopped || !u->died)
                (void) snprintf(text, sizeof(text), "%s was stopped", u->name);
        else
                (void) snprintf(text, sizeof(text), "%s ended%s%s", u->name, u->why[0] ? ": " : "", u->why);
        loss_end(l, text);
}

static void on_vm(int r, const UnitSince *since, void *userdata);

/* What the trail says is told, once it can be. */
static void look_at_units(Loss *l) {
        const Flow *f = flow_find_run(l->manager, l->run);
        char vm[64];

        if (!f) {
                loss_end(l, NULL);
                return;
        }
        (void) snprintf(vm, sizeof(vm), "anchor-vm@%s.service", l->run);
        if (l->vm_gone && !unit_trail_is_gone(&f->trail, vm) && l->n_vm++ < VM_ASKS_MAX &&
            units_since(l->manager->units, vm, l->n_vm > 1 ? VM_ASK_USEC : 0, on_vm, l) >= 0)
                return;
        loss_end_unit(l, f);
}

/* Not the answer counts, but what was told before it. */
static void on_vm(int r, const UnitSince *since, void *userdata) {
        Loss *l = userdata;

        if (r == -ECANCELED)
                loss_end(l, NULL);
        else
                look_at_units(l);
}

static void on_answer(int r, const UnitSince *since, void *userdata) {
        Loss *l = userdata;
        const Flow *f = r == -ECANCELED ? NULL : flow_find_run(l->manager, l->run);
        const char *what = f && r >= 0 ? trouble(f, since) : NULL;

        if (!f)
                loss_end(l, NULL);
        else if (what)
                loss_end_slice(l, what);
        else {
                l->i++;
                ask(l);
        }
}

static void ask(Loss *l) {
        int r;

        for (; l->i < ELEMENTSOF(l->slices); l->i++) {
                r = units_since(l->manager->units, l->slices[l->i], 0, on_answer, l);
                if (r >= 0)
                        return;
                log_warning_errno(r, "run %s: cannot ask systemd about %s", l->run, l->slices[l->i]);
        }
        look_at_units(l);
}

void flow_ask_slice(Flow *f, const char *reason, FlowLost done, void *userdata) {
        Loss *l = calloc(1, sizeof(*l));

        if (!l) {
                done(NULL, userdata);
                return;
        }
        *l = (Loss) { .manager = f->manager, .vm_gone = strncmp(reason, "vm-gone", strlen("vm-gone")) == 0, .done = done, .userdata = userdata };
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
        _cleanup_free_ char *reason = flow_lost_reason(what, f && f->mismatch ? f->mismatch : e->reason);

        if (f)
                flow_end_run(f, "error", reason ?: "lost", NULL);
        free(e->reason);
        free(e);
}

char *flow_lost_reason(const char *what, const char *reason) {
        size_t n = what ? strcspn(what, " ") : 0;

        if (!what)
                return strdup(reason);
        if (strncmp(what, reason, n) == 0 && reason[n] == ' ')
                return strdup(what);
        return text_format("%s: %s", what, reason);
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
        flow_ask_slice(f, reason, on_lost, e);
}
