# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/audit/audit-chain.c supervisor/audit/audit-checkpoint.c supervisor/audit/audit-client.c supervisor/audit/audit-closing.c supervisor/audit/audit-export-write.c \
            supervisor/audit/audit-event.c supervisor/audit/audit-export.c supervisor/audit/audit-journal.c \
            supervisor/audit/audit-outbox.c supervisor/audit/audit-queue.c supervisor/audit/audit-record.c \
            supervisor/audit/audit-request.c supervisor/audit/audit-server.c supervisor/audit/audit-server-request.c supervisor/audit/audit-share.c supervisor/audit/audit-verify.c \
            supervisor/audit/notes.c supervisor/audit/tellings.c
PROGRAMS += anchor-auditd
UNIT_TESTS += test-audit-client test-audit-event test-audit-journal test-audit-outbox test-audit-queue test-audit-record test-audit-request test-audit-server test-audit-share test-audit-verify test-tellings
FUZZERS += fuzz-audit-checkpoint fuzz-audit-export
