/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An exported log from a stranger: the reader, the records in it, and the judgement over all. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "audit/audit-chain.h"
#include "audit/audit-closing.h"
#include "audit/audit-export.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct Entry {
        AuditRecord record;
        char unit[256];
        bool has_unit;
        AuditClosing closing;
        bool closes;
} Entry;

static int on_field(const char *name, size_t name_size, const void *value, size_t size, void *userdata) {
        Entry *e = userdata;

        if (name_size == strlen("_SYSTEMD_UNIT") && memcmp(name, "_SYSTEMD_UNIT", name_size) == 0 && size < sizeof(e->unit)) {
                memcpy(e->unit, value, size);
                e->unit[size] = '\0';
                e->has_unit = true;
        }
        if (name_size == strlen(AUDIT_CLOSING_FIELD) && memcmp(name, AUDIT_CLOSING_FIELD, name_size) == 0) {
                e->closes = true;
                return audit_closing_parse(value, size, &e->closing);
        }
        return audit_record_add(&e->record, name, name_size, value, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        AuditExport export = { .data = data, .size = size };
        AuditVerifyReport report = {};
        AuditChain *chain;
        int r = 1;

        if (audit_chain_new(&chain) < 0)
                return 0;
        audit_chain_set_closing(chain, NULL);
        while (r > 0) {
                Entry e = {};

                r = audit_export_next(&export, on_field, &e);
                if (r > 0 && e.closes)
                        audit_chain_set_closing(chain, &e.closing);
                if (r > 0)
                        (void) audit_chain_add(chain, &e.record, e.has_unit ? e.unit : NULL);
                audit_record_done(&e.record);
        }

        if (audit_chain_judge(chain, NULL, &report) >= 0)
                audit_verify_report_done(&report);
        (void) audit_chain_free(chain);
        return 0;
}
