/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "audit-test.h"
#include "util/text.h"

/* Made by another implementation (ten lines of Python's hashlib) from the description alone. */
#define KNOWN_HASH "0b06f74473b9328557287422e1d086d61c65e166126657fb04d7ee8cd790ea9e"

static void make(AuditRecord *r) {
        static const uint8_t prev[AUDIT_HASH_SIZE] = { 0xab, 0xcd };

        audit_test_fill(r, 1);
        assert_int_equal(audit_record_seal(r, 7, prev), 0);
}

static void test_known_hash(void **state) {
        _cleanup_(audit_record_done) AuditRecord r = {};

        make(&r);
        assert_string_equal(r.value[AUDIT_SEQ], "7");
        assert_string_equal(r.value[AUDIT_HASH], KNOWN_HASH);
}

static void test_there_and_back(void **state) {
        _cleanup_(audit_record_done) AuditRecord r = {}, again = {};
        _cleanup_free_ char *text = NULL;
        size_t size;

        make(&r);
        assert_int_equal(audit_record_text(&r, &text, &size), 0);
        assert_int_equal(size, strlen(text));
        assert_int_equal(audit_record_parse(text, size, &again), 0);
        assert_int_equal(again.seq, 7);
        assert_memory_equal(again.hash, r.hash, AUDIT_HASH_SIZE);
        assert_null(again.value[AUDIT_ITEM]);

        /* any one byte makes it another record, or none */
        for (size_t i = 0; i < size; i++) {
                _cleanup_(audit_record_done) AuditRecord other = {};

                text[i] ^= 1;
                assert_int_equal(audit_record_parse(text, size, &other), -EBADMSG);
                text[i] ^= 1;
        }
        assert_int_equal(audit_record_parse(text, size - 1, &again), -EBADMSG);
}

static void add(AuditRecord *r, const char *name, const char *value) {
        assert_int_equal(audit_record_add(r, name, strlen(name), value, strlen(value)), 0);
}

static void test_malformed(void **state) {
        static const struct { AuditField field; const char *value; } bad[] = {
                { AUDIT_SEQ, "07" }, { AUDIT_SEQ, "0" }, { AUDIT_SEQ, "-7" }, { AUDIT_SEQ, "99999999999999999999" }, { AUDIT_SEQ, "" },
                { AUDIT_PREV, "ab" }, { AUDIT_HASH, "x" }, { AUDIT_TIME, "2026-01-31 12:34:56.789Z" }, { AUDIT_TIME, "" },
                { AUDIT_BOOT, "1" }, { AUDIT_MESSAGE_ID, "g" }, { AUDIT_DATA, NULL },
        };
        const char *reason;

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                _cleanup_(audit_record_done) AuditRecord r = {};

                make(&r);
                assert_int_equal(audit_record_set(&r, bad[i].field, bad[i].value), 0);
                assert_int_equal(audit_record_check(&r, &reason), AUDIT_CHECK_MALFORMED);
                assert_non_null(reason);
        }

        _cleanup_(audit_record_done) AuditRecord twice = {}, foreign = {}, strange = {};
        make(&twice);
        add(&twice, "MESSAGE", "again");
        assert_int_equal(audit_record_check(&twice, &reason), AUDIT_CHECK_MALFORMED);

        add(&foreign, "MESSAGE", "Journal started");
        add(&foreign, "_PID", "1");
        assert_false(foreign.ours);

        make(&strange);
        add(&strange, "ANCHORHOLD_OTHER", "x");
        assert_true(strange.ours);
        assert_int_equal(audit_record_check(&strange, &reason), AUDIT_CHECK_MALFORMED);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_known_hash),
                cmocka_unit_test(test_there_and_back),
                cmocka_unit_test(test_malformed),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
