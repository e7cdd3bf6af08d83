/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the proxy refuses without asking egressd, told to it for the log: as counts, until it took them. See refused-log.c. */

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"

enum { REFUSED_LOG_KINDS = 64 }; /* told apart at a time; what is beyond is counted by event and reason alone */

typedef struct RefusedLog RefusedLog;

typedef struct RefusedKind {
        const char *event, *reason; /* static; as in io.anchorhold.Egress.Refused */
        const char *address, *name; /* borrowed; NULL or "": not known */
        uint16_t port;              /* 0: not known */
} RefusedKind;

/* `socket` is egressd's. */
int refused_log_new(RefusedLog **ret, sd_event *event, const char *socket);
RefusedLog *refused_log_free(RefusedLog *l);
DEFINE_CLEANUP(RefusedLog *, refused_log_free)

/* One more. Told at once, or within a second with all that are alike. */
void refused_log_add(RefusedLog *l, const RefusedKind *kind, bool at_once);

/* When the loop has ended: tells what is left, and waits for egressd, until then (CLOCK_MONOTONIC). NULL is fine. */
void refused_log_tell_last(RefusedLog *l, uint64_t until_usec);
