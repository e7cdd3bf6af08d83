/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Live changes of one run's policy, by operators, over their own socket: anchord has no part in them.
 *
 *   read       for a reload, the files: in a thread, since a large policy takes a second, in which other runs' connections are to be decided
 *   work out   the new policy: one rule more, or what was read with the live rules kept. One that would inspect a name that
 *              the run's CA does not sign for is refused: the guest has loaded its certificates. So is one that allows what no policy of a
 *              workflow with the run's credentials may (policy-reach.c); nothing can be wrong with a denial
 *   record     policy.changed, with who did it; without that record nothing changes
 *   write      on disk, in a thread as well, and in the database: it holds after a restart too
 *   enforce    from here on every question meets the new policy. Questions on their way are weighed anew, and connections that
 *              it does not allow any more are cut: their owner is told, and the kernel drops their packets. Of one that carries several requests
 *              those are, which only its owner can do
 *   answer
 *
 * One change of a run at a time; another one meanwhile is told so. A release in between is heard: nothing changes, and nothing stays on disk. What the names stand for stays: a name that is
 * denied keeps its synthetic address, which leads nowhere.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "egress/egressd-private.h"
#include "util/log.h"

enum { RULE_MAX = 16 * 1024 };

struct Change {
        Egressd *egressd;      /* borrowed */
        Change *next;
        IpcCall *call;         /* ref */
        char run[ID_LENGTH + 1];
        EgressPolicy *policy;  /* owned; the new one */
        EgressPolicy *old;     /* owned; when it holds no more */
        int result;            /* of what the thread did */
        bool allows;           /* it adds a permission */

        /* of a reload */
        char *workflow, *stage;     /* owned */
        json_t *bounds;             /* ref; the thread's own */
        Policy *set;                /* owned; what was read */
        const EgressPolicy *fresh;  /* borrowed from it */
        char *reason;               /* owned; of EGRESS_STATE_E_NO_POLICY, and of -EPERM */
};

static Change *change_free(Change *c) {
        if (!c)
                return NULL;

        (void) background_cancel(c->egressd->background, c);
        for (Change **p = &c->egressd->changes; *p; p = &(*p)->next)
                if (*p == c) {
                        *p = c->next;
                        break;
                }
        (void) ipc_call_unref(c->call);
        egress_policy_free(c->policy);
        egress_policy_free(c->old);
        policy_free(c->set);
        json_unref(c->bounds);
        free(c->workflow);
        free(c->stage);
        free(c->reason);
        free(c);
        return NULL;
}
DEFINE_CLEANUP(Change *, change_free)

static void drop(void *userdata) {
        Change *c = userdata;

        c->policy = egress_policy_free(c->policy);
        c->old = egress_policy_free(c->old);
        c->set = policy_free(c->set);
}

static void on_dropped(int r, void *userdata) {
        (void) change_free(userdata);
}

/* The change is over. To free a large policy takes its time, too. */
static Change *change_end(Change *c) {
        if (c && background_start(c->egressd->background, drop, on_dropped, c) < 0)
                (void) change_free(c);
        return NULL;
}
DEFINE_CLEANUP(Change *, change_end)

void egressd_changes_done(Egressd *e) {
        while (e->changes)
                (void) change_free(e->changes);
}

/* From now on the run is being changed. */
static int change_new(Egressd *e, IpcCall *call, EgressRun *run, Change **ret) {
        Change *c = calloc(1, sizeof(*c));

        if (!c)
                return -ENOMEM;
        *c = (Change) { .egressd = e, .next = e->changes, .call = ipc_call_ref(call) };
        strcpy(c->run, run->id);
        e->changes = c;
        run->changing = true;
        *ret = c;
        return 0;
}

/* The run, which is not being changed any more if the change ends now; NULL: it was released meanwhile, and that was answered. */
static EgressRun *find_changing(Change *c) {
        EgressRun *run = egress_state_find(c->egressd->state, c->run);

        if (run)
                run->changing = false;
        else
                (void) ipc_call_error(c->call, "NoSuchRun", NULL);
        return run;
}

/* ---- enforcing ---- */

/* As its owner was allowed it: inspected for inject, passed through for a proxy. */
static bool allows(const EgressRun *run, const EgressGrant *g, const char *method, const char *path) {
        bool inspected = strncmp(g->unit, "anchor-inject@", strlen("anchor-inject@")) == 0;
        EgressDecision d;

        egress_policy_decide(run->policy, g->name, g->port, method, path, &d);
        return d.verdict == (inspected ? EGRESS_INSPECT : EGRESS_PASS);
}

/* The connection, with all that may be under way on it and cannot be ended alone. */
static bool is_still_allowed(const EgressRun *run, const EgressGrant *g) {

        /* requests and paths that are not known cannot be weighed */
        if (g->unlisted && egress_policy_weighs_requests(run->policy, g->name, g->port))
                return false;
        if (g->second_path && egress_policy_weighs_paths(run->policy, g->name, g->port))
                return false;
        if (g->carries_streams || !g->streams)
                return allows(run, g, NULL, NULL);
        for (const EgressStream *t = g->streams; t; t = t->next)
                if (!allows(run, g, t->method, t->path))
                        return false;
        return true;
}

/* Each request on a connection that carries several is judged by itself: its owner ends those that are not allowed any more, and the others go on. Without an
 * owner who listens the connection is cut. How many. */
static unsigned cut_streams(Egressd *e, const EgressRun *run, EgressGrant *g) {
        _cleanup_json_ json_t *numbers = json_array();
        unsigned n = 0;

        for (EgressStream *t = g->carries_streams ? g->streams : NULL, *next; t; t = next) {
                next = t->next;
                if (allows(run, g, t->method, t->path))
                        continue;
                (void) json_array_append_new(numbers, json_integer((json_int_t) t->number));
                egress_grant_remove_stream(g, t);
                n++;
        }
        if (n > 0 && (json_array_size(numbers) < n || !egressd_cut_streams(e, g, numbers)))
                egressd_cut(e, g, "policy-changed");
        return n;
}

/* How many connections, and streams on connections, were cut. */
static unsigned enforce(Egressd *e, EgressRun *run) {
        unsigned n = 0;

        egressd_requests_weigh_anew(e, run);
        for (EgressGrant *g = run->grants, *next; g; g = next) {
                next = g->next;
                if (is_still_allowed(run, g)) {
                        n += cut_streams(e, run, g);
                        continue;
                }
                egressd_cut(e, g, "policy-changed");
                n++;
        }
        return n;
}

/* ---- changing ---- */

/* p: the policy that holds now. */
static int answer_change(const Change *c, const EgressRun *run, const EgressPolicy *p, bool changed, unsigned n_cut) {
        json_t *overruled = c->allows ? egress_policy_overruled(p) : NULL;

        if (overruled && json_array_size(overruled) == 0)
                overruled = json_unref(overruled);
        return ipc_call_reply(c->call, json_pack("{s:s, s:b, s:i, s:o*}", "digest", run->digest, "changed", changed, "cut", (int) n_cut, "overruled", overruled));
}

static void write_down(void *userdata) {
        Change *c = userdata;

        c->result = egress_state_write(c->egressd->state, c->run, c->policy);
}

static void on_written(int r, void *userdata) {
        _cleanup_(change_endp) Change *c = userdata;
        Egressd *e = c->egressd;
        EgressRun *run = find_changing(c);
        unsigned n;

        if (!run) {
                egress_state_unfreeze(e->state, c->run);
                return;
        }

        if (r >= 0)
                r = c->result;
        if (r >= 0)
                r = egress_state_change(e->state, run, c->policy, &c->old);
        if (r < 0) {
                log_error_errno(r, "run %s: its changed policy cannot be written; the old one holds", run->id);
                (void) ipc_call_refuse(c->call, "Unavailable", "the changed policy cannot be written, and the old one holds: %s", strerror(-r));
                return;
        }
        c->policy = NULL;

        n = enforce(e, run);
        log_notice("run %s: its policy is %s now; %u connections were cut", run->id, run->digest, n);
        (void) answer_change(c, run, run->policy, true, n);
}

static void on_recorded(int r, void *userdata) {
        _cleanup_(change_endp) Change *c = userdata;
        EgressRun *run = find_changing(c);

        if (!run)
                return;
        if (r < 0) {
                (void) ipc_call_refuse(c->call, "Unavailable", "the audit log did not take the record, and nothing was changed");
                return;
        }

        r = background_start(c->egressd->background, write_down, on_written, c);
        if (r < 0) {
                (void) ipc_call_refuse(c->call, "Unavailable", "the changed policy cannot be written, and the old one holds: %s", strerror(-r));
                return;
        }
        run->changing = true;
        (void) TAKE_PTR(c);
}

/* The new policy is worked out. Takes the change over; on failure nobody was answered. */
static int record_change(Change *change, EgressRun *run, const char *what, const char *rule) {
        _cleanup_(change_endp) Change *c = change;
        char actor[64];
        json_t *data;
        int r;

        run->changing = false;
        if (strcmp(egress_policy_digest(c->policy), run->digest) == 0)
                return answer_change(c, run, c->policy, false, 0);

        data = json_pack("{s:s, s:s*, s:s, s:s}", "change", what, "rule", rule, "from", run->digest, "digest", egress_policy_digest(c->policy));
        r = egressd_record(c->egressd, run, "policy.changed", peer_name(ipc_call_peer(c->call), actor), data, on_recorded, c);
        if (r < 0)
                return r;
        run->changing = true;
        (void) TAKE_PTR(c);
        return 0;
}

/* The run that is to be changed; NULL: it was answered why not. */
static EgressRun *find_run(Egressd *e, IpcCall *call, const char *id) {
        EgressRun *run = egress_state_find(e->state, id);

        if (!run)
                (void) ipc_call_error(call, "NoSuchRun", NULL);
        else if (run->lost)
                (void) ipc_call_refuse(call, "Unavailable", "the policy of run %s is lost, and everything is denied", id);
        else if (run->changing)
                (void) ipc_call_refuse(call, "Conflict", "the policy of run %s is being changed by somebody else", id);
        else
                return run;
        return NULL;
}

/* What came of working the new policy out: true if there is one, else it was answered (or the value is to be returned). */
static bool worked_out(IpcCall *call, int r, const char *reason, int *ret) {
        *ret = 0;
        if (r >= 0)
                return true;

        if (r == -ENOTSUP || r == -E2BIG || r == -EPERM)
                *ret = ipc_call_refuse(call, "Denied", "%s", reason ?: strerror(-r));
        else if (r == -EINVAL)
                *ret = ipc_call_error(call, "BadInput", json_pack("{s:s, s:s}", "pointer", "/rule", "reason", reason ?: "is no rule"));
        else
                *ret = r;
        return false;
}

int egressd_on_amend(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "run", "allow", "rule", NULL };
        const char *id = NULL, *rule = NULL;
        _cleanup_free_ char *reason = NULL, *safe = NULL;
        EgressPolicy *policy = NULL;
        JsonReader reader = {};
        Egressd *e = userdata;
        bool allow = false;
        EgressRun *run;
        char actor[64];
        Change *c;
        int r;

        json_check_keys(&reader, params, "", known);
        (void) json_read_string(&reader, params, "", "run", JSON_F_REQUIRED, &id);
        (void) json_read_bool(&reader, params, "", "allow", JSON_F_REQUIRED, &allow);
        (void) json_read_string(&reader, params, "", "rule", JSON_F_REQUIRED, &rule);
        if (rule && strlen(rule) > RULE_MAX)
                json_reader_fail(&reader, "", "rule", "is longer than %d bytes", RULE_MAX);
        if (reader.failed)
                return egressd_refuse_bad_input(call, &reader);
        assert(id && rule); /* required */

        run = find_run(e, call, id);
        if (!run)
                return 0;

        /* one more rule costs the same, however many the files have */
        r = egress_policy_amend(run->policy, allow, rule, peer_name(ipc_call_peer(call), actor), &policy, &reason);
        if (r >= 0 && (allow || egress_is_live_label(rule))) /* a permission that is taken back may let a wider one decide */
                r = egress_policy_keeps_bounds(policy, run->bounds, true, &reason);
        if (!worked_out(call, r, reason, &r)) {
                egress_policy_free(policy);
                return r;
        }

        safe = text_escape(rule, strlen(rule), false);
        r = safe ? change_new(e, call, run, &c) : -ENOMEM;
        if (r < 0) {
                egress_policy_free(policy);
                return r;
        }
        c->policy = policy;
        c->allows = allow && !egress_is_live_label(rule);
        return record_change(c, run, allow ? "allow" : "deny", safe);
}

static void reload(void *userdata) {
        Change *c = userdata;

        c->result = egress_state_load_policy(c->egressd->state, c->workflow, c->stage, &c->set, &c->fresh, &c->reason);
        if (c->result == 0)
                c->result = egress_policy_keeps_bounds(c->fresh, c->bounds, false, &c->reason);
}

static void on_loaded(int r, void *userdata) {
        _cleanup_(change_endp) Change *c = userdata;
        _cleanup_(ipc_call_unrefp) IpcCall *call = ipc_call_ref(c->call);
        _cleanup_free_ char *reason = NULL;
        EgressRun *run = find_changing(c);

        if (!run)
                return;
        if (r >= 0)
                r = c->result;
        if (r == EGRESS_STATE_E_NO_POLICY || r == -EPERM) {
                (void) ipc_call_refuse(call, "Denied", "workflow %s: %s%s; what holds so far goes on to hold", c->workflow,
                                       r == -EPERM ? "the run began with other credentials than the files have now: " : "", c->reason);
                return;
        }
        if (r >= 0) {
                r = egress_policy_rebase(c->fresh, run->policy, &c->policy, &reason);
                if (r >= 0)
                        r = egress_policy_keeps_bounds(c->policy, run->bounds, true, &reason);
                if (worked_out(call, r, reason, &r))
                        r = record_change(TAKE_PTR(c), run, "reload", NULL);
        }
        if (r < 0)
                (void) ipc_call_refuse(call, "Unavailable", "the policy cannot be read anew, and the old one holds: %s", strerror(-r));
}

int egressd_on_reload(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "run", NULL };
        _cleanup_(change_freep) Change *c = NULL;
        JsonReader reader = {};
        const char *id = NULL;
        Egressd *e = userdata;
        EgressRun *run;
        int r;

        json_check_keys(&reader, params, "", known);
        (void) json_read_string(&reader, params, "", "run", JSON_F_REQUIRED, &id);
        if (reader.failed)
                return egressd_refuse_bad_input(call, &reader);

        run = find_run(e, call, id);
        if (!run)
                return 0;
        r = egressd_read_host(e);
        if (r >= 0)
                r = change_new(e, call, run, &c);
        if (r < 0)
                return r;

        c->workflow = strdup(run->workflow);
        c->stage = strdup(run->stage);
        c->bounds = json_deep_copy(run->bounds);
        r = c->workflow && c->stage && c->bounds ? background_start(e->background, reload, on_loaded, c) : -ENOMEM;
        if (r < 0) {
                run->changing = false;
                return r;
        }
        (void) TAKE_PTR(c);
        return 0;
}
