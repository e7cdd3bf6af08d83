/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Shared by units.c (calls and their answers) and units-signals.c (what systemd tells of itself). */

#include <systemd/sd-bus.h>

#include "api/units.h"

#define SYSTEMD "org.freedesktop.systemd1"
#define MANAGER_PATH "/org/freedesktop/systemd1"
#define MANAGER "org.freedesktop.systemd1.Manager"
#define UNIT_PATH "/org/freedesktop/systemd1/unit"

typedef struct UnitsCall UnitsCall;

struct UnitsCall {
        Units *units;       /* borrowed */
        UnitsCall *next;
        sd_bus_slot *slot;  /* owned */
        sd_event_source *timer; /* owned; until it is sent */
        char *unit;         /* owned; for messages */
        char *job;          /* owned; path, once known */
        const char *verb;   /* static */
        UnitsDone done;     /* of these three at most one */
        UnitsListed listed;
        UnitsSince since;
        void *userdata;
};

struct Units {
        sd_event *event; /* ref */
        sd_bus *bus;     /* owned */
        UnitsCall *calls; /* owned */
        unsigned n_calls;
        char why_unit[256];  /* the service whose end was told last, and how: its state follows in the next signal */
        char why[96];
        UnitsChanged changed;
        UnitsJob job;
        void (*lost)(void *userdata);
        void *userdata;
};

/* Ends a start, stop, kill or reset. */
void units_call_end(UnitsCall *c, int r, const char *result);

int units_subscribe(Units *u);
