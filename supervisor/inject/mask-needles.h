/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What a masker looks for, and all that is worked out of it beforehand. It never changes: maskers of the same texts share
 * one, and a connection that waits has no copy of a secret of its own.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inject/mask-form.h"
#include "inject/mask-sieve.h"
#include "inject/mask.h"

enum { MASK_SHIFTS = 3 };

typedef struct Needle {
        MaskPair pair;
        uint8_t *needle; /* owned; the pair's */
        uint64_t hash, power;         /* of the plain form; base ** size */
        bool has_forms;               /* long enough to be looked for in Base64 */
        Base64Form forms[MASK_SHIFTS];
        size_t window;                /* digits that the hashes of the forms cover, from the first that is not shared */
        uint64_t window_hashes[MASK_SHIFTS], window_power;
        Sieve *sieve; /* owned; NULL for one that is too short or too long: it is looked for everywhere */
} Needle;

struct Needles {
        unsigned n_refs;
        size_t n, longest, shortest; /* the latter two: in units */
        uint64_t base, sieve_key[2];
        size_t size; /* of all of this */
        Needle list[];
};

/* As masker_new() says; what the replacements point to must outlive the last reference. */
int mask_needles_new(Needles **ret, const MaskPair *pairs, size_t n_pairs);
Needles *mask_needles_ref(Needles *n);
/* The last one zeroes what it was. */
Needles *mask_needles_unref(Needles *n);
DEFINE_CLEANUP(Needles *, mask_needles_unref)

static inline uint64_t mask_needles_hash_plain(const Needles *ns, const uint8_t *p, size_t size) {
        uint64_t h = 0;

        for (size_t i = 0; i < size; i++)
                h = h * ns->base + p[i];
        return h;
}

static inline uint64_t mask_needles_hash_digits(const Needles *ns, const uint8_t *p, size_t size) {
        uint64_t h = 0;

        for (size_t i = 0; i < size; i++)
                h = h * ns->base + mask_base64_digits[p[i]];
        return h;
}
