/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Reader of the Journal Export Format (`journalctl -o export`). Pure: bytes in, fields out. */

#include <stddef.h>
#include <stdint.h>

typedef struct AuditExport {
        const uint8_t *data; /* borrowed */
        size_t size, offset; /* offset: where the next field begins, or where reading failed */
} AuditExport;

/* Called for each field of the entry. A negative return stops and is passed on. */
typedef int (*AuditExportField)(const char *name, size_t name_size, const void *value, size_t size, void *userdata);

/* Reads one entry: 1, 0 at the end, -EBADMSG for what is no export. */
int audit_export_next(AuditExport *e, AuditExportField handler, void *userdata);
