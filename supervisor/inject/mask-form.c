/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/mask-form.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/text.h"

const char mask_base64_alphabet[64] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* clang-format off */
const uint8_t mask_base64_digits[256] = {
        ['A'] = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
        ['a'] = 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52,
        ['0'] = 53, 54, 55, 56, 57, 58, 59, 60, 61, 62,
        ['+'] = 63, ['-'] = 63, ['/'] = 64, ['_'] = 64,
};
/* clang-format on */

size_t mask_visible_end(const uint8_t *p, size_t from, size_t size) {
        typedef uint8_t Lane __attribute__((vector_size(16)));

        for (; size - from >= sizeof(Lane); from += sizeof(Lane)) {
                uint64_t other[2];
                Lane v;

                memcpy(&v, p + from, sizeof(v));
                v = (Lane) (v - 0x21 > 0x7e - 0x21);
                memcpy(other, &v, sizeof(other));
                if (other[0] | other[1])
                        break;
        }
        while (from < size && mask_is_visible(p[from]))
                from++;
        return from;
}

/* An escape of a sign of `before` bytes and n hex digits: its size, 0 for not yet known, 1 for "it is none". */
static size_t hex_escape(const uint8_t *p, size_t size, bool closed, size_t before, size_t n, uint8_t *ret_value) {
        unsigned value = 0;

        for (size_t i = before; i < before + n; i++) {
                if (i == size)
                        return closed ? 1 : 0;
                if (text_hex_digit((char) p[i]) < 0)
                        return 1;
                value = value * 16 + (unsigned) text_hex_digit((char) p[i]);
        }
        *ret_value = value < 0x80 ? (uint8_t) value : 0;
        return before + n;
}

static size_t json_escape(const uint8_t *p, size_t size, bool closed, uint8_t *ret_value) {
        if (size == 1)
                return closed ? 1 : 0;
        switch (p[1]) {
        case 'u':
                return hex_escape(p, size, closed, 2, 4, ret_value);
        case '/':
        case '\\':
        case '"':
                *ret_value = p[1];
                return 2;
        case 'b':
        case 'f':
        case 'n':
        case 'r':
        case 't':
                *ret_value = 0;
                return 2;
        default:
                return 1;
        }
}

size_t mask_unit(MaskView view, const uint8_t *p, size_t size, bool closed, uint8_t *ret_value) {
        *ret_value = *p;
        if (*p == '%' && (view == MASK_VIEW_PERCENT || view == MASK_VIEW_BOTH))
                return hex_escape(p, size, closed, 1, 2, ret_value);
        if (*p == '\\' && (view == MASK_VIEW_JSON || view == MASK_VIEW_BOTH))
                return json_escape(p, size, closed, ret_value);
        return 1;
}

/* The digits from `first` on of text behind `shift` zero bytes; text is as many bytes of `from`, repeated or cut, as size says. */
static void write_digits(uint8_t *ret, size_t first, size_t n, unsigned shift, const uint8_t *from, size_t from_size, size_t size) {
        size_t byte = first * 6 / 8, from_at = byte < shift ? 0 : from_size > 0 ? (byte - shift) % from_size : 0;
        unsigned bits = 0, n_bits = 0;

        for (size_t i = 0; i < n; i++) {
                while (n_bits < 6) {
                        bool inside = byte >= shift && byte < shift + size && from_size > 0;

                        bits = bits << 8 | (inside ? from[from_at] : 0);
                        if (inside && ++from_at == from_size)
                                from_at = 0;
                        n_bits += 8;
                        /* the first digit may begin in the midst of a byte */
                        if (i == 0 && n_bits == 8)
                                n_bits -= first * 6 % 8;
                        byte++;
                }
                ret[i] = bits >> (n_bits -= 6) & 0x3f;
        }
}

int base64_form_init(Base64Form *f, unsigned shift, const void *text, size_t size, const void *other, size_t other_size) {
        size_t begin = shift * 8U, end = (shift + size) * 8, first = begin / 6;

        *f = (Base64Form) {
                .size = (end + 5) / 6 - first,
                .lead = begin % 6 != 0,
                .first = (uint8_t) (0x3f >> begin % 6),
                .last = (uint8_t) (end % 6 ? 0x3f << (6 - end % 6) & 0x3f : 0x3f),
        };
        f->digits = malloc(2 * f->size);
        if (!f->digits)
                return -ENOMEM;
        f->others = f->digits + f->size;

        write_digits(f->digits, first, f->size, shift, text, size, size);
        write_digits(f->others, first, f->size, shift, other, other_size, size);
        return 0;
}

void base64_form_done(Base64Form *f) {
        if (f->digits)
                explicit_bzero(f->digits, 2 * f->size);
        free(f->digits);
        *f = (Base64Form) {};
}

static uint8_t bits_of(const Base64Form *f, size_t i) {
        if (i == 0)
                return f->first;
        return i + 1 == f->size ? f->last : 0x3f;
}

bool base64_form_matches(const Base64Form *f, const uint8_t *units) {
        unsigned differs = 0;

        for (size_t i = 0; i < f->size; i++)
                differs |= ((mask_base64_digits[units[i]] - 1U) ^ f->digits[i]) & (bits_of(f, i) | 0xc0U);
        return differs == 0;
}

char base64_form_replace(const Base64Form *f, const uint8_t *units, size_t i, bool url_safe) {
        uint8_t bits = bits_of(f, i);
        unsigned value = ((mask_base64_digits[units[i]] - 1U) & ~bits & 0x3fU) | (f->others[i] & bits);

        if (url_safe && value >= 62)
                return value == 62 ? '-' : '_';
        return mask_base64_alphabet[value];
}
