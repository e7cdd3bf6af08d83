/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The heartbeat. Every two seconds auditd is pinged; when it answers, the kernel's map is told that
 * egressd lives and everybody who watches gets a beat. Without an answer there is no beat of either kind: nothing else that a watcher
 * is told is one, since until the ping has failed nobody knows here that auditd is stuck. Only whoever begins to watch is told of the last one at once, if it is fresh.
 *
 * A watcher is a `more` call of io.anchorhold.Egress.Watch that is never answered for good. Through it a proxy
 * learns which grants it has, and from then on which of them are revoked (held-grants.c is its side); without it nobody could tell it, so a grant whose owner has no
 * watcher for ten seconds is revoked in the kernel instead.
 */

#include <errno.h>
#include <string.h>

#include "egress/egressd-private.h"
#include "util/json.h"
#include "util/log.h"

enum {
        WATCHERS_MAX = 1024,
        ENDS_IN_RECORD_MAX = 1024, /* ids in one record beside the first: 20 KB at most */
};

struct Watcher {
        Watcher *next;   /* owned */
        IpcCall *call;   /* ref */
        uint64_t cgroup;
};

static Watcher *watcher_free(Watcher *w) {
        if (w)
                (void) ipc_call_unref(w->call);
        free(w);
        return NULL;
}

void egressd_watchers_done(Egressd *e) {
        while (e->watchers) {
                Watcher *w = e->watchers;

                e->watchers = w->next;
                (void) watcher_free(w);
        }
}

static void drop_dead_watchers(Egressd *e) {
        for (Watcher **at = &e->watchers; *at;) {
                Watcher *w = *at;

                if (ipc_call_is_live(w->call)) {
                        at = &w->next;
                        continue;
                }
                *at = w->next;
                (void) watcher_free(w);
        }
}

/* Takes params over. */
static json_t *add_beat(const Egressd *e, json_t *params) {
        if (params && json_object_set_new(params, "heartbeat", json_integer((json_int_t) e->n_beats)) < 0)
                params = json_unref(params);
        return params;
}

/* Takes params over. What a watcher is not told now it would never be: it is let go, and watches anew. */
static bool notify(Watcher *w, json_t *params) {
        int r = -ENOMEM;

        if (params)
                r = ipc_call_notify(w->call, params);
        if (r >= 0 || r == -ENOTCONN)
                return r >= 0;
        log_warning_errno(r, "run %s: %s cannot be told about its connections, and is to watch anew", ipc_call_peer(w->call)->run, ipc_call_peer(w->call)->unit);
        ipc_call_hang_up(w->call);
        return false;
}

/* What there is, for one who was not told of what there is no more. A run that is not registered has none, whatever the number: a database that another version
 * left is begun anew, and so are its numbers. */
static json_t *list_grants(const Egressd *e, const Peer *peer) {
        EgressRun *run = egress_state_find(e->state, peer->run);
        json_int_t latest = run ? (json_int_t) egress_state_latest_grant(e->state) : INT64_MAX;
        json_t *list = json_array();

        for (const EgressGrant *g = run ? run->grants : NULL; g; g = g->next)
                if (g->cgroup == peer->cgroup_id && json_array_append_new(list, json_integer((json_int_t) g->id)) < 0) {
                        json_decref(list);
                        return NULL;
                }
        return json_pack("{s:o, s:I}", "grants", list, "latest", latest);
}

int egressd_watch(Egressd *e, IpcCall *call) {
        const Peer *peer = ipc_call_peer(call);
        json_t *list;
        size_t n = 0;
        Watcher *w;

        if (!ipc_call_wants_more(call))
                return ipc_call_refuse(call, "BadInput", "Watch needs `more`");
        for (const Watcher *i = e->watchers; i; i = i->next)
                n++;
        if (n >= WATCHERS_MAX)
                return -EBUSY;

        w = malloc(sizeof(*w));
        if (!w)
                return -ENOMEM;
        *w = (Watcher) { .next = e->watchers, .call = ipc_call_ref(call), .cgroup = peer->cgroup_id };
        e->watchers = w;
        list = list_grants(e, peer);
        if (e->audit_works && e->n_beats > 0 && time_boottime() - e->beat_usec <= EGRESSD_BEAT_FRESH_USEC)
                list = add_beat(e, list);
        (void) notify(w, list);
        return 0;
}

static void tell_revoked(Egressd *e, const EgressGrant *g) {
        for (Watcher *w = e->watchers; w; w = w->next)
                if (w->cgroup == g->cgroup)
                        (void) notify(w, json_pack("{s:[I]}", "revoked", (json_int_t) g->id));
}

bool egressd_cut_streams(Egressd *e, const EgressGrant *g, json_t *numbers) {
        bool told = false;

        drop_dead_watchers(e);
        for (Watcher *w = e->watchers; w; w = w->next)
                if (w->cgroup == g->cgroup)
                        told = notify(w, json_pack("{s:[{s:I, s:O}]}", "streams", "grant", (json_int_t) g->id, "streams", numbers)) || told;
        return told;
}

json_t *egressd_end_data(const EgressGrant *g, const char *reason) {
        return json_pack("{s:I, s:s, s:i, s:s, s:s}", "grant", (json_int_t) g->id, "name", g->name, "port", g->port, "rule", g->rule, "reason", reason);
}

void egressd_cut(Egressd *e, EgressGrant *g, const char *reason) {
        drop_dead_watchers(e);
        tell_revoked(e, g);

        /* A destination that another grant of the same owner names as well stays open in the kernel: it is allowed. */
        for (size_t i = 0; i < g->n_fence; i++)
                (void) grant_map_release(e->map, g->fence[i]);
        if (g->n_fence > 0)
                egressd_close_awaited(e, g->run, g->unit, g->cgroup, egressd_end_data(g, reason));
        else /* it was never opened */
                egressd_close(e, g->run, g->unit, egressd_end_data(g, reason));
        egress_run_remove_grant(e->state, g);
}

/* Does the end of the two make one record? */
static bool end_alike(const EgressGrant *a, const EgressGrant *b) {
        return a->cgroup == b->cgroup && a->port == b->port && strcmp(a->name, b->name) == 0 && strcmp(a->rule, b->rule) == 0;
}

/* One record for `first` and those behind it that are like it, with their ids: a run that leaves with thousands of connections must not keep
 * the audit log from others. Those behind it are forgotten then. awaited: whoever had them is there, and told. */
static void record_end(Egressd *e, EgressRun *run, const EgressGrant *first, const char *reason, bool awaited) {
        _cleanup_json_ json_t *others = json_array();
        json_t *data;
        size_t n;

        for (const EgressGrant *g = first->next; g && json_array_size(others) < ENDS_IN_RECORD_MAX; g = g->next)
                if (end_alike(first, g)) {
                        if (json_array_append_new(others, json_integer((json_int_t) g->id)) < 0)
                                break; /* they have a record of their own */
                        tell_revoked(e, g);
                }

        n = json_array_size(others);
        data = egressd_end_data(first, reason);
        if (data && n > 0) {
                (void) json_object_set_new(data, "count", json_integer((json_int_t) n + 1));
                (void) json_object_set(data, "others", others);
        }
        if (awaited)
                egressd_close_awaited(e, run, first->unit, first->cgroup, data);
        else
                egressd_close(e, run, first->unit, data);
        for (EgressGrant *g = first->next, *next; g && n > 0; g = next) {
                next = g->next;
                if (end_alike(first, g)) {
                        egress_run_remove_grant(e->state, g);
                        n--;
                }
        }
}

void egressd_revoke(Egressd *e, EgressRun *run, uint64_t cgroup, const char *reason) {
        EgressGrant *g = run->grants;

        drop_dead_watchers(e);

        while (g) {
                EgressGrant *next;
                int r;

                if (cgroup != 0 && g->cgroup != cgroup) {
                        g = g->next;
                        continue;
                }

                r = grant_map_revoke_cgroup(e->map, g->cgroup);
                if (r < 0)
                        log_error_errno(r, "run %s: the grants of %s cannot be revoked; they end with its cgroup", run->id, g->unit);

                tell_revoked(e, g);
                record_end(e, run, g, reason, strcmp(reason, "over-budget") == 0);
                next = g->next; /* after those behind it were forgotten */
                egress_run_remove_grant(e->state, g);
                g = next;
        }
}

static bool is_watched(const Egressd *e, uint64_t cgroup) {
        for (const Watcher *w = e->watchers; w; w = w->next)
                if (w->cgroup == cgroup)
                        return true;
        return false;
}

static void revoke_unwatched(Egressd *e) {
        uint64_t now = time_boottime();

        for (EgressRun *run = egress_state_runs(e->state); run; run = run->next) {
                uint64_t orphan = 0;

                for (EgressGrant *g = run->grants; g; g = g->next) {
                        if (is_watched(e, g->cgroup))
                                g->unwatched_usec = 0;
                        else if (g->unwatched_usec == 0)
                                g->unwatched_usec = now;
                        else if (now - g->unwatched_usec > EGRESSD_UNWATCHED_USEC)
                                orphan = g->cgroup;
                }
                if (orphan) /* others, if there are any, at the next beat */
                        egressd_revoke(e, run, orphan, "unwatched");
        }
}

/* Over its budget a run loses what it has as well. */
static void watch_budgets(Egressd *e) {
        for (EgressRun *run = egress_state_runs(e->state); run; run = run->next) {
                egress_state_save_records(e->state, run);
                if (run->grants && egressd_over_budget(run)) {
                        log_warning("run %s: has written %d records, and loses its connections", run->id, EGRESSD_RECORDS_MAX);
                        egressd_revoke(e, run, 0, "over-budget");
                }
        }
}

static void on_ping(int r, void *userdata) {
        Egressd *e = userdata;

        e->ping_pending = false;
        egressd_note_audit(e, r);
        if (r < 0)
                return;

        egressd_closes_tell_again(e);
        egressd_tell_again(e);
        r = grant_map_heartbeat(e->map);
        if (r < 0) {
                log_error_errno(r, "no heartbeat for the fence");
                return;
        }

        e->n_beats++;
        e->beat_usec = time_boottime();
        for (Watcher *w = e->watchers; w; w = w->next)
                (void) notify(w, add_beat(e, json_object()));
}

static int on_beat(sd_event_source *s, uint64_t usec, void *userdata) {
        Egressd *e = userdata;
        int r;

        drop_dead_watchers(e);
        revoke_unwatched(e);
        denials_tick(e->denials, time_boottime());
        watch_budgets(e);
        egressd_closes_tick(e);

        if (!e->ping_pending) {
                e->ping_pending = true;
                r = audit_ping(e->audit, on_ping, e);
                if (r < 0) {
                        e->ping_pending = false;
                        egressd_note_audit(e, r);
                }
        }

        r = sd_event_source_set_time_relative(s, EGRESSD_BEAT_USEC);
        if (r >= 0)
                r = sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
        if (r < 0)
                return sd_event_exit(e->event, r); /* a heart that stopped must not look alive */
        return 0;
}

int egressd_start_beat(Egressd *e) {
        return sd_event_add_time_relative(e->event, &e->beat, CLOCK_MONOTONIC, 0, 10 * 1000, on_beat, e);
}
