/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* git on a repository that nobody trusts: empty configuration, no protocol, no hook, bounded in time,
 * memory and file size, and killed when it is over. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Gets what git writes to stdout. Negative kills git; git_run() returns it. */
typedef int (*GitOutput)(const char *data, size_t size, void *userdata);

typedef struct Git {
        const char *repository;  /* borrowed: --git-dir */
        uint64_t deadline_usec;  /* CLOCK_MONOTONIC; git is killed then, with -ETIMEDOUT */
        uint64_t memory_bytes, file_bytes, cpu_seconds;
        char error[256];         /* the last call's last words, one line, escaped */
} Git;

/*
 * Runs `git ARGS…`, at most 24 of them, NULL at the end. stdin_fd -1 is /dev/null and is otherwise read from where its offset
 * stands. Output goes to stdout_fd, or if that is -1 to `output` (NULL: thrown away). Returns the exit
 * status (0 to 255), or negative errno: -ETIMEDOUT, -ENOBUFS for a limit that was hit (a signal, or no memory), what `output`
 * returned, or our own trouble (-EIO: git could not be started).
 */
int git_run(Git *g, const char *const *args, int stdin_fd, int stdout_fd, GitOutput output, void *userdata);
