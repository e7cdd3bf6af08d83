/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Records for the audit tests. */

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "audit/audit-event.h"
#include "audit/audit-record.h"

static inline void audit_test_fill(AuditRecord *r, unsigned n) {
        const AuditEvent *event = audit_event_find("run.step");
        char data[64];

        (void) snprintf(data, sizeof(data), "{\"step\":\"s%u\"}", n);
        const struct { AuditField field; const char *text; } fields[] = {
                { AUDIT_TIME, "2026-01-31T12:34:56.789Z" },
                { AUDIT_BOOT, "00112233445566778899aabbccddeeff" },
                { AUDIT_EVENT, event->name },
                { AUDIT_RUN, "r3k9x0a1b2c3d" },
                { AUDIT_ACTOR, "anchor-run@r3k9x0a1b2c3d.service" },
                { AUDIT_SOURCE, "anchor-run@r3k9x0a1b2c3d.service" },
                { AUDIT_DATA, data },
                { AUDIT_MESSAGE, "Run r3k9x0a1b2c3d: step s" },
                { AUDIT_MESSAGE_ID, event->message_id },
                { AUDIT_PRIORITY, "6" },
        };

        for (size_t i = 0; i < ELEMENTSOF(fields); i++)
                assert(audit_record_set(r, fields[i].field, fields[i].text) == 0);
}
