/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The agreement check of one run, for as long as it lasts. See check-run.c. */

#include <systemd/sd-event.h>

#include "util/cleanup.h"

typedef struct CheckRun CheckRun;

/* Starts the first round. READY=1 is said, and the event loop goes on, when it found no disagreement. */
int check_run_new(CheckRun **ret, sd_event *event, const char *run);
CheckRun *check_run_free(CheckRun *c);
DEFINE_CLEANUP(CheckRun *, check_run_free)
