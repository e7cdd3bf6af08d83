/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchor-check@RUN: do the layers agree, before the run begins and every five seconds?
 *
 * One round: the probes of check.h to the run's network; what anchor-probe@RUN has found of the programs of the run's cgroup (probe.h); then the
 * same questions to egressd, which answers from the policy that it enforces (io.anchorhold.Egress.Judge). The policy's own control is some name and port
 * that it allows.
 *
 * A disagreement ends the run. It is recorded as `enforcement.mismatch`, anchord is told, and then this process exits with
 * an error: anchor-run@ is bound to this unit, so that the run ends whoever else listens. The same if this process dies of anything.
 *
 * That egressd does not answer is no disagreement: without it nothing is granted, and anchord says that it is lost. But no run begins then.
 */

#include <errno.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "audit/audit.h"
#include "ipc/ipc.h"
#include "net/check-run.h"
#include "net/check.h"
#include "net/probe.h"
#include "util/log.h"
#include "util/text.h"

#define EGRESS_SOCKET "/run/anchorhold/egress.sock"
#define RUN_API_SOCKET "/run/anchorhold/run-api.sock"
#define ROUND_USEC (5 * 1000 * 1000ULL)
#define TELL_USEC (3 * 1000 * 1000ULL)
#define FIRST_ANSWER_USEC (10 * 1000 * 1000ULL) /* egressd may be starting */
#define ANSWER_USEC (4 * 1000 * 1000ULL)

struct CheckRun {
        sd_event *event;        /* ref */
        sd_event_source *timer; /* ref */
        IpcClient *egress;      /* owned */
        CheckTwin *twin;        /* owned */
        CheckTable table;
        char run[ID_LENGTH + 1];
        char *probe; /* owned; where its probe writes */
        bool ready;
};

/* What egressd is asked, and which probe it stands for. `control`: a port of a name that the policy allows ("allowed"), or one
 * that no rule for it names ("unlisted"). */
typedef struct Question {
        CheckProbe probe;
        const char *address, *name, *control;
        int port;
} Question;

/* And then each name that no policy may allow. */
static const Question questions[] = {
        { CHECK_METADATA,      .address = EGRESS_ASKED_METADATA,   .port = 80  },
        { CHECK_LOOPBACK,      .address = EGRESS_ASKED_LOOPBACK,   .port = 80  },
        { CHECK_HOST,          .address = EGRESS_ASKED_HOST,       .port = 22  },
        { CHECK_UNLISTED_PORT, .control = "unlisted"                           },
        { CHECK_CONTROL,       .control = "allowed"                            },
};

static size_t count_questions(void) {
        size_t n;

        (void) egress_never(&n);
        return ELEMENTSOF(questions) + n;
}

static Question get_question(size_t i) {
        const EgressNever *never;
        size_t n;

        if (i < ELEMENTSOF(questions))
                return questions[i];
        never = egress_never(&n) + (i - ELEMENTSOF(questions));
        return (Question) { check_probe_of(never), .name = never->name, .port = check_port_of(never) };
}

/* ---- the end ---- */

static void tell_anchord(CheckRun *c, const char *reason) {
        _cleanup_(ipc_client_freep) IpcClient *anchord = NULL;
        _cleanup_json_ json_t *reply = NULL;
        _cleanup_free_ char *error = NULL;
        int r;

        r = ipc_client_new(&anchord, NULL, RUN_API_SOCKET);
        if (r >= 0)
                r = ipc_client_call(anchord, "io.anchorhold.Run.Mismatch", json_pack("{s:s}", "reason", reason), NULL, 0, TELL_USEC, &reply, &error, NULL, 0);
        if (r < 0)
                log_warning_errno(r, "run %s: cannot tell anchord (%s); the run ends with this unit", c->run, error ?: "no answer");
}

static int stop_run(CheckRun *c, const char *reason) {
        int r;

        log_error("run %s: enforcement.mismatch: %s. The run is stopped", c->run, reason);
        r = audit_append_sync("enforcement.mismatch", c->run, NULL, NULL, json_pack("{s:s, s:o*}", "reason", reason, "probes", check_to_json(&c->table)));
        if (r < 0)
                log_error_errno(r, "run %s: the mismatch is not in the audit log", c->run);
        tell_anchord(c, reason);
        return sd_event_exit(c->event, -ENOTRECOVERABLE);
}

/* ---- a round ---- */

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata);

static int next_round(CheckRun *c, uint64_t in_usec) {
        int r;

        if (!c->timer)
                return sd_event_add_time_relative(c->event, &c->timer, CLOCK_BOOTTIME, in_usec, 100 * 1000, on_timer, c);
        r = sd_event_source_set_time_relative(c->timer, in_usec);
        return r < 0 ? r : sd_event_source_set_enabled(c->timer, SD_EVENT_ONESHOT);
}

static int end_round(CheckRun *c, bool asked) {
        char reason[256];
        int r;

        if (check_disagrees(&c->table, reason, sizeof(reason)))
                return stop_run(c, reason);

        if (!asked && !c->ready) {
                log_error("run %s: egressd does not answer, so the run does not begin", c->run);
                return sd_event_exit(c->event, -EHOSTUNREACH);
        }
        if (!c->ready) {
                c->ready = true;
                (void) sd_notify(0, "READY=1\nSTATUS=all layers agree");
        }

        r = next_round(c, ROUND_USEC);
        return r < 0 ? sd_event_exit(c->event, r) : 0;
}

static void note_answers(CheckRun *c, const json_t *verdicts) {
        for (size_t i = 0; i < count_questions(); i++) {
                CheckProbe probe = get_question(i).probe;
                CheckResult *result = &c->table.results[CHECK_POLICY][probe];
                bool control = probe == CHECK_CONTROL;
                const char *verdict = json_string_value(json_array_get(verdicts, i));

                if (!verdict) /* null: the policy allows nothing, or every port */
                        continue;
                if (*result == CHECK_NOT_TRIED || *result == (control ? CHECK_ALLOWED : CHECK_DENIED))
                        *result = strcmp(verdict, "deny") == 0 ? CHECK_DENIED : CHECK_ALLOWED;
        }
}

static void on_judged(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        CheckRun *c = userdata;
        const json_t *verdicts = json_object_get(params, "verdicts");

        if (!error && json_array_size(verdicts) == count_questions())
                note_answers(c, verdicts);
        else if (!error || strcmp(error, "io.anchorhold.Egress.NoSuchRun") == 0)
                (void) check_fail(&c->table, -EUCLEAN, "layer policy: egressd has no policy for this run");

        (void) end_round(c, !error);
}

static int ask_policy(CheckRun *c) {
        _cleanup_json_ json_t *list = json_array();

        for (size_t i = 0; i < count_questions(); i++) {
                Question q = get_question(i);

                if (json_array_append_new(list, json_pack("{s:s*, s:s*, s:s*, s:i}", "address", q.address, "name", q.name, "control", q.control, "port",
                                                          q.port)) < 0)
                        return -ENOMEM;
        }
        return ipc_client_call_async(c->egress, "io.anchorhold.Egress.Judge", json_pack("{s:O}", "questions", list), NULL, 0, false,
                                     c->ready ? ANSWER_USEC : FIRST_ANSWER_USEC, on_judged, c);
}

static int begin_round(CheckRun *c) {
        char reason[256];
        int r;

        c->table = (CheckTable) {};
        (void) check_guest(c->twin, c->run, &c->table);
        (void) probe_read(c->probe, &c->table);
        if (check_disagrees(&c->table, reason, sizeof(reason)))
                return stop_run(c, reason);

        r = ask_policy(c);
        return r < 0 ? end_round(c, false) : 0;
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        return begin_round(userdata);
}

int check_run_new(CheckRun **ret, sd_event *event, const char *run) {
        _cleanup_(check_run_freep) CheckRun *c = NULL;
        int r;

        c = malloc(sizeof(*c));
        if (!c)
                return log_error_errno(-ENOMEM, "cannot start");
        *c = (CheckRun) { .event = sd_event_ref(event) };
        (void) snprintf(c->run, sizeof(c->run), "%s", run);

        c->probe = text_format(PROBE_FOLDER "/%s/" PROBE_FILE, run);
        if (!c->probe)
                return log_error_errno(-ENOMEM, "cannot start");
        r = check_twin_new(&c->twin, &c->table);
        if (r < 0)
                return log_error_errno(r, "run %s: %s", run, c->table.reason);
        r = ipc_client_new(&c->egress, event, EGRESS_SOCKET);
        if (r >= 0)
                r = next_round(c, 0);
        if (r < 0)
                return log_error_errno(r, "cannot start");

        *ret = TAKE_PTR(c);
        return 0;
}

CheckRun *check_run_free(CheckRun *c) {
        if (!c)
                return NULL;
        ipc_client_free(c->egress);
        check_twin_free(c->twin);
        free(c->probe);
        sd_event_source_disable_unref(c->timer);
        sd_event_unref(c->event);
        free(c);
        return NULL;
}
