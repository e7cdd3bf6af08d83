/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A run's units hang on each other: whichever is stopped or dies, anchor-run@ goes as well, and often first, since what depends on a unit is stopped
 * before that. So the last to go may be the cause.
 *
 * What is stopped with one command is one transaction: the unit that was named gets the first of its jobs, and so the lowest number, whatever the order in which
 * systemd then tells of them. A stop that follows from a death is a later job than the death, and is told later. A start has a job as well; it is told apart by the
 * unit's state "activating" while it is queued. (A stop of something that is starting cancels that job, and is another.)
 *
 * What a run does not end with, proxy and inject and their sockets, is left out: they are started again, or go by themselves.
 */

#include <stdio.h>
#include <string.h>

#include "api/unit-trail.h"
#include "util/cleanup.h"

bool unit_trail_is_gone(const UnitTrail *t, const char *unit) {
        for (size_t i = 0; i < t->n_units; i++)
                if (strcmp(t->units[i].name, unit) == 0)
                        return t->units[i].stopped || t->units[i].died;
        return false;
}

static bool counts(const char *unit) {
        static const char *const kinds[] = { "anchor-net@", "anchor-netlog@", "anchor-vm@", "anchor-check@", "anchor-probe@", "anchor-run@", "anchor-import@" };

        for (size_t i = 0; i < ELEMENTSOF(kinds); i++)
                if (strncmp(unit, kinds[i], strlen(kinds[i])) == 0)
                        return true;
        return false;
}

static TrailUnit *get(UnitTrail *t, const char *unit) {
        TrailUnit *u;

        if (!counts(unit))
                return NULL;
        for (size_t i = 0; i < t->n_units; i++)
                if (strcmp(t->units[i].name, unit) == 0)
                        return &t->units[i];
        if (t->n_units == UNIT_TRAIL_MAX || strlen(unit) >= sizeof(u->name))
                return NULL;

        u = &t->units[t->n_units++];
        *u = (TrailUnit) {};
        (void) snprintf(u->name, sizeof(u->name), "%s", unit);
        return u;
}

void unit_trail_on_job(UnitTrail *t, const char *unit, uint32_t job, bool queued) {
        TrailUnit *u = get(t, unit);

        if (!u)
                return;
        if (!queued) {
                if (u->job == job)
                        u->job = 0;
                return;
        }

        u->job = job;
        if (u->activating && u->start_job == 0)
                u->start_job = job;
        if (!u->died)
                u->since = ++t->n_told;
}

static void note_up(TrailUnit *u, bool activating) {
        if (activating && !u->activating && u->job)
                u->start_job = u->job;
        u->up = true;
        u->activating = activating;
        u->stopped = u->died = false;
        u->stop_job = 0;
        u->why[0] = 0;
}

void unit_trail_on_state(UnitTrail *t, const char *unit, const char *active, const char *why, bool up) {
        bool ended = strcmp(active, "inactive") == 0 || strcmp(active, "failed") == 0;
        TrailUnit *u = get(t, unit);

        if (!u)
                return;
        if (!ended && strcmp(active, "deactivating") != 0) {
                note_up(u, strcmp(active, "activating") == 0);
                return;
        }
        u->activating = false;
        if (!u->up && !up)
                return;

        if (u->job && u->job != u->start_job && !u->died) {
                u->stopped = true;
                u->stop_job = u->job;
        } else if (!u->stopped && !u->died) {
                u->died = true;
                u->since = ++t->n_told;
        }
        if (why)
                (void) snprintf(u->why, sizeof(u->why), "%s", why);
}

/* Its job, if it was stopped or is about to be. */
static uint32_t stop_job(const TrailUnit *u) {
        if (u->died)
                return 0;
        if (u->stopped)
                return u->stop_job;
        return u->job != u->start_job ? u->job : 0;
}

const TrailUnit *unit_trail_first(const UnitTrail *t) {
        const TrailUnit *died = NULL, *stopped = NULL;
        unsigned since = 0; /* the first stop was told */

        for (size_t i = 0; i < t->n_units; i++) {
                const TrailUnit *u = &t->units[i];

                if (u->died && (!died || u->since < died->since))
                        died = u;
                if (stop_job(u) == 0)
                        continue;
                if (!stopped || stop_job(u) < stop_job(stopped))
                        stopped = u;
                if (since == 0 || u->since < since)
                        since = u->since;
        }
        return died && (!stopped || died->since < since) ? died : stopped;
}
