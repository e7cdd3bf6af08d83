/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * harness/NAME.json: how one agent is started, fed and read.
 *
 *   { "description": TEXT,
 *     "image": "pi",                          the template's agent image, mounted at /opt/agent/IMAGE
 *     "argv": [ …, "{task}" ], "stdin": TEXT, "cwd": PATH,
 *     "env": { "K": "V" | { "sentinel": CREDENTIAL } },
 *     "files": [ { "path": PATH, "content": TEXT, "mode": "0600" } ],
 *     "output": "json-lines" | "text",
 *     "display": [ { "when": { POINTER: VALUE }, "each": POINTER, "where": { POINTER: VALUE }, "format": TEXT } ] }
 *
 * "display" says what a person gets to read of json-lines: for each line, every rule whose `when` fits the line's object
 * yields its format, with "{/pointer}" replaced by what is there; with `each`, once for each element of that array
 * that `where` fits. Pointers are RFC 6901's, through objects alone.
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

static void check_conditions(const Node *rule, const char *key, NodeFlags flags) {
        const char *pointer;
        json_t *value;
        Node n;

        if (!node_object(rule, key, flags, &n))
                return;
        json_object_foreach((json_t *) n.value, pointer, value)
                if (*pointer != '/' || json_is_object(value) || json_is_array(value))
                        node_fail_at(&n, pointer, "must be a JSON pointer with a plain value to compare");
}

static void check_display(const Node *top) {
        static const char *const known[] = { "when", "each", "where", "format", NULL };
        Node array;

        if (!node_array(top, "display", 0, &array))
                return;
        if (json_array_size(array.value) > 64)
                node_fail(&array, "must not have more than 64 rules");

        for (size_t i = 0; i < json_array_size(array.value); i++) {
                Node n = node_element(&array, i);
                const char *s;

                if (!node_check_object(&n, known))
                        continue;
                check_conditions(&n, "when", NODE_REQUIRED);
                check_conditions(&n, "where", 0);
                if (node_string(&n, "each", 0, &s) && *s != '/')
                        node_fail_at(&n, "each", "must be a JSON pointer");
                if (node_string(&n, "format", NODE_REQUIRED, &s) && strlen(s) > 256)
                        node_fail_at(&n, "format", "must not have more than 256 bytes");
        }
}

void policy_check_harness(Policy *p, PolicyObject *o) {
        static const char *const known[] = {
                "description", "image", "argv", "stdin", "cwd", "env", "files", "output", "display", NULL,
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
        if (node_choice(&top, "output", NODE_REQUIRED, outputs, &s) && strcmp(s, "text") == 0 &&
            json_object_get(top.value, "display"))
                node_fail_at(&top, "display", "reads lines of JSON, and this agent prints text");
        check_display(&top);

        if (argv && !has_task)
                node_fail_at(&top, "argv", "never says \"{task}\", nor does stdin or a file: the agent would not learn its task");
}
