/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* anchor-auditd: the only writer of the audit log. See audit/audit-server.c. */

#include <stdlib.h>

#include "audit/audit-api.h"
#include "audit/audit-journal.h"
#include "audit/audit-server.h"
#include "ipc/daemon.h"
#include "util/log.h"

static int run(void) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(audit_server_freep) AuditServer *server = NULL;
        _cleanup_free_ char *directory = NULL;
        AuditServerOptions options = {
                .state_dir = AUDIT_STATE_DIR,
                .journal_socket = "/run/systemd/journal." AUDIT_NAMESPACE "/socket",
                .journal_unit = AUDIT_UNIT,
        };
        int r;

        r = audit_journal_directory(&directory);
        if (r < 0)
                return log_error_errno(r, "Cannot find the journal's directory");
        options.journal_dir = directory;

        r = daemon_event_new(&event);
        if (r < 0)
                return r;

        r = audit_server_new(&server, event, &options);
        if (r < 0)
                return r;
        r = audit_server_listen_systemd(server, "audit");
        if (r < 0)
                return log_error_errno(r, "systemd passed no socket named \"audit\"");
        r = audit_server_listen_systemd(server, "audit-api");
        if (r < 0)
                return log_error_errno(r, "systemd passed no socket named \"audit-api\" (anchor-auditd-api.socket)");

        r = daemon_serve(event);
        audit_server_stop(server);
        return r;
}

int main(int argc, char **argv) {
        log_init("anchor-auditd");
        return run() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
