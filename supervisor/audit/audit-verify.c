/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where a log comes from: journal files, an export, and the checkpoints beside them. audit-chain.c judges. */
#include "audit/audit-verify.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-journal.h>

#include "audit/audit-api.h"
#include "audit/audit-chain.h"
#include "audit/audit-closing.h"
#include "audit/audit-export-write.h"
#include "audit/audit-export.h"
#include "audit/audit-journal.h"
#include "util/io.h"

enum { CHECKPOINTS_FILE_MAX = 16 * 1024 * 1024, RECORDS_TICK = 256 };

#define EXPORT_MAX (4ULL * 1024 * 1024 * 1024)

const char *audit_finding_name(AuditFinding finding) {
        static const char *const names[] = {
                [AUDIT_GOOD] = "good",         [AUDIT_MALFORMED] = "malformed", [AUDIT_ALTERED] = "altered",
                [AUDIT_REMOVED] = "removed",   [AUDIT_SWAPPED] = "swapped",     [AUDIT_FORGED] = "forged",
                [AUDIT_CUT] = "cut",           [AUDIT_CHECKPOINT] = "checkpoint", [AUDIT_EMPTY] = "empty",
                [AUDIT_UNCLOSED] = "unclosed",
        };

        return names[finding];
}

void audit_verify_report_done(AuditVerifyReport *report) {
        free(report->reason);
        *report = (AuditVerifyReport) {};
}

/* ---- exported files ---- */

typedef struct ExportEntry {
        AuditRecord record;
        char *unit; /* owned */
        AuditClosing closing;
        bool closes;
} ExportEntry;

static void export_entry_done(ExportEntry *e) {
        audit_record_done(&e->record);
        free(e->unit);
}

static int export_on_field(const char *name, size_t name_size, const void *value, size_t size, void *userdata) {
        ExportEntry *e = userdata;

        if (!e->unit && name_size == strlen("_SYSTEMD_UNIT") && memcmp(name, "_SYSTEMD_UNIT", name_size) == 0) {
                e->unit = strndup(value, size);
                if (!e->unit)
                        return -ENOMEM;
        }

        if (name_size == strlen(AUDIT_CLOSING_FIELD) && memcmp(name, AUDIT_CLOSING_FIELD, name_size) == 0) {
                e->closes = true;
                return audit_closing_parse(value, size, &e->closing);
        }

        return audit_record_add(&e->record, name, name_size, value, size);
}

/* A log may take minutes to read. */
static void verify_goes_on(const AuditVerifyOptions *o, uint64_t n) {
        if (o->on_record && n % RECORDS_TICK == 0)
                o->on_record(o->userdata);
}

/* Where an export cannot be read on. */
typedef struct Break {
        bool broken;
        size_t offset;
        uint64_t seq; /* of the record that is not whole; 0: there was none before */
} Break;

static int verify_export_data(AuditChain *chain, const AuditVerifyOptions *o, const char *data, size_t size, Break *ret_break) {
        AuditExport export = { .data = (const uint8_t *) data, .size = size };
        int r;

        for (uint64_t n = 1;; n++) {
                _cleanup_(export_entry_done) ExportEntry e = {};

                r = audit_export_next(&export, export_on_field, &e);
                if (r == -EBADMSG) {
                        *ret_break = (Break) { .broken = true, .offset = export.offset };
                        return audit_chain_break_off(chain, &e.record, &ret_break->seq);
                }
                if (r <= 0)
                        return r;

                r = audit_chain_add(chain, &e.record, e.unit);
                if (r < 0)
                        return r;
                if (e.closes)
                        audit_chain_set_closing(chain, &e.closing);
                verify_goes_on(o, n);
        }
}

static int verify_export(AuditChain *chain, const AuditVerifyOptions *o, Break *ret_break) {
        _cleanup_free_ char *data = NULL;
        size_t size;
        int r;

        if (strcmp(o->export_file, "-") == 0)
                r = io_read_fd(STDIN_FILENO, EXPORT_MAX, &data, &size);
        else
                r = io_read_file(AT_FDCWD, o->export_file, EXPORT_MAX, &data, &size);
        if (r < 0)
                return r;

        audit_chain_set_closing(chain, NULL);
        return verify_export_data(chain, o, data, size, ret_break);
}

/* ---- journals ---- */

static int verify_entries(AuditChain *chain, const AuditVerifyOptions *o, sd_journal *j) {
        uint64_t n = 0;
        int r;

        r = sd_journal_set_data_threshold(j, 0);
        if (r >= 0)
                r = sd_journal_seek_head(j);
        while (r >= 0 && (r = sd_journal_next(j)) > 0) {
                _cleanup_(audit_record_done) AuditRecord record = {};
                _cleanup_free_ char *unit = NULL;

                r = audit_journal_read_entry(j, &record, &unit);
                if (r >= 0)
                        r = audit_chain_add(chain, &record, unit);
                verify_goes_on(o, ++n);
        }

        return r;
}

static int verify_journal(AuditChain *chain, const AuditVerifyOptions *o) {
        sd_journal *j = NULL;
        int r;

        r = o->directory ? sd_journal_open_directory(&j, o->directory, 0)
                         : sd_journal_open_namespace(&j, AUDIT_NAMESPACE, SD_JOURNAL_LOCAL_ONLY);
        if (r < 0)
                return r;

        r = verify_entries(chain, o, j);
        sd_journal_close(j);
        return r;
}

/* What auditd says the journal keeps; nothing if it cannot be asked. Asked before reading, as the log only grows, and before the
 * checkpoints are read: auditd signs a new one now if journald has vacuumed the beginning since the last. */
static void verify_ask_head(AuditChain *chain) {
        AuditHead kept;

        if (audit_ask_kept(&kept) >= 0)
                audit_chain_set_kept(chain, &kept);
}

/* ---- checkpoints ---- */

static int verify_load_checkpoints(AuditChain *chain, const char *path) {
        _cleanup_free_ char *data = NULL;
        size_t size;
        int r;

        r = io_read_file(AT_FDCWD, path, CHECKPOINTS_FILE_MAX, &data, &size);
        if (r < 0)
                return r;

        for (char *line = data, *end; line < data + size; line = end + 1) {
                AuditCheckpoint c;

                end = memchr(line, '\n', (size_t) (data + size - line));
                if (!end)
                        break; /* cut off by a crash: it was never complete */
                if (audit_checkpoint_parse(line, (size_t) (end - line), &c) < 0)
                        continue; /* the rest of such a line, before the next one was begun */
                r = audit_chain_add_checkpoint(chain, &c);
                if (r < 0)
                        return r;
        }

        return 0;
}

/* Given files must be readable; auditd's own are used if they are. */
static int verify_load_trust(AuditChain *chain, const AuditVerifyOptions *o, AuditKey **ret_key) {
        int r;

        r = audit_key_load_public(ret_key, o->public_key ?: AUDIT_STATE_DIR "/" AUDIT_PUBLIC_KEY);
        if (r < 0 && o->public_key)
                return r;

        r = verify_load_checkpoints(chain, o->checkpoints ?: AUDIT_STATE_DIR "/" AUDIT_CHECKPOINTS);
        return r < 0 && o->checkpoints ? r : 0;
}

/* The byte is for whoever looks into the file. */
static int report_break(const Break *b, AuditVerifyReport *report) {
        char *reason;
        int n;

        if (!b->broken || (b->seq > 0 && report->seq != b->seq))
                return 0; /* something before it is bad */
        n = b->seq > 0 ? asprintf(&reason, "Record %" PRIu64 ": the export breaks off or is damaged within it, at byte %zu.", b->seq, b->offset)
                       : asprintf(&reason, "This is no journal export, from byte %zu on.", b->offset);
        if (n < 0) {
                audit_verify_report_done(report);
                return -ENOMEM;
        }
        free(report->reason);
        report->reason = reason;
        report->finding = AUDIT_MALFORMED;
        return 0;
}

int audit_verify(const AuditVerifyOptions *options, AuditVerifyReport *report) {
        _cleanup_(audit_chain_freep) AuditChain *chain = NULL;
        _cleanup_(audit_key_freep) AuditKey *key = NULL;
        Break broken = {};
        int r;

        r = audit_chain_new(&chain);
        if (r < 0)
                return r;
        if (!options->export_file && !options->directory)
                verify_ask_head(chain);
        if (options->head)
                audit_chain_set_head(chain, options->head);
        /* before the log, which only grows meanwhile */
        r = verify_load_trust(chain, options, &key);
        if (r < 0)
                return r;

        if (options->export_file)
                r = verify_export(chain, options, &broken);
        else
                r = verify_journal(chain, options);
        if (r >= 0)
                r = audit_chain_judge(chain, key, report);
        return r < 0 ? r : report_break(&broken, report);
}
