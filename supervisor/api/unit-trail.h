/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Which unit of a run was the first to go, and how: made of what systemd tells of their jobs and states, in the order in which it tells. See unit-trail.c. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UNIT_TRAIL_MAX = 16 };

typedef struct TrailUnit {
        char name[64];
        uint32_t job, start_job; /* queued now; the one that starts it */
        uint32_t stop_job;       /* the one that stopped it */
        bool up, activating;
        bool stopped, died;      /* by a job; by itself */
        unsigned since;          /* in the order of what was told: the job, or the death */
        char why[96];
} TrailUnit;

/* All zeros: nothing was told yet. */
typedef struct UnitTrail {
        TrailUnit units[UNIT_TRAIL_MAX];
        size_t n_units;
        unsigned n_told;
} UnitTrail;

void unit_trail_on_job(UnitTrail *t, const char *unit, uint32_t job, bool queued);

/* A unit's state as systemd names it. `why` as UnitsChanged has it. `up`: whatever is not up any more was so before; else only what was seen to be up. */
void unit_trail_on_state(UnitTrail *t, const char *unit, const char *active, const char *why, bool up);

/* The first to go of those that a run cannot do without; NULL: none. `stopped` or `died` is true in it. */
const TrailUnit *unit_trail_first(const UnitTrail *t);

/* Was that one told to have gone, or to be going? */
bool unit_trail_is_gone(const UnitTrail *t, const char *unit);
