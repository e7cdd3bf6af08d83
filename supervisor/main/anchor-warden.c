/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-warden: is the fence in force? See net/warden.c. */

#include <stdlib.h>

#include "ipc/daemon.h"
#include "net/warden.h"
#include "util/log.h"

static int run(void) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(warden_freep) Warden *warden = NULL;
        int r;

        r = daemon_event_new(&event);
        if (r < 0)
                return r;
        r = warden_new(&warden, event);
        if (r < 0)
                return r;

        return daemon_serve(event);
}

int main(int argc, char *argv[]) {
        log_init("anchor-warden");

        if (argc > 1) {
                log_error("this program takes no arguments");
                return 2;
        }
        return run() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
