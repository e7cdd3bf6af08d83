/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The kinds of events: who may write each, its message id, and the sentence that a reader sees. */

#include <jansson.h>
#include <stddef.h>

#include "ipc/peer.h"

typedef enum AuditNeeds {
        AUDIT_NEEDS_RUN  = 1 << 0,
        AUDIT_NEEDS_ITEM = 1 << 1,
} AuditNeeds;

typedef struct AuditEvent {
        const char *name;
        unsigned writers;       /* PeerRole mask */
        unsigned needs;         /* AuditNeeds mask */
        int priority;           /* syslog level of the journal entry */
        const char *message_id; /* 32 hexadecimal digits, for ever */
        const char *template;   /* see audit_event_render() */
} AuditEvent;

/* NULL if there is no such event. */
const AuditEvent *audit_event_find(const char *name);
const AuditEvent *audit_event_list(size_t *ret_n);

/*
 * The event's sentence: "{key}" is run, item, actor or a member of data; a part in brackets is left out
 * if one of its keys is missing, null or empty; such a key outside brackets is "?". A list of strings is joined. Values are shortened to 200 bytes, and
 * what could disturb a terminal is escaped. The text is the caller's; NULL when out of memory.
 */
char *audit_event_render(const AuditEvent *event, const char *run, const char *item, const char *actor, const json_t *data);
