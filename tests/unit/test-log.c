/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "util/cleanup.h"
#include "util/io.h"
#include "util/log.h"

/* Runs with stderr in a memory file, with or without $JOURNAL_STREAM naming it, and returns what was written. */
static char *capture(bool journal, void (*body)(void)) {
        _cleanup_fd_ int fd = io_memfd("stderr", "", 0), saved = dup(STDERR_FILENO);
        char stream[64], *data = NULL;
        struct stat st;

        assert_int_equal(fstat(fd, &st), 0);
        (void) snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long) st.st_dev,
                        (unsigned long long) st.st_ino + !journal);
        assert_int_equal(setenv("JOURNAL_STREAM", stream, 1), 0);

        assert_true(dup2(fd, STDERR_FILENO) >= 0);
        log_init("prog");
        body();
        assert_true(dup2(saved, STDERR_FILENO) >= 0);

        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        assert_int_equal(io_read_fd(fd, 65536, &data, NULL), 0);
        return data;
}

static void body_plain(void) {
        log_info("one %d", 1);
        log_debug("unseen");
        errno = EPERM;
        assert_int_equal(log_error_errno(-ENOENT, "two\nlines\x1b"), -ENOENT);
        assert_int_equal(errno, EPERM);
}

static void body_long(void) {
        static char text[10000];

        memset(text, 'x', sizeof(text) - 1);
        log_warning("%s", text);
}

static void test_terminal_form(void **state) {
        _cleanup_free_ char *out = capture(false, body_plain);

        assert_string_equal(out, "prog: one 1\nprog: two lines?: No such file or directory\n");
}

static void test_journal_form(void **state) {
        _cleanup_free_ char *out = capture(true, body_plain);

        assert_string_equal(out, "<6>one 1\n<3>two lines?: No such file or directory\n");
}

static void test_long_line(void **state) {
        _cleanup_free_ char *out = capture(true, body_long);

        assert_int_equal(strlen(out), 4096);
        assert_int_equal(out[4095], '\n');
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_terminal_form),
                cmocka_unit_test(test_journal_form),
                cmocka_unit_test(test_long_line),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
