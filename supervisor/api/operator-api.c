/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * io.anchorhold.Manager: what operators may ask and tell. Who they are is the kernel's answer (role
 * operator: root, or a member of anchorhold-operators, and no unit of ours); it is the `requester` and the
 * `actor` of everything that follows. No path is ever opened for a client: bundles come and go as descriptors.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/manager-internal.h"
#include "api/spec.h"
#include "util/json.h"
#include "util/log.h"

enum {
        SEED_HEAD_SIZE = 64 * 1024,
        LIST_DEFAULT = 1000,
        LIST_PAGE = 500,
        STOP_ALL_WAIT_USEC = 15 * 1000 * 1000,
        REASON_MAX = 1024,
};

static const char *get(json_t *params, const char *key) {
        return json_string_value(json_object_get(params, key));
}

static int bad_input(IpcCall *call, const char *pointer, const char *reason) {
        return ipc_call_error(call, "BadInput", json_pack("{s:s, s:s}", "pointer", pointer, "reason", reason));
}

static int no_item(IpcCall *call) {
        return ipc_call_error(call, "NoSuchItem", NULL);
}

/* The item's id from the parameters, or NULL: then the call was answered. */
static const char *item_parameter(IpcCall *call, json_t *params) {
        const char *item = get(params, "item");

        if (item && text_is_id('i', item))
                return item;
        (void) no_item(call);
        return NULL;
}

/* ---- Submit ---- */

typedef struct Submitting {
        Manager *manager; /* borrowed */
        IpcCall *call;    /* ref */
        char item[ID_LENGTH + 1];
        json_t *params;   /* owned */
        char *workflow_digest, *template_name, *template_digest, *agent, *command, *options; /* owned */
        int64_t max_attempts;
        bool repository;
} Submitting;

static Submitting *submitting_free(Submitting *s) {
        if (!s)
                return NULL;

        (void) ipc_call_unref(s->call);
        (void) json_unref(s->params);
        free(s->workflow_digest);
        free(s->template_name);
        free(s->template_digest);
        free(s->agent);
        free(s->command);
        free(s->options);
        free(s);
        return NULL;
}
DEFINE_CLEANUP(Submitting *, submitting_free)

static const char *reason_of(int r) {
        switch (r) {
        case -EFBIG:
                return "the seed bundle is larger than the workflow allows";
        case -EMEDIUMTYPE:
                return "the seed bundle must be a regular file";
        default:
                return strerror(-r);
        }
}

/* The seed is on disk (or none is needed): the item comes into being. */
static void submit_complete(Submitting *submitting, int error) {
        _cleanup_(submitting_freep) Submitting *s = submitting;
        Manager *m = s->manager;
        char actor[64];
        int r;

        if (error < 0) {
                (void) store_remove(m->store, s->item, NULL);
                (void) ipc_call_error(s->call, error == -EFBIG || error == -EMEDIUMTYPE ? "BadInput" : "Unavailable",
                                      json_pack("{s:s, s:s}", "pointer", "/", "reason", reason_of(error)));
                return;
        }

        r = ledger_submit(m->ledger, &(LedgerSubmission) {
                        .id = s->item,
                        .requester = peer_name(ipc_call_peer(s->call), actor),
                        .source = get(s->params, "source"),
                        .workflow = get(s->params, "workflow"),
                        .workflow_digest = s->workflow_digest,
                        .repository = s->repository ? get(s->params, "repo") ?: "unnamed" : NULL,
                        .base = get(s->params, "base"),
                        .task = get(s->params, "task"),
                        .command = s->command,
                        .options = s->options,
                        .template_name = s->template_name,
                        .template_digest = s->template_digest,
                        .agent = s->agent,
                        .max_attempts = s->max_attempts,
                });
        if (r < 0) {
                (void) ipc_call_refuse(s->call, "Unavailable", "the ledger cannot be written");
                (void) manager_fatal(m, r, "submit an item");
                return;
        }

        if (r == 0) {
                manager_event(m, s->item, "state", json_pack("{s:s, s:s}", "to", "submitted", "state", "submitted"));
                (void) manager_transition(m, &(LedgerChange) { .item = s->item, .revision = 1, .to = ITEM_QUEUED, .actor = "anchord" });
        } else {
                (void) manager_log(m, s->item); /* catches up with `duplicate` */
                manager_close_log(m, s->item);
        }
        outbox_kick(m);
        (void) ipc_call_reply(s->call, json_pack("{s:s}", "item", s->item));
}

static void on_seed_stored(int r, void *userdata) {
        submit_complete(userdata, r);
}

/* NULL if the descriptor begins like the seed that it should be. */
static const char *check_seed(int fd, const char *base) {
        _cleanup_free_ char *head = NULL;
        struct stat st;
        ssize_t n;

        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                return "the seed bundle must be a regular file";
        head = malloc(SEED_HEAD_SIZE);
        if (!head)
                return "out of memory";
        n = pread(fd, head, SEED_HEAD_SIZE, 0);
        return n < 0 ? "the seed bundle cannot be read" : spec_check_seed(head, (size_t) n, base);
}

/* Why the workflow cannot be used: unknown, or its file (or one that it names) has a finding. */
static int refuse_workflow(IpcCall *call, Manager *m, const char *name, const char *reason) {
        _cleanup_free_ char *tail = text_format("workflows/%s.json", name);
        const PolicyFinding *found = NULL;
        bool exists = false;
        size_t length;

        if (!tail)
                return -ENOMEM;
        length = strlen(tail);
        for (size_t i = 0; i < m->n_findings && !found; i++) {
                size_t n = strlen(m->findings[i].file);

                if (n >= length && strcmp(m->findings[i].file + n - length, tail) == 0)
                        found = &m->findings[i];
        }
        exists = found || (reason && !strstr(reason, "no workflow of that name"));
        if (!exists)
                return ipc_call_error(call, "NoSuchWorkflow", json_pack("{s:s}", "workflow", name));

        return ipc_call_error(call, "BadInput", json_pack("{s:s, s:s, s:s}", "file", found ? found->file : tail,
                                                          "pointer", found && found->pointer ? found->pointer : "",
                                                          "reason", found ? found->reason : reason));
}

static int fill_from_policy(Submitting *s, const PolicyWorkflow *w, const json_t *harness, const json_t *manifest) {
        const char *agent = spec_agent(harness);
        json_t *command = json_object_get(s->params, "command"), *options = json_object_get(s->params, "options");

        s->repository = w->repository;
        s->max_attempts = (int64_t) w->attempts;
        s->workflow_digest = strdup(w->digest);
        s->template_name = strdup(w->template_name);
        s->template_digest = strdup(json_string_value(json_object_get(manifest, "digest")));
        s->agent = agent ? strdup(agent) : NULL;
        s->command = json_is_array(command) ? json_canonical(command) : NULL;
        s->options = json_is_object(options) ? json_canonical(options) : NULL;

        return !s->workflow_digest || !s->template_name || !s->template_digest || (agent && !s->agent) ? -ENOMEM : 0;
}

/* Finds the workflow and what it names. NULL: the call was answered. */
static const PolicyWorkflow *find_workflow(Manager *m, IpcCall *call, const char *name, const json_t **ret_harness, json_t **ret_manifest) {
        const PolicyWorkflow *w;
        const char *reason = NULL;
        const json_t *harness = NULL;
        const char *agent;

        if (!name || !text_is_name(name)) {
                (void) bad_input(call, "/workflow", "not the name of a workflow");
                return NULL;
        }
        if (manager_load_policy(m) < 0) {
                (void) ipc_call_refuse(call, "Unavailable", "policy cannot be loaded");
                return NULL;
        }
        w = policy_find_workflow(m->policy, name, &reason);
        if (!w) {
                (void) refuse_workflow(call, m, name, reason);
                return NULL;
        }
        if (w->harness && !(harness = policy_find_harness(m->policy, w->harness, &reason))) {
                (void) refuse_workflow(call, m, name, reason);
                return NULL;
        }
        if (template_load(w->template_name, ret_manifest) < 0) {
                (void) ipc_call_refuse(call, "Unavailable", "template %s is not installed", w->template_name);
                return NULL;
        }
        agent = spec_agent(harness);
        if (agent && !template_has_agent(w->template_name, agent)) {
                (void) ipc_call_refuse(call, "Unavailable", "template %s has no image of agent %s", w->template_name, agent);
                return NULL;
        }

        *ret_harness = harness;
        return w;
}

static int on_submit(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        _cleanup_(submitting_freep) Submitting *s = NULL;
        _cleanup_json_ json_t *manifest = NULL;
        _cleanup_fd_ int fd = -1;
        const json_t *harness = NULL;
        const PolicyWorkflow *w;
        const char *reason;
        Submission given;
        int64_t waiting;
        int r;

        r = ledger_outbox_count(m->ledger, &waiting);
        if (r < 0)
                return manager_fatal(m, r, "count the audit outbox");
        if (waiting > OUTBOX_MAX)
                return ipc_call_refuse(call, "Unavailable", "auditd does not take events; see systemctl status anchor-auditd");

        w = find_workflow(m, call, get(params, "workflow"), &harness, &manifest);
        if (!w)
                return 0;

        fd = ipc_call_take_fd(call, 0);
        given = (Submission) {
                .task = get(params, "task"),
                .repo = get(params, "repo"),
                .base = get(params, "base"),
                .source = get(params, "source"),
                .command = json_is_array(json_object_get(params, "command")) ? json_object_get(params, "command") : NULL,
                .has_bundle = fd >= 0,
        };
        reason = spec_check_submission(w, &given);
        if (!reason && ((given.repo && strlen(given.repo) > 4096) || (given.source && strlen(given.source) > 512)))
                reason = "repo or source is too long";
        if (!reason && w->repository)
                reason = check_seed(fd, given.base);
        if (reason)
                return bad_input(call, "/", reason);

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (Submitting) { .manager = m, .call = ipc_call_ref(call), .params = json_incref(params) };
        r = fill_from_policy(s, w, harness, manifest);
        if (r >= 0)
                r = text_make_id('i', s->item);
        if (r < 0)
                return r;

        if (!w->repository) {
                submit_complete(TAKE_PTR(s), 0);
                return 0;
        }

        r = store_copy(m->store, s->item, STORE_SEED, TAKE_FD(fd), w->bundle_bytes, on_seed_stored, s, NULL);
        if (r < 0) {
                submit_complete(TAKE_PTR(s), r);
                return 0;
        }
        (void) TAKE_PTR(s);
        return 0;
}

/* ---- List, Show, Follow, Logs, Result ---- */

typedef struct Listing {
        IpcCall *call;   /* borrowed */
        json_t *held;    /* owned: the last one waits to be the final reply */
        char last[ID_LENGTH + 1];
        uint64_t n;
} Listing;

static int on_listed(json_t *row, void *userdata) {
        Listing *l = userdata;
        int r = 0;

        if (l->held)
                r = ipc_call_notify(l->call, json_pack("{s:o}", "item", TAKE_PTR(l->held)));
        l->held = json_incref(row);
        l->n++;
        (void) snprintf(l->last, sizeof(l->last), "%s", json_string_value(json_object_get(row, "id")));
        return r;
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
        const char *states[_ITEM_STATE_MAX + 1] = {}, *after = get(params, "after");
        json_t *limit_value = json_object_get(params, "limit");
        uint64_t limit = json_is_integer(limit_value) ? (uint64_t) json_integer_value(limit_value) : LIST_DEFAULT;
        Listing l = { .call = call };
        int r;

        if (!ipc_call_wants_more(call))
                return bad_input(call, "/", "List must be called with `more`");
        if (limit == 0 || limit > 10000)
                return bad_input(call, "/limit", "must be between 1 and 10000");
        if (after && !text_is_id('i', after))
                return bad_input(call, "/after", "not an item id");
        if (read_states(json_object_get(params, "states"), states, ELEMENTSOF(states)) < 0)
                return bad_input(call, "/states", "no such state");

        r = ledger_list(m->ledger, states[0] ? states : NULL, after, limit, on_listed, &l);
        if (r < 0) {
                (void) json_unref(l.held);
                return r;
        }
        return ipc_call_reply(call, l.held ? json_pack("{s:o}", "item", l.held) : json_object());
}

static int on_show(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        const char *item = item_parameter(call, params), *reason = NULL;
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
        if (!enforcers_ok(m, &reason))
                (void) json_object_set_new(object, "enforcers", json_string(reason));
        return ipc_call_reply(call, json_pack("{s:o}", "item", object));
}

static int start_events(Manager *m, IpcCall *call, json_t *params, bool follow) {
        const char *item = item_parameter(call, params), *run = get(params, "run");
        _cleanup_item_ LedgerItem found = {};
        json_int_t from = json_integer_value(json_object_get(params, "from"));
        int r;

        if (!item)
                return 0;
        if (!ipc_call_wants_more(call))
                return bad_input(call, "/", "must be called with `more`");
        if (run && !text_is_id('r', run))
                return ipc_call_error(call, "NoSuchRun", NULL);

        r = ledger_get(m->ledger, item, &found);
        if (r == LEDGER_E_NOT_FOUND)
                return no_item(call);
        if (r < 0)
                return r;

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
        const char *item = item_parameter(call, params), *what = get(params, "what");
        int fd, r;

        if (!item)
                return 0;
        if (!what || (strcmp(what, "bundle") != 0 && strcmp(what, "diff") != 0))
                return bad_input(call, "/what", "neither bundle nor diff");

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
        const char *given = get(params, "reason");
        _cleanup_free_ char *text = NULL;
        char actor[64];

        text = given ? text_escape(given, strlen(given) < REASON_MAX ? strlen(given) : REASON_MAX, false) : NULL;
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
        if (!reason)
                return -ENOMEM;
        r = ledger_get(m->ledger, item, &found);
        if (r == LEDGER_E_NOT_FOUND)
                return no_item(call);
        if (r < 0)
                return r;

        f = flow_find_item(m, item);
        if (f) {
                flow_stop(f, reason);
                return ipc_call_reply(call, NULL);
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

static int on_stop_all(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        _cleanup_free_ char *reason = stop_reason(call, params);
        StopAll *s;
        int r;

        if (!reason)
                return -ENOMEM;
        if (json_is_true(json_object_get(params, "hold"))) {
                r = set_hold(m, call, true, reason);
                if (r < 0)
                        return r;
        }

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (StopAll) { .next = m->stop_alls, .manager = m, .call = ipc_call_ref(call), .items = json_array() };
        m->stop_alls = s;

        for (Flow *f = m->flows, *next; f; f = next) {
                next = flow_next_of(f);
                (void) json_array_append_new(s->items, json_string(flow_item(f)));
                flow_stop(f, reason);
        }

        if (sd_event_add_time_relative(m->event, &s->timer, CLOCK_MONOTONIC, STOP_ALL_WAIT_USEC, 0, on_stop_all_timeout, s) < 0)
                stop_all_answer(s);
        else
                stop_alls_check(m);
        return 0;
}

static int on_hold(IpcCall *call, json_t *params, void *userdata) {
        json_t *on = json_object_get(params, "on");
        int r;

        if (!json_is_boolean(on))
                return bad_input(call, "/on", "not a boolean");
        r = set_hold(userdata, call, json_is_true(on), get(params, "reason"));
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
                if (template_load(w->template_name, &manifest) < 0)
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
                "{s:b, s:b, s:s?, s:O, s:o, s:{s:s, s:s?, s:s?}, s:o, s:o, s:I, s:s, s:I}",
                "ready", m->settled, "hold", held, "hold_reason", held ? why : NULL, "counts", counts, "enforcers", status_enforcers(m),
                "accelerator", "configured", configured, "accel", accel.known ? (accel.tcg ? "tcg" : "kvm") : NULL,
                "reason", accel.reason[0] ? accel.reason : NULL,
                "templates", status_templates(m), "runs", status_runs(m), "audit_waiting", (json_int_t) waiting,
                "policy", m->policy_digest, "policy_findings", (json_int_t) m->n_findings));
}

const IpcMethod operator_methods[] = {
        { "io.anchorhold.Manager.Submit", PEER_OPERATOR, on_submit },
        { "io.anchorhold.Manager.List", PEER_OPERATOR, on_list },
        { "io.anchorhold.Manager.Show", PEER_OPERATOR, on_show },
        { "io.anchorhold.Manager.Follow", PEER_OPERATOR, on_follow },
        { "io.anchorhold.Manager.Logs", PEER_OPERATOR, on_logs },
        { "io.anchorhold.Manager.Result", PEER_OPERATOR, on_result },
        { "io.anchorhold.Manager.Stop", PEER_OPERATOR, on_stop },
        { "io.anchorhold.Manager.StopAll", PEER_OPERATOR, on_stop_all },
        { "io.anchorhold.Manager.Hold", PEER_OPERATOR, on_hold },
        { "io.anchorhold.Manager.Status", PEER_OPERATOR, on_status },
        {},
};
