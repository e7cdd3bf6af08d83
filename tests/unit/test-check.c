/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What one half of the agreement check tells the other. */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "net/check.h"
#include "net/probe.h"
#include "util/text.h"

static char path[] = "/tmp/check-XXXXXX";

static int set_up(void **state) {
        int fd = mkstemp(path);

        (void) fd_close(fd);
        return fd < 0 ? -1 : 0;
}

static int tear_down(void **state) {
        return unlink(path);
}

static void put(const char *text) {
        _cleanup_file_ FILE *f = fopen(path, "we");

        assert_non_null(f);
        assert_true(fputs(text, f) >= 0);
}

static void put_result(int64_t at, const json_t *probes, const char *reason) {
        _cleanup_json_ json_t *result = json_pack("{s:I, s:O, s:s}", "at", (json_int_t) at, "probes", probes, "reason", reason);
        _cleanup_free_ char *text = json_dumps(result, 0);

        put(text);
}

static void test_taken_over(void **state) {
        CheckTable from = {}, to = {};
        _cleanup_json_ json_t *probes = NULL;
        char reason[256];

        for (int p = 0; p < CHECK_N_PROBES; p++)
                from.results[CHECK_CGROUP][p] = p == CHECK_CONTROL ? CHECK_ALLOWED : CHECK_DENIED;
        from.results[CHECK_CGROUP][CHECK_HOST] = CHECK_NOT_TRIED;
        probes = check_to_json(&from);
        put_result((int64_t) time_boottime(), probes, "");

        to.results[CHECK_GUEST][CHECK_HOST] = CHECK_DENIED;
        assert_int_equal(probe_read(path, &to), 0);
        assert_memory_equal(to.results[CHECK_CGROUP], from.results[CHECK_CGROUP], sizeof(to.results[CHECK_CGROUP]));
        assert_int_equal(to.results[CHECK_GUEST][CHECK_HOST], CHECK_DENIED);
        assert_false(check_disagrees(&to, reason, sizeof(reason)));

        /* what it could not ask, and what was let through, is a disagreement here as well */
        put_result((int64_t) time_boottime(), probes, "cannot open the fence's maps");
        to = (CheckTable) {};
        assert_int_equal(probe_read(path, &to), 0);
        assert_true(check_disagrees(&to, reason, sizeof(reason)));
        assert_string_equal(reason, "cannot open the fence's maps");

        (void) json_object_set_new(json_array_get(probes, 0), "result", json_string("allowed"));
        put_result((int64_t) time_boottime(), probes, "");
        to = (CheckTable) {};
        assert_int_equal(probe_read(path, &to), 0);
        assert_true(check_disagrees(&to, reason, sizeof(reason)));
        assert_string_equal(reason, "layer cgroup: metadata is allowed");
}

/* Each of what can always be tried is asked for; a host without an address and a time without heartbeats are no disagreement. */
static void test_not_tried(void **state) {
        for (int missing = 0; missing < CHECK_N_PROBES; missing++) {
                bool may_be = missing == CHECK_HOST || missing == CHECK_CONTROL;
                CheckTable from = {}, to = {};
                _cleanup_json_ json_t *probes = NULL;
                char reason[256], expected[64];

                for (int p = 0; p < CHECK_N_PROBES; p++)
                        if (p != missing)
                                from.results[CHECK_CGROUP][p] = p == CHECK_CONTROL ? CHECK_ALLOWED : CHECK_DENIED;
                probes = check_to_json(&from);
                put_result((int64_t) time_boottime(), probes, "");

                assert_int_equal(probe_read(path, &to), 0);
                assert_int_equal(check_disagrees(&to, reason, sizeof(reason)), !may_be);
                if (may_be)
                        continue;
                (void) snprintf(expected, sizeof(expected), "layer cgroup: %s was not tried", check_probe_name((CheckProbe) missing));
                assert_string_equal(reason, expected);
        }
}

static void test_not_taken(void **state) {
        static const char *const wrong[] = {
                "",
                "[]",
                "{}",
                "{\"at\": true, \"probes\": [], \"reason\": \"\"}",
                "{\"at\": -1, \"probes\": [], \"reason\": \"\"}",
                "{\"at\": 9223372036854775807, \"probes\": [], \"reason\": \"\"}",
        };
        static const char *const probes[] = {
                "{}",
                "[1]",
                "[{\"layer\": \"policy\", \"probe\": \"metadata\", \"result\": \"denied\"}]", /* not the probe's to say */
                "[{\"layer\": \"cgroup\", \"probe\": \"other\", \"result\": \"denied\"}]",
                "[{\"layer\": \"cgroup\", \"probe\": \"metadata\", \"result\": \"perhaps\"}]",
                "[{\"layer\": \"cgroup\", \"probe\": \"metadata\"}]",
        };
        _cleanup_json_ json_t *empty = json_array();
        CheckTable none = {};
        char reason[256];

        for (size_t i = 0; i < ELEMENTSOF(wrong); i++) {
                CheckTable t = {};

                put(wrong[i]);
                assert_true(probe_read(path, &t) < 0);
                assert_true(check_disagrees(&t, reason, sizeof(reason)));
        }
        for (size_t i = 0; i < ELEMENTSOF(probes); i++) {
                _cleanup_json_ json_t *list = json_loads(probes[i], 0, NULL);
                CheckTable t = {};

                assert_non_null(list);
                put_result((int64_t) time_boottime(), list, "");
                assert_int_equal(probe_read(path, &t), -EBADMSG);
                assert_true(check_disagrees(&t, reason, sizeof(reason)));
        }

        /* a probe that asked nothing has found no fault, and nothing else either */
        put_result((int64_t) time_boottime(), empty, "");
        none = (CheckTable) {};
        assert_int_equal(probe_read(path, &none), 0);
        assert_true(check_disagrees(&none, reason, sizeof(reason)));
        assert_string_equal(reason, "layer cgroup: metadata was not tried");

        for (int seconds = 14; seconds <= 16; seconds += 2) {
                int64_t at = (int64_t) time_boottime() - seconds * 1000 * 1000LL;
                CheckTable t = {};

                if (at < 0)
                        continue; /* a machine that has just been booted */
                put_result(at, empty, "");
                assert_int_equal(probe_read(path, &t), seconds < 15 ? 0 : -ESTALE);
        }

        assert_true(probe_read("/nonexistent/result", &(CheckTable) {}) < 0);
}

/* Whichever layer says otherwise, about whichever probe. */
static void test_each_layer(void **state) {
        static const char *const layers[] = { "guest-network", "cgroup", "policy" };
        char reason[256], expected[64];

        for (int l = 0; l < CHECK_N_LAYERS; l++)
                for (int p = 0; p < CHECK_N_PROBES; p++) {
                        CheckTable t = {};

                        for (int i = 0; i < CHECK_N_LAYERS; i++)
                                for (int k = 0; k < CHECK_N_PROBES; k++)
                                        t.results[i][k] = k == CHECK_CONTROL ? CHECK_ALLOWED : CHECK_DENIED;
                        assert_false(check_disagrees(&t, reason, sizeof(reason)));
                        t.results[l][p] = p == CHECK_CONTROL ? CHECK_DENIED : CHECK_ALLOWED;
                        assert_true(check_disagrees(&t, reason, sizeof(reason)));
                        (void) snprintf(expected, sizeof(expected), "layer %s: %s is %s", layers[l], check_probe_name((CheckProbe) p), p == CHECK_CONTROL ? "denied" : "allowed");
                        assert_string_equal(reason, expected);
                }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_taken_over),
                cmocka_unit_test(test_not_tried),
                cmocka_unit_test(test_not_taken),
                cmocka_unit_test(test_each_layer),
        };

        return cmocka_run_group_tests(tests, set_up, tear_down);
}
