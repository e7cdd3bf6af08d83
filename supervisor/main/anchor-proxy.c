/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-proxy RUN: what the guest of a run reaches, and how. See proxy/proxy.c. */

#include <stdlib.h>

#include "ipc/daemon.h"
#include "net/fence.h"
#include "proxy/proxy.h"
#include "util/log.h"
#include "util/text.h"

static int run(const char *id) {
        _cleanup_(proxy_freep) Proxy *proxy = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        int r;

        r = fence_require();
        if (r < 0)
                return r;

        r = daemon_event_new(&event);
        if (r < 0)
                return r;

        r = proxy_new(&proxy, event, id);
        if (r < 0)
                return log_error_errno(r, "cannot start");

        return daemon_serve(event);
}

int main(int argc, char *argv[]) {
        log_init("anchor-proxy");

        if (argc != 2 || !text_is_id('r', argv[1])) {
                log_error("usage: anchor-proxy RUN (started by anchor-proxy@RUN.service)");
                return 2;
        }

        return run(argv[1]) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
