/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Following an item.
 *
 * anchord sends each event with its position. If anchord goes away, we ask again from the position after
 * the last that we printed, for at most a minute: a restart of anchord loses no run, and it should not
 * lose its spectators either. Ctrl-C only ends the following; a second one ends us at once, should the
 * terminal be what hangs.
 *
 * What waits in the queue waits for others, or for somebody to do something: anchord is asked which, and it is said.
 *
 * What programs in the guest print goes to our own standard output and error, as if they ran here; what
 * the host says about the run goes to standard error, so that output can be piped.
 */

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "ctl/ctl-evidence.h"
#include "ctl/ctl-format.h"
#include "ctl/ctl-progress.h"
#include "ctl/ctl-waiting.h"
#include "ctl/ctl.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

enum {
        RETRY_USEC = 500 * 1000,
        RETRY_TOTAL_USEC = 60 * 1000 * 1000,
        WHY_USEC = 10 * 1000 * 1000, /* so often it is asked why the item stays in the queue */
        PARTIAL_USEC = 10 * 1000 * 1000, /* so long an unfinished line of output stays alone on the terminal */
};

/* ---- one event ---- */

/* Ends an unfinished line of output, so that what the host says begins a line. */
static void end_line(CtlPrinter *p) {
        if (p->in_line)
                (void) fputc('\n', p->in_line);
        p->in_line = NULL;
        ctl_flush(p->ctl, p->ctl->out);
}

void ctl_print_end(CtlPrinter *p) {
        end_line(p);
}

static void print_output(CtlPrinter *p, const json_t *event) {
        const char *stream = ctl_string(event, "stream") ?: "", *data = ctl_string(event, "data") ?: "";
        _cleanup_free_ char *safe = NULL;
        FILE *f;

        /* an agent with a "display" in its harness comes twice */
        if (strcmp(stream, p->ctl->o.raw ? "agent" : "agent-raw") == 0)
                return;

        safe = text_escape(data, strlen(data), true);
        if (!safe || !*safe)
                return;

        ctl_progress_done(p->ctl);
        f = strcmp(stream, "stderr") == 0 ? p->ctl->err : p->ctl->out;
        /* standard error has no buffer: what it does not take is known at once */
        if (fputs(safe, f) == EOF && p->ctl->lost == 0)
                p->ctl->lost = errno;
        ctl_flush(p->ctl, f);
        if (f == p->ctl->out ? p->ctl->out_tty : p->ctl->err_tty)
                p->in_line = safe[strlen(safe) - 1] != '\n' ? f : NULL;
}

static void print_line(CtlPrinter *p, const json_t *event, const char *what, const char *subject, const char *more) {
        _cleanup_free_ char *safe_subject = NULL, *named = NULL, *safe_more = NULL;
        const char *time = ctl_string(event, "time");
        const char *on = p->ctl->err_color ? "\033[2m" : "", *off = p->ctl->err_color ? "\033[0m" : "";

        if (p->ctl->o.quiet)
                return;

        safe_subject = text_escape(subject, strlen(subject), false);
        named = ctl_name_users(more);
        safe_more = named ? text_escape(named, strlen(named), false) : NULL;
        if (!safe_subject || !safe_more)
                return;

        ctl_progress_done(p->ctl);
        end_line(p);
        /* the time of day out of RFC 3339; anything else is left out */
        (void) fprintf(p->ctl->err, "%s%.8s %s%s%s%s%s\n", on, time && strlen(time) >= 19 ? time + 11 : "--:--:--", what,
                       safe_subject, *safe_more ? ": " : "", safe_more, off);
        (void) fflush(p->ctl->err);
}

static void print_step(CtlPrinter *p, const json_t *event) {
        const json_t *status = json_object_get(event, "status");
        const char *name = ctl_string(event, "name") ?: ctl_string(event, "step") ?: "?";
        const char *reason = ctl_string(event, "reason"), *phase = ctl_string(event, "phase") ?: "";
        char more[64] = "";

        if (strcmp(phase, "started") == 0) {
                print_line(p, event, "step ", name, "started");
                return;
        }

        if (json_is_integer(status) && json_integer_value(status) != 0)
                (void) snprintf(more, sizeof(more), "exit status %lld", (long long) json_integer_value(status));
        print_line(p, event, "step ", name, reason && *reason ? reason : *more ? more : *phase ? phase : "finished");
}

/* "boots 1, accel tcg" of a note whose only text is its data; the caller's. */
static char *data_text(const json_t *data) {
        char *text = NULL;
        const char *key;
        json_t *value;
        size_t size;
        FILE *f;

        f = open_memstream(&text, &size);
        if (!f)
                return NULL;
        json_object_foreach((json_t *) data, key, value) {
                _cleanup_free_ char *dumped = json_is_string(value) ? NULL : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);

                (void) fprintf(f, "%s%s %s", ftell(f) > 0 ? ", " : "", key, dumped ?: json_string_value(value) ?: "?");
        }
        if (fclose(f) != 0) {
                free(text);
                return NULL;
        }
        return text;
}

static void print_note(CtlPrinter *p, const json_t *event) {
        const char *kind = ctl_string(event, "kind"), *text = ctl_string(event, "text");
        const json_t *data = json_object_get(event, "data");
        _cleanup_free_ char *flat = NULL;

        if (data && (!text || text[0] == '{'))
                text = flat = data_text(data);
        if (kind)
                print_line(p, event, "", kind, text ?: "");
        else
                print_line(p, event, "", text ?: ctl_string(event, "type") ?: "?", "");
}

void ctl_print_event(CtlPrinter *p, const json_t *event) {
        const char *type = ctl_string(event, "type") ?: "", *run = ctl_string(event, "run");

        if (p->only_run && run && strcmp(run, p->only_run) != 0)
                return;

        if (p->ctl->o.json != CTL_JSON_OFF)
                (void) ctl_print_json(p->ctl, event);
        else if (strcmp(type, "end") == 0)
                return; /* the state was told already */
        else if (strcmp(type, "output") == 0)
                print_output(p, event);
        else if (strcmp(type, "state") == 0)
                print_line(p, event, "", ctl_string(event, "to") ?: "?", ctl_string(event, "reason") ?: "");
        else if (strcmp(type, "step") == 0)
                print_step(p, event);
        else
                print_note(p, event);
}

/* ---- following ---- */

typedef struct Follow {
        Ctl *ctl;
        CtlPrinter printer;
        const char *item;        /* borrowed */
        sd_event *event;         /* ref */
        IpcClient *client;       /* owned */
        sd_event_source *timer;  /* ref: retry */
        sd_event_source *quiet;  /* ref */
        int64_t first, next;     /* the positions that we began at and go on from */
        uint64_t lost_usec;      /* since when anchord is away; 0: it is there */
        char state[32];          /* the last that was seen */
        char step[72];           /* what is under way in the run: "boot", a step's name; "" if nothing is */
        char *reason;            /* owned */
        IpcClient *asker;        /* owned; NULL: nothing was asked yet */
        uint64_t asked_usec;     /* when; 0: not since the item is in this state */
        json_t *why;             /* owned; the reasons that were said last, NULL: none */
        CtlExit status;
        bool interrupted;
} Follow;

static void follow_done(Follow *f) {
        (void) sd_event_source_disable_unref(f->timer);
        (void) sd_event_source_disable_unref(f->quiet);
        ipc_client_free(f->asker);
        ipc_client_free(f->client);
        json_decref(f->why);
        (void) sd_event_unref(f->event);
        free(f->reason);
}

static void follow_end(Follow *f, CtlExit status) {
        f->status = status;
        (void) sd_event_exit(f->event, 0);
}

/* When that event happened, on the monotonic clock; now if it does not say. */
static uint64_t event_usec(const json_t *event) {
        uint64_t now = time_monotonic(), then, today = time_realtime();
        const char *time = ctl_string(event, "time");

        if (!time || parse_time(time, &then) < 0 || then > today || today - then > now)
                return now;
        return now - (today - then);
}

/* What the status line is about: the item's state and what is under way in its run. */
static void note_phase(Follow *f, const json_t *event) {
        const char *type = ctl_string(event, "type") ?: "", *kind = ctl_string(event, "kind") ?: "", *step = NULL;

        if (strcmp(type, "state") == 0)
                step = "";
        else if (strcmp(type, "step") == 0)
                step = strcmp(ctl_string(event, "phase") ?: "", "started") == 0 ? ctl_string(event, "name") ?: "?" : "";
        else if (strcmp(type, "note") == 0 && (strcmp(kind, "booting") == 0 || strcmp(kind, "booted") == 0))
                step = strcmp(kind, "booting") == 0 ? "boot" : "";
        if (!step)
                return;

        (void) snprintf(f->step, sizeof(f->step), "%s", step);
        ctl_progress_since(f->ctl, event_usec(event));
}

static void follow_take(Follow *f, const json_t *event) {
        const char *type = ctl_string(event, "type") ?: "", *to;
        const json_t *seq = json_object_get(event, "seq");

        if (json_is_integer(seq) && json_integer_value(seq) >= f->next)
                f->next = json_integer_value(seq) + 1;
        to = strcmp(type, "state") == 0 ? ctl_string(event, "to") : strcmp(type, "end") == 0 ? ctl_string(event, "state") : NULL;
        if (to) {
                (void) snprintf(f->state, sizeof(f->state), "%s", to);
                f->asked_usec = 0;
                json_decref(f->why);
                f->why = NULL;
                free(f->reason);
                f->reason = ctl_string(event, "reason") ? strdup(ctl_string(event, "reason")) : NULL;
        }
        note_phase(f, event);
        ctl_print_event(&f->printer, event);
}

static void follow_on_reply(IpcClient *c, const char *error, json_t *params, bool more, void *userdata);

static int follow_ask(Follow *f) {
        json_t *params = json_pack("{s:s, s:I}", "item", f->item, "from", (json_int_t) f->next);

        if (!params)
                return -ENOMEM;
        return ipc_client_call_async(f->client, "io.anchorhold.Manager.Follow", params, NULL, 0, true, 0, follow_on_reply, f);
}

static int follow_on_retry(sd_event_source *s, uint64_t usec, void *userdata) {
        Follow *f = userdata;
        int r;

        r = follow_ask(f);
        if (r < 0)
                follow_end(f, ctl_report(f->ctl, "follow", r, NULL, NULL));
        return 0;
}

/* anchord went away, or is not back yet. */
static void follow_lost(Follow *f) {
        uint64_t now = time_monotonic();
        int r;

        /* never there: the reason is worth more than a minute's hope */
        if (f->next == f->first) {
                _cleanup_fd_ int fd = io_connect_unix(f->ctl->api_path);

                if (fd < 0) {
                        follow_end(f, ctl_report(f->ctl, "follow", fd, NULL, NULL));
                        return;
                }
        }

        if (f->lost_usec == 0) {
                f->lost_usec = now;
                ctl_note(f->ctl, "anchord went away; the run goes on, waiting for it to come back.");
        }
        if (now - f->lost_usec > RETRY_TOTAL_USEC) {
                ctl_error(f->ctl, "anchord did not come back within a minute: \"systemctl status anchord.service\" says more.");
                follow_end(f, CTL_FAILED);
                return;
        }

        r = sd_event_source_set_time_relative(f->timer, RETRY_USEC);
        if (r >= 0)
                r = sd_event_source_set_enabled(f->timer, SD_EVENT_ONESHOT);
        if (r < 0)
                follow_end(f, ctl_report(f->ctl, "follow", r, NULL, NULL));
}

static void follow_on_reply(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        const json_t *event = json_object_get(params, "event");
        Follow *f = userdata;

        if (error && (strcmp(error, "io.anchorhold.Disconnected") == 0 || strcmp(error, "io.anchorhold.Timeout") == 0)) {
                follow_lost(f);
                return;
        }
        if (error) {
                follow_end(f, ctl_report(f->ctl, "follow", -EREMOTEIO, error, params));
                return;
        }

        f->lost_usec = 0;
        if (event)
                follow_take(f, event);
        if (!more)
                follow_end(f, ctl_exit_of_state(f->state, f->reason));
}

static int follow_on_signal(sd_event_source *s, const struct signalfd_siginfo *si, void *userdata) {
        Follow *f = userdata;

        f->interrupted = true;
        follow_end(f, CTL_INTERRUPTED);
        return 0;
}

static void follow_on_status(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        _cleanup_json_ json_t *reasons = NULL;
        Follow *f = userdata;

        if (error || strcmp(f->state, "queued") != 0)
                return;
        reasons = waiting_reasons(params);
        if (!reasons || json_equal(reasons, f->why))
                return;

        ctl_print_end(&f->printer);
        waiting_note(f->ctl, reasons);
        json_decref(f->why);
        f->why = TAKE_PTR(reasons);
}

/* In vain, if that cannot be asked: it is for the person alone. */
static void follow_ask_why(Follow *f) {
        uint64_t now = time_monotonic();

        if (strcmp(f->state, "queued") != 0 || f->lost_usec > 0 || (f->asked_usec > 0 && now - f->asked_usec < WHY_USEC))
                return;
        f->asked_usec = now;
        if (!f->asker && ipc_client_new(&f->asker, f->event, f->ctl->api_path) < 0)
                return;
        (void) ipc_client_call_async(f->asker, "io.anchorhold.Manager.Status", json_object(), NULL, 0, false, WHY_USEC / 2, follow_on_status, f);
}

/* Nothing for a while: show that we wait, and for what. */
static int follow_on_quiet(sd_event_source *s, uint64_t usec, void *userdata) {
        Follow *f = userdata;
        const char *state = *f->state ? f->state : "waiting";

        follow_ask_why(f);
        /* a line that the guest has not ended is not written over */
        if (ctl_progress_silence(f->ctl) >= PARTIAL_USEC)
                ctl_print_end(&f->printer);

        if (!f->printer.in_line && f->lost_usec > 0)
                ctl_progress(f->ctl, "%s, anchord is away", state);
        else if (!f->printer.in_line)
                ctl_progress(f->ctl, "%s%s%s", state, *f->step ? ", " : "", f->step);

        (void) sd_event_source_set_time_relative(s, PROGRESS_TICK_USEC);
        return sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
}

static int follow_init(Follow *f) {
        int r;

        r = sd_event_new(&f->event);
        if (r < 0)
                return r;
        r = sd_event_add_signal(f->event, NULL, SIGINT | SD_EVENT_SIGNAL_PROCMASK, follow_on_signal, f);
        if (r < 0)
                return r;
        r = sd_event_add_signal(f->event, NULL, SIGTERM | SD_EVENT_SIGNAL_PROCMASK, follow_on_signal, f);
        if (r < 0)
                return r;
        r = sd_event_add_time_relative(f->event, &f->timer, CLOCK_MONOTONIC, 0, 0, follow_on_retry, f);
        if (r < 0)
                return r;
        r = sd_event_source_set_enabled(f->timer, SD_EVENT_OFF);
        if (r < 0)
                return r;
        if (!f->ctl->o.quiet) {
                r = sd_event_add_time_relative(f->event, &f->quiet, CLOCK_MONOTONIC, PROGRESS_TICK_USEC, 0, follow_on_quiet, f);
                if (r < 0)
                        return r;
        }

        return ipc_client_new(&f->client, f->event, f->ctl->api_path);
}

static void say_detached(Follow *f) {
        sigset_t set;

        /* the next Ctrl-C is for real */
        (void) sigemptyset(&set);
        (void) sigaddset(&set, SIGINT);
        (void) sigaddset(&set, SIGTERM);
        (void) signal(SIGINT, SIG_DFL);
        (void) sigprocmask(SIG_UNBLOCK, &set, NULL);

        ctl_error(f->ctl, "Detached; the run goes on. \"anchorctl logs --follow %s\" follows it again, \"anchorctl stop %s\" ends it.",
                  f->item, f->item);
}

CtlExit ctl_follow(Ctl *ctl, const char *item, const char *run, int64_t from) {
        _cleanup_(follow_done) Follow f = {
                .ctl = ctl,
                .printer = { .ctl = ctl, .only_run = run },
                .item = item,
                .first = from,
                .next = from,
                .status = CTL_FAILED,
        };
        int r;

        ctl_progress_done(ctl);
        ctl_progress_since(ctl, time_monotonic());
        r = follow_init(&f);
        if (r >= 0)
                r = follow_ask(&f);
        if (r >= 0)
                r = sd_event_loop(f.event);
        if (r < 0)
                return ctl_report(ctl, "follow", r, NULL, NULL);

        ctl_progress_done(ctl);
        ctl_print_end(&f.printer);
        if (f.interrupted)
                say_detached(&f);
        else if (f.status == CTL_OK && *f.state && strcmp(f.state, "in_review") == 0)
                ctl_note(ctl, "\"anchorctl result %s --diff\" shows what came of it.", item);
        else if (f.status == CTL_FAILED && *f.state)
                ctl_note(ctl, "\"anchorctl show %s\" says more.", item);
        return f.status;
}
