/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * From a question to a grant:
 *
 *   target    which name is it about? A synthetic address stands for one; any other address is "literal-address"
 *   decide    the run's frozen policy, for (name, port) and, if it is known, method and path
 *   agree     what the connection says about itself against that name
 *   resolve   on the host, only now, and only what may be connected to
 *   judge     each address; those that fail are left out, and if none is left the reason is theirs
 *   record    the audit log has it, and the database
 *   grant     each address in the fence's map, for the asker's cgroup
 *   answer    only now
 *
 * The steps up to "agree" are plain functions over a Question (egressd-question.c); from "resolve" on an EgressRequest carries
 * it across turns of the loop (egressd-request.c).
 */

#include <errno.h>
#include <string.h>

#include "egress/agreement-api.h"
#include "egress/egressd-request.h"
#include "util/log.h"

static int deny(Egressd *e, EgressRun *run, IpcCall *call, const Question *question, const Verdict *v) {
        const char *name = v->name[0] ? v->name : question->name ?
                                                                 : question->address;

        egressd_deny(e, run, ipc_call_peer(call), "egress.deny", v->rule, name, (uint16_t) question->port, v->reason, v->detail);
        return egressd_answer(call, NULL, "deny", v->reason, v->rule, v->name, NULL, 0, false, NULL, NULL);
}

/* A name that was never looked up (CONNECT) counts against the budgets like one that was. */
static int admit(Egressd *e, EgressRun *run, Verdict *v) {
        uint32_t address;
        bool new;
        int r;

        if (v->literal)
                return 0; /* it is no name, and needs no address to stand for it */

        r = egress_run_admit_name(e->state, run, v->name, &address, &new);
        if (r > 0)
                v->reason = "name-budget";
        return r < 0 ? r : 0;
}

static int look(IpcCall *call, json_t *params, void *userdata) {
        const char *verdict;
        Egressd *e = userdata;
        EgressRun *run = egress_state_find(e->state, ipc_call_peer(call)->run);
        JsonReader reader = {};
        Question question = {};
        Verdict v;
        int r;

        if (!question_read(&reader, params, true, &question))
                return egressd_refuse_bad_input(call, &reader);

        question_decide(e, run, &question, &v);
        if (!v.reason) {
                r = admit(e, run, &v);
                if (r < 0)
                        return r;
        }
        if (v.reason)
                return deny(e, run, call, &question, &v);

        verdict = v.decision.verdict == EGRESS_INSPECT ? "inspect" : "pass";
        if (question.resolve)
                return request_begin_look(e, run, call, &question, &v, verdict);
        return egressd_answer(call, NULL, verdict, "allowed", v.rule, v.name, protocol_to_text(v.decision.protocol), 0, false, NULL, NULL);
}

int egressd_note_request(EgressGrant *g, const Peer *peer, const char *method, const char *path) {
        return peer->roles & PEER_INJECT ? egress_grant_set_request(g, method, path) : egress_grant_add_request(g, method, path);
}

/* One more request on a connection that is open under an earlier grant. */
static int connect_within(Egressd *e, EgressRun *run, IpcCall *call, const Question *question, Verdict *v) {
        EgressGrant *g = egress_run_find_grant(run, question->within, ipc_call_peer(call)->cgroup_id);
        int r;

        if (!g || strcmp(g->name, v->name) != 0 || g->port != question->port) {
                v->reason = "unavailable";
                v->detail = "no such grant";
                return deny(e, run, call, question, v);
        }

        if (question->stream > 0 && question->method && question->path)
                r = egress_grant_add_stream(g, question->stream, question->method, question->path, question->open, question->n_open);
        else
                r = egressd_note_request(g, ipc_call_peer(call), question->method, question->path);
        if (r == -ENOSPC) {
                v->reason = "unavailable";
                v->detail = "too many requests on one connection";
                return deny(e, run, call, question, v);
        }
        if (r < 0)
                return r;
        g->second_path = g->second_path || question->second_path;
        return request_begin_recorded(e, run, call, question, v, "pass");
}

static int ask(IpcCall *call, json_t *params, void *userdata) {
        const Peer *peer = ipc_call_peer(call);
        bool for_inject = peer->roles & PEER_INJECT;
        Egressd *e = userdata;
        EgressRun *run = egress_state_find(e->state, peer->run);
        JsonReader reader = {};
        Question question = {};
        Verdict v;
        int r;

        if (!question_read(&reader, params, false, &question))
                return egressd_refuse_bad_input(call, &reader);

        question_decide(e, run, &question, &v);
        if (!v.reason)
                question_agree(peer, &question, &v);
        if (!v.reason) {
                r = admit(e, run, &v);
                if (r < 0)
                        return r;
        }
        if (v.reason)
                return deny(e, run, call, &question, &v);
        if (question.within > 0)
                return connect_within(e, run, call, &question, &v);

        if (v.decision.verdict == EGRESS_INSPECT && !for_inject)
                return request_begin_recorded(e, run, call, &question, &v, "inspect");
        return request_begin(e, run, call, &question, &v);
}

int egressd_on_look(IpcCall *call, json_t *params, void *userdata) {
        return egressd_take_turn(userdata, call, params, look);
}

int egressd_on_connect(IpcCall *call, json_t *params, void *userdata) {
        return egressd_take_turn(userdata, call, params, ask);
}

static int done(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "grant", "bytes_in", "bytes_out", "duration_us", NULL };
        const Peer *peer = ipc_call_peer(call);
        uint64_t id = 0, in = 0, out = 0, duration = 0;
        JsonReader reader = {};
        Egressd *e = userdata;
        EgressRun *run;
        EgressGrant *g;

        json_check_keys(&reader, params, "", known);
        (void) json_read_uint(&reader, params, "", "grant", JSON_F_REQUIRED, 1, INT64_MAX, &id);
        (void) json_read_uint(&reader, params, "", "bytes_in", JSON_F_REQUIRED, 0, INT64_MAX, &in);
        (void) json_read_uint(&reader, params, "", "bytes_out", JSON_F_REQUIRED, 0, INT64_MAX, &out);
        (void) json_read_uint(&reader, params, "", "duration_us", JSON_F_REQUIRED, 0, INT64_MAX, &duration);
        if (reader.failed)
                return egressd_refuse_bad_input(call, &reader);

        run = egress_state_find(e->state, peer->run);
        g = run ? egress_run_find_grant(run, id, peer->cgroup_id) : NULL;
        if (!g) { /* ended here before */
                egressd_close_told(e, peer, id, in, out, duration);
                return ipc_call_reply(call, NULL);
        }

        egressd_close(e, run, peer->unit,
                      json_pack("{s:I, s:s, s:i, s:s, s:I, s:I, s:I}", "grant", (json_int_t) id, "name", g->name, "port", g->port, "rule", g->rule,
                                "bytes_in", (json_int_t) in, "bytes_out", (json_int_t) out, "duration_us", (json_int_t) duration));
        for (size_t i = 0; i < g->n_fence; i++)
                (void) grant_map_release(e->map, g->fence[i]);
        egress_run_remove_grant(e->state, g);
        return ipc_call_reply(call, NULL);
}

int egressd_on_done(IpcCall *call, json_t *params, void *userdata) {
        return egressd_take_turn(userdata, call, params, done);
}
