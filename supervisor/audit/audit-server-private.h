/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* auditd's state, for audit-server.c (commits, the journal, start) and audit-server-request.c (what comes through the socket). */

#include <jansson.h>
#include <systemd/sd-id128.h>

#include "audit/audit-checkpoint.h"
#include "audit/audit-outbox.h"
#include "audit/audit-queue.h"
#include "audit/audit-record.h"
#include "audit/audit-server.h"
#include "audit/audit-share.h"
#include "util/text.h"

typedef struct Pending {
        struct Pending *next;
        AuditRecord record;   /* empty for a Ping */
        IpcCall *call;        /* ref; NULL for an event of our own */
        bool ping;
        char identity[HEX_SHA256_SIZE]; /* of one that may be sent again; "": it is not */
        AuditShare *share;    /* borrowed; NULL: it has none */
        AuditHead told;       /* where it is, if it was sent again; seq 0: it was not */
        size_t size;          /* about as much as the record will take in the queue */
        size_t weight;        /* and of its share */
        size_t reserved;      /* of which so much is taken until it is known whether it was written; then 0 */
} Pending;

struct AuditServer {
        sd_event *event;               /* ref */
        IpcServer *ipc;                /* owned */
        AuditOutbox *outbox;           /* owned */
        AuditQueue *queue;             /* owned */
        AuditKey *key;                 /* owned */
        int state_fd;                  /* owned */
        char *journal_dir, *journal_unit; /* owned */
        char boot[SD_ID128_STRING_MAX];
        Pending *pending, **pending_end; /* owned list */
        size_t n_pending, pending_bytes;
        AuditShares *shares;           /* owned */
        sd_event_source *commit, *drop, *checkpoint; /* ref */
        AuditHead kept;                /* the outbox may still hold some up to here */
        AuditHead signed_head;         /* of the last checkpoint */
        uint64_t signed_first;         /* its FIRST; 0: none was signed in this life */
};

Pending *audit_pending_free(Pending *p);
DEFINE_CLEANUP(Pending *, audit_pending_free)

/* Into the next commit. */
void audit_server_enqueue(AuditServer *s, Pending *p);
/* An event of auditd itself. `data` is taken over; `run` may be NULL. */
int audit_server_append_own(AuditServer *s, const char *name, const char *run, json_t *data);

int audit_server_on_append(IpcCall *call, json_t *params, void *userdata);
int audit_server_on_ping(IpcCall *call, json_t *params, void *userdata);
