/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-netlog RUN: what the guest's network rejects, into the audit log. See net/netlog.c. */

#include <stdlib.h>

#include "ipc/daemon.h"
#include "net/netlog.h"
#include "util/log.h"
#include "util/text.h"

static int run(const char *id) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(netlog_freep) Netlog *netlog = NULL;
        int r;

        r = daemon_event_new(&event);
        if (r < 0)
                return r;
        r = netlog_new(&netlog, event, id);
        if (r < 0)
                return r;

        return daemon_serve(event);
}

int main(int argc, char *argv[]) {
        log_init("anchor-netlog");

        if (argc != 2 || !text_is_id('r', argv[1])) {
                log_error("usage: anchor-netlog RUN (started by anchor-netlog@RUN.service)");
                return 2;
        }
        return run(argv[1]) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
