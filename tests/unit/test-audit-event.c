/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "audit/audit-event.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/json.h"

/* The table and the catalog name the same ids and events. Run from the top of the tree. */
static void test_catalog(void **state) {
        _cleanup_free_ char *catalog = NULL;
        size_t n, n_entries = 0;
        const AuditEvent *events = audit_event_list(&n);

        assert_int_equal(io_read_file(AT_FDCWD, "units/catalog/anchorhold.catalog", 1 << 20, &catalog, NULL), 0);
        for (const char *p = catalog; (p = strstr(p, "\n-- ")); p++)
                n_entries++;
        assert_int_equal(n_entries, n);

        for (size_t i = 0; i < n; i++) {
                char entry[256];

                (void) snprintf(entry, sizeof(entry), "\n-- %s\nSubject: Anchorhold event %s\n", events[i].message_id, events[i].name);
                if (!strstr(catalog, entry))
                        fail_msg("units/catalog/anchorhold.catalog has no entry for %s, %s", events[i].name, events[i].message_id);
        }
}

static void test_table(void **state) {
        static const unsigned people = PEER_OTHER | PEER_ROOT;
        size_t n;
        const AuditEvent *events = audit_event_list(&n);

        for (size_t i = 0; i < n; i++) {
                assert_int_equal(strlen(events[i].message_id), 32);
                assert_true(events[i].writers);
                /* root itself writes only of what nobody else can do */
                if (strcmp(events[i].name, "credential.added") == 0 || strcmp(events[i].name, "credential.rotated") == 0 ||
                    strcmp(events[i].name, "credential.removed") == 0 || strncmp(events[i].name, "host.", strlen("host.")) == 0)
                        assert_int_equal(events[i].writers, PEER_ROOT);
                else
                        assert_false(events[i].writers & people);
                assert_ptr_equal(audit_event_find(events[i].name), &events[i]);
                for (size_t k = 0; k < i; k++) {
                        assert_string_not_equal(events[i].message_id, events[k].message_id);
                        assert_string_not_equal(events[i].name, events[k].name);
                }
                /* what a unit of a run writes is about a run */
                if (events[i].writers >= PEER_NET)
                        assert_true(events[i].needs & AUDIT_NEEDS_RUN);
        }
        assert_null(audit_event_find("none"));
        assert_null(audit_event_find(NULL));
}

static void check(const char *event, const char *run, const char *item, const char *data, const char *expected) {
        _cleanup_json_ json_t *j = NULL;
        _cleanup_free_ char *text = NULL;

        assert_int_equal(json_parse(data, strlen(data), &j, NULL), 0);
        text = audit_event_render(audit_event_find(event), run, item, "uid 0", j);
        assert_string_equal(text, expected);
}

static void test_render(void **state) {
        check("egress.deny", "r1", NULL, "{\"name\":\"evil.example\",\"port\":443,\"reason\":\"no-rule\",\"count\":3}",
              "Run r1 may not connect to evil.example:443: no-rule (×3)");
        check("egress.deny", "r1", NULL, "{\"name\":\"evil.example\",\"reason\":null}", "Run r1 may not connect to evil.example");
        check("run.verdict", "r1", NULL, "{\"outcome\":\"ok\",\"reason\":\"\"}", "Run r1: verdict ok");
        check("egress.allow", "r1", NULL, "{\"name\":\"a.example\",\"port\":443,\"addresses\":[\"203.0.113.1\",\"203.0.113.2\"]}",
              "Run r1 may connect to a.example:443 at 203.0.113.1, 203.0.113.2");
        check("secret.registered", "r1", NULL, "{\"credentials\":[]}", "Run r1 got its CA and sentinels");
        check("item.transition", NULL, "i1", "{\"to\":\"queued\"}", "Item i1 went to queued");
        check("item.transition", NULL, "i1", "{}", "Item i1 went to ?");
        check("run.guest", "r1", NULL, "{\"kind\":\"x\",\"text\":\"\\u001b[31m\\nred\"}", "Run r1: the guest reports x: \\x1b[31m\\x0ared");
        /* a member of data does not stand for the run */
        check("run.guest", "r1", NULL, "{\"run\":\"r2\",\"kind\":[1,\"a\"]}", "Run r1: the guest reports [1,\"a\"]");
}

static void test_render_long(void **state) {
        _cleanup_json_ json_t *j = NULL;
        _cleanup_free_ char *text = NULL;
        char name[1000] = {};

        memset(name, 'x', sizeof(name) - 1);
        j = json_pack("{s:s}", "name", name);
        text = audit_event_render(audit_event_find("dns.refused"), "r1", NULL, "a", j);
        assert_true(strlen(text) < 300);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_catalog),
                cmocka_unit_test(test_table),
                cmocka_unit_test(test_render),
                cmocka_unit_test(test_render_long),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
