/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Calls to anchord (io.anchorhold.Run), one after the other in the order in which they were made. anchord
 * may restart meanwhile: a call that found nobody is repeated for as long as patience goes, and one that anchord works on (`Storing`) until it is done. */

#include <jansson.h>
#include <systemd/sd-event.h>

#include "ipc/ipc.h"
#include "util/cleanup.h"

#define RUN_CALLS_SOCKET "/run/anchorhold/run-api.sock"

typedef struct RunCalls RunCalls;

/* error: NULL, or the varlink error's name. `client` is there to take descriptors from. */
typedef void (*RunReply)(RunCalls *a, IpcClient *client, const char *error, json_t *params, void *userdata);

/* Called once, when patience is over. */
typedef void (*RunCallsLost)(RunCalls *a, const char *error, void *userdata);

int run_calls_new(RunCalls **ret, sd_event *event, const char *path, uint64_t patience_usec, RunCallsLost lost, void *userdata);
RunCalls *run_calls_free(RunCalls *a); /* calls no handler any more */
DEFINE_CLEANUP(RunCalls *, run_calls_free)

/* method: "GetSpec", … Takes params over, also on failure; fd (-1: none) is duplicated. handler may be
 * NULL: an error is then logged. -ENOBUFS when too many calls wait. */
int run_calls_call(RunCalls *a, const char *method, json_t *params, int fd, RunReply handler, void *userdata);
