/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Runs the tools that change this host's deployments. For the command line: it waits. */

#include <stddef.h>

/* Called about once a second while a tool works; may be NULL. */
typedef struct HostWaiting {
        void (*handler)(void *userdata);
        void *userdata;
} HostWaiting;

/* Runs argv[0], found on the path, with its standard input empty, and waits. Its standard output is *ret_out (the caller's; its size
 * in ret_size, may be NULL), at most 4 MiB, or goes to our standard error if ret_out is NULL. The exit status, 128 + signal, or
 * negative errno (-ENOENT: no such program). */
int command_run(const char *const argv[], const HostWaiting *waiting, char **ret_out, size_t *ret_size);
