/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Names that both sides of auditd's socket share. */

#define AUDIT_SOCKET "/run/anchorhold/audit.sock" /* for daemons and the units of runs */
#define AUDIT_API_SOCKET "/run/anchorhold/audit-api.sock" /* the same, for operators */
#define AUDIT_INTERFACE "io.anchorhold.Audit"
#define AUDIT_UNIT "anchor-auditd.service"
#define AUDIT_NAMESPACE "anchorhold"
#define AUDIT_STATE_DIR "/var/lib/anchorhold/audit"
#define AUDIT_CHECKPOINTS "checkpoints"
#define AUDIT_PUBLIC_KEY "checkpoint-key.pub.pem"
#define AUDIT_PRIVATE_KEY "checkpoint-key.pem"
#define AUDIT_OUTBOX "outbox.db"

/* Bytes of an event's data, as canonical JSON. */
#define AUDIT_DATA_MAX ((size_t) 48 * 1024)
