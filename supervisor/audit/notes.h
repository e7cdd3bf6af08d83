/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Audit records of what a unit of a run refused: the first of a kind at once, those alike within ten seconds as a count. A misuse of a
 * credential also flags the run: anchord is told until it took that. */

#include <jansson.h>
#include <systemd/sd-event.h>

#include "audit/audit.h"
#include "util/cleanup.h"

typedef struct Notes Notes;

/* audit and run are borrowed. run_api: anchord's socket. */
int notes_new(Notes **ret, sd_event *event, AuditClient *audit, const char *run, const char *run_api);
/* Records what was only counted so far. */
Notes *notes_free(Notes *n);
DEFINE_CLEANUP(Notes *, notes_free)

/* Records are alike if event and key are. data is taken over. Never fails: a refusal stands with or without
 * its record, and a lost record is logged. */
void notes_add(Notes *n, const char *event, const char *key, json_t *data);
