/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Requests that nobody was asked about, since the grant of their connection is for all of them: counted, and told to the audit log. */

#include <stdint.h>
#include <systemd/sd-event.h>

#include "audit/audit.h"
#include "util/cleanup.h"

enum {
        TALLY_HOSTS_MAX = 64,
        TALLY_REQUESTS_MAX = 32,
        TALLY_RECORDS_MAX = 5000, /* one counts as one more for each KiB */
};

/*
 * Every ten seconds, one record egress.requests for each name, port and rule that had any: `count`, and of these by method and path the first
 * TALLY_REQUESTS_MAX kinds, [[method, path, count], …] (paths without their query, escaped, the first 128 bytes). Beyond TALLY_HOSTS_MAX of them at once they are counted
 * under the name "-", port 0 and rule "overflow". After TALLY_RECORDS_MAX records all are, without methods and paths, and told every ten minutes: whoever asks for more hosts and paths
 * makes no more room in the log for itself.
 */
typedef struct Tally Tally;
int tally_new(Tally **ret, sd_event *event, AuditClient *audit, const char *run);
/* What was not told is lost. */
Tally *tally_free(Tally *t);
DEFINE_CLEANUP(Tally *, tally_free)

/* Now; the second one at the end of the process: it waits until the audit log has it, or until then (CLOCK_MONOTONIC). */
void tally_tell(Tally *t);
void tally_tell_last(Tally *t, uint64_t until_usec);

/* rule: what the connection is inspected for. t may be NULL: nobody counts. */
void tally_count(Tally *t, const char *name, uint16_t port, const char *rule, const char *method, const char *path);
