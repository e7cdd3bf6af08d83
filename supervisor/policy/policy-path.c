/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Paths of requests, and patterns for them. Pure functions.
 *
 *   "/v1"        itself and what is below it: "/v1", "/v1/x", not "/v1x"
 *   "/v1/"       what is below it
 *   "/repos/" "*" "/issues"    "*" is any text within one segment, none included
 *   "/pkg/" "**" "/meta.json"  "**" is any text, slashes included; between two slashes also no segment: "/pkg/meta.json"
 *
 * A pattern with a wildcard covers whole paths, one without covers what begins with it. The query plays no part.
 * Both sides are compared percent-decoded, since "%c3%a9", "%C3%A9" and the bytes themselves are one path to an
 * origin; a wildcard's own character is written "%2A".
 *
 * What an origin may read in two ways (dot segments, "//", escapes of characters that need none or that separate
 * segments, a backslash, bytes that are no UTF-8, characters that are folded into one of a path's structure) is ambiguous: a permission never covers it, a denial always does. Parameters (";x" behind a segment's name)
 * are a part of the segment to most origins and nothing to some: a permission takes them as they are written, a denial covers them always.
 */

#include <ctype.h>
#include <limits.h>
#include <string.h>

#include "policy/policy-egress.h"
#include "util/text.h"

/* The byte that "%XX" at s stands for; -1 if it is no escape, or one of a character that a path never needs escaped or that
 * would change its structure. */
static int escaped_byte(const char *s, size_t left) {
        int high, low, v;

        high = left > 1 ? text_hex_digit(s[1]) : -1;
        low = left > 2 ? text_hex_digit(s[2]) : -1;
        if (high < 0 || low < 0)
                return -1;

        v = high * 16 + low;
        if (v < 0x80 && (isalnum(v) || v < ' ' || v == 0x7f || strchr("-._~/\\%", v)))
                return -1;
        return v;
}

/* The semicolon before a segment's parameters; what stands before an origin may have decoded it. */
static bool is_semicolon(const char *s, size_t left) {
        return *s == ';' || (left > 2 && s[0] == '%' && s[1] == '3' && (s[2] == 'b' || s[2] == 'B'));
}

/* Is what follows this slash an empty segment, or one of dots (also with parameters behind a semicolon, which some drop)? */
static bool segment_is_odd(const char *segment, size_t left) {
        size_t dots = 0;

        if (left == 0)
                return false;
        if (*segment == '/')
                return true;

        while (dots < left && segment[dots] == '.')
                dots++;
        return dots >= 1 && dots <= 2 && (dots >= left || segment[dots] == '/' || is_semicolon(segment + dots, left - dots));
}

/* What becomes one of "./\\%;?#" where an origin folds Unicode (NFC, NFKC) or converts to a code page by the nearest look; and C1 controls. */
static bool is_folded(uint32_t c) {
        static const struct {
                uint32_t first, last;
        } folded[] = {
                { 0x0080, 0x009f }, { 0x00a5, 0x00a5 }, /* yen: a backslash in Japanese code pages */
                { 0x037e, 0x037e }, { 0x2024, 0x2025 }, { 0x2044, 0x2044 }, { 0x2047, 0x2049 },
                { 0x20a9, 0x20a9 }, /* won: a backslash in Korean ones */
                { 0x2100, 0x2101 }, { 0x2105, 0x2106 }, /* "a/c" and its like */
                { 0x2215, 0x2216 }, { 0x29f5, 0x29f5 }, { 0x29f8, 0x29f9 },
                { 0xfe14, 0xfe14 }, { 0xfe16, 0xfe16 }, { 0xfe30, 0xfe30 }, /* vertical forms */
                { 0xfe52, 0xfe52 }, { 0xfe54, 0xfe54 }, { 0xfe56, 0xfe56 }, { 0xfe5f, 0xfe5f }, { 0xfe68, 0xfe68 }, { 0xfe6a, 0xfe6a }, /* small */
                { 0xff03, 0xff03 }, { 0xff05, 0xff05 }, { 0xff0e, 0xff0f }, { 0xff1b, 0xff1b }, { 0xff1f, 0xff1f }, { 0xff3c, 0xff3c }, /* full width */
        };

        for (size_t i = 0; i < ELEMENTSOF(folded); i++)
                if (c >= folded[i].first && c <= folded[i].last)
                        return true;
        return false;
}

/* Is it UTF-8 in its one form, without such characters? A decoder that takes overlong forms finds dots and slashes in others. */
static bool characters_are_plain(const uint8_t *bytes, size_t n) {
        for (size_t i = 0; i < n;) {
                uint32_t c = 0;
                size_t length = text_utf8_decode(bytes + i, n - i, &c);

                if (length == 0 || is_folded(c))
                        return false;
                i += length;
        }
        return true;
}

/* Decodes a path that can be read in one way only; the number of bytes, -1 if it cannot. */
static ssize_t path_decode(const char *path, size_t n, uint8_t *ret, size_t room) {
        size_t used = 0;

        if (n == 0 || path[0] != '/')
                return -1;

        for (size_t i = 0; i < n; i++) {
                unsigned char c = (unsigned char) path[i];
                int v = c;

                if (c <= ' ' || c == 0x7f || c == '\\' || c == '#' || used >= room)
                        return -1;
                if (c == '/' && segment_is_odd(path + i + 1, n - i - 1))
                        return -1;
                if (c == '%') {
                        v = escaped_byte(path + i, n - i);
                        if (v < 0)
                                return -1;
                        i += 2;
                }
                ret[used++] = (uint8_t) v;
        }

        return characters_are_plain(ret, used) ? (ssize_t) used : -1;
}

void path_text_parse(const char *path, PathText *ret) {
        ssize_t n;

        n = path_decode(path, strcspn(path, "?"), ret->bytes, sizeof(ret->bytes));
        ret->ambiguous = n < 0;
        ret->n = n < 0 ? 0 : (size_t) n;
        ret->has_parameters = memchr(ret->bytes, ';', ret->n);
}

/* ---- patterns ---- */

const char *path_pattern_parse(const char *text, uint8_t *bytes, PathPattern *ret) {
        PathPattern pattern = { .text = text, .bytes = bytes, .n_pieces = 1 };
        size_t n = strlen(text), used = 0;

        if (*text != '/')
                return "must begin with \"/\"";
        if (n > PATH_PATTERN_MAX || strpbrk(text, "?#"))
                return "must be a path without query or fragment";
        /* "*" is a character like any other as to what is ambiguous; the decoded text is made piece by piece below */
        if (path_decode(text, n, bytes, n) < 0)
                return "must be written in the one way that a request can match: no \"//\", no dot segments, no needless escapes, UTF-8";

        for (const char *p = text; *p;) {
                size_t stars = strspn(p, "*");

                if (stars > 2)
                        return "must not have more than two \"*\" in a row";
                if (stars > 0) {
                        if (pattern.n_pieces >= PATH_PIECES_MAX)
                                return "must not have more than eight wildcards";
                        if (stars == 2)
                                pattern.across |= (uint16_t) (1U << (pattern.n_pieces - 1));
                        pattern.n_pieces++;
                        p += stars;
                        continue;
                }
                bytes[used++] = *p == '%' ? (uint8_t) escaped_byte(p, strlen(p)) : (uint8_t) *p;
                pattern.length[pattern.n_pieces - 1]++;
                p += *p == '%' ? 3 : 1;
        }

        pattern.n_bytes = (uint16_t) used;
        *ret = pattern;
        return NULL;
}

static bool prefix_covers(const PathPattern *pattern, const PathText *path) {
        size_t n = pattern->n_bytes;

        return n <= path->n && memcmp(pattern->bytes, path->bytes, n) == 0 &&
               (n == path->n || pattern->bytes[n - 1] == '/' || path->bytes[n] == '/');
}

/*
 * at[i]: the pieces so far, and the wildcards between them, can match the first i bytes. A wildcard spreads each such place to
 * the right, as far as the next slash unless it goes across; a piece then moves those places where it stands. That is bounded
 * by the number of pieces times the path's length, whatever a guest sends.
 */
static bool glob_covers(const PathPattern *pattern, const PathText *path) {
        const uint8_t *piece = pattern->bytes;
        bool at[PATH_REQUEST_MAX + 1] = {};
        size_t n = path->n;

        if (pattern->length[0] > n || memcmp(piece, path->bytes, pattern->length[0]) != 0)
                return false;
        at[pattern->length[0]] = true;

        for (size_t k = 1; k < pattern->n_pieces; k++) {
                size_t m = pattern->length[k], before = pattern->length[k - 1];
                bool across = pattern->across & (1U << (k - 1)), on = false;

                /* between two slashes no segment at all is fine: the next piece may begin with the slash that ends this one */
                if (across && m > 0 && piece[before - 1] == '/' && piece[before] == '/')
                        for (size_t i = 1; i <= n; i++)
                                at[i - 1] |= at[i];

                for (size_t i = 0; i <= n; i++) {
                        on = at[i] || (on && (across || path->bytes[i - 1] != '/'));
                        at[i] = on;
                }

                piece += before;
                for (size_t i = n + 1; i-- > 0;)
                        at[i] = i >= m && at[i - m] && memcmp(path->bytes + i - m, piece, m) == 0;
        }

        return at[n];
}

bool path_pattern_matches(const PathPattern *pattern, const PathText *path) {
        if (path->ambiguous)
                return false;
        return pattern->n_pieces == 1 ? prefix_covers(pattern, path) : glob_covers(pattern, path);
}

bool policy_path_matches(const json_t *patterns, const char *path) {
        PathText text;

        if (!patterns)
                return true;

        path_text_parse(path, &text);
        for (size_t i = 0; !text.ambiguous && i < json_array_size(patterns); i++) {
                const char *s = json_string_value(json_array_get(patterns, i));
                uint8_t bytes[PATH_PATTERN_MAX];
                PathPattern pattern;

                if (s && strlen(s) <= sizeof(bytes) && !path_pattern_parse(s, bytes, &pattern) && path_pattern_matches(&pattern, &text))
                        return true;
        }
        return false;
}

PolicyPathRelation policy_path_is(const char *pattern_text, const char *path) {
        uint8_t bytes[PATH_PATTERN_MAX];
        PathPattern pattern;
        PathText text;

        if (strlen(pattern_text) > sizeof(bytes) || path_pattern_parse(pattern_text, bytes, &pattern))
                return POLICY_PATH_OTHER;
        path_text_parse(path, &text);
        if (text.ambiguous || text.has_parameters)
                return POLICY_PATH_UNCLEAR;

        if (text.n > 1 && text.bytes[text.n - 1] == '/' && pattern.n_bytes > 0 && bytes[pattern.n_bytes - 1] != '/')
                text.n--;
        if (pattern.n_pieces > 1)
                return glob_covers(&pattern, &text) ? POLICY_PATH_SAME : POLICY_PATH_OTHER;
        return pattern.n_bytes == text.n && memcmp(bytes, text.bytes, text.n) == 0 ? POLICY_PATH_SAME : POLICY_PATH_OTHER;
}
