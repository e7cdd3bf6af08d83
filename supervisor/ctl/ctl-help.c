/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <fcntl.h>
#include <string.h>

#include "ctl/ctl-manual.h"
#include "ctl/ctl-table.h"
#include "ctl/ctl.h"
#include "util/io.h"

const CtlVerbInfo ctl_verbs[_VERBS] = {
        [VERB_SUBMIT] = { "submit", "--workflow=NAME [--repo=PATH] [--task=TEXT] [-- COMMAND…]",
                          "File a work item and print its id", 0, 0, true, ctl_verb_submit },
        [VERB_RUN] = { "run", "--workflow=NAME [--repo=PATH] [--task=TEXT] [-- COMMAND…]",
                       "File a work item and follow it to its end", 0, 0, true, ctl_verb_run },
        [VERB_LIST] = { "list", "[--all] [--state=STATE,…]", "List work items", 0, 0, false, ctl_verb_list },
        [VERB_SHOW] = { "show", "ITEM…", "Show all about work items", 1, -1, false, ctl_verb_show },
        [VERB_COST] = { "cost", "[ITEM] [--by=run|item|workflow|day|model]", "Show what model calls used and cost", 0, 1, false, ctl_verb_cost },
        [VERB_LOGS] = { "logs", "ITEM", "Show what an item's runs printed and did", 1, 1, false, ctl_verb_logs },
        [VERB_STOP] = { "stop", "ITEM… | --all [--hold]", "Stop items, or every run on this host", 0, -1, false, ctl_verb_stop },
        [VERB_RELEASE] = { "release", "", "Start runs again after \"stop --all --hold\"", 0, 0, false, ctl_verb_release },
        [VERB_RESULT] = { "result", "ITEM", "Show or fetch an item's result", 1, 1, false, ctl_verb_result },
        [VERB_POLICY_CHECK] = { "policy check", "[FILE…]", "Check the policy files, or egress policies in FILEs, and print every finding", 0, -1, false,
                                ctl_verb_policy_check },
        [VERB_POLICY_EXPLAIN] = { "policy explain", "RUN|ITEM|WORKFLOW URL|HOST:PORT", "Say what becomes of a connection or request, and by which rule",
                                  2, 2, false, ctl_verb_policy_explain },
        [VERB_POLICY_TEST] = { "policy test", "FILE CASES", "Ask an egress policy a table of questions", 2, 2, false, ctl_verb_policy_test },
        [VERB_POLICY_IMPORT] = { "policy import", "SETTINGS", "Turn sandbox-runtime settings into an egress policy", 1, 1, false,
                                 ctl_verb_policy_import },
        [VERB_POLICY_LOG] = { "policy log", "RUN|ITEM", "List what a run connected to, and what it was refused", 1, 1, false,
                              ctl_verb_policy_log },
        [VERB_POLICY_ALLOW] = { "policy allow", "RUN|ITEM RULE", "Let a run that goes on reach something more", 2, 2, false, ctl_verb_policy_allow },
        [VERB_POLICY_DENY] = { "policy deny", "RUN|ITEM RULE", "Take something from a run that goes on", 2, 2, false, ctl_verb_policy_deny },
        [VERB_POLICY_RELOAD] = { "policy reload", "RUN|ITEM", "Let the policy files as they are now hold for a run", 1, 1, false,
                                 ctl_verb_policy_reload },
        [VERB_POLICY_ACCEPT] = { "policy accept", "[DIGEST]", "Let the policy that a rollback of the host brought back hold again", 0, 1, false,
                                 ctl_verb_policy_accept },
        [VERB_CREDENTIAL_ADD] = { "credential add", "NAME [--from=FILE]", "Seal a credential's value to this host; it comes from standard input", 1, 1, false,
                                  ctl_verb_credential_add },
        [VERB_CREDENTIAL_LIST] = { "credential list", "", "List credentials, whether there is a value, and who uses it", 0, 0, false, ctl_verb_credential_list },
        [VERB_CREDENTIAL_ROTATE] = { "credential rotate", "NAME [--from=FILE]", "Replace a value, also for the runs that have it", 1, 1, false,
                                     ctl_verb_credential_rotate },
        [VERB_CREDENTIAL_REMOVE] = { "credential remove", "NAME", "Take a value from this host and from the runs that have it", 1, 1, false,
                                     ctl_verb_credential_remove },
        [VERB_AUDIT_EXPORT] = { "audit export", "", "Write the audit log to standard output, closed by a signed line", 0, 0, false, ctl_verb_audit_export },
        [VERB_AUDIT_VERIFY] = { "audit verify", "", "Check the audit log's chain", 0, 0, false, ctl_verb_audit_verify },
        [VERB_STATUS] = { "status", "", "Show this host's daemons, runs and counts", 0, 0, false, ctl_verb_status },
        [VERB_DOCTOR] = { "doctor", "", "Look for what keeps runs from starting", 0, 0, false, ctl_verb_doctor },
        [VERB_PRUNE] = { "prune", "[--dry-run] [--age=TIME]", "Remove what ended items left on disk and is over its limits", 0, 0, false, ctl_verb_prune },
        [VERB_HOST_STATUS] = { "host status", "", "Show which images this host runs, has staged, and can go back to", 0, 0, false, ctl_verb_host_status },
        [VERB_HOST_UPGRADE] = { "host upgrade", "[IMAGE] [--apply]", "Fetch an image and stage it for the next boot", 0, 1, false, ctl_verb_host_upgrade },
        [VERB_HOST_ROLLBACK] = { "host rollback", "[--apply]", "Make the previous image that of the next boot", 0, 0, false, ctl_verb_host_rollback },
        [VERB_HOST_ACCEPT] = { "host accept", "DIGEST", "Let an image that was rejected, or left by a rollback, be staged again", 1, 1, false, ctl_verb_host_accept },
        [VERB_HOST_DRAIN] = { "host drain", "[--within=TIME]", "Let runs end, hand back what is left, lease nothing more", 0, 0, false, ctl_verb_host_drain },
        [VERB_HOST_UNDRAIN] = { "host undrain", "", "Lease items again", 0, 0, false, ctl_verb_host_undrain },
        [VERB_VERSION] = { "version", "", "Print the program's version", 0, 0, false, ctl_verb_version },
        [VERB_HELP] = { "help", "[VERB|manual]", "Show help, about a verb, or the whole manual page", 0, 2, false, ctl_verb_help },
};

static const struct {
        const char *title;
        CtlVerb first, last;
} groups[] = {
        { "Work items", VERB_SUBMIT, VERB_RESULT },
        { "Policy, credentials and audit", VERB_POLICY_CHECK, VERB_AUDIT_VERIFY },
        { "This host", VERB_STATUS, VERB_HELP },
};

static void print_summary(Ctl *ctl, CtlVerb v) {
        const char *arguments = ctl_verbs[v].arguments;
        char left[64];

        /* the long forms are in each verb's own help */
        if (v <= VERB_RUN || *arguments == '[')
                arguments = "";
        (void) snprintf(left, sizeof(left), "%s%s%s", ctl_verbs[v].name, *arguments ? " " : "", arguments);
        (void) fputs("  ", ctl->out);
        table_pad(ctl->out, left, 35);
        (void) fprintf(ctl->out, "%s\n", ctl_verbs[v].summary);
}

static bool is_in_group(CtlVerb v, const char *word) {
        size_t n = strlen(word);

        return strncmp(ctl_verbs[v].name, word, n) == 0 && ctl_verbs[v].name[n] == ' ';
}

bool ctl_print_group_help(Ctl *ctl, const char *word) {
        bool any = false;

        for (CtlVerb v = 0; v < _VERBS; v++) {
                if (!is_in_group(v, word))
                        continue;
                if (!any)
                        (void) fprintf(ctl->out, "anchorctl %s VERB …\n\n", word);
                any = true;
                print_summary(ctl, v);
        }
        if (any)
                (void) fprintf(ctl->out, "\n\"anchorctl help %s VERB\" says more about one.\n", word);
        return any;
}

void ctl_print_help(Ctl *ctl) {
        (void) fputs("anchorctl [OPTIONS…] VERB …\n\nHand work to coding agents on this host, watch it, and fetch what came of it.\n", ctl->out);

        for (size_t g = 0; g < ELEMENTSOF(groups); g++) {
                (void) fprintf(ctl->out, "\n%s:\n", groups[g].title);
                for (CtlVerb v = groups[g].first; v <= groups[g].last; v++)
                        print_summary(ctl, v);
        }

        (void) fputs("\nOptions:\n", ctl->out);
        ctl_print_options(ctl->out, _VERBS, true);
        (void) fputs("\n\"anchorctl help VERB\" says more about a verb, \"anchorctl help manual\" about all.\n", ctl->out);
}

CtlExit ctl_no_verb(Ctl *ctl, int n_args, char *args[]) {
        char verbs[128] = "";
        size_t n = strlen(args[0]), end = 0;

        for (CtlVerb v = 0; v < _VERBS && end < sizeof(verbs); v++)
                if (is_in_group(v, args[0]))
                        end += (size_t) snprintf(verbs + end, sizeof(verbs) - end, "%s%s", end > 0 ? ", " : "", ctl_verbs[v].name + n + 1);

        if (end == 0)
                return ctl_usage(ctl, "There is no verb \"%s\".", args[0]);
        if (n_args < 2)
                return ctl_usage(ctl, "After \"%s\" comes one of: %s.", args[0], verbs);
        return ctl_usage(ctl, "There is no verb \"%s %s\"; after \"%s\" comes one of: %s.", args[0], args[1], args[0], verbs);
}

void ctl_print_verb_help(Ctl *ctl, CtlVerb verb) {
        const CtlVerbInfo *v = &ctl_verbs[verb];

        (void) fprintf(ctl->out, "anchorctl %s%s%s\n\n%s.\n\nOptions:\n", v->name, *v->arguments ? " " : "", v->arguments, v->summary);
        ctl_print_options(ctl->out, verb, false);
        ctl_print_options(ctl->out, verb, true);
}

enum { MANUAL_SIZE_MAX = 256 * 1024 };

/* verb NULL: the page. */
static int print_manual(Ctl *ctl, const char *verb) {
        _cleanup_free_ char *page = NULL;
        int r;

        r = io_read_file(AT_FDCWD, MANUAL_PATH, MANUAL_SIZE_MAX, &page, NULL);
        if (r < 0)
                return r;
        if (!verb) {
                ctl_pager_open(ctl);
                return manual_print(ctl->out, page, NULL, ctl->columns);
        }
        (void) fputc('\n', ctl->out);
        return manual_print(ctl->out, page, verb, ctl->columns);
}

CtlExit ctl_verb_help(Ctl *ctl) {
        CtlOptions about = { .args = ctl->o.args + 1, .n_args = ctl->o.n_args - 1 };
        CtlVerb verb;
        int words, r;

        if (about.n_args == 0) {
                ctl_print_help(ctl);
                return CTL_OK;
        }

        if (about.n_args == 1 && strcmp(about.args[0], "manual") == 0) {
                r = print_manual(ctl, NULL);
                if (r >= 0)
                        return CTL_OK;
                ctl_error(ctl, "Cannot read " MANUAL_PATH ": %s", strerror(-r));
                return ctl_exit_of_errno(r);
        }

        verb = ctl_find_verb(&about, &words);
        if (verb == _VERBS && about.n_args == 1 && ctl_print_group_help(ctl, about.args[0]))
                return CTL_OK;
        if (verb == _VERBS)
                return ctl_no_verb(ctl, about.n_args, about.args);

        ctl_pager_open(ctl);
        ctl_print_verb_help(ctl, verb);
        (void) print_manual(ctl, ctl_verbs[verb].name); /* what it is about is said already */
        return CTL_OK;
}
