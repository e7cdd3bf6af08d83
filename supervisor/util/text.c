/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "util/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "util/cleanup.h"

enum { NAME_LENGTH_MAX = 63 };

static bool is_digit(char c) {
        return c >= '0' && c <= '9';
}

static bool is_lower(char c) {
        return c >= 'a' && c <= 'z';
}

int text_make_id(char kind, char ret[static ID_LENGTH + 1]) {
        static const char alphabet[36] = "0123456789abcdefghijklmnopqrstuvwxyz";
        char id[ID_LENGTH + 1] = { kind };
        size_t n = 1;

        while (n < ID_LENGTH) {
                uint8_t random[16];

                if (getrandom(random, sizeof(random), 0) != sizeof(random))
                        return -EIO;

                /* 252 is the largest multiple of 36 in a byte: what is above would favour some letters */
                for (size_t i = 0; i < sizeof(random) && n < ID_LENGTH; i++)
                        if (random[i] < 252)
                                id[n++] = alphabet[random[i] % 36];
        }

        memcpy(ret, id, sizeof(id));
        return 0;
}

bool text_is_id(char kind, const char *s) {
        if (!s || s[0] != kind)
                return false;

        for (size_t i = 1; i < ID_LENGTH; i++)
                if (!is_digit(s[i]) && !is_lower(s[i]))
                        return false;

        return s[ID_LENGTH] == '\0';
}

bool text_is_name(const char *s) {
        size_t i;

        if (!s || !is_lower(s[0]))
                return false;

        for (i = 1; s[i]; i++)
                if (i >= NAME_LENGTH_MAX || (!is_digit(s[i]) && !is_lower(s[i]) && s[i] != '-'))
                        return false;

        return true;
}

int text_lower_hex_digit(char c) {
        if (is_digit(c))
                return c - '0';
        if (c >= 'a' && c <= 'f')
                return c - 'a' + 10;
        return -1;
}

int text_hex_digit(char c) {
        return text_lower_hex_digit(c >= 'A' && c <= 'F' ? (char) (c - 'A' + 'a') : c);
}

bool text_is_commit(const char *s) {
        size_t n = 0;

        if (!s)
                return false;
        while (n <= 64 && text_lower_hex_digit(s[n]) >= 0)
                n++;

        return s[n] == '\0' && (n == 40 || n == 64);
}

void text_hex(const void *data, size_t size, char *ret) {
        static const char digits[] = "0123456789abcdef";
        const uint8_t *p = data;

        for (size_t i = 0; i < size; i++) {
                ret[2 * i] = digits[p[i] >> 4];
                ret[2 * i + 1] = digits[p[i] & 15];
        }
        ret[2 * size] = '\0';
}

int text_unhex(const char *s, void *ret, size_t size) {
        uint8_t *p = ret;

        if (!s || strnlen(s, 2 * size + 1) != 2 * size)
                return -EINVAL;
        for (size_t i = 0; i < 2 * size; i++)
                if (text_lower_hex_digit(s[i]) < 0)
                        return -EINVAL;

        for (size_t i = 0; i < size; i++)
                p[i] = (uint8_t) (text_lower_hex_digit(s[2 * i]) << 4 | text_lower_hex_digit(s[2 * i + 1]));

        return 0;
}

void text_time(uint64_t usec, char ret[static TIME_TEXT_SIZE]) {
        static const uint64_t last = 253402300799999999ULL; /* the end of the year 9999 */
        time_t seconds;
        struct tm tm = {};
        size_t n;

        if (usec > last)
                usec = last;
        seconds = (time_t) (usec / 1000000);

        (void) gmtime_r(&seconds, &tm); /* within these years it cannot fail */
        n = strftime(ret, TIME_TEXT_SIZE, "%Y-%m-%dT%H:%M:%S", &tm);
        (void) snprintf(ret + n, TIME_TEXT_SIZE - n, ".%03uZ", (unsigned) (usec / 1000 % 1000));
}

static uint64_t time_now(clockid_t clock) {
        struct timespec ts = {};

        (void) clock_gettime(clock, &ts);
        return (uint64_t) ts.tv_sec * 1000000 + (uint64_t) ts.tv_nsec / 1000;
}

uint64_t time_realtime(void) {
        return time_now(CLOCK_REALTIME);
}

uint64_t time_boottime(void) {
        return time_now(CLOCK_BOOTTIME);
}

uint64_t time_monotonic(void) {
        return time_now(CLOCK_MONOTONIC);
}

size_t text_utf8_decode(const uint8_t *p, size_t size, uint32_t *ret) {
        static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
        size_t length;
        uint32_t c;

        if (p[0] < 0x80) {
                *ret = p[0];
                return 1;
        }

        if ((p[0] & 0xe0) == 0xc0)
                length = 2, c = p[0] & 0x1f;
        else if ((p[0] & 0xf0) == 0xe0)
                length = 3, c = p[0] & 0x0f;
        else if ((p[0] & 0xf8) == 0xf0)
                length = 4, c = p[0] & 0x07;
        else
                return 0;

        if (size < length)
                return 0;
        for (size_t i = 1; i < length; i++) {
                if ((p[i] & 0xc0) != 0x80)
                        return 0;
                c = c << 6 | (p[i] & 0x3f);
        }
        if (c < least[length] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
                return 0;

        *ret = c;
        return length;
}

/* Code points that reorder or break the line around them: C1, directional marks, embeddings, overrides and
 * isolates, line and paragraph separators; and noncharacters, which some readers take for an error. */
static bool is_deceptive(uint32_t c) {
        return (c >= 0x80 && c <= 0x9f) || c == 0x061c || c == 0x200e || c == 0x200f ||
               (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) ||
               (c >= 0xfdd0 && c <= 0xfdef) || (c & 0xfffe) == 0xfffe;
}

char *text_escape(const char *data, size_t size, bool keep_lines) {
        enum { LONGEST = sizeof("\\u{10FFFF}") };
        const uint8_t *p = (const uint8_t *) data;
        _cleanup_free_ char *out = NULL;
        char *o;

        /* Nothing grows by more than four: \xNN for a byte, \u{NNNN} for at least two. */
        if (size > (SIZE_MAX - LONGEST) / 4)
                return NULL;
        out = o = malloc(4 * size + LONGEST);
        if (!out)
                return NULL;

        for (size_t i = 0; i < size;) {
                uint32_t c = 0;
                size_t length = text_utf8_decode(p + i, size - i, &c);
                bool kept = keep_lines && (p[i] == '\n' || p[i] == '\t');

                if (length == 0 || (!kept && (c < 0x20 || c == 0x7f))) {
                        o += sprintf(o, "\\x%02x", p[i]);
                        i++;
                } else if (is_deceptive(c)) {
                        o += sprintf(o, "\\u{%04x}", c);
                        i += length;
                } else {
                        memcpy(o, p + i, length);
                        o += length;
                        i += length;
                }
        }

        *o = '\0';
        return TAKE_PTR(out);
}

void text_fit(const char *text, char *to, size_t room) {
        _cleanup_free_ char *safe = text_escape(text, strlen(text), false);
        size_t n = safe ? strlen(safe) : 0;

        if (n > room - 1) {
                n = room - 1;
                while (n > 0 && ((unsigned char) safe[n] & 0xc0) == 0x80)
                        n--;
        }
        if (n > 0)
                memcpy(to, safe, n);
        to[n] = 0;
}

const char *text_size(uint64_t bytes, char buffer[static TEXT_SIZE_SIZE]) {
        static const char units[] = "BKMGTPE";
        double v = (double) bytes;
        size_t i = 0;

        while (v >= 1024 && i < sizeof(units) - 2) {
                v /= 1024;
                i++;
        }

        if (i == 0 || v >= 100 || v == (double) (uint64_t) v)
                (void) snprintf(buffer, TEXT_SIZE_SIZE, "%.0f%c", v, units[i]);
        else
                (void) snprintf(buffer, TEXT_SIZE_SIZE, "%.1f%c", v, units[i]);
        return buffer;
}

char *text_format(const char *format, ...) {
        va_list ap;
        char *s;
        int n;

        va_start(ap, format);
        n = vasprintf(&s, format, ap);
        va_end(ap);

        return n < 0 ? NULL : s;
}
