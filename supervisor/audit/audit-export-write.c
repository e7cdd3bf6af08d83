/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * An export is what `journalctl -o export` prints of the entries with a field of ours, and after them the closing line (audit-closing.c). Entries that
 * are bad are written as well: the file is evidence, and whoever verifies it finds them.
 *
 * auditd is asked first up to where the journal goes. A journal that ends before that is not closed: the line would say that it is whole.
 */
#include "audit/audit-export-write.h"

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <systemd/sd-journal.h>

#include "audit/audit-api.h"
#include "audit/audit-journal.h"
#include "audit/audit-record.h"
#include "ipc/ipc.h"
#include "util/json.h"

enum { HEAD_TIMEOUT_USEC = 3 * 1000 * 1000, RECORDS_TICK = 256 };

int audit_ask_kept(AuditHead *ret) {
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        _cleanup_json_ json_t *params = NULL;
        _cleanup_free_ char *error = NULL;
        AuditHead kept = {};
        int r;

        r = ipc_client_new(&c, NULL, AUDIT_API_SOCKET);
        if (r >= 0)
                r = ipc_client_call(c, AUDIT_INTERFACE ".Head", NULL, NULL, 0, HEAD_TIMEOUT_USEC, &params, &error, NULL, 0);
        if (r < 0)
                return r;

        kept.seq = (uint64_t) json_integer_value(json_object_get(params, "kept_seq"));
        r = text_unhex(json_string_value(json_object_get(params, "kept_hash")), kept.hash, AUDIT_HASH_SIZE);
        if (r < 0)
                return r;

        *ret = kept;
        return 0;
}

/* A value with a line break or another control character is written with its length. */
static bool is_text(const uint8_t *p, size_t size) {
        for (size_t i = 0; i < size; i++)
                if (p[i] < ' ' && p[i] != '\t')
                        return false;

        return true;
}

static void write_field(FILE *f, const uint8_t *data, size_t size) {
        const uint8_t *equal = memchr(data, '=', size);
        size_t name_size, value_size;
        uint64_t length;

        if (!equal)
                return;
        name_size = (size_t) (equal - data);
        value_size = size - name_size - 1;
        if (is_text(equal + 1, value_size))
                (void) fwrite(data, 1, size, f);
        else {
                length = htole64(value_size);
                (void) fwrite(data, 1, name_size, f);
                (void) fputc('\n', f);
                (void) fwrite(&length, sizeof(length), 1, f);
                (void) fwrite(equal + 1, 1, value_size, f);
        }
        (void) fputc('\n', f);
}

/* The current entry, if it has a field of ours. */
static int write_entry(FILE *f, sd_journal *j, AuditClosing *c) {
        _cleanup_(audit_record_done) AuditRecord record = {};
        _cleanup_free_ char *unit = NULL;
        const char *reason;
        const void *data;
        uint64_t usec;
        size_t size;
        int r;

        r = audit_journal_read_entry(j, &record, &unit);
        if (r < 0 || !record.ours)
                return r;

        r = sd_journal_get_realtime_usec(j, &usec);
        if (r < 0)
                return r;
        (void) fprintf(f, "__REALTIME_TIMESTAMP=%llu\n", (unsigned long long) usec);
        SD_JOURNAL_FOREACH_DATA(j, data, size) {
                write_field(f, data, size);
        }
        (void) fputc('\n', f);
        c->records++;

        r = audit_record_check(&record, &reason);
        if (r < 0)
                return r;
        if (r != AUDIT_CHECK_GOOD || !unit || strcmp(unit, AUDIT_UNIT) != 0)
                return 0;
        if (c->first_seq == 0 || record.seq < c->first_seq)
                c->first_seq = record.seq;
        if (record.seq > c->head.seq) {
                c->head.seq = record.seq;
                memcpy(c->head.hash, record.hash, AUDIT_HASH_SIZE);
        }
        return 0;
}

static int write_entries(const AuditExportOptions *o, FILE *f, AuditClosing *c) {
        sd_journal *j = NULL;
        uint64_t n = 0;
        int r;

        r = o->directory ? sd_journal_open_directory(&j, o->directory, 0) : sd_journal_open_namespace(&j, AUDIT_NAMESPACE, SD_JOURNAL_LOCAL_ONLY);
        if (r < 0)
                return r;

        r = sd_journal_set_data_threshold(j, 0);
        if (r >= 0)
                r = sd_journal_seek_head(j);
        while (r >= 0 && (r = sd_journal_next(j)) > 0) {
                r = write_entry(f, j, c);
                if (r >= 0 && ferror(f))
                        r = -EIO;
                if (o->on_record && ++n % RECORDS_TICK == 0)
                        o->on_record(o->userdata);
        }

        sd_journal_close(j);
        return r;
}

int audit_export_write(const AuditExportOptions *options, FILE *f, AuditClosing *ret_closing, AuditHead *ret_kept) {
        _cleanup_(audit_key_freep) AuditKey *key = NULL;
        char line[AUDIT_CLOSING_LINE_MAX];
        AuditClosing c = {};
        AuditHead kept = {};
        int r;

        r = audit_key_load_private(&key, options->private_key ?: AUDIT_STATE_DIR "/" AUDIT_PRIVATE_KEY);
        if (r < 0)
                return r;

        /* before auditd is asked, so that no checkpoint of an earlier time names a record that is not yet there */
        text_time(time_realtime(), c.time);
        if (!options->directory && audit_ask_kept(&kept) < 0)
                kept = (AuditHead) {};
        *ret_kept = kept;

        r = write_entries(options, f, &c);
        if (r < 0)
                return r;
        *ret_closing = c;
        if (c.head.seq < kept.seq)
                return AUDIT_EXPORT_E_CUT;
        if (c.head.seq == 0)
                return AUDIT_EXPORT_E_EMPTY;

        r = audit_closing_sign(key, &c);
        if (r < 0)
                return r;
        audit_closing_line(&c, line);
        (void) fprintf(f, AUDIT_CLOSING_FIELD "=%s\n\n", line);
        if (fflush(f) != 0 || ferror(f))
                return -EIO;

        *ret_closing = c;
        return 0;
}
