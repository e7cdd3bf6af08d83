/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchord's context. It owns every object and the order in which they come to life: policy and ledger
 * first, then the ways to the other daemons and to systemd, then the sockets; operators are served from the
 * beginning, but nothing is leased before what an earlier life left behind is settled. What the units of a run ask waits until then: before,
 * their run would be none that is known. So does what operators want done to runs and items (operator-wait.c).
 *
 * A change of an item goes through manager_transition() alone: the ledger decides, and with it, in one
 * transaction, history and audit outbox; the event log follows. If anchord dies in between, the log lacks that
 * state, and gets it when it is next opened.
 *
 * What cannot be written to the ledger cannot be decided: manager_fatal() ends the process, systemd starts it
 * anew, and the units of the runs go on meanwhile.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-id128.h>

#include "api/manager-internal.h"
#include "util/json.h"
#include "util/log.h"

#define SETTLE_WAIT_USEC (60 * USEC_PER_SEC) /* longer than systemd may take to list its units, less than anchorctl waits */
#define REGISTER_AGAIN_USEC (10 * USEC_PER_SEC)
#define REGISTER_WAIT_USEC (3600 * USEC_PER_SEC) /* for somebody who mends a file of policy */

struct OpenLog {
        OpenLog *next;
        char item[ID_LENGTH + 1];
        EventLog *log; /* owned */
};

int manager_fatal(Manager *m, int error, const char *what) {
        log_error_errno(error, "cannot %s, ending: %s", what, m->ledger ? ledger_error(m->ledger) : "-");
        (void) sd_event_exit(m->event, error < 0 ? error : -EIO);
        return error < 0 ? error : -EIO;
}

/* ---- event logs ---- */

static void log_free(OpenLog *l) {
        (void) event_log_close(l->log);
        free(l);
}

void manager_close_log(Manager *m, const char *item) {
        for (OpenLog **p = &m->logs; *p; p = &(*p)->next)
                if (strcmp((*p)->item, item) == 0) {
                        OpenLog *l = *p;

                        *p = l->next;
                        (void) event_log_sync(l->log);
                        log_free(l);
                        return;
                }
}

static int append_event(Manager *m, OpenLog *l, const char *type, json_t *data) {
        int r;

        r = event_log_append(l->log, type, data);
        if (r < 0)
                log_warning_errno(r, "%s: cannot write its events", l->item);
        followers_wake(m);
        return r;
}

static int append_state(Manager *m, OpenLog *l, const char *from, const char *to, const char *reason, const char *run, int64_t revision, int64_t notes) {
        return append_event(m, l, "state", json_pack("{s:s*, s:s, s:s, s:s?, s:s?, s:I, s:I}", "from", from, "to", to, "state", to, "reason", reason,
                                                     "run", run, "revision", (json_int_t) revision, "notes", (json_int_t) notes));
}

static int64_t last_of(const json_t *rows, const char *key) {
        return json_integer_value(json_object_get(json_array_get(rows, json_array_size(rows) - 1), key));
}

/* An older anchord wrote last, and not how far it was: where the item stands, and what comes from here on. */
static void begin_anew(Manager *m, OpenLog *l, const json_t *states, const json_t *notes) {
        const json_t *last = json_array_get(states, json_array_size(states) - 1);
        const char *to = json_string_value(json_object_get(last, "to"));
        int64_t revision = last_of(states, "revision"), note = last_of(notes, "id");
        _cleanup_free_ char *from = strdup(event_log_last_state(l->log));

        event_log_set_told(l->log, revision, note);
        if (to && from && strcmp(from, to) != 0)
                (void) append_state(m, l, from, to, json_string_value(json_object_get(last, "reason")), json_string_value(json_object_get(last, "run")), revision, note);
}

/* What the ledger has and its log has not: what happened just now, and what an earlier life did not get to. */
static void catch_up(Manager *m, OpenLog *l) {
        _cleanup_json_ json_t *states = NULL, *notes = NULL;
        int64_t revision, note;
        json_t *row;
        bool known;
        size_t i;

        known = event_log_told(l->log, &revision, &note);
        if (ledger_story(m->ledger, l->item, known ? revision : 0, known ? note : 0, &states, &notes) < 0)
                return; /* whatever comes next says more */
        if (!known) {
                begin_anew(m, l, states, notes);
                return;
        }

        /* what cannot be written now comes first the next time */
        json_array_foreach(states, i, row)
                if (append_state(m, l, json_string_value(json_object_get(row, "from")), json_string_value(json_object_get(row, "to")),
                                 json_string_value(json_object_get(row, "reason")), json_string_value(json_object_get(row, "run")),
                                 json_integer_value(json_object_get(row, "revision")), note) < 0)
                        return;
        json_array_foreach(notes, i, row)
                if (append_event(m, l, "note", json_incref(row)) < 0)
                        return;
}

static OpenLog *log_open(Manager *m, const char *item) {
        _cleanup_fd_ int dir = -1;
        OpenLog *l;
        int r;

        for (l = m->logs; l; l = l->next)
                if (strcmp(l->item, item) == 0)
                        return l;

        l = calloc(1, sizeof(*l));
        if (!l) {
                log_oom();
                return NULL;
        }
        dir = store_open_item(m->store, item, true);
        r = dir < 0 ? dir : event_log_open(&l->log, dir, STORE_EVENTS);
        if (r < 0) {
                log_error_errno(r, "%s: cannot open its events", item);
                free(l);
                return NULL;
        }
        if (r == EVENT_LOG_E_CUT)
                log_warning("%s: its events could not be read to their end; the rest was cut off", item);

        (void) snprintf(l->item, sizeof(l->item), "%s", item);
        l->next = m->logs;
        m->logs = l;
        catch_up(m, l);
        return l;
}

EventLog *manager_log(Manager *m, const char *item) {
        OpenLog *l = log_open(m, item);

        return l ? l->log : NULL;
}

void manager_event(Manager *m, const char *item, const char *type, json_t *data) {
        OpenLog *l = log_open(m, item);

        if (l)
                (void) append_event(m, l, type, data);
        else
                json_decref(data);
}

void manager_tell(Manager *m, const char *item) {
        OpenLog *l = log_open(m, item);

        if (l)
                catch_up(m, l);
}

int manager_keep(Manager *m, const char *item, const char *run, const char *kind, const char *text) {
        int r;

        log_notice("%s: %s: %s", item, kind, text);
        r = ledger_add_note(m->ledger, item, run, kind, text);
        if (r < 0)
                return manager_fatal(m, r, "write a note");
        manager_tell(m, item);
        return 0;
}

void manager_note(Manager *m, const char *item, const char *run, const char *kind, const char *format, ...) {
        _cleanup_free_ char *text = NULL;
        va_list ap;
        int n;

        va_start(ap, format);
        n = vasprintf(&text, format, ap);
        va_end(ap);
        if (n < 0) {
                text = NULL;
                return;
        }
        (void) manager_keep(m, item, run, kind, text);
}

/* ---- changes of items ---- */

int manager_transition(Manager *m, const LedgerChange *c) {
        _cleanup_item_ LedgerItem before = {}, after = {};
        int r;

        r = ledger_get(m->ledger, c->item, &before);
        if (r == 0)
                r = ledger_transition(m->ledger, c, NULL);
        if (r == 0)
                r = ledger_get(m->ledger, c->item, &after);
        if (r < 0)
                return manager_fatal(m, r, "change an item");
        if (r > 0) {
                log_warning("%s: cannot go from %s to %s: %s", c->item, item_state_name(before.state), item_state_name(c->to),
                            r == LEDGER_E_ILLEGAL ? ledger_error(m->ledger) : r == LEDGER_E_STALE ? "the lease is not ours any more" : "it changed meanwhile");
                return r;
        }

        if (after.state != before.state) {
                log_info("%s: %s → %s%s%s", c->item, item_state_name(before.state), item_state_name(after.state), c->reason ? ": " : "", c->reason ?: "");
                manager_tell(m, c->item);
        }
        outbox_kick(m);
        if (after.state == ITEM_QUEUED)
                scheduler_kick(m);
        if (item_state_is_end(after.state) && !flow_find_item(m, c->item))
                manager_close_log(m, c->item);
        return 0;
}

void manager_after_failure(Manager *m, const char *item) {
        _cleanup_item_ LedgerItem i = {};
        LedgerChange c = { .item = item, .actor = "anchord" };

        if (ledger_get(m->ledger, item, &i) != 0 || i.state != ITEM_FAILED)
                return;

        c.revision = i.revision;
        if (i.attempt < i.max_attempts && !ledger_reason_is_over_budget(i.reason)) {
                c.to = ITEM_QUEUED;
                c.reason = "next attempt";
                /* 5 s, 20 s, 80 s, …: what is broken gets time to be mended */
                c.not_before_usec = (int64_t) (time_realtime() + (5 * USEC_PER_SEC << (i.attempt > 5 ? 10 : 2 * (i.attempt - 1))));
        } else {
                c.to = ITEM_EXHAUSTED;
                c.reason = i.reason;
        }
        (void) manager_transition(m, &c);
}

/* ---- life ---- */

static void on_bus_lost(void *userdata) {
        Manager *m = userdata;

        log_error("the connection to systemd is gone, ending to start anew");
        (void) sd_event_exit(m->event, -ECONNRESET);
}

static void on_unit_job(const char *unit, uint32_t job, bool queued, void *userdata) {
        flows_on_unit_job(userdata, unit, job, queued);
}

static void on_unit_changed(const char *unit, const char *active, const char *why, void *userdata) {
        enforcers_on_unit_changed(userdata, unit, active, why);
        flows_on_unit_changed(userdata, unit, active, why);
}

int manager_new(Manager **ret, sd_event *event) {
        _cleanup_(manager_freep) Manager *m = NULL;
        sd_id128_t boot;
        int r;

        m = calloc(1, sizeof(*m));
        if (!m)
                return -ENOMEM;
        m->event = sd_event_ref(event);
        m->settle_wait_usec = SETTLE_WAIT_USEC;
        m->register_again_usec = REGISTER_AGAIN_USEC;
        m->register_wait_usec = REGISTER_WAIT_USEC;
        for (EnforcerId id = 0; id < _ENFORCER_MAX; id++)
                (void) snprintf(m->enforcers[id].reason, sizeof(m->enforcers[id].reason), "%s was not asked yet", enforcer_name(id));

        r = sd_id128_get_boot(&boot);
        if (r < 0)
                return r;
        (void) sd_id128_to_string(boot, m->boot_id);

        *ret = TAKE_PTR(m);
        return 0;
}

Manager *manager_free(Manager *m) {
        if (!m)
                return NULL;

        operator_waits_free(m);
        stop_alls_free(m);
        prune_free(m);
        followers_free(m);
        m->operators = ipc_server_free(m->operators);
        m->runs = ipc_server_free(m->runs);
        m->specs = credential_server_free(m->specs);
        while (m->flows)
                (void) flow_free(m->flows);
        m->units = units_free(m->units);
        m->egress = ipc_client_free(m->egress);
        m->secret = ipc_client_free(m->secret);
        m->egress_ping = ipc_client_free(m->egress_ping);
        m->secret_ping = ipc_client_free(m->secret_ping);
        flow_asks_free(m);
        revocations_free(m);
        m->audit = audit_client_free(m->audit);
        while (m->logs) {
                OpenLog *l = m->logs;

                m->logs = l->next;
                (void) event_log_sync(l->log);
                log_free(l);
        }
        m->store = store_free(m->store);
        endings_free(m);
        if (m->ledger && m->settled)
                (void) site_policy_look(m);
        m->ledger = ledger_close(m->ledger);
        manager_policy_done(m);
        m->schedule = sd_event_source_disable_unref(m->schedule);
        m->suspect = sd_event_source_disable_unref(m->suspect);
        m->warden_file = sd_event_source_disable_unref(m->warden_file);
        m->pump = sd_event_source_disable_unref(m->pump);
        m->tick = sd_event_source_disable_unref(m->tick);
        m->outbox_retry = sd_event_source_disable_unref(m->outbox_retry);
        sd_event_unref(m->event);
        free(m);
        return NULL;
}

static int start_ledger(Manager *m) {
        int r;

        r = ledger_open(&m->ledger, LEDGER_PATH);
        if (r == -EPROTO)
                return log_error_errno(r, "the ledger " LEDGER_PATH " is of another version of its schema: it was written by a newer image, and only such a one can use it");
        if (r < 0)
                return log_error_errno(r, "cannot open the ledger " LEDGER_PATH);
        r = store_new(&m->store, m->event, ITEMS_PATH);
        if (r < 0)
                return log_error_errno(r, "cannot open " ITEMS_PATH);
        return manager_load_policy(m);
}

static int start_peers(Manager *m) {
        int r;

        r = background_new(&m->background, m->event, 1);
        if (r >= 0)
                r = audit_client_new(&m->audit, m->event);
        if (r >= 0)
                r = ipc_client_new(&m->egress, m->event, EGRESS_SOCKET);
        if (r >= 0)
                r = ipc_client_new(&m->egress_ping, m->event, EGRESS_SOCKET);
        if (r >= 0)
                r = ipc_client_new(&m->secret, m->event, SECRET_SOCKET);
        if (r >= 0)
                r = ipc_client_new(&m->secret_ping, m->event, SECRET_SOCKET);
        if (r < 0)
                return log_error_errno(r, "cannot set up the ways to the other daemons");

        r = units_new(&m->units, m->event, on_unit_changed, on_unit_job, on_bus_lost, m);
        if (r < 0)
                return log_error_errno(r, "cannot reach systemd over D-Bus");
        r = enforcers_start(m);
        if (r < 0)
                return log_error_errno(r, "cannot watch the warden's file");
        return 0;
}

/* The descriptor that systemd passed under this name, or -ENOENT. */
static int find_listen_fd(const char *name) {
        char **names = NULL;
        int n, fd = -ENOENT;

        n = sd_listen_fds_with_names(false, &names);
        for (int i = 0; i < n; i++) {
                if (strcmp(names[i], name) == 0)
                        fd = SD_LISTEN_FDS_START + i;
                free(names[i]);
        }
        free(names);
        return n < 0 ? n : fd;
}

static int start_sockets(Manager *m) {
        int r;

        r = ipc_server_new(&m->operators, m->event, operator_methods, m);
        if (r >= 0)
                r = ipc_server_listen_systemd(m->operators, "api");
        if (r < 0)
                return log_error_errno(r, "cannot serve api.sock (is this started by anchord.socket?)");
        return 0;
}

int manager_serve_runs(Manager *m) {
        int r, fd;

        r = ipc_server_new(&m->runs, m->event, run_methods, m);
        if (r >= 0)
                r = ipc_server_listen_systemd(m->runs, "run-api");
        if (r < 0)
                return log_error_errno(r, "cannot serve run-api.sock (is this started by anchord-run.socket?)");

        fd = find_listen_fd("spec");
        r = fd < 0 ? fd : credential_server_new(&m->specs, m->event, fd, run_api_credential, run_api_credential_denied, m);
        if (r < 0)
                return log_error_errno(r, "cannot serve spec.sock (is this started by anchord-spec.socket?)");
        return 0;
}

int manager_start(Manager *m) {
        int r;

        r = start_ledger(m);
        if (r < 0)
                return r;
        r = start_peers(m);
        if (r < 0)
                return r;
        r = start_sockets(m);
        if (r < 0)
                return r;

        r = scheduler_start(m);
        if (r < 0)
                return log_error_errno(r, "cannot ask systemd for its units");
        return 0;
}
