/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "ipc/daemon.h"

#include <stdbool.h>
#include <systemd/sd-daemon.h>

#include "util/cleanup.h"
#include "util/log.h"

int daemon_event_new(sd_event **ret) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        int r;

        r = sd_event_default(&event);
        if (r < 0)
                return log_error_errno(r, "no event loop");

        r = sd_event_set_signal_exit(event, true);
        if (r < 0)
                return log_error_errno(r, "cannot take signals");

        r = sd_event_set_watchdog(event, true);
        if (r < 0)
                return log_error_errno(r, "cannot feed the watchdog");

        *ret = TAKE_PTR(event);
        return 0;
}

int daemon_serve(sd_event *event) {
        int r;

        (void) sd_notify(false, "READY=1");
        r = sd_event_loop(event);
        (void) sd_notify(false, "STOPPING=1");
        return r < 0 ? log_error_errno(r, "the event loop failed") : 0;
}
