/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchord: the supervisor. Owns the ledger, starts runs through systemd, and answers operators and the
 * runs' own units. No capability, no network, no credential.
 */

#include <stdbool.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-event.h>

#include "api/manager.h"
#include "ipc/daemon.h"
#include "util/log.h"

static int run(void) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(manager_freep) Manager *manager = NULL;
        int r;

        r = daemon_event_new(&event);
        if (r < 0)
                return r;

        r = manager_new(&manager, event);
        if (r < 0)
                return log_error_errno(r, "cannot begin");
        r = manager_start(manager);
        if (r < 0)
                return r;

        r = sd_event_loop(event);
        (void) sd_notify(false, "STOPPING=1");
        return r;
}

int main(int argc, char *argv[]) {
        log_init("anchord");

        return daemon_exit_status(run());
}
