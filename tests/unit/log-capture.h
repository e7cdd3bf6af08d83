/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What a test's program logs, between log_begin() and log_end(). For cmocka's own thread; an assertion in between would not be seen. */

#include <sys/mman.h>
#include <unistd.h>

#include "util/io.h"

static int log_fd, saved_stderr;

static inline void log_begin(void) {
        log_fd = memfd_create("log", MFD_CLOEXEC);
        saved_stderr = dup(STDERR_FILENO);
        assert_true(log_fd >= 0 && saved_stderr >= 0 && dup2(log_fd, STDERR_FILENO) >= 0);
}

/* The caller's to free. */
static inline char *log_end(void) {
        char *text = NULL;

        assert_true(dup2(saved_stderr, STDERR_FILENO) >= 0);
        (void) close(saved_stderr);
        assert_int_equal(lseek(log_fd, 0, SEEK_SET), 0);
        assert_int_equal(io_read_fd(log_fd, 65536, &text, NULL), 0);
        (void) close(log_fd);
        return text;
}
