/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What an operator does from a shell: anchorctl's verbs, one file for each group. They talk to anchord
 * over its varlink socket with the caller's own rights, read the audit journal and the policy files
 * themselves, and hold no privilege of their own.
 *
 * Whatever came from a guest, a repository, an origin or a daemon goes to the terminal through
 * text_escape().
 */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "ipc/ipc.h"
#include "util/cleanup.h"

#define CTL_API_PATH "/run/anchorhold/api.sock"

/* Exit statuses, part of the interface. Functions of ctl/ return one of these. */
typedef enum CtlExit {
        CTL_OK = 0,          /* a followed run: it reached its goal */
        CTL_FAILED = 1,      /* failed or cancelled, or a daemon could not be asked */
        CTL_USAGE = 2,
        CTL_REFUSED = 3,     /* by policy, or by permission */
        CTL_NOT_FOUND = 4,
        CTL_CONFLICT = 5,
        CTL_OVER_BUDGET = 6,
        CTL_INTERRUPTED = 130, /* the caller's Ctrl-C; the run goes on */
} CtlExit;

typedef enum CtlJson {
        CTL_JSON_OFF,
        CTL_JSON_SHORT,
        CTL_JSON_PRETTY,
} CtlJson;

typedef struct CtlOptions {
        CtlJson json;
        bool no_pager, no_legend, quiet, help, version;

        const char *workflow, *repo, *base, *task, *task_file, *source, *upstream;
        const char *states, *run, *reason, *bundle, *root, *file, *directory, *checkpoints, *key, *head, *method, *path, *name, *within, *from, *by, *since, *age;
        bool follow, all, hold, blocked, suggest, diff, verify, raw, apply, dry_run;
        uint64_t limit;

        uint64_t given;      /* a bit for each entry of the options' table */
        char **args;         /* borrowed; verb and operands; in a verb, args[0] is its last word */
        int n_args;
        char **command;      /* borrowed; what follows "--", NULL without it */
        int n_command;
} CtlOptions;

typedef struct Ctl {
        CtlOptions o;
        const char *api_path;   /* borrowed */
        const char *egress_path;/* borrowed; NULL: where it is on a host */
        FILE *out, *err;        /* borrowed */
        int lost;               /* errno of the first output that could not be written; 0: none */
        bool out_tty, err_tty;
        bool err_redraw;        /* err is a terminal that can take a line back */
        bool err_color;         /* and one that is to show emphasis */
        unsigned columns;       /* of the terminal; 0: not one */
        const char *verb;       /* static; the verb's name once it is known */
        pid_t pager;
        FILE *terminal;         /* borrowed; what out was before the pager */
        struct {
                bool shown;             /* a status line is on the terminal */
                unsigned width;         /* its columns */
                uint64_t since_usec;    /* when what it tells of began; CLOCK_MONOTONIC, as the next */
                uint64_t said_usec;     /* when something was last printed */
                uint64_t drawn_usec;    /* when the status line was */
                const char *activity;   /* borrowed; NULL: none */
        } progress;
} Ctl;

/* The whole program: streams, options, verb, exit status. */
int ctl_main(int argc, char *argv[]);

/* The same on a context whose streams and api_path are set. */
CtlExit ctl_run(Ctl *ctl, int argc, char *argv[]);

/* ---- verbs; operands are ctl->o.args from args[1] on ---- */

CtlExit ctl_verb_submit(Ctl *ctl);
CtlExit ctl_verb_run(Ctl *ctl);
CtlExit ctl_verb_list(Ctl *ctl);
CtlExit ctl_verb_show(Ctl *ctl);
CtlExit ctl_verb_cost(Ctl *ctl);
CtlExit ctl_verb_logs(Ctl *ctl);
CtlExit ctl_verb_stop(Ctl *ctl);
CtlExit ctl_verb_release(Ctl *ctl);
CtlExit ctl_verb_result(Ctl *ctl);
CtlExit ctl_verb_policy_check(Ctl *ctl);
CtlExit ctl_verb_policy_explain(Ctl *ctl);
CtlExit ctl_verb_policy_test(Ctl *ctl);
CtlExit ctl_verb_policy_import(Ctl *ctl);
CtlExit ctl_verb_policy_log(Ctl *ctl);
CtlExit ctl_verb_policy_allow(Ctl *ctl);
CtlExit ctl_verb_policy_deny(Ctl *ctl);
CtlExit ctl_verb_policy_reload(Ctl *ctl);
CtlExit ctl_verb_policy_accept(Ctl *ctl);
CtlExit ctl_verb_credential_add(Ctl *ctl);
CtlExit ctl_verb_credential_list(Ctl *ctl);
CtlExit ctl_verb_credential_rotate(Ctl *ctl);
CtlExit ctl_verb_credential_remove(Ctl *ctl);
CtlExit ctl_verb_audit_export(Ctl *ctl);
CtlExit ctl_verb_audit_verify(Ctl *ctl);
CtlExit ctl_verb_status(Ctl *ctl);
CtlExit ctl_verb_doctor(Ctl *ctl);
CtlExit ctl_verb_prune(Ctl *ctl);
CtlExit ctl_verb_host_status(Ctl *ctl);
CtlExit ctl_verb_host_upgrade(Ctl *ctl);
CtlExit ctl_verb_host_rollback(Ctl *ctl);
CtlExit ctl_verb_host_accept(Ctl *ctl);
CtlExit ctl_verb_host_drain(Ctl *ctl);
CtlExit ctl_verb_host_undrain(Ctl *ctl);
CtlExit ctl_verb_version(Ctl *ctl);
CtlExit ctl_verb_help(Ctl *ctl);

/* ---- options and help ---- */

typedef enum CtlVerb {
        VERB_SUBMIT, VERB_RUN, VERB_LIST, VERB_SHOW, VERB_COST, VERB_LOGS, VERB_STOP, VERB_RELEASE, VERB_RESULT,
        VERB_POLICY_CHECK, VERB_POLICY_EXPLAIN, VERB_POLICY_TEST, VERB_POLICY_IMPORT, VERB_POLICY_LOG, VERB_POLICY_ALLOW, VERB_POLICY_DENY, VERB_POLICY_RELOAD, VERB_POLICY_ACCEPT,
        VERB_CREDENTIAL_ADD, VERB_CREDENTIAL_LIST, VERB_CREDENTIAL_ROTATE, VERB_CREDENTIAL_REMOVE, VERB_AUDIT_EXPORT, VERB_AUDIT_VERIFY,
        VERB_STATUS, VERB_DOCTOR, VERB_PRUNE, VERB_HOST_STATUS, VERB_HOST_UPGRADE, VERB_HOST_ROLLBACK, VERB_HOST_ACCEPT, VERB_HOST_DRAIN, VERB_HOST_UNDRAIN,
        VERB_VERSION, VERB_HELP,
        _VERBS,
} CtlVerb;

typedef struct CtlVerbInfo {
        const char *name;       /* "list", "policy check" */
        const char *arguments;  /* as in the usage line */
        const char *summary;
        int min_args, max_args; /* operands; -1: any number */
        bool command;           /* takes what follows "--" as a command */
        CtlExit (*run)(Ctl *ctl);
} CtlVerbInfo;

extern const CtlVerbInfo ctl_verbs[_VERBS];

/* Fills ctl->o; on a usage error says what is wrong and returns CTL_USAGE. */
CtlExit ctl_parse_options(Ctl *ctl, int argc, char *argv[]);

/* The verb of the parsed arguments and the number of words it has; _VERBS if there is none such. */
CtlVerb ctl_find_verb(const CtlOptions *o, int *ret_words);

/* Says that these words name no verb, with those that could follow the first; returns CTL_USAGE. */
CtlExit ctl_no_verb(Ctl *ctl, int n_args, char *args[]);

/* Is every given option one that this verb takes? Says so if not. */
CtlExit ctl_check_options(Ctl *ctl, CtlVerb verb);

void ctl_print_help(Ctl *ctl);
/* Of the verbs of two words, those with that first one; false: there is none. */
bool ctl_print_group_help(Ctl *ctl, const char *word);
void ctl_print_verb_help(Ctl *ctl, CtlVerb verb);
void ctl_print_options(FILE *f, CtlVerb verb, bool global);

/* ---- saying things ---- */

/* One line on the error stream, escaped. */
void ctl_error(Ctl *ctl, const char *format, ...) _printf_(2, 3);
/* The same with a hint how to go on, for usage errors; returns CTL_USAGE. */
CtlExit ctl_usage(Ctl *ctl, const char *format, ...) _printf_(2, 3);
/* Not with --quiet. */
void ctl_note(Ctl *ctl, const char *format, ...) _printf_(2, 3);

/* ---- a sign of life (ctl-progress.c) ---- */

/* What is being done right now: a status line on a terminal, replaced by the next; elsewhere a line, before there was nothing
 * for ten seconds. To be called every PROGRESS_TICK_USEC while one waits; does nothing as long as it is too early. */
void ctl_progress(Ctl *ctl, const char *format, ...) _printf_(2, 3);
/* Takes the status line back. Comes before anything that is printed to either stream. */
void ctl_progress_done(Ctl *ctl);
/* For how long has nothing been printed? */
uint64_t ctl_progress_silence(const Ctl *ctl);
/* The time that is shown counts from then on, CLOCK_MONOTONIC. */
void ctl_progress_since(Ctl *ctl, uint64_t usec);

/* Something that may take long begins, unless it is part of something larger: then false. `what` is borrowed until its end. */
bool ctl_activity_begin(Ctl *ctl, const char *what);
/* An IpcWaiting: it still goes on. */
void ctl_activity_goes_on(void *ctl);
void ctl_activity_end(Ctl *ctl, bool begun);

unsigned ctl_terminal_columns(FILE *f);

/* ---- printing ---- */

/* Flushes; what is lost by it is said at the end, and counts as a failure. */
void ctl_flush(Ctl *ctl, FILE *f);

/* One JSON value as --json= wants it. */
CtlExit ctl_print_json(Ctl *ctl, const json_t *value);

/* A string of an object, escaped, the caller's; `missing` if it is not there. Never NULL but out of memory. */
char *ctl_text(const json_t *object, const char *key, const char *missing);
/* Borrowed and not escaped; NULL if it is not there. */
const char *ctl_string(const json_t *object, const char *key);

/* Any value on one line, escaped; the caller's. */
char *ctl_value_text(const json_t *value);

/* The words of an array, with blanks between; not escaped; the caller's, NULL when out of memory. */
char *ctl_join(const json_t *words);
/* "       Title: value", escaped, each further line of it below the first; nothing if there is no value. */
void ctl_field(Ctl *ctl, const char *title, const char *value);

/* The part of `show` that is about the result. */
CtlExit ctl_show_result(Ctl *ctl, const char *id);

/* ---- anchord ---- */

/* Calls io.anchorhold.Manager.METHOD and waits. On failure says so ("Cannot WHAT: …") and returns the exit status. */
CtlExit ctl_call(Ctl *ctl, const char *what, const char *method, json_t *params, const int *fds, size_t n_fds,
                 json_t **ret, int *ret_fds, size_t max_fds);
/* The same with several answers; the handler gets each. */
typedef CtlExit (*CtlReply)(Ctl *ctl, json_t *params, void *userdata);
CtlExit ctl_call_more(Ctl *ctl, const char *what, const char *method, json_t *params, CtlReply handler, void *userdata);

/* What went wrong with a call, said and turned into an exit status. r is negative errno, `error` a varlink error or NULL. */
CtlExit ctl_report(Ctl *ctl, const char *what, int r, const char *error, const json_t *params);

CtlExit ctl_exit_of_error(const char *error, const json_t *params);
/* Of a file, or a folder, that a person named: negative errno. */
CtlExit ctl_exit_of_errno(int r);
/* Of a followed item that came to rest in that state. */
CtlExit ctl_exit_of_state(const char *state, const char *reason);

/* Follows an item from that position to its rest, printing as it goes. */
CtlExit ctl_follow(Ctl *ctl, const char *item, const char *run, int64_t from);

/* Waits for nothing: prints one event as logs, run and logs --follow do. */
typedef struct CtlPrinter {
        Ctl *ctl;
        const char *only_run;   /* NULL: all */
        FILE *in_line;          /* borrowed: the terminal's stream whose last line is not ended yet; NULL: none */
} CtlPrinter;
void ctl_print_event(CtlPrinter *p, const json_t *event);
void ctl_print_end(CtlPrinter *p);

/* ---- seed bundle ---- */

/* Makes a bundle of everything that `base` (NULL: HEAD) of the repository reaches, as refs/anchorhold/base. */
CtlExit ctl_seed_make(Ctl *ctl, const char *repo, const char *base, int *ret_fd, char **ret_commit);

/* ---- pager ---- */

/* From here on ctl->out goes through a pager, if it is a terminal and nobody said no. */
void ctl_pager_open(Ctl *ctl);
void ctl_pager_close(Ctl *ctl);

/* ---- audit records as people read them ---- */

/* One line about a record of the network's events, escaped, the caller's. actor: the unit that asked, NULL if the log does not say. */
char *ctl_record_text(const char *event, const char *actor, const json_t *data);
/* Was it inject that asked, which reads what it carries? */
bool ctl_record_is_of_inject(const char *actor);
/* Is it about something that was refused? */
bool ctl_record_is_denial(const char *event, const json_t *data);
/* How many refusals it stands for. */
uint64_t ctl_record_refusals(const char *event, const json_t *data);
/* Is it about the network at all? */
bool ctl_record_is_network(const char *event);
