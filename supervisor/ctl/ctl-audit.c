/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* audit export, audit verify. */

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "audit/audit-export-write.h"
#include "audit/audit-journal.h"
#include "audit/audit-verify.h"
#include "ctl/ctl-format.h"
#include "ctl/ctl.h"
#include "util/json.h"
#include "util/text.h"

static CtlExit print_report_json(Ctl *ctl, const AuditVerifyReport *v) {
        _cleanup_json_ json_t *j = NULL;

        j = json_pack("{s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:s, s:s, s:s, s:I, s:b, s:b, s:b, s:s, s:I}",
                      "finding", audit_finding_name(v->finding), "seq", (json_int_t) v->seq, "reason", v->reason ?: "",
                      "records", (json_int_t) v->records, "resent", (json_int_t) v->resent,
                      "first_seq", (json_int_t) v->first_seq, "last_seq", (json_int_t) v->last_seq,
                      "checkpoints", (json_int_t) v->checkpoints, "vacuumed", v->vacuumed,
                      "checkpoints_checked", v->checkpoints_checked, "first_time", v->first_time, "last_time", v->last_time,
                      "last_hash", v->last_hash, "signed_seq", (json_int_t) v->signed_seq, "head_asked", v->head_asked, "closed", v->closed,
                      "closing_checked", v->closing_checked, "closed_time", v->closed_time, "head_seq", (json_int_t) v->head_seq);
        return j ? ctl_print_json(ctl, j) : ctl_report(ctl, "verify", -ENOMEM, NULL, NULL);
}

/* How far the end of it is known to be the end. */
static void print_end(Ctl *ctl, const AuditVerifyReport *v) {
        bool live = !ctl->o.file && !ctl->o.directory;

        (void) fprintf(ctl->out, "       head: %s\n", v->last_hash);
        if (v->head_seq > 0)
                (void) fprintf(ctl->out, "     wanted: record %" PRIu64 " has that hash, %" PRIu64 " after it\n", v->head_seq, v->last_seq - v->head_seq);
        if (v->closed)
                (void) fprintf(ctl->out, "    closing: of %s, %s\n", v->closed_time,
                               v->closing_checked ? "signed: whole as of then"
                                                  : "not compared with a key (--key=): shows what got lost, not what somebody cut off and closed anew");
        if (live && !v->head_asked)
                (void) fputs("     auditd: cannot be asked how far it came, so missing records after the last checkpoint would not be noticed\n", ctl->out);
        else if (live)
                (void) fputs("     auditd: agrees on the head\n", ctl->out);

        if (!v->checkpoints_checked) {
                (void) fputs("checkpoints: none (auditd signs one each minute; root can read them)", ctl->out);
                (void) fputs(v->closed || v->head_asked || v->head_seq > 0 ? "\n" : ", so a missing end would not be noticed\n", ctl->out);
        } else if (v->closed || v->head_asked || v->last_seq == v->signed_seq)
                (void) fprintf(ctl->out, "checkpoints: %" PRIu64 " compared\n", v->checkpoints);
        else
                (void) fprintf(ctl->out, "checkpoints: %" PRIu64 " compared, the last of record %" PRIu64 "; of those after it only %" PRIu64
                               " are here, and more may have been\n", v->checkpoints, v->signed_seq, v->last_seq - v->signed_seq);
}

static void print_report(Ctl *ctl, const AuditVerifyReport *v) {
        _cleanup_free_ char *reason = text_escape(v->reason ?: "", strlen(v->reason ?: ""), false);
        char count[CTL_TEXT_SIZE];

        if (v->finding == AUDIT_GOOD)
                (void) fprintf(ctl->out, "The audit log is intact: %s records, %" PRIu64 " to %" PRIu64 ".\n",
                               format_count((int64_t) v->records, count), v->first_seq, v->last_seq);
        else if (v->finding == AUDIT_UNCLOSED)
                (void) fprintf(ctl->out, "No record is bad, %" PRIu64 " to %" PRIu64 ", but whether these are all is not known. %s\n", v->first_seq, v->last_seq, reason ?: "");
        else if (v->seq > 0)
                (void) fprintf(ctl->out, "Record %" PRIu64 " is bad (%s): %s\n", v->seq, audit_finding_name(v->finding), reason ?: "");
        else
                (void) fprintf(ctl->out, "The audit log is bad (%s): %s\n", audit_finding_name(v->finding), reason ?: "");

        if (v->finding != AUDIT_GOOD && v->finding != AUDIT_UNCLOSED)
                (void) fprintf(ctl->out, "     before: %s good records\n", format_count((int64_t) v->records, count));
        if (v->records > 0)
                (void) fprintf(ctl->out, "       from: %s\n         to: %s\n", v->first_time, v->last_time);
        if (v->resent > 0)
                (void) fprintf(ctl->out, "     resent: %" PRIu64 ", identical\n", v->resent);
        if (v->finding != AUDIT_GOOD && v->finding != AUDIT_UNCLOSED)
                return; /* it stopped there: what it would have compared it did not */
        print_end(ctl, v);
        if (v->finding == AUDIT_UNCLOSED)
                (void) fputs("To export with a closing line: anchorctl audit export. To compare with the head as it was noted then (audit verify, doctor): --head=HASH.\n", ctl->out);
        if (v->vacuumed)
                (void) fputs("  beginning: vacuumed, as a checkpoint confirms\n", ctl->out);
}

/* The journal gives somebody who may not read its files no error, but no entries either. */
static bool may_read_log(void) {
        _cleanup_free_ char *directory = NULL, *path = NULL;

        if (audit_journal_directory(&directory) < 0)
                return false;

        path = text_format("%s/system.journal", directory);
        return path && access(path, R_OK) == 0;
}

/* The first digits, as doctor shows them, or all. */
static bool is_head(const char *s) {
        size_t n = strspn(s, "0123456789abcdef");

        return s[n] == '\0' && n >= 16 && n < HEX_SHA256_SIZE;
}

static CtlExit report_export(Ctl *ctl, int r) {
        if (r == -EACCES || r == -EPERM) {
                ctl_error(ctl, "Cannot read the key that signs the export's closing line: it is root who exports. (journalctl --namespace=" AUDIT_NAMESPACE
                          " -o export needs no key, and has no such line.)");
                return CTL_REFUSED;
        }

        ctl_error(ctl, "Cannot export the audit log: %s", strerror(-r));
        return CTL_FAILED;
}

CtlExit ctl_verb_audit_export(Ctl *ctl) {
        const AuditExportOptions options = {
                .directory = ctl->o.directory,
                .private_key = ctl->o.key,
                .on_record = ctl_activity_goes_on,
                .userdata = ctl,
        };
        AuditClosing closing = {};
        AuditHead kept = {};
        char hash[HEX_SHA256_SIZE];
        bool begun;
        int r;

        begun = ctl_activity_begin(ctl, "Exporting the audit log");
        r = audit_export_write(&options, ctl->out, &closing, &kept);
        ctl_activity_end(ctl, begun);
        if (r < 0)
                return report_export(ctl, r);
        if (r == AUDIT_EXPORT_E_CUT) {
                ctl_error(ctl, "The journal ends at record %" PRIu64 ", but auditd had read back record %" PRIu64 ". What is there is exported, and not closed.",
                          closing.head.seq, kept.seq);
                return CTL_FAILED;
        }
        if (r == AUDIT_EXPORT_E_EMPTY) {
                ctl_error(ctl, "There is no record to export.");
                return CTL_NOT_FOUND;
        }

        if (!options.directory && kept.seq == 0)
                ctl_error(ctl, "auditd cannot be asked how far it came: the export has what the journal has.");
        text_hex(closing.head.hash, AUDIT_HASH_SIZE, hash);
        if (!ctl->o.quiet)
                (void) fprintf(ctl->err, "Exported records %" PRIu64 " to %" PRIu64 "; head: %s\n", closing.first_seq, closing.head.seq, hash);
        return CTL_OK;
}

CtlExit ctl_verb_audit_verify(Ctl *ctl) {
        const AuditVerifyOptions options = {
                .export_file = ctl->o.file,
                .directory = ctl->o.directory,
                .checkpoints = ctl->o.checkpoints,
                .public_key = ctl->o.key,
                .head = ctl->o.head,
                .on_record = ctl_activity_goes_on,
                .userdata = ctl,
        };
        _cleanup_(audit_verify_report_done) AuditVerifyReport report = {};
        CtlExit e = CTL_OK;
        bool begun;
        int r;

        if (options.export_file && options.directory)
                return ctl_usage(ctl, "--file= and --directory= exclude each other.");
        if (options.head && !is_head(options.head))
                return ctl_usage(ctl, "--head= takes 16 to 64 hexadecimal digits, as \"doctor\" and \"audit verify\" show them, not \"%s\".", options.head);

        begun = ctl_activity_begin(ctl, "Reading the audit log");
        r = audit_verify(&options, &report);
        ctl_activity_end(ctl, begun);
        if (r < 0) {
                ctl_error(ctl, "Cannot read the audit log: %s", strerror(-r));
                return ctl_exit_of_errno(r);
        }

        if (report.records == 0 && !options.export_file && !options.directory && !may_read_log()) {
                ctl_error(ctl, "You may not read the audit log, or there is none: root and members of systemd-journal may read all of it.");
                return CTL_REFUSED;
        }

        if (ctl->o.json != CTL_JSON_OFF)
                e = print_report_json(ctl, &report);
        else
                print_report(ctl, &report);
        return e != CTL_OK ? e : report.finding == AUDIT_GOOD ? CTL_OK : CTL_FAILED;
}
