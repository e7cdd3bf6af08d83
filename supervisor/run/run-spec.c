/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "run/run-spec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/json.h"

enum { SECONDS_MAX = 7 * 24 * 3600, WRAP_UP_S = 60 };

#define BYTES_MAX (64ULL * 1024 * 1024 * 1024)

static const char *const kind_names[] = {
        [RUN_STEP_PREPARE] = "prepare",
        [RUN_STEP_AGENT] = "agent",
        [RUN_STEP_CHECK] = "check",
        [RUN_STEP_EXEC] = "exec",
};

const char *run_step_kind_name(RunStepKind kind) {
        return kind_names[kind];
}

void run_spec_done(RunSpec *s) {
        json_decref(s->document);
        *s = (RunSpec) {};
}

static void read_strings(JsonReader *r, const json_t *object, const char *base, const char *key, json_t **ret) {
        json_t *array = NULL, *value;
        size_t i;

        if (!json_read_array(r, object, base, key, JSON_F_REQUIRED, &array))
                return;
        if (json_array_size(array) == 0)
                return json_reader_fail(r, base, key, "is empty");

        json_array_foreach(array, i, value)
                if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
                        json_reader_fail(r, base, key, "element %zu is no plain string", i);
        *ret = array;
}

int run_file_mode(const json_t *file) {
        const char *mode = json_string_value(json_object_get(file, "mode"));

        if (!mode || strlen(mode) != 4 || mode[0] != '0' || mode[strspn(mode, "01234567")] != '\0')
                return -EINVAL;
        return (int) strtol(mode, NULL, 8);
}

static void read_files(JsonReader *r, const json_t *object, const char *base, json_t **ret) {
        json_t *array = NULL, *file;
        size_t i;

        if (!json_read_array(r, object, base, "files", JSON_F_NULLABLE, &array))
                return;

        json_array_foreach(array, i, file) {
                const char *path = json_string_value(json_object_get(file, "path"));

                if (!path || path[0] != '/' || !json_is_string(json_object_get(file, "content")))
                        json_reader_fail(r, base, "files", "element %zu needs an absolute path and a content", i);
                if (json_object_get(file, "mode") && run_file_mode(file) < 0)
                        json_reader_fail(r, base, "files", "element %zu has a mode that is no four octal digits", i);
        }
        *ret = array;
}

static void read_step(JsonReader *r, json_t *object, const char *base, RunStep *ret) {
        const char *kind = NULL;
        json_t *feedback = NULL;
        RunStep s = { .cwd = "/" };
        size_t i;

        (void) json_read_string(r, object, base, "name", JSON_F_REQUIRED, &s.name);
        if (json_read_string(r, object, base, "kind", JSON_F_REQUIRED, &kind)) {
                for (i = 0; i < ELEMENTSOF(kind_names) && strcmp(kind_names[i], kind) != 0; i++)
                        ;
                if (i == ELEMENTSOF(kind_names))
                        json_reader_fail(r, base, "kind", "unknown kind of step");
                else
                        s.kind = (RunStepKind) i;
        }

        read_strings(r, object, base, "argv", &s.argv);
        (void) json_read_object(r, object, base, "env", JSON_F_NULLABLE, &s.env);
        (void) json_read_string(r, object, base, "cwd", JSON_F_NULLABLE, &s.cwd);
        (void) json_read_string(r, object, base, "stdin", JSON_F_NULLABLE, &s.input);
        (void) json_read_uint(r, object, base, "timeout_s", JSON_F_REQUIRED, 1, SECONDS_MAX, &s.timeout_s);
        if (json_read_object(r, object, base, "feedback", JSON_F_NULLABLE, &feedback))
                (void) json_read_uint(r, feedback, base, "rounds", JSON_F_REQUIRED, 0, 100, &s.feedback_rounds);
        read_files(r, object, base, &s.files);
        (void) json_read_array(r, object, base, "display", JSON_F_NULLABLE, &s.display);
        *ret = s;
}

static void read_steps(JsonReader *r, const json_t *document, RunSpec *s) {
        json_t *steps = NULL, *step;
        char base[32];
        size_t i;

        if (!json_read_array(r, document, "", "steps", JSON_F_REQUIRED, &steps))
                return;
        if (json_array_size(steps) > RUN_STEPS_MAX)
                return json_reader_fail(r, "", "steps", "more than %d steps", RUN_STEPS_MAX);

        json_array_foreach(steps, i, step) {
                (void) snprintf(base, sizeof(base), "/steps/%zu", i);
                if (!json_is_object(step))
                        return json_reader_fail(r, base, NULL, "not an object");
                read_step(r, step, base, s->steps + s->n_steps++);
        }
}

static void read_limits(JsonReader *r, const json_t *document, RunSpec *s) {
        json_t *limits = NULL;

        if (!json_read_object(r, document, "", "limits", JSON_F_REQUIRED, &limits))
                return;

        (void) json_read_uint(r, limits, "/limits", "boot_s", JSON_F_REQUIRED, 1, SECONDS_MAX, &s->boot_s);
        (void) json_read_uint(r, limits, "/limits", "run_s", JSON_F_REQUIRED, 1, SECONDS_MAX, &s->run_s);
        (void) json_read_uint(r, limits, "/limits", "output_bytes", JSON_F_REQUIRED, 0, BYTES_MAX, &s->output_bytes);
        s->wrap_up_s = WRAP_UP_S;
        (void) json_read_uint(r, limits, "/limits", "wrap_up_s", 0, 0, SECONDS_MAX, &s->wrap_up_s);
        (void) json_read_uint(r, limits, "/limits", "bundle_bytes", JSON_F_NULLABLE, 0, BYTES_MAX, &s->bundle_bytes);
}

static void read_repository(JsonReader *r, const json_t *document, RunSpec *s) {
        json_t *repository = NULL;

        if (!json_read_object(r, document, "", "repository", JSON_F_NULLABLE, &repository))
                return;

        if (json_read_string(r, repository, "/repository", "base", JSON_F_REQUIRED, &s->base) && !text_is_commit(s->base))
                json_reader_fail(r, "/repository", "base", "not a commit");
        (void) json_read_string(r, repository, "/repository", "ref", JSON_F_REQUIRED, &s->ref);
        (void) json_read_string(r, repository, "/repository", "result_ref", JSON_F_REQUIRED, &s->result_ref);
}

int run_spec_parse(json_t *document, RunSpec *ret, char **ret_reason) {
        _cleanup_(json_reader_done) JsonReader r = { .file = "spec" };
        const char *stage = NULL;
        RunSpec s = {};

        (void) json_read_string(&r, document, "", "run", JSON_F_REQUIRED, &s.run);
        (void) json_read_string(&r, document, "", "item", JSON_F_REQUIRED, &s.item);
        (void) json_read_string(&r, document, "", "workflow", JSON_F_REQUIRED, &s.workflow);
        (void) json_read_string(&r, document, "", "agent", JSON_F_NULLABLE, &s.agent);
        (void) json_read_string(&r, document, "", "task", JSON_F_NULLABLE, &s.task);
        if (json_read_string(&r, document, "", "stage", JSON_F_REQUIRED, &stage)) {
                s.verify = strcmp(stage, "verify") == 0;
                if (!s.verify && strcmp(stage, "work") != 0)
                        json_reader_fail(&r, "", "stage", "neither \"work\" nor \"verify\"");
        }
        (void) json_read_object(&r, document, "", "network", JSON_F_NULLABLE, &s.network);
        read_limits(&r, document, &s);
        read_repository(&r, document, &s);
        read_steps(&r, document, &s);

        if (r.failed) {
                if (ret_reason)
                        *ret_reason = text_format("%s: %s", r.pointer && *r.pointer ? r.pointer : "/", r.reason ?: "invalid");
                return -EINVAL;
        }

        s.document = json_incref(document);
        *ret = s;
        return 0;
}
