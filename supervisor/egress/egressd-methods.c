/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <string.h>

#include "egress/egressd-private.h"
#include "util/json.h"
#include "util/log.h"

int egressd_refuse_bad_input(IpcCall *call, JsonReader *r) {
        int k;

        k = ipc_call_error(call, "BadInput", json_pack("{s:s?, s:s?}", "pointer", r->pointer, "reason", r->reason));
        json_reader_done(r);
        return k;
}

/* ---- Resolve ---- */

typedef struct Answer {
        IpcCall *call;    /* ref */
        json_t *params;   /* ref */
} Answer;

static Answer *answer_free(Answer *a) {
        if (!a)
                return NULL;
        (void) ipc_call_unref(a->call);
        json_unref(a->params);
        free(a);
        return NULL;
}
DEFINE_CLEANUP(Answer *, answer_free)

static void on_name_recorded(int r, void *userdata) {
        _cleanup_(answer_freep) Answer *a = userdata;

        if (r < 0)
                (void) ipc_call_refuse(a->call, "Unavailable", "the audit log did not take the record");
        else
                (void) ipc_call_reply(a->call, TAKE_PTR(a->params));
}

static int reply_refused(IpcCall *call, const char *rule, const char *reason) {
        return ipc_call_reply(call, json_pack("{s:s, s:i, s:s, s:s}", "verdict", "refused", "ttl", 0, "rule", rule, "reason", reason));
}

static int refuse_name(Egressd *e, EgressRun *run, IpcCall *call, const char *rule, const char *name, const char *reason, const char *qtype) {
        egressd_deny(e, run, ipc_call_peer(call), "dns.refused", rule, name, 53, reason, qtype);
        return reply_refused(call, rule, reason);
}

/* The first answer for a name is recorded before it is given, whatever type was asked; the same answer again is not news. */
static int answer_name(Egressd *e, EgressRun *run, IpcCall *call, const char *name, const char *rule, uint32_t address, bool tell_address, bool new) {
        _cleanup_(answer_freep) Answer *a = NULL;
        char text[ADDRESS_TEXT_SIZE];
        Address synthetic = address_from_ipv4(address);
        json_t *data;
        int r;

        a = calloc(1, sizeof(*a));
        if (!a)
                return -ENOMEM;
        a->call = ipc_call_ref(call);
        (void) address_format(&synthetic, text);
        a->params = json_pack("{s:s, s:s*, s:i, s:s}", "verdict", "allow", "address", tell_address ? text : NULL, "ttl", EGRESSD_SYNTHETIC_TTL, "rule", rule);
        if (!a->params)
                return -ENOMEM;
        if (!new)
                return ipc_call_reply(call, TAKE_PTR(a->params));

        data = json_pack("{s:s, s:s, s:s}", "name", name, "address", text, "rule", rule);
        r = egressd_record(e, run, "dns.allow", ipc_call_peer(call)->unit, data, on_name_recorded, a);
        if (r < 0)
                return r;
        (void) TAKE_PTR(a);
        return 0;
}

/* Types that an allowed name may be asked for, and that have nothing to say: there is no IPv6 here, and no ECH key is handed out. */
static bool has_empty_answer(const char *qtype) {
        return strcmp(qtype, "AAAA") == 0 || strcmp(qtype, "HTTPS") == 0 || strcmp(qtype, "SVCB") == 0;
}

static int resolve(IpcCall *call, json_t *params, void *userdata) {
        const char *name = NULL, *qtype = NULL, *rule = "default";
        JsonReader reader = {};
        Egressd *e = userdata;
        uint32_t address;
        EgressRun *run;
        char normal[254];
        bool new;
        int r;

        (void) json_read_string(&reader, params, "", "name", JSON_F_REQUIRED, &name);
        (void) json_read_string(&reader, params, "", "qtype", JSON_F_REQUIRED, &qtype);
        if (reader.failed)
                return egressd_refuse_bad_input(call, &reader);

        run = egress_state_find(e->state, ipc_call_peer(call)->run);
        if (!run || run->lost)
                return refuse_name(e, run, call, "default", name, "unavailable", qtype);
        if (egressd_over_budget(run))
                return refuse_name(e, run, call, "default", name, "record-budget", qtype);
        if (egress_normalise_name(name, normal) < 0 || !run->policy || !egress_policy_knows(run->policy, normal, &rule))
                return refuse_name(e, run, call, rule, name, strcmp(rule, "default") == 0 ? "no-rule" : "denied-by-rule", qtype);

        if (strcmp(qtype, "A") != 0 && !has_empty_answer(qtype))
                return refuse_name(e, run, call, rule, name, "protocol", qtype);

        /* a name that is only asked about says as much as one that is connected to: each type counts against the budget */
        r = egress_run_admit_name(e->state, run, normal, &address, &new);
        if (r < 0)
                return log_error_errno(r, "run %s: no address for %s", run->id, normal);
        if (r > 0)
                return refuse_name(e, run, call, rule, normal, "name-budget", qtype);

        return answer_name(e, run, call, normal, rule, address, !has_empty_answer(qtype), new);
}

static int on_resolve(IpcCall *call, json_t *params, void *userdata) {
        return egressd_take_turn(userdata, call, params, resolve);
}

/* ---- Refused ---- */

/* What the proxy refuses by itself, before there is a question to ask: no more than a record. Its word is all there is for it. */
static int refused(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "event", "reason", "name", "address", "port", "count", NULL };
        static const char *const reasons[] = { "rate", "malformed", "too-large", "timeout", "protocol" };
        const char *event = "", *reason = "", *name = NULL, *address = NULL;
        const Peer *peer = ipc_call_peer(call);
        uint64_t port, count = 1;
        char text[ADDRESS_TEXT_SIZE];
        JsonReader reader = {};
        Egressd *e = userdata;
        bool fine = false;
        EgressRun *run;
        Address a;

        json_check_keys(&reader, params, "", known);
        (void) json_read_string(&reader, params, "", "event", JSON_F_REQUIRED, &event);
        (void) json_read_string(&reader, params, "", "reason", JSON_F_REQUIRED, &reason);
        (void) json_read_string(&reader, params, "", "name", JSON_F_NULLABLE, &name);
        (void) json_read_string(&reader, params, "", "address", JSON_F_NULLABLE, &address);
        port = strcmp(event, "dns") == 0 ? 53 : 0; /* a connection whose destination cannot be read has none */
        (void) json_read_uint(&reader, params, "", "port", 0, 1, 65535, &port);
        (void) json_read_uint(&reader, params, "", "count", 0, 1, EGRESS_REFUSED_MAX, &count);
        if (!reader.failed && name && strlen(name) > EGRESS_REFUSED_NAME_MAX)
                json_reader_fail(&reader, "", "name", "is too long");
        if (!reader.failed && strcmp(event, "dns") != 0 && strcmp(event, "connection") != 0)
                json_reader_fail(&reader, "", "event", "must be \"dns\" or \"connection\"");
        for (size_t i = 0; i < ELEMENTSOF(reasons); i++)
                fine = fine || strcmp(reason, reasons[i]) == 0;
        if (!reader.failed && !fine)
                json_reader_fail(&reader, "", "reason", "is none that a proxy decides");
        if (reader.failed)
                return egressd_refuse_bad_input(call, &reader);

        run = egress_state_find(e->state, peer->run);
        if (address && address_parse(address, &a) >= 0)
                name = run ? egress_run_name_of(run, &a) ?: address_format(&a, text) : address_format(&a, text);
        egressd_deny_many(e, run, peer, strcmp(event, "dns") == 0 ? "dns.refused" : "egress.deny", "default", name ?: "", (uint16_t) port,
                          reason, NULL, count);
        return ipc_call_reply(call, NULL);
}

static int on_refused(IpcCall *call, json_t *params, void *userdata) {
        return egressd_take_turn(userdata, call, params, refused);
}

/* ---- Watch, Ping ---- */

static int on_watch(IpcCall *call, json_t *params, void *userdata) {
        return egressd_watch(userdata, call);
}

static int on_ping(IpcCall *call, json_t *params, void *userdata) {
        Egressd *e = userdata;
        size_t policies = 0;

        if (!e->audit_works)
                return ipc_call_refuse(call, "Unavailable", "the audit log does not answer, so nothing is granted");

        for (const EgressRun *run = egress_state_runs(e->state); run; run = run->next)
                policies += run->policy != NULL;
        return ipc_call_reply(call, json_pack("{s:I, s:I}", "policies", (json_int_t) policies,
                                              "runs", (json_int_t) egress_state_count(e->state)));
}

const IpcMethod egressd_methods[] = {
        { "io.anchorhold.Egress.Register", PEER_ANCHORD,                 egressd_on_register },
        { "io.anchorhold.Egress.Release",  PEER_ANCHORD,                 egressd_on_release },
        { "io.anchorhold.Egress.Resolve",  PEER_PROXY,                   on_resolve },
        { "io.anchorhold.Egress.Refused",  PEER_PROXY,                   on_refused },
        { "io.anchorhold.Egress.Look",     PEER_PROXY,                   egressd_on_look },
        { "io.anchorhold.Egress.Connect",  PEER_PROXY | PEER_INJECT,     egressd_on_connect },
        { "io.anchorhold.Egress.Judge",    PEER_CHECK,                   egressd_on_judge },
        { "io.anchorhold.Egress.Done",     PEER_PROXY | PEER_INJECT,     egressd_on_done },
        { "io.anchorhold.Egress.Watch",    PEER_PROXY | PEER_INJECT,     on_watch },
        { "io.anchorhold.Egress.Amend",    PEER_OPERATOR,                egressd_on_amend },
        { "io.anchorhold.Egress.Reload",   PEER_OPERATOR,                egressd_on_reload },
        { "io.anchorhold.Egress.Explain",  PEER_OPERATOR,                egressd_on_explain },
        { "io.anchorhold.Egress.Ping",     PEER_ANCHORD | PEER_OPERATOR, on_ping },
        {},
};
