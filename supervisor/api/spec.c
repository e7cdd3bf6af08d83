/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <string.h>

#include "api/spec.h"
#include "util/json.h"

/* ---- steps ---- */

/* The harness's environment, overridden key by key by the step's. */
static int make_env(const PolicyStep *step, const json_t *harness, json_t **ret) {
        _cleanup_json_ json_t *env = json_object();
        json_t *of_harness = harness ? json_object_get(harness, "env") : NULL;

        if (!env)
                return -ENOMEM;
        if (of_harness && json_object_update(env, of_harness) < 0)
                return -ENOMEM;
        if (step->env && json_object_update(env, (json_t *) step->env) < 0)
                return -ENOMEM;

        *ret = TAKE_PTR(env);
        return 0;
}

/* argv: of the step itself, of the harness for an agent, of the item for exec. Borrowed, or NULL. */
static const json_t *find_argv(const SpecInput *in, const PolicyStep *step, bool is_agent) {
        if (is_agent)
                return json_object_get(in->harness, "argv");
        if (strcmp(step->kind, "exec") == 0 && !step->argv)
                return in->command;
        return step->argv;
}

/* Of the step, else of the harness for an agent, else where the repository is. */
static const char *find_cwd(const SpecInput *in, const PolicyStep *step, const json_t *harness) {
        const char *named = step->cwd ?: json_string_value(json_object_get(harness, "cwd"));

        return named ?: (in->workflow->repository ? "/workspace/repo" : "/root");
}

static int make_step(const SpecInput *in, const PolicyStep *step, json_t **ret) {
        bool is_agent = strcmp(step->kind, "agent") == 0;
        const json_t *harness = is_agent ? in->harness : NULL;
        _cleanup_json_ json_t *object = NULL, *env = NULL;
        json_t *files, *input, *display;
        const json_t *argv;
        int r;

        if (is_agent && !harness)
                return -EINVAL;

        argv = find_argv(in, step, is_agent);
        if (!json_is_array(argv) || json_array_size(argv) == 0)
                return -EINVAL;

        r = make_env(step, harness, &env);
        if (r < 0)
                return r;

        object = json_pack("{s:s, s:s, s:O, s:s, s:O, s:I}",
                           "name", step->name, "kind", step->kind, "argv", argv,
                           "cwd", find_cwd(in, step, harness), "env", env,
                           "timeout_s", (json_int_t) step->timeout_s);
        if (!object)
                return -ENOMEM;

        files = harness ? json_object_get(harness, "files") : NULL;
        if (json_object_set_new(object, "files", files ? json_incref(files) : json_array()) < 0)
                return -ENOMEM;

        input = harness ? json_object_get(harness, "stdin") : NULL;
        if (json_is_string(input) && json_object_set(object, "stdin", input) < 0)
                return -ENOMEM;

        display = harness ? json_object_get(harness, "display") : NULL;
        if (display && json_object_set(object, "display", display) < 0)
                return -ENOMEM;

        if (step->feedback_rounds > 0 &&
            json_object_set_new(object, "feedback", json_pack("{s:I}", "rounds", (json_int_t) step->feedback_rounds)) < 0)
                return -ENOMEM;

        *ret = TAKE_PTR(object);
        return 0;
}

static int make_steps(const SpecInput *in, json_t **ret) {
        const PolicyStep *steps = in->verify ? in->workflow->verify : in->workflow->steps;
        size_t n = in->verify ? in->workflow->n_verify : in->workflow->n_steps;
        _cleanup_json_ json_t *array = json_array();
        int r;

        if (!array)
                return -ENOMEM;

        for (size_t i = 0; i < n; i++) {
                json_t *step;

                r = make_step(in, &steps[i], &step);
                if (r < 0)
                        return r;
                if (json_array_append_new(array, step) < 0)
                        return -ENOMEM;
        }

        *ret = TAKE_PTR(array);
        return 0;
}

/* ---- the whole ---- */

const char *spec_agent(const json_t *harness) {
        return harness ? json_string_value(json_object_get(harness, "image")) : NULL;
}

static json_t *make_repository(const SpecInput *in) {
        if (!in->workflow->repository || !in->base)
                return json_null();

        return json_pack("{s:s, s:s, s:s}", "base", in->base, "ref", in->verify ? REF_RESULT : REF_BASE, "result_ref", REF_RESULT);
}

uint64_t spec_boot_timeout_s(uint64_t configured_s, bool tcg) {
        if (configured_s > 0)
                return configured_s;
        return tcg ? BOOT_TIMEOUT_TCG_S : BOOT_TIMEOUT_KVM_S;
}

int spec_make_run(const SpecInput *in, json_t **ret) {
        const PolicyWorkflow *w = in->workflow;
        _cleanup_json_ json_t *steps = NULL, *spec = NULL;
        /* The second microVM gets no agent: nothing of the first may speak in it. */
        const char *agent = in->verify ? NULL : spec_agent(in->harness);
        int r;

        r = make_steps(in, &steps);
        if (r < 0)
                return r;

        spec = json_pack("{s:s, s:s, s:s, s:I, s:i, s:s, s:s, s:s?, s:s?, s:O?, s:o, s:O, s:{s:I, s:I, s:I, s:I, s:I}, s:{s:s, s:s, s:s}}",
                         "run", in->run, "item", in->item, "stage", in->verify ? "verify" : "work",
                         "attempt", (json_int_t) in->attempt, "round", 1,
                         "workflow", w->name, "template", w->template_name, "agent", agent,
                         "task", in->verify ? NULL : in->task, "command", in->command,
                         "repository", make_repository(in), "steps", steps,
                         "limits",
                         "boot_s", (json_int_t) spec_boot_timeout_s(in->boot_timeout_s, in->tcg), "run_s", (json_int_t) w->run_s,
                         "output_bytes", (json_int_t) w->output_bytes, "bundle_bytes", (json_int_t) w->bundle_bytes,
                         "wrap_up_s", (json_int_t) w->budget.wrap_up_s,
                         "network", "address", "10.255.255.2/30", "gateway", "10.255.255.1", "dns", "10.255.255.1");
        if (!spec)
                return -ENOMEM;

        *ret = TAKE_PTR(spec);
        return 0;
}

int spec_make_vm(const SpecInput *in, const json_t *manifest, json_t **ret) {
        const PolicyWorkflow *w = in->workflow;
        json_t *files = json_object_get(manifest, "files");
        json_t *spec;

        if (!json_is_object(files))
                return -EBADMSG;

        spec = json_pack("{s:s, s:s?, s:I, s:I, s:I, s:s, s:O}",
                         "template", w->template_name, "agent", in->verify ? NULL : spec_agent(in->harness),
                         "memory_mib", (json_int_t) w->memory_mib, "vcpus", (json_int_t) w->vcpus,
                         "disk_mib", (json_int_t) w->disk_mib, "accel", in->tcg ? "tcg" : "kvm",
                         "digests", files);
        if (!spec)
                return -ENOMEM;

        *ret = spec;
        return 0;
}

/* ---- submissions ---- */

static const char *check_command(const json_t *command) {
        size_t i, total = 0;
        json_t *arg;

        if (!json_is_array(command) || json_array_size(command) == 0)
                return "command must be an array with at least one string";
        if (json_array_size(command) > COMMAND_ARGS_MAX)
                return "command has too many arguments";

        json_array_foreach((json_t *) command, i, arg) {
                if (!json_is_string(arg) || strlen(json_string_value(arg)) != json_string_length(arg))
                        return "command must hold strings without zero bytes";
                total += json_string_length(arg) + 1;
        }
        if (json_string_length(json_array_get(command, 0)) == 0)
                return "the command's name is empty";
        return total > COMMAND_SIZE_MAX ? "command is too long" : NULL;
}

static bool has_step(const PolicyWorkflow *w, const char *kind) {
        for (size_t i = 0; i < w->n_steps; i++)
                if (strcmp(w->steps[i].kind, kind) == 0)
                        return true;
        return false;
}

static bool wants_command(const PolicyWorkflow *w) {
        for (size_t i = 0; i < w->n_steps; i++)
                if (strcmp(w->steps[i].kind, "exec") == 0 && !w->steps[i].argv)
                        return true;
        return false;
}

const char *spec_check_submission(const PolicyWorkflow *w, const Submission *s) {
        if (wants_command(w)) {
                const char *reason = s->command ? check_command(s->command) : "this workflow runs a command: give one after --";
                if (reason)
                        return reason;
        } else if (s->command)
                return "this workflow takes no command";

        if (s->task && (strlen(s->task) == 0 || strlen(s->task) > TASK_SIZE_MAX))
                return "the task is empty or longer than 256 KiB";
        if (has_step(w, "agent") && !s->task)
                return "this workflow has an agent: it needs a task";
        if (!has_step(w, "agent") && s->task)
                return "this workflow has no agent: it takes no task";

        if (!w->repository) {
                if (s->has_bundle || s->repo || s->base)
                        return "this workflow takes no repository";
                return NULL;
        }
        if (!s->has_bundle || !s->base)
                return "this workflow needs a repository (--repo): a seed bundle and its base commit";
        if (!text_is_commit(s->base))
                return "base is not a full commit id";
        return NULL;
}

static int json_size(const json_t *j, size_t *ret) {
        _cleanup_free_ char *text = json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY);

        if (!text)
                return -ENOMEM;
        *ret = strlen(text);
        return 0;
}

static size_t count_mentions(const json_t *argv) {
        size_t i, n = 0;
        json_t *arg;

        json_array_foreach((json_t *) argv, i, arg)
                for (const char *p = json_string_value(arg); p && (p = strstr(p, "{task}")); p += strlen("{task}"))
                        n++;
        return n;
}

/* What the step's frame will hold: `argv` with the task in its places, and the environment with its sentinels. */
static int frame_size(const json_t *step, const char *task, size_t *ret) {
        const json_t *argv = json_object_get(step, "argv"), *env = json_object_get(step, "env");
        _cleanup_json_ json_t *text = json_string(task ?: "");
        size_t of_argv, of_env, of_task;
        const char *key;
        json_t *value;
        int r;

        r = text ? json_size(argv, &of_argv) : -ENOMEM;
        if (r >= 0)
                r = json_size(env, &of_env);
        if (r >= 0)
                r = json_size(text, &of_task);
        if (r < 0)
                return r;

        *ret = of_argv + of_env + count_mentions(argv) * of_task + json_string_length(json_object_get(step, "cwd"));
        json_object_foreach((json_t *) env, key, value)
                *ret += json_is_object(value) ? SENTINEL_SIZE : 0;
        return 0;
}

int spec_check_frames(const SpecInput *in, const char **ret_pointer, const char **ret_reason) {
        _cleanup_json_ json_t *steps = NULL;
        json_t *step;
        size_t i;
        int r;

        r = make_steps(in, &steps);
        if (r < 0)
                return r;

        *ret_pointer = *ret_reason = NULL;
        json_array_foreach(steps, i, step) {
                size_t size;

                r = frame_size(step, in->task, &size);
                if (r < 0)
                        return r;
                if (size <= STEP_FRAME_MAX)
                        continue;

                if (json_object_get(step, "argv") == in->command) {
                        *ret_pointer = "/command";
                        *ret_reason = "the command is too long: arguments and environment of a step must fit into 63 KiB";
                } else {
                        *ret_pointer = "/task";
                        *ret_reason = "the task is too long for an argument: arguments and environment of a step must fit into 63 KiB; "
                                      "put the rest into a file of the repository";
                }
                return 0;
        }
        return 0;
}

/* The next line of the head without its newline; false at the empty line, *ret_bad if there is no end. */
static bool next_line(const char **p, const char *end, const char **ret, size_t *ret_size, bool *ret_bad) {
        const char *newline = memchr(*p, '\n', (size_t) (end - *p));

        *ret_bad = !newline;
        if (!newline || newline == *p)
                return false;

        *ret = *p;
        *ret_size = (size_t) (newline - *p);
        *p = newline + 1;
        return true;
}

const char *spec_check_seed(const char *data, size_t size, const char *base) {
        static const char v2[] = "# v2 git bundle\n", v3[] = "# v3 git bundle\n";
        const char *p = data, *end = data + size, *line;
        size_t length, commit = strlen(base), n_refs = 0;
        bool bad;

        if (size < sizeof(v2) - 1 || (memcmp(data, v2, sizeof(v2) - 1) != 0 && memcmp(data, v3, sizeof(v3) - 1) != 0))
                return "the seed is not a git bundle";
        p += sizeof(v2) - 1;

        while (next_line(&p, end, &line, &length, &bad)) {
                if (line[0] == '@')
                        continue;
                if (line[0] == '-')
                        return "the seed bundle is not complete: it has prerequisites";
                if (length != commit + 1 + strlen(REF_BASE) || memcmp(line, base, commit) != 0 || line[commit] != ' ' ||
                    memcmp(line + commit + 1, REF_BASE, strlen(REF_BASE)) != 0)
                        return "the seed bundle holds a reference other than " REF_BASE " at the base commit";
                n_refs++;
        }
        if (bad)
                return "the seed bundle's head does not end";
        return n_refs == 1 ? NULL : "the seed bundle must hold exactly the reference " REF_BASE;
}
