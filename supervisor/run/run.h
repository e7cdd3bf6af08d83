/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The driver of one run: everything between "this run's microVM shall boot" and "this is what came of it". */

#include <systemd/sd-event.h>

#include "util/cleanup.h"

typedef struct Run Run;

typedef struct RunConfig {
        const char *id;          /* the run */
        const char *channel, *qmp, *api; /* socket paths */
        const char *credentials; /* $CREDENTIALS_DIRECTORY, or NULL: no sentinels and no CA */
        uint64_t audit_patience_usec; /* how long auditd may be silent before that ends the run; 0: a minute */
        uint64_t anchord_patience_usec; /* the same of anchord */
        bool confine;            /* before a word of the guest is heard, this process gives up making files, for good */
} RunConfig;

/* Starts at once; the event loop ends when the run has ended and was reported. */
int run_new(Run **ret, sd_event *event, const RunConfig *config);
Run *run_free(Run *r);
DEFINE_CLEANUP(Run *, run_free)
