/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * io.anchorhold.Manager: what operators may ask and tell. Who they are is the kernel's answer (role
 * operator: root, or a member of anchorhold-operators, and no unit of ours); it is the `requester` and the
 * `actor` of everything that follows. No path is ever opened for a client: bundles come and go as descriptors.
 */

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "api/operator-internal.h"
#include "api/spec.h"
#include "util/json.h"
#include "util/log.h"

enum {
        LIST_DEFAULT = 1000,
        LIST_BYTES = 4 * 1024 * 1024,           /* of one call's answers together: varlink keeps what the reader has not taken, up to sixteen */
        STOP_ALL_WAIT_USEC = 15 * 1000 * 1000,
};

static int no_item(IpcCall *call) {
        return ipc_call_error(call, "NoSuchItem", NULL);
}

/* The item's id from the parameters, or NULL: then the call was answered. */
static const char *item_parameter(IpcCall *call, json_t *params) {
        const char *item = operator_get(params, "item");

        if (item && text_is_id('i', item))
                return item;
        (void) no_item(call);
        return NULL;
}

/* ---- List, Show, Follow, Logs, Result ---- */

typedef struct Listing {
        IpcCall *call;   /* borrowed */
        json_t *held;    /* owned: the last one waits to be the final reply */
        size_t bytes;    /* of all so far */
        bool truncated;
} Listing;

static int on_listed(json_t *row, void *userdata) {
        Listing *l = userdata;
        int r;

        if (l->bytes > LIST_BYTES) {
                l->truncated = true;
                return 1;
        }
        l->bytes += json_dumpb(row, NULL, 0, JSON_COMPACT);
        if (l->held) {
                r = ipc_call_notify(l->call, json_pack("{s:o}", "item", TAKE_PTR(l->held)));
                if (r < 0)
                        return r;
        }
        l->held = json_incref(row);
        return 0;
}

static int read_states(json_t *array, const char **states, size_t max) {
        size_t i, n = 0;
        json_t *value;

        json_array_foreach(array, i, value) {
                const char *name = json_string_value(value);

                if (!name || item_state_from_name(name) < 0 || n + 1 >= max)
                        return -EINVAL;
                states[n++] = name;
        }
        states[n] = NULL;
        return 0;
}

static int on_list(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        const char *states[_ITEM_STATE_MAX + 1] = {}, *after = operator_get(params, "after");
        json_t *limit_value = json_object_get(params, "limit");
        uint64_t limit = json_is_integer(limit_value) ? (uint64_t) json_integer_value(limit_value) : LIST_DEFAULT;
        Listing l = { .call = call };
        int r;

        if (!ipc_call_wants_more(call))
                return operator_bad_input(call, "/", "List must be called with `more`");
        if (limit == 0 || limit > 10000)
                return operator_bad_input(call, "/limit", "must be between 1 and 10000");
        if (after && !text_is_id('i', after))
                return operator_bad_input(call, "/after", "not an item id");
        if (read_states(json_object_get(params, "states"), states, ELEMENTSOF(states)) < 0)
                return operator_bad_input(call, "/states", "no such state");

        r = ledger_list(m->ledger, states[0] ? states : NULL, after, limit, on_listed, &l);
        if (r < 0) {
                (void) json_unref(l.held);
                return r;
        }
        return ipc_call_reply(call, l.held ? json_pack("{s:o, s:o*}", "item", l.held, "truncated", l.truncated ? json_true() : NULL) : json_object());
}

/* An item that nothing more is done for waits for no enforcer. */
static bool may_still_wait(const char *state) {
        switch (state ? item_state_from_name(state) : -EINVAL) {
        case ITEM_QUEUED:
        case ITEM_LEASED:
        case ITEM_RUNNING:
        case ITEM_VERIFYING:
                return true;
        default:
                return false;
        }
}

static int on_show(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        const char *item = item_parameter(call, params), *reason = NULL;
        _cleanup_json_ json_t *budget = NULL;
        json_t *object;
        Flow *f;
        int r;

        if (!item)
                return 0;
        r = ledger_show(m->ledger, item, &object);
        if (r == LEDGER_E_NOT_FOUND)
                return no_item(call);
        if (r < 0)
                return r;

        /* what goes on now, which no row has */
        f = flow_find_item(m, item);
        if (f)
                (void) json_object_set_new(object, "now", json_pack("{s:s, s:s, s:s, s:b}", "run", flow_run(f), "stage", flow_stage(f),
                                                                    "phase", flow_state_name(f), "stopping", flow_is_stopping(f)));
        budget = budget_of_item(m, item, operator_get(object, "workflow"));
        if (json_object_size(budget) > 0)
                (void) json_object_set(object, "budget", budget);
        if (may_still_wait(operator_get(object, "state")) && !enforcers_ok(m, &reason))
                (void) json_object_set_new(object, "enforcers", json_string(reason));
        if (policy_host_reason(m->policy) && strcmp(operator_get(object, "state") ?: "", item_state_name(ITEM_QUEUED)) == 0)
                (void) json_object_set_new(object, "host_problem", json_string(policy_host_reason(m->policy)));
        if (m->space.reason[0] && strcmp(operator_get(object, "state") ?: "", item_state_name(ITEM_QUEUED)) == 0)
                (void) json_object_set_new(object, "space", json_string(m->space.reason));
        return ipc_call_reply(call, json_pack("{s:o}", "item", object));
}

static int on_cost(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        const char *item = operator_get(params, "item"), *by = operator_get(params, "by");
        json_t *since = json_object_get(params, "since_usec"), *rows;
        _cleanup_item_ LedgerItem found = {};
        LedgerCostBy kind = item ? LEDGER_COST_BY_RUN : LEDGER_COST_BY_ITEM;
        int r;

        if (by)
                for (kind = 0; kind < _LEDGER_COST_BY_MAX && strcmp(by, ledger_cost_by_name(kind)) != 0;)
                        kind++;
        if (kind == _LEDGER_COST_BY_MAX)
                return operator_bad_input(call, "/by", "not one of run, item, workflow, day, model");
        if (since && (!json_is_integer(since) || json_integer_value(since) < 0))
                return operator_bad_input(call, "/since_usec", "must be microseconds since the epoch");
        if (item) {
                r = text_is_id('i', item) ? ledger_get(m->ledger, item, &found) : LEDGER_E_NOT_FOUND;
                if (r == LEDGER_E_NOT_FOUND)
                        return no_item(call);
                if (r < 0)
                        return r;
        }

        r = ledger_cost(m->ledger, kind, item, (uint64_t) json_integer_value(since), &rows);
        if (r < 0)
                return r;
        return ipc_call_reply(call, json_pack("{s:s, s:b, s:o}", "by", ledger_cost_by_name(kind),
                                              "truncated", json_array_size(rows) == LEDGER_COST_ROWS_MAX, "rows", rows));
}

static int start_events(Manager *m, IpcCall *call, json_t *params, bool follow) {
        const char *item = item_parameter(call, params), *run = operator_get(params, "run");
        _cleanup_item_ LedgerItem found = {};
        json_int_t from = json_integer_value(json_object_get(params, "from"));
        int r;

        if (!item)
                return 0;
        if (!ipc_call_wants_more(call))
                return operator_bad_input(call, "/", "must be called with `more`");
        if (run && !text_is_id('r', run))
                return ipc_call_error(call, "NoSuchRun", NULL);

        r = ledger_get(m->ledger, item, &found);
        if (r == LEDGER_E_NOT_FOUND)
                return no_item(call);
        if (r < 0)
                return r;

        if (prune_refuse(m, call, item, LEDGER_PART_LOGS))
                return 0;

        /* makes the file and catches up, if it was never opened in this life */
        if (!manager_log(m, item))
                return -EIO;
        if (item_state_is_end(found.state) && !flow_find_item(m, item))
                manager_close_log(m, item);
        return follower_add(m, call, item, run, from > 0 ? (uint64_t) from : 0, follow);
}

static int on_follow(IpcCall *call, json_t *params, void *userdata) {
        return start_events(userdata, call, params, true);
}

static int on_logs(IpcCall *call, json_t *params, void *userdata) {
        return start_events(userdata, call, params, false);
}

static int on_result(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        const char *item = item_parameter(call, params), *what = operator_get(params, "what");
        int fd, r;

        if (!item)
                return 0;
        if (!what || (strcmp(what, "bundle") != 0 && strcmp(what, "diff") != 0))
                return operator_bad_input(call, "/what", "neither bundle nor diff");

        if (prune_refuse(m, call, item, LEDGER_PART_BUNDLES))
                return 0;
        fd = store_open_file(m->store, item, strcmp(what, "bundle") == 0 ? STORE_CHECKED : STORE_DIFF);
        if (fd == -ENOENT) {
                _cleanup_item_ LedgerItem found = {};

                if (ledger_get(m->ledger, item, &found) == LEDGER_E_NOT_FOUND)
                        return no_item(call);
                return ipc_call_refuse(call, "Conflict", "%s is %s and has no checked result", item, item_state_name(found.state));
        }
        if (fd < 0)
                return fd;

        r = ipc_call_push_fd(call, fd);
        if (r < 0) {
                (void) fd_close(fd);
                return r;
        }
        return ipc_call_reply(call, NULL);
}

/* ---- Stop, StopAll, Hold ---- */

static char *stop_reason(IpcCall *call, json_t *params) {
        const char *given = operator_get(params, "reason");
        _cleanup_free_ char *text = NULL;
        char actor[64];

        text = given ? text_escape(given, strnlen(given, OPERATOR_REASON_MAX), false) : NULL;
        return text ? text_format("stopped by %s: %s", peer_name(ipc_call_peer(call), actor), text)
                    : text_format("stopped by %s", peer_name(ipc_call_peer(call), actor));
}

static int on_stop(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        const char *item = item_parameter(call, params);
        _cleanup_item_ LedgerItem found = {};
        _cleanup_free_ char *reason = stop_reason(call, params);
        char actor[64];
        Flow *f;
        int r;

        if (!item)
                return 0;
        if (!m->settled)
                return operator_wait(m, call, params, on_stop);
        if (!reason)
                return -ENOMEM;
        r = ledger_get(m->ledger, item, &found);
        if (r == LEDGER_E_NOT_FOUND)
                return no_item(call);
        if (r < 0)
                return r;

        f = flow_find_item(m, item);
        if (f) {
                r = flow_stop(f, reason);
                return r < 0 ? r : ipc_call_reply(call, NULL);
        }

        r = manager_transition(m, &(LedgerChange) {
                        .item = item, .revision = found.revision, .to = ITEM_CANCELLED,
                        .actor = peer_name(ipc_call_peer(call), actor), .reason = reason,
                });
        if (r == LEDGER_E_ILLEGAL)
                return ipc_call_refuse(call, "Conflict", "%s is %s, there is nothing to stop", item, item_state_name(found.state));
        if (r != 0)
                return r < 0 ? r : ipc_call_refuse(call, "Conflict", "%s changed meanwhile, try again", item);
        return ipc_call_reply(call, NULL);
}

struct StopAll {
        StopAll *next;
        Manager *manager;        /* borrowed */
        IpcCall *call;           /* ref */
        json_t *items;           /* owned */
        sd_event_source *timer;  /* owned */
};

static void stop_all_answer(StopAll *s) {
        for (StopAll **p = &s->manager->stop_alls; *p; p = &(*p)->next)
                if (*p == s) {
                        *p = s->next;
                        break;
                }

        (void) ipc_call_reply(s->call, json_pack("{s:o}", "stopped", TAKE_PTR(s->items)));
        (void) ipc_call_unref(s->call);
        s->timer = sd_event_source_disable_unref(s->timer);
        free(s);
}

void stop_alls_check(Manager *m) {
        for (Flow *f = m->flows; f; f = flow_next_of(f))
                if (flow_is_stopping(f))
                        return;
        while (m->stop_alls)
                stop_all_answer(m->stop_alls);
}

void stop_alls_free(Manager *m) {
        while (m->stop_alls)
                stop_all_answer(m->stop_alls);
}

static int on_stop_all_timeout(sd_event_source *source, uint64_t usec, void *userdata) {
        stop_all_answer(userdata);
        return 0;
}

static int set_hold(Manager *m, IpcCall *call, bool on, const char *reason) {
        char actor[64];
        int r;

        r = ledger_hold_set(m->ledger, on, peer_name(ipc_call_peer(call), actor), reason);
        if (r < 0)
                return manager_fatal(m, r, "set the hold");
        log_notice("hold %s by %s", on ? "set" : "released", peer_name(ipc_call_peer(call), actor));
        outbox_kick(m);
        scheduler_kick(m);
        return 0;
}

static int stop_all(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        _cleanup_free_ char *reason = stop_reason(call, params);
        _cleanup_json_ json_t *items = json_array();
        StopAll *s;
        int r = 0;

        if (!reason || !items)
                return -ENOMEM;
        for (Flow *f = m->flows, *next; f && r >= 0; f = next) {
                next = flow_next_of(f);
                (void) json_array_append_new(items, json_string(flow_item(f)));
                r = flow_stop(f, reason);
        }
        if (r < 0)
                return r;

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (StopAll) { .next = m->stop_alls, .manager = m, .call = ipc_call_ref(call), .items = TAKE_PTR(items) };
        m->stop_alls = s;
        if (sd_event_add_time_relative(m->event, &s->timer, CLOCK_MONOTONIC, STOP_ALL_WAIT_USEC, 0, on_stop_all_timeout, s) < 0)
                stop_all_answer(s);
        else
                stop_alls_check(m);
        return 0;
}

static int on_stop_all(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;

        if (json_is_true(json_object_get(params, "hold"))) {
                _cleanup_free_ char *reason = stop_reason(call, params);
                int r;

                r = reason ? set_hold(m, call, true, reason) : -ENOMEM;
                if (r < 0)
                        return r;
        }
        return m->settled ? stop_all(call, params, m) : operator_wait(m, call, params, stop_all);
}

static int on_hold(IpcCall *call, json_t *params, void *userdata) {
        const char *reason = operator_get(params, "reason");
        json_t *on = json_object_get(params, "on");
        int r;

        if (!json_is_boolean(on))
                return operator_bad_input(call, "/on", "not a boolean");
        if (reason && strlen(reason) > OPERATOR_REASON_MAX)
                return operator_bad_input(call, "/reason", "too long");
        r = set_hold(userdata, call, json_is_true(on), reason);
        return r < 0 ? r : ipc_call_reply(call, NULL);
}

/* ---- Status ---- */

static json_t *status_enforcers(Manager *m) {
        json_t *object = json_object();

        for (EnforcerId id = 0; object && id < _ENFORCER_MAX; id++)
                (void) json_object_set_new(object, enforcer_name(id), json_string(m->enforcers[id].ok ? "ok" : m->enforcers[id].reason));
        return object;
}

static json_t *status_templates(Manager *m) {
        json_t *object = json_object();
        const char *const *names = NULL;
        size_t n = policy_list(m->policy, "workflows", &names);

        for (size_t i = 0; object && i < n; i++) {
                _cleanup_json_ json_t *manifest = NULL;
                const PolicyWorkflow *w = policy_find_workflow(m->policy, names[i], NULL);

                if (!w || json_object_get(object, w->template_name))
                        continue;
                if (template_load(w->template_name, &manifest, NULL) < 0)
                        (void) json_object_set_new(object, w->template_name, json_null());
                else
                        (void) json_object_set(object, w->template_name, json_object_get(manifest, "digest"));
        }
        return object;
}

static json_t *status_runs(Manager *m) {
        json_t *array = json_array();

        for (Flow *f = m->flows; array && f; f = flow_next_of(f))
                (void) json_array_append_new(array, json_pack("{s:s, s:s, s:s, s:s}", "item", flow_item(f), "run", flow_run(f),
                                                              "stage", flow_stage(f), "phase", flow_state_name(f)));
        return array;
}

static json_int_t status_waiting(Manager *m) {
        json_int_t n = 0;

        for (Flow *f = m->flows; f; f = flow_next_of(f))
                n += flow_is_waiting(f);
        return n;
}

static int on_status(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        _cleanup_json_ json_t *counts = NULL;
        _cleanup_free_ char *why = NULL;
        const char *configured = policy_host(m->policy)->accel;
        Accel accel = {};
        int64_t waiting;
        bool held;
        int r;

        r = ledger_counts(m->ledger, &counts);
        if (r >= 0)
                r = ledger_hold_get(m->ledger, &held, &why);
        if (r >= 0)
                r = ledger_outbox_count(m->ledger, &waiting);
        if (r < 0)
                return r;
        (void) accel_read(configured, &accel);

        return ipc_call_reply(call, json_pack(
                "{s:b, s:b, s:s?, s:o, s:o, s:o, s:s?, s:O, s:o, s:{s:s, s:s?, s:s?, s:I, s:I}, s:o, s:o, s:I, s:I, s:I, s:s, s:I}",
                "ready", m->settled, "hold", held, "hold_reason", held ? why : NULL, "drain", drain_status(m), "site_policy", site_policy_status(m),
                "space", space_status(m), "host_problem", policy_host_reason(m->policy), "counts", counts, "enforcers", status_enforcers(m),
                "accelerator", "configured", configured, "accel", accel.known ? (accel.tcg ? "tcg" : "kvm") : NULL,
                "reason", accel.reason[0] ? accel.reason : NULL,
                "probe_ms", (json_int_t) accel.probe_ms,
                "boot_timeout_s", (json_int_t) spec_boot_timeout_s(policy_host(m->policy)->boot_timeout_s, accel.tcg),
                "templates", status_templates(m), "runs", status_runs(m), "max_runs", (json_int_t) policy_host(m->policy)->max_runs,
                "verify_waiting", status_waiting(m), "audit_waiting", (json_int_t) waiting,
                "policy", m->policy_digest, "policy_findings", (json_int_t) m->n_findings));
}

const IpcMethod operator_methods[] = {
        { "io.anchorhold.Manager.Submit", PEER_OPERATOR, operator_on_submit },
        { "io.anchorhold.Manager.List", PEER_OPERATOR, on_list },
        { "io.anchorhold.Manager.Show", PEER_OPERATOR, on_show },
        { "io.anchorhold.Manager.Cost", PEER_OPERATOR, on_cost },
        { "io.anchorhold.Manager.Follow", PEER_OPERATOR, on_follow },
        { "io.anchorhold.Manager.Logs", PEER_OPERATOR, on_logs },
        { "io.anchorhold.Manager.Result", PEER_OPERATOR, on_result },
        { "io.anchorhold.Manager.Stop", PEER_OPERATOR, on_stop },
        { "io.anchorhold.Manager.StopAll", PEER_OPERATOR, on_stop_all },
        { "io.anchorhold.Manager.Hold", PEER_OPERATOR, on_hold },
        { "io.anchorhold.Manager.Drain", PEER_OPERATOR, drain_on_drain },
        { "io.anchorhold.Manager.Undrain", PEER_OPERATOR, drain_on_undrain },
        { "io.anchorhold.Manager.AcceptPolicy", PEER_OPERATOR, site_policy_on_accept },
        { "io.anchorhold.Manager.Prune", PEER_OPERATOR, prune_on_prune },
        { "io.anchorhold.Manager.Status", PEER_OPERATOR, on_status },
        {},
};
