/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Audit records of what a unit of a run refused: the first of a kind at once, those alike within ten seconds as a count. There is a bound to how many
 * kinds of an event are told apart, and one to how many records it has: what is beyond is counted together. A misuse of a credential also flags
 * the run: anchord is told until it took that. */

#include <jansson.h>
#include <systemd/sd-event.h>

#include "audit/audit.h"
#include "util/cleanup.h"

/* What a unit of a run that ends may take for all of its last words together; who ends it waits for half a second more (api/flow-cleanup.c), and systemd for twice as long. */
enum { LAST_WORDS_USEC = 2500 * 1000 };

typedef struct Notes Notes;

enum {
        NOTES_KINDS_MAX = 8,       /* events, with their verdicts */
        NOTES_MAX = 64,            /* kinds of an event at a time */
        NOTES_RECORDS_MAX = 5000,  /* of an event; one counts as one more for each KiB */
        NOTES_WINDOW_USEC = 10 * 1000 * 1000,
        NOTES_SPENT_USEC = 600 * 1000 * 1000, /* the same for an event that has had so many */
};

/* audit and run are borrowed. run_api: anchord's socket. */
int notes_new(Notes **ret, sd_event *event, AuditClient *audit, const char *run, const char *run_api);
/* After the audit client, whose answers it may wait for. */
Notes *notes_free(Notes *n);
DEFINE_CLEANUP(Notes *, notes_free)

/* Records are alike if event, git's verdict and key are; what the "detail" of each was, the record with the count says in "details", as those of egressd
 * do. event is static, and one of a few. data is taken over. Never fails: a refusal stands with or
 * without its record. */
void notes_add(Notes *n, const char *event, const char *key, json_t *data);

/* Records now what was only counted so far. With _last, when the loop has ended: waits until auditd has each, or until then (CLOCK_MONOTONIC). */
void notes_tell(Notes *n);
void notes_tell_last(Notes *n, uint64_t until_usec);

/* How long alike ones are counted: for a test that is in a hurry. */
void notes_set_times(Notes *n, uint64_t window_usec, uint64_t spent_usec);
