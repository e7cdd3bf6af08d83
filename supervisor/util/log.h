/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Diagnostics on stderr, one line each, with the <N> prefix that journald reads as the priority
 * (sd-daemon(3)). No socket is needed for it. A program on a terminal gets no prefix.
 */

#include <syslog.h>

/* Name shown before each line when on a terminal; max is the least urgent level that is printed
 * (LOG_INFO by default, LOG_DEBUG with ANCHORHOLD_LOG_LEVEL=debug). */
void log_init(const char *program);

void log_line(int level, const char *format, ...) __attribute__((__format__(__printf__, 2, 3)));

/* Logs with ": strerror(error)" at the end and returns the error, for `return log_error(r, …)`. */
int log_line_errno(int level, int error, const char *format, ...) __attribute__((__format__(__printf__, 3, 4)));

#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_notice(...) log_line(LOG_NOTICE, __VA_ARGS__)
#define log_warning(...) log_line(LOG_WARNING, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERR, __VA_ARGS__)
#define log_warning_errno(error, ...) log_line_errno(LOG_WARNING, error, __VA_ARGS__)
#define log_error_errno(error, ...) log_line_errno(LOG_ERR, error, __VA_ARGS__)
#define log_oom() log_line_errno(LOG_ERR, -ENOMEM, "out of memory")
