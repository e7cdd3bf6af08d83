/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What must be on record before the run goes on, or before its end.
 *
 * auditd may be slow, or be started anew, at any time; that is no reason to end a run, whose way out is shut meanwhile by others. So such a
 * record is asked for again, under the same key, until it is there: a record is then never there twice, and a step never begins without one. Only a
 * refusal, or patience's end, is the run's end.
 */

#include <errno.h>

#include "run/run-private.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

enum {
        AGAIN_USEC = 500 * 1000,
        TOLD_USEC = 5 * 1000 * 1000, /* what has happened already holds up a run for no longer: a restart of auditd takes less */
        TIMER_ACCURACY_USEC = 50 * 1000,
};

static bool may_pass(int k) {
        return k == -ETIMEDOUT || k == -ENOTCONN || k == -ECONNREFUSED || k == -EHOSTDOWN;
}

static void record_send(RunRecord *p);

static int record_on_again(sd_event_source *s, uint64_t usec, void *userdata) {
        record_send(userdata);
        return 0;
}

static void record_end(RunRecord *p, int k) {
        run_record_done(p);
        p->done(k, p->run);
}

static void record_on_answer(int k, void *userdata) {
        RunRecord *p = userdata;
        Run *r = p->run;
        int error;

        /* A step that will not begin any more needs none. */
        if (!may_pass(k) || time_boottime() >= p->until || (p == &r->step_record && r->outcome))
                return record_end(p, k);

        if (!p->said) {
                log_warning_errno(k, "run %s: auditd does not answer; waiting for it", r->id);
                run_event(r, "audit-waits", json_pack("{s:s}", "text", "the audit log does not answer; the run waits for it"));
                p->said = true;
        }
        p->timer = sd_event_source_disable_unref(p->timer);
        error = sd_event_add_time_relative(r->event, &p->timer, CLOCK_BOOTTIME, AGAIN_USEC, TIMER_ACCURACY_USEC, record_on_again, p);
        if (error < 0)
                record_end(p, error);
}

static void record_send(RunRecord *p) {
        int k;

        k = audit_append_once(p->run->audit, p->key, p->event, NULL, NULL, NULL, json_incref(p->data), record_on_answer, p);
        if (k < 0)
                record_on_answer(k, p);
}

static void record_begin(Run *r, RunRecord *p, const char *event, json_t *data, AuditDone done, uint64_t patience_usec) {
        p->run = r;
        p->event = event;
        p->data = data;
        p->done = done;
        p->said = false;
        p->until = time_boottime() + patience_usec;
        (void) snprintf(p->key, sizeof(p->key), "%s-%u", r->id, r->n_records++);
        record_send(p);
}

void run_record(Run *r, RunRecord *p, const char *event, json_t *data, AuditDone done) {
        record_begin(r, p, event, data, done, r->audit_patience_usec);
}

static void record_on_told(int k, void *userdata) {
        Run *r = userdata;

        if (k < 0)
                log_error_errno(k, "run %s: what has happened in it could not be recorded", r->id);
        if (run_told(r) && (r->stage == STAGE_STEP_AUDIT || r->stage == STAGE_VERDICT))
                run_advance(r, r->stage);
}

void run_record_told(Run *r, RunRecord *p, const char *event, json_t *data) {
        if (data)
                record_begin(r, p, event, data, record_on_told, r->audit_patience_usec < TOLD_USEC ? r->audit_patience_usec : TOLD_USEC);
        else
                log_error("run %s: out of memory for a record of %s", r->id, event);
}

bool run_told(const Run *r) {
        return !r->told_record.data && !r->error_record.data;
}

void run_record_done(RunRecord *p) {
        p->timer = sd_event_source_disable_unref(p->timer);
        p->data = json_unref(p->data);
}
