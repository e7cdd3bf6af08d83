/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What anchorctl's output is made of: sizes and times as text, tables, records, signs of life. Nobody is called. */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ctl/ctl-evidence.h"
#include "ctl/ctl-format.h"
#include "ctl/ctl-progress.h"
#include "ctl/ctl-table.h"
#include "ctl/ctl.h"
#include "util/json.h"
#include "util/text.h"

/* Users of this host have names, wherever they stand; what only looks like one is left alone. */
static void test_name_users(void **state) {
        static const struct {
                const char *text, *named;
        } cases[] = {
                { "", "" }, { "uid 0", "root (uid 0)" }, { "stopped by uid 0: uid 0.", "stopped by root (uid 0): root (uid 0)." },
                { "root (uid 0)", "root (uid 0)" }, { "uid 4123456789", "uid 4123456789" }, { "uid 99999999999999999999", "uid 99999999999999999999" },
                { "fluid 0", "fluid 0" }, { "uid 0x", "uid 0x" }, { "uid ", "uid " }, { "uid -1", "uid -1" }, { "anchord.service", "anchord.service" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *named = ctl_name_users(cases[i].text);

                assert_string_equal(named, cases[i].named);
        }
}

static void test_format(void **state) {
        char b[CTL_TEXT_SIZE];
        uint64_t usec;

        assert_string_equal(format_size(7, b), "7B");
        assert_string_equal(format_size(1536, b), "1.5K");
        assert_string_equal(format_size(512 << 20, b), "512M");
        assert_string_equal(format_size(UINT64_MAX, b), "16E");
        assert_string_equal(format_duration(350 * 1000, b), "350ms");
        assert_string_equal(format_duration(4200 * 1000, b), "4.2s");
        assert_string_equal(format_duration(200 * UINT64_C(1000000), b), "3min 20s");
        assert_string_equal(format_duration(3900 * UINT64_C(1000000), b), "1h 5min");
        assert_string_equal(format_duration(86400 * UINT64_C(2000000), b), "2d");
        assert_string_equal(format_cost(0, b), "$0.00");
        assert_string_equal(format_cost(4200, b), "$0.0042");
        assert_string_equal(format_cost(1200000, b), "$1.20");
        assert_string_equal(format_count(0, b), "0");
        assert_string_equal(format_count(-1234567, b), "-1,234,567");
        assert_string_equal(format_count(INT64_MAX, b), "9,223,372,036,854,775,807");

        assert_int_equal(parse_time("1970-01-01T00:01:00.250Z", &usec), 0);
        assert_int_equal(usec, 60250000);
        assert_int_equal(parse_time("yesterday", &usec), -EINVAL);
        assert_string_equal(format_ago("1970-01-01T00:01:00.000Z", 65 * UINT64_C(1000000), b), "5s ago");
        assert_string_equal(format_ago("1970-01-01T00:01:00.000Z", 0, b), "now");
        assert_string_equal(format_ago(NULL, 0, b), "-");
}

static void test_table(void **state) {
        static const char *const titles[] = { "A", "N", "TEXT", NULL };
        _cleanup_(table_freep) Table *t = NULL;
        _cleanup_free_ char *text = NULL;
        size_t size;
        FILE *f;

        assert_int_equal(table_new(&t, titles), 0);
        table_align_right(t, 1);
        assert_int_equal(table_add(t, "abc") ?: table_add(t, "7") ?: table_add(t, "0123456789"), 0);
        assert_int_equal(table_add(t, "d") ?: table_add(t, "1234") ?: table_add(t, NULL), 0);
        assert_int_equal(table_rows(t), 2);

        f = open_memstream(&text, &size);
        table_print(t, f, 0, true);
        (void) fclose(f);
        assert_string_equal(text, "A       N  TEXT\nabc     7  0123456789\nd    1234  -\n");
        free(text);

        f = open_memstream(&text, &size);
        table_print(t, f, 19, false);
        (void) fclose(f);
        assert_string_equal(text, "abc     7  0123456\u2026\nd    1234  -\n");
}

static void test_records(void **state) {
        static const struct {
                const char *event, *data, *text;
                bool denial;
                const char *actor;
        } cases[] = {
                { "dns.allow", "{\"name\": \"a.example.org\", \"address\": \"198.18.0.1\", \"rule\": \"x\"}",
                  "lookup of a.example.org: 198.18.0.1", false },
                { "dns.refused", "{\"name\": \"b.example.org\", \"port\": 53, \"reason\": \"no-rule\", \"count\": 3, \"detail\": \"A\"}",
                  "lookup of b.example.org: no-rule (A), 3 times", true },
                { "egress.allow", "{\"name\": \"a.example.org\", \"port\": 443, \"protocol\": \"tls\", \"verdict\": \"inspect\"}",
                  "a.example.org:443 tls (to be inspected)", false, "anchor-proxy@r3k9x0a1b2c3d.service" },
                { "egress.allow", "{\"name\": \"a.example.org\", \"port\": 443, \"protocol\": \"tls\", \"verdict\": \"pass\", \"method\": \"GET\", \"path\": \"/v1\"}",
                  "a.example.org:443 tls GET /v1 (inspected)", false, "anchor-inject@r3k9x0a1b2c3d.service" },
                /* of HTTP/2 inject asks about the connection first: what differs from the next is who asked */
                { "egress.allow", "{\"name\": \"a.example.org\", \"port\": 443, \"protocol\": \"tls\", \"verdict\": \"pass\"}",
                  "a.example.org:443 tls (inspected)", false, "anchor-inject@r3k9x0a1b2c3d.service" },
                { "egress.allow", "{\"name\": \"a.example.org\", \"port\": 443, \"protocol\": \"tls\", \"verdict\": \"pass\"}",
                  "a.example.org:443 tls (passed through unread)", false, "anchor-proxy@r3k9x0a1b2c3d.service" },
                { "egress.allow", "{\"name\": \"a.example.org\", \"port\": 25, \"protocol\": \"raw\", \"verdict\": \"pass\"}",
                  "a.example.org:25 raw (passed through unread)", false, "anchor-proxy@r3k9x0a1b2c3d.service" },
                { "egress.allow", "{\"name\": \"a.example.org\", \"port\": 80, \"protocol\": \"http\", \"verdict\": \"pass\", \"method\": \"GET\", \"path\": \"/\"}",
                  "a.example.org:80 http GET / (read, in the clear)", false, "anchor-proxy@r3k9x0a1b2c3d.service" },
                { "egress.allow", "{\"name\": \"a.example.org\", \"port\": 443, \"protocol\": \"tls\", \"verdict\": \"pass\"}", "a.example.org:443 tls (pass)", false },
                { "egress.allow", "{\"name\": \"a.example.org\", \"port\": 443}", "a.example.org:443", false },
                { "egress.deny", "{\"name\": \"169.254.169.254\", \"port\": 80, \"reason\": \"literal-address\", \"count\": 1}",
                  "169.254.169.254:80: literal-address", true },
                { "conn.close", "{\"name\": \"a.example.org\", \"port\": 443, \"bytes_in\": 1536, \"bytes_out\": 7, \"duration_us\": 350000}",
                  "a.example.org:443: 1.5K in, 7B out, 350ms", false },
                { "egress.deny", "{\"name\": \"a\\u001b[2J\", \"reason\": 7}", "a\\x1b[2J", true },
                { "egress.deny", "{\"name\": \"a.example.org\", \"port\": 443, \"reason\": \"path\", \"count\": 7, \"detail\": \"GET /a\", \"details\": [[\"GET /a\", 4], [\"GET /b\", 3]]}",
                  "a.example.org:443: path (GET /a and 1 more), 7 times", true },
                { "egress.deny", "{}", "?", true },
                { "egress.requests", "{\"name\": \"a.example.org\", \"port\": 443, \"count\": 6, \"requests\": [[\"GET\", \"/v1/x\", 6]]}",
                  "a.example.org:443 GET /v1/x, 6 times", false },
                { "egress.requests", "{\"name\": \"a.example.org\", \"port\": 443, \"count\": 1, \"requests\": [[\"GET\", \"/v1/x\", 1]]}",
                  "a.example.org:443 GET /v1/x", false },
                { "egress.requests", "{\"name\": \"a.example.org\", \"port\": 443, \"count\": 20, \"requests\": [[\"GET\", \"/a\", 6], [\"POST\", \"/b\", 1], [\"GET\", \"/c\", 2],"
                  " [\"GET\", \"/d\", 11]]}", "a.example.org:443 GET /a (6), POST /b, GET /c (2) and 1 more, 20 times", false },
                { "egress.requests", "{\"name\": \"-\", \"port\": 0, \"count\": 2, \"requests\": [7, [1, 2, \"x\"]]}", "-:0 ? ?, ? ?, 2 times", false },
                { "egress.totals", "{\"rejected\": 7, \"logged\": 5}", "in all, 7 packets turned away by the guest's network", false },
                { "egress.totals", "{\"rejected\": 7, \"dropped\": {\"other_source\": 4}}",
                  "in all, 7 packets turned away by the guest's network, 4 dropped for a forged source address", false },
                { "egress.totals", "{\"rejected\": 7, \"dropped\": {\"other_source\": 0, \"not_ipv4\": 5, \"other_device\": 1}}",
                  "in all, 7 packets turned away by the guest's network, 5 dropped that were not IPv4, 1 dropped from another device", false },
                { "conn.deny", "{\"name\": \"2001:db8::1\", \"port\": 443, \"reason\": \"ipv6\", \"count\": 3}", "2001:db8::1:443: ipv6, 3 times", true },
                { "conn.deny", "{\"name\": \"-\", \"port\": 0, \"reason\": \"not-ip\", \"detail\": \"EtherType 0x88cc\"}", "-:0: not-ip (EtherType 0x88cc)", true },
                { "conn.deny", "{\"name\": \"192.0.2.7\", \"port\": 53, \"reason\": \"forged-source\", \"source\": \"203.0.113.7\", \"count\": 3}",
                  "192.0.2.7:53: forged-source 203.0.113.7, 3 times", true },
                { "egress.totals", "{\"rejected\": 1}", "in all, 1 packet turned away by the guest's network", false },
                { "egress.totals", "{\"rejected\": 0, \"fence\": {\"connect_allowed\": 3, \"tested\": 9, \"connect_never\": 1, \"create_elsewhere\": 1, \"bind_refused\": 2}}",
                  "in all, 0 packets turned away by the guest's network, 4 attempts or packets of the run's own processes by the fence "
                  "(connect_never 1, create_elsewhere 1, bind_refused 2)", false },
                { "policy.changed", "{\"change\": \"allow\", \"rule\": \"live/0\"}", "the policy was changed: allow", false },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_json_ json_t *data = NULL;
                _cleanup_free_ char *text = NULL;

                assert_int_equal(json_parse(cases[i].data, strlen(cases[i].data), &data, NULL), 0);
                text = ctl_record_text(cases[i].event, cases[i].actor, data);
                assert_string_equal(text, cases[i].text);
                assert_int_equal(ctl_record_is_denial(cases[i].event, data), cases[i].denial);
                assert_true(ctl_record_is_network(cases[i].event));
        }
        assert_false(ctl_record_is_network("item.submitted"));
}

/* A record of a denial stands for as many as it counts. */
static void test_refusals(void **state) {
        static const struct {
                const char *event, *data;
                uint64_t n;
        } cases[] = {
                { "egress.deny", "{\"count\": 7}", 7 }, { "dns.refused", "{\"count\": 1}", 1 }, { "conn.deny", "{}", 1 }, { "egress.deny", "{\"count\": -3}", 1 },
                { "credential.misuse", "{\"count\": \"x\"}", 1 }, { "egress.requests", "{\"count\": 7}", 0 }, { "egress.allow", "{}", 0 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_json_ json_t *data = json_loads(cases[i].data, 0, NULL);

                assert_int_equal(ctl_record_refusals(cases[i].event, data), cases[i].n);
        }
}

static void test_progress_lines(void **state) {
        static const struct { const char *text; uint64_t seconds; const char *line; } texts[] = {
                { "running, agent", 0, "\u2026 running, agent: 0 s" },
                { "running, agent", 59, "\u2026 running, agent: 59 s" },
                { "queued", 60, "\u2026 queued: 1 min 0 s" },
                { "queued", 3599, "\u2026 queued: 59 min 59 s" },
                { "queued", 7320, "\u2026 queued: 2 h 2 min" },
                { "a\033[2J\nb", 1, "\u2026 a\\x1b[2J\\x0ab: 1 s" },
        };
        static const struct { const char *text; unsigned columns; const char *fits; unsigned width; } fits[] = {
                { "abcdef", 80, "abcdef", 6 },
                { "abcdef", 7, "abcdef", 6 },   /* the last column stays free */
                { "abcdef", 6, "abcd\u2026", 5 },
                { "abcdef", 2, "\u2026", 1 },
                { "abcdef", 1, "\u2026", 1 },
                { "abcdef", 0, "\u2026", 1 },
                { "", 10, "", 0 },
        };
        static const struct { unsigned width, columns; const char *sequence; } erasures[] = {
                { 0, 80, "\r\033[K" }, { 60, 80, "\r\033[K" }, { 60, 60, "\r\033[K" },
                { 60, 59, "\r\033[1A\033[J" }, { 60, 20, "\r\033[2A\033[J" }, { 60, 0, "\r\033[K" },
        };

        for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                _cleanup_free_ char *line = progress_text(texts[i].text, texts[i].seconds * 1000000 + 999999);

                assert_string_equal(line, texts[i].line);
        }
        for (size_t i = 0; i < ELEMENTSOF(fits); i++) {
                unsigned width = 99;
                _cleanup_free_ char *text = progress_fit(fits[i].text, fits[i].columns, &width);

                assert_string_equal(text, fits[i].fits);
                assert_int_equal(width, fits[i].width);
        }
        for (size_t i = 0; i < ELEMENTSOF(erasures); i++) {
                _cleanup_free_ char *sequence = progress_erase(erasures[i].width, erasures[i].columns);

                assert_string_equal(sequence, erasures[i].sequence);
        }

        assert_false(progress_is_due(500 * 1000, true));
        assert_true(progress_is_due(PROGRESS_TICK_USEC, true));
        assert_false(progress_is_due(8 * 1000 * 1000, false));
        /* who looks up once a tick is never silent for more than ten seconds */
        assert_true(progress_is_due(10 * 1000 * 1000 - PROGRESS_TICK_USEC, false));
        assert_true(progress_is_due(PROGRESS_LINE_USEC, false));
}

/* Where nothing can be taken back: a line after ten seconds of silence, and then after ten more. */
static void test_progress_plain(void **state) {
        _cleanup_free_ char *err = NULL;
        size_t size;
        Ctl ctl = { .out = stdout, .err = open_memstream(&err, &size) };

        assert_true(ctl_activity_begin(&ctl, "Waiting"));
        assert_false(ctl_activity_begin(&ctl, "A part of it"));
        ctl_activity_goes_on(&ctl);
        (void) fflush(ctl.err);
        assert_string_equal(err, "");

        ctl.progress.since_usec -= 20 * 1000 * 1000;
        ctl.progress.said_usec -= 10 * 1000 * 1000;
        ctl_activity_goes_on(&ctl);
        ctl_activity_goes_on(&ctl); /* not twice */
        ctl_activity_end(&ctl, false);
        (void) fflush(ctl.err);
        assert_string_equal(err, "\u2026 Waiting: 20 s\n");

        ctl.pager = 1;
        ctl.progress.said_usec -= 10 * 1000 * 1000;
        ctl_activity_goes_on(&ctl);
        ctl.pager = 0;
        ctl_activity_end(&ctl, true);
        ctl_activity_goes_on(&ctl);
        (void) fclose(ctl.err);
        assert_string_equal(err, "\u2026 Waiting: 20 s\n");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_format),
                cmocka_unit_test(test_name_users),
                cmocka_unit_test(test_table),
                cmocka_unit_test(test_records),
                cmocka_unit_test(test_refusals),
                cmocka_unit_test(test_progress_lines),
                cmocka_unit_test(test_progress_plain),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
