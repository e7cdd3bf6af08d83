/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What the guest says on its console, and its clock: the time since the microVM began, which nobody sets. */

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "guest/guest.h"

uint64_t guest_now(void) {
        struct timespec ts;

        (void) clock_gettime(CLOCK_BOOTTIME, &ts);
        return (uint64_t) ts.tv_sec * 1000000 + (uint64_t) ts.tv_nsec / 1000;
}

void guest_log(const char *format, ...) {
        char line[512];
        va_list ap;
        int n;

        va_start(ap, format);
        n = vsnprintf(line, sizeof(line) - 1, format, ap);
        va_end(ap);
        if (n < 0)
                return;

        n = n < (int) sizeof(line) - 1 ? n : (int) sizeof(line) - 2;
        line[n] = '\n';
        (void) dprintf(STDERR_FILENO, "anchor-guest: %.*s", n + 1, line);
}
