/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-egressd: what a run may reach. See egress/egressd.c. */

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/signalfd.h>

#include "egress/egressd.h"
#include "ipc/daemon.h"
#include "util/log.h"

static int on_signal(sd_event_source *s, const struct signalfd_siginfo *si, void *userdata) {
        return egressd_stop(userdata);
}

/* In place of the loop's end at once. */
static int take_signals(sd_event *event, Egressd *egressd) {
        static const int signals[] = { SIGTERM, SIGINT };
        int r;

        r = sd_event_set_signal_exit(event, false);
        for (size_t i = 0; i < ELEMENTSOF(signals) && r >= 0; i++)
                r = sd_event_add_signal(event, NULL, signals[i] | SD_EVENT_SIGNAL_PROCMASK, on_signal, egressd);
        return r < 0 ? log_error_errno(r, "cannot take signals") : 0;
}

static int run(void) {
        _cleanup_(egressd_freep) Egressd *egressd = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        int r;

        r = daemon_event_new(&event);
        if (r < 0)
                return r;

        r = egressd_new(&egressd, event);
        if (r < 0)
                return log_error_errno(r, "cannot start");
        r = take_signals(event, egressd);
        if (r < 0)
                return r;

        return daemon_serve(event);
}

int main(int argc, char *argv[]) {
        log_init("anchor-egressd");

        if (argc > 1) {
                log_error("this program takes no arguments; systemd passes its socket (anchor-egressd.socket)");
                return 2;
        }

        return daemon_exit_status(run());
}
