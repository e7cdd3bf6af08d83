/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "ctl/ctl-format.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SECOND UINT64_C(1000000)

const char *format_duration(uint64_t usec, char buffer[static CTL_TEXT_SIZE]) {
        static const struct {
                uint64_t usec;
                const char *name;
        } units[] = {
                { 86400 * SECOND, "d" },
                { 3600 * SECOND, "h" },
                { 60 * SECOND, "min" },
                { SECOND, "s" },
        };

        if (usec < SECOND) {
                (void) snprintf(buffer, CTL_TEXT_SIZE, "%" PRIu64 "ms", usec / 1000);
                return buffer;
        }
        if (usec < 60 * SECOND) {
                (void) snprintf(buffer, CTL_TEXT_SIZE, "%" PRIu64 ".%" PRIu64 "s", usec / SECOND, usec % SECOND / (SECOND / 10));
                return buffer;
        }

        for (size_t i = 0; i < sizeof(units) / sizeof(units[0]) - 1; i++) {
                uint64_t rest;

                if (usec < units[i].usec)
                        continue;
                rest = usec % units[i].usec / units[i + 1].usec;
                if (rest > 0)
                        (void) snprintf(buffer, CTL_TEXT_SIZE, "%" PRIu64 "%s %" PRIu64 "%s",
                                        usec / units[i].usec, units[i].name, rest, units[i + 1].name);
                else
                        (void) snprintf(buffer, CTL_TEXT_SIZE, "%" PRIu64 "%s", usec / units[i].usec, units[i].name);
                break;
        }

        return buffer;
}

const char *format_cost(int64_t microusd, char buffer[static CTL_TEXT_SIZE]) {
        double dollars = (double) microusd / 1e6;

        if (microusd != 0 && dollars < 1)
                (void) snprintf(buffer, CTL_TEXT_SIZE, "$%.4f", dollars);
        else
                (void) snprintf(buffer, CTL_TEXT_SIZE, "$%.2f", dollars);
        return buffer;
}

const char *format_count(int64_t n, char buffer[static CTL_TEXT_SIZE]) {
        char digits[CTL_TEXT_SIZE];
        size_t length, out = 0;

        length = (size_t) snprintf(digits, sizeof(digits), "%" PRId64, n);
        for (size_t i = 0; i < length && out < CTL_TEXT_SIZE - 2; i++) {
                if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-')
                        buffer[out++] = ',';
                buffer[out++] = digits[i];
        }
        buffer[out] = '\0';
        return buffer;
}

int parse_time(const char *time, uint64_t *ret_usec) {
        struct tm tm = {};
        unsigned milliseconds = 0;
        const char *rest;
        time_t seconds;

        rest = strptime(time, "%Y-%m-%dT%H:%M:%S", &tm);
        if (!rest)
                return -EINVAL;
        if (*rest == '.' && sscanf(rest, ".%3uZ", &milliseconds) != 1)
                return -EINVAL;

        seconds = timegm(&tm);
        if (seconds < 0)
                return -EINVAL;

        *ret_usec = (uint64_t) seconds * SECOND + milliseconds * 1000;
        return 0;
}

const char *format_ago(const char *time, uint64_t now_usec, char buffer[static CTL_TEXT_SIZE]) {
        char span[CTL_TEXT_SIZE];
        uint64_t usec;

        if (!time || parse_time(time, &usec) < 0)
                (void) snprintf(buffer, CTL_TEXT_SIZE, "-");
        else if (usec + SECOND > now_usec)
                (void) snprintf(buffer, CTL_TEXT_SIZE, "now");
        else
                /* whole seconds are enough for a table */
                (void) snprintf(buffer, CTL_TEXT_SIZE, "%.24s ago",
                                now_usec - usec < 60 * SECOND
                                        ? (snprintf(span, sizeof(span), "%" PRIu64 "s", (now_usec - usec) / SECOND), span)
                                        : format_duration(now_usec - usec, span));
        return buffer;
}
