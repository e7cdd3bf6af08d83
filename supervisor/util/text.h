/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Names, identifiers, numbers with units, time stamps, and text from strangers made safe to print. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
        ID_LENGTH = 13,      /* a letter and twelve of [0-9a-z] */
        TIME_TEXT_SIZE = 25, /* "2026-01-31T12:34:56.789Z" and the zero byte */
        HEX_SHA256_SIZE = 65,
        TEXT_SIZE_SIZE = 32,
};

/* A fresh random id: kind ('r' for runs, 'i' for items) and twelve of [0-9a-z]. Negative errno or 0. */
int text_make_id(char kind, char ret[static ID_LENGTH + 1]);

/* Is this exactly an id of that kind? NULL is none. */
bool text_is_id(char kind, const char *s);

/* Is this a policy object's name: [a-z][a-z0-9-]{0,62}? */
bool text_is_name(const char *s);

/* Is this a full object name of git: 40 or 64 lower-case hexadecimal digits? */
bool text_is_commit(const char *s);

/* What a hexadecimal digit stands for, -1 if it is none. */
int text_hex_digit(char c);
/* The same, but for capitals: names of objects and hashes are written in one way only. */
int text_lower_hex_digit(char c);

/* Lower-case hexadecimal; ret has room for 2 * size + 1. */
void text_hex(const void *data, size_t size, char *ret);
/* The reverse; -EINVAL unless s has exactly 2 * size digits. */
int text_unhex(const char *s, void *ret, size_t size);

/* CLOCK_REALTIME microseconds as RFC 3339 in UTC with milliseconds. */
void text_time(uint64_t usec, char ret[static TIME_TEXT_SIZE]);

/* 1536 → "1.5K", 7 → "7B". Returns buffer. */
const char *text_size(uint64_t bytes, char buffer[static TEXT_SIZE_SIZE]);

/* Now, in microseconds. */
uint64_t time_realtime(void);
uint64_t time_boottime(void);
uint64_t time_monotonic(void);

/* Length of the valid UTF-8 sequence at p, 0 if there is none (RFC 3629: no surrogates, shortest form). There is at least one byte. */
size_t text_utf8_decode(const uint8_t *p, size_t size, uint32_t *ret);

/* A copy in which every control character (C0, C1, DEL), every byte that is not valid UTF-8, every
 * noncharacter and every bidirectional override is written as \xNN or \u{NNNN}; newline and tab stay if keep_lines. The
 * result is the caller's; NULL when out of memory. */
char *text_escape(const char *data, size_t size, bool keep_lines);

/* The same into a buffer, as one line, cut between two characters if it does not fit: a text cut inside of one is no JSON. "" when out of memory. */
void text_fit(const char *text, char *to, size_t room);

/* printf into a fresh string, NULL when out of memory. */
char *text_format(const char *format, ...) __attribute__((__format__(__printf__, 1, 2)));
