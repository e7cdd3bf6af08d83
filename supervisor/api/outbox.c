/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * From the ledger's outbox to auditd. An event stays in the ledger until auditd said that it is durable.
 * A window of events is handed over at once, but never two of one item: so each item's events are recorded in the
 * order in which they happened. If one fails, the window is let run
 * out and everything that is still in the ledger is sent again after a second; what auditd had stored all the
 * same has the same key, and is not stored twice. Nothing is ever dropped: with auditd gone, leases wait (flow.c) and
 * submissions end at OUTBOX_MAX.
 *
 * So nothing may be sent that auditd would refuse each time: it would hold up every lease for good. What a run said of itself may be
 * larger than a record; the record then has its digest and its size, and the ledger has all of it.
 */

#include <errno.h>
#include <string.h>

#include "api/manager-internal.h"
#include "audit/audit-api.h"
#include "audit/audit-event.h"
#include "util/json.h"
#include "util/log.h"

enum {
        SCAN_MAX = 256, /* events looked at for one that may be sent; the rest has its turn when those are gone */
        MEMBER_MAX = 4096,
};

bool outbox_is_empty(Manager *m) {
        int64_t n = 1;

        return ledger_outbox_count(m->ledger, &n) == 0 && n == 0;
}

static int on_retry(sd_event_source *source, uint64_t usec, void *userdata) {
        outbox_kick(userdata);
        return 0;
}

static void retry_later(Manager *m) {
        int r;

        m->outbox_failed = false;

        if (m->outbox_retry) {
                r = sd_event_source_set_time_relative(m->outbox_retry, USEC_PER_SEC);
                if (r >= 0)
                        r = sd_event_source_set_enabled(m->outbox_retry, SD_EVENT_ONESHOT);
        } else
                r = sd_event_add_time_relative(m->event, &m->outbox_retry, CLOCK_MONOTONIC, USEC_PER_SEC, 0, on_retry, m);
        if (r < 0)
                (void) manager_fatal(m, r, "arm the outbox's timer");
}

static void on_acknowledged(int r, void *userdata) {
        OutboxFlight *flight = userdata;
        Manager *m = flight->manager;
        int64_t id = flight->id;

        flight->id = 0;
        m->outbox_flying--;

        if (r < 0) {
                if (!m->outbox_failed)
                        log_warning_errno(r, "auditd did not acknowledge event %lld; leases wait", (long long) id);
                m->outbox_failed = true;
        } else {
                r = ledger_outbox_remove(m->ledger, id);
                if (r < 0) {
                        (void) manager_fatal(m, r, "clear the audit outbox");
                        return;
                }
        }

        if (!m->outbox_failed)
                outbox_kick(m);
        else if (m->outbox_flying == 0)
                retry_later(m);
}

/* Is this event, or another one of its item, on its way? Events of no item keep to themselves. */
static bool must_wait(Manager *m, const LedgerEvent *e, OutboxFlight **ret_free) {
        const char *item = e->item ?: "";

        for (unsigned i = 0; i < OUTBOX_WINDOW; i++) {
                if (m->outbox_flight[i].id == 0) {
                        *ret_free = &m->outbox_flight[i];
                        continue;
                }
                if (m->outbox_flight[i].id == e->id || strcmp(m->outbox_flight[i].item, item) == 0)
                        return true;
        }
        return !*ret_free;
}

/* ---- what fits into a record ---- */

/* {"bytes": N, "sha256": "…"} of the canonical text; the caller's, NULL without memory. */
static json_t *digest_of(const json_t *j) {
        _cleanup_free_ char *text = json_canonical(j);
        char digest[HEX_SHA256_SIZE];

        if (!text || json_digest(j, digest) < 0)
                return NULL;
        return json_pack("{s:I, s:s}", "bytes", (json_int_t) strlen(text), "sha256", digest);
}

static int fits(const json_t *j, size_t max, bool *ret) {
        _cleanup_free_ char *text = json_canonical(j);

        if (!text)
                return -ENOMEM;
        *ret = strlen(text) <= max;
        return 0;
}

/* Each member that is too much gives way to its digest; if there are too many, all of them do, but for the key. */
static int shorten(json_t **data) {
        _cleanup_json_ json_t *whole = NULL;
        const char *key;
        json_t *value;
        bool fine;
        void *next;
        int r;

        r = fits(*data, AUDIT_DATA_MAX, &fine);
        if (r < 0 || fine)
                return r;

        whole = digest_of(*data);
        if (!whole || json_object_set(whole, "key", json_object_get(*data, "key")) < 0)
                return -ENOMEM;
        json_object_foreach_safe(*data, next, key, value) {
                r = fits(value, MEMBER_MAX, &fine);
                if (r < 0)
                        return r;
                if (!fine && json_object_set_new(*data, key, digest_of(value)) < 0)
                        return -ENOMEM;
        }

        r = fits(*data, AUDIT_DATA_MAX, &fine);
        if (r < 0 || fine)
                return r;
        json_decref(*data);
        *data = TAKE_PTR(whole);
        return 0;
}

/* An event that a newer image of this host queued, before the host went back to this one: auditd would refuse its name for ever. It is
 * recorded under a name that both know, with the same key. */
static int translate(const char **event, json_t **data) {
        json_t *inner = *data;

        if (audit_event_find(*event))
                return 0;
        *data = json_pack("{s:s, s:O?, s:O}", "event", *event, "key", json_object_get(inner, "key"), "data", inner);
        json_decref(inner);
        *event = "image.newer";
        return *data ? 0 : -ENOMEM;
}

static int send_event(Manager *m, const LedgerEvent *e, OutboxFlight *flight) {
        const char *event = e->event;
        json_t *data = NULL;
        char key[48];
        int r;

        r = json_parse(e->data, strlen(e->data), &data, NULL);
        if (r >= 0)
                r = translate(&event, &data);
        if (r >= 0) {
                r = shorten(&data);
                if (r < 0)
                        json_decref(data);
        }
        if (r < 0)
                return manager_fatal(m, r, "read an event of the audit outbox");

        *flight = (OutboxFlight) { .manager = m, .id = e->id };
        (void) snprintf(flight->item, sizeof(flight->item), "%s", e->item ?: "");
        m->outbox_flying++;
        /* with the time: the numbers of another ledger, which somebody put in this one's place, are other events */
        (void) snprintf(key, sizeof(key), "%lld@%llu", (long long) e->id, (unsigned long long) e->time_usec);
        r = audit_append_once(m->audit, key, event, e->run, e->item, e->actor, data, on_acknowledged, flight);
        if (r < 0) {
                flight->id = 0;
                m->outbox_flying--;
                return r;
        }

        return 1;
}

/* 1 if one was sent, 0 if there is none that may be. */
static int send_next(Manager *m) {
        int64_t after = 0;
        int r;

        for (unsigned i = 0; i < SCAN_MAX; i++) {
                _cleanup_(ledger_event_done) LedgerEvent e = {};
                OutboxFlight *flight = NULL;

                r = ledger_outbox_next(m->ledger, after, &e);
                if (r == LEDGER_E_NO_WORK)
                        return 0;
                if (r < 0)
                        return manager_fatal(m, r, "read the audit outbox");
                if (!must_wait(m, &e, &flight))
                        return send_event(m, &e, flight);
                after = e.id;
        }
        return 0;
}

void outbox_kick(Manager *m) {
        int r = 1;

        while (r > 0 && !m->outbox_failed && m->outbox_flying < OUTBOX_WINDOW)
                r = send_next(m);
        if (r < 0) {
                m->outbox_failed = true;
                if (m->outbox_flying == 0)
                        retry_later(m);
                return;
        }

        if (m->outbox_flying == 0 && outbox_is_empty(m)) {
                flows_on_audited(m);
                prune_on_audited(m);
        }
}
