/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What a person gets to read of an agent that prints one JSON value a line. Pure: bytes in, text out. */

#include <jansson.h>
#include <stddef.h>

#include "util/cleanup.h"

typedef struct AgentView AgentView;

/* rules is the harness's "display" (supervisor/policy/policy-harness.c), borrowed until the view is freed. */
int agent_view_new(AgentView **ret, const json_t *rules);
AgentView *agent_view_free(AgentView *v);
DEFINE_CLEANUP(AgentView *, agent_view_free)

/* Takes the next bytes; each line that is complete by then adds what the rules say to the view's text. */
int agent_view_push(AgentView *v, const void *data, size_t size);

/* There will be no more: what came behind the last line's end counts as a line. Negative errno. */
int agent_view_end(AgentView *v);

/* The text so far, the caller's from now on; NULL if there is none. */
char *agent_view_take(AgentView *v);
