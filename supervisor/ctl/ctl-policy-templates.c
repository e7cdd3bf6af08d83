/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* policy check: is what workflows run in installed? Submitting one whose template is not, or has no image of its agent, is refused. */

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "ctl/ctl-egress.h"
#include "util/io.h"
#include "util/json-position.h"
#include "util/json.h"
#include "util/text.h"
#include "vmm/signature.h"
#include "vmm/vm-template.h"

#define TEMPLATES "/usr/lib/anchorhold/templates"

enum { POLICY_FILE_MAX = 1024 * 1024 };

/* On this host as anchord will read it; of another root only whether it is there, since who signed it is for that host's keys to say. */
static char *problem_of_template(const char *root, int dir_fd, const char *name) {
        _cleanup_json_ json_t *manifest = NULL;
        _cleanup_free_ char *why = NULL;

        if (dir_fd < 0 || faccessat(dir_fd, VM_TEMPLATE_MANIFEST, F_OK, 0) < 0)
                return text_format("template %s is not installed (%s%s)", name, root, TEMPLATES);
        if (*root == '\0' && vm_template_read(dir_fd, name, SIGNATURE_KEYS, &manifest, &why) < 0)
                return text_format("template %s cannot be used%s%s", name, why ? ": " : "", why ?: "");
        return NULL;
}

/* Why a workflow cannot run in its template; NULL: it can. The caller's. */
static char *problem_of(const char *root, const PolicyWorkflow *w, const json_t *harness) {
        const char *agent = json_string_value(json_object_get(harness, "image"));
        _cleanup_free_ char *path = text_format("%s" TEMPLATES "/%s", root, w->template_name), *image = NULL;
        _cleanup_fd_ int dir_fd = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        char *problem = problem_of_template(root, dir_fd, w->template_name);

        if (problem || !agent)
                return problem;
        image = text_format("agents/%s.erofs", agent);
        if (image && faccessat(dir_fd, image, F_OK, 0) < 0)
                return text_format("template %s has no image of agent %s, which harness %s takes", w->template_name, agent, w->harness);
        return NULL;
}

/* The text is read once more: a policy that was loaded has let go of it. */
static unsigned line_of(const char *file, const char *pointer) {
        _cleanup_free_ char *text = NULL;
        unsigned line = 0;
        size_t size;

        if (io_read_file(AT_FDCWD, file, POLICY_FILE_MAX, &text, &size) < 0 || json_position(text, size, pointer, &line) < 0)
                return 0;
        return line;
}

/* Takes over the reason. */
static int add_finding(CtlPolicy *l, const char *file, char *reason) {
        PolicyFinding *grown = reallocarray(l->findings, l->n_findings + 1, sizeof(*grown));

        if (!grown) {
                free(reason);
                return -ENOMEM;
        }
        l->findings = grown;
        grown[l->n_findings] = (PolicyFinding) { .file = strdup(file), .pointer = strdup("/template"), .reason = reason, .line = line_of(file, "/template") };
        l->n_findings++;
        return grown[l->n_findings - 1].file && grown[l->n_findings - 1].pointer ? 0 : -ENOMEM;
}

int ctl_policy_check_templates(const char *root, CtlPolicy *l) {
        _cleanup_free_ char *folder = text_format("%s" TEMPLATES, root);
        const char *const *names;
        size_t n;

        if (!folder)
                return -ENOMEM;
        /* a tree of policy files alone, elsewhere than on a host */
        if (*root && access(folder, F_OK) < 0)
                return 0;

        n = policy_list(l->policy, "workflows", &names);
        for (size_t i = 0; i < n; i++) {
                const PolicyWorkflow *w = policy_find_workflow(l->policy, names[i], NULL);
                char *problem = w ? problem_of(root, w, w->harness ? policy_find_harness(l->policy, w->harness, NULL) : NULL) : NULL;

                if (problem && add_finding(l, policy_file_of_workflow(l->policy, names[i]), problem) < 0)
                        return -ENOMEM;
        }
        return 0;
}
