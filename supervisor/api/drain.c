/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Draining: before an upgrade or a reboot this host finishes what it has begun and begins nothing more.
 *
 * The ledger has it (ledger-drain.c), and refuses leases by it in the transaction that would make one; so it holds across a
 * restart of anchord, and not across a boot. Until its time is up, a run goes on to its item's end, through import and
 * verification. What is left then is ended and handed back: `queued`, its attempt kept, for whoever leases next.
 * The tick looks, so that a run which was between two stages at that moment is not forgotten.
 */

#include <errno.h>
#include <string.h>

#include "api/operator-internal.h"
#include "util/log.h"

enum { WITHIN_MAX_S = 24 * 3600 };

#define HANDED_BACK "handed back: the host is drained"

void drain_tick(Manager *m) {
        _cleanup_(ledger_drain_done) LedgerDrain drain = {};
        int r;

        if (!m->flows)
                return;
        r = ledger_drain_get(m->ledger, m->boot_id, &drain);
        if (r < 0) {
                (void) manager_fatal(m, r, "look for a drain");
                return;
        }
        if (!drain.active || time_boottime() < drain.until_usec)
                return;

        for (Flow *f = m->flows, *next; f; f = next) {
                next = flow_next_of(f);
                flow_hand_back(f, HANDED_BACK);
        }
}

/* What has run long enough is handed back before anybody is told that the drain has begun. */
static int drain_begun(IpcCall *call, json_t *params, void *userdata) {
        drain_tick(userdata);
        return ipc_call_reply(call, NULL);
}

int drain_on_drain(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        json_t *within = json_object_get(params, "within_s");
        _cleanup_free_ char *reason = NULL;
        const char *given = operator_get(params, "reason");
        char actor[64];
        int r;

        if (!json_is_integer(within) || json_integer_value(within) < 0 || json_integer_value(within) > WITHIN_MAX_S)
                return operator_bad_input(call, "/within_s", "must be between 0 and a day, in seconds");
        if (given) {
                reason = text_escape(given, strnlen(given, OPERATOR_REASON_MAX), false);
                if (!reason)
                        return -ENOMEM;
        }

        r = ledger_drain_set(m->ledger, m->boot_id, time_boottime() + (uint64_t) json_integer_value(within) * USEC_PER_SEC,
                             peer_name(ipc_call_peer(call), actor), reason);
        if (r < 0)
                return manager_fatal(m, r, "begin to drain");

        log_notice("draining within %lld s by %s", (long long) json_integer_value(within), peer_name(ipc_call_peer(call), actor));
        outbox_kick(m);
        return m->settled ? drain_begun(call, params, m) : operator_wait(m, call, params, drain_begun);
}

int drain_on_undrain(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        char actor[64];
        int r;

        r = ledger_drain_clear(m->ledger, m->boot_id, peer_name(ipc_call_peer(call), actor));
        if (r < 0)
                return manager_fatal(m, r, "end a drain");

        outbox_kick(m);
        scheduler_kick(m);
        return ipc_call_reply(call, NULL);
}

json_t *drain_status(Manager *m) {
        _cleanup_(ledger_drain_done) LedgerDrain drain = {};
        uint64_t now = time_boottime();

        if (ledger_drain_get(m->ledger, m->boot_id, &drain) < 0 || !drain.active)
                return json_null();
        return json_pack("{s:s?, s:s?, s:I}", "actor", drain.actor, "reason", drain.reason,
                         "left_s", (json_int_t) (drain.until_usec > now ? (drain.until_usec - now) / USEC_PER_SEC : 0));
}
