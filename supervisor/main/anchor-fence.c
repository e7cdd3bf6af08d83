/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * First step of each unit of a run (ExecStartPre=+): is this cgroup fenced? systemd starts a unit even
 * if a program of BPFProgram= is missing, so something has to look: at the programs, as root, and by
 * trying; and has the warden, which looks at the devices as well, found all of it so? The full layer, which systemd has no part in, is attached
 * here, to the slice, before it looks. It fails closed; the unit then does not start.
 */

#include <errno.h>
#include <unistd.h>

#include "net/fence-inspect.h"
#include "net/fence.h"
#include "util/cleanup.h"
#include "util/log.h"

int main(int argc, char *argv[]) {
        _cleanup_free_ char *reason = NULL;
        int r;

        log_init("anchor-fence");

        if (argc > 1) {
                fprintf(stderr, "usage: anchor-fence\n");
                return 2;
        }

        if (geteuid() == 0) {
                r = fence_attach_full(&reason);
                if (r >= 0)
                        r = fence_check_attached(&reason);
                if (r >= 0)
                        r = fence_check_warden(&reason);
                if (r < 0) {
                        log_error_errno(r, "not fenced: %s (see anchor-bpf.service, then restart anchorhold-runs.slice)",
                                        reason ?: "cannot check");
                        return EXIT_FAILURE;
                }
        }

        return fence_require() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
