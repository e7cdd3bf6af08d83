/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What every long-running program of ours does around its own objects. */

#include <systemd/sd-event.h>

/* An event loop that SIGTERM and SIGINT end and that feeds systemd's watchdog, if the unit has one. Negative errno, logged. */
int daemon_event_new(sd_event **ret);

/* READY=1, then the loop until it ends, then STOPPING=1. Negative errno, logged. */
int daemon_serve(sd_event *event);
