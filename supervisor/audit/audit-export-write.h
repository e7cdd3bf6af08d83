/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Writer of an export: the namespace's records in the Journal Export Format, and the line that closes it. */

#include <stdio.h>

#include "audit/audit-closing.h"

/* What auditd says the journal keeps. Negative errno if it cannot be asked. */
int audit_ask_kept(AuditHead *ret);

typedef struct AuditExportOptions {
        const char *directory;             /* of journal files; NULL: the live namespace */
        const char *private_key;           /* PEM file; NULL: auditd's own */
        void (*on_record)(void *userdata); /* called now and then; may be NULL */
        void *userdata;
} AuditExportOptions;

enum {
        _AUDIT_EXPORT_E_SUCCESS,
        AUDIT_EXPORT_E_EMPTY,    /* there is no good record to read: if there are bad ones they are written, and not closed */
        AUDIT_EXPORT_E_CUT,      /* the journal lacks records that auditd had read back: what it has is written, and not closed */
};

/* Negative errno: -EACCES without the key, others if something could not be read or written. *ret_kept is auditd's answer, with seq 0 if it gave none. */
int audit_export_write(const AuditExportOptions *options, FILE *f, AuditClosing *ret_closing, AuditHead *ret_kept);
