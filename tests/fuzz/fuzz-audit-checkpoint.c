/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A line of the file of checkpoints. What is accepted must be written the same way again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "audit/audit-checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        char line[AUDIT_CHECKPOINT_LINE_MAX];
        AuditCheckpoint c;

        if (audit_checkpoint_parse((const char *) data, size, &c) < 0)
                return 0;

        audit_checkpoint_line(&c, line);
        if (strlen(line) != size || memcmp(line, data, size) != 0)
                abort();
        return 0;
}
