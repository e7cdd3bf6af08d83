/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* auditd: takes events, makes them durable, hands them to the journal, and sees that they arrive. */

#include <systemd/sd-event.h>

#include "ipc/ipc.h"
#include "util/cleanup.h"

typedef struct AuditServer AuditServer;

typedef struct AuditServerOptions {
        const char *state_dir;      /* outbox, key, checkpoints */
        const char *journal_socket; /* journald's native socket */
        const char *journal_dir;    /* its persistent files */
        const char *journal_unit;   /* whose entries are ours; NULL: anybody's (tests) */
} AuditServerOptions;

/* Settles what an earlier life left: afterwards the chain's head is known and audit.started is written. Does not listen yet. */
int audit_server_new(AuditServer **ret, sd_event *event, const AuditServerOptions *options);
AuditServer *audit_server_free(AuditServer *s);
DEFINE_CLEANUP(AuditServer *, audit_server_free)

/* Their userdata is an AuditServer. The second is for a client that has gone. */
extern const IpcMethod audit_server_methods[];
void audit_server_on_gone(const Peer *peer, void *userdata);

/* Takes a listening descriptor over. */
int audit_server_listen_fd(AuditServer *s, int fd);
int audit_server_listen_systemd(AuditServer *s, const char *fd_name);

/* Before the end: signs what the journal keeps. */
void audit_server_stop(AuditServer *s);
