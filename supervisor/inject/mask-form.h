/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The forms in which a text of visible ASCII shows up in answers. Pure.
 *
 * A stream is looked at in up to four views, and each view is a sequence of units: of bytes as they are, of
 * percent-escapes (RFC 3986, 2.1), of the escapes of JSON strings (RFC 8259, 7), and of both. In each view the text may
 * stand plainly or inside of Base64 (RFC 4648, 4 and 5) at any of three alignments, where it shares its first and
 * its last digit with its neighbours.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum MaskView {
        MASK_VIEW_RAW,
        MASK_VIEW_PERCENT,
        MASK_VIEW_JSON,
        MASK_VIEW_BOTH,
        _MASK_VIEWS,
} MaskView;

enum { MASK_UNIT_MAX = 6 }; /* bytes of "\u0041" */

static inline bool mask_is_visible(uint8_t c) {
        return c >= 0x21 && c <= 0x7e;
}

/* Where the run of visible characters ends that goes on at p[from]: from itself if that is none; at most size. */
size_t mask_visible_end(const uint8_t *p, size_t from, size_t size);

/*
 * The unit at p, which has size bytes, one at least: how many bytes it takes, and what it stands for (0 if that is no
 * ASCII). Returns 0 if that depends on what follows; not if `closed`, that is, if nothing that could belong to an escape
 * follows.
 */
size_t mask_unit(MaskView view, const uint8_t *p, size_t size, bool closed, uint8_t *ret_value);

/* One more than the value of a Base64 digit of either alphabet; 0 for any other byte. */
extern const uint8_t mask_base64_digits[256];

/* The digit of each value, in the first of the alphabets. */
extern const char mask_base64_alphabet[64];

typedef struct Base64Form {
        uint8_t *digits, *others; /* owned; values of what is looked for, and of what takes its place; zeroed when freed */
        size_t size;              /* digits of it, shared ones included */
        size_t lead;              /* 1 if the first one is shared, else 0 */
        uint8_t first, last;      /* which bits of the first and the last one are the text's */
} Base64Form;

/*
 * What `text` looks like behind `shift` (0 to 2) other bytes. `other` is as long as text, repeated or cut, so that what stands
 * around it still decodes. -ENOMEM. The text has four bytes at least.
 */
int base64_form_init(Base64Form *f, unsigned shift, const void *text, size_t size, const void *other, size_t other_size);
void base64_form_done(Base64Form *f);

/* Does the form stand at units? f->size of them. Takes the same time whatever is there. */
bool base64_form_matches(const Base64Form *f, const uint8_t *units);

/* The digit that takes the place of the one at units[i]. */
char base64_form_replace(const Base64Form *f, const uint8_t *units, size_t i, bool url_safe);
