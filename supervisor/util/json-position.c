/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "util/json-position.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/text.h"

enum { DEPTH_MAX = 4096 }; /* jansson's own is 2048 */

typedef struct Scanner {
        const char *p, *end;
        unsigned line;
} Scanner;

/* The next byte, -1 at the end. */
static int peek(const Scanner *s) {
        return s->p < s->end ? (unsigned char) *s->p : -1;
}

static void skip_space(Scanner *s) {
        for (; s->p < s->end && strchr(" \t\r\n", *s->p) && *s->p != '\0'; s->p++)
                s->line += *s->p == '\n';
}

static bool take(Scanner *s, char c) {
        if (peek(s) != c)
                return false;
        s->p++;
        return true;
}

static bool skip_string(Scanner *s) {
        if (!take(s, '"'))
                return false;

        while (s->p < s->end) {
                char c = *s->p++;

                if (c == '"')
                        return true;
                if (c == '\\' && s->p < s->end)
                        s->p++;
                else if (c == '\n')
                        s->line++; /* not JSON, but a line */
        }
        return false;
}

/* A whole value. Brackets are counted and not matched: the parser has done that. */
static bool skip_value(Scanner *s) {
        unsigned depth = 0;

        skip_space(s);
        do {
                int c = peek(s);

                switch (c) {
                case -1:
                        return false;
                case '"':
                        if (!skip_string(s))
                                return false;
                        break;
                case '{':
                case '[':
                        if (++depth > DEPTH_MAX)
                                return false;
                        s->p++;
                        break;
                case '}':
                case ']':
                        if (depth == 0)
                                return false;
                        depth--;
                        s->p++;
                        break;
                default:
                        if (depth > 0 && (c == ',' || c == ':')) {
                                s->p++;
                        } else {
                                const char *begin = s->p;

                                while (s->p < s->end && (isalnum((unsigned char) *s->p) || strchr("+-.", *s->p)) && *s->p != '\0')
                                        s->p++;
                                if (s->p == begin)
                                        return false;
                        }
                }
                if (depth > 0)
                        skip_space(s);
        } while (depth > 0);

        return true;
}

/* ---- keys ---- */

static int hex4(const char *p, const char *end) {
        int v = 0;

        if (end - p < 4)
                return -1;
        for (int i = 0; i < 4; i++) {
                int digit = text_hex_digit(p[i]);

                if (digit < 0)
                        return -1;
                v = v * 16 + digit;
        }
        return v;
}

static size_t put_utf8(unsigned v, char out[static 4]) {
        if (v < 0x80) {
                out[0] = (char) v;
                return 1;
        }
        if (v < 0x800) {
                out[0] = (char) (0xc0 | v >> 6);
                out[1] = (char) (0x80 | (v & 0x3f));
                return 2;
        }
        if (v < 0x10000) {
                out[0] = (char) (0xe0 | v >> 12);
                out[1] = (char) (0x80 | (v >> 6 & 0x3f));
                out[2] = (char) (0x80 | (v & 0x3f));
                return 3;
        }
        out[0] = (char) (0xf0 | v >> 18);
        out[1] = (char) (0x80 | (v >> 12 & 0x3f));
        out[2] = (char) (0x80 | (v >> 6 & 0x3f));
        out[3] = (char) (0x80 | (v & 0x3f));
        return 4;
}

/* The next character of a string's inside, decoded; 0 if it is malformed. */
static size_t next_character(const char **p, const char *end, char out[static 4]) {
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        const char *known;
        int v, low;

        if (**p != '\\') {
                out[0] = *(*p)++;
                return 1;
        }
        if (end - *p < 2)
                return 0;
        if ((*p)[1] != 'u') {
                known = (*p)[1] != '\0' ? strchr(from, (*p)[1]) : NULL;
                if (!known)
                        return 0;
                out[0] = to[known - from];
                *p += 2;
                return 1;
        }

        v = hex4(*p + 2, end);
        if (v < 0)
                return 0;
        *p += 6;
        if (v >= 0xd800 && v < 0xdc00) {
                if (end - *p < 6 || (*p)[0] != '\\' || (*p)[1] != 'u')
                        return 0;
                low = hex4(*p + 2, end);
                if (low < 0xdc00 || low > 0xdfff)
                        return 0;
                *p += 6;
                v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
        }
        return put_utf8((unsigned) v, out);
}

/* Does the string (its inside) say the same as a pointer's token, in which "~1" is "/" and "~0" is "~"? */
static bool key_is(const char *p, const char *end, const char *token, size_t n) {
        while (p < end) {
                char c[4];
                size_t m;

                m = next_character(&p, end, c);
                if (m == 0)
                        return false;
                for (size_t i = 0; i < m; i++) {
                        char want;

                        if (n == 0)
                                return false;
                        want = *token++;
                        n--;
                        if (want == '~' && n > 0) {
                                want = *token++ == '1' ? '/' : '~';
                                n--;
                        }
                        if (c[i] != want)
                                return false;
                }
        }
        return n == 0;
}

/* ---- walking ---- */

/* Stands before an object; goes to the value of a member. 0: it has none such, and the scanner is somewhere behind. */
static int enter_member(Scanner *s, const char *token, size_t n) {
        if (!take(s, '{'))
                return -EINVAL;

        skip_space(s);
        if (take(s, '}'))
                return 0;
        for (;;) {
                const char *key;

                skip_space(s);
                key = s->p + 1;
                if (!skip_string(s))
                        return -EINVAL;
                if (key_is(key, s->p - 1, token, n)) {
                        skip_space(s);
                        if (!take(s, ':'))
                                return -EINVAL;
                        skip_space(s);
                        return 1;
                }
                skip_space(s);
                if (!take(s, ':') || !skip_value(s))
                        return -EINVAL;
                skip_space(s);
                if (!take(s, ','))
                        return take(s, '}') ? 0 : -EINVAL;
        }
}

/* The same for an array. */
static int enter_element(Scanner *s, const char *token, size_t n) {
        size_t index = 0;

        if (n == 0 || n > 9)
                return 0;
        for (size_t i = 0; i < n; i++) {
                if (!isdigit((unsigned char) token[i]))
                        return 0;
                index = index * 10 + (size_t) (token[i] - '0');
        }

        if (!take(s, '['))
                return -EINVAL;
        for (;;) {
                skip_space(s);
                if (peek(s) == ']')
                        return 0;
                if (index-- == 0)
                        return 1;
                if (!skip_value(s))
                        return -EINVAL;
                skip_space(s);
                if (!take(s, ','))
                        return 0;
        }
}

/* Goes into the value that the next token of a pointer names, and past that token. 0: there is none. */
static int enter(Scanner *s, const char **pointer) {
        size_t n = strcspn(*pointer + 1, "/");
        int r = 0;

        if (peek(s) == '{')
                r = enter_member(s, *pointer + 1, n);
        else if (peek(s) == '[')
                r = enter_element(s, *pointer + 1, n);
        if (r > 0)
                *pointer += n + 1;
        return r;
}

int json_range(const char *data, size_t size, const char *pointer, size_t *ret_begin, size_t *ret_end) {
        Scanner s = { data, data + size, 1 };
        const char *begin;

        if (*pointer != '/' && *pointer != '\0')
                return -EINVAL;

        skip_space(&s);
        while (*pointer == '/') {
                int r = enter(&s, &pointer);

                if (r <= 0)
                        return r;
        }

        begin = s.p;
        if (!skip_value(&s))
                return -EINVAL;
        *ret_begin = (size_t) (begin - data);
        *ret_end = (size_t) (s.p - data);
        return 1;
}

int json_position(const char *data, size_t size, const char *pointer, unsigned *ret_line) {
        Scanner s = { data, data + size, 1 };
        unsigned line;

        if (*pointer != '/' && *pointer != '\0')
                return -EINVAL;

        skip_space(&s);
        line = s.line;
        while (*pointer == '/') {
                int r = enter(&s, &pointer);

                if (r < 0)
                        return r;
                if (r == 0)
                        break;
                line = s.line;
        }

        *ret_line = line;
        return 0;
}

int json_element_lines(const char *data, size_t size, const char *key, uint32_t **ret_lines, size_t *ret_n) {
        Scanner s = { data, data + size, 1 };
        _cleanup_free_ uint32_t *lines = NULL;
        size_t n = 0, allocated = 0;
        int r;

        skip_space(&s);
        r = enter_member(&s, key, strlen(key));
        if (r < 0)
                return r;

        for (bool more = r > 0 && take(&s, '['); more; more = take(&s, ',')) {
                skip_space(&s);
                if (peek(&s) == ']')
                        break;
                if (n == allocated) {
                        uint32_t *grown = reallocarray(lines, allocated = allocated * 2 ?: 16, sizeof(*lines));

                        if (!grown)
                                return -ENOMEM;
                        lines = grown;
                }
                lines[n++] = s.line;
                if (!skip_value(&s))
                        return -EINVAL;
                skip_space(&s);
        }

        *ret_lines = TAKE_PTR(lines);
        *ret_n = n;
        return 0;
}
