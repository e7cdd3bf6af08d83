/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "ctl/ctl.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "ctl/ctl-progress.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define MANAGER "io.anchorhold.Manager."
#define CALL_TIMEOUT_USEC (120ULL * 1000 * 1000)

/* ---- saying things ---- */

/* Everything that reaches a terminal from here goes through text_escape(): names of files, and reasons that may quote a guest. */
static void say(Ctl *ctl, const char *before, const char *format, va_list ap) {
        _cleanup_free_ char *raw = NULL, *safe = NULL;

        if (vasprintf(&raw, format, ap) < 0) {
                raw = NULL;
                return;
        }
        safe = text_escape(raw, strlen(raw), true);
        if (!safe)
                return;

        ctl_progress_done(ctl);
        ctl_flush(ctl, ctl->out);
        (void) fprintf(ctl->err, "%s%s\n", before, safe);
        (void) fflush(ctl->err);
}

void ctl_flush(Ctl *ctl, FILE *f) {
        if (fflush(f) == EOF && ctl->lost == 0)
                ctl->lost = errno;
}

/*
 * What was to be on standard output is there, or the exit status says that it is not: a stream whose buffer was written
 * in vain drops it, and its next flush succeeds. A reader that went away (EPIPE) has what it wanted.
 */
static CtlExit finish_output(Ctl *ctl, CtlExit r) {
        ctl_flush(ctl, ctl->out);
        if (ctl->lost == 0 && ferror(ctl->out))
                ctl->lost = EIO;
        if (ctl->lost == 0 || ctl->lost == EPIPE)
                return r;

        ctl_error(ctl, "Cannot write: %s", strerror(ctl->lost));
        return r == CTL_OK ? CTL_FAILED : r;
}

void ctl_error(Ctl *ctl, const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        say(ctl, "", format, ap);
        va_end(ap);
}

CtlExit ctl_usage(Ctl *ctl, const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        say(ctl, "", format, ap);
        va_end(ap);

        (void) fprintf(ctl->err, "Try \"anchorctl %s%s--help\".\n", ctl->verb ?: "", ctl->verb ? " " : "");
        return CTL_USAGE;
}

void ctl_note(Ctl *ctl, const char *format, ...) {
        va_list ap;

        if (ctl->o.quiet)
                return;

        va_start(ap, format);
        say(ctl, "", format, ap);
        va_end(ap);
}

CtlExit ctl_print_json(Ctl *ctl, const json_t *value) {
        size_t flags = JSON_ENCODE_ANY | (ctl->o.json == CTL_JSON_PRETTY ? JSON_INDENT(2) : JSON_COMPACT);

        ctl_progress_done(ctl);
        /* ASCII only: nothing that a terminal could take for a command */
        errno = 0;
        if (json_dumpf(value, ctl->out, flags | JSON_ENSURE_ASCII) < 0 || fputc('\n', ctl->out) == EOF) {
                if (!ferror(ctl->out))
                        return ctl_report(ctl, "print JSON", -ENOMEM, NULL, NULL);
                if (ctl->lost == 0)
                        ctl->lost = errno;
                return CTL_FAILED;
        }
        ctl_flush(ctl, ctl->out);
        return CTL_OK;
}

const char *ctl_string(const json_t *object, const char *key) {
        return json_string_value(json_object_get(object, key));
}

char *ctl_text(const json_t *object, const char *key, const char *missing) {
        const char *s = ctl_string(object, key);

        s = s ?: missing;
        return text_escape(s, strlen(s), false);
}

/* ---- errors of calls ---- */

static const char *short_name(const char *error) {
        const char *dot = strrchr(error, '.');

        return dot ? dot + 1 : error;
}

CtlExit ctl_exit_of_error(const char *error, const json_t *params) {
        const char *name = short_name(error);

        if (strncmp(name, "NoSuch", strlen("NoSuch")) == 0)
                return CTL_NOT_FOUND;
        if (strcmp(name, "Conflict") == 0)
                return CTL_CONFLICT;
        if (strcmp(name, "Denied") == 0 || strcmp(name, "PermissionDenied") == 0)
                return CTL_REFUSED;
        if (strcmp(name, "BadInput") == 0)
                return ctl_string(params, "file") ? CTL_REFUSED : CTL_USAGE;
        return CTL_FAILED;
}

CtlExit ctl_exit_of_errno(int r) {
        switch (r) {
        case -ENOENT:
        case -ENOTDIR:
                return CTL_NOT_FOUND;
        case -EACCES:
        case -EPERM:
                return CTL_REFUSED;
        default:
                return CTL_FAILED;
        }
}

CtlExit ctl_exit_of_state(const char *state, const char *reason) {
        static const struct {
                const char *state;
                CtlExit exit;
        } table[] = {
                { "in_review", CTL_OK },   { "approved", CTL_OK },  { "authorized", CTL_OK },   { "publishing", CTL_OK },
                { "published", CTL_OK },   { "merged", CTL_OK },    { "closed", CTL_OK },
                { "rejected", CTL_REFUSED }, { "duplicate", CTL_CONFLICT },
        };

        if (reason && strncmp(reason, "over budget", strlen("over budget")) == 0)
                return CTL_OVER_BUDGET;

        for (size_t i = 0; i < ELEMENTSOF(table); i++)
                if (state && strcmp(table[i].state, state) == 0)
                        return table[i].exit;
        return CTL_FAILED;
}

static CtlExit report_connection(Ctl *ctl, const char *what, int r) {
        switch (r) {
        case -ENOENT:
        case -ECONNREFUSED:
                ctl_error(ctl, "Cannot %s: anchord.socket is not running.\n"
                               "Start it with \"systemctl start anchord.socket\"; \"systemctl status anchord.socket\" says why it stopped.", what);
                return CTL_FAILED;
        case -EACCES:
        case -EPERM:
                ctl_error(ctl, "Cannot %s: permission denied.\n"
                               "Members of the group anchorhold-operators may: \"usermod -aG anchorhold-operators USER\", then log in again.", what);
                return CTL_REFUSED;
        case -ETIMEDOUT:
        case -ETIME:
                ctl_error(ctl, "Cannot %s: anchord does not answer. \"systemctl status anchord.service\" says more.", what);
                return CTL_FAILED;
        case -ECONNRESET:
        case -EPIPE:
        case -ENOTCONN:
                ctl_error(ctl, "Cannot %s: anchord closed the connection. \"journalctl -u anchord.service\" says more.", what);
                return CTL_FAILED;
        default:
                ctl_error(ctl, "Cannot %s: %s", what, strerror(-r));
                return CTL_FAILED;
        }
}

CtlExit ctl_report(Ctl *ctl, const char *what, int r, const char *error, const json_t *params) {
        const char *name, *reason, *file, *pointer, *workflow;

        if (!error)
                return report_connection(ctl, what, r);

        name = short_name(error);
        reason = ctl_string(params, "reason");
        file = ctl_string(params, "file");
        pointer = ctl_string(params, "pointer");
        if (pointer && strcmp(pointer, "/") == 0)
                pointer = NULL; /* the whole of it */
        workflow = ctl_string(params, "workflow");

        if (strcmp(name, "PermissionDenied") == 0)
                return report_connection(ctl, what, -EACCES);
        if (strcmp(name, "NoSuchWorkflow") == 0)
                ctl_error(ctl, "Cannot %s: there is no workflow \"%s\".\nWorkflows are the files of /usr/lib/anchorhold/policy/workflows "
                               "and /etc/anchorhold/policy/workflows.", what, workflow ?: ctl->o.workflow ?: "?");
        else if (strcmp(name, "NoSuchItem") == 0)
                ctl_error(ctl, "Cannot %s: there is no such item.", what);
        else if (strcmp(name, "NoSuchRun") == 0)
                ctl_error(ctl, "Cannot %s: there is no such run.", what);
        else if (file)
                ctl_error(ctl, "Cannot %s: %s%s%s: %s", what, file, pointer && *pointer ? ": " : "", pointer ?: "", reason ?: name);
        else if (pointer && *pointer)
                ctl_error(ctl, "Cannot %s: %s: %s", what, pointer, reason ?: name);
        else
                ctl_error(ctl, "Cannot %s: %s", what, reason ?: error);

        return ctl_exit_of_error(error, params);
}

/* ---- calls ---- */

/* A client that shows that it waits. */
static int client_new(Ctl *ctl, IpcClient **ret) {
        _cleanup_(ipc_client_freep) IpcClient *client = NULL;
        int r;

        r = ipc_client_new(&client, NULL, ctl->api_path);
        if (r >= 0)
                r = ipc_client_set_waiting(client, PROGRESS_TICK_USEC, ctl_activity_goes_on, ctl);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(client);
        return 0;
}

CtlExit ctl_call(Ctl *ctl, const char *what, const char *method, json_t *params, const int *fds, size_t n_fds,
                 json_t **ret, int *ret_fds, size_t max_fds) {
        _cleanup_(ipc_client_freep) IpcClient *client = NULL;
        _cleanup_free_ char *full = NULL, *error = NULL;
        _cleanup_json_ json_t *reply = NULL, *owned = params;
        bool begun;
        int r;

        full = text_format("%s%s", MANAGER, method);
        r = full && params ? client_new(ctl, &client) : -ENOMEM;
        if (r >= 0) {
                begun = ctl_activity_begin(ctl, what);
                r = ipc_client_call(client, full, TAKE_PTR(owned), fds, n_fds, CALL_TIMEOUT_USEC, &reply, &error,
                                    ret_fds, max_fds);
                ctl_activity_end(ctl, begun);
        }
        if (r < 0)
                return ctl_report(ctl, what, r, error, reply);

        if (ret)
                *ret = TAKE_PTR(reply);
        return CTL_OK;
}

static CtlExit take_answers(Ctl *ctl, IpcClient *client, const char *what, CtlReply handler, void *userdata) {
        for (;;) {
                _cleanup_free_ char *error = NULL;
                _cleanup_json_ json_t *reply = NULL;
                CtlExit e;
                int r;

                r = ipc_client_next(client, CALL_TIMEOUT_USEC, &reply, &error);
                if (r < 0)
                        return ctl_report(ctl, what, r, error, reply);

                e = json_object_size(reply) > 0 ? handler(ctl, reply, userdata) : CTL_OK;
                if (e != CTL_OK || r == 0)
                        return e;
        }
}

CtlExit ctl_call_more(Ctl *ctl, const char *what, const char *method, json_t *params, CtlReply handler, void *userdata) {
        _cleanup_(ipc_client_freep) IpcClient *client = NULL;
        _cleanup_json_ json_t *owned = params;
        _cleanup_free_ char *full = NULL;
        bool begun;
        CtlExit e;
        int r;

        full = text_format("%s%s", MANAGER, method);
        r = full && params ? client_new(ctl, &client) : -ENOMEM;
        if (r >= 0)
                r = ipc_client_observe(client, full, TAKE_PTR(owned), NULL, 0);
        if (r < 0)
                return ctl_report(ctl, what, r, NULL, NULL);

        begun = ctl_activity_begin(ctl, what);
        e = take_answers(ctl, client, what, handler, userdata);
        ctl_activity_end(ctl, begun);
        return e;
}

/* ---- the program ---- */

static CtlExit run_verb(Ctl *ctl, int argc, char *argv[]) {
        const CtlVerbInfo *info;
        CtlVerb verb;
        int words, n;
        CtlExit r;

        r = ctl_parse_options(ctl, argc, argv);
        if (r != CTL_OK)
                return r;

        verb = ctl_find_verb(&ctl->o, &words);
        if (ctl->o.version)
                return ctl_verb_version(ctl);
        if (ctl->o.help) {
                if (verb != _VERBS)
                        ctl_print_verb_help(ctl, verb);
                else if (ctl->o.n_args != 1 || !ctl_print_group_help(ctl, ctl->o.args[0]))
                        ctl_print_help(ctl);
                return CTL_OK;
        }
        if (ctl->o.n_args == 0)
                return ctl_usage(ctl, "A verb is missing.");
        if (verb == _VERBS)
                return ctl_no_verb(ctl, ctl->o.n_args, ctl->o.args);

        info = &ctl_verbs[verb];
        ctl->verb = info->name;
        r = ctl_check_options(ctl, verb);
        if (r != CTL_OK)
                return r;

        n = ctl->o.n_args - words;
        if (ctl->o.command && !info->command) {
                /* "--" only ended the options: what follows are operands; argv is ours to close the gap in */
                for (int i = 0; i < ctl->o.n_command; i++)
                        ctl->o.args[ctl->o.n_args + i] = ctl->o.command[i];
                ctl->o.n_args += ctl->o.n_command;
                n += ctl->o.n_command;
        }
        if (n < info->min_args)
                return ctl_usage(ctl, "\"%s\" needs %s.", info->name, info->arguments);
        if (info->max_args >= 0 && n > info->max_args)
                return ctl_usage(ctl, "\"%s\" is one operand too many for \"%s\".", ctl->o.args[words + info->max_args], info->name);

        ctl->o.args += words - 1;
        ctl->o.n_args -= words - 1;
        r = info->run(ctl);

        ctl_progress_done(ctl);
        ctl_pager_close(ctl);
        return r;
}

CtlExit ctl_run(Ctl *ctl, int argc, char *argv[]) {
        return finish_output(ctl, run_verb(ctl, argc, argv));
}

/* TERM unset or "dumb": nothing but plain lines. NO_COLOR (no-color.org): no emphasis. */
static void find_terminals(Ctl *ctl) {
        const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
        bool dumb = !term || !*term || strcmp(term, "dumb") == 0;

        ctl->out_tty = isatty(STDOUT_FILENO);
        ctl->err_tty = isatty(STDERR_FILENO);
        ctl->err_redraw = ctl->err_tty && !dumb;
        ctl->err_color = ctl->err_redraw && !(no_color && *no_color);
        if (ctl->out_tty)
                ctl->columns = ctl_terminal_columns(stdout);
}

int ctl_main(int argc, char *argv[]) {
        Ctl ctl = {
                .api_path = CTL_API_PATH,
                .out = stdout,
                .err = stderr,
        };

        log_init("anchorctl");
        find_terminals(&ctl);

        return (int) ctl_run(&ctl, argc, argv);
}
