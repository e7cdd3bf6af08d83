/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Shares of the log.
 *
 * journald keeps so much of the log and no more: whoever can write without an end can have everybody else's records vacuumed. Our own clients bound
 * themselves (notes.c, egressd), but a unit of a run that was taken over is bound by nothing of its own. So each unit of a run has, by the name that the kernel
 * gives it, a share:
 *
 *   in all        more than such a unit has to say in a long and busy run, whatever its guest does; kept in the outbox, so that it lasts longer than this process
 *   at a time     a burst, and what the host's journal takes of one source without others noticing
 *   under way     a few requests, so that others' never stand behind a long row of them
 *
 * A record weighs its data and what every record takes besides: that bounds both their bytes and their number. (At a time it weighs as much more as it may take in
 * auditd's queue.) It is a share of the unit and not of the
 * run, since a proxy that was taken over is not to silence what others say of the same run. All units of a run have an eighth of the log together. Daemons write about
 * runs without a share: they are trusted, and bound what a run can make them say (egressd: EGRESSD_RECORDS_MAX).
 *
 * A refused call is answered a second later; as a connection has one call at a time, that bounds what a unit can send in vain. A call that waits for that keeps
 * descriptors, and sd-varlink no longer counts one whose client has gone: so it is dropped then, what came along is closed before, and of one unit no more than a
 * user's connections wait. (Fewer would be worse: who is hung up comes again at once, who waits does not.)
 * What was sent and was no record (malformed, denied) counts for the rate only.
 */
#include "audit/audit-share.h"

#include <errno.h>
#include <string.h>

#include "audit/audit-request.h"
#include "util/log.h"

#define HOUR_USEC (3600ULL * 1000 * 1000)
#define HOLD_USEC (1000ULL * 1000)
#define MIB (1024ULL * 1024)

enum { TIMER_ACCURACY_USEC = 50 * 1000 };

struct AuditShare {
        AuditShare *next;
        char *unit;            /* owned */
        uint64_t left;         /* bytes, in all */
        int64_t credit;        /* bytes, now; below zero: the last one was larger than what there was */
        uint64_t seen_usec;    /* when credit was that */
        unsigned n_under_way;
        unsigned n_held;       /* refused, and not answered yet */
        bool told_rate, told_total;
};

typedef struct Held {
        struct Held *next;
        AuditShare *share;     /* borrowed; it stays as long as it has one */
        IpcCall *call;         /* ref */
        const char *lack;
        uint64_t until_usec;
} Held;

struct AuditShares {
        AuditShare *first;     /* owned list */
        Held *held, **held_end; /* owned list, in the order of their times */
        sd_event_source *timer; /* ref */
};

/* Each of the first three has room for all that the unit's own bounds let it say: test-audit-share.c compares. */
uint64_t audit_share_total(unsigned roles) {
        static const struct { unsigned roles; uint64_t bytes; } totals[] = {
                { PEER_INJECT, 176 * MIB }, /* as many calls of models as a run may have, notes of eight kinds, the tally of requests */
                { PEER_NETLOG,  32 * MIB }, /* three groups of 4,000 records, and then a few each ten minutes (net/netlog.h) */
                { PEER_PROXY,   22 * MIB }, /* notes of two kinds */
                { PEER_RUN,     16 * MIB }, /* two for each step and round */
        };

        for (size_t i = 0; i < ELEMENTSOF(totals); i++)
                if (roles & totals[i].roles)
                        return totals[i].bytes;
        return 2 * MIB; /* a handful of records */
}

static AuditShare *share_free(AuditShare *share) {
        if (share)
                free(share->unit);
        free(share);
        return NULL;
}
DEFINE_CLEANUP(AuditShare *, share_free)

static Held *held_free(Held *h) {
        h->share->n_held--;
        (void) ipc_call_unref(h->call);
        free(h);
        return NULL;
}

/* ---- shares ---- */

/* Of whom nothing was heard for an hour: its credit is full again, and the rest is in the outbox. */
static void shares_forget(AuditShares *s, uint64_t now_usec) {
        for (AuditShare **p = &s->first; *p;) {
                AuditShare *share = *p;

                if (share->n_under_way > 0 || share->n_held > 0 || share->seen_usec + HOUR_USEC > now_usec) {
                        p = &share->next;
                        continue;
                }
                *p = share->next;
                (void) share_free(share);
        }
}

int audit_shares_get(AuditShares *s, const Peer *peer, AuditOutbox *outbox, uint64_t now_usec, AuditShare **ret) {
        _cleanup_(share_freep) AuditShare *share = NULL;
        uint64_t spent, total = audit_share_total(peer->roles);
        int r;

        *ret = NULL;
        if (!(peer->roles & AUDIT_RUN_ROLES))
                return 0;
        for (AuditShare *i = s->first; i; i = i->next)
                if (strcmp(i->unit, peer->unit) == 0) {
                        *ret = i;
                        return 0;
                }

        shares_forget(s, now_usec);
        r = audit_outbox_spent(outbox, peer->unit, &spent);
        if (r < 0)
                return r;
        share = malloc(sizeof(*share));
        if (!share)
                return -ENOMEM;
        *share = (AuditShare) {
                .unit = strdup(peer->unit),
                .left = spent < total ? total - spent : 0,
                .credit = AUDIT_SHARE_BURST,
                .seen_usec = now_usec,
        };
        if (!share->unit)
                return -ENOMEM;

        share->next = s->first;
        *ret = s->first = TAKE_PTR(share);
        return 0;
}

const char *audit_share_lacks(AuditShare *share, uint64_t now_usec) {
        uint64_t passed;

        if (!share)
                return NULL;

        passed = now_usec - share->seen_usec;
        if (passed >= 60 * 1000 * 1000)
                share->credit = AUDIT_SHARE_BURST;
        else
                share->credit += (int64_t) (passed * AUDIT_SHARE_PER_SECOND / 1000000);
        if (share->credit > AUDIT_SHARE_BURST)
                share->credit = AUDIT_SHARE_BURST;
        share->seen_usec = now_usec;

        if (share->n_under_way >= AUDIT_SHARE_UNDER_WAY_MAX)
                return AUDIT_SHARE_BUSY;
        if (share->left == 0)
                return AUDIT_SHARE_TOTAL;
        return share->credit <= 0 ? AUDIT_SHARE_RATE : NULL;
}

void audit_share_spend(AuditShare *share, size_t bytes) {
        if (share)
                share->credit -= (int64_t) bytes;
}

size_t audit_share_begin(AuditShare *share, size_t bytes) {
        if (!share)
                return 0;
        if (bytes > share->left)
                bytes = (size_t) share->left;
        share->n_under_way++;
        share->left -= bytes;
        return bytes;
}

void audit_share_end(AuditShare *share, size_t unwritten) {
        if (!share)
                return;
        share->n_under_way--;
        share->left += unwritten;
}

bool audit_share_tell(AuditShare *share, const char *lack) {
        bool *told = strcmp(lack, AUDIT_SHARE_TOTAL) == 0 ? &share->told_total : &share->told_rate, before = *told;

        if (strcmp(lack, AUDIT_SHARE_BUSY) == 0)
                return false;
        *told = true;
        return !before;
}

/* ---- refusals ---- */

static const char *describe_lack(const char *lack) {
        if (strcmp(lack, AUDIT_SHARE_BUSY) == 0)
                return "This unit has too many requests under way.";
        if (strcmp(lack, AUDIT_SHARE_RATE) == 0)
                return "This unit writes faster than its share of the log allows.";
        return "This unit has used up its share of the log.";
}

static void shares_answer_first(AuditShares *s) {
        Held *h = s->held;

        s->held = h->next;
        if (!s->held)
                s->held_end = &s->held;
        if (ipc_call_is_live(h->call))
                (void) ipc_call_refuse(h->call, "Unavailable", "%s", describe_lack(h->lack));
        (void) held_free(h);
}

static int shares_arm(AuditShares *s, const Held *first) {
        int r;

        r = sd_event_source_set_time(s->timer, first->until_usec);
        return r < 0 ? r : sd_event_source_set_enabled(s->timer, SD_EVENT_ONESHOT);
}

static int shares_on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        AuditShares *s = userdata;
        uint64_t now = time_monotonic();

        while (s->held && s->held->until_usec <= now)
                shares_answer_first(s);
        return s->held ? shares_arm(s, s->held) : 0;
}

void audit_shares_drop_gone(AuditShares *s) {
        Held **p = &s->held;

        while (*p) {
                Held *h = *p;

                if (ipc_call_is_live(h->call)) {
                        p = &h->next;
                        continue;
                }
                *p = h->next;
                (void) held_free(h);
        }
        s->held_end = p;
}

int audit_shares_refuse(AuditShares *s, AuditShare *share, IpcCall *call, const char *lack) {
        bool first = !s->held;
        Held *h;
        int fd;

        if (share->n_held >= AUDIT_SHARE_HELD_MAX) {
                ipc_call_hang_up(call);
                return 0;
        }
        for (unsigned i = 0; (fd = ipc_call_take_fd(call, i)) >= 0; i++)
                (void) fd_close(fd);

        h = malloc(sizeof(*h));
        if (!h)
                return -ENOMEM;
        *h = (Held) { .share = share, .call = ipc_call_ref(call), .lack = lack, .until_usec = time_monotonic() + HOLD_USEC };
        share->n_held++;
        *s->held_end = h;
        s->held_end = &h->next;
        return first ? shares_arm(s, h) : 0;
}

int audit_shares_new(AuditShares **ret, sd_event *event) {
        _cleanup_(audit_shares_freep) AuditShares *s = calloc(1, sizeof(*s));
        int r;

        if (!s)
                return -ENOMEM;
        s->held_end = &s->held;
        r = sd_event_add_time(event, &s->timer, CLOCK_MONOTONIC, 0, TIMER_ACCURACY_USEC, shares_on_timer, s);
        if (r >= 0)
                r = sd_event_source_set_enabled(s->timer, SD_EVENT_OFF);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(s);
        return 0;
}

AuditShares *audit_shares_free(AuditShares *s) {
        if (!s)
                return NULL;

        while (s->held) {
                Held *h = s->held;

                s->held = h->next;
                (void) held_free(h);
        }
        while (s->first) {
                AuditShare *share = s->first;

                s->first = share->next;
                (void) share_free(share);
        }
        (void) sd_event_source_disable_unref(s->timer);
        free(s);
        return NULL;
}
