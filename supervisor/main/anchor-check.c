/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchor-check RUN: do the layers of this run's enforcement agree? Stays as long as the run; see net/check-run.c.
 * anchor-check --host: the same once, of this host and without a run, for anchorctl doctor; prints a JSON object.
 */

#include <stdlib.h>
#include <string.h>

#include "ipc/daemon.h"
#include "net/check-run.h"
#include "net/check.h"
#include "net/fence.h"
#include "net/probe.h"
#include "policy/policy.h"
#include "util/log.h"
#include "util/text.h"

static int check_one_run(const char *run) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(check_run_freep) CheckRun *check = NULL;
        int r;

        r = fence_require();
        if (r < 0)
                return r;
        r = daemon_event_new(&event);
        if (r < 0)
                return r;
        r = check_run_new(&check, event, run);
        if (r < 0)
                return r;

        /* READY=1 is the first round's to say */
        return sd_event_loop(event);
}

/* ---- the host ---- */

static void judge(const EgressPolicy *p, CheckProbe probe, const char *name, uint16_t port, CheckTable *t) {
        CheckResult *result = &t->results[CHECK_POLICY][probe], wanted = probe == CHECK_CONTROL ? CHECK_ALLOWED : CHECK_DENIED;
        EgressDecision d;

        egress_policy_decide(p, name, port, NULL, NULL, &d);
        if (*result == CHECK_NOT_TRIED || *result == wanted)
                *result = d.verdict == EGRESS_DENY ? CHECK_DENIED : CHECK_ALLOWED;
}

/* Every policy that a run of this host may get. */
static void check_policies(CheckTable *t) {
        PolicyFinding *findings = NULL;
        const char *const *names;
        size_t n_findings = 0, n, n_never;
        const EgressNever *never = egress_never(&n_never);
        Policy *policy = NULL;
        int r;

        r = policy_load(&policy, "", &findings, &n_findings);
        if (r < 0) {
                (void) check_fail(t, r, "cannot load the policy");
                return;
        }

        n = policy_list(policy, "egress", &names);
        for (size_t i = 0; i < n; i++) {
                const EgressPolicy *p = policy_find_egress(policy, names[i], NULL);
                uint16_t port, unlisted;
                char name[254];

                if (!p)
                        continue;
                judge(p, CHECK_METADATA, EGRESS_ASKED_METADATA, 80, t);
                judge(p, CHECK_LOOPBACK, EGRESS_ASKED_LOOPBACK, 80, t);
                judge(p, CHECK_HOST, EGRESS_ASKED_HOST, 22, t);
                for (size_t k = 0; k < n_never; k++)
                        judge(p, check_probe_of(&never[k]), never[k].name, check_port_of(&never[k]), t);
                if (!egress_policy_example(p, name, &port, &unlisted))
                        continue;
                judge(p, CHECK_CONTROL, name, port, t);
                judge(p, CHECK_UNLISTED_PORT, name, unlisted, t);
        }

        policy_findings_free(findings, n_findings);
        policy_free(policy);
}

static int check_host(void) {
        _cleanup_(check_twin_freep) CheckTwin *twin = NULL;
        _cleanup_json_ json_t *answer = NULL;
        _cleanup_free_ char *text = NULL;
        CheckTable table = {};
        char reason[256] = "";
        bool agree;

        if (check_twin_new(&twin, &table) >= 0)
                (void) check_guest(twin, NULL, &table);
        (void) probe_read(PROBE_OF_DOCTOR, &table);
        check_policies(&table);

        agree = !check_disagrees(&table, reason, sizeof(reason));
        answer = json_pack("{s:b, s:s, s:o*, s:o*}", "agree", agree, "reason", reason, "probes", check_to_json(&table), "answers_frames",
                           twin ? json_boolean(check_twin_answers_frames(twin)) : NULL);
        text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
        if (!text || printf("%s\n", text) < 0 || fflush(stdout) != 0)
                return log_error_errno(-EIO, "cannot print the answer");
        return agree ? 0 : -ENOTRECOVERABLE;
}

int main(int argc, char *argv[]) {
        log_init("anchor-check");

        if (argc == 2 && strcmp(argv[1], "--host") == 0)
                return check_host() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
        if (argc == 2 && text_is_id('r', argv[1]))
                return check_one_run(argv[1]) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;

        log_error("usage: anchor-check {RUN|--host} (started by anchor-check@RUN.service and anchor-doctor.service)");
        return 2;
}
