/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchor-probe RUN: what do the fence's programs say, from a run's place? Stays as long as the run; see net/probe.c.
 * anchor-probe --once: the same once; prints a JSON object.
 */

#include <stdlib.h>
#include <string.h>

#include "ipc/daemon.h"
#include "net/fence.h"
#include "net/probe.h"
#include "util/log.h"
#include "util/text.h"

static int probe_run(const char *run) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(probe_freep) Probe *probe = NULL;
        _cleanup_free_ char *folder = NULL;
        int r;

        r = fence_require();
        if (r < 0)
                return r;
        r = daemon_event_new(&event);
        if (r < 0)
                return r;
        folder = text_format(PROBE_FOLDER "/%s", run);
        r = folder ? probe_new(&probe, event, folder) : -ENOMEM;
        if (r < 0)
                return log_error_errno(r, "cannot start");

        /* READY=1 is the first answer's to say */
        return sd_event_loop(event);
}

static int probe_host(void) {
        _cleanup_free_ char *text = probe_once();

        return text && printf("%s\n", text) >= 0 && fflush(stdout) == 0 ? 0 : log_error_errno(-EIO, "cannot print the answer");
}

int main(int argc, char *argv[]) {
        log_init("anchor-probe");

        if (argc == 2 && strcmp(argv[1], "--once") == 0)
                return probe_host() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
        if (argc == 2 && text_is_id('r', argv[1]))
                return probe_run(argv[1]) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;

        log_error("usage: anchor-probe {RUN|--once} (started by anchor-probe@RUN.service and anchor-doctor-probe.service)");
        return 2;
}
