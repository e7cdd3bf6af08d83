/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "ipc/daemon.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/log.h"

enum { NO_SPACE_S = 4 };

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

int daemon_exit_status(int r) {
        if (r >= 0)
                return EXIT_SUCCESS;
        /* SQLite says EIO where it cannot make room for what it maps */
        if (r == -ENOSPC || r == -EDQUOT || r == -EIO) {
                (void) sd_notify(false, "STATUS=The disk is full, or does not take what is written. Tries again.");
                (void) sleep(NO_SPACE_S);
        }
        return EXIT_FAILURE;
}
