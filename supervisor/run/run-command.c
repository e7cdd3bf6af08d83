/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "run/run-command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "util/json.h"
#include "vmm/channel.h"

static bool mentions_feedback(const RunStep *step) {
        json_t *value;
        size_t i;

        if (step->input && strstr(step->input, "{feedback}"))
                return true;
        json_array_foreach(step->argv, i, value)
                if (strstr(json_string_value(value), "{feedback}"))
                        return true;
        json_array_foreach(step->files, i, value)
                if (strstr(json_string_value(json_object_get(value, "content")) ?: "", "{feedback}"))
                        return true;
        return false;
}

char *run_command_fill(const char *text, const RunStep *step, const RunContext *context) {
        bool append = *context->feedback && !mentions_feedback(step);
        _cleanup_free_ char *data = NULL;
        _cleanup_file_ FILE *f = NULL;
        size_t size = 0;

        f = open_memstream(&data, &size);
        if (!f)
                return NULL;

        while (*text) {
                size_t n = strcspn(text, "{");

                (void) fwrite(text, 1, n, f);
                text += n;
                if (strncmp(text, "{task}", 6) == 0) {
                        (void) fputs(context->task, f);
                        if (append)
                                (void) fprintf(f, "\n\n%s", context->feedback);
                        text += 6;
                } else if (strncmp(text, "{feedback}", 10) == 0) {
                        (void) fputs(context->feedback, f);
                        text += 10;
                } else if (*text)
                        (void) fputc(*text++, f);
        }

        if (fflush(f) != 0)
                return NULL;
        f = (fclose(f), NULL);
        return TAKE_PTR(data);
}

static int fill_argv(const RunStep *step, const RunContext *context, json_t *request) {
        json_t *argv = json_array(), *value;
        size_t i;

        if (!argv || json_object_set_new(request, "argv", argv) < 0)
                return -ENOMEM;

        json_array_foreach(step->argv, i, value) {
                _cleanup_free_ char *arg = run_command_fill(json_string_value(value), step, context);

                if (!arg || json_array_append_new(argv, json_string(arg)) < 0)
                        return -ENOMEM;
        }

        return 0;
}

/* A string as it is; {"sentinel": "NAME"} as that credential's sentinel. */
static const char *resolve_variable(const RunContext *context, const char *key, const json_t *value, char **ret_reason) {
        const char *credential, *sentinel;

        if (json_is_string(value))
                return json_string_value(value);

        credential = json_string_value(json_object_get(value, "sentinel"));
        if (!credential) {
                *ret_reason = text_format("environment variable %s is neither text nor a sentinel", key);
                return NULL;
        }

        sentinel = json_string_value(json_object_get(context->sentinels, credential));
        if (!sentinel)
                *ret_reason = text_format("this run has no credential \"%s\", which %s wants", credential, key);
        return sentinel;
}

/* Each tool looks for its CAs in another place; what is not here reads the system's bundle. Those that want all of them get that, one that adds
 * to its own the run's alone. */
static int fill_ca(json_t *env) {
        static const struct {
                const char *key, *path;
        } variables[] = {
                { "SSL_CERT_FILE", RUN_GUEST_BUNDLE },
                { "CURL_CA_BUNDLE", RUN_GUEST_BUNDLE },
                { "REQUESTS_CA_BUNDLE", RUN_GUEST_BUNDLE },
                { "GIT_SSL_CAINFO", RUN_GUEST_BUNDLE },
                { "CARGO_HTTP_CAINFO", RUN_GUEST_BUNDLE },
                { "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", RUN_GUEST_BUNDLE },
                { "NODE_EXTRA_CA_CERTS", RUN_GUEST_CA },
        };

        for (size_t i = 0; i < ELEMENTSOF(variables); i++)
                if (json_object_set_new(env, variables[i].key, json_string(variables[i].path)) < 0)
                        return -ENOMEM;
        return 0;
}

static int fill_env(const RunStep *step, const RunContext *context, json_t *request, char **ret_reason) {
        json_t *env = json_object(), *value;
        const char *key;

        if (!env || json_object_set_new(request, "env", env) < 0)
                return -ENOMEM;

        if (context->has_ca && fill_ca(env) < 0)
                return -ENOMEM;

        json_object_foreach(step->env, key, value) {
                const char *text = resolve_variable(context, key, value, ret_reason);

                if (!text)
                        return -EINVAL;
                if (json_object_set_new(env, key, json_string(text)) < 0)
                        return -ENOMEM;
        }

        return 0;
}

static int build(const RunStep *step, const RunContext *context, json_t **ret, char **ret_reason) {
        _cleanup_json_ json_t *request = json_pack("{s:s}", "cwd", step->cwd);
        int r;

        if (!request)
                return -ENOMEM;

        r = fill_argv(step, context, request);
        if (r < 0)
                return r;

        r = fill_env(step, context, request, ret_reason);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(request);
        return 0;
}

/* How many bytes the request is too long; "stdin" is still to come. */
static int measure(const json_t *request, size_t *ret_excess) {
        static const size_t room = CHANNEL_PAYLOAD_MAX - 64;
        _cleanup_free_ char *text = json_dumps(request, JSON_COMPACT);
        size_t size;

        if (!text)
                return -ENOMEM;
        size = strlen(text);
        *ret_excess = size > room ? size - room : 0;
        return 0;
}

int run_command_build(const RunStep *step, const RunContext *context, json_t **ret, char **ret_reason) {
        RunContext shorter = *context;

        for (;;) {
                _cleanup_json_ json_t *request = NULL;
                size_t excess = 0;
                int r;

                r = build(step, &shorter, &request, ret_reason);
                if (r >= 0)
                        r = measure(request, &excess);
                if (r < 0)
                        return r;
                if (excess == 0 || *shorter.feedback == '\0') {
                        *ret = TAKE_PTR(request);
                        return 0;
                }

                shorter.feedback += strnlen(shorter.feedback, excess);
                while (((unsigned char) *shorter.feedback & 0xc0) == 0x80)
                        shorter.feedback++; /* not into the middle of a character */
        }
}
