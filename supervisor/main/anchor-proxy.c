/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-proxy RUN: what the guest of a run reaches, and how. See proxy/proxy.c. */

#include <stdbool.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>

#include "net/fence.h"
#include "proxy/proxy.h"
#include "util/log.h"
#include "util/text.h"

/* Nothing is accepted by a process that is not fenced. */
static int check_fence(void) {
        const char *what = "";
        int r;

        r = fence_self_test(&what);
        if (r < 0)
                return log_error_errno(r, "not fenced, or not known to be: %s", what);
        return 0;
}

static int run(const char *id) {
        _cleanup_(proxy_freep) Proxy *proxy = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        int r;

        r = check_fence();
        if (r < 0)
                return r;

        r = sd_event_default(&event);
        if (r < 0)
                return log_error_errno(r, "no event loop");
        r = sd_event_set_signal_exit(event, true);
        if (r < 0)
                return log_error_errno(r, "cannot take signals");
        (void) sd_event_set_watchdog(event, true);

        r = proxy_new(&proxy, event, id);
        if (r < 0)
                return log_error_errno(r, "cannot start");

        (void) sd_notify(false, "READY=1");
        r = sd_event_loop(event);
        (void) sd_notify(false, "STOPPING=1");
        return r < 0 ? log_error_errno(r, "the event loop failed") : 0;
}

int main(int argc, char *argv[]) {
        log_init("anchor-proxy");

        if (argc != 2 || !text_is_id('r', argv[1])) {
                log_error("usage: anchor-proxy RUN (started by anchor-proxy@RUN.service)");
                return 2;
        }

        return run(argv[1]) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
