/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* How much of the log one unit of a run may write, how fast, and how much of it at once. */

#include <systemd/sd-event.h>

#include "audit/audit-outbox.h"
#include "ipc/ipc.h"

typedef struct AuditShares AuditShares;
typedef struct AuditShare AuditShare;

enum {
        AUDIT_SHARE_RECORD = 1024,                /* bytes that a record weighs besides its data: about what the journal needs for it */
        AUDIT_SHARE_BURST = 8 * 1024 * 1024,      /* bytes at once: a quarter of what may wait for the journal */
        AUDIT_SHARE_PER_SECOND = 2 * 1024 * 1024, /* and so many a second after that */
        AUDIT_SHARE_UNDER_WAY_MAX = 8,            /* requests; our own client has one of a run, and a second at its end */
        AUDIT_SHARE_HELD_MAX = 64,                /* refused requests that wait for their answer: of a user there are no more connections */
};

/* A string that names what is used up; NULL: nothing is. */
#define AUDIT_SHARE_BUSY "busy"
#define AUDIT_SHARE_RATE "rate"
#define AUDIT_SHARE_TOTAL "total"

int audit_shares_new(AuditShares **ret, sd_event *event);
AuditShares *audit_shares_free(AuditShares *s); /* nothing may be under way */
DEFINE_CLEANUP(AuditShares *, audit_shares_free)

/* That of this peer's unit; NULL if it is no unit of a run. What earlier lives took of it, the outbox knows. Valid until the next call of this function,
 * and as long as something of it is under way. */
int audit_shares_get(AuditShares *s, const Peer *peer, AuditOutbox *outbox, uint64_t now_usec, AuditShare **ret);
/* Each takes NULL, which has no bounds. */
const char *audit_share_lacks(AuditShare *share, uint64_t now_usec);
/* It sent so much, whatever becomes of it. */
void audit_share_spend(AuditShare *share, size_t bytes);
/* One request more is under way, and so much of it becomes a record: returns what that takes of the share, which may have less. Or one less, of which so much
 * became none. */
size_t audit_share_begin(AuditShare *share, size_t bytes);
void audit_share_end(AuditShare *share, size_t unwritten);
/* True once for each thing that is used up and worth a record. */
bool audit_share_tell(AuditShare *share, const char *lack);

/* Refuses the call, as the others are, but a second later: whoever has used up its share sends no faster for that. AUDIT_SHARE_HELD_MAX wait for that, and
 * whoever sends another then is hung up. `share` is not NULL. */
int audit_shares_refuse(AuditShares *s, AuditShare *share, IpcCall *call, const char *lack);
/* A client has gone: of those that wait, its own do no longer. */
void audit_shares_drop_gone(AuditShares *s);

/* Of a unit with these roles in its run's whole life. */
uint64_t audit_share_total(unsigned roles);
