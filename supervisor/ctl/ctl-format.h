/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Numbers as people read them. */

#include <stddef.h>
#include <stdint.h>

#include "util/text.h"

#define CTL_TEXT_SIZE TEXT_SIZE_SIZE

static inline const char *format_size(uint64_t bytes, char buffer[static CTL_TEXT_SIZE]) {
        return text_size(bytes, buffer);
}
/* Microseconds: "350ms", "4.2s", "3min 20s", "1h 5min", "2d 3h". */
const char *format_duration(uint64_t usec, char buffer[static CTL_TEXT_SIZE]);
/* Micro-dollars: "$0.0042", "$1.20". */
const char *format_cost(int64_t microusd, char buffer[static CTL_TEXT_SIZE]);
/* "12,345" */
const char *format_count(int64_t n, char buffer[static CTL_TEXT_SIZE]);
/* "5min 3s ago" of a time in RFC 3339, relative to now_usec; "-" for NULL or what is no time. */
const char *format_ago(const char *time, uint64_t now_usec, char buffer[static CTL_TEXT_SIZE]);

/* RFC 3339 in UTC, as the daemons write it. Microseconds since the epoch, or -EINVAL. */
int parse_time(const char *time, uint64_t *ret_usec);
