/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The line that ends an exported log, so that one whose end is missing is known to be cut. Specified in audit-closing.c. */

#include <stddef.h>
#include <stdint.h>

#include "audit/audit-checkpoint.h"

/* journald keeps no field whose name begins with "_" unless it wrote it itself: no entry of a journal can pass for such a line. */
#define AUDIT_CLOSING_FIELD "__ANCHORHOLD_EXPORT"

enum { AUDIT_CLOSING_LINE_MAX = 384 };

typedef struct AuditClosing {
        uint64_t records;                /* entries with a field of ours, copies as well */
        uint64_t first_seq;
        AuditHead head;                  /* the last record */
        char time[TIME_TEXT_SIZE];       /* the log is whole as of then */
        char signature[AUDIT_SIGNATURE_HEX];
} AuditClosing;

/* Sets the signature; all else is set. */
int audit_closing_sign(const AuditKey *key, AuditClosing *c);
/* 1 if the signature fits, 0 if not, negative errno. */
int audit_closing_verify(const AuditKey *key, const AuditClosing *c);

/* The field's value. */
void audit_closing_line(const AuditClosing *c, char ret[static AUDIT_CLOSING_LINE_MAX]);
/* -EBADMSG if it is none. */
int audit_closing_parse(const char *line, size_t size, AuditClosing *ret);
