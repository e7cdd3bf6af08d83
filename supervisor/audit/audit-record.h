/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* One audit record: its fields, its hash, and its form in the journal. Specified at the top of audit-record.c. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "audit/audit-api.h"
#include "util/cleanup.h"

enum {
        AUDIT_HASH_SIZE = 32,
        AUDIT_VALUE_MAX = 64 * 1024,      /* any one field */
        AUDIT_RECORD_MAX = 128 * 1024,    /* the whole text form */
};

/* In the order in which they are hashed. */
typedef enum AuditField {
        AUDIT_SEQ, AUDIT_TIME, AUDIT_BOOT, AUDIT_EVENT, AUDIT_RUN, AUDIT_ITEM, AUDIT_ACTOR, AUDIT_SOURCE, AUDIT_DATA,
        AUDIT_MESSAGE, AUDIT_MESSAGE_ID, AUDIT_PRIORITY,
        _AUDIT_HASHED,                    /* the fields up to here are covered by the hash */
        AUDIT_PREV = _AUDIT_HASHED, AUDIT_HASH,
        _AUDIT_FIELDS,
} AuditField;

typedef struct AuditRecord {
        char *value[_AUDIT_FIELDS];       /* owned; NULL: not there */
        uint64_t seq;                     /* these three: by audit_record_seal() or audit_record_check() */
        uint8_t prev[AUDIT_HASH_SIZE], hash[AUDIT_HASH_SIZE];
        /* what was wrong while fields were added; static text, or NULL */
        const char *defect;
        bool ours;                        /* at least one field of ours was added */
} AuditRecord;

void audit_record_done(AuditRecord *r);

/* Sets a field to a copy of text (NULL: leaves it out). */
int audit_record_set(AuditRecord *r, AuditField field, const char *text);

/* Adds a field as it was found in a journal entry. Names that are none of ours are ignored; what must not be
 * (a field twice, too long, with a zero byte) is noted in r->defect. Negative errno only when out of memory. */
int audit_record_add(AuditRecord *r, const char *name, size_t name_size, const void *value, size_t size);

/* Gives the record its place in the chain: sets SEQ, PREV and HASH. */
int audit_record_seal(AuditRecord *r, uint64_t seq, const uint8_t prev[static AUDIT_HASH_SIZE]);

typedef enum AuditCheck { AUDIT_CHECK_GOOD, AUDIT_CHECK_MALFORMED, AUDIT_CHECK_HASH } AuditCheck;

/* Is the record complete and well-formed, and is HASH what its contents say? Fills seq, prev and hash as far as
 * they are readable. Returns an AuditCheck, *ret_reason a static text; negative errno when out of memory. */
int audit_record_check(AuditRecord *r, const char **ret_reason);

/* "NAME=VALUE\n" for each field: what goes to the journal and into the outbox. The caller's. */
int audit_record_text(const AuditRecord *r, char **ret_text, size_t *ret_size);
/* The reverse, for what audit_record_text() made. -EBADMSG if it is not that. */
int audit_record_parse(const char *text, size_t size, AuditRecord *ret);
