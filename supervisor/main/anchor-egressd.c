/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-egressd: what a run may reach. See egress/egressd.c. */

#include <stdlib.h>

#include "egress/egressd.h"
#include "ipc/daemon.h"
#include "util/log.h"

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

        return daemon_serve(event);
}

int main(int argc, char *argv[]) {
        log_init("anchor-egressd");

        if (argc > 1) {
                log_error("this program takes no arguments; systemd passes its socket (anchor-egressd.socket)");
                return 2;
        }

        return run() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
