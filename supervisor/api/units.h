/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Everything that speaks to systemd over D-Bus, asynchronously. anchord has no privilege of its own: polkit
 * (units/polkit-1/rules.d/50-anchorhold.rules) lets it start, stop, kill and reset exactly the units of runs.
 */

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"

typedef struct Units Units;

typedef struct UnitState {
        const char *name, *active, *sub; /* borrowed */
        bool job;                        /* something is queued for it */
} UnitState;

/* Why a unit failed if its first step, anchor-fence, found no programs. */
#define UNITS_NOT_FENCED "the eBPF programs are not in force (anchor-fence); see systemctl status anchor-bpf"

/* A unit of ours changed its state. Called for every change. `why` says how a service ended ("exit status 1",
 * "signal 9", "start-limit-hit"), NULL if it did not or did well: it comes with the signal, since a unit that failed may be
 * unloaded before anybody could ask. */
typedef void (*UnitsChanged)(const char *unit, const char *active, const char *why, void *userdata);

/* A job of a unit of ours was queued, or is over. Called for every one. */
typedef void (*UnitsJob)(const char *unit, uint32_t job, bool queued, void *userdata);

/* Connects and subscribes. `lost` is called when the bus is gone: anchord then ends and starts anew. */
int units_new(Units **ret, sd_event *event, UnitsChanged changed, UnitsJob job, void (*lost)(void *userdata), void *userdata);
Units *units_free(Units *u);
DEFINE_CLEANUP(Units *, units_free)

/* `result` is systemd's: "done", "failed", "dependency", "timeout", "canceled", …, or a D-Bus error's message
 * with r negative: -EBUSY if a stop of the unit, or of what it is in, is still queued and must not be replaced. `done` is called once; NULL: failures are logged. */
typedef void (*UnitsDone)(int r, const char *result, void *userdata);

int units_start(Units *u, const char *unit, UnitsDone done, void *userdata);
/* Stop and reset: what was asked and is not answered yet is not asked again. */
int units_stop(Units *u, const char *unit);
int units_kill(Units *u, const char *unit, int signal_number);
int units_reset_failed(Units *u, const char *unit);

/* All loaded units that match one of the NULL-terminated patterns, however many. With r negative nothing is known of any. */
typedef void (*UnitsListed)(int r, const UnitState *units, size_t n, void *userdata);
int units_list(Units *u, const char *const *patterns, UnitsListed listed, void *userdata);

/* Since when a unit is what it is. Of one that is not loaded: inactive. */
typedef struct UnitSince {
        char active[16];
        bool job;                                   /* something is queued for it */
        uint64_t active_monotonic, active_realtime; /* when it last became active; 0: never */
} UnitSince;

/* Asks systemd about one unit, now or after a while. `done` is called once, with -ECANCELED if units_free() comes first. */
typedef void (*UnitsSince)(int r, const UnitSince *since, void *userdata);
int units_since(Units *u, const char *unit, uint64_t delay_usec, UnitsSince done, void *userdata);

/* No callback of anything under way with this userdata will be called any more. */
void units_forget(Units *u, void *userdata);

/* "anchor-run@r….service" gives the run id: false if the unit is none of a run. prefix ("anchor-run") may be NULL. */
bool unit_name_run(const char *unit, const char *prefix, char ret[static 14]);
