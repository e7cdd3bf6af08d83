/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-secretd: credentials and what runs get in place of them. See secret/secretd.c. */

#include <stdlib.h>

#include "ipc/daemon.h"
#include "secret/secretd.h"
#include "util/log.h"
#include "util/secret.h"

static int run(void) {
        const SecretdPaths paths = {
                .credentials = getenv("CREDENTIALS_DIRECTORY"), /* unset: the host has none */
                .state = "/var/lib/anchorhold/secret",
                .key = "/run/anchor-secretd",
                .policy_root = "",
                .upstream_ca = "/etc/anchorhold/upstream-ca.d",
        };
        _cleanup_(secretd_freep) Secretd *secretd = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        int r;

        r = secret_protect_process();
        if (r < 0)
                return log_error_errno(r, "cannot keep secrets out of swap and core dumps");
        if (r == SECRET_E_SWAPPABLE)
                log_warning("the limit of locked memory is too low: only the secrets' own pages are locked");

        r = daemon_event_new(&event);
        if (r < 0)
                return r;

        r = secretd_new(&secretd, event, &paths);
        if (r < 0)
                return log_error_errno(r, "cannot start");

        return daemon_serve(event);
}

int main(int argc, char *argv[]) {
        log_init("anchor-secretd");

        if (argc > 1) {
                log_error("this program takes no arguments; systemd passes its sockets (anchor-secretd.socket, anchor-secretd-api.socket)");
                return 2;
        }

        return daemon_exit_status(run());
}
