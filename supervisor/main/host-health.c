/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* host-health [--begin|--failed]: the gate of a boot (host/health.c). Without an option: makes the checks, exit status 0 or 1. --begin: counts the
 * boot. --failed: what follows from a boot that failed them. */

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/health.h"
#include "host/host-state-api.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/log.h"

enum { REASON_MAX = 512 };

static int check(void) {
        char reason[REASON_MAX] = "";
        int r;

        r = io_write_file_atomic(AT_FDCWD, HEALTH_BEGUN, "", 0, 0644);
        if (r < 0)
                log_warning_errno(r, "cannot say that the checks have begun");
        (void) unlink(HEALTH_REASON);
        r = health_check(reason, sizeof(reason));
        if (r < 0) {
                log_error("%s", reason);
                (void) io_write_file_atomic(AT_FDCWD, HEALTH_REASON, reason, strlen(reason), 0644);
                return EXIT_FAILURE;
        }

        r = health_passed();
        if (r < 0)
                log_error_errno(r, "cannot remember that this image works, so its next boot is again that of one that was never tried here; when " HOST_STATE
                                   " can be written, \"systemctl restart host-health.service\" makes up for it");
        return EXIT_SUCCESS;
}

static int begin(void) {
        int r;

        r = health_begin();
        if (r < 0)
                log_warning_errno(r, "cannot count this boot");
        return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int failed(void) {
        _cleanup_free_ char *reason = NULL;
        int r;

        if (io_read_file(AT_FDCWD, HEALTH_REASON, REASON_MAX, &reason, NULL) < 0)
                reason = NULL;
        r = health_failed(reason ?: "the health check did not begin, or did not end, in its time");
        return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char *argv[]) {
        log_init("host-health");
        if (argc == 1)
                return check();
        if (argc == 2 && strcmp(argv[1], "--failed") == 0)
                return failed();
        if (argc == 2 && strcmp(argv[1], "--begin") == 0)
                return begin();
        log_error("usage: host-health [--begin|--failed]");
        return 2;
}
