/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What is done inside the guest: its CA, the repository, the steps, and what they made.
 *
 * The guest reports every exit itself, so nothing here is proof of anything; it is what the run has to go by
 * until the second microVM has judged the result.
 */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run/run-private.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

enum {
        KILL_AFTER_USEC = 5 * 1000 * 1000,
        SETUP_S = 300,           /* clone and collect */
        EXIT_NO_COMMIT = 42,     /* of collect_script */
};

/* $1 repository, $2 bundle, $3 reference in it, $4 commit, whose length tells the object format: git takes no bundle of another one */
static const char clone_script[] =
        "set -e\n"
        "[ ${#4} -eq 64 ] && format=sha256 || format=sha1\n"
        "git init -q -b work --object-format=$format \"$1\"\n"
        "cd \"$1\"\n"
        "git config user.name 'Anchorhold agent'\n"
        "git config user.email agent@anchorhold.invalid\n"
        "git config gc.auto 0\n"
        "git fetch -q \"$2\" \"+$3:$3\"\n"
        "git checkout -q -B work \"$4\"\n"
        "rm -f \"$2\"\n";

/* $1 repository, $2 base, $3 reference; the bundle goes to stdout */
static const char collect_script[] =
        "cd \"$1\" || exit 1\n"
        "head=$(git rev-parse --verify -q 'HEAD^{commit}') || exit 1\n"
        "[ \"$head\" != \"$2\" ] || exit 42\n"
        "git update-ref \"$3\" \"$head\" || exit 1\n"
        "exec git bundle create -q - \"$3\" \"^$2\"\n";

/* ---- one operation in the guest ---- */

static void exit_to_end(const GuestExit *e, RunStepEnd *ret) {
        *ret = (RunStepEnd) {
                .kind = e->kind == GUEST_EXIT_STATUS ? RUN_END_STATUS : e->kind == GUEST_EXIT_SIGNAL ? RUN_END_SIGNAL : RUN_END_ERRNO,
                .value = e->value,
        };
}

static int step_on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        Run *r = userdata;

        r->step_timed_out = true;
        if (r->stream)
                (void) guest_stream_signal(r->stream, r->step_signals++ == 0 ? SIGTERM : SIGKILL);
        if (r->step_signals > 3) {
                run_end(r, "error", "guest-silent: a process does not end");
                return 0;
        }

        (void) sd_event_source_set_time_relative(s, KILL_AFTER_USEC);
        return sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
}

void run_step_expire(Run *r) {
        if (r->step_timer && sd_event_source_set_time_relative(r->step_timer, 0) >= 0)
                (void) sd_event_source_set_enabled(r->step_timer, SD_EVENT_ONESHOT);
}

/* Starts it, with a time limit. Ends the run if it cannot be started. */
static void start(Run *r, ChannelType type, json_t *request, int input_fd, uint64_t timeout_s, const GuestStreamHandler *handler) {
        int k;

        r->step_timed_out = false;
        r->step_signals = 0;
        r->step_timer = sd_event_source_disable_unref(r->step_timer);
        run_tail_clear(&r->tail);

        k = guest_client_start(r->client, type, request, input_fd, handler, r, &r->stream);
        if (k >= 0)
                k = sd_event_add_time_relative(r->event, &r->step_timer, CLOCK_MONOTONIC, timeout_s * 1000000, 0, step_on_timer, r);
        if (k == -E2BIG)
                run_end(r, "failed", "the request is too long: task, arguments and environment of a step may have %u bytes together",
                        CHANNEL_PAYLOAD_MAX);
        else if (k == -EPIPE)
                log_debug("run %s: the guest went away", r->id); /* the session's end says so */
        else if (k < 0)
                run_end(r, "error", "cannot start anything in the guest: %s", strerror(-k));
}

static void started_ended(Run *r) {
        r->stream = NULL;
        r->step_timer = sd_event_source_disable_unref(r->step_timer);
}

void run_step_abandon(Run *r) {
        if (r->stream) {
                (void) guest_stream_signal(r->stream, SIGKILL);
                guest_stream_abandon(r->stream);
                if (r->output)
                        run_output_forget(r->output, r->stream);
        }
        started_ended(r);
}

/* The end of something that must succeed: the tail of what it wrote is the reason if it did not. */
static bool check_setup(Run *r, const GuestExit *e, const char *what) {
        _cleanup_free_ char *text = NULL;
        RunStepEnd end;
        char how[128];

        started_ended(r);
        exit_to_end(e, &end);
        if (r->step_timed_out)
                end.kind = RUN_END_TIMEOUT;
        if (run_step_end_is_good(&end))
                return true;

        run_step_end_describe(&end, how, sizeof(how));
        text = run_tail_text(&r->tail);
        run_end(r, "error", "%s: %s%s%s", what, how, text && *text ? ": " : "", text ?: "");
        return false;
}

static void setup_on_output(GuestStream *s, ChannelType type, const uint8_t *data, size_t size, void *userdata) {
        Run *r = userdata;

        run_tail_push(&r->tail, data, size);
        guest_stream_consumed(s, size);
}

/* ---- CA, seed, clone ---- */

static void put_on_exit(GuestStream *s, const GuestExit *e, void *userdata) {
        Run *r = userdata;

        if (check_setup(r, e, "cannot put a file into the guest"))
                run_advance(r, r->put_then);
}

static const GuestStreamHandler put_handler = { .output = setup_on_output, .exit = put_on_exit };

static void put_fd(Run *r, json_t *request, int fd, RunStage then) {
        r->put_then = then;
        start(r, CHANNEL_PUT, request, fd, SETUP_S, &put_handler);
}

static void put_text(Run *r, json_t *request, const char *text, RunStage then) {
        _cleanup_fd_ int fd = io_memfd("put", text, strlen(text));

        if (fd < 0) {
                json_decref(request);
                return run_end(r, "error", "cannot make a memory file: %s", strerror(-fd));
        }

        (void) lseek(fd, 0, SEEK_SET);
        put_fd(r, request, fd, then);
}

void run_put_text(Run *r, const char *path, const char *text, RunStage then) {
        put_text(r, json_pack("{s:s}", "path", path), text, then);
}

void run_put_bundle(Run *r, RunStage then) {
        put_text(r, json_pack("{s:s, s:b, s:s}", "path", RUN_GUEST_BUNDLE, "append", 1, "java_store", RUN_GUEST_JAVA_STORE), r->ca_pem, then);
}

void run_put_seed(Run *r) {
        if (lseek(r->seed, 0, SEEK_SET) < 0)
                return run_end(r, "error", "the seed bundle cannot be read: %s", strerror(errno));

        put_fd(r, json_pack("{s:s}", "path", RUN_SEED), r->seed, STAGE_CLONE);
}

static void clone_on_exit(GuestStream *s, const GuestExit *e, void *userdata) {
        Run *r = userdata;

        if (check_setup(r, e, "cannot clone the repository in the guest"))
                run_advance(r, STAGE_STEP_NEXT);
}

static const GuestStreamHandler clone_handler = { .output = setup_on_output, .exit = clone_on_exit };

void run_clone(Run *r) {
        start(r, CHANNEL_EXEC,
              json_pack("{s:[s,s,s,s,s,s,s,s], s:s}", "argv", "/bin/sh", "-c", clone_script, "clone",
                        RUN_REPOSITORY, RUN_SEED, r->spec.ref, r->spec.base, "cwd", "/workspace"),
              -1, SETUP_S, &clone_handler);
}

/* ---- steps ---- */

static RunContext make_context(const Run *r) {
        return (RunContext) {
                .task = r->spec.task ?: "",
                .feedback = r->feedback ?: "",
                .sentinels = json_object_get(r->guest_credentials, "sentinels"),
                .has_ca = r->ca_pem,
        };
}

void run_step_next(Run *r) {
        if (r->over_budget && r->spec.base && !r->spec.verify)
                return run_advance(r, STAGE_COLLECT);
        if (r->over_budget)
                return run_end(r, "failed", RUN_OVER_BUDGET);
        if (r->plan.failed)
                return run_end(r, "failed", "%s", r->plan.reason);
        if (run_plan_next(&r->plan))
                return run_advance(r, STAGE_STEP_AUDIT);
        if (r->spec.base && !r->spec.verify)
                return run_advance(r, STAGE_COLLECT);

        run_end(r, "ok", "%s", "");
}

static void step_on_audited(int k, void *userdata) {
        Run *r = userdata;

        if (k < 0)
                return run_end(r, "error", "audit: a step may not start unrecorded: %s", strerror(-k));
        r->file = 0;
        run_advance(r, STAGE_STEP_FILES);
}

void run_step_audit(Run *r) {
        const RunStep *s = run_plan_next(&r->plan);

        if (!run_told(r))
                return;
        run_record(r, &r->step_record, "run.step",
                   json_pack("{s:s, s:s, s:s, s:i}", "step", s->name, "kind", run_step_kind_name(s->kind), "state", "started",
                             "round", (int) r->plan.round), step_on_audited);
}

void run_step_files(Run *r) {
        const RunStep *s = run_plan_next(&r->plan);
        json_t *file = json_array_get(s->files, r->file), *request;
        RunContext context = make_context(r);
        _cleanup_free_ char *text = NULL;
        int mode;

        if (!file)
                return run_advance(r, STAGE_STEP_EXEC);

        r->file++;
        mode = run_file_mode(file);
        text = run_command_fill(json_string_value(json_object_get(file, "content")), s, &context);
        if (!text)
                return run_end(r, "error", "out of memory");

        request = json_pack("{s:s}", "path", json_string_value(json_object_get(file, "path")));
        if (mode >= 0 && json_object_set_new(request, "mode", json_integer(mode)) < 0)
                request = json_unref(request);
        put_text(r, request, text, STAGE_STEP_FILES);
}

static void step_on_output(GuestStream *s, ChannelType type, const uint8_t *data, size_t size, void *userdata) {
        Run *r = userdata;

        run_tail_push(&r->tail, data, size);
        if (run_output_push(r->output, s, type, data, size) < 0)
                run_end(r, "error", "channel-error: more output than the stream's window");
}

static void step_on_exit(GuestStream *s, const GuestExit *e, void *userdata) {
        Run *r = userdata;

        started_ended(r);
        exit_to_end(e, &r->step_end);
        if (r->step_timed_out)
                r->step_end.kind = RUN_END_TIMEOUT;
        run_advance(r, STAGE_STEP_DRAIN);
}

static const GuestStreamHandler step_handler = { .output = step_on_output, .exit = step_on_exit };

static const char *const stream_names[][2] = {
        [RUN_STEP_PREPARE] = { "check", "check" },
        [RUN_STEP_AGENT] = { "agent", "stderr" },
        [RUN_STEP_CHECK] = { "check", "check" },
        [RUN_STEP_EXEC] = { "stdout", "stderr" },
};

/* A memory file with the step's stdin, or -1. */
static int make_input(Run *r, const RunStep *s, const RunContext *context, int *ret) {
        _cleanup_free_ char *text = NULL;
        int fd;

        *ret = -1;
        if (!s->input)
                return 0;

        text = run_command_fill(s->input, s, context);
        if (!text)
                return -ENOMEM;

        fd = io_memfd("stdin", text, strlen(text));
        if (fd < 0)
                return fd;

        (void) lseek(fd, 0, SEEK_SET);
        *ret = fd;
        return 0;
}

void run_step_exec(Run *r) {
        const RunStep *s = run_plan_next(&r->plan);
        RunContext context = make_context(r);
        _cleanup_free_ char *reason = NULL;
        _cleanup_fd_ int input = -1;
        json_t *request = NULL;
        int k;

        if (r->over_budget) /* since the step was due: none begins any more */
                return run_step_next(r);
        k = run_command_build(s, &context, &request, &reason);
        if (k >= 0)
                k = make_input(r, s, &context, &input);
        if (k >= 0)
                k = run_output_begin(r->output, s->name, stream_names[s->kind][0], stream_names[s->kind][1],
                                     s->display);
        if (k < 0) {
                json_decref(request);
                return run_end(r, "error", "step \"%s\": %s", s->name, reason ?: strerror(-k));
        }

        run_event(r, "step-started", json_pack("{s:s, s:s, s:i}", "name", s->name, "kind", run_step_kind_name(s->kind),
                                               "round", (int) r->plan.round));
        r->step_started = time_monotonic();
        start(r, CHANNEL_EXEC, request, input, s->timeout_s, &step_handler);
}

static json_t *describe_step(Run *r, const RunStep *s) {
        json_t *data;
        char how[128];

        run_step_end_describe(&r->step_end, how, sizeof(how));
        data = json_pack("{s:s, s:s, s:i, s:I, s:s}", "name", s->name, "kind", run_step_kind_name(s->kind), "round", (int) r->plan.round,
                         "duration_ms", (json_int_t) ((time_monotonic() - r->step_started) / 1000), "reason", how);
        if (data && r->step_end.kind == RUN_END_STATUS)
                (void) json_object_set_new(data, "status", json_integer(r->step_end.value));
        if (data && r->step_end.kind == RUN_END_SIGNAL)
                (void) json_object_set_new(data, "signal", json_integer(r->step_end.value));
        return data;
}

/* What the agent is told when a check has failed. */
static void set_feedback(Run *r, const RunStep *check) {
        _cleanup_free_ char *text = run_tail_text(&r->tail);
        char how[128];

        run_step_end_describe(&r->step_end, how, sizeof(how));
        free(r->feedback);
        r->feedback = text_format("The check \"%s\" failed (%s). Its output ended with:\n\n%s", check->name, how, text ?: "");
}

/* A command that could not be started is told like a shell does. */
static int exit_status(const RunStepEnd *e) {
        switch (e->kind) {
        case RUN_END_STATUS:
                return e->value;
        case RUN_END_SIGNAL:
                return 128 + e->value;
        case RUN_END_ERRNO:
                return e->value == ENOENT ? 127 : 126;
        default:
                return 124;
        }
}

void run_step_done(Run *r) {
        const RunStep *s = run_plan_next(&r->plan);
        json_t *data = describe_step(r, s);
        unsigned round = r->plan.round;

        run_record_told(r, &r->told_record, "run.step", json_pack("{s:s, s:s, s:i, s:i}", "step", s->name, "state", "finished", "round", (int) round,
                                                                  "exit", exit_status(&r->step_end)));
        if (data)
                (void) json_array_append(r->steps_done, data);
        run_event(r, "step-finished", data);

        if (s->kind == RUN_STEP_EXEC)
                r->last_status = exit_status(&r->step_end);
        run_plan_step_ended(&r->plan, &r->step_end);
        if (r->plan.round > round)
                set_feedback(r, s);
        run_advance(r, STAGE_STEP_NEXT);
}

static void output_on_drained(RunOutput *o, void *userdata) {
        Run *r = userdata;

        if (r->stage == STAGE_STEP_DRAIN && !r->outcome)
                run_step_done(r);
        else if (r->stage == STAGE_FLUSH)
                run_advance(r, STAGE_FINISH);
}

static void output_on_limit(RunOutput *o, void *userdata) {
        char size[TEXT_SIZE_SIZE];
        Run *r = userdata;

        run_end(r, "failed", "output-limit: more than %s of output", text_size(r->spec.output_bytes, size));
}

const RunOutputHandler run_output_handler = {
        .drained = output_on_drained,
        .limit = output_on_limit,
};

/* ---- the result ---- */

static void collect_on_output(GuestStream *s, ChannelType type, const uint8_t *data, size_t size, void *userdata) {
        char limit[TEXT_SIZE_SIZE];
        Run *r = userdata;
        int k;

        guest_stream_consumed(s, size);
        if (type == CHANNEL_STDERR)
                return run_tail_push(&r->tail, data, size);

        if (size > r->spec.bundle_bytes - r->result_size)
                return run_end(r, "failed", "the result bundle is larger than %s", text_size(r->spec.bundle_bytes, limit));

        k = io_write_full(r->result, data, size);
        if (k < 0)
                return run_end(r, "error", "the result bundle cannot be stored: %s", strerror(-k));
        r->result_size += size;
}

static void collect_on_exit(GuestStream *s, const GuestExit *e, void *userdata) {
        Run *r = userdata;

        if (e->kind == GUEST_EXIT_STATUS && e->value == EXIT_NO_COMMIT) {
                started_ended(r);
                r->result = r->over_budget ? fd_close(r->result) : r->result;
                return run_end(r, "failed", r->over_budget ? RUN_OVER_BUDGET : "no commit was made on top of the base");
        }
        if (!check_setup(r, e, "cannot make the result bundle in the guest"))
                return;

        (void) lseek(r->result, 0, SEEK_SET);
        if (r->over_budget)
                return run_end(r, "failed", RUN_OVER_BUDGET);
        run_end(r, "ok", "%s", "");
}

static const GuestStreamHandler collect_handler = { .output = collect_on_output, .exit = collect_on_exit };

void run_collect(Run *r) {
        r->result = TAKE_FD(r->place);
        start(r, CHANNEL_EXEC,
              json_pack("{s:[s,s,s,s,s,s,s], s:s}", "argv", "/bin/sh", "-c", collect_script, "collect",
                        RUN_REPOSITORY, r->spec.base, r->spec.result_ref, "cwd", "/workspace"),
              -1, SETUP_S, &collect_handler);
}
