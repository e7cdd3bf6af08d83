/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* One Append: its parameters, whether this peer may say that, and the record that it becomes. No I/O. */

#include <jansson.h>

#include "audit/audit-event.h"
#include "audit/audit-record.h"
#include "ipc/peer.h"

enum {
        AUDIT_RUN_ROLES = PEER_NET | PEER_VM | PEER_PROXY | PEER_INJECT | PEER_RUN | PEER_IMPORT | PEER_PUBLISH | PEER_CHECK | PEER_NETLOG,
        AUDIT_DAEMON_ROLES = PEER_ANCHORD | PEER_EGRESSD | PEER_SECRETD, /* may write in another's name */
        AUDIT_ACTOR_MAX = 128,
        AUDIT_KEY_MAX = 64,
};

typedef enum AuditRequestVerdict {
        AUDIT_REQUEST_GOOD,
        AUDIT_REQUEST_BAD_INPUT,
        AUDIT_REQUEST_DENIED,
} AuditRequestVerdict;

typedef struct AuditRequest {
        AuditRequestVerdict verdict;
        char *pointer, *reason;          /* owned: of what is wrong; the pointer may be NULL */
        const AuditEvent *event;
        const char *key;                 /* borrowed; NULL: this is not sent twice */
        const char *run, *item, *actor;  /* borrowed from parameters, peer and source; run and item may be NULL */
        const json_t *data;              /* borrowed */
        char *canonical;                 /* owned: data as it is recorded */
} AuditRequest;

/* Reads and judges. `source` is the peer's name (peer_name()). Negative errno only when out of memory. */
int audit_request_read(AuditRequest *ret, const json_t *params, const Peer *peer, const char *source);
/* Fills everything but the record's place in the chain. */
int audit_request_fill(const AuditRequest *q, const char *boot, const char *source, AuditRecord *ret);
/* In hexadecimal, of a request with a key: the same only for the same words of the same source under the same key. */
int audit_request_identity(const AuditRequest *q, const char *source, char ret[static HEX_SHA256_SIZE]);
void audit_request_done(AuditRequest *q);
