/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * harness/NAME.json: how one agent is started, fed and read.
 *
 *   { "description": TEXT,
 *     "image": "pi",                          the template's agent image, mounted at /opt/agent/IMAGE
 *     "argv": [ …, "{task}" ], "stdin": TEXT, "cwd": PATH,
 *     "env": { "K": "V" | { "sentinel": CREDENTIAL } },
 *     "files": [ { "path": PATH, "content": TEXT, "mode": "0600" } ],
 *     "output": "json-lines" | "text" }
 *
 * "{task}" and "{feedback}" in argv, stdin and the files' content are filled in for each round; the task
 * must appear somewhere, or the agent would never see it.
 */

#include <string.h>

#include "policy/policy-internal.h"

static bool mentions_task(const json_t *s) {
        return json_is_string(s) && strstr(json_string_value(s), "{task}");
}

static bool check_files(const Node *top) {
        static const char *const known[] = { "path", "content", "mode", NULL };
        bool has_task = false;
        Node array;

        if (!node_array(top, "files", 0, &array))
                return false;
        if (json_array_size(array.value) > 64)
                node_fail(&array, "must not have more than 64 files");

        for (size_t i = 0; i < json_array_size(array.value); i++) {
                Node n = node_element(&array, i);
                const char *s, *wrong;

                if (!node_check_object(&n, known))
                        continue;
                if (node_string(&n, "path", NODE_REQUIRED, &s) && (wrong = check_absolute_path(s)))
                        node_fail_at(&n, "path", "%s", wrong);
                if (node_string(&n, "mode", 0, &s) &&
                    (strlen(s) != 4 || s[0] != '0' || s[strspn(s, "01234567")] != '\0'))
                        node_fail_at(&n, "mode", "must be four octal digits, such as \"0600\"");
                if (node_string(&n, "content", NODE_REQUIRED, &s))
                        has_task |= mentions_task(json_object_get(n.value, "content"));
        }

        return has_task;
}

void policy_check_harness(Policy *p, PolicyObject *o) {
        static const char *const known[] = {
                "description", "image", "argv", "stdin", "cwd", "env", "files", "output", NULL,
        };
        static const char *const outputs[] = { "json-lines", "text", NULL };
        const json_t *argv = NULL, *env = NULL;
        Node top = node_top(p, o);
        const char *s, *wrong;
        bool has_task = false;

        if (!node_check_object(&top, known))
                return;

        (void) node_string(&top, "description", 0, &s);
        if (node_string(&top, "image", NODE_NULLABLE, &s) && !text_is_name(s))
                node_fail_at(&top, "image", "must be a name: a lower-case letter, then letters, digits and dashes");
        if (node_strings(&top, "argv", NODE_REQUIRED, 1, 256, check_argument, &argv)) {
                if (*json_string_value(json_array_get(argv, 0)) == '\0')
                        node_fail_at(&top, "argv", "must begin with a program");
                for (size_t i = 1; i < json_array_size(argv); i++)
                        has_task |= mentions_task(json_array_get(argv, i));
        }
        if (node_string(&top, "stdin", NODE_NULLABLE, &s))
                has_task |= mentions_task(json_object_get(top.value, "stdin"));
        if (node_string(&top, "cwd", 0, &s) && (wrong = check_absolute_path(s)))
                node_fail_at(&top, "cwd", "%s", wrong);
        node_environment(&top, "env", &env);
        has_task |= check_files(&top);
        (void) node_choice(&top, "output", NODE_REQUIRED, outputs, &s);

        if (argv && !has_task)
                node_fail_at(&top, "argv", "never says \"{task}\", nor does stdin or a file: the agent would not learn its task");
}
