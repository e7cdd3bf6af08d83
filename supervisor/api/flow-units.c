/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What systemd tells of a run's units, and what follows: the run has ended, or a note, or nothing. */

#include <stdio.h>
#include <string.h>

#include "api/flow-internal.h"

/* Only through these two does a guest reach anything. They hold no program, but do not start without theirs. */
static bool is_listener(const char *unit) {
        const char *suffix = strrchr(unit, '.');
        char run[ID_LENGTH + 1];

        return suffix && strcmp(suffix, ".socket") == 0 && (unit_name_run(unit, "anchor-proxy", run) || unit_name_run(unit, "anchor-inject", run));
}

static unsigned listener_bit(const char *unit) {
        char run[ID_LENGTH + 1];

        return unit_name_run(unit, "anchor-proxy", run) ? 1 : 2;
}

/* They need the run's network, and go with it; what was told first is the cause then. */
static bool cause_is_known(const Flow *f, const char *unit) {
        return f->why[0] && strncmp(f->why, unit, strlen(unit)) != 0;
}

/* A run begins with both, or not at all. That one is inactive is said of it before it begins as well. */
static void on_listener_ended(Flow *f, const char *unit, bool failed) {
        _cleanup_free_ char *reason = NULL;

        if (f->state == FLOW_STARTING && (failed || (f->listeners_begun & listener_bit(unit)))) {
                if (cause_is_known(f, unit)) {
                        flow_end_unstarted(f, "dependency");
                        return;
                }
                reason = text_format("%s %s", unit, failed ? "failed: its program cannot be run" : "was stopped: nothing would go out through it");
                flow_end_run(f, "error", reason ?: "a listener failed", NULL);
        } else if (f->state == FLOW_ACTIVE && strcmp(f->failed_unit, unit) != 0) {
                (void) snprintf(f->failed_unit, sizeof(f->failed_unit), "%s", unit);
                manager_note(f->manager, f->item.id, f->run, "unit.failed", "%s %s: nothing goes out through it", unit, failed ? "failed" : "was stopped");
        }
}

CheckLoss flow_check_loss(const Flow *f) {
        const TrailUnit *u = unit_trail_first(&f->trail);
        char run[ID_LENGTH + 1];

        if (!u || !(unit_name_run(u->name, "anchor-check", run) || unit_name_run(u->name, "anchor-probe", run)))
                return CHECK_THERE;
        return u->died ? CHECK_DIED : CHECK_STOPPED;
}

void flows_on_unit_job(Manager *m, const char *unit, uint32_t job, bool queued) {
        char run[ID_LENGTH + 1];
        Flow *f = unit_name_run(unit, NULL, run) ? flow_find_run(m, run) : NULL;

        if (f && flow_is_live(f))
                unit_trail_on_job(&f->trail, unit, job, queued);
}

void flows_on_unit_changed(Manager *m, const char *unit, const char *active, const char *why) {
        bool failed = strcmp(active, "failed") == 0, ended = failed || strcmp(active, "inactive") == 0;
        _cleanup_free_ char *reason = NULL;
        char run[ID_LENGTH + 1];
        bool own;
        Flow *f;

        if (!unit_name_run(unit, NULL, run) || !(f = flow_find_run(m, run)))
                return;

        if (f->state == FLOW_CLEANING) {
                flow_cleanup_look(f);
                return;
        }
        if (flow_is_live(f))
                unit_trail_on_state(&f->trail, unit, active, why, f->state == FLOW_ACTIVE);
        own = unit_name_run(unit, f->stage == STAGE_IMPORT ? "anchor-import" : "anchor-run", run);
        /* The job of what needs a unit fails as soon as that begins to stop: its last state would come too late. */
        if (f->state == FLOW_STARTING && why && !f->why[0] && (own ? ended : failed || strcmp(active, "deactivating") == 0))
                (void) snprintf(f->why, sizeof(f->why), "%s%s%s", own ? "" : unit, own ? "" : ": ", why);
        if (!ended && is_listener(unit))
                f->listeners_begun |= listener_bit(unit);
        if (!flow_is_live(f) || !ended)
                return;

        if (is_listener(unit)) {
                on_listener_ended(f, unit, failed);
                return;
        }
        if (!own) {
                /* systemd repeats itself: one note a failure */
                if (failed && strcmp(f->failed_unit, unit) != 0) {
                        (void) snprintf(f->failed_unit, sizeof(f->failed_unit), "%s", unit);
                        manager_note(m, f->item.id, f->run, "unit.failed", "%s failed%s%s", unit, why ? ": " : "", why ?: "");
                }
                return;
        }

        /* Its last words are not on their way: it waits for the answer to them before it ends. */
        if (f->state == FLOW_STARTING)
                return;
        reason = text_format("%s ended without a result: %s", unit, why ?: "unknown");
        if (f->storing) {
                /* the result is here, and whoever sent it does not wait any more */
                if (!f->gone)
                        f->gone = reason ? TAKE_PTR(reason) : strdup("ended without a result");
                return;
        }
        flow_end_lost(f, reason ?: "ended without a result");
}
