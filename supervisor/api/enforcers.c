/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Are egressd, auditd, secretd and the eBPF programs there? Asked every two seconds; one that does not answer in three
 * is lost. Nothing is leased while one is lost; runs under way are told about in their notes, and the
 * enforcers themselves see to it that nothing gets out meanwhile (egressd's heartbeat, auditd's acknowledgement).
 */

#include <errno.h>
#include <string.h>

#include "api/manager-internal.h"
#include "util/json.h"
#include "util/log.h"

#define PING_TIMEOUT_USEC (3 * USEC_PER_SEC)

static const char *const names[_ENFORCER_MAX] = {
        [ENFORCER_EGRESSD] = "egressd",
        [ENFORCER_AUDITD] = "auditd",
        [ENFORCER_SECRETD] = "secretd",
        [ENFORCER_BPF] = "bpf",
};

const char *enforcer_name(EnforcerId id) {
        return names[id];
}

bool enforcers_ok(Manager *m, const char **ret_reason) {
        for (EnforcerId id = 0; id < _ENFORCER_MAX; id++)
                if (!m->enforcers[id].ok) {
                        if (ret_reason)
                                *ret_reason = m->enforcers[id].reason;
                        return false;
                }
        return true;
}

static void record_change(Manager *m, EnforcerId id, bool ok) {
        _cleanup_json_ json_t *data = json_pack("{s:s, s:s}", "enforcer", names[id], "reason", m->enforcers[id].reason);
        int r;

        r = data ? ledger_outbox_put(m->ledger, ok ? "enforcer.back" : "enforcer.lost", NULL, NULL, NULL, data) : -ENOMEM;
        if (r < 0) {
                (void) manager_fatal(m, r, "record a lost enforcer");
                return;
        }
        outbox_kick(m);
}

static int note_running(const LedgerItem *item, void *userdata) {
        struct {
                Manager *m;
                EnforcerId id;
                bool ok;
        } *c = userdata;

        manager_note(c->m, item->id, item->run[0] ? item->run : NULL, c->ok ? "enforcer.back" : "enforcer.lost", "%s%s",
                     c->ok ? names[c->id] : c->m->enforcers[c->id].reason, c->ok ? " answers again" : "");
        return 0;
}

static void set_state(Manager *m, EnforcerId id, bool ok, const char *reason) {
        Enforcer *e = &m->enforcers[id];
        struct { Manager *m; EnforcerId id; bool ok; } context = { m, id, ok };
        bool first = !e->known;
        int r;

        e->asking = false;
        if (e->known && e->ok == ok)
                return;

        e->known = true;
        e->ok = ok;
        (void) snprintf(e->reason, sizeof(e->reason), "%s", ok ? "" : reason);
        if (ok && first) {
                scheduler_kick(m);
                return;
        }

        if (ok)
                log_notice("%s is back", names[id]);
        else
                log_warning("%s is lost: %s; no new leases until it is back", names[id], reason);

        /* every lease of whatever age has an expiry below the end of time */
        r = ledger_lease_expired(m->ledger, m->boot_id, INT64_MAX, note_running, &context);
        if (r < 0) {
                (void) manager_fatal(m, r, "note a lost enforcer");
                return;
        }
        record_change(m, id, ok);
        if (ok)
                scheduler_kick(m);
}

static void on_ping(Manager *m, EnforcerId id, const char *error) {
        char reason[160];

        if (error)
                (void) snprintf(reason, sizeof(reason), "%s does not answer (%s); see systemctl status anchor-%s", names[id],
                                strrchr(error, '.') ? strrchr(error, '.') + 1 : error, names[id]);
        set_state(m, id, !error, error ? reason : NULL);
}

static void on_egress_ping(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        on_ping(userdata, ENFORCER_EGRESSD, error);
}

static void on_secret_ping(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        on_ping(userdata, ENFORCER_SECRETD, error);
}

static void on_audit_ping(int r, void *userdata) {
        on_ping(userdata, ENFORCER_AUDITD, r < 0 ? strerror(-r) : NULL);
}

static void on_bpf_listed(int r, const UnitState *units, size_t n, void *userdata) {
        Manager *m = userdata;
        bool ok = r >= 0 && n == 1 && strcmp(units[0].active, "active") == 0;

        set_state(m, ENFORCER_BPF, ok, "the eBPF programs are not loaded; see systemctl status anchor-bpf");
}

static void ping(Manager *m, EnforcerId id) {
        static const char *const bpf_patterns[] = { "anchor-bpf.service", NULL };
        Enforcer *e = &m->enforcers[id];
        int r = 0;

        if (e->asking)
                return;
        e->asking = true;

        switch (id) {
        case ENFORCER_EGRESSD:
                r = ipc_client_call_async(m->egress_ping, "io.anchorhold.Egress.Ping", NULL, NULL, 0, false, PING_TIMEOUT_USEC, on_egress_ping, m);
                break;
        case ENFORCER_SECRETD:
                r = ipc_client_call_async(m->secret_ping, "io.anchorhold.Secret.Ping", NULL, NULL, 0, false, PING_TIMEOUT_USEC, on_secret_ping, m);
                break;
        case ENFORCER_AUDITD:
                r = audit_ping(m->audit, on_audit_ping, m);
                break;
        case ENFORCER_BPF:
        default:
                r = units_list(m->units, bpf_patterns, on_bpf_listed, m);
                break;
        }

        if (r < 0)
                on_ping(m, id, strerror(-r));
}

void enforcers_tick(Manager *m) {
        for (EnforcerId id = 0; id < _ENFORCER_MAX; id++)
                ping(m, id);
}
