/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* audit verify. */

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "audit/audit-journal.h"
#include "audit/audit-verify.h"
#include "ctl/ctl-format.h"
#include "ctl/ctl.h"
#include "util/json.h"
#include "util/text.h"

static CtlExit print_report_json(Ctl *ctl, const AuditVerifyReport *v) {
        _cleanup_json_ json_t *j = NULL;

        j = json_pack("{s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:s, s:s}",
                      "finding", audit_finding_name(v->finding), "seq", (json_int_t) v->seq, "reason", v->reason ?: "",
                      "records", (json_int_t) v->records, "resent", (json_int_t) v->resent,
                      "first_seq", (json_int_t) v->first_seq, "last_seq", (json_int_t) v->last_seq,
                      "checkpoints", (json_int_t) v->checkpoints, "vacuumed", v->vacuumed,
                      "checkpoints_checked", v->checkpoints_checked, "first_time", v->first_time, "last_time", v->last_time);
        return j ? ctl_print_json(ctl, j) : ctl_report(ctl, "verify", -ENOMEM, NULL, NULL);
}

static void print_report(Ctl *ctl, const AuditVerifyReport *v) {
        _cleanup_free_ char *reason = text_escape(v->reason ?: "", strlen(v->reason ?: ""), false);
        char count[CTL_TEXT_SIZE];

        if (v->finding == AUDIT_GOOD)
                (void) fprintf(ctl->out, "The audit log is intact: %s records, %" PRIu64 " to %" PRIu64 ".\n",
                               format_count((int64_t) v->records, count), v->first_seq, v->last_seq);
        else if (v->seq > 0)
                (void) fprintf(ctl->out, "Record %" PRIu64 " is bad (%s): %s\n", v->seq, audit_finding_name(v->finding), reason ?: "");
        else
                (void) fprintf(ctl->out, "The audit log is bad (%s): %s\n", audit_finding_name(v->finding), reason ?: "");

        if (v->finding != AUDIT_GOOD)
                (void) fprintf(ctl->out, "     before: %s good records\n", format_count((int64_t) v->records, count));
        if (v->records > 0)
                (void) fprintf(ctl->out, "       from: %s\n         to: %s\n", v->first_time, v->last_time);
        if (v->resent > 0)
                (void) fprintf(ctl->out, "     resent: %" PRIu64 ", identical\n", v->resent);
        if (v->finding != AUDIT_GOOD)
                return; /* it stopped there: what it would have compared it did not */
        if (v->checkpoints_checked)
                (void) fprintf(ctl->out, "checkpoints: %" PRIu64 " compared\n", v->checkpoints);
        else
                (void) fputs("checkpoints: none (auditd signs one each minute; root can read them), so a missing end would not be noticed\n", ctl->out);
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

CtlExit ctl_verb_audit_verify(Ctl *ctl) {
        const AuditVerifyOptions options = {
                .export_file = ctl->o.file,
                .directory = ctl->o.directory,
                .checkpoints = ctl->o.checkpoints,
                .public_key = ctl->o.key,
                .on_record = ctl_activity_goes_on,
                .userdata = ctl,
        };
        _cleanup_(audit_verify_report_done) AuditVerifyReport report = {};
        CtlExit e = CTL_OK;
        bool begun;
        int r;

        if (options.export_file && options.directory)
                return ctl_usage(ctl, "--file= and --directory= exclude each other.");

        begun = ctl_activity_begin(ctl, "Reading the audit log");
        r = audit_verify(&options, &report);
        ctl_activity_end(ctl, begun);
        if (r < 0) {
                ctl_error(ctl, "Cannot read the audit log: %s", strerror(-r));
                return r == -ENOENT ? CTL_NOT_FOUND : r == -EACCES || r == -EPERM ? CTL_REFUSED : CTL_FAILED;
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
