/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Work that would hold up an event loop, such as reading and compiling a large policy, done beside it in threads. */

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"

typedef struct Background Background;

/* In a thread: touches nothing but what is the job's own, or never changes. */
typedef void (*BackgroundWork)(void *userdata);
/* In the loop, once, after the work. r is negative if there could be no thread: then nothing was done. */
typedef void (*BackgroundDone)(int r, void *userdata);

/* At most n_threads jobs are worked on at once; the others wait, the oldest is next. */
int background_new(Background **ret, sd_event *event, unsigned n_threads);
/* Waits for the jobs that are being worked on, and calls nobody any more. */
Background *background_free(Background *b);
DEFINE_CLEANUP(Background *, background_free)

/* userdata names the job. On failure neither function is called. */
int background_start(Background *b, BackgroundWork work, BackgroundDone done, void *userdata);
/* Forgets the job of that name, if there is one, and waits for it if it is being worked on. Was it worked on? */
bool background_cancel(Background *b, const void *userdata);
