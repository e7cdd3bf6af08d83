/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Denials on their way to the audit log. denials.c counts and says when a record is due; audit/tellings.c sends it, and keeps it until auditd has
 * acknowledged it. What auditd did not take is sent again when it answers a ping, and until then no further ones of that run are begun. So what is kept is
 * bounded, by what may be under way at once and what a release tells at the end.
 *
 * Whatever has not been acknowledged when this process ends is in untold.c, and the next life tells it. On an orderly stop little is left
 * for that: everything is told once more (egressd_stop()). A record that auditd wrote without our hearing of it is recognised when it is sent again, by
 * its key; only if this process ended in between is it told twice, in sum, so that the counts of a run are never fewer than its denials.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "egress/egressd-private.h"
#include "util/json.h"
#include "util/log.h"

enum { STOP_USEC = 4 * 1000 * 1000 }; /* more than auditd has for an answer, less than TimeoutStopSec= */

static UntoldEvent untold_event(const char *event) {
        return strcmp(event, "dns.refused") == 0 ? UNTOLD_DNS_REFUSED : UNTOLD_EGRESS_DENY;
}

void egressd_end_if_told(Egressd *e) {
        if (e->stopping && !tellings_is_under_way(e->tellings) && !egressd_closes_under_way(e)) /* denials that were refused are in the file */
                (void) sd_event_exit(e->event, 0);
}

/* What it will never take as it is stays in the file, and is told without its words. */
static void on_told(const char *run, unsigned event, uint64_t count, int r, void *userdata) {
        Egressd *e = userdata;

        if (r >= 0)
                untold_told(e->untold, run, (UntoldEvent) event, count);
        egressd_end_if_told(e);
}

/* Takes data over. run NULL: it is gone already. */
static int tell(Egressd *e, EgressRun *run, const char *id, const char *event, const char *actor, json_t *data, uint64_t count) {
        int r = tellings_tell(e->tellings, event, id, actor, data, count, untold_event(event));

        if (r >= 0 && run)
                run->n_records++;
        return r;
}

void egressd_tell_again(Egressd *e) {
        tellings_again(e->tellings, EGRESSD_DENIALS_PENDING_MAX);
}

/* ---- what an earlier life left ---- */

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

/* ---- denials ---- */

/* What they were about, if the first one's detail does not say it all (it may have none, and a later one has): [[text, count], …], and how many are in none
 * of these. */
static int describe_details(json_t *data, const Denial *d) {
        _cleanup_json_ json_t *details = json_array();
        bool says_all = d->n_details == 0 || (d->n_details == 1 && d->detail && strcmp(d->details[0].text, d->detail) == 0);
        uint64_t unlisted = d->count;

        for (size_t i = 0; i < d->n_details; i++) {
                unlisted -= d->details[i].count;
                if (json_array_append_new(details, json_pack("[s, I]", d->details[i].text, (json_int_t) d->details[i].count)) < 0)
                        return -ENOMEM;
        }
        if (!says_all && json_object_set(data, "details", details) < 0)
                return -ENOMEM;
        if ((d->detail || d->n_details > 0) && unlisted > 0 && d->count > 1 && json_object_set_new(data, "unlisted", json_integer((json_int_t) unlisted)) < 0)
                return -ENOMEM;
        return 0;
}

/* A record that is longer for its details counts as several: so they make no more room in the log for a run than it had. */
static uint64_t weight_of(const Denial *d) {
        size_t size = 0;

        for (size_t i = 0; i < d->n_details; i++)
                size += strlen(d->details[i].text);
        return size / DENIALS_DETAIL_SIZE;
}

static bool tell_denial(const Denial *d, bool last, void *userdata) {
        Egressd *e = userdata;
        EgressRun *run = egress_state_find(e->state, d->run);
        json_t *data;
        int r;

        /* Over its budget a run is denied everything; one record said so, and no more follow until its end. */
        if (!last && run && egressd_over_budget(run) && strcmp(d->reason, "record-budget") != 0)
                return false;
        /* What waits behind too many others is not taken in time, and holds up what the run is allowed; what was refused goes first. */
        if (!last && (e->stopping || audit_pending(e->audit, d->run) >= EGRESSD_DENIALS_PENDING_MAX || tellings_is_refused(e->tellings, d->run)))
                return false;

        data = json_pack("{s:s, s:s, s:s, s:i, s:I, s:s*}", "name", d->name, "rule", d->rule, "reason", d->reason,
                         "port", d->port, "count", (json_int_t) d->count, "detail", d->detail);
        if (data && describe_details(data, d) < 0)
                data = json_unref(data);
        r = tell(e, run, d->run, d->event, d->unit, data, d->count);
        if (r < 0)
                log_warning_errno(r, "run %s: a denial of %s could not be recorded", d->run, d->name);
        else if (run)
                run->n_records += weight_of(d);
        return r >= 0;
}

int egressd_new_denials(Egressd *e) {
        int r;

        r = tellings_new(&e->tellings, e->audit, on_told, e);
        if (r < 0)
                return log_error_errno(r, "cannot keep records of denials");
        r = text_make_id('l', e->life);
        if (r < 0)
                return log_error_errno(r, "no random number");
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

/* ---- the end ---- */

static int on_stop_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        Egressd *e = userdata;

        log_notice("the audit log does not answer: denials that are not in it are told by the next start");
        return sd_event_exit(e->event, 0);
}

int egressd_stop(Egressd *e) {
        int r;

        if (e->stopping) /* asked twice: at once */
                return sd_event_exit(e->event, 0);

        r = sd_event_add_time_relative(e->event, &e->stop, CLOCK_MONOTONIC, STOP_USEC, 0, on_stop_timer, e);
        if (r < 0)
                return sd_event_exit(e->event, r);
        e->stopping = true;
        for (EgressRun *run = egress_state_runs(e->state); run; run = run->next) {
                denials_flush(e->denials, run->id);
                egress_state_save_records(e->state, run);
        }
        denials_flush(e->denials, NULL); /* of runs that are none, or no more */
        egressd_closes_flush(e, NULL);
        egressd_closes_keep(e);
        egressd_end_if_told(e);
        return 0;
}

void egressd_denials_done(Egressd *e) {
        e->stop = sd_event_source_disable_unref(e->stop);
        e->tellings = tellings_free(e->tellings);
        denials_free(e->denials);
        untold_free(e->untold);
}
