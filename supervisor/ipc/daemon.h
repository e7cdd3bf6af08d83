/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What every long-running program of ours does around its own objects. */

#include <systemd/sd-event.h>

/* An event loop that SIGTERM and SIGINT end and that feeds systemd's watchdog, if the unit has one. Negative errno, logged. */
int daemon_event_new(sd_event **ret);

/* READY=1, then the loop until it ends, then STOPPING=1. Negative errno, logged. */
int daemon_serve(sd_event *event);

/* What main() returns for what became of the program. One that ended because the disk is full takes its time: systemd starts it again at once, and
 * after twenty times a minute not any more, but it is to come back when there is space again. */
int daemon_exit_status(int r);
