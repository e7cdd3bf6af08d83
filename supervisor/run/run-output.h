/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Output of the guest's processes on its way to anchord, with back pressure all the way: a stream gets
 * its credit back only when anchord has acknowledged the bytes. */

#include <stdint.h>

#include "run/run-calls.h"
#include "vmm/guest-client.h"

typedef struct RunOutput RunOutput;

typedef struct RunOutputHandler {
        void (*drained)(RunOutput *o, void *userdata); /* after run_output_finish(): all is acknowledged */
        void (*limit)(RunOutput *o, void *userdata);   /* once: more than the run's limit; the rest is dropped */
} RunOutputHandler;

int run_output_new(RunOutput **ret, RunCalls *calls, uint64_t limit, const RunOutputHandler *handler, void *userdata);
RunOutput *run_output_free(RunOutput *o);
DEFINE_CLEANUP(RunOutput *, run_output_free)

/* From now on, bytes belong to this step. The stream names are static. With `display` (borrowed until the step's output
 * has drained), stdout goes out as "agent-raw", and as stdout_name what those rules make of it (agent-view.h). */
int run_output_begin(RunOutput *o, const char *step, const char *stdout_name, const char *stderr_name,
                     const json_t *display);

/* Bytes of the step's stdout or stderr. -EPROTO if there are more than one window of them. */
int run_output_push(RunOutput *o, GuestStream *stream, ChannelType type, const uint8_t *data, size_t size);

/* The stream is no more: no credit is to be given. Handler `drained` follows, at once or later. */
void run_output_finish(RunOutput *o);

/* The stream was given up without an exit: no credit any more, what has come still goes out. */
void run_output_forget(RunOutput *o, const GuestStream *stream);

/* A whole text of the host's own, not counted: the console of a guest that did not boot. */
int run_output_text(RunOutput *o, const char *stream, const char *step, const char *text);

uint64_t run_output_total(const RunOutput *o);
