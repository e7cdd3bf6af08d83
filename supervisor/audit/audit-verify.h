/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Checking the audit log: live journals, exported files, or a directory of journal files. The format is
 * specified at the top of audit-record.c and in docs/audit-format.md. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/cleanup.h"
#include "util/text.h"

typedef struct AuditVerifyOptions {
        const char *export_file;  /* what audit_export_write() or `journalctl -o export` wrote, "-" for standard input; or */
        const char *directory;    /* a directory of journal files; neither: the live namespace */
        const char *checkpoints;  /* file of signed checkpoints; NULL: auditd's own, if it can be read */
        const char *public_key;   /* PEM file; NULL: auditd's own, if it can be read */
        const char *head;         /* hexadecimal digits that the hash of a record must begin with: what somebody noted as the log's head; or NULL */
        void (*on_record)(void *userdata); /* called now and then while records are read; may be NULL */
        void *userdata;
} AuditVerifyOptions;

/* What is wrong with the first bad record. */
typedef enum AuditFinding {
        AUDIT_GOOD,
        AUDIT_MALFORMED,          /* a field is missing, twice there, or not of its form */
        AUDIT_ALTERED,            /* hash and contents disagree */
        AUDIT_REMOVED,            /* a record or more before this one are missing */
        AUDIT_SWAPPED,            /* records are not in the order of their sequence numbers */
        AUDIT_FORGED,             /* written by another unit, or a second, different record of that number */
        AUDIT_CUT,                /* the tail is missing: a checkpoint or the head names later records */
        AUDIT_CHECKPOINT,         /* a checkpoint's signature or contents do not fit */
        AUDIT_EMPTY,              /* nothing was found where something must be */
        AUDIT_UNCLOSED,           /* no record is bad, but nothing says that the last one in the file was the last */
} AuditFinding;

typedef struct AuditVerifyReport {
        AuditFinding finding;
        uint64_t seq;             /* of the first bad record; 0 if it has none */
        char *reason;             /* owned: a sentence that says what is wrong; "" when good */
        uint64_t records;         /* good ones, until the end or the first bad one */
        uint64_t resent;          /* identical copies; not an error */
        uint64_t first_seq, last_seq;
        uint64_t checkpoints;     /* that were compared with a record */
        bool vacuumed;            /* the log begins after record 1, as a signed checkpoint or retention explains */
        bool checkpoints_checked; /* false: no checkpoint file or key was readable, so a cut tail cannot be told */
        uint64_t signed_seq;      /* the last record that a checkpoint was compared with; what comes after it could be cut off unnoticed by them */
        bool head_asked;          /* auditd said up to where the journal goes */
        bool closed, closing_checked; /* an exported file: it has its closing line, and that one's signature was checked */
        uint64_t head_seq;        /* the record of the noted hash; 0: none was given */
        char first_time[TIME_TEXT_SIZE], last_time[TIME_TEXT_SIZE], closed_time[TIME_TEXT_SIZE];
        char last_hash[HEX_SHA256_SIZE];
} AuditVerifyReport;

/* 0 when the log could be read, good or not (report->finding says); negative errno when it could not. */
int audit_verify(const AuditVerifyOptions *options, AuditVerifyReport *report);
void audit_verify_report_done(AuditVerifyReport *report);

const char *audit_finding_name(AuditFinding finding);
