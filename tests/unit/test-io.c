/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cmocka.h>

#include "util/cleanup.h"
#include "util/io.h"

static void test_read_and_bound(void **state) {
        _cleanup_fd_ int fd = io_memfd("test", "hello", 5);
        _cleanup_free_ char *data = NULL;
        size_t size;

        assert_true(fd >= 0);
        assert_int_equal(io_read_fd(fd, 5, &data, &size), 0);
        assert_int_equal(size, 5);
        assert_string_equal(data, "hello");

        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        data = (free(data), NULL);
        assert_int_equal(io_read_fd(fd, 4, &data, &size), -EFBIG);
        assert_null(data);
}

static void test_read_pipe_grows(void **state) {
        enum { SIZE = 200000 };
        _cleanup_free_ char *in = calloc(1, SIZE), *out = NULL;
        _cleanup_fd_ int fd = -1;
        size_t size;

        memset(in, 'x', SIZE);
        in[SIZE - 1] = 'y';
        fd = io_memfd("test", in, SIZE);
        /* a socket has no size to guess from */
        int pair[2];
        assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0) {
                (void) close(pair[0]);
                _exit(io_copy(fd, pair[1], SIZE, NULL) < 0);
        }
        (void) close(pair[1]);
        assert_int_equal(io_read_fd(pair[0], SIZE, &out, &size), 0);
        (void) close(pair[0]);
        assert_int_equal(size, SIZE);
        assert_memory_equal(in, out, SIZE);
}

static void test_copy_bound(void **state) {
        _cleanup_fd_ int from = io_memfd("from", "0123456789", 10), to = io_memfd("to", "", 0);
        uint64_t size = 0;

        assert_int_equal(io_copy(from, to, 9, NULL), -EFBIG);
        assert_int_equal(lseek(from, 0, SEEK_SET), 0);
        assert_int_equal(ftruncate(to, 0), 0);
        assert_int_equal(io_copy(from, to, 10, &size), 0);
        assert_int_equal(size, 10);
}

static void test_write_atomic(void **state) {
        char template[] = "/tmp/test-io-XXXXXX";
        _cleanup_fd_ int dir = -1;
        _cleanup_free_ char *data = NULL;
        struct stat st;
        size_t size;

        assert_non_null(mkdtemp(template));
        dir = open(template, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(io_write_file_atomic(dir, "a", "one", 3, 0640), 0);
        assert_int_equal(io_write_file_atomic(dir, "a", "second", 6, 0600), 0);
        assert_int_equal(io_read_file(dir, "a", 100, &data, &size), 0);
        assert_string_equal(data, "second");
        assert_int_equal(fstatat(dir, "a", &st, 0), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        assert_int_equal(io_write_file_atomic(dir, "none/a", "x", 1, 0600), -ENOENT);
        assert_int_equal(io_write_file_atomic(dir, "x/", "x", 1, 0600), -EISDIR);

        /* nothing but the file is left */
        assert_int_equal(unlinkat(dir, "a", 0), 0);
        assert_int_equal(rmdir(template), 0);
}

static void test_nonblock_and_connect(void **state) {
        int pair[2];
        char c;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        assert_int_equal(io_set_nonblock(pair[0], 1), 0);
        assert_int_equal(io_read_full(pair[0], &c, 1), -EAGAIN);
        assert_int_equal(io_set_nonblock(pair[0], 0), 0);
        assert_false(fcntl(pair[0], F_GETFL) & O_NONBLOCK);
        (void) close(pair[0]);
        (void) close(pair[1]);

        assert_int_equal(io_connect_unix("/tmp/no-such-socket-here"), -ENOENT);
        assert_int_equal(io_connect_unix(""), -ENAMETOOLONG);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_read_and_bound), cmocka_unit_test(test_read_pipe_grows),
                cmocka_unit_test(test_copy_bound),     cmocka_unit_test(test_write_atomic),
                cmocka_unit_test(test_nonblock_and_connect),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
