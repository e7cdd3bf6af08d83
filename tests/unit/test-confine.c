/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a process that confined itself can still do to files: each attempt is made in a child, before and after. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "util/confine.h"

enum { LARGEST = 64 * 1024 };

static char folder[32];
static const char *const writable[] = { "/dev/null", "/dev/there-is-no-such", NULL };

static int opened(int fd) {
        int r = fd < 0 ? errno : 0;

        if (fd >= 0)
                (void) close(fd);
        return r;
}

/* ---- attempts: 0, or what the kernel said ---- */

static int make_unnamed(int fd) {
        return opened(open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
}

static int make_named(int fd) {
        char path[64];

        (void) snprintf(path, sizeof(path), "%s/made", folder);
        return opened(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}

static int make_folder(int fd) {
        char path[64];

        (void) snprintf(path, sizeof(path), "%s/folder", folder);
        return mkdir(path, 0700) < 0 ? errno : 0;
}

static int open_other(int fd) {
        char path[64];

        (void) snprintf(path, sizeof(path), "%s/there", folder);
        return opened(open(path, O_WRONLY | O_CLOEXEC));
}

static int open_same(int fd) {
        char path[64];

        (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        return opened(open(path, O_WRONLY | O_CLOEXEC));
}

static int read_other(int fd) {
        char path[64];

        (void) snprintf(path, sizeof(path), "%s/there", folder);
        return opened(open(path, O_RDONLY | O_CLOEXEC));
}

static int open_null(int fd) {
        return opened(open("/dev/null", O_RDWR | O_CLOEXEC));
}

static int write_within(int fd) {
        char data[1024] = { 1 };

        for (off_t at = 0; at < LARGEST; at += (off_t) sizeof(data))
                if (pwrite(fd, data, sizeof(data), at) != (ssize_t) sizeof(data))
                        return errno;
        return 0;
}

static int punch(int fd) {
        return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, LARGEST) < 0 ? errno : 0;
}

static int write_beyond(int fd) {
        return pwrite(fd, "x", 1, LARGEST) < 0 ? errno : 0;
}

static int grow(int fd) {
        return ftruncate(fd, LARGEST + 1) < 0 ? errno : 0;
}

static int grow_memory(int fd) {
        int memory = memfd_create("x", MFD_CLOEXEC), r = ftruncate(memory, LARGEST + 1) < 0 ? errno : 0;

        (void) close(memory);
        return r;
}

static int small_memory(int fd) {
        int memory = memfd_create("x", MFD_CLOEXEC), r = ftruncate(memory, LARGEST) < 0 ? errno : 0;

        (void) close(memory);
        return r;
}

/* ---- */

static int in_child(int (*what)(int fd), bool confined) {
        int status, fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        pid_t pid;

        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, LARGEST), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                (void) signal(SIGXFSZ, SIG_IGN);
                if (confined && confine_files(LARGEST, writable) != 0)
                        _exit(255);
                _exit(what(fd));
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        (void) close(fd);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static int setup(void **state) {
        char path[64];
        int fd;

        strcpy(folder, "/tmp/test-confine-XXXXXX");
        assert_non_null(mkdtemp(folder));
        (void) snprintf(path, sizeof(path), "%s/there", folder);
        fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        return close(fd);
}

static int teardown(void **state) {
        static const char *const names[] = { "there", "made", "folder" };

        for (size_t i = 0; i < 3; i++) {
                char path[64];

                (void) snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
                (void) remove(path);
        }
        return rmdir(folder);
}

static void test_confined(void **state) {
        static const struct { const char *name; int (*what)(int fd); int r; } attempts[] = {
                { "make_unnamed", make_unnamed, EACCES }, { "make_named", make_named, EACCES },     { "make_folder", make_folder, EACCES },
                { "open_other", open_other, EACCES },     { "open_same", open_same, EACCES },       { "write_beyond", write_beyond, EFBIG },
                { "grow", grow, EFBIG },                  { "grow_memory", grow_memory, EFBIG },    { "read_other", read_other, 0 },
                { "open_null", open_null, 0 },            { "write_within", write_within, 0 },      { "punch", punch, 0 },
                { "small_memory", small_memory, 0 },
        };

        for (size_t i = 0; i < sizeof(attempts) / sizeof(attempts[0]); i++) {
                int before, after;

                /* first, so that what it is not to make is not there */
                after = in_child(attempts[i].what, true);
                before = in_child(attempts[i].what, false);
                if (before != 0 || after != attempts[i].r)
                        fail_msg("%s: %s, confined: %s", attempts[i].name, strerror(before), after == 255 ? "it could not" : strerror(after));
        }
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(test_confined, setup, teardown) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
