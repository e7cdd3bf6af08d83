/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* One run from its spec to its verdict, with a guest that does well, badly, or what it likes. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "run-world.h"

#define REPOSITORY "\"repository\":{\"base\":\"" BASE "\",\"ref\":\"refs/anchorhold/base\",\"result_ref\":\"refs/anchorhold/result\"},"
#define FIX "\"task\":\"mend it\",\"steps\":[{\"name\":\"agent\",\"kind\":\"agent\",\"argv\":[\"agent\",\"{task}\"],\"timeout_s\":60," \
            "\"env\":{\"KEY\":{\"sentinel\":\"model\"}},\"files\":[{\"path\":\"/root/open\",\"content\":\"x\"},{\"path\":\"/root/conf\",\"content\":\"do: {task}\",\"mode\":\"0600\"}]}," \
            "{\"name\":\"check\",\"kind\":\"check\",\"argv\":[\"make\"],\"timeout_s\":60,\"feedback\":{\"rounds\":2}}]}"

/* ---- a command ---- */

static void test_exec(void **state) {
        World *w = *state;

        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_good;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "ok", "");
        assert_int_equal(finish_fact(w, "exit_status"), 0);
        assert_int_equal(finish_fact(w, "boots"), 1);
        assert_int_equal(finish_fact(w, "output_bytes"), 14);
        assert_true(w->off);
        assert_int_equal(w->result, -EINVAL);
        assert_true(has(w->calls, "\"data\":\"hello\\u001B\\n\"")); /* kept as it was, whoever prints it escapes it */
        assert_true(has(w->calls, "\"stream\":\"stderr\""));
        assert_true(has(w->auditd.records, "\"event\":\"run.verdict\""));
        /* the guest's own words about itself, made harmless */
        assert_true(has(w->calls, "6.12\\\\x1b"));
        assert_null(w->files);
}

static void exec_bad(World *w, uint32_t stream, const char *name, json_t *request) {
        guest_exit(w, stream, 3);
}

static void exec_missing(World *w, uint32_t stream, const char *name, json_t *request) {
        guest_text(w, CHANNEL_EXIT, stream, "{\"errno\":2,\"error\":\"\\u001b]0;x\\u0007 no\"}");
}

static void exec_killed(World *w, uint32_t stream, const char *name, json_t *request) {
        guest_text(w, CHANNEL_EXIT, stream, "{\"signal\":11}");
}

static void failing(World *w, void (*exec)(World *, uint32_t, const char *, json_t *), int status, const char *reason) {
        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "failed", reason);
        assert_int_equal(finish_fact(w, "exit_status"), status);
        assert_true(w->off);
}

static void test_exec_fails(void **state) {
        failing(*state, exec_bad, 3, "exit status 3");
}

static void test_exec_missing(void **state) {
        failing(*state, exec_missing, 127, "");
}

static void test_exec_killed(void **state) {
        failing(*state, exec_killed, 139, "signal 11");
}

/* ---- a repository ---- */

static unsigned n_checks;

static void exec_fix(World *w, uint32_t stream, const char *name, json_t *request) {
        _cleanup_free_ char *text = json_canonical(request);

        if (strcmp(name, "make") == 0 && ++n_checks == 1) {
                guest_text(w, CHANNEL_STDOUT, stream, "test 7 is wrong");
                return guest_exit(w, stream, 2);
        }
        if (strcmp(name, "agent") == 0) {
                assert_true(has(text, "\"KEY\":\"sk-sentinel\""));
                assert_true(has(text, "mend it"));
                assert_true(has(text, "SSL_CERT_FILE"));
                if (n_checks == 1)
                        assert_true(has(text, "test 7 is wrong"));
        }
        if (strcmp(name, "make") == 0)
                assert_null(strstr(text, "sk-sentinel")); /* a check gets nothing of the agent's */
        if (strcmp(name, "collect") == 0) {
                assert_true(has(text, BASE));
                guest_text(w, CHANNEL_STDOUT, stream, "# v2 git bundle: ");
                guest_text(w, CHANNEL_STDOUT, stream, "the result");
        }
        guest_exit(w, stream, 0);
}

static void with_seed(World *w, size_t size) {
        _cleanup_free_ char *seed = malloc(size);

        memset(seed, 's', size);
        w->seed = memfd_create("seed", MFD_CLOEXEC);
        assert_int_equal(io_write_full(w->seed, seed, size), 0);
}

static void test_fix(void **state) {
        static const char credentials[] = "{\"ca_pem\":\"CERTIFICATE\",\"sentinels\":{\"model\":\"sk-sentinel\"}}";
        char text[64] = {};
        World *w = *state;

        n_checks = 0;
        assert_int_equal(io_write_file_atomic(AT_FDCWD, "/run/credentials/guest", credentials, strlen(credentials), 0600), 0);
        w->spec = parse(HEAD(LIMITS) REPOSITORY FIX);
        with_seed(w, 3 * CHANNEL_WINDOW + 5);
        w->exec = exec_fix;
        assert_int_equal(drive(w), 0);
        assert_int_equal(unlink("/run/credentials/guest"), 0);
        assert_finish(w, "ok", "");
        assert_string_equal(w->commands, "clone\nagent\nmake\nagent\nmake\ncollect\n");
        assert_string_equal(w->files, "/run/anchorhold/ca.pem 11\n/usr/local/share/ca-certificates/anchorhold.crt 11\n"
                                      "/etc/ssl/certs/ca-certificates.crt 11 +/etc/ssl/certs/java/cacerts\n/workspace/seed.bundle 786437\n"
                                      "/root/open 1\n/root/conf 11 0600\n/root/open 1\n/root/conf 94 0600\n");
        assert_true(has(w->last_file, "do: mend it") && has(w->last_file, "test 7 is wrong"));
        assert_int_equal(finish_fact(w, "rounds"), 2);
        assert_int_equal(finish_fact(w, "bundle_bytes"), 27);
        assert_true(w->result >= 0);
        assert_int_equal(pread(w->result, text, sizeof(text), 0), 27);
        assert_string_equal(text, "# v2 git bundle: the result");
        assert_null(strstr(w->calls, "sk-sentinel"));
}

/* ---- a repository of another object format, with real git in the place of the guest's ---- */

#define PLACE "/run/formats"
#define GIT_AS "git -c user.name=t -c user.email=t@example.org "

static void shell(const char *command) {
        if (system(command) != 0) /* NOLINT(cert-env33-c): a test's own command */
                fail_msg("failed: %s", command);
}

/* As run-guest.c would have it done, with the guest's two paths below PLACE, and standard output in PLACE/out. */
static int run_script(const json_t *argv) {
        const char *words[12] = {};
        pid_t pid;
        int status;

        assert_true(json_array_size(argv) < ELEMENTSOF(words));
        for (size_t i = 0; i < json_array_size(argv); i++) {
                words[i] = json_string_value(json_array_get(argv, i));
                if (strcmp(words[i], "/workspace/repo") == 0)
                        words[i] = PLACE "/repo";
                if (strcmp(words[i], "/workspace/seed.bundle") == 0)
                        words[i] = PLACE "/seed.bundle";
        }

        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                int fd = open(PLACE "/out", O_WRONLY | O_CREAT | O_TRUNC, 0600);

                if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0)
                        _exit(127);
                (void) execv(words[0], (char **) words);
                _exit(127);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static void exec_really(World *w, uint32_t stream, const char *name, json_t *request) {
        _cleanup_free_ char *out = NULL;
        size_t size;
        int status;

        if (strcmp(name, "make") == 0) {
                shell("cd " PLACE "/repo && git log -1 --format=%s | grep -qx base && " GIT_AS "commit -q --allow-empty -m more");
                return guest_exit(w, stream, 0);
        }

        status = run_script(json_object_get(request, "argv"));
        assert_int_equal(io_read_file(AT_FDCWD, PLACE "/out", 65536, &out, &size), 0);
        if (size > 0)
                guest_say(w, CHANNEL_STDOUT, stream, out, size);
        guest_exit(w, stream, status);
}

/* The seed of a repository of this object format, and a run from it. */
static void run_format(World *w, const char *format, size_t length) {
        _cleanup_free_ char *init = text_format("rm -rf " PLACE " && git init -q --object-format=%s " PLACE "/origin", format), *base = NULL, *spec = NULL,
                            *header = text_format("@object-format=%s\n", format);
        char text[64] = {};
        size_t size;

        shell(init);
        shell("cd " PLACE "/origin && " GIT_AS "commit -q --allow-empty -m base && git update-ref refs/anchorhold/base HEAD && "
              "git bundle create -q ../seed.bundle refs/anchorhold/base && git rev-parse HEAD | tr -d '\\n' >../base");
        assert_int_equal(io_read_file(AT_FDCWD, PLACE "/base", 65, &base, &size), 0);
        assert_int_equal(size, length);
        spec = text_format(HEAD("\"boot_s\":1,\"run_s\":60,\"output_bytes\":100000,\"bundle_bytes\":65536")
                           "\"repository\":{\"base\":\"%s\",\"ref\":\"refs/anchorhold/base\",\"result_ref\":\"refs/anchorhold/result\"},"
                           "\"steps\":[{\"name\":\"c\",\"kind\":\"check\",\"argv\":[\"make\"],\"timeout_s\":60}]}", base);
        w->spec = parse(spec);
        w->seed = open(PLACE "/seed.bundle", O_RDONLY | O_CLOEXEC);
        assert_true(w->seed >= 0);
        w->exec = exec_really;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "ok", "");
        assert_true(w->result >= 0);
        assert_true(pread(w->result, text, sizeof(text) - 1, 0) > 0);
        assert_int_equal(strstr(text, header) != NULL, length == 64); /* that of SHA-1 goes without saying */
}

static void test_sha256_repository(void **state) {
        run_format(*state, "sha256", 64);
}

static void test_sha1_repository(void **state) {
        run_format(*state, "sha1", 40);
}

static void exec_collect(World *w, uint32_t stream, const char *name, json_t *request) {
        char text[800];

        memset(text, 'x', sizeof(text));
        if (strcmp(name, "collect") == 0) { /* with 1000 allowed */
                guest_say(w, CHANNEL_STDOUT, stream, text, sizeof(text));
                guest_say(w, CHANNEL_STDOUT, stream, text, sizeof(text));
                return;
        }
        guest_exit(w, stream, 0);
}

static void exec_idle(World *w, uint32_t stream, const char *name, json_t *request) {
        guest_exit(w, stream, strcmp(name, "collect") == 0 ? 42 : 0);
}

static void exec_no_clone(World *w, uint32_t stream, const char *name, json_t *request) {
        guest_text(w, CHANNEL_STDERR, stream, "fatal: \x1b[31mno space");
        guest_exit(w, stream, 128);
}

static void bad_result(World *w, void (*exec)(World *, uint32_t, const char *, json_t *), const char *outcome, const char *reason) {
        w->spec = parse(HEAD(LIMITS) REPOSITORY "\"steps\":[{\"name\":\"c\",\"kind\":\"check\",\"argv\":[\"make\"],\"timeout_s\":60}]}");
        with_seed(w, 10);
        w->exec = exec;
        assert_int_equal(drive(w), 0);
        assert_finish(w, outcome, reason);
        assert_true(w->result < 0);
}

static void test_bundle_limit(void **state) {
        bad_result(*state, exec_collect, "failed", "larger than 1000B");
}

static void test_no_commit(void **state) {
        bad_result(*state, exec_idle, "failed", "no commit");
}

static void test_no_clone(void **state) {
        bad_result(*state, exec_no_clone, "error", "fatal: \\x1b[31mno space");
}

static void test_no_seed(void **state) {
        World *w = *state;

        w->spec = parse(HEAD(LIMITS) REPOSITORY FIX);
        assert_int_equal(drive(w), 0);
        assert_finish(w, "error", "no seed");
        assert_null(w->commands);
}

static void test_no_sentinel(void **state) {
        World *w = *state;

        w->spec = parse(HEAD(LIMITS) FIX);
        w->exec = exec_good;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "error", "model");
        assert_null(w->commands);
}

/* ---- a guest that breaks the rules ---- */

static void exec_garbage(World *w, uint32_t stream, const char *name, json_t *request) {
        (void) io_write_full(w->channel_fd, "GET / HTTP/1.1\r\n\r\n", 18);
}

static void test_garbage(void **state) {
        World *w = *state;

        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_garbage;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "error", "channel-error");
        assert_true(has(w->auditd.records, "\"event\":\"channel.error\""));
        assert_int_equal(w->n_boots, 1);
}

static void exec_leave(World *w, uint32_t stream, const char *name, json_t *request) {
        guest_die(w);
}

static void test_gone(void **state) {
        World *w = *state;

        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_leave;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "error", "vm-gone");
        assert_int_equal(w->n_boots, 1); /* what was begun is not begun again here */
}

static void exec_refuse(World *w, uint32_t stream, const char *name, json_t *request) {
        guest_text(w, CHANNEL_ERROR, 0, "{\"reason\":\"\\u001b[2J disk full\"}");
}

static void test_guest_error(void **state) {
        World *w = *state;

        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_refuse;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "error", "guest-error: ");
        assert_null(strchr(json_string_value(json_object_get(w->finish, "reason")), 0x1b));
}

/* ---- auditd and anchord ---- */

static void test_step_unrecorded(void **state) {
        World *w = *state;

        w->auditd.refuses = "run.step";
        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_good;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "error", "unrecorded");
        assert_null(w->commands);
}

static void test_verdict_unrecorded(void **state) {
        World *w = *state;

        w->auditd.refuses = "run.verdict";
        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_good;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "error", "verdict could not be recorded");
}

static unsigned n_refused;

/* Refuses each event twice, then takes it. */
static void refuse_twice(const char *event, void *userdata) {
        World *w = userdata;

        w->auditd.refuses = n_refused++ % 3 < 2 ? event : NULL;
}

/* auditd is away for a while, before a step as well as before the verdict: the run waits, and says so. */
static void test_auditd_away(void **state) {
        World *w = *state;
        size_t n = 0;

        n_refused = 0;
        w->auditd.on_append = refuse_twice;
        w->auditd.userdata = w;
        w->auditd_patience_usec = 6000000;
        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_good;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "ok", "");
        assert_true(has(w->calls, "audit-waits"));
        for (const char *at = w->auditd.records; (at = strstr(at, "\"state\":\"started\"")); at++)
                n++;
        assert_int_equal(n, 1);
        assert_true(has(w->auditd.records, "\"kind\":\"booted\""));
        assert_true(has(w->auditd.records, "\"state\":\"finished\""));
        assert_true(has(w->auditd.records, "\"event\":\"run.verdict\",\"key\":\"" RUN "-3\""));
}

/* What a guest did wrong is on record although auditd was away just then, and before the verdict that it led to. */
static void test_error_while_auditd_is_away(void **state) {
        World *w = *state;
        const char *error, *verdict;

        n_refused = 0;
        w->auditd.on_append = refuse_twice;
        w->auditd.userdata = w;
        w->auditd_patience_usec = 6000000;
        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_garbage;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "error", "channel-error");
        error = strstr(w->auditd.records, "\"event\":\"channel.error\"");
        verdict = strstr(w->auditd.records, "\"event\":\"run.verdict\"");
        assert_true(error && verdict && error < verdict);
}

/* anchord restarts: what it did not take comes again, once, in order. */
static void test_anchord_away(void **state) {
        World *w = *state;

        w->n_refused = 2;
        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_good;
        assert_int_equal(drive(w), 0);
        assert_finish(w, "ok", "");
        assert_int_equal(w->refused_seq, 2);
        assert_true(has(w->calls, "\"seq\":2}"));
}

/* anchord stores the result for longer than patience goes, and says so: nobody gives up. Where it says nothing of the kind, somebody does. */
static void test_storing(void **state) {
        World *w = *state;

        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_good;
        w->anchord_patience_usec = 300 * 1000;
        w->finish_refused = "Storing";
        w->n_finish_refused = 5; /* a quarter of a second each */
        assert_int_equal(drive(w), 0);
        assert_finish(w, "ok", "");
        assert_int_equal(w->n_finish_refused, 0);
}

static void test_not_storing(void **state) {
        World *w = *state;

        w->spec = parse(HEAD(LIMITS) EXEC);
        w->exec = exec_good;
        w->anchord_patience_usec = 300 * 1000;
        w->finish_refused = "Unavailable";
        w->n_finish_refused = 5;
        assert_int_equal(drive(w), 1);
        assert_null(w->finish);
        assert_true(w->n_finish_refused > 0);
}

static void test_no_run(void **state) {
        World *w = *state;

        w->spec_error = "NoSuchRun";
        assert_int_equal(drive(w), 1);
        assert_null(w->finish);
        assert_null(w->commands);
}

static void test_wrong_spec(void **state) {
        World *w = *state;

        w->spec = parse("{\"run\":\"" RUN "\"}");
        assert_int_equal(drive(w), 0);
        assert_finish(w, "error", "the run's spec is wrong: ");
}

static void test_wrong_credential(void **state) {
        const RunConfig config = { .id = RUN, .channel = CHANNEL_SOCKET, .qmp = QMP_SOCKET, .api = API_SOCKET, .credentials = "/run/credentials" };
        World *w = *state;

        assert_int_equal(io_write_file_atomic(AT_FDCWD, "/run/credentials/guest", "[1]", 3, 0600), 0);
        assert_true(run_new(&w->run, w->event, &config) < 0);
        assert_int_equal(unlink("/run/credentials/guest"), 0);
        assert_null(w->run);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_exec, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_exec_fails, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_exec_missing, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_exec_killed, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_fix, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_sha256_repository, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_sha1_repository, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_bundle_limit, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_commit, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_clone, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_seed, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_sentinel, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_garbage, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_gone, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_guest_error, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_step_unrecorded, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_verdict_unrecorded, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_auditd_away, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_error_while_auditd_is_away, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_anchord_away, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_storing, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_not_storing, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_run, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_wrong_spec, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_wrong_credential, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
