/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Signed statements "the chain had this hash at this record", kept outside the journal. Specified in audit-checkpoint.c. */

#include <stdint.h>

#include "audit/audit-outbox.h"
#include "util/text.h"

typedef struct AuditKey AuditKey;

enum { AUDIT_SIGNATURE_HEX = 129, AUDIT_CHECKPOINTS_MAX = 20000 };

typedef struct AuditCheckpoint {
        AuditHead head;
        uint64_t first_seq;              /* where the journal began at that time */
        char time[TIME_TEXT_SIZE];
        char signature[AUDIT_SIGNATURE_HEX];
} AuditCheckpoint;

/* Loads the private key from dir_fd, or makes it and its public part when there is none. */
int audit_key_load_or_make(AuditKey **ret, int dir_fd);
/* Loads only a public key, from a PEM file. */
int audit_key_load_public(AuditKey **ret, const char *path);
/* Loads only the private key, from a PEM file. */
int audit_key_load_private(AuditKey **ret, const char *path);
AuditKey *audit_key_free(AuditKey *k);
DEFINE_CLEANUP(AuditKey *, audit_key_free)

/* What is signed begins with a word that says what it is, so that no signature serves for something else. */
int audit_key_sign(const AuditKey *key, const char *text, char ret[static AUDIT_SIGNATURE_HEX]);
/* 1 if the signature fits, 0 if not, negative errno. */
int audit_key_verify(const AuditKey *key, const char *text, const char *signature);

enum { AUDIT_CHECKPOINT_LINE_MAX = 352 };

int audit_checkpoint_sign(const AuditKey *key, const AuditHead *head, uint64_t first_seq, AuditCheckpoint *ret);
/* The whole line, without its end. */
void audit_checkpoint_line(const AuditCheckpoint *c, char ret[static AUDIT_CHECKPOINT_LINE_MAX]);
/* 1 if the signature fits, 0 if not, negative errno. */
int audit_checkpoint_verify(const AuditKey *key, const AuditCheckpoint *c);

/* Adds one line to the file and fsyncs it; drops the older half once there are too many. */
int audit_checkpoint_store(int dir_fd, const AuditCheckpoint *c);

/* One line of the file, without its end. -EBADMSG if it is none. */
int audit_checkpoint_parse(const char *line, size_t size, AuditCheckpoint *ret);
