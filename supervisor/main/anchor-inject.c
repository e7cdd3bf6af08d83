/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-inject RUN: ends a run's inspected TLS and puts its credentials in. See inject/inject.c. */

#include <stdlib.h>

#include "inject/inject.h"
#include "ipc/daemon.h"
#include "net/fence.h"
#include "util/log.h"
#include "util/secret.h"
#include "util/text.h"

static int run(const char *id) {
        InjectPaths paths = {
                .upstream_ca_dir = "/etc/anchorhold/upstream-ca.d",
                .egress = "/run/anchorhold/egress.sock",
                .run_api = "/run/anchorhold/run-api.sock",
                .secret_api = "/run/anchorhold/secret-api.sock",
        };
        const char *folder = getenv("CREDENTIALS_DIRECTORY");
        _cleanup_(inject_freep) Inject *inject = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_free_ char *bundle = NULL;
        int r;

        r = secret_protect_process();
        if (r < 0)
                return log_error_errno(r, "cannot keep secrets out of core dumps");
        if (r == SECRET_E_SWAPPABLE)
                log_warning("the limit of locked memory is too low: only the secrets' own pages are locked");
        r = fence_require();
        if (r < 0)
                return r;

        bundle = text_format("%s/inject", folder ? folder : "/nowhere");
        if (!bundle)
                return log_oom();
        paths.bundle = bundle;

        r = daemon_event_new(&event);
        if (r < 0)
                return r;

        r = inject_new(&inject, event, id, &paths);
        if (r < 0)
                return log_error_errno(r, "cannot start");

        return daemon_serve(event);
}

int main(int argc, char *argv[]) {
        log_init("anchor-inject");

        if (argc != 2 || !text_is_id('r', argv[1])) {
                log_error("usage: anchor-inject RUN, with the socket of anchor-inject@RUN.socket");
                return 2;
        }

        return run(argv[1]) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
