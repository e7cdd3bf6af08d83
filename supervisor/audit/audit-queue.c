/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * From the outbox into the journal.
 *
 *     head of list                                         end
 *     │ sent, being looked for … │ sent │ unsent … │
 *
 * Records are sent in order. At most one look (audit-journal.c) is under way, for the oldest sent ones; those that it
 * found, up to the first that it did not, leave the list. If one was not found in time, everything from it on counts as
 * unsent and is sent again, in order, so that the journal always holds the chain in order, whatever it lost in between.
 * Identical copies that come from this are no error for verification.
 *
 * Nothing here is durable: the list is a view of the outbox, which outlives us.
 */
#include "audit/audit-queue.h"

#include <errno.h>
#include <string.h>

#include "audit/audit-journal.h"
#include "util/log.h"
#include "util/text.h"

enum {
        LOOK_USEC = 3 * 1000 * 1000,      /* until a record counts as lost */
        RETRY_USEC = 100 * 1000,
        RETRY_ACCURACY_USEC = 10 * 1000,
};

typedef struct Entry Entry;

struct Entry {
        Entry *next;
        AuditHead head;
        bool old;                   /* of an earlier life, and not sent in this one: no need to wait for it */
        size_t size;
        char text[];
};

struct AuditQueue {
        AuditJournal *journal;      /* owned */
        sd_event_source *retry;     /* ref */
        AuditQueueKept kept;
        AuditQueueResent resent;
        void *userdata;
        Entry *first, **end;        /* owned list */
        Entry *unsent;              /* borrowed: the first that was not sent; NULL: all were */
        size_t n_entries, n_bytes;
        size_t n_looked;            /* how many a look is under way for; 0: none is */
        uint64_t progress_usec;     /* when the list last moved, or became non-empty */
        bool complained;            /* that nothing can be sent */
        bool rewound;               /* told since the last progress */
};

static void queue_look(AuditQueue *q) {
        AuditHead records[AUDIT_LOOK_MAX];
        size_t n = 0;
        int r;

        if (q->n_looked > 0)
                return;
        for (Entry *e = q->first; e && e != q->unsent && n < AUDIT_LOOK_MAX; e = e->next)
                records[n++] = e->head;
        if (n == 0)
                return;

        r = audit_journal_look(q->journal, records, n, q->first->old ? 0 : LOOK_USEC);
        if (r >= 0)
                q->n_looked = n;
        else
                (void) log_error_errno(r, "Cannot look for records in the journal");
}

static void queue_pop(AuditQueue *q) {
        Entry *e = q->first;

        q->first = e->next;
        if (!q->first)
                q->end = &q->first;
        q->n_entries--;
        q->n_bytes -= e->size;
        free(e);
}

/* Everything that was sent counts as unsent. */
static void queue_rewind(AuditQueue *q) {
        uint64_t first = q->first->head.seq, last = first;

        for (Entry *e = q->first; e && e != q->unsent; e = e->next) {
                last = e->head.seq;
                e->old = false;
        }
        q->unsent = q->first;
        if (!q->rewound)
                q->resent(first, last, q->userdata);
        q->rewound = true;
}

static void queue_retry_later(AuditQueue *q) {
        if (sd_event_source_set_time_relative(q->retry, RETRY_USEC) < 0 ||
            sd_event_source_set_enabled(q->retry, SD_EVENT_ONESHOT) < 0)
                log_error("Cannot set the timer for sending records again.");
}

static void queue_on_kept(size_t n_kept, int r, void *userdata) {
        AuditQueue *q = userdata;
        size_t n_looked = q->n_looked;
        AuditHead kept;

        q->n_looked = 0;
        if (r < 0) {
                (void) log_error_errno(r, "Cannot make sure that the journal keeps its records");
                queue_retry_later(q);
                return;
        }

        for (size_t i = 0; i < n_kept; i++) {
                kept = q->first->head;
                queue_pop(q);
        }
        if (n_kept > 0) {
                q->progress_usec = time_monotonic();
                if (q->complained)
                        log_notice("The journal takes records again.");
                q->complained = q->rewound = false;
                q->kept(&kept, q->userdata);
        }
        /* n_kept < n_looked: that many were sent, so the list is not empty */
        if (n_kept < n_looked)
                queue_rewind(q);

        audit_queue_pump(q);
}

static int queue_on_retry(sd_event_source *s, uint64_t usec, void *userdata) {
        audit_queue_pump(userdata);
        return 0;
}

void audit_queue_pump(AuditQueue *q) {
        int r;

        while (q->unsent) {
                r = audit_journal_send(q->journal, q->unsent->text, q->unsent->size);
                if (r < 0) {
                        if (r != -EAGAIN && !q->complained) {
                                q->complained = true;
                                (void) log_warning_errno(r, "Cannot send records to the journal, trying again");
                        }
                        queue_retry_later(q);
                        break;
                }
                q->unsent = q->unsent->next;
        }

        queue_look(q);
}

int audit_queue_add(AuditQueue *q, const AuditHead *head, const char *text, size_t size, bool sent_before) {
        Entry *e;

        e = malloc(sizeof(*e) + size);
        if (!e)
                return -ENOMEM;
        *e = (Entry) { .head = *head, .old = sent_before, .size = size };
        memcpy(e->text, text, size);

        if (!q->first)
                q->progress_usec = time_monotonic();
        *q->end = e;
        q->end = &e->next;
        q->n_entries++;
        q->n_bytes += size;
        if (!sent_before && !q->unsent)
                q->unsent = e;
        return 0;
}

bool audit_queue_is_full(const AuditQueue *q, size_t n_more, size_t bytes_more) {
        return q->n_entries + n_more > AUDIT_QUEUE_RECORDS_MAX || q->n_bytes + bytes_more > AUDIT_QUEUE_BYTES_MAX;
}

uint64_t audit_queue_stalled_usec(const AuditQueue *q) {
        return q->first ? time_monotonic() - q->progress_usec : 0;
}

size_t audit_queue_size(const AuditQueue *q) {
        return q->n_entries;
}

int audit_queue_new(AuditQueue **ret, sd_event *event, const char *socket_path, const char *directory, const char *unit,
                    AuditQueueKept kept, AuditQueueResent resent, void *userdata) {
        _cleanup_(audit_queue_freep) AuditQueue *q = NULL;
        int r;

        q = calloc(1, sizeof(*q));
        if (!q)
                return -ENOMEM;
        *q = (AuditQueue) { .kept = kept, .resent = resent, .userdata = userdata };
        q->end = &q->first;

        r = sd_event_add_time_relative(event, &q->retry, CLOCK_MONOTONIC, RETRY_USEC, RETRY_ACCURACY_USEC, queue_on_retry, q);
        if (r >= 0)
                r = sd_event_source_set_enabled(q->retry, SD_EVENT_OFF);
        if (r >= 0)
                r = audit_journal_new(&q->journal, event, socket_path, directory, unit, queue_on_kept, q);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(q);
        return 0;
}

AuditQueue *audit_queue_free(AuditQueue *q) {
        if (!q)
                return NULL;

        (void) audit_journal_free(q->journal);
        (void) sd_event_source_disable_unref(q->retry);
        while (q->first)
                queue_pop(q);
        free(q);
        return NULL;
}
