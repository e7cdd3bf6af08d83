/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* From a step to the request that the guest gets: placeholders filled in, sentinels looked up. Pure. */

#include <jansson.h>

#include "run/run-spec.h"

typedef struct RunContext {
        const char *task;         /* "" if there is none */
        const char *feedback;     /* what the agent is told of the check that failed; "" in the first round */
        const json_t *sentinels;  /* {"NAME": "VALUE"}, or NULL */
        bool has_ca;              /* the run's CA was put into the guest */
} RunContext;

#define RUN_GUEST_CA "/run/anchorhold/ca.pem"
#define RUN_GUEST_CA_OF_DEBIAN "/usr/local/share/ca-certificates/anchorhold.crt"
#define RUN_GUEST_BUNDLE "/etc/ssl/certs/ca-certificates.crt"
#define RUN_GUEST_JAVA_STORE "/etc/ssl/certs/java/cacerts"

/* `{task}` and `{feedback}` in text replaced. A step that never mentions {feedback} gets it at the end of the
 * task. The result is the caller's; NULL when out of memory. */
char *run_command_fill(const char *text, const RunStep *step, const RunContext *context);

/* The payload of exec. Feedback that does not fit into the frame beside the rest loses its beginning. -EINVAL: *ret_reason (the caller's) names the credential that has no sentinel, or
 * the environment variable that is no string. */
int run_command_build(const RunStep *step, const RunContext *context, json_t **ret, char **ret_reason);
