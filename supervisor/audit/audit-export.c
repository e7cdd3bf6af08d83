/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The format (systemd.io/JOURNAL_EXPORT_FORMATS): entries are separated by an empty line; a field is
 * "NAME=value\n", or, when the value is not plain text, "NAME\n", its length as 64-bit little endian, the value, "\n".
 * The file is a stranger's: each length is compared with what is left before it is used.
 */
#include "audit/audit-export.h"

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

enum { NAME_MAX_SIZE = 256 };

/* Upper-case letters, digits, underscore, as in journald; more is no field name. */
static bool is_name(const uint8_t *p, size_t size) {
        if (size == 0 || size > NAME_MAX_SIZE)
                return false;
        for (size_t i = 0; i < size; i++)
                if (!(p[i] >= 'A' && p[i] <= 'Z') && !(p[i] >= '0' && p[i] <= '9') && p[i] != '_')
                        return false;

        return true;
}

/* One field at e->offset, which is not a line break. */
static int export_field(AuditExport *e, AuditExportField handler, void *userdata) {
        const uint8_t *start = e->data + e->offset, *value;
        size_t left = e->size - e->offset, name_size, size;
        const uint8_t *line_end = memchr(start, '\n', left), *equal;
        uint64_t length;
        int r;

        if (!line_end)
                return -EBADMSG; /* cut off in the middle of a line */

        equal = memchr(start, '=', (size_t) (line_end - start));
        if (equal) {
                name_size = (size_t) (equal - start);
                value = equal + 1;
                size = (size_t) (line_end - value);
        } else {
                name_size = (size_t) (line_end - start);
                left -= name_size + 1;
                if (left < sizeof(length))
                        return -EBADMSG;
                memcpy(&length, line_end + 1, sizeof(length));
                length = le64toh(length);
                left -= sizeof(length);
                if (length >= left) /* the line break after it counts */
                        return -EBADMSG;
                value = line_end + 1 + sizeof(length);
                size = (size_t) length;
                if (value[size] != '\n')
                        return -EBADMSG;
        }
        if (!is_name(start, name_size))
                return -EBADMSG;

        r = handler((const char *) start, name_size, value, size, userdata);
        if (r < 0)
                return r;

        e->offset = (size_t) (value + size + 1 - e->data);
        return 0;
}

int audit_export_next(AuditExport *e, AuditExportField handler, void *userdata) {
        int r;

        while (e->offset < e->size && e->data[e->offset] == '\n')
                e->offset++;
        if (e->offset == e->size)
                return 0;

        while (e->offset < e->size && e->data[e->offset] != '\n') {
                r = export_field(e, handler, userdata);
                if (r < 0)
                        return r;
        }

        return 1;
}
