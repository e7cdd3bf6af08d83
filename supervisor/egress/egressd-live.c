/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Live changes of one run's policy, by operators, over their own socket: anchord has no part in them.
 *
 *   work out   the new policy: one rule more, or the files read anew with the live rules kept. One that would inspect a name that
 *              the run's CA does not sign for is refused: the guest has loaded its certificates
 *   record     policy.changed, with who did it; without that record nothing changes
 *   write      on disk and in the database: it holds after a restart too
 *   enforce    from here on every question meets the new policy. Questions on their way are weighed anew, and connections that
 *              it does not allow any more are cut: their owner is told, and the kernel drops their packets. Of one that carries several requests
 *              those are, which only its owner can do
 *   answer
 *
 * One change of a run at a time; another one meanwhile is told so. What the names stand for stays: a name that is
 * denied keeps its synthetic address, which leads nowhere.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "egress/egressd-private.h"
#include "util/log.h"

enum { RULE_MAX = 16 * 1024 };

typedef struct Change {
        Egressd *egressd;      /* borrowed */
        IpcCall *call;         /* ref */
        EgressPolicy *policy;  /* owned; the new one */
        char run[ID_LENGTH + 1];
} Change;

static Change *change_free(Change *c) {
        if (!c)
                return NULL;
        (void) ipc_call_unref(c->call);
        egress_policy_free(c->policy);
        free(c);
        return NULL;
}
DEFINE_CLEANUP(Change *, change_free)

/* ---- enforcing ---- */

/* As its owner was allowed it: inspected for inject, passed through for a proxy. */
static bool allows(const EgressRun *run, const EgressGrant *g, const char *method, const char *path) {
        bool inspected = strncmp(g->unit, "anchor-inject@", strlen("anchor-inject@")) == 0;
        EgressDecision d;

        egress_policy_decide(run->policy, g->name, g->port, method, path, &d);
        return d.verdict == (inspected ? EGRESS_INSPECT : EGRESS_PASS);
}

static bool is_still_allowed(const EgressRun *run, const EgressGrant *g) {

        /* requests that nobody asks about cannot be weighed */
        if (g->covers && egress_policy_weighs_requests(run->policy, g->name, g->port))
                return false;
        return allows(run, g, g->method, g->path);
}

/* Each request on a connection that carries several is judged by itself: its owner ends those that are not allowed any more, and the others go on. How many. */
static unsigned cut_streams(Egressd *e, const EgressRun *run, EgressGrant *g) {
        _cleanup_json_ json_t *numbers = json_array();

        for (EgressStream *t = g->streams, *next; t; t = next) {
                next = t->next;
                if (allows(run, g, t->method, t->path))
                        continue;
                (void) json_array_append_new(numbers, json_integer((json_int_t) t->number));
                egress_grant_remove_stream(g, t);
        }
        if (json_array_size(numbers) > 0)
                egressd_cut_streams(e, g, numbers);
        return (unsigned) json_array_size(numbers);
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

static int answer_change(IpcCall *call, const EgressRun *run, bool changed, unsigned n_cut) {
        return ipc_call_reply(call, json_pack("{s:s, s:b, s:i}", "digest", run->digest, "changed", changed, "cut", (int) n_cut));
}

static void on_recorded(int r, void *userdata) {
        _cleanup_(change_freep) Change *c = userdata;
        Egressd *e = c->egressd;
        EgressRun *run = egress_state_find(e->state, c->run);
        unsigned n;

        if (!run) {
                (void) ipc_call_error(c->call, "NoSuchRun", NULL);
                return;
        }
        run->changing = false;
        if (r < 0) {
                (void) ipc_call_refuse(c->call, "Unavailable", "the audit log did not take the record, and nothing was changed");
                return;
        }

        r = egress_state_change(e->state, run, c->policy);
        if (r < 0) {
                log_error_errno(r, "run %s: its changed policy cannot be written; the old one holds", run->id);
                (void) ipc_call_refuse(c->call, "Unavailable", "the changed policy cannot be written, and the old one holds: %s", strerror(-r));
                return;
        }
        c->policy = NULL;

        n = enforce(e, run);
        log_notice("run %s: its policy is %s now; %u connections were cut", run->id, run->digest, n);
        (void) answer_change(c->call, run, true, n);
}

/* Takes the policy over. */
static int begin_change(Egressd *e, IpcCall *call, EgressRun *run, EgressPolicy *policy, const char *what, const char *rule) {
        _cleanup_(change_freep) Change *c = NULL;
        char actor[64];
        json_t *data;
        int r;

        c = calloc(1, sizeof(*c));
        if (!c) {
                egress_policy_free(policy);
                return -ENOMEM;
        }
        *c = (Change) { .egressd = e, .call = ipc_call_ref(call), .policy = policy };
        strcpy(c->run, run->id);

        if (strcmp(egress_policy_digest(policy), run->digest) == 0)
                return answer_change(call, run, false, 0);

        data = json_pack("{s:s, s:s*, s:s, s:s}", "change", what, "rule", rule, "from", run->digest, "digest", egress_policy_digest(policy));
        r = egressd_record(e, run, "policy.changed", peer_name(ipc_call_peer(call), actor), data, on_recorded, c);
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

        if (r == -ENOTSUP || r == -E2BIG)
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

        r = egress_policy_amend(run->policy, allow, rule, peer_name(ipc_call_peer(call), actor), &policy, &reason);
        if (!worked_out(call, r, reason, &r))
                return r;

        safe = text_escape(rule, strlen(rule), false);
        if (!safe) {
                egress_policy_free(policy);
                return -ENOMEM;
        }
        return begin_change(e, call, run, policy, allow ? "allow" : "deny", safe);
}

int egressd_on_reload(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "run", NULL };
        _cleanup_(policy_freep) Policy *set = NULL;
        _cleanup_free_ char *reason = NULL;
        const EgressPolicy *fresh = NULL;
        EgressPolicy *policy = NULL;
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
        if (r < 0)
                return r;
        r = egress_state_load_policy(e->state, run, &set, &fresh, &reason);
        if (r < 0)
                return r;
        if (r == EGRESS_STATE_E_NO_POLICY)
                return ipc_call_refuse(call, "Denied", "workflow %s: %s; what holds so far goes on to hold", run->workflow, reason);

        r = egress_policy_rebase(fresh, run->policy, &policy, &reason);
        if (!worked_out(call, r, reason, &r))
                return r;
        return begin_change(e, call, run, policy, "reload", NULL);
}
