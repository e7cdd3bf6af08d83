/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "util/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/io.h"

enum { LOG_LINE_BYTES = 4096 };

/* Diagnostics are the one thing that is the process's and not a context's. */
static struct {
        const char *program;
        int max_level;
        bool journal;
} log_state = { .program = NULL, .max_level = LOG_INFO };

/* Is stderr the stream that systemd connected to the journal (systemd.exec(5), $JOURNAL_STREAM)? */
static bool log_stderr_is_journal(void) {
        const char *stream = getenv("JOURNAL_STREAM");
        unsigned long long device, inode;
        struct stat st;

        return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
               fstat(STDERR_FILENO, &st) >= 0 && st.st_dev == device && st.st_ino == inode;
}

void log_init(const char *program) {
        const char *level = getenv("ANCHORHOLD_LOG_LEVEL");

        log_state.program = program;
        log_state.max_level = level && strcmp(level, "debug") == 0 ? LOG_DEBUG : LOG_INFO;
        log_state.journal = log_stderr_is_journal();
}

static void log_write(int level, const char *format, va_list ap, const char *suffix) {
        char line[LOG_LINE_BYTES];
        size_t start = 0, size;
        int saved = errno, n;

        if (log_state.journal)
                start = (size_t) snprintf(line, sizeof(line), "<%d>", level);
        else if (log_state.program)
                start = (size_t) snprintf(line, sizeof(line), "%s: ", log_state.program);

        n = vsnprintf(line + start, sizeof(line) - start, format, ap);
        size = n < 0 ? start : start + (size_t) n;
        if (suffix && size < sizeof(line))
                size += (size_t) snprintf(line + size, sizeof(line) - size, ": %s", suffix);
        if (size > sizeof(line) - 1)
                size = sizeof(line) - 1;

        /* A message is one line, whatever text from elsewhere went into it. */
        for (size_t i = start; i < size; i++)
                if ((unsigned char) line[i] < 0x20 || line[i] == 0x7f)
                        line[i] = line[i] == '\n' || line[i] == '\t' ? ' ' : '?';

        line[size++] = '\n';
        (void) io_write_full(STDERR_FILENO, line, size);
        errno = saved;
}

void log_line(int level, const char *format, ...) {
        va_list ap;

        if (level > log_state.max_level)
                return;

        va_start(ap, format);
        log_write(level, format, ap, NULL);
        va_end(ap);
}

int log_line_errno(int level, int error, const char *format, ...) {
        char buffer[128];
        va_list ap;

        error = error > 0 ? -error : error;
        if (level > log_state.max_level)
                return error;

        va_start(ap, format);
        log_write(level, format, ap, strerror_r(-error, buffer, sizeof(buffer)));
        va_end(ap);
        return error;
}
