/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * From a question to a grant:
 *
 *   target    which name is it about? A synthetic address stands for one; any other address is "literal-address"
 *   decide    the run's frozen policy, for (name, port) and, if it is known, method and path
 *   agree     what the connection says about itself against that name
 *   resolve   on the host, only now, and only what may be connected to
 *   judge     each address; those that fail are left out, and if none is left the reason is theirs
 *   grant     each address in the fence's map, for the asker's cgroup
 *   record    the audit log has it
 *   answer    only now
 *
 * The steps up to "agree" are plain functions over a Question; from "resolve" on an EgressRequest carries it across
 * turns of the loop. If a later step fails, what earlier ones made is taken back.
 */

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "egress/agreement.h"
#include "egress/egressd-private.h"
#include "util/json.h"
#include "util/log.h"

typedef struct Question {
        const char *address, *name, *sni, *host, *method, *path; /* borrowed from the call's parameters */
        uint64_t port, within;
        EgressProtocol protocol;
        bool ech;
} Question;

typedef struct Verdict {
        EgressDecision decision;
        const char *reason;   /* NULL: not denied (so far) */
        const char *rule;
        char name[254];       /* "" if it could not be told */
        const char *detail;   /* for the record; may be NULL */
} Verdict;

struct EgressRequest {
        Egressd *egressd;     /* borrowed */
        EgressRequest *next, **prev;
        IpcCall *call;        /* ref */
        EgressRun *run;       /* borrowed; requests are cancelled before it goes */
        char name[254];
        char *rule;           /* owned: the policy outlives the request, but not its reload */
        uint16_t port;
        const char *protocol, *verdict; /* static */
        char *method, *path;  /* owned; may be NULL */
        ResolverQuery *query; /* owned */
        uint64_t grant_id;
        json_t *addresses;    /* ref */
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
        free(q->rule);
        free(q->method);
        free(q->path);
        if (q->prev) {
                *q->prev = q->next;
                if (q->next)
                        q->next->prev = q->prev;
                q->egressd->n_requests--;
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

static int request_new(EgressRequest **ret, Egressd *e, EgressRun *run, IpcCall *call, const Question *question, const Verdict *v) {
        _cleanup_(request_freep) EgressRequest *q = NULL;

        assert(v->rule);

        if (e->n_requests >= EGRESSD_REQUESTS_MAX)
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
        };
        strcpy(q->name, v->name);
        q->rule = strdup(v->rule);
        q->method = question->method ? text_escape(question->method, strnlen(question->method, 32), false) : NULL;
        if (!q->rule || (question->method && !q->method) || copy_path(&q->path, question->path) < 0)
                return -ENOMEM;

        q->next = e->requests;
        q->prev = &e->requests;
        if (q->next)
                q->next->prev = &q->next;
        e->requests = q;
        e->n_requests++;
        *ret = TAKE_PTR(q);
        return 0;
}

static void request_cancel(EgressRequest *q) {
        (void) ipc_call_refuse(q->call, "Unavailable", "the run is released");
        q->cancelled = true;
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

/* ---- target, decide, agree ---- */

static bool read_question(JsonReader *reader, json_t *params, bool look, Question *ret) {
        const char *protocol = "raw";

        if (look) {
                static const char *const known[] = { "address", "name", "port", NULL };

                json_check_keys(reader, params, "", known);
        } else {
                static const char *const known[] = { "address", "name", "port", "protocol", "sni", "ech", "host", "method", "path", "within", NULL };

                json_check_keys(reader, params, "", known);
        }

        (void) json_read_string(reader, params, "", "address", JSON_F_NULLABLE, &ret->address);
        (void) json_read_string(reader, params, "", "name", JSON_F_NULLABLE, &ret->name);
        (void) json_read_uint(reader, params, "", "port", JSON_F_REQUIRED, 1, 65535, &ret->port);
        if (!look && json_read_string(reader, params, "", "protocol", JSON_F_REQUIRED, &protocol) &&
            protocol_from_text(protocol, &ret->protocol) < 0)
                json_reader_fail(reader, "", "protocol", "must be \"tls\", \"http\" or \"raw\"");
        (void) json_read_string(reader, params, "", "sni", JSON_F_NULLABLE, &ret->sni);
        (void) json_read_bool(reader, params, "", "ech", JSON_F_NULLABLE, &ret->ech);
        (void) json_read_string(reader, params, "", "host", JSON_F_NULLABLE, &ret->host);
        (void) json_read_string(reader, params, "", "method", JSON_F_NULLABLE, &ret->method);
        (void) json_read_string(reader, params, "", "path", JSON_F_NULLABLE, &ret->path);
        (void) json_read_uint(reader, params, "", "within", JSON_F_NULLABLE, 1, INT64_MAX, &ret->within);
        if (!ret->address == !ret->name)
                json_reader_fail(reader, "", "name", "either a name or an address");
        return !reader->failed;
}

static void find_target(const EgressRun *run, const Question *question, Verdict *v) {
        const char *text = question->name ?: question->address, *name;
        Address address;

        if (address_parse(text, &address) >= 0) {
                name = run ? egress_run_name_of(run, &address) : NULL;
                if (name)
                        strcpy(v->name, name);
                else
                        v->reason = "literal-address";
        } else if (question->address || egress_normalise_name(text, v->name) < 0) {
                v->name[0] = '\0';
                v->reason = "no-rule";
        }
}

/* An address that a guest could write in more ways than inet_pton() reads ends in a label of digits, which no name does. */
static void decide(Egressd *e, EgressRun *run, const Question *question, Verdict *v) {
        *v = (Verdict) { .decision = { .verdict = EGRESS_DENY }, .rule = "default" };

        find_target(run, question, v);
        if (v->reason)
                return;
        if (!run || run->lost) {
                v->reason = "unavailable";
                v->detail = run ? "the frozen policy is lost" : "the run is not registered";
                return;
        }
        if (!e->audit_works) {
                v->reason = "unavailable";
                v->detail = "the audit log does not answer";
                return;
        }
        if (egressd_over_budget(run)) {
                v->reason = "record-budget";
                return;
        }
        if (!run->policy) {
                v->reason = "no-rule";
                return;
        }

        egress_policy_decide(run->policy, v->name, (uint16_t) question->port, question->method, question->path, &v->decision);
        v->rule = v->decision.rule;
        if (v->decision.verdict == EGRESS_DENY)
                v->reason = v->decision.reason;
}

static void agree(const Peer *peer, const Question *question, Verdict *v) {
        Observed seen = { .protocol = question->protocol, .sni = question->sni, .ech = question->ech, .host = question->host };

        if (peer->roles & PEER_INJECT) {
                /* It ended the TLS that the proxy had compared already; it has the requests, and only inspected hosts are its business. */
                if (v->decision.protocol != EGRESS_TLS || question->protocol != EGRESS_TLS)
                        v->reason = "protocol";
                else if (v->decision.verdict != EGRESS_INSPECT)
                        v->reason = "no-rule";
                else if (question->host && !agreement_host_matches(question->host, v->name, (uint16_t) question->port))
                        v->reason = "fronting";
        } else
                v->reason = agreement_check(v->name, (uint16_t) question->port, v->decision.protocol, &seen);

        if (v->reason && strcmp(v->reason, "fronting") == 0)
                v->detail = question->sni ?: question->host;
        else if (v->reason && strcmp(v->reason, "protocol") == 0)
                v->detail = protocol_to_text(question->protocol);
}

static int answer(IpcCall *call, const char *verdict, const char *reason, const char *rule, const char *name, const char *protocol,
                  uint64_t grant, json_t *addresses) {
        json_t *params = json_pack("{s:s, s:s, s:s, s:s, s:s*, s:O*}", "verdict", verdict, "reason", reason, "rule", rule, "name", name,
                                   "protocol", protocol, "addresses", addresses);

        if (params && grant > 0 && json_object_set_new(params, "grant", json_integer((json_int_t) grant)) < 0)
                params = json_unref(params);
        if (!params)
                return -ENOMEM;
        return ipc_call_reply(call, params);
}

static int deny(Egressd *e, EgressRun *run, IpcCall *call, const Question *question, const Verdict *v) {
        const char *name = v->name[0] ? v->name : question->name ?: question->address;

        egressd_deny(e, run, ipc_call_peer(call), "egress.deny", v->rule, name, (uint16_t) question->port, v->reason, v->detail);
        return answer(call, "deny", v->reason, v->rule, v->name, NULL, 0, NULL);
}

/* The same, later, for a request. */
static void request_deny(EgressRequest *q, const char *reason, const char *detail) {
        egressd_deny(q->egressd, q->run, ipc_call_peer(q->call), "egress.deny", q->rule, q->name, q->port, reason, detail);
        (void) answer(q->call, "deny", reason, q->rule, q->name, NULL, 0, NULL);
        (void) request_free(q);
}

/* ---- grant, record, answer ---- */

static void request_take_back(EgressRequest *q) {
        EgressGrant *g = q->run ? egress_run_find_grant(q->run, q->grant_id, ipc_call_peer(q->call)->cgroup_id) : NULL;

        if (!g)
                return;
        for (size_t i = 0; i < g->n_fence; i++)
                (void) grant_map_release(q->egressd->map, g->fence[i]);
        egress_run_remove_grant(q->egressd->state, g);
}

static void request_on_recorded(int r, void *userdata) {
        EgressRequest *q = userdata;

        q->recording = false;
        egressd_note_audit(q->egressd, r);
        if (q->cancelled) {
                (void) request_free(q);
                return;
        }

        if (r < 0) {
                request_take_back(q);
                request_deny(q, "unavailable", "the audit log did not take the record");
                return;
        }
        if (!ipc_call_is_live(q->call)) {
                request_take_back(q); /* whoever asked is gone */
                (void) request_free(q);
                return;
        }

        (void) answer(q->call, q->verdict, "allowed", q->rule, q->name, NULL, q->grant_id, q->addresses);
        (void) request_free(q);
}

static void request_record(EgressRequest *q) {
        json_t *data;
        int r;

        data = json_pack("{s:s, s:i, s:s, s:s, s:s, s:s*, s:s*, s:O*}", "name", q->name, "port", q->port, "protocol", q->protocol,
                         "verdict", q->verdict, "rule", q->rule, "method", q->method, "path", q->path, "addresses", q->addresses);
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

static int request_grant(EgressRequest *q, const Address *addresses, size_t n) {
        const Peer *peer = ipc_call_peer(q->call);
        uint64_t fence[GRANT_ADDRESSES_MAX], expires = time_boottime() + EGRESSD_GRANT_USEC;
        size_t n_fence = 0;
        EgressGrant *g;
        int r = -EPERM;

        q->addresses = json_array();
        if (!q->addresses)
                return -ENOMEM;

        for (size_t i = 0; i < n && n_fence < GRANT_ADDRESSES_MAX; i++) {
                char text[ADDRESS_TEXT_SIZE];

                r = grant_map_add(q->egressd->map, peer->cgroup_id, addresses[i].family, addresses[i].bytes, q->port, IPPROTO_TCP,
                                  expires, &fence[n_fence]);
                if (r < 0)
                        continue;
                n_fence++;
                if (json_array_append_new(q->addresses, json_string(address_format(&addresses[i], text))) < 0) {
                        r = -ENOMEM;
                        break;
                }
        }

        if (n_fence > 0 && r != -ENOMEM)
                r = egress_run_add_grant(q->egressd->state, q->run, peer->unit, peer->cgroup_id, q->name, q->port, q->rule, fence, n_fence, &g);
        if (r < 0) {
                for (size_t i = 0; i < n_fence; i++)
                        (void) grant_map_release(q->egressd->map, fence[i]);
                return r;
        }

        q->grant_id = g->id;
        return 0;
}

/* ---- resolve, judge ---- */

static const char *verdict_reason(AddressVerdict v) {
        switch (v) {
        case ADDRESS_METADATA:
                return "metadata";
        case ADDRESS_OWN:
                return "own-address";
        default:
                return "not-global";
        }
}

static void request_on_resolved(int r, const Address *addresses, size_t n, void *userdata) {
        EgressRequest *q = userdata;
        Address allowed[RESOLVER_ADDRESSES_MAX];
        char text[ADDRESS_TEXT_SIZE] = "";
        const char *reason = "resolve-failed";
        const Address *own;
        size_t n_own, n_allowed = 0;

        q->query = NULL; /* it frees itself */
        if (r < 0) {
                request_deny(q, reason, strerror(-r));
                return;
        }
        r = host_addresses_get(q->egressd->own, &own, &n_own);
        if (r < 0) {
                log_error_errno(r, "cannot read this host's addresses");
                request_deny(q, "unavailable", "this host's addresses cannot be read");
                return;
        }

        for (size_t i = 0; i < n; i++) {
                AddressVerdict v = address_judge(&addresses[i], own, n_own, q->egressd->networks, q->egressd->n_networks);

                if (address_verdict_is_allowed(v)) {
                        allowed[n_allowed++] = addresses[i];
                } else if (text[0] == '\0' || v == ADDRESS_METADATA) {
                        reason = verdict_reason(v);
                        (void) address_format(&addresses[i], text);
                }
        }
        if (n_allowed == 0) {
                request_deny(q, reason, text);
                return;
        }

        r = request_grant(q, allowed, n_allowed);
        if (r < 0) {
                log_error_errno(r, "run %s: %s:%u cannot be granted", q->run->id, q->name, q->port);
                request_deny(q, "unavailable", strerror(-r));
                return;
        }
        request_record(q);
}

/* ---- the methods ---- */

static int refuse_bad_input(IpcCall *call, JsonReader *r) {
        int k;

        k = ipc_call_error(call, "BadInput", json_pack("{s:s?, s:s?}", "pointer", r->pointer, "reason", r->reason));
        json_reader_done(r);
        return k;
}

/* A name that was never looked up (CONNECT) counts against the budgets like one that was. */
static int admit(Egressd *e, EgressRun *run, Verdict *v) {
        uint32_t address;
        bool new;
        int r;

        r = egress_run_admit_name(e->state, run, v->name, &address, &new);
        if (r > 0)
                v->reason = "name-budget";
        return r < 0 ? r : 0;
}

int egressd_on_look(IpcCall *call, json_t *params, void *userdata) {
        const char *verdict;
        Egressd *e = userdata;
        EgressRun *run = egress_state_find(e->state, ipc_call_peer(call)->run);
        JsonReader reader = {};
        Question question = {};
        Verdict v;
        int r;

        if (!read_question(&reader, params, true, &question))
                return refuse_bad_input(call, &reader);

        decide(e, run, &question, &v);
        if (!v.reason) {
                r = admit(e, run, &v);
                if (r < 0)
                        return r;
        }
        if (v.reason)
                return deny(e, run, call, &question, &v);

        verdict = v.decision.verdict == EGRESS_INSPECT ? "inspect" : "pass";
        return answer(call, verdict, "allowed", v.rule, v.name, protocol_to_text(v.decision.protocol), 0, NULL);
}

/* One more request on a connection that is open under an earlier grant. */
static int connect_within(Egressd *e, EgressRun *run, IpcCall *call, const Question *question, Verdict *v) {
        const EgressGrant *g = egress_run_find_grant(run, question->within, ipc_call_peer(call)->cgroup_id);
        EgressRequest *q;
        int r;

        if (!g || strcmp(g->name, v->name) != 0 || g->port != question->port) {
                v->reason = "unavailable";
                v->detail = "no such grant";
                return deny(e, run, call, question, v);
        }

        r = request_new(&q, e, run, call, question, v);
        if (r < 0)
                return r;
        request_record(q);
        return 0;
}

int egressd_on_connect(IpcCall *call, json_t *params, void *userdata) {
        const Peer *peer = ipc_call_peer(call);
        bool for_inject = peer->roles & PEER_INJECT;
        Egressd *e = userdata;
        EgressRun *run = egress_state_find(e->state, peer->run);
        JsonReader reader = {};
        Question question = {};
        EgressRequest *q;
        Verdict v;
        int r;

        if (!read_question(&reader, params, false, &question))
                return refuse_bad_input(call, &reader);

        decide(e, run, &question, &v);
        if (!v.reason)
                agree(peer, &question, &v);
        if (!v.reason) {
                r = admit(e, run, &v);
                if (r < 0)
                        return r;
        }
        if (v.reason)
                return deny(e, run, call, &question, &v);
        if (question.within > 0)
                return connect_within(e, run, call, &question, &v);

        r = request_new(&q, e, run, call, &question, &v);
        if (r < 0)
                return r;

        if (v.decision.verdict == EGRESS_INSPECT && !for_inject) {
                q->verdict = "inspect";
                request_record(q);
                return 0;
        }

        r = resolver_query(e->resolver, &q->query, v.name, host_addresses_has_ipv6(e->own), request_on_resolved, q);
        if (r < 0)
                request_deny(q, "resolve-failed", strerror(-r));
        return 0;
}

static void on_close_recorded(int r, void *userdata) {
        egressd_note_audit(userdata, r);
}

int egressd_on_done(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "grant", "bytes_in", "bytes_out", "duration_us", NULL };
        const Peer *peer = ipc_call_peer(call);
        uint64_t id = 0, in = 0, out = 0, duration = 0;
        JsonReader reader = {};
        Egressd *e = userdata;
        EgressRun *run;
        EgressGrant *g;
        int r;

        json_check_keys(&reader, params, "", known);
        (void) json_read_uint(&reader, params, "", "grant", JSON_F_REQUIRED, 1, INT64_MAX, &id);
        (void) json_read_uint(&reader, params, "", "bytes_in", JSON_F_REQUIRED, 0, INT64_MAX, &in);
        (void) json_read_uint(&reader, params, "", "bytes_out", JSON_F_REQUIRED, 0, INT64_MAX, &out);
        (void) json_read_uint(&reader, params, "", "duration_us", JSON_F_REQUIRED, 0, INT64_MAX, &duration);
        if (reader.failed)
                return refuse_bad_input(call, &reader);

        run = egress_state_find(e->state, peer->run);
        g = run ? egress_run_find_grant(run, id, peer->cgroup_id) : NULL;
        if (!g)
                return ipc_call_reply(call, NULL); /* revoked meanwhile */

        r = egressd_record(e, run, "conn.close", peer->unit,
                           json_pack("{s:I, s:s, s:i, s:s, s:I, s:I, s:I}", "grant", (json_int_t) id, "name", g->name, "port", g->port,
                                     "rule", g->rule, "bytes_in", (json_int_t) in, "bytes_out", (json_int_t) out,
                                     "duration_us", (json_int_t) duration), on_close_recorded, e);
        if (r < 0)
                log_warning_errno(r, "run %s: the end of a connection to %s could not be recorded", run->id, g->name);

        for (size_t i = 0; i < g->n_fence; i++)
                (void) grant_map_release(e->map, g->fence[i]);
        egress_run_remove_grant(e->state, g);
        return ipc_call_reply(call, NULL);
}
