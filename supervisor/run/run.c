/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One run, from its spec to its verdict.
 *
 * The stages of run-private.h follow one another; run_advance() is the only function that changes the
 * stage, and each stage starts exactly one thing to wait for. Whatever goes wrong calls run_end(), once: the outcome is
 * then fixed, recorded with auditd, told to anchord, and the VM is powered off.
 *
 * Three outcomes: "ok"; "failed", the work did not come to what was asked (a check, a time limit, no commit);
 * "error", the run could not be carried out (no boot, a broken channel, no audit). A guest can bring about each of them, and nothing else.
 *
 * Nothing is kept here that a crash could lose: if this process dies, systemd stops the VM with it, and anchord,
 * which sees the unit end without Finish, decides what becomes of the item.
 *
 * Bytes of the guest are parsed here (channel.c, guest-client.c), which is why this process has no network, no
 * file system of its own, and of secrets only sentinels, which the guest has anyway.
 */

#include "run/run-private.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "util/confine.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

enum {
        CREDENTIAL_MAX = 256 * 1024,
        POWEROFF_USEC = 3 * 1000 * 1000,
};

#define MEMORY_FILE_MAX (64ULL * 1024 * 1024) /* what steps get on their stdin, and the like */

/* ---- reporting ---- */

void run_event(Run *r, const char *kind, json_t *data) {
        json_t *params = json_pack("{s:s, s:o}", "kind", kind, "data", data ?: json_object());
        int k = run_calls_call(r->calls, "Event", params, -1, NULL, NULL);

        if (k < 0)
                log_warning_errno(k, "run %s: event %s is lost", r->id, kind);
}

static void run_on_calls_lost(RunCalls *calls, const char *error, void *userdata) {
        Run *r = userdata;

        /* Nobody to report to: the VM ends with this process, anchord settles the item when it is back. */
        log_error("run %s: anchord cannot be reached (%s), giving up", r->id, error);
        (void) sd_event_exit(r->event, 1);
}

/* ---- the end ---- */

/* The reason may quote the guest: it must stay text that JSON takes, or the verdict and the end would be lost with it. */
void run_end(Run *r, const char *outcome, const char *format, ...) {
        _cleanup_free_ char *reason = NULL;
        va_list ap;

        if (r->outcome)
                return;

        va_start(ap, format);
        if (vasprintf(&reason, format, ap) < 0)
                reason = NULL;
        va_end(ap);
        text_fit(reason ?: "out of memory", r->reason, sizeof(r->reason));
        r->outcome = outcome;
        r->run_timer = sd_event_source_disable_unref(r->run_timer);
        r->boot_timer = sd_event_source_disable_unref(r->boot_timer);
        /* what was made before the budget was used up is kept */
        if (strcmp(outcome, "ok") != 0 && !(r->over_budget && strcmp(r->reason, RUN_OVER_BUDGET) == 0))
                r->result = fd_close(r->result);
        run_step_abandon(r);
        log_info("run %s: %s%s%s", r->id, outcome, *r->reason ? ": " : "", r->reason);
        run_advance(r, STAGE_VERDICT);
}

static json_t *make_facts(Run *r) {
        json_t *facts = json_pack("{s:I, s:I, s:O*, s:I, s:O*}", "boots", (json_int_t) r->boots,
                                  "boot_ms", (json_int_t) (r->boot_usec / 1000), "steps", r->steps_done,
                                  "rounds", (json_int_t) r->plan.round, "guest", r->guest);

        if (!facts)
                return NULL;
        if (r->last_status >= 0)
                (void) json_object_set_new(facts, "exit_status", json_integer(r->last_status));
        if (r->output)
                (void) json_object_set_new(facts, "output_bytes", json_integer((json_int_t) run_output_total(r->output)));
        if (r->result >= 0)
                (void) json_object_set_new(facts, "bundle_bytes", json_integer((json_int_t) r->result_size));
        return facts;
}

static void run_on_verdict(int k, void *userdata) {
        Run *r = userdata;

        if (k < 0 && strcmp(r->outcome, "ok") == 0) {
                log_error_errno(k, "run %s: the verdict could not be recorded", r->id);
                r->outcome = "error";
                (void) snprintf(r->reason, sizeof(r->reason), "audit: the verdict could not be recorded");
                r->result = fd_close(r->result);
        }
        run_advance(r, STAGE_FLUSH);
}

static void run_verdict(Run *r) {
        if (!run_told(r))
                return;
        run_record(r, &r->verdict_record, "run.verdict", json_pack("{s:s, s:s}", "outcome", r->outcome, "reason", r->reason), run_on_verdict);
}

static void run_on_finished(RunCalls *calls, IpcClient *client, const char *error, json_t *params, void *userdata) {
        Run *r = userdata;

        if (error)
                log_warning("run %s: anchord refused the end of the run: %s", r->id, error);
        run_advance(r, STAGE_POWEROFF);
}

static void run_finish(Run *r) {
        json_t *params = json_pack("{s:s, s:s, s:o}", "outcome", r->outcome, "reason", r->reason,
                                   "facts", make_facts(r) ?: json_object());
        int k;

        k = run_calls_call(r->calls, "Finish", params, r->result, run_on_finished, r);
        if (k < 0) {
                log_error_errno(k, "run %s: the end of the run cannot be reported", r->id);
                run_advance(r, STAGE_POWEROFF);
        }
}

static int run_on_poweroff_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        run_advance(userdata, STAGE_DONE);
        return 0;
}

/* The guest is asked; if it does not, the unit's end stops it. */
static void run_poweroff(Run *r) {
        int k;

        if (r->lost || !r->client || guest_client_poweroff(r->client) < 0)
                return run_advance(r, STAGE_DONE);

        k = sd_event_add_time_relative(r->event, &r->run_timer, CLOCK_MONOTONIC, POWEROFF_USEC, 0, run_on_poweroff_timer, r);
        if (k < 0)
                run_advance(r, STAGE_DONE);
}

/* ---- the budget ---- */

static int run_on_wrapped_up(sd_event_source *s, uint64_t usec, void *userdata) {
        Run *r = userdata;

        if (!r->outcome && r->stage == STAGE_STEP_EXEC)
                run_step_expire(r);
        return 0;
}

static int run_on_over_budget(sd_event_source *s, const struct signalfd_siginfo *si, void *userdata) {
        Run *r = userdata;
        int k;

        if (r->over_budget || r->outcome || r->stage == STAGE_SPEC)
                return 0;
        log_notice("run %s: over budget, what runs in the guest may go on for %llu s", r->id, (unsigned long long) r->spec.wrap_up_s);
        r->over_budget = true;
        run_event(r, "wrap-up", json_pack("{s:s}", "text", "the budget for model calls is used up: no further step begins"));
        k = sd_event_add_time_relative(r->event, &r->wrap_up_timer, CLOCK_MONOTONIC, r->spec.wrap_up_s * 1000000, 0, run_on_wrapped_up, r);
        if (k < 0)
                run_end(r, "error", "cannot bring the run to its end: %s", strerror(-k));
        return 0;
}

static int watch_budget(Run *r) {
        return sd_event_add_signal(r->event, &r->wrap_up_signal, SIGUSR1 | SD_EVENT_SIGNAL_PROCMASK, run_on_over_budget, r);
}

/* ---- stages ---- */

void run_advance(Run *r, RunStage stage) {
        if (r->stage == STAGE_DONE || (r->outcome && stage < STAGE_VERDICT))
                return;

        r->stage = stage;
        switch (stage) {
        case STAGE_SPEC:
                break;
        case STAGE_BOOT:
                return run_boot_greet(r);
        case STAGE_CA_FILE:
                if (!r->ca_pem)
                        return run_advance(r, STAGE_SEED_BUNDLE);
                return run_put_text(r, RUN_GUEST_CA, r->ca_pem, STAGE_CA_LOCAL);
        case STAGE_CA_LOCAL:
                return run_put_text(r, RUN_GUEST_CA_OF_DEBIAN, r->ca_pem, STAGE_CA_BUNDLE);
        case STAGE_CA_BUNDLE:
                return run_put_bundle(r, STAGE_SEED_BUNDLE);
        case STAGE_SEED_BUNDLE:
                if (!r->spec.base)
                        return run_advance(r, STAGE_STEP_NEXT);
                return run_put_seed(r);
        case STAGE_CLONE:
                return run_clone(r);
        case STAGE_STEP_NEXT:
                return run_step_next(r);
        case STAGE_STEP_AUDIT:
                return run_step_audit(r);
        case STAGE_STEP_FILES:
                return run_step_files(r);
        case STAGE_STEP_EXEC:
                return run_step_exec(r);
        case STAGE_STEP_DRAIN:
                return run_output_finish(r->output);
        case STAGE_COLLECT:
                return run_collect(r);
        case STAGE_VERDICT:
                return run_verdict(r);
        case STAGE_FLUSH:
                if (!r->output)
                        return run_advance(r, STAGE_FINISH);
                return run_output_finish(r->output);
        case STAGE_FINISH:
                return run_finish(r);
        case STAGE_POWEROFF:
                return run_poweroff(r);
        case STAGE_DONE:
                (void) sd_event_exit(r->event, 0);
                break;
        }
}

void run_schedule(Run *r) {
        if (sd_event_source_set_enabled(r->turn, SD_EVENT_ONESHOT) < 0)
                (void) sd_event_exit(r->event, 1);
}

/* The session with the guest is over; nothing of it is on the stack any more. */
static int run_on_turn(sd_event_source *s, void *userdata) {
        static const char *const names[] = {
                [GUEST_GONE] = "vm-gone",
                [GUEST_CHANNEL_ERROR] = "channel-error",
                [GUEST_REFUSED] = "guest-error",
                [GUEST_SILENT] = "guest-silent",
        };
        Run *r = userdata;

        if (r->stage >= STAGE_POWEROFF) {
                run_advance(r, STAGE_DONE);
                return 0;
        }
        if (r->outcome)
                return 0;

        if (r->loss == GUEST_CHANNEL_ERROR)
                run_record_told(r, &r->error_record, "channel.error", json_pack("{s:s}", "reason", r->loss_detail));

        if (r->stage <= STAGE_BOOT && r->loss == GUEST_GONE) {
                run_boot_lost(r);
                return 0;
        }

        run_event(r, "guest-error", json_pack("{s:s, s:s}", "reason", names[r->loss], "text", r->loss_detail));
        run_end(r, "error", "%s: %s", names[r->loss], r->loss_detail);
        return 0;
}

static int run_on_run_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        Run *r = userdata;

        run_end(r, "failed", "the run's time limit of %llu s was reached", (unsigned long long) r->spec.run_s);
        return 0;
}

/* The one file of a run is made before there is anything of the guest, and then no more. */
static int run_prepare_files(Run *r, const char **ret_what) {
        static const char *const writable[] = { "/dev/null", NULL };
        int k;

        *ret_what = "no place for the result bundle";
        r->place = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (r->place < 0)
                return -errno;
        if (!r->confine)
                return 0;

        *ret_what = "cannot give up making files";
        k = confine_files(r->spec.bundle_bytes < MEMORY_FILE_MAX ? MEMORY_FILE_MAX : r->spec.bundle_bytes, writable);
        if (k == CONFINE_E_SIZE_ONLY)
                log_warning("run %s: this kernel has no Landlock: this process could still make files", r->id);
        return k < 0 ? k : 0;
}

static void run_on_spec(RunCalls *calls, IpcClient *client, const char *error, json_t *params, void *userdata) {
        _cleanup_free_ char *reason = NULL;
        const char *what;
        Run *r = userdata;
        int k;

        if (error) {
                log_error("run %s: anchord has nothing for this run: %s", r->id, error);
                (void) sd_event_exit(r->event, 1);
                return;
        }

        k = run_spec_parse(json_object_get(params, "spec"), &r->spec, &reason);
        if (k < 0)
                return run_end(r, "error", "the run's spec is wrong: %s", reason ?: strerror(-k));

        r->seed = ipc_client_take_fd(client, 0);
        if (r->spec.base && r->seed < 0)
                return run_end(r, "error", "there is no seed bundle");

        k = run_prepare_files(r, &what);
        if (k < 0)
                return run_end(r, "error", "%s: %s", what, strerror(-k));

        run_plan_init(&r->plan, &r->spec);
        k = run_output_new(&r->output, r->calls, r->spec.output_bytes, &run_output_handler, r);
        if (k >= 0)
                k = sd_event_add_time_relative(r->event, &r->run_timer, CLOCK_MONOTONIC, r->spec.run_s * 1000000, 0, run_on_run_timer, r);
        if (k < 0)
                return run_end(r, "error", "cannot prepare: %s", strerror(-k));

        run_advance(r, STAGE_BOOT);
}

/* ---- start ---- */

/* What secretd has for the guest. Without credentials in the workflow the file says so, or is not there. */
static int load_credentials(Run *r, const char *folder) {
        _cleanup_free_ char *path = NULL, *data = NULL;
        size_t size = 0;
        int k;

        if (!folder)
                return 0;

        path = text_format("%s/guest", folder);
        if (!path)
                return -ENOMEM;

        k = io_read_file(AT_FDCWD, path, CREDENTIAL_MAX, &data, &size);
        if (k == -ENOENT || (k >= 0 && size == 0))
                return 0;
        if (k < 0)
                return log_error_errno(k, "cannot read credential \"guest\"");

        k = json_parse(data, size, &r->guest_credentials, NULL);
        explicit_bzero(data, size);
        if (k < 0 || !json_is_object(r->guest_credentials))
                return log_error_errno(-EINVAL, "credential \"guest\" is not what secretd writes");

        r->ca_pem = json_string_value(json_object_get(r->guest_credentials, "ca_pem"));
        return 0;
}

Run *run_free(Run *r) {
        if (!r)
                return NULL;

        r->turn = sd_event_source_disable_unref(r->turn);
        r->wrap_up_signal = sd_event_source_disable_unref(r->wrap_up_signal);
        r->wrap_up_timer = sd_event_source_disable_unref(r->wrap_up_timer);
        r->run_timer = sd_event_source_disable_unref(r->run_timer);
        r->boot_timer = sd_event_source_disable_unref(r->boot_timer);
        r->step_timer = sd_event_source_disable_unref(r->step_timer);
        r->qmp = qmp_client_free(r->qmp);
        r->client = guest_client_free(r->client);
        r->output = run_output_free(r->output);
        r->calls = run_calls_free(r->calls);
        r->audit = audit_client_free(r->audit);
        run_record_done(&r->told_record);
        run_record_done(&r->error_record);
        run_record_done(&r->step_record);
        run_record_done(&r->verdict_record);
        r->channel_fd = fd_close(r->channel_fd);
        r->seed = fd_close(r->seed);
        r->place = fd_close(r->place);
        r->result = fd_close(r->result);
        run_spec_done(&r->spec);
        json_decref(r->guest_credentials);
        json_decref(r->guest);
        json_decref(r->steps_done);
        free(r->feedback);
        free(r->id);
        free(r->channel);
        free(r->qmp_path);
        r->event = sd_event_unref(r->event);
        free(r);
        return NULL;
}

int run_new(Run **ret, sd_event *event, const RunConfig *config) {
        _cleanup_(run_freep) Run *r = NULL;
        int k;

        r = calloc(1, sizeof(*r));
        if (!r)
                return -ENOMEM;

        r->event = sd_event_ref(event);
        r->channel_fd = r->seed = r->place = r->result = -1;
        r->confine = config->confine;
        r->last_status = -1;
        r->audit_patience_usec = config->audit_patience_usec ?: RUN_AUDIT_PATIENCE_USEC;
        r->id = strdup(config->id);
        r->channel = strdup(config->channel);
        r->qmp_path = strdup(config->qmp);
        r->steps_done = json_array();
        if (!r->id || !r->channel || !r->qmp_path || !r->steps_done)
                return -ENOMEM;

        k = sd_event_add_defer(event, &r->turn, run_on_turn, r);
        if (k < 0)
                return k;

        k = sd_event_source_set_enabled(r->turn, SD_EVENT_OFF);
        if (k < 0)
                return k;

        k = watch_budget(r);
        if (k < 0)
                return k;

        k = load_credentials(r, config->credentials);
        if (k < 0)
                return k;

        k = audit_client_new(&r->audit, event);
        if (k < 0)
                return k;

        k = run_calls_new(&r->calls, event, config->api, config->anchord_patience_usec ?: RUN_ANCHORD_PATIENCE_USEC, run_on_calls_lost, r);
        if (k < 0)
                return k;

        /* If the VM is not booting already, the connection boots it, so it comes first; what to do in it is asked meanwhile. */
        k = run_boot_connect(r);
        if (k < 0)
                return k;

        k = run_calls_call(r->calls, "GetSpec", NULL, -1, run_on_spec, r);
        if (k < 0)
                return k;

        *ret = TAKE_PTR(r);
        return 0;
}
