/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-egressd: what a run may reach. See egress/egressd.c. */

#include <stdbool.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>

#include "egress/egressd.h"
#include "util/log.h"

static int run(void) {
        _cleanup_(egressd_freep) Egressd *egressd = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        int r;

        r = sd_event_default(&event);
        if (r < 0)
                return log_error_errno(r, "no event loop");
        r = sd_event_set_signal_exit(event, true);
        if (r < 0)
                return log_error_errno(r, "cannot take signals");
        (void) sd_event_set_watchdog(event, true);

        r = egressd_new(&egressd, event);
        if (r < 0)
                return log_error_errno(r, "cannot start");

        (void) sd_notify(false, "READY=1");
        r = sd_event_loop(event);
        (void) sd_notify(false, "STOPPING=1");
        return r < 0 ? log_error_errno(r, "the event loop failed") : 0;
}

int main(int argc, char *argv[]) {
        log_init("anchor-egressd");

        if (argc > 1) {
                log_error("this program takes no arguments; systemd passes its socket (anchor-egressd.socket)");
                return 2;
        }

        return run() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
