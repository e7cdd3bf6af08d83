/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-run RUN: drives one run; started by anchor-run@.service. See supervisor/run/run.c. */

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <systemd/sd-event.h>

#include "run/run-calls.h"
#include "run/run.h"
#include "util/log.h"
#include "util/text.h"

static int run(const char *id) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(run_freep) Run *run_object = NULL;
        _cleanup_free_ char *channel = NULL, *qmp = NULL;
        int r;

        channel = text_format("/run/anchorhold/run/%s/channel", id);
        qmp = text_format("/run/anchorhold/run/%s/qmp", id);
        if (!channel || !qmp)
                return log_oom();

        r = sd_event_default(&event);
        if (r < 0)
                return log_error_errno(r, "cannot make an event loop");

        r = sd_event_set_signal_exit(event, true); /* SIGTERM: anchord has decided, the VM ends with the unit */
        if (r < 0)
                return log_error_errno(r, "cannot handle signals");

        r = run_new(&run_object, event, &(RunConfig) {
                .id = id,
                .channel = channel,
                .qmp = qmp,
                .api = RUN_CALLS_SOCKET,
                .credentials = getenv("CREDENTIALS_DIRECTORY"),
                .confine = true,
        });
        if (r < 0)
                return log_error_errno(r, "run %s cannot start", id);

        return sd_event_loop(event);
}

int main(int argc, char *argv[]) {
        log_init("anchor-run");

        if (argc != 2 || !text_is_id('r', argv[1])) {
                fprintf(stderr, "usage: anchor-run RUN   (started by anchor-run@.service)\n");
                return 2;
        }

        (void) signal(SIGPIPE, SIG_IGN);
        return run(argv[1]) == 0 ? 0 : 1;
}
