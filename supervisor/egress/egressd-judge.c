/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What would be decided? For the agreement check (net/check-run.c): by the same compiled object as everything else, but nothing is
 * resolved, granted, recorded or counted. */

#include <errno.h>
#include <string.h>

#include "egress/egressd-private.h"
#include "util/json.h"

enum { JUDGE_QUESTIONS_MAX = 32 };

static const char *verdict_of(const EgressRun *run, const char *name, uint16_t port) {
        EgressDecision d;

        if (run->lost || !run->policy || !name)
                return "deny";
        egress_policy_decide(run->policy, name, port, NULL, NULL, &d);
        return d.verdict == EGRESS_DENY ? "deny" : d.verdict == EGRESS_INSPECT ? "inspect" : "pass";
}

/* NULL if the question has no meaning here: a control of a policy that allows nothing. */
static const char *judge(const EgressRun *run, const json_t *question) {
        const char *address = json_string_value(json_object_get(question, "address")), *name = json_string_value(json_object_get(question, "name")),
                   *control = json_string_value(json_object_get(question, "control"));
        json_int_t port = json_integer_value(json_object_get(question, "port"));
        uint16_t allowed, unlisted;
        char example[254];
        Address a;

        if (control) {
                if (run->lost || !run->policy || !egress_policy_example(run->policy, example, &allowed, &unlisted))
                        return NULL;
                return verdict_of(run, example, strcmp(control, "allowed") == 0 ? allowed : unlisted);
        }
        if (port < 1 || port > UINT16_MAX)
                return "deny";
        /* a synthetic address stands for its name */
        if (address && address_parse(address, &a) >= 0)
                name = egress_run_name_of(run, &a) ?: address;
        return verdict_of(run, name, (uint16_t) port);
}

int egressd_on_judge(IpcCall *call, json_t *params, void *userdata) {
        const json_t *questions = json_object_get(params, "questions");
        _cleanup_json_ json_t *verdicts = json_array();
        Egressd *e = userdata;
        const json_t *question;
        const EgressRun *run;
        size_t i;

        if (!json_is_array(questions) || json_array_size(questions) > JUDGE_QUESTIONS_MAX)
                return ipc_call_error(call, "BadInput", json_pack("{s:s, s:s}", "pointer", "/questions", "reason", "must be a short array"));

        run = egress_state_find(e->state, ipc_call_peer(call)->run);
        if (!run)
                return ipc_call_error(call, "NoSuchRun", NULL);

        json_array_foreach(questions, i, question) {
                const char *verdict = judge(run, question);

                if (json_array_append_new(verdicts, verdict ? json_string(verdict) : json_null()) < 0)
                        return -ENOMEM;
        }
        return ipc_call_reply(call, json_pack("{s:s, s:O}", "digest", run->digest, "verdicts", verdicts));
}
