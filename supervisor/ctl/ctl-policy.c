/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* policy check: the files, read with the caller's own rights. */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "ctl/ctl-egress.h"
#include "util/json.h"
#include "util/text.h"

void ctl_policy_done(CtlPolicy *l) {
        policy_free(l->policy);
        policy_findings_free(l->findings, l->n_findings);
}

/* --root= without its last slashes, the caller's. */
static char *root_of(Ctl *ctl) {
        char *root = strdup(ctl->o.root ?: "");

        while (root && *root && root[strlen(root) - 1] == '/')
                root[strlen(root) - 1] = '\0';
        return root;
}

static CtlExit report_load(Ctl *ctl, const char *what, int r) {
        ctl_error(ctl, "Cannot load %s: %s", what, strerror(-r));
        return ctl_exit_of_errno(r);
}

CtlExit ctl_policy_load(Ctl *ctl, CtlPolicy *ret) {
        _cleanup_free_ char *root = root_of(ctl);
        int r;

        if (!root)
                return ctl_report(ctl, "load the policy", -ENOMEM, NULL, NULL);
        if (ctl->o.root && faccessat(AT_FDCWD, *root ? root : "/", X_OK, AT_EACCESS) < 0) {
                r = -errno;
                ctl_error(ctl, "Cannot read %s: %s", ctl->o.root, strerror(-r));
                return ctl_exit_of_errno(r);
        }

        r = policy_load(&ret->policy, root, &ret->findings, &ret->n_findings);
        return r < 0 ? report_load(ctl, "the policy files", r) : CTL_OK;
}

void ctl_policy_print_findings(Ctl *ctl, FILE *f, const char *before, const PolicyFinding *findings, size_t n) {
        for (size_t i = 0; i < n; i++) {
                const PolicyFinding *x = &findings[i];
                _cleanup_free_ char *place = x->line > 0 ? text_format("%s:%u", x->file, x->line) : strdup(x->file),
                                    *line = text_format("%s: %s%s%s%s", place ?: x->file, before, x->pointer, *x->pointer ? ": " : "", x->reason),
                                    *safe = line ? text_escape(line, strlen(line), false) : NULL;

                (void) fprintf(f, "%s\n", safe ?: "out of memory");
        }
}

static CtlExit load_one(Ctl *ctl, const char *file, CtlPolicy *ret) {
        _cleanup_free_ char *root = root_of(ctl);
        int r;

        r = root ? policy_load_egress_file(&ret->policy, root, file, &ret->findings, &ret->n_findings) : -ENOMEM;
        return r < 0 ? report_load(ctl, file, r) : CTL_OK;
}

/* Of a file with findings: that it cannot be read, for want of permission or since it is not there, is one. */
static CtlExit exit_of_findings(const char *file) {
        return faccessat(AT_FDCWD, file, R_OK, AT_EACCESS) < 0 ? ctl_exit_of_errno(-errno) : CTL_FAILED;
}

/* Checking, a file that is not there is a finding as any other. */
static CtlExit exit_of_check(const char *file) {
        return file && exit_of_findings(file) == CTL_REFUSED ? CTL_REFUSED : CTL_FAILED;
}

/* The one egress policy of a set that was loaded from its file; NULL if that had findings. */
static const EgressPolicy *only_egress(const CtlPolicy *l) {
        const char *const *names;

        return policy_list(l->policy, "egress", &names) == 1 ? policy_find_egress(l->policy, names[0], NULL) : NULL;
}

CtlExit ctl_policy_load_file(Ctl *ctl, const char *file, CtlPolicy *ret, const EgressPolicy **ret_egress) {
        CtlExit r;

        r = load_one(ctl, file, ret);
        if (r != CTL_OK)
                return r;

        *ret_egress = only_egress(ret);
        if (*ret_egress)
                return CTL_OK;
        ctl_policy_print_findings(ctl, ctl->err, "", ret->findings, ret->n_findings);
        return exit_of_findings(file);
}

/* ---- check ---- */

static int add_json(json_t *array, const PolicyFinding *findings, size_t n, const char *level) {
        for (size_t i = 0; i < n; i++)
                if (json_array_append_new(array, json_pack("{s:s, s:i, s:s, s:s, s:s}", "file", findings[i].file, "line", (int) findings[i].line,
                                                           "pointer", findings[i].pointer, "reason", findings[i].reason, "level", level)) < 0)
                        return -ENOMEM;
        return 0;
}

static CtlExit check_json(Ctl *ctl, const CtlPolicy *l, const PolicyFinding *warnings, size_t n_warnings) {
        _cleanup_json_ json_t *array = json_array();

        if (!array || add_json(array, l->findings, l->n_findings, "error") < 0 || add_json(array, warnings, n_warnings, "warning") < 0)
                return ctl_report(ctl, "check the policy", -ENOMEM, NULL, NULL);
        return ctl_print_json(ctl, array);
}

static CtlExit check(Ctl *ctl, const char *file) {
        static const char *const kinds[] = { "workflows", "egress", "credentials", "harness", "providers" };
        _cleanup_(ctl_policy_done) CtlPolicy l = {};
        _cleanup_free_ char *root = root_of(ctl);
        const PolicyFinding *warnings;
        size_t n_files = 0, n_warnings;
        CtlExit r;

        r = file ? load_one(ctl, file, &l) : ctl_policy_load(ctl, &l);
        if (r != CTL_OK)
                return r;
        if (!file && (!root || ctl_policy_check_templates(root, &l) < 0))
                return ctl_report(ctl, "check the policy", -ENOMEM, NULL, NULL);

        for (size_t i = 0; i < ELEMENTSOF(kinds); i++) {
                const char *const *names;

                n_files += policy_list(l.policy, kinds[i], &names);
        }
        n_warnings = policy_warnings(l.policy, &warnings);

        if (ctl->o.json != CTL_JSON_OFF) {
                r = check_json(ctl, &l, warnings, n_warnings);
                return r != CTL_OK || l.n_findings == 0 ? r : exit_of_check(file);
        }

        ctl_policy_print_findings(ctl, ctl->out, "", l.findings, l.n_findings);
        ctl_policy_print_findings(ctl, ctl->out, "warning: ", warnings, n_warnings);
        if (l.n_findings > 0)
                ctl_note(ctl, "%zu finding%s in %zu file%s.", l.n_findings, l.n_findings == 1 ? "" : "s", n_files, n_files == 1 ? "" : "s");
        else if (file) {
                const EgressPolicy *e = only_egress(&l);

                ctl_note(ctl, "%s: no finding. Digest %.16s.", file, e ? egress_policy_digest(e) : "-");
        } else
                ctl_note(ctl, "%zu files, no finding. Digest %.16s.", n_files, policy_digest(l.policy));
        return l.n_findings == 0 ? CTL_OK : exit_of_check(file);
}

CtlExit ctl_verb_policy_check(Ctl *ctl) {
        CtlExit worst = CTL_OK;

        if (ctl->o.n_args < 2)
                return check(ctl, NULL);
        if (ctl->o.json != CTL_JSON_OFF && ctl->o.n_args > 2)
                return ctl_usage(ctl, "--json= takes one file.");

        for (int i = 1; i < ctl->o.n_args; i++) {
                CtlExit r = check(ctl, ctl->o.args[i]);

                worst = worst == CTL_OK ? r : worst;
        }
        return worst;
}
