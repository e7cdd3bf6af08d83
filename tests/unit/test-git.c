/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* git as the import runs it: without configuration, bounded, and gone when it is over. */

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "import/git.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/text.h"

#define MIB (1024ULL * 1024)

static char top[] = "/tmp/test-git-XXXXXX";
static char home[256];

static int set_up(void **state) {
        _cleanup_free_ char *script = NULL;

        assert_non_null(mkdtemp(top));
        script = text_format("cd %s && git -c init.defaultBranch=main init -q base && cd base && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first", top);
        assert_int_equal(system(script), 0);
        /* what an alias leaves in its folder is left there */
        assert_non_null(getcwd(home, sizeof(home)));
        return chdir(top);
}

static int tear_down(void **state) {
        _cleanup_free_ char *command = text_format("rm -rf %s", top);

        return chdir(home) < 0 ? -1 : system(command);
}

static Git some_git(void) {
        static char repository[64];

        (void) snprintf(repository, sizeof(repository), "%s/base/.git", top);
        return (Git) { .repository = repository, .deadline_usec = time_monotonic() + 10000000, .memory_bytes = 1536 * MIB, .file_bytes = MIB, .cpu_seconds = 10 };
}

static int on_output(const char *data, size_t size, void *userdata) {
        char *text = userdata;

        (void) strncat(text, data, size);
        return 0;
}

static int on_output_refused(const char *data, size_t size, void *userdata) {
        return -ECANCELED;
}

static int run_alias(Git *g, const char *script, GitOutput output, void *userdata) {
        _cleanup_free_ char *alias = text_format("alias.x=!%s", script);

        return git_run(g, (const char *const[]) { "-c", alias, "x", NULL }, -1, -1, output, userdata);
}

/* What keeps git from starting is no answer of git's. */
static void test_git_not_begun(void **state) {
        Git g = some_git();
        const char *const args[] = { "rev-parse", "HEAD", NULL };
        int closed = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 100);

        assert_true(closed >= 0);
        assert_int_equal(close(closed), 0);
        assert_int_equal(git_run(&g, args, -1, closed, NULL, NULL), -EIO);
        assert_int_equal(git_run(&g, args, -1, -1, NULL, NULL), 0);
}

static void test_git_run(void **state) {
        const char *many[30];
        char text[4096] = {};
        Git g = some_git();

        assert_int_equal(git_run(&g, (const char *const[]) { "rev-parse", "HEAD", NULL }, -1, -1, on_output, text), 0);
        assert_int_equal(strlen(text), 41);
        assert_string_equal(g.error, "");

        assert_true(git_run(&g, (const char *const[]) { "cat-file", "-e", "nothing", NULL }, -1, -1, NULL, NULL) > 0);
        assert_non_null(strstr(g.error, "nothing"));
        assert_int_equal(run_alias(&g, "exit 7", NULL, NULL), 7);
        (void) run_alias(&g, "printf 'fatal: a\\nerror: b\\033[1m\\nfatal: c\\n' >&2; exit 1", NULL, NULL);
        assert_string_equal(g.error, "error: b\\x1b[1m");
        (void) run_alias(&g, "head -c 100000 /dev/zero | tr '\\0' x >&2; printf '\\nthe last\\n' >&2; exit 1", NULL, NULL);
        assert_string_equal(g.error, "the last");

        assert_int_equal(git_run(&g, (const char *const[]) { "rev-parse", "HEAD", NULL }, -1, -1, on_output_refused, NULL), -ECANCELED);
        for (size_t i = 0; i < ELEMENTSOF(many); i++)
                many[i] = i + 1 < ELEMENTSOF(many) ? "x" : NULL;
        assert_int_equal(git_run(&g, many, -1, -1, NULL, NULL), -E2BIG);
}

/* Nothing of the caller's environment gets in, and nothing of the host's configuration. */
static void test_git_environment(void **state) {
        char text[4096] = {};
        Git g = some_git();

        assert_int_equal(setenv("GIT_DIR", "/elsewhere", 1) | setenv("SECRET_TOKEN", "hunter2", 1), 0);
        assert_int_equal(run_alias(&g, "env", on_output, text), 0);
        assert_null(strstr(text, "hunter2"));
        assert_non_null(strstr(text, "HOME=/nonexistent"));
        assert_non_null(strstr(text, "GIT_ALLOW_PROTOCOL=\n"));
        assert_int_equal(unsetenv("GIT_DIR") | unsetenv("SECRET_TOKEN"), 0);
        assert_true(git_run(&g, (const char *const[]) { "ls-remote", top, NULL }, -1, -1, NULL, NULL) > 0); /* not even a folder is a remote */
}

static void test_git_limits(void **state) {
        uint64_t start = time_monotonic();
        _cleanup_free_ char *path = text_format("%s/pid", top), *script = text_format("echo $$ >%s/pid; sleep 60", top), *pid = NULL;
        Git g = some_git();
        size_t size;

        /* with whoever it started */
        g.deadline_usec = start + 300000;
        assert_int_equal(run_alias(&g, script, NULL, NULL), -ETIMEDOUT);
        assert_true(time_monotonic() - start < 2000000);
        assert_int_equal(io_read_file(AT_FDCWD, path, 100, &pid, &size), 0);
        for (unsigned i = 0; kill((pid_t) strtol(pid, NULL, 10), 0) == 0 && i < 100; i++)
                (void) usleep(10000); /* nobody here reaps it */

        /* one that closes its pipes and stays does not stay longer */
        g.deadline_usec = time_monotonic() + 300000;
        assert_int_equal(run_alias(&g, "exec >&- 2>&-; sleep 60", NULL, NULL), -ETIMEDOUT);
        g = some_git();
        g.file_bytes = 1000;
        assert_int_not_equal(run_alias(&g, "head -c 5000 /dev/zero >git-big", NULL, NULL), 0);
        g = some_git();
        assert_int_equal(run_alias(&g, "head -c 64000000 /dev/zero | tail -c 60000000 >/dev/null", NULL, NULL), 0);
        assert_int_equal(run_alias(&g, "echo fatal: Out of memory, calloc failed >&2; exit 128", NULL, NULL), -ENOBUFS);
        assert_int_equal(run_alias(&g, "echo fatal: bad tree >&2; exit 128", NULL, NULL), 128);
        g.memory_bytes = 32 * MIB;
        assert_int_not_equal(run_alias(&g, "head -c 64000000 /dev/zero | tail -c 60000000 >/dev/null", NULL, NULL), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_git_run),
                cmocka_unit_test(test_git_not_begun),
                cmocka_unit_test(test_git_environment),
                cmocka_unit_test(test_git_limits),
        };

        return cmocka_run_group_tests(tests, set_up, tear_down);
}
