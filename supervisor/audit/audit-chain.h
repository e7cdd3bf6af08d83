/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Judges a log: records in the order in which they stand there, then signed checkpoints. No I/O. */

#include "audit/audit-checkpoint.h"
#include "audit/audit-closing.h"
#include "audit/audit-record.h"
#include "audit/audit-verify.h"

typedef struct AuditChain AuditChain;

int audit_chain_new(AuditChain **ret);
AuditChain *audit_chain_free(AuditChain *c);
DEFINE_CLEANUP(AuditChain *, audit_chain_free)

/* One entry of the log, from this unit (NULL: it says none). Entries without a field of ours are ignored. */
int audit_chain_add(AuditChain *c, AuditRecord *r, const char *unit);

/* The log cannot be read on from within this entry, of which some fields may have been read: *ret_seq is its number, or the one that comes after the entry before;
 * 0 if there was none before, and nothing is noted. */
int audit_chain_break_off(AuditChain *c, AuditRecord *r, uint64_t *ret_seq);

/* A checkpoint from outside the log. Those inside are found by themselves. */
int audit_chain_add_checkpoint(AuditChain *c, const AuditCheckpoint *checkpoint);

/* What auditd says the journal keeps. */
void audit_chain_set_kept(AuditChain *c, const AuditHead *kept);

/* The log is an exported file, which ends with this line; NULL: with none (or not yet). The last call counts. */
void audit_chain_set_closing(AuditChain *c, const AuditClosing *closing);

/* What somebody noted as the log's head: hexadecimal digits that a record's hash begins with. Borrowed. */
void audit_chain_set_head(AuditChain *c, const char *hash);

/* The verdict. key may be NULL: then signatures are not checked, and checkpoints not believed. The report is done
 * by the caller with audit_verify_report_done(). */
int audit_chain_judge(AuditChain *c, const AuditKey *key, AuditVerifyReport *ret);
