/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The masker against a plain search in the whole text. Input: one byte for the number of needles, each
 * needle with a length byte before it, then how the text is made: a byte below 0x80 stands for itself, any other is an
 * order to write a needle in some form, see write_form(). The text is fed in pieces whose sizes come from
 * itself, and its length after each piece is compared with that of a text with other needles.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "inject/mask-form.h"
#include "inject/mask.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NEEDLES = 4, NEEDLE_MAX = 40, TEXT_MAX = 4096, PLAIN = 3 };

typedef struct Run { /* as one view reads it */
        uint8_t units[TEXT_MAX];
        size_t at[TEXT_MAX + 1], n;
} Run;

typedef struct Found {
        size_t begin, end, unit, n_units, needle;
        unsigned form; /* a shift, or PLAIN */
        MaskView view;
} Found;

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static int digit_value(uint8_t c) {
        const char *p;

        if (c == '-' || c == '_')
                return c == '-' ? 62 : 63;
        p = c ? strchr(digits, c) : NULL;
        return p ? (int) (p - digits) : -1;
}

/* ---- the text ---- */

static void put(Buffer *b, const char *text, size_t size) {
        if (buffer_append(b, text, size) < 0)
                __builtin_trap();
}

static void write_base64(const uint8_t *p, size_t size, bool url_safe, Buffer *out) {
        for (size_t bit = 0; bit < size * 8; bit += 6) {
                unsigned value = 0;
                char c;

                for (size_t i = bit; i < bit + 6; i++)
                        value = value << 1 | (i / 8 < size ? p[i / 8] >> (7 - i % 8) & 1 : 0);
                c = digits[value];
                if (url_safe && value >= 62)
                        c = value == 62 ? '-' : '_';
                put(out, &c, 1);
        }
}

/* Bit i of `how` says whether the character i (mod 5) is escaped; the others say in which way. */
static void write_escaped(const uint8_t *p, size_t size, uint8_t how, Buffer *out) {
        char text[8];

        for (size_t i = 0; i < size; i++) {
                if (!(how >> i % 5 & 1))
                        (void) snprintf(text, sizeof(text), "%c", p[i]);
                else if (how & 0x20)
                        (void) snprintf(text, sizeof(text), how & 0x40 ? "%%%02X" : "%%%02x", p[i]);
                else if (p[i] == '/' || p[i] == '\\' || p[i] == '"')
                        (void) snprintf(text, sizeof(text), "\\%c", p[i]);
                else
                        (void) snprintf(text, sizeof(text), how & 0x40 ? "\\u%04X" : "\\u%04x", p[i]);
                put(out, text, strlen(text));
        }
}

/* order: bits 0 and 1 the needle, 2 and 3 its shift in Base64 or that it is none, 4 the alphabet. */
static void write_form(const MaskPair *pairs, size_t n, uint8_t order, uint8_t how, Buffer *out) {
        const MaskPair *pair = &pairs[(order & 3U) % n];
        unsigned shift = order >> 2 & 3;
        uint8_t plain[NEEDLE_MAX + 4];
        Buffer encoded = {};

        memset(plain, how, shift);
        memcpy(plain + shift, pair->needle, pair->needle_size);
        if (shift == PLAIN)
                write_escaped(pair->needle, pair->needle_size, how, out);
        else {
                write_base64(plain, shift + pair->needle_size, order & 0x10, &encoded);
                write_escaped(buffer_data(&encoded), buffer_size(&encoded), how, out);
        }
        buffer_done(&encoded);
}

/* ---- the plain search ---- */

static void read_run(MaskView view, const uint8_t *p, size_t begin, size_t end, Run *run) {
        run->n = 0;
        while (begin < end) {
                run->at[run->n] = begin;
                begin += mask_unit(view, p + begin, end - begin, true, &run->units[run->n++]);
        }
        run->at[run->n] = begin;
}

static bool is_plain(const Run *run, size_t i, const MaskPair *pair) {
        return pair->needle_size <= run->n - i && memcmp(run->units + i, pair->needle, pair->needle_size) == 0;
}

/* Digits that hold at least one bit of the needle, with all of its bits in their places? */
static bool is_base64(const Run *run, size_t i, const MaskPair *pair, unsigned shift, size_t *ret_digits) {
        const uint8_t *needle = pair->needle;
        size_t begin = shift * 8U, end = begin + pair->needle_size * 8, first = begin / 6, n = (end + 5) / 6 - first;

        if (pair->needle_size < MASK_ENCODED_MIN || n > run->n - i)
                return false;
        for (size_t k = 0; k < n; k++)
                if (digit_value(run->units[i + k]) < 0)
                        return false;
        for (size_t bit = begin; bit < end; bit++) {
                unsigned value = (unsigned) digit_value(run->units[i + bit / 6 - first]);

                if ((value >> (5 - bit % 6) & 1) != (unsigned) (needle[bit / 8 - shift] >> (7 - bit % 8) & 1))
                        return false;
        }
        *ret_digits = n;
        return true;
}

static void consider(Found *best, Found f) {
        if (best->end == 0 || f.begin < best->begin || (f.begin == best->begin && f.end > best->end))
                *best = f;
}

static void find(const MaskPair *pairs, size_t n, const uint8_t *p, size_t begin, size_t end, Run runs[], Found *ret) {
        *ret = (Found) {};
        for (MaskView v = 0; v < _MASK_VIEWS; v++) {
                Run *run = &runs[v];

                read_run(v, p, begin, end, run);
                for (size_t k = 0; k < n; k++) {
                        for (size_t i = 0; i < run->n; i++)
                                if (is_plain(run, i, &pairs[k])) {
                                        consider(ret, (Found) { run->at[i], run->at[i + pairs[k].needle_size], i, pairs[k].needle_size, k, PLAIN, v });
                                        break;
                                }
                        for (unsigned shift = 0; shift < PLAIN; shift++)
                                for (size_t i = 0, size; i < run->n; i++)
                                        if (is_base64(run, i, &pairs[k], shift, &size)) {
                                                consider(ret, (Found) { run->at[i], run->at[i + size], i, size, k, shift, v });
                                                break;
                                        }
                }
        }
}

static void replace(const MaskPair *pair, const Found *f, const Run *run, Buffer *out) {
        const uint8_t *units = run->units + f->unit, *other = pair->replacement;
        bool url_safe = memchr(units, '-', f->n_units) || memchr(units, '_', f->n_units);
        bool escape = f->view == MASK_VIEW_PERCENT || f->view == MASK_VIEW_BOTH;
        size_t begin = f->form * 8U, end = begin + pair->needle_size * 8;

        if (f->form == PLAIN) {
                put(out, pair->replacement, pair->replacement_size);
                return;
        }
        for (size_t k = 0; k < f->n_units; k++) {
                unsigned value = (unsigned) digit_value(units[k]);

                for (unsigned i = 0; i < 6; i++) {
                        size_t bit = (begin / 6 + k) * 6 + i, byte = bit / 8 - f->form;

                        if (bit < begin || bit >= end)
                                continue;
                        value &= ~(0x20U >> i);
                        if (pair->replacement_size > 0 && other[byte % pair->replacement_size] >> (7 - bit % 8) & 1)
                                value |= 0x20U >> i;
                }
                if (value >= 62 && url_safe)
                        put(out, value == 62 ? "-" : "_", 1);
                else if (value >= 62 && escape)
                        put(out, value == 62 ? "%2B" : "%2F", 3);
                else
                        put(out, &digits[value], 1);
        }
}

static void naive(const MaskPair *pairs, size_t n, const uint8_t *p, size_t size, Buffer *out) {
        static Run runs[_MASK_VIEWS];
        size_t i = 0, end;
        Found f;

        while (i < size) {
                for (end = i; end < size && mask_is_visible(p[end]); end++)
                        ;
                for (;;) {
                        find(pairs, n, p, i, end, runs, &f);
                        if (f.end == 0)
                                break;
                        put(out, (const char *) p + i, f.begin - i);
                        replace(&pairs[f.needle], &f, &runs[f.view], out);
                        i = f.end;
                }
                if (end < size)
                        end++;
                put(out, (const char *) p + i, end - i);
                i = end;
        }
}

/* ---- both ---- */

static size_t read_needles(const uint8_t *data, size_t size, MaskPair pairs[], size_t *ret_n) {
        static const char *const replacements[] = { "", "<a>", "bb", "a longer replacement" };
        size_t n = data[0] % NEEDLES + 1, at = 1;

        for (size_t i = 0; i < n; i++) {
                size_t length;

                if (at >= size)
                        return 0;
                length = data[at++] % NEEDLE_MAX + 1;
                if (length > size - at)
                        return 0;
                pairs[i] = (MaskPair) { data + at, length, replacements[i], strlen(replacements[i]) };
                at += length;
        }
        *ret_n = n;
        return at;
}

/* What masker_has_pending() says of a stream that goes on is what would be found if it ended here. */
static void check_pending(const MaskPair *pairs, size_t n, Masker *m, const uint8_t *p, size_t size) {
        _cleanup_(masker_freep) Masker *ended = NULL;
        Buffer out = {};
        size_t number = SIZE_MAX;
        int r = masker_has_pending(m, &number);

        if (masker_new(&ended, pairs, n) < 0 || masker_feed(ended, p, size, &out) < 0 || masker_finish(ended, &out) < 0)
                __builtin_trap();
        if (r < 0 || (masker_hits(ended) > 0) != (masker_hits(m) > 0 || r > 0) || (r > 0 && number >= n))
                __builtin_trap();
        buffer_done(&out);
}

/* Two maskers with needles of the same lengths have the same left to say after each piece. */
static void feed(const MaskPair *pairs, size_t n, Masker *m, Masker *twin, const uint8_t *p, size_t size, Buffer *out) {
        Buffer other = {};
        size_t at = 0;

        while (at < size) {
                size_t piece = p[at] % 7 + 1;

                if (piece > size - at)
                        piece = size - at;
                if (masker_feed(m, p + at, piece, out) < 0 || masker_feed(twin, p + at, piece, &other) < 0)
                        __builtin_trap();
                if (masker_hits(m) == 0 && masker_hits(twin) == 0 && buffer_size(out) != buffer_size(&other))
                        __builtin_trap();
                at += piece;
                if (size <= 256)
                        check_pending(pairs, n, m, p, at);
        }
        if (masker_finish(m, out) < 0)
                __builtin_trap();
        buffer_done(&other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_(masker_freep) Masker *m = NULL, *twin = NULL;
        Buffer text = {}, expected = {}, got = {};
        MaskPair pairs[NEEDLES], others[NEEDLES];
        uint8_t other[NEEDLE_MAX];
        size_t n, at;

        if (size < 1)
                return 0;
        at = read_needles(data, size, pairs, &n);
        if (at == 0 || masker_new(&m, pairs, n) < 0)
                return 0;
        memset(other, '~', sizeof(other));
        for (size_t i = 0; i < n; i++)
                others[i] = (MaskPair) { other, pairs[i].needle_size, "", 0 };
        if (masker_new(&twin, others, n) < 0)
                __builtin_trap();

        for (; at < size && buffer_size(&text) < TEXT_MAX - 6 * 2 * NEEDLE_MAX; at++)
                if (data[at] < 0x80)
                        put(&text, (const char *) data + at, 1);
                else
                        write_form(pairs, n, data[at], at + 1 < size ? data[at + 1] : 0, &text);

        naive(pairs, n, buffer_data(&text), buffer_size(&text), &expected);
        feed(pairs, n, m, twin, buffer_data(&text), buffer_size(&text), &got);
        if (buffer_size(&expected) != buffer_size(&got) ||
            (buffer_size(&got) > 0 && memcmp(buffer_data(&expected), buffer_data(&got), buffer_size(&got)) != 0))
                __builtin_trap();

        buffer_done(&text);
        buffer_done(&expected);
        buffer_done(&got);
        return 0;
}
