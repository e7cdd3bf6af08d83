/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What auditd is asked: checked, and put into `pending`. The answer comes with the commit, in audit-server.c. */
#include "audit/audit-server-private.h"

#include <errno.h>
#include <string.h>

#include "audit/audit-event.h"
#include "audit/audit-request.h"
#include "util/json.h"
#include "util/log.h"

enum {
        PENDING_MAX = 1024,
        STALL_USEC = 10 * 1000 * 1000,
        RECORD_EXTRA = 2048,                     /* a record without its data, at most about */
};

/* NULL, or why nothing can be recorded now. */
static const char *server_trouble(AuditServer *s) {
        if (audit_queue_stalled_usec(s->queue) > STALL_USEC)
                return "The journal has not taken a record for ten seconds.";
        if (s->n_pending >= PENDING_MAX)
                return "Too many events at once.";
        return NULL;
}

/* Answers a request that is not allowed or not well-formed. */
static int refuse_request(IpcCall *call, const AuditRequest *q, const char *source) {
        json_t *params;

        if (q->verdict == AUDIT_REQUEST_DENIED) {
                log_warning("Refused event %s from %s (pid %d): %s", q->event->name, source, (int) ipc_call_peer(call)->pid, q->reason);
                return ipc_call_refuse(call, "Denied", "%s", q->reason);
        }

        params = json_pack("{s:s*, s:s}", "pointer", q->pointer, "reason", q->reason ?: "out of memory");
        return params ? ipc_call_error(call, "BadInput", params) : -ENOMEM;
}

/* Has its unit used up its share of something? Then the call is answered, and the log says so once. Else *ret is that share. */
static int server_check_share(AuditServer *s, IpcCall *call, AuditShare **ret) {
        const Peer *peer = ipc_call_peer(call);
        uint64_t now = time_monotonic();
        const char *lack;
        int r;

        r = audit_shares_get(s->shares, peer, s->outbox, now, ret);
        if (r < 0)
                return r;
        lack = audit_share_lacks(*ret, now);
        if (!lack)
                return 0;

        if (audit_share_tell(*ret, lack)) {
                log_warning("%s has used up its share of the log (%s).", peer->unit, lack);
                r = audit_server_append_own(s, "audit.limited", peer->run[0] == 'r' ? peer->run : NULL, json_pack("{s:s, s:s}", "unit", peer->unit, "share", lack));
                if (r < 0)
                        (void) log_warning_errno(r, "Cannot write audit.limited");
        }
        r = audit_shares_refuse(s->shares, *ret, call, lack);
        return r < 0 ? r : 1;
}

int audit_server_on_append(IpcCall *call, json_t *params, void *userdata) {
        AuditServer *s = userdata;
        AuditShare *share;
        _cleanup_(audit_request_done) AuditRequest q = {};
        _cleanup_(audit_pending_freep) Pending *p = NULL;
        char buffer[64];
        const char *source = peer_name(ipc_call_peer(call), buffer), *trouble;
        size_t n_data, size;
        int r;

        r = server_check_share(s, call, &share);
        if (r != 0)
                return r < 0 ? r : 0;
        r = audit_request_read(&q, params, ipc_call_peer(call), source);
        if (r < 0)
                return r;
        n_data = q.canonical ? strlen(q.canonical) : 0;
        size = RECORD_EXTRA + n_data;
        audit_share_spend(share, size);
        if (q.verdict != AUDIT_REQUEST_GOOD)
                return refuse_request(call, &q, source);

        trouble = server_trouble(s);
        if (!trouble && audit_queue_is_full(s->queue, s->n_pending + 1, s->pending_bytes + size))
                trouble = "The outbox is full.";
        if (trouble)
                return ipc_call_refuse(call, "Unavailable", "%s", trouble);

        p = calloc(1, sizeof(*p));
        if (!p)
                return -ENOMEM;
        r = audit_request_fill(&q, s->boot, source, &p->record);
        if (r < 0)
                return r;

        r = q.key ? audit_request_identity(&q, source, p->identity) : 0;
        if (r < 0)
                return r;
        p->call = ipc_call_ref(call);
        p->share = share;
        p->size = size;
        p->weight = AUDIT_SHARE_RECORD + n_data;
        p->reserved = audit_share_begin(share, p->weight);
        audit_server_enqueue(s, TAKE_PTR(p));
        return 0;
}

int audit_server_on_ping(IpcCall *call, json_t *params, void *userdata) {
        AuditServer *s = userdata;
        const char *trouble = server_trouble(s);
        AuditShare *share;
        Pending *p;
        int r;

        r = server_check_share(s, call, &share);
        if (r != 0)
                return r < 0 ? r : 0;
        audit_share_spend(share, RECORD_EXTRA);
        if (!trouble && audit_queue_is_full(s->queue, 1, AUDIT_RECORD_MAX))
                trouble = "The outbox is full.";
        if (trouble)
                return ipc_call_refuse(call, "Unavailable", "%s", trouble);

        p = calloc(1, sizeof(*p));
        if (!p)
                return -ENOMEM;
        p->ping = true;
        p->share = share;
        (void) audit_share_begin(share, 0);
        p->call = ipc_call_ref(call);
        audit_server_enqueue(s, p);
        return 0;
}
