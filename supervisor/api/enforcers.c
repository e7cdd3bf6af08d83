/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Are egressd, auditd, secretd and the eBPF programs there? The daemons are asked every two seconds; one that does not
 * answer in three is lost. Nothing is leased while one is lost; runs under way are told about in their notes, and the
 * enforcers themselves see to it that nothing gets out meanwhile (egressd's heartbeat, auditd's acknowledgement).
 *
 * Of the eBPF programs, at which anchord may not look, two others speak: systemd says whether anchor-bpf.service (which pinned them) and
 * anchor-warden.service (which watches over them) are active, and the warden's file whether it finds them whole. Both tell of a
 * change by themselves. A run can notice before the warden does, by its anchor-fence: then nothing is leased until
 * the warden had the time to say what it finds, so that what is wrong with the host costs one run and not every queued
 * item its attempts.
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/inotify.h>

#include "api/manager-internal.h"
#include "net/warden.h"
#include "util/io.h"
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

/* ---- the fence ---- */

static void ask_bpf(Manager *m);

#define BPF_SERVICE "anchor-bpf.service"
#define BPF_WARDEN "anchor-warden.service"

enum { WARDEN_STATE_MAX = 4096, SUSPECT_USEC = 10 * 1000 * 1000 };

static const char *active_of(const UnitState *units, size_t n, const char *name) {
        for (size_t i = 0; i < n; i++)
                if (strcmp(units[i].name, name) == 0)
                        return units[i].active;
        return "inactive"; /* not loaded */
}

/* Does the warden find the programs whole? Else the reason. */
static bool warden_content(char reason[static ENFORCER_REASON_SIZE]) {
        _cleanup_json_ json_t *state = NULL;
        _cleanup_free_ char *text = NULL, *safe = NULL;
        const char *why;
        size_t size;
        int r;

        r = io_read_file(AT_FDCWD, WARDEN_STATE, WARDEN_STATE_MAX, &text, &size);
        if (r >= 0)
                r = json_parse(text, size, &state, NULL);
        if (r >= 0 && json_is_true(json_object_get(state, "ok")))
                return true;

        why = json_string_value(json_object_get(state, "reason")) ?: "it has not said so yet";
        safe = text_escape(why, strlen(why), false);
        (void) snprintf(reason, ENFORCER_REASON_SIZE, "the eBPF programs are not whole: %.160s; see systemctl status anchor-warden", safe ?: "?");
        return false;
}

static void on_bpf_listed(int r, const UnitState *units, size_t n, void *userdata) {
        Manager *m = userdata;
        char found[ENFORCER_REASON_SIZE];
        const char *reason = NULL;

        m->enforcers[ENFORCER_BPF].asking = false;
        if (m->bpf_changed) {
                m->bpf_changed = false;
                ask_bpf(m);
                return;
        }

        if (r < 0)
                reason = "systemd does not say whether the eBPF programs are loaded; see systemctl status anchor-bpf";
        else if (strcmp(active_of(units, n, BPF_SERVICE), "active") != 0)
                reason = "the eBPF programs are not loaded; see systemctl status anchor-bpf";
        else if (strcmp(active_of(units, n, BPF_WARDEN), "active") != 0)
                reason = "nobody watches over the eBPF programs; see systemctl status anchor-warden";
        else if (!warden_content(found))
                reason = found;
        else if (m->suspect)
                reason = "a run found the eBPF programs not in force (anchor-fence); see systemctl status anchor-bpf";

        m->bpf_unanswered = r < 0;
        set_state(m, ENFORCER_BPF, !reason, reason);
}

static void ask_bpf(Manager *m) {
        static const char *const patterns[] = { BPF_SERVICE, BPF_WARDEN, NULL };
        int r;

        if (m->enforcers[ENFORCER_BPF].asking) {
                m->bpf_changed = true; /* the answer on its way may be older */
                return;
        }

        m->enforcers[ENFORCER_BPF].asking = true;
        r = units_list(m->units, patterns, on_bpf_listed, m);
        if (r < 0)
                on_bpf_listed(r, NULL, 0, m);
}

static int on_no_suspect(sd_event_source *source, uint64_t usec, void *userdata) {
        Manager *m = userdata;

        m->suspect = sd_event_source_disable_unref(m->suspect);
        ask_bpf(m);
        return 0;
}

/* A run was not fenced. If the programs are not whole, the warden says so within that time. */
static void suspect(Manager *m) {
        int r;

        m->suspect = sd_event_source_disable_unref(m->suspect);
        r = sd_event_add_time_relative(m->event, &m->suspect, CLOCK_MONOTONIC, SUSPECT_USEC, 0, on_no_suspect, m);
        if (r < 0)
                (void) manager_fatal(m, r, "arm a timer");
}

void enforcers_on_unit_changed(Manager *m, const char *unit, const char *active, const char *why) {
        if (strcmp(active, "failed") == 0 && why && strcmp(why, UNITS_NOT_FENCED) == 0)
                suspect(m);
        else if (strcmp(unit, BPF_SERVICE) != 0 && strcmp(unit, BPF_WARDEN) != 0)
                return;

        ask_bpf(m);
}

static int on_warden_file(sd_event_source *source, const struct inotify_event *event, void *userdata) {
        if ((event->mask & IN_Q_OVERFLOW) || (event->len > 0 && strcmp(event->name, strrchr(WARDEN_STATE, '/') + 1) == 0))
                ask_bpf(userdata);
        return 0;
}

int enforcers_start(Manager *m) {
        _cleanup_free_ char *folder = strndup(WARDEN_STATE, (size_t) (strrchr(WARDEN_STATE, '/') - WARDEN_STATE));
        int r;

        if (!folder)
                return -ENOMEM;
        r = sd_event_add_inotify(m->event, &m->warden_file, folder, IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE | IN_ONLYDIR, on_warden_file, m);
        return r < 0 ? r : 0;
}

/* ---- all of them ---- */

static void ping(Manager *m, EnforcerId id) {
        Enforcer *e = &m->enforcers[id];
        int r = 0;

        if (e->asking || id == ENFORCER_BPF)
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
        case ENFORCER_BPF: /* systemd tells */
        default:
                return;
        }

        if (r < 0)
                on_ping(m, id, strerror(-r));
}

void enforcers_tick(Manager *m) {
        for (EnforcerId id = 0; id < _ENFORCER_MAX; id++)
                ping(m, id);
        if (!m->bpf_asked || m->bpf_unanswered) {
                m->bpf_asked = true;
                ask_bpf(m);
        }
}
