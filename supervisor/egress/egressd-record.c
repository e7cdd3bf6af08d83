/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>

#include "egress/egressd-private.h"
#include "util/json.h"
#include "util/log.h"

void egressd_note_audit(Egressd *e, int r) {
        uint64_t now = time_boottime();

        if (r < 0) {
                if (e->audit_lost_usec == 0) {
                        e->audit_lost_usec = now;
                        log_error_errno(r, "the audit log does not answer: nothing is granted, and connections end in ten seconds");
                }
                e->audit_works = false;
                return;
        }

        e->audit_works = true;
        if (e->audit_lost_usec == 0)
                return;

        log_notice("the audit log answers again, after %lu s", (unsigned long) ((now - e->audit_lost_usec) / 1000000));
        (void) audit_append(e->audit, "enforcer.back", NULL, NULL, NULL,
                            json_pack("{s:s, s:I}", "enforcer", "auditd", "lost_usec", (json_int_t) (now - e->audit_lost_usec)),
                            NULL, NULL);
        e->audit_lost_usec = 0;
}

bool egressd_over_budget(const EgressRun *run) {
        return run->n_records >= EGRESSD_RECORDS_MAX;
}

int egressd_record(Egressd *e, EgressRun *run, const char *event, const char *actor, json_t *data, AuditDone done, void *userdata) {
        if (!data)
                return -ENOMEM;
        run->n_records++;
        return audit_append(e->audit, event, run->id, NULL, actor, data, done, userdata);
}
