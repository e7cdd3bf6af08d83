/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* host-provision: what systemd's credentials say that this host is (host/provision.c). Early in each boot, as root. */

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/provision.h"
#include "policy/policy.h"
#include "util/io.h"
#include "util/log.h"

enum { REASON_MAX = 512 };

int main(int argc, char *argv[]) {
        const char *folder = getenv("CREDENTIALS_DIRECTORY");
        char reason[REASON_MAX] = "";
        int r;

        log_init("host-provision");
        if (argc != 1) {
                log_error("usage: host-provision");
                return 2;
        }
        (void) unlink(PROVISION_FAILED);
        if (!folder) /* it was given none */
                return EXIT_SUCCESS;

        r = provision_apply(folder, POLICY_OPERATOR_DIR, reason, sizeof(reason));
        if (r >= 0)
                return EXIT_SUCCESS;
        log_error("nothing of what this host is provisioned with was taken over: %s", reason);
        (void) io_write_file_atomic(AT_FDCWD, PROVISION_FAILED, reason, strlen(reason), 0644);
        return EXIT_FAILURE;
}
