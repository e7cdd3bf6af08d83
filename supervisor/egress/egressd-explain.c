/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Explain: what the policy that a run has at this moment says, for an operator. Decides nothing and records nothing. */

#include "egress/egressd-private.h"
#include "util/json.h"

static int reply(IpcCall *call, const EgressRun *run, const EgressDecision *d) {
        json_t *answer = egress_decision_to_json(d);

        if (!answer || json_object_set_new(answer, "digest", json_string(run->digest)) < 0 ||
            json_object_set_new(answer, "workflow", json_string(run->workflow)) < 0 ||
            json_object_set_new(answer, "stage", json_string(run->stage)) < 0) {
                json_unref(answer);
                return -ENOMEM;
        }
        return ipc_call_reply(call, answer);
}

int egressd_on_explain(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "run", "name", "port", "method", "path", NULL };
        EgressDecision d = { .verdict = EGRESS_DENY, .rule = "default", .file = "", .reason = "no-rule" };
        const char *id = NULL, *name = NULL, *method = NULL, *path = NULL;
        JsonReader reader = {};
        Egressd *e = userdata;
        uint64_t port = 0;
        EgressRun *run;

        json_check_keys(&reader, params, "", known);
        (void) json_read_string(&reader, params, "", "run", JSON_F_REQUIRED, &id);
        (void) json_read_string(&reader, params, "", "name", JSON_F_REQUIRED, &name);
        (void) json_read_uint(&reader, params, "", "port", JSON_F_REQUIRED, 1, 65535, &port);
        (void) json_read_string(&reader, params, "", "method", JSON_F_NULLABLE, &method);
        (void) json_read_string(&reader, params, "", "path", JSON_F_NULLABLE, &path);
        if (reader.failed)
                return egressd_refuse_bad_input(call, &reader);

        run = egress_state_find(e->state, id);
        if (!run)
                return ipc_call_error(call, "NoSuchRun", NULL);
        if (run->lost)
                d.reason = "unavailable";
        else if (run->policy)
                egress_policy_decide(run->policy, name, (uint16_t) port, method, path, &d);
        return reply(call, run, &d);
}
