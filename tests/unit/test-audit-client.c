/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "audit/audit.h"
#include "util/json.h"

/* Data that could not be made are no record without data. With data, only auditd is missing. */
static void test_no_data(void **state) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(audit_client_freep) AuditClient *c = NULL;

        assert_true(sd_event_new(&event) >= 0);
        assert_int_equal(audit_client_new(&c, event), 0);
        assert_int_equal(audit_append(c, "run.verdict", NULL, NULL, NULL, json_pack("{s:s}", "reason", "\xff"), NULL, NULL), -ENOMEM);
        assert_int_equal(audit_pending(c, ""), 0);
        assert_int_equal(audit_append(c, "run.verdict", NULL, NULL, NULL, json_pack("{s:s}", "reason", "fine"), NULL, NULL), 0);
        assert_int_equal(audit_pending(c, ""), 1);

        assert_int_equal(audit_append_sync("run.verdict", NULL, NULL, NULL, json_pack("{s:s}", "reason", "\xff")), -ENOMEM);
        assert_int_equal(audit_append_sync("run.verdict", NULL, NULL, NULL, json_object()), -ENOENT);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_no_data),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
