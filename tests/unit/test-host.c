/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What is read from the tools that replace the operating system, what is remembered about images, and when a host goes back. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/health.h"
#include "host/host-state-api.h"
#include "policy/policy.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/json.h"

#define A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define C "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"

static char folder[] = "/tmp/anchorhold-host-XXXXXX", known[sizeof(folder) + 16];

/* For each test a folder of its own, for what is known about images. */
static int set_up(void **state) {
        strcpy(folder + sizeof(folder) - 7, "XXXXXX");
        if (!mkdtemp(folder))
                return -1;
        (void) snprintf(known, sizeof(known), "%s/state.json", folder);
        return 0;
}

static int tear_down(void **state) {
        return command_run((const char *const[]) { "rm", "-r", folder, NULL }, NULL, NULL, NULL);
}

static int ostree(const char *text, HostDeployments *ret) {
        return host_ostree_parse(text, strlen(text), ret);
}

static int bootc(const char *text, HostDeployments *ret) {
        return host_bootc_parse(text, strlen(text), ret);
}

static void test_ostree(void **state) {
        HostDeployments d = {};

        /* as ostree 2026.4 prints it */
        assert_int_equal(ostree("{\"deployments\": ["
                                "{\"checksum\": \"" C "\", \"index\": 0, \"booted\": false, \"pending\": false, \"rollback\": false, \"staged\": true, \"version\": \"" C "\"},"
                                "{\"checksum\": \"" B "\", \"index\": 1, \"booted\": true, \"pending\": false, \"rollback\": false, \"staged\": false, \"version\": \"" B "\"},"
                                "{\"checksum\": \"" A "\", \"index\": 2, \"booted\": false, \"pending\": false, \"rollback\": true, \"staged\": false, \"version\": \"1.0\"}]}", &d), 0);
        assert_int_equal(d.n, 3);
        assert_string_equal(host_find(&d, HOST_BOOTED)->digest, B);
        assert_string_equal(host_find(&d, HOST_STAGED)->digest, C);
        assert_string_equal(host_find(&d, HOST_STAGED)->commit, C);
        assert_int_equal(host_find(&d, HOST_ROLLBACK)->index, 2);
        assert_string_equal(host_find(&d, HOST_ROLLBACK)->digest, ""); /* of no image: that is no digest */
        assert_null(host_find(&d, HOST_PENDING));
        assert_ptr_equal(host_find_digest(&d, C), &d.list[0]);
        assert_null(host_find_digest(&d, A));

        assert_int_equal(ostree("{\"deployments\": []}", &d), 0);
        assert_int_equal(d.n, 0);
        assert_int_equal(ostree("{\"deployments\": 1}", &d), -EINVAL);
        assert_int_equal(ostree("{}", &d), -EINVAL);
        assert_int_equal(ostree("", &d), -EINVAL);
        assert_int_equal(ostree("{\"deployments\": [1, {\"index\": \"x\"}]}", &d), 0);
        assert_null(host_find(&d, HOST_BOOTED));
}

static void test_too_many(void **state) {
        _cleanup_free_ char *text = strdup("{\"deployments\": [{}");
        HostDeployments d = {};

        for (unsigned i = 0; i < 40; i++) {
                char *more = text_format("%s, {\"index\": %u}", text, i);

                free(text);
                text = more;
        }
        assert_int_equal(strlen(text) > 0, 1);
        {
                _cleanup_free_ char *all = text_format("%s]}", text);

                assert_int_equal(ostree(all, &d), 0);
                assert_int_equal(d.n, HOST_DEPLOYMENTS_MAX);
        }
}

static void test_bootc(void **state) {
        HostDeployments d = {};

        assert_int_equal(bootc("{\"apiVersion\": \"org.containers.bootc/v1\", \"kind\": \"BootcHost\", \"status\": {\"staged\": null,"
                               "\"booted\": {\"image\": {\"image\": {\"image\": \"registry.example/a\", \"transport\": \"registry\"}, \"version\": \"1.2\","
                               " \"imageDigest\": \"sha256:" B "\"}, \"pinned\": false},"
                               "\"rollback\": {\"image\": {\"imageDigest\": \"sha256:" A "\", \"version\": null}}}}", &d), 0);
        assert_int_equal(d.n, 2);
        assert_string_equal(host_find(&d, HOST_BOOTED)->digest, B);
        assert_string_equal(host_find(&d, HOST_BOOTED)->version, "1.2");
        assert_string_equal(host_find(&d, HOST_BOOTED)->commit, "");
        assert_string_equal(host_find(&d, HOST_ROLLBACK)->digest, A);
        assert_null(host_find(&d, HOST_STAGED));
        assert_int_equal(bootc("{\"status\": null}", &d), -EINVAL);
        assert_int_equal(bootc("{\"status\": {\"booted\": {\"image\": {\"imageDigest\": \"md5:00\"}}}}", &d), 0);
        assert_string_equal(host_find(&d, HOST_BOOTED)->digest, "");
}

static void test_manifest(void **state) {
        static const char good[] = "{\"schemaVersion\": 2, \"layers\": [{\"digest\": \"sha256:" A "\", \"size\": 5}, {\"digest\": \"sha256:" B "\", \"size\": 0}]}";
        static const char *const bad[] = {
                "", "{}", "{\"layers\": []}", "{\"layers\": {}}", "{\"manifests\": [{\"digest\": \"sha256:" A "\"}]}",
                "{\"layers\": [{\"digest\": \"" A "\", \"size\": 5}]}",
                "{\"layers\": [{\"digest\": \"sha256:../../etc\", \"size\": 5}]}",
                "{\"layers\": [{\"digest\": \"sha256:" A "a\", \"size\": 5}]}",
                "{\"layers\": [{\"digest\": \"sha256:" A "\", \"size\": -1}]}",
                "{\"layers\": [{\"digest\": \"sha256:" A "\", \"size\": \"5\"}]}",
        };
        HostLayer layers[HOST_LAYERS_MAX];
        size_t n = 0;

        assert_int_equal(host_manifest_parse(good, strlen(good), layers, &n), 0);
        assert_int_equal(n, 2);
        assert_string_equal(layers[1].digest, B);
        assert_int_equal(layers[0].size, 5);
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (host_manifest_parse(bad[i], strlen(bad[i]), layers, &n) != -EINVAL)
                        fail_msg("%s", bad[i]);
}

static void test_state(void **state) {
        char path[] = "/tmp/anchorhold-host-XXXXXX";
        _cleanup_json_ json_t *s = NULL, *again = NULL;
        int fd = mkstemp(path);

        assert_true(fd >= 0);
        (void) close(fd);
        s = host_state_load(path); /* empty: nothing is known */
        assert_int_equal(json_object_size(s), 0);
        assert_false(host_state_is_healthy(s, A));
        assert_null(host_state_rejected(s, A));
        assert_int_equal(host_state_set_healthy(s, A), 0);
        assert_int_equal(host_state_set_healthy(s, A), 0);
        assert_int_equal(json_array_size(json_object_get(s, "healthy")), 1);
        assert_int_equal(host_state_reject(s, B, "does not boot"), 0);
        assert_int_equal(host_state_save(path, s), 0);

        again = host_state_load(path);
        assert_true(json_equal(s, again));
        assert_true(host_state_is_healthy(again, A));
        assert_false(host_state_is_healthy(again, B));
        assert_string_equal(json_string_value(json_object_get(host_state_rejected(again, B), "reason")), "does not boot");
        assert_true(json_is_false(json_object_get(host_state_rejected(again, B), "told")));

        for (unsigned i = 0; i < 100; i++) {
                char digest[HEX_SHA256_SIZE];

                (void) snprintf(digest, sizeof(digest), "%064x", i);
                assert_int_equal(host_state_set_healthy(again, digest), 0);
        }
        assert_true(json_array_size(json_object_get(again, "healthy")) <= 64);
        assert_int_equal(unlink(path), 0);
}

static int change(const char *path, unsigned usec) {
        _cleanup_fd_ int lock = host_state_lock(path);
        _cleanup_json_ json_t *s = host_state_load(path);

        (void) usleep(usec);
        if (lock < 0 || host_state_count_start(path, s, A) < 0)
                return -1;
        return host_state_save(path, s);
}

/* Two change it at once, and neither's change is lost, although both saves replace the file. */
static void test_two_writers(void **state) {
        _cleanup_json_ json_t *s = NULL;
        pid_t pid;
        int status;

        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
                _exit(change(known, 200 * 1000) < 0);
        assert_int_equal(change(known, 200 * 1000), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);

        s = host_state_load(known);
        assert_int_equal(host_state_count_start(known, s, A), 3);
}

static void test_starts(void **state) {
        _cleanup_json_ json_t *s = json_object();

        assert_int_equal(host_state_count_start(known, s, A), 1);
        assert_int_equal(host_state_count_start(known, s, A), 2);
        assert_int_equal(host_state_count_start(known, s, B), 1);
        host_state_judged(known, s, A);
        assert_int_equal(host_state_count_start(known, s, A), 1);
        host_state_judged(known, s, A);
        host_state_judged(known, s, B);
        host_state_judged(known, s, B); /* of no start */
        assert_int_equal(json_object_size(s), 0);

        /* what is no count counts as none */
        assert_int_equal(host_state_count_start(known, s, A), 1);
        assert_int_equal(host_state_count_start(known, s, B), 1);
        assert_int_equal(json_object_set_new(s, "starts", json_pack("{s:s, s:I}", A, "x", B, (json_int_t) -5)), 0);
        assert_int_equal(host_state_count_start(known, s, A), 1);
        assert_int_equal(host_state_count_start(known, s, B), 1);
        assert_int_equal(json_object_set_new(s, "starts", json_string("x")), 0);
        assert_int_equal(host_state_count_start(known, s, A), 1);
}

/* What the next boot of A counts, from what is on disk. */
static int next_start(void) {
        _cleanup_json_ json_t *s = host_state_load(known);
        int n = host_state_count_start(known, s, A);

        assert_int_equal(host_state_save(known, s), 0);
        return n;
}

static void test_verdict_without_room(void **state) {
        _cleanup_json_ json_t *s = NULL;

        assert_int_equal(next_start(), 1);
        assert_int_equal(next_start(), 2);
        s = host_state_load(known);
        host_state_judged(known, s, A); /* and that cannot be saved */
        assert_int_equal(next_start(), 1);
        assert_int_equal(next_start(), 2); /* the control: these had none */
        assert_int_equal(next_start(), 3);

        /* what cannot be told from one that was judged is not counted */
        assert_int_equal(host_state_count_start("/no/such/folder/state.json", s, A), -ENOENT);
        assert_int_equal(json_object_size(s), 0);
}

static void test_accept(void **state) {
        _cleanup_json_ json_t *s = json_object();

        host_state_accept(known, s, A); /* what was not rejected */
        assert_int_equal(host_state_reject(s, A, "x"), 0);
        assert_int_equal(host_state_reject(s, B, "y"), 0);
        assert_int_equal(host_state_count_start(known, s, A), 1);
        host_state_accept(known, s, A);
        assert_null(host_state_rejected(s, A));
        assert_non_null(host_state_rejected(s, B));
        assert_false(host_state_is_healthy(s, A));
        assert_int_equal(host_state_count_start(known, s, A), 1);
        host_state_judged(known, s, A);
        host_state_accept(known, s, B);
        assert_int_equal(json_object_size(s), 0);
}

static void add_deployment(HostDeployments *d, HostRole role, const char *digest) {
        d->list[d->n].role = role;
        strcpy(d->list[d->n++].digest, digest);
}

static void test_left(void **state) {
        _cleanup_json_ json_t *s = json_object();
        HostDeployments d = {}, back = {};

        assert_null(host_state_left(s, A));
        add_deployment(&d, HOST_STAGED, C);
        add_deployment(&d, HOST_BOOTED, B);
        add_deployment(&d, HOST_ROLLBACK, A);
        add_deployment(&d, HOST_OTHER, "");
        assert_int_equal(host_state_go_back(s, &d), 0);
        assert_non_null(host_state_left(s, B));
        assert_non_null(host_state_left(s, C));
        assert_null(host_state_left(s, A));
        assert_null(host_state_rejected(s, B)); /* whoever names it may have it */

        /* forward again, in the same way */
        add_deployment(&back, HOST_BOOTED, A);
        add_deployment(&back, HOST_ROLLBACK, B);
        assert_int_equal(host_state_go_back(s, &back), 0);
        assert_null(host_state_left(s, B));
        assert_non_null(host_state_left(s, A));

        host_state_wanted(s, A);
        assert_null(host_state_left(s, A));
        assert_non_null(host_state_left(s, C));
        host_state_accept(known, s, C);
        assert_int_equal(json_object_size(s), 0);

        /* of many, the last */
        for (unsigned i = 0; i < 40; i++) {
                HostDeployments one = { .n = 1, .list[0].role = HOST_BOOTED };
                char time[32];

                (void) snprintf(one.list[0].digest, HEX_SHA256_SIZE, "%064x", 40 - i);
                assert_int_equal(host_state_go_back(s, &one), 0);
                (void) snprintf(time, sizeof(time), "2026-01-01T00:00:%02u.000Z", i);
                assert_int_equal(json_object_set_new(json_object_get(s, "left"), one.list[0].digest, json_string(time)), 0);
        }
        assert_int_equal(json_object_size(json_object_get(s, "left")), 16);
        (void) snprintf(d.list[0].digest, HEX_SHA256_SIZE, "%064x", 1);
        assert_non_null(host_state_left(s, d.list[0].digest));
}

static bool goes_back(json_t *state, const char *booted, const char *back) {
        HostDeployments d = {};
        const char *why;
        bool r;

        if (booted) {
                d.list[d.n].role = HOST_BOOTED;
                strcpy(d.list[d.n++].digest, booted);
        }
        if (back) {
                d.list[d.n].role = HOST_ROLLBACK;
                strcpy(d.list[d.n++].digest, back);
        }
        r = host_state_goes_back(state, &d, &why);
        assert_int_equal(r, !why);
        return r;
}

static void test_goes_back(void **state) {
        _cleanup_json_ json_t *s = json_object();

        assert_true(goes_back(s, A, B));
        assert_true(goes_back(s, A, "")); /* whatever that is, it was here before */
        assert_false(goes_back(s, A, NULL));
        assert_false(goes_back(s, "", B));
        assert_false(goes_back(s, NULL, B));

        /* both are bad: it ends */
        assert_int_equal(host_state_reject(s, B, "x"), 0);
        assert_false(goes_back(s, A, B));
        assert_true(goes_back(s, B, A)); /* a power cut between rejection and reboot */

        /* it worked here: the fault is in what both share */
        assert_int_equal(host_state_set_healthy(s, C), 0);
        assert_false(goes_back(s, C, A));
}

static void test_command(void **state) {
        _cleanup_free_ char *out = NULL, *none = NULL;
        size_t size = 0;

        assert_int_equal(command_run((const char *const[]) { "sh", "-c", "cat; printf 'a\\nb'; exit 3", NULL }, NULL, &out, &size), 3);
        assert_int_equal(size, 3);
        assert_string_equal(out, "a\nb");
        assert_int_equal(command_run((const char *const[]) { "true", NULL }, NULL, NULL, NULL), 0);
        assert_int_equal(command_run((const char *const[]) { "sh", "-c", "kill -9 $$", NULL }, NULL, NULL, NULL), 128 + 9);
        assert_int_equal(command_run((const char *const[]) { "/no/such/program", NULL }, NULL, &none, NULL), -ENOENT);
        assert_int_equal(command_run((const char *const[]) { "yes", NULL }, NULL, &none, NULL), -EFBIG);
        assert_null(none);
}

static void tick(void *userdata) {
        ++*(unsigned *) userdata;
}

static void test_waiting(void **state) {
        _cleanup_free_ char *out = NULL;
        unsigned n = 0, before = 0;

        /* once a second, however long that takes on a machine that has other things to do */
        for (unsigned i = 0; i < 2; i++) {
                uint64_t begin = time_monotonic();

                before = n;
                assert_int_equal(command_run((const char *const[]) { "sleep", "1.3", NULL }, &(HostWaiting) { tick, &n }, i == 0 ? NULL : &out, NULL), 0);
                assert_true(n > before && n - before <= (time_monotonic() - begin) / 1000000);
        }
}

/* What is started anew long after a good boot, by "systemctl isolate" for one, must not take it for one that hangs. */
static void test_deadline_of_a_boot_that_began(void **state) {
        static const char *const units[] = { "units/host-deadline.timer", "units/host-deadline.service" };
        _cleanup_free_ char *gate = NULL;

        for (size_t i = 0; i < ELEMENTSOF(units); i++) {
                _cleanup_free_ char *unit = NULL;

                assert_return_code(io_read_file(AT_FDCWD, units[i], 16 * 1024, &unit, NULL), errno);
                if (!strstr(unit, "\nConditionPathExists=!" HEALTH_BEGUN "\n"))
                        fail_msg("%s starts something although the checks have begun", units[i]);
                assert_null(strstr(unit, "\nUnit=")); /* the timer's is the service of its name, which has the condition */
        }
        assert_return_code(io_read_file(AT_FDCWD, "units/host-health.service", 16 * 1024, &gate, NULL), errno);
        assert_non_null(strstr(gate, "\nExecStartPre=-systemctl stop host-deadline.timer\n"));
}

static uint64_t seconds(const char *unit, const char *key) {
        _cleanup_free_ char *line = text_format("\n%s=", key), *text = NULL;
        const char *at = strstr(unit, line);
        uint64_t s = 0;

        if (!at)
                fail_msg("no %s", key);
        at += strlen(line);
        text = strndup(at, strcspn(at, "\n"));
        if (policy_parse_duration(text, &s) < 0)
                fail_msg("%s=%s", key, text);
        return s;
}

/* The gate waits for a second probe and for a microVM's second boot, and a probe that never succeeds ends. */
static void test_times_of_the_accelerator(void **state) {
        enum { SETTLE = 30, BOOTS = 2, OTHER_CHECKS = 180 };
        _cleanup_free_ char *accel = NULL, *gate = NULL;
        const char *burst;
        uint64_t once;

        assert_return_code(io_read_file(AT_FDCWD, "units/anchor-accel.service", 16 * 1024, &accel, NULL), errno);
        assert_return_code(io_read_file(AT_FDCWD, "units/host-health.service", 16 * 1024, &gate, NULL), errno);
        once = seconds(accel, "RuntimeMaxSec") + seconds(accel, "RestartSec") + SETTLE;
        assert_true(2 * once - SETTLE <= HEALTH_ACCELERATOR_SEC); /* the first has been started when the gate begins */
        assert_true(seconds(gate, "TimeoutStartSec") >= HEALTH_ACCELERATOR_SEC + BOOTS * POLICY_BOOT_TIMEOUT_MAX_S + OTHER_CHECKS);

        burst = strstr(accel, "\nStartLimitBurst=");
        assert_non_null(burst);
        burst += strlen("\nStartLimitBurst=");
        assert_true(atoi(burst) >= 2);
        assert_true(seconds(accel, "StartLimitIntervalSec") >= (uint64_t) atoi(burst) * once);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_ostree),
                cmocka_unit_test(test_too_many),
                cmocka_unit_test(test_bootc),
                cmocka_unit_test(test_manifest),
                cmocka_unit_test(test_state),
                cmocka_unit_test_setup_teardown(test_two_writers, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_starts, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_verdict_without_room, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_accept, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_left, set_up, tear_down),
                cmocka_unit_test(test_goes_back),
                cmocka_unit_test(test_command),
                cmocka_unit_test(test_waiting),
                cmocka_unit_test(test_deadline_of_a_boot_that_began),
                cmocka_unit_test(test_times_of_the_accelerator),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
