/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The SQLite file that makes a record durable before anyone is told so, and that knows where the chain is. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "audit/audit-record.h"

typedef struct AuditOutbox AuditOutbox;

enum {
        AUDIT_OUTBOX_TOLD_MAX = 4096,       /* of a source, */
        AUDIT_OUTBOX_TOLD_UNIT_MAX = 256,   /* of a unit of a run, which sends one after the other, */
        AUDIT_OUTBOX_TOLD_UNITS_MAX = 16384, /* and of all of these */
        AUDIT_OUTBOX_SPENT_MAX = 4096,  /* sources: some hundreds of runs */
};

typedef struct AuditHead {
        uint64_t seq;                       /* of the last record; 0: none yet */
        uint8_t hash[AUDIT_HASH_SIZE];      /* its hash; zeros: none yet */
} AuditHead;

/* Opens or makes the file, mode 0600. */
int audit_outbox_open(AuditOutbox **ret, const char *path);
AuditOutbox *audit_outbox_free(AuditOutbox *o);
DEFINE_CLEANUP(AuditOutbox *, audit_outbox_free)

/* The head as it is on disk. */
const AuditHead *audit_outbox_head(const AuditOutbox *o);
/* The last record of which it is known that the journal keeps it. */
const AuditHead *audit_outbox_kept(const AuditOutbox *o);

/*
 * One transaction: begin, then any number of appends and drops, then commit. Nothing is durable and the
 * head is unchanged until audit_outbox_commit() returned 0. On any failure everything since begin is undone.
 */
int audit_outbox_begin(AuditOutbox *o);
/* Seals the record as the next one and adds it. */
int audit_outbox_append(AuditOutbox *o, AuditRecord *r);
/* Was a record of this identity (hexadecimal) appended, also in this transaction? 1 and its place in the chain, or 0. */
int audit_outbox_find_told(AuditOutbox *o, const char *identity, AuditHead *ret);
/* The record that was appended last is of this identity. The newest of each source are remembered, or a few more, whatever other sources do. */
int audit_outbox_tell(AuditOutbox *o, const char *identity, const char *source, bool unit_of_run);
/* The record that was appended last takes so much of its source's share of the log. The AUDIT_OUTBOX_SPENT_MAX that wrote last are remembered. */
int audit_outbox_spend(AuditOutbox *o, const char *source, uint64_t bytes);
/* How much that was so far, in all lives of this file. */
int audit_outbox_spent(AuditOutbox *o, const char *source, uint64_t *ret);
/* The journal keeps every record up to this one: drops them. */
int audit_outbox_drop(AuditOutbox *o, const AuditHead *kept);
/* Continues the chain after a record that the journal has and this file does not (it was lost or set back). */
int audit_outbox_adopt(AuditOutbox *o, const AuditHead *head);
/* Proves that the file can be written, when there is nothing else to write. */
int audit_outbox_touch(AuditOutbox *o);
int audit_outbox_commit(AuditOutbox *o);
void audit_outbox_rollback(AuditOutbox *o);

/* Calls for each record that waits, in order. A negative return stops and is returned. -EBADMSG if the file's
 * contents are not an unbroken piece of the chain that ends in its head. */
int audit_outbox_foreach(AuditOutbox *o, int (*handler)(AuditRecord *r, const char *text, size_t size, void *userdata), void *userdata);
