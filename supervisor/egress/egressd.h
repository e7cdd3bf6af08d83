/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The process that decides what a run may reach: names, rules, addresses, grants. See egressd.c. */

#include <systemd/sd-event.h>

#include "util/cleanup.h"

#define EGRESSD_STATE_DIR "/var/lib/anchorhold/egress"

typedef struct Egressd Egressd;

/* Everything but the loop. Takes the listening descriptors that systemd passed as "egress" and "egress-api". */
int egressd_new(Egressd **ret, sd_event *event);
Egressd *egressd_free(Egressd *e);
/* Ends the loop in an orderly way: when what was counted is in the audit log, or after four seconds. What is not is told by the next start. */
int egressd_stop(Egressd *e);
DEFINE_CLEANUP(Egressd *, egressd_free)
