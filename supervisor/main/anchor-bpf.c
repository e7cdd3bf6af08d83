/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Loads and pins the fence, at boot; --check only looks, and then also at what is in force on the slice and the devices. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "net/bpf-load.h"
#include "net/fence-inspect.h"
#include "net/uplink.h"
#include "util/cleanup.h"
#include "util/log.h"

int main(int argc, char *argv[]) {
        _cleanup_free_ char *reason = NULL;
        unsigned n_pinned;
        bool check;
        int r;

        log_init("anchor-bpf");

        check = argc == 2 && strcmp(argv[1], "--check") == 0;
        if (argc > 1 && !check) {
                fprintf(stderr, "usage: anchor-bpf [--check]\n");
                return 2;
        }

        r = fence_load(check, &n_pinned, &reason);
        if (r >= 0 && !check)
                r = fence_forget_slice(&reason);
        if (r >= 0 && check)
                r = fence_check_slice(&reason);
        if (r >= 0 && check)
                r = uplink_check(&reason);
        if (r < 0) {
                log_error_errno(r, "fence: %s", reason ?: "failed");
                return EXIT_FAILURE;
        }

        if (check)
                log_info("fence: all programs are pinned and in force");
        else if (n_pinned > 0)
                log_info("fence: %u programs pinned", n_pinned);
        else
                log_info("fence: all programs are pinned");
        return EXIT_SUCCESS;
}
