/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Which runs there are. A registration goes through three things, and whoever asks for the same run meanwhile waits for them as well:
 *
 *   waiting    for a thread to be free
 *   freezing   in a thread (util/background.c), since reading, compiling and writing a large policy takes a second, in which other runs' connections are to
 *              be decided
 *   recording  the run exists, but nobody is told before the audit log has it
 *
 * A Release in between takes effect at once for who asks, and when the thread has ended for the file that it writes.
 *
 * The threads touch nothing but the registration's own EgressFrozen, and of the state what never changes.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "egress/egressd-private.h"
#include "util/json.h"
#include "util/log.h"

struct Registration {
        Egressd *egressd;        /* borrowed */
        Registration *next;
        IpcWaiters calls;
        char run[ID_LENGTH + 1];
        char *workflow, *stage_name, *actor; /* owned; of the first who asked */
        bool recording;          /* before: waiting or freezing */
        bool released;           /* meanwhile */
        EgressFrozen frozen;     /* the thread's while it is being frozen */
};

static Registration *registration_free(Registration *g) {
        if (!g)
                return NULL;

        for (Registration **p = &g->egressd->registrations; *p; p = &(*p)->next)
                if (*p == g) {
                        *p = g->next;
                        break;
                }
        if (background_cancel(g->egressd->background, g) && g->frozen.result == 0)
                egress_state_unfreeze(g->egressd->state, g->run);
        egress_frozen_done(&g->frozen);
        ipc_waiters_done(&g->calls);
        free(g->workflow);
        free(g->stage_name);
        free(g->actor);
        free(g);
        return NULL;
}
DEFINE_CLEANUP(Registration *, registration_free)

static Registration *registration_find(Egressd *e, const char *run) {
        for (Registration *g = e->registrations; g; g = g->next)
                if (!g->released && strcmp(g->run, run) == 0)
                        return g;
        return NULL;
}

void egressd_registrations_done(Egressd *e) {
        while (e->registrations)
                (void) registration_free(e->registrations);
}

/* ---- the record ---- */

/* Not recorded, so it did not happen. */
static void refuse_unrecorded(Registration *g, EgressRun *run) {
        egressd_requests_cancel(g->egressd, run);
        egressd_revoke(g->egressd, run, 0, "not-registered");
        egress_state_release(g->egressd->state, run);
        ipc_waiters_refuse(&g->calls, "Unavailable", "the audit log did not take the registration");
}

static void on_registered(int r, void *userdata) {
        _cleanup_(registration_freep) Registration *g = userdata;
        EgressRun *run = g->released ? NULL : egress_state_find(g->egressd->state, g->run);

        if (!run) {
                ipc_waiters_refuse(&g->calls, "Conflict", "the run was released meanwhile");
                return;
        }
        if (r < 0) {
                refuse_unrecorded(g, run);
                return;
        }

        run->recorded = true;
        ipc_waiters_reply(&g->calls, json_pack("{s:s}", "digest", run->digest));
}

/* Takes the registration over; also on failure, which the callers are told. */
static void record(Registration *registration, EgressRun *run) {
        _cleanup_(registration_freep) Registration *g = registration;
        json_t *data = json_pack("{s:s, s:s, s:s}", "workflow", run->workflow, "stage", run->stage, "digest", run->digest);
        int r;

        g->recording = true;
        r = egressd_record(g->egressd, run, "egress.registered", g->actor, data, on_registered, g);
        if (r >= 0)
                (void) TAKE_PTR(g);
        else
                refuse_unrecorded(g, run);
}

/* ---- freezing ---- */

static void refuse(Registration *g, int r) {
        if (r < 0) {
                log_error_errno(r, "run %s: cannot be registered", g->run);
                ipc_waiters_refuse(&g->calls, "Unavailable", "the run's policy cannot be kept: %s", strerror(-r));
        } else if (r == EGRESS_STATE_E_CONFLICT)
                ipc_waiters_refuse(&g->calls, "Conflict", "run %s is registered with another workflow or stage", g->run);
        else if (r == EGRESS_STATE_E_FULL)
                ipc_waiters_refuse(&g->calls, "Unavailable", "%d runs are registered; release some", EGRESS_RUNS_MAX);
        else
                ipc_waiters_refuse(&g->calls, "BadInput", "workflow %s: %s", g->workflow, g->frozen.reason);
}

static void freeze(void *userdata) {
        Registration *g = userdata;

        egress_state_freeze(g->egressd->state, g->run, g->workflow, g->stage_name, &g->frozen);
}

static void on_frozen(int r, void *userdata) {
        _cleanup_(registration_freep) Registration *g = userdata;
        Egressd *e = g->egressd;
        EgressRun *run;

        g->recording = true;
        if (r < 0)
                g->frozen.result = r;
        if (g->released) {
                egress_state_unfreeze(e->state, g->run);
                ipc_waiters_refuse(&g->calls, "Conflict", "the run was released meanwhile");
                return;
        }
        r = egress_state_register(e->state, g->run, g->workflow, g->stage_name, &g->frozen, &run);
        if (r != 0)
                refuse(g, r);
        else
                record(TAKE_PTR(g), run);
}

/* ---- Register, Release ---- */

static int registration_new(Egressd *e, IpcCall *call, const char *run, const char *workflow, const char *stage, Registration **ret) {
        _cleanup_(registration_freep) Registration *g = NULL;
        int r;

        g = calloc(1, sizeof(*g));
        if (!g)
                return -ENOMEM;
        g->egressd = e;
        g->next = e->registrations;
        e->registrations = g;

        (void) snprintf(g->run, sizeof(g->run), "%s", run);
        g->workflow = strdup(workflow);
        g->stage_name = strdup(stage);
        g->actor = strdup(ipc_call_peer(call)->unit);
        if (!g->workflow || !g->stage_name || !g->actor)
                return -ENOMEM;
        r = ipc_waiters_add(&g->calls, call);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(g);
        return 0;
}

/* It was released while its policy was being frozen, and that file is still to go. */
static bool is_going(const Egressd *e, const char *run) {
        for (const Registration *g = e->registrations; g; g = g->next)
                if (g->released && !g->recording && strcmp(g->run, run) == 0)
                        return true;
        return false;
}

static size_t count_registrations(const Egressd *e) {
        size_t n = 0;

        for (const Registration *g = e->registrations; g; g = g->next)
                n += !g->recording;
        return n;
}

static int register_run(Egressd *e, IpcCall *call, const char *run, const char *workflow, const char *stage) {
        Registration *g = registration_find(e, run);
        EgressRun *known = egress_state_find(e->state, run);
        int r;

        if ((known && (strcmp(known->workflow, workflow) != 0 || strcmp(known->stage, stage) != 0)) ||
            (g && (strcmp(g->workflow, workflow) != 0 || strcmp(g->stage_name, stage) != 0)))
                return ipc_call_refuse(call, "Conflict", "run %s is registered with another workflow or stage", run);
        if (g)
                return ipc_waiters_add(&g->calls, call);
        if (is_going(e, run))
                return ipc_call_refuse(call, "Conflict", "run %s is being released", run);
        if (known && known->recorded)
                return ipc_call_reply(call, json_pack("{s:s}", "digest", known->digest));
        if (!known && egress_state_count(e->state) + count_registrations(e) >= EGRESS_RUNS_MAX)
                return ipc_call_refuse(call, "Unavailable", "%d runs are registered; release some", EGRESS_RUNS_MAX);

        r = registration_new(e, call, run, workflow, stage, &g);
        if (r < 0)
                return r;
        if (known) {
                /* of an earlier life of this process, which may have ended before the record was made: two say the same */
                record(g, known);
                return 0;
        }
        r = background_start(e->background, freeze, on_frozen, g);
        if (r < 0)
                (void) registration_free(g);
        return r;
}

int egressd_on_register(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "run", "workflow", "stage", NULL };
        const char *run = NULL, *workflow = NULL, *stage = NULL;
        JsonReader reader = {};
        Egressd *e = userdata;
        int r;

        json_check_keys(&reader, params, "", known);
        (void) json_read_string(&reader, params, "", "run", JSON_F_REQUIRED, &run);
        (void) json_read_string(&reader, params, "", "workflow", JSON_F_REQUIRED, &workflow);
        (void) json_read_string(&reader, params, "", "stage", JSON_F_REQUIRED, &stage);
        if (run && !text_is_id('r', run))
                json_reader_fail(&reader, "", "run", "is no run's id");
        if (stage && strcmp(stage, "work") != 0 && strcmp(stage, "verify") != 0)
                json_reader_fail(&reader, "", "stage", "must be \"work\" or \"verify\"");
        if (reader.failed)
                return egressd_refuse_bad_input(call, &reader);
        assert(run && workflow && stage);

        /* The host's configuration may have changed since the last run. */
        r = egressd_read_host(e);
        if (r < 0)
                return r;

        return register_run(e, call, run, workflow, stage);
}

/* Of a run's policies, which are as many as operators like: what fits into a record, the first and the latest. Each change had a record of its own. */
static json_t *released_digests(const json_t *digests) {
        _cleanup_json_ json_t *told = json_array();
        size_t n = json_array_size(digests), rest = n > EGRESSD_DIGESTS_MAX ? n - EGRESSD_DIGESTS_MAX : 0;

        for (size_t i = 0; i < n; i++)
                if ((i == 0 || i > rest) && json_array_append(told, json_array_get(digests, i)) < 0)
                        return NULL;
        return TAKE_PTR(told);
}

int egressd_on_release(IpcCall *call, json_t *params, void *userdata) {
        _cleanup_json_ json_t *digests = NULL;
        const char *id = NULL;
        Registration *under_way;
        JsonReader reader = {};
        Egressd *e = userdata;
        EgressRun *run;

        (void) json_read_string(&reader, params, "", "run", JSON_F_REQUIRED, &id);
        if (reader.failed)
                return egressd_refuse_bad_input(call, &reader);
        assert(id);

        under_way = registration_find(e, id);
        if (under_way)
                under_way->released = true;
        run = egress_state_find(e->state, id);
        if (!run)
                return ipc_call_reply(call, NULL); /* what is asked for is so already, or will be when the thread has ended */

        egressd_turns_forget(e, run);
        egressd_requests_cancel(e, run);
        egressd_closes_flush(e, run->id);
        egressd_revoke(e, run, 0, "released");
        denials_flush(e->denials, run->id);
        (void) egressd_record(e, run, "egress.released", ipc_call_peer(call)->unit,
                              json_pack("{s:I, s:I, s:o, s:I}", "names", (json_int_t) egress_run_count_names(run), "records", (json_int_t) run->n_records,
                                        "digests", released_digests(run->digests), "n_digests", (json_int_t) json_array_size(run->digests)), NULL, NULL);
        digests = json_incref(run->digests);
        egress_state_release(e->state, run);
        return ipc_call_reply(call, json_pack("{s:O}", "digests", digests));
}
