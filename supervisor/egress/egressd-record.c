/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <stdio.h>
#include <string.h>

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

/* run NULL: it is gone already. */
static int record(Egressd *e, EgressRun *run, const char *id, const char *event, const char *actor, json_t *data,
                  AuditDone done, void *userdata) {
        if (!data)
                return -ENOMEM;
        if (run)
                run->n_records++;
        return audit_append(e->audit, event, id, NULL, actor, data, done, userdata);
}

int egressd_record(Egressd *e, EgressRun *run, const char *event, const char *actor, json_t *data, AuditDone done, void *userdata) {
        return record(e, run, run->id, event, actor, data, done, userdata);
}

/* ---- denials ---- */

/* A record that stands for some denials, until auditd has acknowledged it. */
struct Telling {
        Egressd *egressd; /* borrowed */
        Telling *next, **prev;
        char run[ID_LENGTH + 1];
        UntoldEvent event;
        uint64_t count;
};

static UntoldEvent untold_event(const char *event) {
        return strcmp(event, "dns.refused") == 0 ? UNTOLD_DNS_REFUSED : UNTOLD_EGRESS_DENY;
}

static Telling *telling_free(Telling *t) {
        if (t) {
                *t->prev = t->next;
                if (t->next)
                        t->next->prev = t->prev;
        }
        free(t);
        return NULL;
}

static void on_told(int r, void *userdata) {
        Telling *t = userdata;

        if (r >= 0)
                untold_told(t->egressd->untold, t->run, t->event, t->count);
        (void) telling_free(t);
}

static int tell(Egressd *e, EgressRun *run, const char *id, const char *event, const char *actor, json_t *data, uint64_t count) {
        Telling *t = malloc(sizeof(*t));
        int r;

        if (!t) {
                json_decref(data);
                return -ENOMEM;
        }
        *t = (Telling) { .egressd = e, .next = e->tellings, .prev = &e->tellings, .event = untold_event(event), .count = count };
        (void) snprintf(t->run, sizeof(t->run), "%s", id);
        if (t->next)
                t->next->prev = &t->next;
        e->tellings = t;

        r = record(e, run, id, event, actor, data, on_told, t);
        if (r < 0)
                (void) telling_free(t);
        return r;
}

static void on_left(const char *run, UntoldEvent event, uint64_t count, void *userdata) {
        const char *name = event == UNTOLD_DNS_REFUSED ? "dns.refused" : "egress.deny";
        Egressd *e = userdata;
        int r;

        log_notice("run %s: %llu denials were not in the log when this process ended before", run, (unsigned long long) count);
        r = untold_add(e->untold, run, event, count); /* until auditd has it */
        if (r >= 0)
                r = tell(e, egress_state_find(e->state, run), run, name, NULL,
                         json_pack("{s:s, s:s, s:s, s:i, s:I, s:s}", "name", "-", "rule", "overflow", "reason", "log-lost", "port", 0, "count",
                                   (json_int_t) count, "detail", "counted before egressd ended, and not told one by one"),
                         count);
        if (r < 0)
                log_warning_errno(r, "run %s: that could not be recorded", run);
}

void egressd_tell_untold(Egressd *e) {
        untold_take(e->untold, on_left, e);
}

void egressd_denials_done(Egressd *e) {
        while (e->tellings)
                (void) telling_free(e->tellings);
        denials_free(e->denials);
        untold_free(e->untold);
}

static bool tell_denial(const Denial *d, bool last, void *userdata) {
        Egressd *e = userdata;
        EgressRun *run = egress_state_find(e->state, d->run);
        json_t *data;
        int r;

        /* Over its budget a run is denied everything; one record said so, and no more follow until its end. */
        if (!last && run && egressd_over_budget(run) && strcmp(d->reason, "record-budget") != 0)
                return false;
        /* What waits behind too many others is not taken in time, and holds up what the run is allowed. */
        if (!last && audit_pending(e->audit, d->run) >= EGRESSD_DENIALS_PENDING_MAX)
                return false;

        data = json_pack("{s:s, s:s, s:s, s:i, s:I, s:s*}", "name", d->name, "rule", d->rule, "reason", d->reason,
                         "port", d->port, "count", (json_int_t) d->count, "detail", d->detail);
        r = tell(e, run, d->run, d->event, d->unit, data, d->count);
        if (r < 0)
                log_warning_errno(r, "run %s: a denial of %s could not be recorded", d->run, d->name);
        return r >= 0;
}

int egressd_new_denials(Egressd *e) {
        int r;

        r = untold_open(&e->untold, EGRESSD_STATE_DIR);
        if (r < 0)
                return log_error_errno(r, "cannot open %s/untold", EGRESSD_STATE_DIR);
        return denials_new(&e->denials, tell_denial, e);
}

void egressd_deny(Egressd *e, EgressRun *run, const Peer *peer, const char *event, const char *rule, const char *name,
                  uint16_t port, const char *reason, const char *detail) {
        egressd_deny_many(e, run, peer, event, rule, name, port, reason, detail, 1);
}

void egressd_deny_many(Egressd *e, EgressRun *run, const Peer *peer, const char *event, const char *rule, const char *name,
                       uint16_t port, const char *reason, const char *detail, uint64_t count) {
        _cleanup_free_ char *safe_name = NULL, *safe_detail = NULL;
        Denial d = { .event = event, .rule = (char *) rule, .port = port, .reason = (char *) reason, .unit = peer->unit, .count = count };
        int r;

        safe_name = text_escape(name, strnlen(name, 256), false);
        safe_detail = detail ? text_escape(detail, strnlen(detail, 256), false) : NULL;
        if (!safe_name || (detail && !safe_detail)) {
                log_oom();
                return;
        }

        d.name = safe_name;
        d.detail = safe_detail;
        (void) snprintf(d.run, sizeof(d.run), "%s", run ? run->id : peer->run);
        r = untold_add(e->untold, d.run, untold_event(event), count > 0 ? count : 1);
        if (r < 0)
                log_warning_errno(r, "run %s: a denial would be lost if this process were killed", d.run);
        r = denials_add(e->denials, time_boottime(), &d);
        if (r < 0)
                log_warning_errno(r, "run %s: a denial of %s could not be counted", d.run, safe_name);
}
