/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What auditd has committed and the journal is not yet known to keep: a bounded list in the chain's order. */

#include <systemd/sd-event.h>

#include "audit/audit-outbox.h"

typedef struct AuditQueue AuditQueue;

enum {
        AUDIT_QUEUE_RECORDS_MAX = 8192,
        AUDIT_QUEUE_BYTES_MAX = 32 * 1024 * 1024,
};

/* Records up to `kept` are in the journal for good. Called in the chain's order. */
typedef void (*AuditQueueKept)(const AuditHead *kept, void *userdata);
/* Records from `first` to `last` had been sent, were not found, and are sent again. */
typedef void (*AuditQueueResent)(uint64_t first, uint64_t last, void *userdata);

int audit_queue_new(AuditQueue **ret, sd_event *event, const char *socket_path, const char *directory, const char *unit,
                    AuditQueueKept kept, AuditQueueResent resent, void *userdata);
AuditQueue *audit_queue_free(AuditQueue *q);
DEFINE_CLEANUP(AuditQueue *, audit_queue_free)

/* Adds a committed record; the text is copied. `sent_before`: it may be in the journal already, so look first. */
int audit_queue_add(AuditQueue *q, const AuditHead *head, const char *text, size_t size, bool sent_before);
/* Sends what waits, as far as journald takes it. */
void audit_queue_pump(AuditQueue *q);

bool audit_queue_is_full(const AuditQueue *q, size_t n_more, size_t bytes_more);
/* How long the oldest record has waited without any progress, in microseconds; 0 if none waits. */
uint64_t audit_queue_stalled_usec(const AuditQueue *q);
size_t audit_queue_size(const AuditQueue *q);
