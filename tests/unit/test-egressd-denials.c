/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The whole of egressd: what it refuses, and that each denial comes into the audit log. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "egressd-world.h"

static void test_denials(void **state) {
        static const struct { const char *name, *reason; } targets[] = {
                { "private.example.org", "not-global" }, { "meta.example.org", "metadata" }, { "own.example.org", "own-address" },
                { "nowhere.example.org", "resolve-failed" },
        };
        _cleanup_free_ char *good = NULL;
        World *w = *state;

        register_run(w, RUN);
        good = resolve(w, "good.example.org");
        for (size_t i = 0; i < ELEMENTSOF(targets); i++) {
                _cleanup_free_ char *address = resolve(w, targets[i].name);

                connect_tls(w, address, targets[i].name);
                assert_denied(w, targets[i].reason);
        }

        call(w, "Look", json_pack("{s:s, s:i}", "address", "203.0.113.7", "port", 443));
        assert_denied(w, "literal-address");
        call(w, "Look", json_pack("{s:s, s:i}", "address", good, "port", 22));
        assert_denied(w, "port");
        connect_tls(w, "198.18.77.77", "good.example.org"); /* nobody was given that one */
        assert_string_equal(get(w, "verdict"), "deny");
        connect_tls(w, good, "evil.example.com");
        assert_denied(w, "fronting");
        connect_tls(w, good, NULL);
        assert_denied(w, "no-sni");
        call(w, "Connect", json_pack("{s:s, s:i, s:s, s:s, s:b}", "address", good, "port", 443, "protocol", "tls", "sni", "good.example.org", "ech", 1));
        assert_denied(w, "ech");
        call(w, "Connect", json_pack("{s:s, s:i, s:s}", "address", good, "port", 443, "protocol", "raw"));
        assert_denied(w, "protocol");
        w->as_run = OTHER; /* not registered; and an address of another run's is none of its own */
        connect_tls(w, good, "good.example.org");
        assert_string_equal(get(w, "verdict"), "deny");
        assert_int_equal(n_granted(), 0);
        assert_null(strstr(w->auditd.records, "egress.allow"));
}

/* Of all records of this event that auditd has taken. */
static json_int_t sum_of_counts(const World *w, const char *event) {
        _cleanup_free_ char *records = strdup(w->auditd.records ?: "");
        json_int_t sum = 0;

        for (char *save = NULL, *line = strtok_r(records, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                _cleanup_json_ json_t *record = json_loads(line, 0, NULL);

                if (strcmp(json_string_value(json_object_get(record, "event")), event) == 0)
                        sum += json_integer_value(json_object_get(json_object_get(record, "data"), "count"));
        }
        return sum;
}

static void look_in_vain(World *w, unsigned n) {
        for (unsigned i = 0; i < n; i++) {
                call(w, "Look", json_pack("{s:s, s:i}", "address", "203.0.113.7", "port", 443));
                assert_denied(w, "literal-address");
        }
}

static uint64_t n_untold;

static void on_untold(const char *run, UntoldEvent event, uint64_t count, void *userdata) {
        n_untold += count;
}

/* What is in the file when nobody has it open. */
static uint64_t left_untold(void) {
        _cleanup_(untold_freep) Untold *u = NULL;

        assert_int_equal(untold_open(&u, EGRESSD_STATE_DIR), 0);
        n_untold = 0;
        untold_take(u, on_untold, NULL);
        return n_untold;
}

/* What auditd did not take is sent again, once, as soon as it takes something; so are counts whose run was released meanwhile. */
static void test_refused_denials(void **state) {
        World *w = *state;

        register_run(w, RUN);
        w->auditd.refuses = "egress.deny";
        look_in_vain(w, 1);
        w->as_run = OTHER;
        look_in_vain(w, 2);
        w->as_run = RUN;
        run_for(w->event, 2500000); /* a beat; it is refused again */
        look_in_vain(w, 4);
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        assert_int_equal(sum_of_counts(w, "egress.deny"), 0);

        w->auditd.refuses = NULL;
        UNTIL(w->event, sum_of_counts(w, "egress.deny") >= 6);
        UNTIL(w->event, tellings_is_empty(w->e->tellings)); /* the other run's second denial waits for its ten seconds, and is counted */
        run_for(w->event, 2500000);
        assert_int_equal(sum_of_counts(w, "egress.deny"), 6);
        w->e = egressd_free(w->e);
        assert_int_equal(left_untold(), 1);
}

/* The number of records of denials, and the first and the last of them as they were sent. */
static unsigned find_denials(const World *w, char first[static 1024], char last[static 1024]) {
        unsigned n = 0;

        for (const char *p = w->auditd.records, *end; p && *p; p = end + 1) {
                end = strchr(p, '\n');
                if (!memmem(p, (size_t) (end - p), "egress.deny", 11))
                        continue;
                (void) snprintf(n++ == 0 ? first : last, 1024, "%.*s", (int) (end - p), p);
        }
        return n;
}

static void assert_same_key(const char *a, const char *b, bool same) {
        const char *x = strstr(a, "\"key\":"), *y = strstr(b, "\"key\":");

        assert_true(x && y);
        assert_int_equal(strncmp(x, y, strcspn(x, ",")) == 0, same);
}

/* auditd has the record, and its answer is lost: it is sent again as what it was, so that auditd knows it. What happened once more has another key. */
static void test_lost_answer(void **state) {
        char first[1024] = "", again[1024] = "";
        World *w = *state;

        register_run(w, RUN);
        w->auditd.waits = true;
        look_in_vain(w, 1);
        UNTIL(w->event, w->auditd.waiting);
        w->auditd.waits = false;
        w->auditd.waiting = ipc_call_unref(w->auditd.waiting);
        UNTIL(w->event, tellings_is_empty(w->e->tellings));
        assert_int_equal(find_denials(w, first, again), 2);
        assert_string_equal(first, again);
        assert_same_key(first, again, true);

        look_in_vain(w, 1);
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        UNTIL(w->event, tellings_is_empty(w->e->tellings));
        assert_int_equal(find_denials(w, first, again), 3);
        assert_same_key(first, again, false);
}

static void until_the_loop_ends(World *w, uint64_t usec) {
        uint64_t end = time_monotonic() + usec;

        while (sd_event_get_state(w->event) != SD_EVENT_FINISHED) {
                assert_true(sd_event_run(w->event, 20000) >= 0);
                assert_true(time_monotonic() < end);
        }
}

static void test_stop(void **state) {
        World *w = *state;

        register_run(w, RUN);
        look_in_vain(w, 3);
        w->as_run = OTHER;
        look_in_vain(w, 2);
        UNTIL(w->event, sum_of_counts(w, "egress.deny") == 2); /* the first of each */

        assert_true(egressd_stop(w->e) >= 0);
        until_the_loop_ends(w, 2000000);
        assert_int_equal(sum_of_counts(w, "egress.deny"), 5);
        w->e = egressd_free(w->e);
        assert_int_equal(left_untold(), 0);
}

/* An auditd that takes nothing holds up nothing; what it did not take is kept for the next start. */
static void test_stop_unrecorded(void **state) {
        World *w = *state;
        uint64_t begin;

        register_run(w, RUN);
        w->auditd.refuses = "egress.deny";
        look_in_vain(w, 3);
        begin = time_monotonic();
        assert_true(egressd_stop(w->e) >= 0);
        until_the_loop_ends(w, 2000000);
        assert_true(time_monotonic() - begin < 2000000);
        w->e = egressd_free(w->e);
        assert_int_equal(left_untold(), 3);
}

static json_t *refused(const char *name, json_int_t count) {
        return json_pack("{s:s, s:s, s:s, s:I}", "event", "connection", "reason", "malformed", "name", name, "count", count);
}

/* What a proxy says of itself is bounded, whoever it has become; and saying it, or that a connection is over, takes a turn like any question. */
static void test_what_a_proxy_says(void **state) {
        char longest[1024 + 1] = {}, longer[1024 + 2] = {};
        World *w = *state;
        uint64_t begin;

        register_run(w, RUN);
        memset(longest, 'x', sizeof(longest) - 1);
        memset(longer, 'x', sizeof(longer) - 1);
        call(w, "Refused", refused("far.example.org", 100001));
        assert_error(w, "BadInput");
        call(w, "Refused", refused(longer, 1));
        assert_error(w, "BadInput");
        assert_null(strstr(w->auditd.records, "malformed"));
        call(w, "Refused", refused(longest, 100000));
        assert_null(w->error);
        UNTIL(w->event, strstr(w->auditd.records, "malformed"));
        assert_non_null(strstr(w->auditd.records, "\"port\":0")); /* of which no port is known */
        call(w, "Refused", json_pack("{s:s, s:s}", "event", "dns", "reason", "too-large"));
        assert_null(w->error);
        UNTIL(w->event, strstr(w->auditd.records, "\"port\":53"));

        begin = time_boottime();
        for (size_t i = 0; i < 700; i++) /* five hundred at once, then a thousand a second */
                call(w, i % 2 == 0 ? "Done" : "Refused", i % 2 == 0 ? json_pack("{s:i, s:i, s:i, s:i}", "grant", 7, "bytes_in", 0, "bytes_out", 0, "duration_us", 0) : refused("x", 1));
        assert_true(time_boottime() - begin >= 150 * 1000);
}

static void request_in_vain(World *w, const char *name, const char *method, const char *path, const char *reason) {
        call(w, "Connect", json_pack("{s:s, s:i, s:s, s:s, s:s, s:s}", "name", name, "port", 443, "protocol", "tls", "host", name, "method", method, "path", path));
        assert_denied(w, reason);
}

/* The record that stands for that many; NULL if there is none. Its data are borrowed from *ret. */
static const json_t *find_record(const World *w, const char *name, json_int_t count, json_t **ret) {
        _cleanup_free_ char *records = strdup(w->auditd.records ?: "");

        for (char *save = NULL, *line = strtok_r(records, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                const json_t *data;

                json_decref(*ret);
                *ret = json_loads(line, 0, NULL);
                data = json_object_get(*ret, "data");
                if (json_integer_value(json_object_get(data, "count")) == count && strcmp(json_string_value(json_object_get(data, "name")) ?: "", name) == 0)
                        return data;
        }
        return NULL;
}

/* All requests that were denied in ten seconds are in the record, but for their queries; what there is no room for is a number in it. */
static void test_what_was_asked_for(void **state) {
        _cleanup_json_ json_t *record = NULL;
        const json_t *data, *details;
        World *w = *state;
        uint64_t before;
        char path[300];

        w->as_role = PEER_INJECT;
        register_run_of(w, RUN, "paths");
        request_in_vain(w, "api.example.org", "GET", "/first?token=hidden", "path");
        for (unsigned i = 0; i < 40; i++) {
                (void) snprintf(path, sizeof(path), "/v2/%u?token=hidden", i);
                request_in_vain(w, "api.example.org", i % 2 == 0 ? "GET" : "PUT", path, "path");
        }
        (void) snprintf(path, sizeof(path), "/%0250u", 7);
        request_in_vain(w, "api.example.org", "GET", path, "path");
        request_in_vain(w, "git.example.org", "GET", "/team/other/info/refs?service=git-upload-pack", "git-repository");
        request_in_vain(w, "git.example.org", "GET", "/team/other/info/refs?service=git-receive-pack", "git-repository");
        request_in_vain(w, "git.example.org", "GET", "/team/other/info/refs?service=hidden", "git-protocol");

        before = egress_state_find(w->e->state, RUN)->n_records;
        assert_int_equal(before, 1 + 3); /* the registration, and the first of each kind */
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        UNTIL(w->event, strstr(w->auditd.records, "egress.released"));
        data = find_record(w, "api.example.org", 41, &record);
        assert_non_null(data);
        details = json_object_get(data, "details");
        assert_int_equal(json_array_size(details), DENIALS_DETAILS_MAX);
        assert_string_equal(json_string_value(json_array_get(json_array_get(details, 1), 0)), "PUT /v2/1");
        assert_int_equal(json_integer_value(json_array_get(json_array_get(details, 1), 1)), 1);
        assert_int_equal(json_integer_value(json_object_get(data, "unlisted")), 41 - DENIALS_DETAILS_MAX);
        data = find_record(w, "git.example.org", 1, &record);
        assert_string_equal(json_string_value(json_object_get(data, "detail")), "GET /team/other/info/refs?service=git-upload-pack");
        assert_null(json_object_get(data, "details"));
        assert_non_null(strstr(w->auditd.records, "git-receive-pack"));
        assert_null(strstr(w->auditd.records, "hidden"));
}

/* Connections of which nothing was known yet, and then a request, all denied alike: the record names what there is to name. */
static void test_detail_of_a_later_one(void **state) {
        _cleanup_json_ json_t *record = NULL;
        const json_t *data, *details;
        World *w = *state;

        w->as_role = PEER_INJECT;
        register_run_of(w, RUN, "paths");
        call(w, "Amend", json_pack("{s:s, s:b, s:s}", "run", RUN, "allow", 0, "rule", "api.example.org"));
        assert_null(w->error);
        for (unsigned i = 0; i < 3; i++) { /* the first is told at once */
                call(w, "Connect", json_pack("{s:s, s:i, s:s, s:s}", "name", "api.example.org", "port", 443, "protocol", "tls", "sni", "api.example.org"));
                assert_denied(w, "denied-by-rule");
        }
        request_in_vain(w, "api.example.org", "GET", "/v1", "denied-by-rule");
        denials_tick(w->e->denials, time_boottime() + DENIALS_WINDOW_USEC);
        UNTIL(w->event, find_record(w, "api.example.org", 3, &record));
        data = json_object_get(record, "data");
        details = json_object_get(data, "details");
        assert_null(json_object_get(data, "detail"));
        assert_int_equal(json_array_size(details), 1);
        assert_string_equal(json_string_value(json_array_get(json_array_get(details, 0), 0)), "GET /v1");
        assert_int_equal(json_integer_value(json_object_get(data, "unlisted")), 2);
}

/* What makes a record longer is taken off the run's budget of records: 256 bytes are one more. */
static void test_weight(void **state) {
        World *w = *state;
        char path[220];
        uint64_t before;

        w->as_role = PEER_INJECT;
        register_run_of(w, RUN, "paths");
        request_in_vain(w, "api.example.org", "GET", "/first", "path");
        for (unsigned i = 0; i < 16; i++) {
                (void) snprintf(path, sizeof(path), "/%0203u", i); /* with "GET /", 208 bytes */
                request_in_vain(w, "api.example.org", "GET", path, "path");
        }
        before = egress_state_find(w->e->state, RUN)->n_records;
        denials_tick(w->e->denials, time_boottime() + DENIALS_WINDOW_USEC);
        assert_int_equal(egress_state_find(w->e->state, RUN)->n_records, before + 1 + 16 * 208 / 256);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_denials, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_refused_denials, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_lost_answer, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stop, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stop_unrecorded, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_what_a_proxy_says, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_what_was_asked_for, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_detail_of_a_later_one, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_weight, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
