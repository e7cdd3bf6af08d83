/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* submit and run. */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "ctl/ctl-format.h"
#include "ctl/ctl.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

enum {
        TASK_MAX = 256 * 1024,   /* anchord takes no longer one */
        TELL_SIZE = 8 * 1024 * 1024,
};

static CtlExit read_task(Ctl *ctl, char **ret) {
        _cleanup_free_ char *text = NULL;
        size_t size;
        int r;

        if (ctl->o.task && ctl->o.task_file)
                return ctl_usage(ctl, "--task= and --task-file= exclude each other.");
        if (ctl->o.task) {
                *ret = strdup(ctl->o.task);
                return CTL_OK;
        }
        if (!ctl->o.task_file)
                return CTL_OK;

        if (strcmp(ctl->o.task_file, "-") == 0)
                r = io_read_fd(STDIN_FILENO, TASK_MAX, &text, &size);
        else
                r = io_read_file(AT_FDCWD, ctl->o.task_file, TASK_MAX, &text, &size);
        if (r == -EFBIG) {
                ctl_error(ctl, "The task in %s is longer than 256K.", ctl->o.task_file);
                return CTL_USAGE;
        }
        if (r < 0) {
                ctl_error(ctl, "Cannot read the task from %s: %s", ctl->o.task_file, strerror(-r));
                return ctl_exit_of_errno(r);
        }
        if (strlen(text) != size) {
                ctl_error(ctl, "The task in %s is not text.", ctl->o.task_file);
                return CTL_USAGE;
        }

        *ret = TAKE_PTR(text);
        return CTL_OK;
}

static json_t *command_array(const Ctl *ctl) {
        _cleanup_json_ json_t *array = json_array();

        for (int i = 0; array && i < ctl->o.n_command; i++)
                if (json_array_append_new(array, json_string(ctl->o.command[i])) < 0)
                        return NULL; /* not UTF-8, or out of memory */
        return TAKE_PTR(array);
}

/* Takes value over; a value that is wanted and NULL is an error. */
static int add(json_t *object, const char *key, json_t *value, bool wanted) {
        if (!wanted) {
                json_decref(value);
                return 0;
        }
        return json_object_set_new(object, key, value) < 0 ? -EINVAL : 0;
}

static CtlExit make_params(Ctl *ctl, const char *commit, json_t **ret) {
        _cleanup_free_ char *task = NULL, *repo = NULL;
        _cleanup_json_ json_t *params = NULL;
        CtlExit r;

        r = read_task(ctl, &task);
        if (r != CTL_OK)
                return r;
        if (ctl->o.repo)
                repo = realpath(ctl->o.repo, NULL);

        params = json_pack("{s:s, s:{s:s*}}", "workflow", ctl->o.workflow, "options", "upstream", ctl->o.upstream);
        if (!params ||
            add(params, "task", json_string(task), task) < 0 ||
            add(params, "repo", json_string(repo), repo) < 0 ||
            add(params, "base", json_string(commit), commit) < 0 ||
            add(params, "source", json_string(ctl->o.source), ctl->o.source) < 0 ||
            add(params, "command", command_array(ctl), ctl->o.command) < 0) {
                ctl_error(ctl, "The workflow, task, repository's path, source and command must be valid UTF-8.");
                return CTL_USAGE;
        }

        *ret = TAKE_PTR(params);
        return CTL_OK;
}

/* ret_duplicate is why it is one, if it is. */
static CtlExit submit(Ctl *ctl, char **ret_item, char **ret_duplicate) {
        _cleanup_json_ json_t *params = NULL, *reply = NULL;
        _cleanup_free_ char *commit = NULL;
        _cleanup_fd_ int seed = -1;
        char what[64] = "Submitting";
        const char *item;
        struct stat st;
        bool begun;
        CtlExit r;

        if (!ctl->o.workflow)
                return ctl_usage(ctl, "--workflow= is missing.");
        if (ctl->o.command && ctl->o.n_command == 0)
                return ctl_usage(ctl, "There is no command after \"--\".");
        if (ctl->o.base && !ctl->o.repo)
                return ctl_usage(ctl, "--base= needs --repo=.");

        if (ctl->o.repo) {
                r = ctl_seed_make(ctl, ctl->o.repo, ctl->o.base, &seed, &commit);
                if (r != CTL_OK)
                        return r;
        }
        r = make_params(ctl, commit, &params);
        if (r != CTL_OK)
                return r;

        if (seed >= 0 && fstat(seed, &st) == 0 && st.st_size >= TELL_SIZE) {
                char size[CTL_TEXT_SIZE];

                (void) snprintf(what, sizeof(what), "Handing over %s", format_size((uint64_t) st.st_size, size));
        }
        begun = ctl_activity_begin(ctl, what);
        r = ctl_call(ctl, "submit", "Submit", TAKE_PTR(params), &seed, seed >= 0 ? 1 : 0, &reply, NULL, 0);
        ctl_activity_end(ctl, begun);
        if (r != CTL_OK)
                return r;

        item = ctl_string(reply, "item");
        if (!text_is_id('i', item)) {
                ctl_error(ctl, "Cannot submit: anchord gave no item.");
                return CTL_FAILED;
        }

        if (strcmp(ctl_string(reply, "state") ?: "", "duplicate") == 0 && !(*ret_duplicate = strdup(ctl_string(reply, "reason") ?: "its source has another")))
                return CTL_FAILED;
        *ret_item = strdup(item);
        return *ret_item ? CTL_OK : CTL_FAILED;
}

CtlExit ctl_verb_submit(Ctl *ctl) {
        _cleanup_free_ char *item = NULL, *duplicate = NULL;
        CtlExit r;

        r = submit(ctl, &item, &duplicate);
        if (r != CTL_OK)
                return r;

        if (ctl->o.json != CTL_JSON_OFF) {
                _cleanup_json_ json_t *j = json_pack("{s:s, s:s*}", "item", item, "duplicate", duplicate);

                r = ctl_print_json(ctl, j);
                if (r != CTL_OK)
                        return r;
        } else {
                (void) fprintf(ctl->out, "%s\n", item);
        }

        if (duplicate) {
                ctl_error(ctl, "%s is a duplicate, and nothing is done for it: %s.", item, duplicate);
                return CTL_CONFLICT;
        }
        if (ctl->out_tty && ctl->o.json == CTL_JSON_OFF)
                ctl_note(ctl, "Follow it with \"anchorctl logs --follow %s\".", item);
        return CTL_OK;
}

CtlExit ctl_verb_run(Ctl *ctl) {
        _cleanup_free_ char *item = NULL, *duplicate = NULL;
        CtlExit r;

        r = submit(ctl, &item, &duplicate);
        if (r != CTL_OK)
                return r;

        ctl_note(ctl, "Item %s", item);
        return ctl_follow(ctl, item, NULL, 0);
}
