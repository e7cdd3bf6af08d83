/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the files of egressd share. */

#include <sys/stat.h>

#include "audit/audit.h"
#include "audit/tellings.h"
#include "egress/denials.h"
#include "egress/egress-state.h"
#include "egress/egress-api.h"
#include "egress/egressd.h"
#include "egress/grant-map.h"
#include "egress/host-addresses.h"
#include "egress/nat64.h"
#include "egress/resolver.h"
#include "egress/untold.h"
#include "ipc/ipc-waiters.h"
#include "ipc/ipc.h"
#include "util/background.h"
#include "util/json.h"

enum {
        EGRESSD_BEAT_USEC = 2 * 1000 * 1000,
        EGRESSD_BEAT_FRESH_USEC = 3 * 1000 * 1000, /* whoever begins to watch is not told of an older one: ten seconds more are an end in less than fifteen */
        EGRESSD_UNWATCHED_USEC = 10 * 1000 * 1000,
        EGRESSD_GRANT_USEC = 30 * 1000 * 1000, /* for new connects */
        EGRESSD_POLICIES_AT_ONCE = 2,          /* read or written, each in a thread */
        EGRESSD_REQUESTS_MAX = 1024,           /* of all runs, each of which has its share of it */
        EGRESSD_REQUESTS_OF_RUN_MAX = 192,     /* more than a proxy and an inject have under way */
        EGRESSD_RECORDS_MAX = 50000,           /* audit records of one run */
        EGRESSD_DENIALS_PENDING_MAX = 32,      /* records of denials of one run that auditd has not yet taken */
        EGRESSD_DIGESTS_MAX = 128,             /* in egress.released: some 9 KiB of the 48 that a record may have */
        EGRESSD_NETWORKS_MAX = 64,
        EGRESSD_NAT64_MAX = 16,
        EGRESSD_SYNTHETIC_TTL = 300,
};

typedef struct Registration Registration;
typedef struct Change Change;
typedef struct Watcher Watcher;
typedef struct EgressRequest EgressRequest;
typedef struct CloseQueue CloseQueue;

struct Egressd {
        sd_event *event;            /* ref */
        IpcServer *server;          /* owned */
        AuditClient *audit;         /* owned */
        GrantMap *map;              /* owned */
        EgressState *state;         /* owned */
        Resolver *resolver;         /* owned */
        HostAddresses *own;         /* owned */
        bool resolvers_configured;  /* in host.json, so /etc/resolv.conf does not matter */
        struct stat resolv_conf;    /* as it was when it was read */
        Denials *denials;           /* owned */
        Untold *untold;             /* owned */
        Tellings *tellings;         /* owned; records of denials */
        CloseQueue *closes;         /* owned; egressd-closes.c */
        size_t n_closes_behind;     /* of them auditd has refused to take, and has not taken since; that there are any was said */
        bool closes_barred;         /* auditd refused the last one for good, which was said */
        bool closes_unkept;         /* they cannot be written down at present, which was said */
        bool closes_undropped;      /* nor deleted */
        char life[ID_LENGTH + 1];   /* no other process has it */
        uint64_t n_closes;          /* so far; with it, what is told again is recognised */
        sd_event_source *stop;      /* owned; ends the wait for auditd's last answers */
        bool stopping;
        bool host_known;            /* host.json, or that there is none, was understood at least once; what follows is what it said then */
        AddressRange networks[EGRESSD_NETWORKS_MAX];
        size_t n_networks;
        AddressRange nat64[EGRESSD_NAT64_MAX]; /* named in host.json */
        size_t n_nat64;
        bool nat64_too_many;        /* what the resolvers named last time */
        bool nat64_named;           /* it has the list, be it empty: what the network does not say is no reason to refuse */
        Background *background;     /* owned; reads and writes policies */
        Registration *registrations;/* owned; egressd-register.c */
        Change *changes;            /* owned; egressd-live.c */
        Watcher *watchers;          /* owned; egressd-watch.c */
        EgressRequest *requests;    /* owned; egressd-request.c */
        size_t n_requests;
        struct FairQueue *turns;    /* owned; egressd-turns.c */
        sd_event_source *turn;      /* owned */
        sd_event_source *beat;      /* owned */
        uint64_t n_beats, beat_usec; /* CLOCK_BOOTTIME, of the last one */
        bool ping_pending;
        bool audit_works;           /* as of the last ping; until there was one, so it is hoped: a grant needs its record anyway */
        uint64_t audit_lost_usec;   /* since when it does not; 0: it does */
};

/* egressd-host.c: reads host.json again (resolvers, networks, translation prefixes). */
int egressd_read_host(Egressd *e);
/* Before a name is resolved: follows /etc/resolv.conf, if that is where the resolvers come from. */
void egressd_refresh_resolvers(Egressd *e);

/* egressd-watch.c: heartbeat, watchers, grants that end. */
int egressd_start_beat(Egressd *e);
int egressd_watch(Egressd *e, IpcCall *call);
void egressd_watchers_done(Egressd *e);
/* Tells the grant's owner that it is revoked, closes it in the kernel unless others share the destination, records and forgets it. */
void egressd_cut(Egressd *e, EgressGrant *g, const char *reason);
/* Tells the grant's owner which of the streams on its connection are not allowed any more: a list of their numbers. False: nobody could be told. */
bool egressd_cut_streams(Egressd *e, const EgressGrant *g, json_t *numbers);
/* Takes the grants of a run (those of one cgroup, unless it is 0) out of the map, tells their owners, records the end of each, forgets them. */
void egressd_revoke(Egressd *e, EgressRun *run, uint64_t cgroup, const char *reason);

/* egressd-turns.c: runs what a run asks when it is that run's turn. The value is an IpcHandler's. */
int egressd_take_turn(Egressd *e, IpcCall *call, json_t *params, IpcHandler handler);
void egressd_turns_forget(Egressd *e, const EgressRun *run);
int egressd_start_turns(Egressd *e);
void egressd_turns_done(Egressd *e);

/* egressd-record.c: what is written to the audit log. */
/* What came of a ping. (That one record was not taken is the business of what it was about, not of every run.) */
void egressd_note_audit(Egressd *e, int r);
int egressd_record(Egressd *e, EgressRun *run, const char *event, const char *actor, json_t *data, AuditDone done, void *userdata);
bool egressd_over_budget(const EgressRun *run);

/* egressd-denials.c */
/* A denial, or `count` of them: counted, told, aggregated. `name` and `detail` may be text from the guest. */
void egressd_deny_many(Egressd *e, EgressRun *run, const Peer *peer, const char *event, const char *rule, const char *name,
                       uint16_t port, const char *reason, const char *detail, uint64_t count);
void egressd_deny(Egressd *e, EgressRun *run, const Peer *peer, const char *event, const char *rule, const char *name,
                  uint16_t port, const char *reason, const char *detail);
int egressd_new_denials(Egressd *e);
/* What an earlier life had counted and not told: a record for each run. */
void egressd_tell_untold(Egressd *e);
/* auditd answers: what it did not take is sent again. */
void egressd_tell_again(Egressd *e);
/* After the audit client is gone. */
void egressd_denials_done(Egressd *e);
/* While egressd stops: ends the loop if nothing is under way. */
void egressd_end_if_told(Egressd *e);

/* What a conn.close says of a connection that egressd ends. */
json_t *egressd_end_data(const EgressGrant *g, const char *reason);

/* egressd-closes.c: conn.close, each kept until auditd has it. Data are taken over; with `count` for several. */
void egressd_close(Egressd *e, EgressRun *run, const char *actor, json_t *data);
/* The same for what egressd ended itself: whoever had the connections (`grant` and `others` in the data), in that cgroup, may say for a moment what went over them. */
void egressd_close_awaited(Egressd *e, EgressRun *run, const char *actor, uint64_t cgroup, json_t *data);
void egressd_close_told(Egressd *e, const Peer *peer, uint64_t grant, uint64_t bytes_in, uint64_t bytes_out, uint64_t duration_usec);
/* What could not be written down is tried again. Nobody's word is awaited any longer: where it took too long; or of that run (NULL: of all). */
void egressd_closes_tick(Egressd *e);
void egressd_closes_flush(Egressd *e, const char *run);
/* auditd answers: what it did not take is sent again. */
void egressd_closes_tell_again(Egressd *e);
/* Is anything on its way to auditd, or going to be when that has arrived? */
bool egressd_closes_under_way(const Egressd *e);
/* egressd stops: what is not through is written down. */
void egressd_closes_keep(Egressd *e);
/* What an earlier life could not get through is sent. */
int egressd_load_closes(Egressd *e);
/* After the audit client is gone. */
void egressd_closes_done(Egressd *e);

/* egressd-connect.c */
/* A request is asked about under that grant. inject asks about the next one when the one before is over; a proxy, which does not read answers, at once. */
int egressd_note_request(EgressGrant *g, const Peer *peer, const char *method, const char *path);
int egressd_on_look(IpcCall *call, json_t *params, void *userdata);
int egressd_on_connect(IpcCall *call, json_t *params, void *userdata);
int egressd_on_done(IpcCall *call, json_t *params, void *userdata);

/* egressd-request.c */
void egressd_requests_done(Egressd *e);
/* No request goes on that belongs to this run. */
void egressd_requests_cancel(Egressd *e, const EgressRun *run);
/* The run has another policy: requests that it denies are denied when their turn comes. */
void egressd_requests_weigh_anew(Egressd *e, const EgressRun *run);

/* egressd-live.c: operators change a run's policy. */
int egressd_on_amend(IpcCall *call, json_t *params, void *userdata);
int egressd_on_reload(IpcCall *call, json_t *params, void *userdata);
/* After the audit client is gone, which held them. Waits for what is being read or written. */
void egressd_changes_done(Egressd *e);

/* egressd-explain.c */
int egressd_on_explain(IpcCall *call, json_t *params, void *userdata);

/* egressd-judge.c */
int egressd_on_judge(IpcCall *call, json_t *params, void *userdata);

/* egressd-methods.c */
int egressd_refuse_bad_input(IpcCall *call, JsonReader *r);
extern const IpcMethod egressd_methods[];

/* egressd-register.c */
int egressd_on_register(IpcCall *call, json_t *params, void *userdata);
int egressd_on_release(IpcCall *call, json_t *params, void *userdata);
/* After the audit client is gone, which held them. Waits for what is being frozen. */
void egressd_registrations_done(Egressd *e);
