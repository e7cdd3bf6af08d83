/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * egressd decides, for every run, which names it may look up and where its proxy and its inject may connect.
 *
 * It is asked over varlink (io.anchorhold.Egress, docs/interfaces.md). Policy it reads itself: anchord names a workflow and
 * can widen nothing. Per run the policy is frozen when the run is registered (egress-state.c).
 *
 * What holds at every moment:
 *  - Nothing is granted without an audit record that auditd acknowledged before the answer left.
 *  - Only addresses that address_judge() admits get into the map; what the asker is told to connect to is exactly what is in it.
 *  - The heartbeat, in the kernel's map and towards the watchers, beats only while auditd answers pings. So when auditd is
 *    gone or stuck, or when this process is, every connection of every run ends within ten seconds, by the kernel
 *    (packets without a fresh heartbeat are dropped) and by the proxies themselves.
 *  - A grant whose owner watches no more (its process died) is revoked after ten seconds.
 *  - A run that is not registered gets nothing.
 *
 * At a crash: registrations, policies with what operators changed, names and grants are on disk; the map's entries are the kernel's. A
 * new process claims those of the grants that it knows and closes the others: open connections go on if it beats within ten seconds, new
 * connects need new grants, what ended meanwhile its owners tell (grant-ends.c), and what belongs to owners that do not come back to watch is revoked. Requests under way are lost; their
 * callers see a broken connection and deny. Denials that were counted and not told are told in sum (untold.c); an orderly stop tells them first.
 *
 * egressd.c has start-up, egressd-host.c what it takes from the host's configuration, egressd-methods.c the table and the short methods, egressd-connect.c the
 * way from a question to a grant, egressd-watch.c heartbeat and watchers, egressd-record.c the audit side,
 * egressd-denials.c what is counted before it is recorded, egressd-closes.c what is recorded of connections that are over.
 */

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "egress/egressd-private.h"
#include "util/log.h"

enum { MESSAGE_MAX = 512 * 1024 }; /* the longest is a rule, of 16 KiB */

/* What an earlier life granted and somebody may still use. */
static int claim_grants(Egressd *e, EgressRun *run) {
        for (EgressGrant *g = run->grants; g; g = g->next)
                for (size_t i = 0; i < g->n_addresses; i++) {
                        const Address *a = &g->addresses[i];
                        int r;

                        r = grant_map_claim(e->map, g->cgroup, a->family, a->bytes, g->port, IPPROTO_TCP, &g->fence[g->n_fence]);
                        if (r >= 0)
                                g->n_fence++;
                        else if (r != -ENOENT)
                                return r;
                }
        return 0;
}

/* Whatever is in the map and belongs to no grant that we know is nobody's. */
static int open_map(Egressd *e) {
        int r;

        r = grant_map_open(&e->map, NULL);
        if (r < 0)
                return log_error_errno(r, "cannot open the fence's maps (has anchor-bpf.service run?)");

        for (EgressRun *run = egress_state_runs(e->state); run && r >= 0; run = run->next)
                r = claim_grants(e, run);
        if (r >= 0)
                r = grant_map_settle(e->map);
        if (r < 0)
                return log_error_errno(r, "cannot settle what the fence's maps hold");
        if (r > 0)
                log_notice("%d entries of the fence belonged to no connection that is known, and are closed", r);
        return 0;
}

/* What an earlier life was about to grant: nobody got it, and nobody will say that it is over. */
static void drop_unmade(Egressd *e) {
        for (EgressRun *run = egress_state_runs(e->state); run; run = run->next)
                for (EgressGrant *g = run->grants, *next; g; g = next) {
                        next = g->next;
                        if (g->n_fence == 0)
                                egressd_cut(e, g, "never-made");
                }
}

static int open_server(Egressd *e) {
        int r;

        r = ipc_server_new(&e->server, e->event, egressd_methods, e);
        if (r < 0)
                return r;

        ipc_server_set_limits(e->server, 1024, 128);
        ipc_server_set_message_max(e->server, MESSAGE_MAX);
        r = ipc_server_listen_systemd(e->server, "egress");
        if (r < 0)
                return log_error_errno(r, "no listening socket from systemd (anchor-egressd.socket)");
        r = ipc_server_listen_systemd(e->server, "egress-api");
        if (r < 0)
                return log_error_errno(r, "no listening socket from systemd (anchor-egressd-api.socket)");
        return 0;
}

/* What an earlier life did not get through, and what it left half done. */
static int settle_records(Egressd *e) {
        int r;

        egressd_tell_untold(e);
        r = egressd_load_closes(e);
        if (r < 0)
                return log_error_errno(r, "cannot read what is to be recorded of connections that are over");
        drop_unmade(e);
        return 0;
}

int egressd_new(Egressd **ret, sd_event *event) {
        _cleanup_(egressd_freep) Egressd *e = NULL;
        int r;

        e = calloc(1, sizeof(*e));
        if (!e)
                return -ENOMEM;
        e->event = sd_event_ref(event);
        e->audit_works = true;

        r = background_new(&e->background, event, EGRESSD_POLICIES_AT_ONCE);
        if (r < 0)
                return r;
        r = egress_state_open(&e->state, EGRESSD_STATE_DIR, "");
        if (r < 0)
                return log_error_errno(r, "cannot open the state in %s", EGRESSD_STATE_DIR);
        r = open_map(e);
        if (r < 0)
                return r;
        r = host_addresses_new(&e->own);
        if (r < 0)
                return log_error_errno(r, "cannot watch this host's addresses");
        r = resolver_new(&e->resolver, event);
        if (r < 0)
                return r;
        r = egressd_read_host(e);
        if (r < 0)
                return log_error_errno(r, "cannot read the host's configuration");
        r = audit_client_new(&e->audit, event);
        if (r < 0)
                return r;
        r = egressd_new_denials(e);
        if (r < 0)
                return r;
        r = egressd_start_turns(e);
        if (r < 0)
                return r;
        r = settle_records(e);
        if (r < 0)
                return r;
        r = open_server(e);
        if (r < 0)
                return r;
        r = egressd_start_beat(e);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(e);
        return 0;
}

Egressd *egressd_free(Egressd *e) {
        if (!e)
                return NULL;

        sd_event_source_disable_unref(e->beat);
        egressd_turns_done(e);
        egressd_requests_done(e);
        egressd_watchers_done(e);
        ipc_server_free(e->server);
        audit_client_free(e->audit);
        egressd_registrations_done(e);
        egressd_changes_done(e);
        background_free(e->background);
        egressd_closes_done(e);
        egressd_denials_done(e);
        resolver_free(e->resolver);
        host_addresses_free(e->own);
        grant_map_free(e->map);
        egress_state_free(e->state);
        sd_event_unref(e->event);
        free(e);
        return NULL;
}
