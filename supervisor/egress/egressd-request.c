/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * An EgressRequest carries a question across turns of the loop, from "resolve" to "answer" (see egressd-connect.c). It lives until it
 * has answered, and if the audit log is to call back, until then. If a step fails, what earlier ones made is taken back.
 */

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "egress/agreement-api.h"
#include "egress/egressd-request.h"
#include "util/log.h"

enum { ASKED_PATH_MAX = 64 * 1024 }; /* no head of a request is longer */

_Static_assert((int) EGRESSD_REQUESTS_MAX >= (int) EGRESS_RUNS_MAX, "a run without a share could ask nothing");
_Static_assert((int) RESOLVER_QUERIES_MAX >= 2 * (int) EGRESSD_REQUESTS_MAX, "a request that has room would not be resolved");

struct EgressRequest {
        Egressd *egressd;     /* borrowed */
        EgressRequest *next, **prev;
        IpcCall *call;        /* ref */
        EgressRun *run;       /* borrowed; requests are cancelled before it goes */
        char name[254];
        char *rule, *git;     /* owned: the policy outlives the request, but not its reload; the second may be NULL */
        uint16_t port;
        const char *protocol, *verdict; /* static */
        char *method, *path;  /* owned; for the record, may be NULL */
        char *asked_method, *asked_path; /* owned; as they were asked, for a decision under another policy. NULL: of the connection alone */
        const char *overruled; /* static: why a policy that came in between denies it; NULL: it does not */
        ResolverQuery *query; /* owned */
        Address found[RESOLVER_ADDRESSES_MAX]; /* to be judged, once it is known what this network translates */
        size_t n_found;
        uint64_t grant_id;
        json_t *addresses;    /* ref */
        json_t *refused;      /* ref: address → why it may not be connected to */
        bool second_path;     /* what was asked names another path as well */
        bool look;            /* nothing is to be granted */
        bool recording;       /* the audit log will call back: this object must live until then */
        bool cancelled;
};

/* ---- requests ---- */

static EgressRequest *request_free(EgressRequest *q) {
        if (!q)
                return NULL;

        resolver_query_free(q->query);
        (void) ipc_call_unref(q->call);
        json_unref(q->addresses);
        json_unref(q->refused);
        free(q->rule);
        free(q->git);
        free(q->method);
        free(q->path);
        free(q->asked_method);
        free(q->asked_path);
        if (q->prev) {
                *q->prev = q->next;
                if (q->next)
                        q->next->prev = q->prev;
                q->egressd->n_requests--;
                if (q->run)
                        q->run->n_requests--;
        }
        free(q);
        return NULL;
}
DEFINE_CLEANUP(EgressRequest *, request_free)

/* The path without its query, which may hold anything, and not all of it. NULL stays NULL. */
static int copy_path(char **ret, const char *path) {
        if (!path) {
                *ret = NULL;
                return 0;
        }
        *ret = text_escape(path, strnlen(path, strcspn(path, "?") < 256 ? strcspn(path, "?") : 256), false);
        return *ret ? 0 : -ENOMEM;
}

static int copy_asked(EgressRequest *q, const Question *question) {
        if (!question->method || !question->path || strlen(question->path) > ASKED_PATH_MAX)
                return 0;

        q->asked_method = strdup(question->method);
        q->asked_path = strdup(question->path);
        return q->asked_method && q->asked_path ? 0 : -ENOMEM;
}

/* A request whose name's servers are silent takes its six seconds. So a run may have as many as it likes of what nobody else is entitled to, and has its share whatever the others
 * do. (One that was registered a moment ago takes its share at once: for as long as older requests last there may be more than the bound.) */
static bool has_room(const Egressd *e, const EgressRun *run) {
        size_t share = EGRESSD_REQUESTS_MAX / egress_state_count(e->state), kept = 0;

        if (run->n_requests >= EGRESSD_REQUESTS_OF_RUN_MAX)
                return false;
        if (run->n_requests < share)
                return true;
        for (const EgressRun *other = egress_state_runs(e->state); other; other = other->next)
                if (other->n_requests < share)
                        kept += share - other->n_requests;
        return e->n_requests + kept < EGRESSD_REQUESTS_MAX;
}

static int request_new(EgressRequest **ret, Egressd *e, EgressRun *run, IpcCall *call, const Question *question, const Verdict *v) {
        _cleanup_(request_freep) EgressRequest *q = NULL;

        assert(v->rule);

        if (!has_room(e, run))
                return -EBUSY;

        q = calloc(1, sizeof(*q));
        if (!q)
                return -ENOMEM;
        *q = (EgressRequest) {
                .egressd = e,
                .call = ipc_call_ref(call),
                .run = run,
                .port = (uint16_t) question->port,
                .protocol = protocol_to_text(v->decision.protocol),
                .verdict = "pass",
                .second_path = question->second_path,
        };
        strcpy(q->name, v->name);
        q->rule = strdup(v->rule);
        q->git = v->decision.git ? strdup(v->decision.git) : NULL;
        q->method = question->method ? text_escape(question->method, strnlen(question->method, 32), false) : NULL;
        q->refused = json_object();
        if (!q->rule || !q->refused || (v->decision.git && !q->git) || (question->method && !q->method) || copy_path(&q->path, question->path) < 0 ||
            copy_asked(q, question) < 0)
                return -ENOMEM;

        q->next = e->requests;
        q->prev = &e->requests;
        if (q->next)
                q->next->prev = &q->next;
        e->requests = q;
        e->n_requests++;
        run->n_requests++;
        *ret = TAKE_PTR(q);
        return 0;
}

static void request_cancel(EgressRequest *q) {
        (void) ipc_call_refuse(q->call, "Unavailable", "the run is released");
        q->cancelled = true;
        q->run->n_requests--;
        q->run = NULL;
        if (!q->recording)
                (void) request_free(q);
}

void egressd_requests_cancel(Egressd *e, const EgressRun *run) {
        for (EgressRequest *q = e->requests, *next; q; q = next) {
                next = q->next;
                if (q->run == run)
                        request_cancel(q);
        }
}

void egressd_requests_done(Egressd *e) {
        while (e->requests)
                (void) request_free(e->requests);
}

int egressd_answer(IpcCall *call, const EgressRun *run, const char *verdict, const char *reason, const char *rule, const char *name, const char *protocol,
                   uint64_t grant, bool covers, json_t *addresses, const char *git) {
        json_t *params = json_pack("{s:s, s:s, s:s, s:s, s:s*, s:O*, s:o*, s:s*, s:s*}", "verdict", verdict, "reason", reason, "rule", rule, "name", name,
                                   "protocol", protocol, "addresses", addresses, "git", git ? json_loads(git, 0, NULL) : NULL,
                                   "workflow", run ? run->workflow : NULL, "stage", run ? run->stage : NULL);

        if (params && grant > 0 && json_object_set_new(params, "grant", json_integer((json_int_t) grant)) < 0)
                params = json_unref(params);
        if (params && covers && json_object_set_new(params, "covers", json_true()) < 0)
                params = json_unref(params);
        if (!params)
                return -ENOMEM;
        return ipc_call_reply(call, params);
}

static void request_deny(EgressRequest *q, const char *reason, const char *detail) {
        egressd_deny(q->egressd, q->run, ipc_call_peer(q->call), "egress.deny", q->rule, q->name, q->port, reason, detail);
        (void) egressd_answer(q->call, NULL, "deny", reason, q->rule, q->name, NULL, 0, false, NULL, NULL);
        (void) request_free(q);
}

/* ---- record, grant, answer ---- */

static void request_take_back(EgressRequest *q) {
        EgressGrant *g = q->run ? egress_run_find_grant(q->run, q->grant_id, ipc_call_peer(q->call)->cgroup_id) : NULL;

        if (!g)
                return;
        for (size_t i = 0; i < g->n_fence; i++)
                (void) grant_map_release(q->egressd->map, g->fence[i]);
        egress_run_remove_grant(q->egressd->state, g);
}

/* The log has it, or may have it, and nobody gets it. */
static void request_take_back_recorded(EgressRequest *q) {
        EgressGrant *g = q->run ? egress_run_find_grant(q->run, q->grant_id, ipc_call_peer(q->call)->cgroup_id) : NULL;

        if (g)
                egressd_close(q->egressd, q->run, g->unit, egressd_end_data(g, "never-made"));
        request_take_back(q);
}

/* Opens the fence to the addresses that are on record; the answer names those for which that went well. */
static int request_open(EgressRequest *q) {
        const Peer *peer = ipc_call_peer(q->call);
        EgressGrant *g = egress_run_find_grant(q->run, q->grant_id, peer->cgroup_id);
        uint64_t expires = time_boottime() + EGRESSD_GRANT_USEC;
        int r = -ENOENT;

        if (!g)
                return -ENOENT; /* revoked meanwhile */

        for (size_t i = 0; i < g->n_addresses; i++) {
                const Address *a = &g->addresses[i];
                int k;

                k = grant_map_add(q->egressd->map, peer->cgroup_id, a->family, a->bytes, q->port, IPPROTO_TCP, expires, &g->fence[g->n_fence]);
                if (k >= 0)
                        g->n_fence++;
                else {
                        (void) json_array_remove(q->addresses, g->n_fence);
                        r = k;
                }
        }
        return g->n_fence > 0 ? 0 : r;
}

/* Does the answer hold for whatever inject carries on this connection? Then a later policy cuts it if it is not content with that (egressd-live.c). */
static bool request_covers(EgressRequest *q) {
        EgressGrant *g = q->grant_id > 0 ? egress_run_find_grant(q->run, q->grant_id, ipc_call_peer(q->call)->cgroup_id) : NULL;

        if (!g || !(ipc_call_peer(q->call)->roles & PEER_INJECT) || egress_policy_weighs_requests(q->run->policy, q->name, q->port))
                return false;
        g->unlisted = true;
        return true;
}

static void request_on_recorded(int r, void *userdata) {
        EgressRequest *q = userdata;

        q->recording = false;
        if (q->cancelled) {
                (void) request_free(q);
                return;
        }

        if (r < 0 || q->overruled) {
                if (r >= 0 || r == -ETIMEDOUT || r == -ENOTCONN)
                        request_take_back_recorded(q);
                else
                        request_take_back(q);
                request_deny(q, q->overruled ?: "unavailable", q->overruled ? "the policy was changed" : "the audit log did not take the record");
                return;
        }
        if (!ipc_call_is_live(q->call)) {
                request_take_back_recorded(q); /* whoever asked is gone */
                (void) request_free(q);
                return;
        }

        r = q->grant_id > 0 ? request_open(q) : 0;
        if (r < 0) {
                log_error_errno(r, "run %s: %s:%u cannot be granted", q->run->id, q->name, q->port);
                request_take_back_recorded(q);
                request_deny(q, "unavailable", strerror(-r));
                return;
        }

        (void) egressd_answer(q->call, q->run, q->verdict, "allowed", q->rule, q->name, NULL, q->grant_id, request_covers(q), q->addresses, q->git);
        (void) request_free(q);
}

static void request_record(EgressRequest *q) {
        json_t *data;
        int r;

        data = json_pack("{s:s, s:i, s:s, s:s, s:s, s:s*, s:s*, s:O*, s:O*}", "name", q->name, "port", q->port, "protocol", q->protocol,
                         "verdict", q->verdict, "rule", q->rule, "method", q->method, "path", q->path, "addresses", q->addresses,
                         "refused", json_object_size(q->refused) > 0 ? q->refused : NULL);
        if (data && q->grant_id > 0 && json_object_set_new(data, "grant", json_integer((json_int_t) q->grant_id)) < 0)
                data = json_unref(data);

        q->recording = true;
        r = egressd_record(q->egressd, q->run, "egress.allow", ipc_call_peer(q->call)->unit, data, request_on_recorded, q);
        if (r < 0) {
                q->recording = false;
                request_take_back(q);
                request_deny(q, "unavailable", "the audit log did not take the record");
        }
}

/* What is to be granted is written down, under the number that the record names; the fence stays shut. */
static int request_reserve(EgressRequest *q, const Address *addresses, size_t n) {
        const Peer *peer = ipc_call_peer(q->call);
        EgressGrant *g;
        int r;

        if (n > GRANT_ADDRESSES_MAX)
                n = GRANT_ADDRESSES_MAX;
        q->addresses = json_array();
        if (!q->addresses)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                char text[ADDRESS_TEXT_SIZE];

                if (json_array_append_new(q->addresses, json_string(address_format(&addresses[i], text))) < 0)
                        return -ENOMEM;
        }

        r = egress_run_add_grant(q->egressd->state, q->run, peer->unit, peer->cgroup_id, q->name, q->port, q->rule, addresses, n, &g);
        if (r < 0)
                return r;
        q->grant_id = g->id;
        g->unlisted = q->path && !q->asked_path;
        g->second_path = q->second_path;
        r = egressd_note_request(g, peer, q->asked_method, q->asked_path);
        if (r < 0)
                request_take_back(q);
        return r;
}

/* ---- resolve, judge ---- */

/* Adds to ret those that may be connected to; the others are for the record. The worst reason is the denial's if none may.
 * nat64: what the network said it translates; NULL if it could not say, so that nobody knows what an IPv6 address is. */
static int request_judge(EgressRequest *q, const AddressRange *nat64, size_t n_nat64, Address *ret, size_t *ret_n, const char **ret_reason) {
        AddressHost host = { .networks = q->egressd->networks, .n_networks = q->egressd->n_networks, .nat64 = nat64, .n_nat64 = n_nat64 };
        int r;

        r = host_addresses_get(q->egressd->own, &host.own, &host.n_own);
        if (r < 0)
                return log_error_errno(r, "cannot read this host's addresses");

        for (size_t i = 0; i < q->n_found; i++) {
                AddressVerdict v = address_judge(&q->found[i], &host);
                char text[ADDRESS_TEXT_SIZE];

                if (address_verdict_is_allowed(v) && !nat64 && q->found[i].family == AF_INET6)
                        v = ADDRESS_NOT_GLOBAL;
                if (address_verdict_is_allowed(v)) {
                        ret[(*ret_n)++] = q->found[i];
                        continue;
                }
                if (!*ret_reason || v == ADDRESS_METADATA)
                        *ret_reason = address_verdict_to_reason(v);
                r = json_object_set_new(q->refused, address_format(&q->found[i], text), json_string(address_verdict_to_reason(v)));
                if (r < 0)
                        return -ENOMEM;
        }
        return 0;
}

/* The addresses that were found, for the record of a denial. The caller's; NULL without memory. */
static char *request_list_refused(const EgressRequest *q) {
        _cleanup_free_ char *text = NULL;
        const char *address;
        json_t *reason;

        json_object_foreach(q->refused, address, reason) {
                char *longer = text_format("%s%s%s", text ?: "", text ? " " : "", address);

                free(text);
                text = longer;
                if (!text)
                        return NULL;
        }
        return TAKE_PTR(text);
}

/* All that was found is to be judged, and what may be connected to is granted, if that was asked. */
static void request_grant(EgressRequest *q, const AddressRange *nat64, size_t n_nat64) {
        Address allowed[RESOLVER_ADDRESSES_MAX];
        const char *reason = NULL;
        size_t n_allowed = 0;
        int r;

        r = request_judge(q, nat64, n_nat64, allowed, &n_allowed, &reason);
        if (r < 0) {
                request_deny(q, "unavailable", strerror(-r));
                return;
        }
        if (n_allowed == 0) {
                _cleanup_free_ char *text = request_list_refused(q);

                request_deny(q, reason, text);
                return;
        }
        if (q->look) {
                (void) egressd_answer(q->call, NULL, q->verdict, "allowed", q->rule, q->name, q->protocol, 0, false, NULL, NULL);
                (void) request_free(q);
                return;
        }

        r = request_reserve(q, allowed, n_allowed);
        if (r < 0) {
                log_error_errno(r, "run %s: %s:%u cannot be granted", q->run->id, q->name, q->port);
                request_deny(q, "unavailable", strerror(-r));
                return;
        }
        request_record(q);
}

/* Said once until it is otherwise: a guest may ask as often as it likes. */
static void note_too_many(Egressd *e, bool too_many) {
        if (too_many && !e->nat64_too_many)
                log_warning(NAT64_NAME " names more than %d prefixes or addresses: no name's IPv6 addresses are used", NAT64_PREFIXES_MAX - 1);
        e->nat64_too_many = too_many;
}

/* Whoever resolves names here may hand out IPv6 addresses that end in IPv4 (DNS64): NAT64_NAME says which (RFC 7050). */
static void request_on_nat64(int r, const Address *addresses, size_t n, void *userdata) {
        AddressRange prefixes[EGRESSD_NAT64_MAX + NAT64_PREFIXES_MAX];
        EgressRequest *q = userdata;
        size_t n_named = q->egressd->n_nat64, n_found = 0;
        bool unknown = !q->egressd->host_known || (r < 0 && r != -ENOENT && !q->egressd->nat64_named), too_many = false;

        q->query = NULL;
        if (q->overruled) {
                request_deny(q, q->overruled, "the policy was changed");
                return;
        }

        memcpy(prefixes, q->egressd->nat64, sizeof(q->egressd->nat64));
        if (r >= 0) {
                n_found = nat64_find_prefixes(addresses, n, prefixes + n_named);
                too_many = n_found > NAT64_PREFIXES_MAX || n >= RESOLVER_ADDRESSES_MAX; /* which has no room for more */
                note_too_many(q->egressd, too_many);
        }
        if (unknown || too_many)
                request_grant(q, NULL, 0); /* an address behind one that is not known would look like any other */
        else
                request_grant(q, prefixes, n_named + n_found);
}

static void request_on_resolved(int r, const Address *addresses, size_t n, void *userdata) {
        EgressRequest *q = userdata;

        q->query = NULL; /* it frees itself */
        if (q->overruled) {
                request_deny(q, q->overruled, "the policy was changed");
                return;
        }
        if (r < 0) {
                request_deny(q, "resolve-failed", strerror(-r));
                return;
        }

        q->n_found = n < RESOLVER_ADDRESSES_MAX ? n : RESOLVER_ADDRESSES_MAX;
        memcpy(q->found, addresses, q->n_found * sizeof(*addresses));
        for (size_t i = 0; i < q->n_found; i++)
                if (q->found[i].family == AF_INET6) {
                        r = resolver_query_ipv6(q->egressd->resolver, &q->query, NAT64_NAME, request_on_nat64, q);
                        if (r < 0)
                                request_on_nat64(r, NULL, 0, q);
                        return;
                }
        request_grant(q, q->egressd->nat64, 0);
}

/* ---- another policy ---- */

/* Is it what it was allowed to be? A connection that the proxy passes on is not to be one that must be looked into, and the reverse. */
static void request_weigh_anew(EgressRequest *q) {
        bool inspect = ipc_call_peer(q->call)->roles & PEER_INJECT || strcmp(q->verdict, "inspect") == 0;
        EgressDecision d;

        egress_policy_decide(q->run->policy, q->name, q->port, q->asked_method, q->asked_path, &d);
        if (d.verdict == EGRESS_DENY)
                q->overruled = d.reason;
        else if (q->path && !q->asked_path)
                q->overruled = "unavailable"; /* it cannot be weighed */
        else if (q->second_path && egress_policy_weighs_paths(q->run->policy, q->name, q->port))
                q->overruled = "second-path"; /* nor can this */
        else if ((d.verdict == EGRESS_INSPECT) != inspect)
                q->overruled = "no-rule";
}

void egressd_requests_weigh_anew(Egressd *e, const EgressRun *run) {
        for (EgressRequest *q = e->requests; q; q = q->next)
                if (q->run == run)
                        request_weigh_anew(q);
}

/* ---- beginning ---- */

int request_begin_recorded(Egressd *e, EgressRun *run, IpcCall *call, const Question *question, const Verdict *v, const char *verdict) {
        EgressRequest *q;
        int r;

        r = request_new(&q, e, run, call, question, v);
        if (r < 0)
                return r;
        q->verdict = verdict;
        request_record(q);
        return 0;
}

/* Answers q for good, now or later. */
static int request_resolve(EgressRequest *q, bool literal) {
        Egressd *e = q->egressd;
        int r;

        egressd_refresh_resolvers(e);
        if (literal) {
                Address address;

                /* nothing to resolve; it is judged like any that a name resolves to */
                r = address_parse(q->name, &address);
                request_on_resolved(r, &address, r < 0 ? 0 : 1, q);
                return 0;
        }
        r = resolver_query(e->resolver, &q->query, q->name, host_addresses_has_ipv6(e->own), request_on_resolved, q);
        if (r < 0)
                request_deny(q, "resolve-failed", strerror(-r));
        return 0;
}

int request_begin(Egressd *e, EgressRun *run, IpcCall *call, const Question *question, const Verdict *v) {
        EgressRequest *q;
        int r;

        r = request_new(&q, e, run, call, question, v);
        return r < 0 ? r : request_resolve(q, v->literal);
}

int request_begin_look(Egressd *e, EgressRun *run, IpcCall *call, const Question *question, const Verdict *v, const char *verdict) {
        EgressRequest *q;
        int r;

        r = request_new(&q, e, run, call, question, v);
        if (r < 0)
                return r;
        q->look = true;
        q->verdict = verdict;
        return request_resolve(q, v->literal);
}
