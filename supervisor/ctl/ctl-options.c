/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The command line. Options may stand before or after the verb, as in systemd's tools; one table says
 * which option is for which verb. What follows "--" is left alone: it is the command of an exec step, or
 * operands that begin with a dash.
 */

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stddef.h>
#include <string.h>

#include "ctl/ctl-table.h"
#include "ctl/ctl.h"

#define V(verb) (UINT64_C(1) << VERB_##verb)
#define ANY UINT64_MAX

typedef enum OptionType { OPTION_FLAG, OPTION_TEXT, OPTION_JSON, OPTION_COUNT } OptionType;

static const struct {
        const char *name;
        char letter; /* 0: none */
        OptionType type;
        size_t offset;
        uint64_t verbs;
        const char *argument, *help;
} options[] = {
#define MEMBER(m) offsetof(CtlOptions, m)
        { "workflow", 'w', OPTION_TEXT, MEMBER(workflow), V(SUBMIT) | V(RUN), "NAME", "What to do: a file of policy/workflows" },
        { "repo", 'r', OPTION_TEXT, MEMBER(repo), V(SUBMIT) | V(RUN), "PATH", "The git repository to work on" },
        { "base", 'b', OPTION_TEXT, MEMBER(base), V(SUBMIT) | V(RUN), "COMMIT", "Where to start from (default: HEAD)" },
        { "task", 't', OPTION_TEXT, MEMBER(task), V(SUBMIT) | V(RUN), "TEXT", "What the agent is asked to do" },
        { "task-file", 0, OPTION_TEXT, MEMBER(task_file), V(SUBMIT) | V(RUN), "FILE", "The same from a file, \"-\" for standard input" },
        { "upstream", 0, OPTION_TEXT, MEMBER(upstream), V(SUBMIT) | V(RUN), "OWNER/NAME", "The repository as the git host calls it; tokens are for this one" },
        { "source", 0, OPTION_TEXT, MEMBER(source), V(SUBMIT) | V(RUN), "ID", "Where the item comes from; one live item for each" },
        { "state", 0, OPTION_TEXT, MEMBER(states), V(LIST), "STATE,…", "Only items in these states" },
        { "limit", 'n', OPTION_COUNT, MEMBER(limit), V(LIST), "N", "At most so many" },
        { "all", 'a', OPTION_FLAG, MEMBER(all), V(LIST) | V(STOP), NULL, "Ended items too; with stop: every run" },
        { "follow", 'f', OPTION_FLAG, MEMBER(follow), V(LOGS) | V(POLICY_LOG), NULL, "Go on as more is written" },
        { "raw", 0, OPTION_FLAG, MEMBER(raw), V(RUN) | V(LOGS), NULL, "An agent's output as it prints it, not as its harness file shows it" },
        { "run", 0, OPTION_TEXT, MEMBER(run), V(LOGS), "RUN", "Only this run's" },
        { "hold", 0, OPTION_FLAG, MEMBER(hold), V(STOP), NULL, "Start no run until \"anchorctl release\"" },
        { "reason", 0, OPTION_TEXT, MEMBER(reason), V(STOP) | V(HOST_DRAIN), "TEXT", "For the record" },
        { "apply", 0, OPTION_FLAG, MEMBER(apply), V(HOST_UPGRADE) | V(HOST_ROLLBACK), NULL, "Then drain this host and reboot it" },
        { "within", 0, OPTION_TEXT, MEMBER(within), V(HOST_DRAIN) | V(HOST_UPGRADE) | V(HOST_ROLLBACK), "TIME", "How long runs may go on (default: 10min; 0s: not at all)" },
        { "by", 0, OPTION_TEXT, MEMBER(by), V(COST), "WHAT", "One line for each run, item, workflow, day or model" },
        { "since", 0, OPTION_TEXT, MEMBER(since), V(COST), "TIME", "Only calls since a date (2026-01-31), a time, or so long ago (7d)" },
        { "dry-run", 0, OPTION_FLAG, MEMBER(dry_run), V(PRUNE), NULL, "Say what would go, and remove nothing" },
        { "age", 0, OPTION_TEXT, MEMBER(age), V(PRUNE), "TIME", "Also what ended so long ago, whatever the limits are (7d; 0s: all)" },
        { "bundle", 0, OPTION_TEXT, MEMBER(bundle), V(RESULT), "FILE", "Write the result as a git bundle, \"-\" for standard output" },
        { "diff", 0, OPTION_FLAG, MEMBER(diff), V(RESULT), NULL, "Print the result as a diff" },
        { "root", 0, OPTION_TEXT, MEMBER(root), V(POLICY_CHECK) | V(POLICY_EXPLAIN) | V(POLICY_TEST), "DIR", "Look below this folder instead of /" },
        { "method", 0, OPTION_TEXT, MEMBER(method), V(POLICY_EXPLAIN), "METHOD", "Of one request" },
        { "path", 0, OPTION_TEXT, MEMBER(path), V(POLICY_EXPLAIN), "PATH", "Of one request" },
        { "verify", 0, OPTION_FLAG, MEMBER(verify), V(POLICY_EXPLAIN), NULL, "For the second microVM, which checks the result" },
        { "name", 0, OPTION_TEXT, MEMBER(name), V(POLICY_IMPORT), "NAME", "What the policy is to be called (default: the file's name)" },
        { "suggest", 0, OPTION_FLAG, MEMBER(suggest), V(POLICY_LOG), NULL, "Print a policy that would have allowed what was blocked" },
        { "blocked", 0, OPTION_FLAG, MEMBER(blocked), V(POLICY_LOG), NULL, "Only what was refused" },
        { "from", 0, OPTION_TEXT, MEMBER(from), V(CREDENTIAL_ADD) | V(CREDENTIAL_ROTATE), "FILE", "Where the value is (default: standard input)" },
        { "file", 0, OPTION_TEXT, MEMBER(file), V(AUDIT_VERIFY), "FILE", "Verify an exported file, \"-\" for standard input" },
        { "directory", 'D', OPTION_TEXT, MEMBER(directory), V(AUDIT_EXPORT) | V(AUDIT_VERIFY) | V(POLICY_LOG), "DIR", "Read the journal files in this folder" },
        { "checkpoints", 0, OPTION_TEXT, MEMBER(checkpoints), V(AUDIT_VERIFY), "FILE", "Signed checkpoints (default: the host's own)" },
        { "key", 0, OPTION_TEXT, MEMBER(key), V(AUDIT_EXPORT) | V(AUDIT_VERIFY), "FILE", "The key of the checkpoints, in PEM: the public one; to export, the private one" },
        { "head", 0, OPTION_TEXT, MEMBER(head), V(AUDIT_VERIFY), "HASH", "The log must reach the record of this hash (16 digits or more)" },

        { "json", 'j', OPTION_JSON, MEMBER(json), ANY, "MODE", "Print JSON: pretty, short, off" },
        { "no-pager", 0, OPTION_FLAG, MEMBER(no_pager), ANY, NULL, "Do not pipe long output into a pager" },
        { "no-legend", 0, OPTION_FLAG, MEMBER(no_legend), ANY, NULL, "No column titles and no count" },
        { "quiet", 'q', OPTION_FLAG, MEMBER(quiet), ANY, NULL, "Only what was asked for, and errors" },
        { "help", 'h', OPTION_FLAG, MEMBER(help), ANY, NULL, "This text" },
        { "version", 0, OPTION_FLAG, MEMBER(version), ANY, NULL, "The program's version" },
#undef MEMBER
};

enum { LONG_BASE = 256 };

static bool parse_json_mode(const char *s, CtlJson *ret) {
        static const char *const modes[] = {
                [CTL_JSON_OFF] = "off",
                [CTL_JSON_SHORT] = "short",
                [CTL_JSON_PRETTY] = "pretty",
        };

        for (size_t i = 0; i < ELEMENTSOF(modes); i++)
                if (strcmp(modes[i], s) == 0) {
                        *ret = (CtlJson) i;
                        return true;
                }
        return false;
}

static bool parse_count(const char *s, uint64_t *ret) {
        char *end;

        if (!isdigit((unsigned char) *s))
                return false;

        errno = 0;
        *ret = strtoull(s, &end, 10);
        return errno == 0 && *end == '\0' && *ret > 0;
}

static CtlExit apply(Ctl *ctl, size_t i, const char *value) {
        void *member = (char *) &ctl->o + options[i].offset;

        switch (options[i].type) {
        case OPTION_FLAG:
                *(bool *) member = true;
                break;
        case OPTION_TEXT:
                if (ctl->o.given & (UINT64_C(1) << i))
                        return ctl_usage(ctl, "--%s is given twice.", options[i].name);
                *(const char **) member = value;
                break;
        case OPTION_JSON:
                if (!parse_json_mode(value, member))
                        return ctl_usage(ctl, "--json= takes pretty, short or off, not \"%s\".", value);
                break;
        case OPTION_COUNT:
                if (!parse_count(value, member))
                        return ctl_usage(ctl, "--%s= takes a number above zero, not \"%s\".", options[i].name, value);
                break;
        }

        ctl->o.given |= UINT64_C(1) << i;
        return CTL_OK;
}

static ssize_t find_letter(int c) {
        for (size_t i = 0; i < ELEMENTSOF(options); i++)
                if (c != 0 && options[i].letter == c)
                        return (ssize_t) i;
        return -1;
}

CtlExit ctl_parse_options(Ctl *ctl, int argc, char *argv[]) {
        struct option longs[ELEMENTSOF(options) + 1] = {};
        char shorts[2 * ELEMENTSOF(options) + 2] = ":";
        size_t n = 1;
        int end, c;

        for (size_t i = 0; i < ELEMENTSOF(options); i++) {
                int argument = options[i].type == OPTION_FLAG ? no_argument : required_argument;

                longs[i] = (struct option) { options[i].name, argument, NULL, LONG_BASE + (int) i };
                if (!options[i].letter)
                        continue;
                shorts[n++] = options[i].letter;
                /* -j alone is short for pretty, as elsewhere */
                if (argument == required_argument && options[i].type != OPTION_JSON)
                        shorts[n++] = ':';
        }
        shorts[n] = '\0';

        for (end = 1; end < argc; end++)
                if (strcmp(argv[end], "--") == 0)
                        break;

        optind = 0;
        opterr = 0;
        while ((c = getopt_long(end, argv, shorts, longs, NULL)) >= 0) {
                const char *word = optind > 0 && optind <= argc ? argv[optind - 1] : "";
                ssize_t i;
                CtlExit r;

                if (c == ':')
                        return optopt >= LONG_BASE ? ctl_usage(ctl, "--%s needs a value.", options[optopt - LONG_BASE].name)
                                                   : ctl_usage(ctl, "-%c needs a value.", optopt);
                if (c == '?') {
                        if (optopt >= LONG_BASE)
                                return ctl_usage(ctl, "--%s takes no value.", options[optopt - LONG_BASE].name);
                        return optopt ? ctl_usage(ctl, "There is no option -%c.", optopt)
                                      : ctl_usage(ctl, "There is no option %s, or it is ambiguous.", word);
                }

                i = c >= LONG_BASE ? c - LONG_BASE : find_letter(c);
                r = apply(ctl, (size_t) i, c == 'j' ? "pretty" : optarg);
                if (r != CTL_OK)
                        return r;
        }

        ctl->o.args = argv + optind;
        ctl->o.n_args = end - optind;
        if (end < argc) {
                ctl->o.command = argv + end + 1;
                ctl->o.n_command = argc - end - 1;
        }
        return CTL_OK;
}

CtlVerb ctl_find_verb(const CtlOptions *o, int *ret_words) {
        for (CtlVerb v = 0; v < _VERBS; v++) {
                const char *space = strchr(ctl_verbs[v].name, ' ');
                size_t n = space ? (size_t) (space - ctl_verbs[v].name) : strlen(ctl_verbs[v].name);

                if (o->n_args < 1 || strlen(o->args[0]) != n || memcmp(o->args[0], ctl_verbs[v].name, n) != 0)
                        continue;
                if (!space) {
                        *ret_words = 1;
                        return v;
                }
                if (o->n_args >= 2 && strcmp(o->args[1], space + 1) == 0) {
                        *ret_words = 2;
                        return v;
                }
        }

        *ret_words = 0;
        return _VERBS;
}

CtlExit ctl_check_options(Ctl *ctl, CtlVerb verb) {
        for (size_t i = 0; i < ELEMENTSOF(options); i++)
                if ((ctl->o.given & (UINT64_C(1) << i)) && !(options[i].verbs & (UINT64_C(1) << verb)))
                        return ctl_usage(ctl, "\"%s\" has no option --%s.", ctl_verbs[verb].name, options[i].name);

        return CTL_OK;
}

void ctl_print_options(FILE *f, CtlVerb verb, bool global) {
        for (size_t i = 0; i < ELEMENTSOF(options); i++) {
                char left[64], letter[8] = "   ";

                if ((options[i].verbs == ANY) != global || (!global && !(options[i].verbs & (UINT64_C(1) << verb))))
                        continue;
                if (options[i].letter)
                        (void) snprintf(letter, sizeof(letter), "-%c ", options[i].letter);
                (void) snprintf(left, sizeof(left), "%s--%s%s%s", letter, options[i].name,
                                options[i].argument ? "=" : "", options[i].argument ?: "");
                (void) fputs("  ", f);
                table_pad(f, left, 27);
                (void) fprintf(f, "%s\n", options[i].help);
        }
}
