/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The journal namespace, from auditd's side: sending records, and finding out whether it keeps them. */

#include <systemd/sd-event.h>
#include <systemd/sd-journal.h>

#include "audit/audit-outbox.h"

typedef struct AuditJournal AuditJournal;

/* The first n_kept of the records that were asked for are in the journal, in files that have been fsynced. r is
 * negative if something else went wrong; then n_kept is 0. */
typedef void (*AuditJournalKept)(size_t n_kept, int r, void *userdata);

/* `directory` has the journal's files, `unit` is the one whose entries count (NULL: any). */
int audit_journal_new(AuditJournal **ret, sd_event *event, const char *socket_path, const char *directory,
                      const char *unit, AuditJournalKept handler, void *userdata);
/* Waits for the look that is under way, which ends at its next step. */
AuditJournal *audit_journal_free(AuditJournal *j);
DEFINE_CLEANUP(AuditJournal *, audit_journal_free)

/* Hands one record to journald. -EAGAIN: its queue is full; other errors: it is not there. */
int audit_journal_send(AuditJournal *j, const char *text, size_t size);

enum { AUDIT_LOOK_MAX = 256 };

/* Looks for these records, in order, until the first that does not turn up within wait_usec. -EBUSY while
 * another look is under way. */
int audit_journal_look(AuditJournal *j, const AuditHead *records, size_t n, uint64_t wait_usec);

/* The directory of the namespace's persistent files; the caller's. */
int audit_journal_directory(char **ret);

/* The record with the highest number among the last ones in the journal, and the number of the first one; 0 if there is none. Both
 * block for as long as opening the files takes. */
int audit_journal_last(const char *directory, const char *unit, AuditHead *ret);
int audit_journal_first(const char *directory, const char *unit, uint64_t *ret_seq);

/* Adds all fields of the current entry to the record; *ret_unit (may be NULL) is its _SYSTEMD_UNIT, NULL if it has none, the caller's. */
int audit_journal_read_entry(sd_journal *j, AuditRecord *r, char **ret_unit);
