/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The half of the agreement check that asks the fence's programs, and how the other half gets what it found: by a file, so that it
 * listens to nobody. See probe.c.
 */

#include <systemd/sd-event.h>

#include "net/check.h"

#define PROBE_FOLDER "/run/anchorhold-probe" /* a folder for each run, which only its probe can write to */
#define PROBE_FILE "result"
#define PROBE_OF_DOCTOR "/run/anchorhold/doctor-probe.json"

typedef struct Probe Probe;

/* Asks now, and then every three seconds, and writes PROBE_FILE into `folder`; it says READY=1 by itself. */
int probe_new(Probe **ret, sd_event *event, const char *folder);
Probe *probe_free(Probe *p);
DEFINE_CLEANUP(Probe *, probe_free)

/* Asks once: {"at": CLOCK_BOOTTIME in microseconds, "probes": [{"layer", "probe", "result"}, …], "reason": "…"}. The caller's; NULL without memory. */
char *probe_once(void);

/* Takes such a text over into the table. What cannot be read, or is older than fifteen seconds, is the table's reason, and a negative errno. */
int probe_read(const char *path, CheckTable *t);
