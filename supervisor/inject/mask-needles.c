/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/mask-needles.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "util/secret.h"

static uint64_t power(const Needles *ns, size_t n) {
        uint64_t p = 1;

        while (n-- > 0)
                p *= ns->base;
        return p;
}

/* ---- needles ---- */

static void use_length(Needles *ns, size_t size) {
        if (size > ns->longest)
                ns->longest = size;
        if (ns->shortest == 0 || size < ns->shortest)
                ns->shortest = size;
}

static int needle_add_forms(Needles *ns, Needle *d) {
        const MaskPair *pair = &d->pair;

        d->window = SIZE_MAX;
        for (unsigned i = 0; i < MASK_SHIFTS; i++) {
                Base64Form *f = &d->forms[i];
                size_t whole;
                int r;

                r = base64_form_init(f, i, pair->needle, pair->needle_size, pair->replacement, pair->replacement_size);
                if (r < 0)
                        return r;
                whole = f->size - f->lead - (f->last != 0x3f);
                if (whole < d->window)
                        d->window = whole;
                use_length(ns, f->size);
        }

        for (unsigned i = 0; i < MASK_SHIFTS; i++)
                for (size_t k = 0; k < d->window; k++)
                        d->window_hashes[i] = d->window_hashes[i] * ns->base + d->forms[i].digits[d->forms[i].lead + k] + 1;
        d->window_power = power(ns, d->window);
        d->has_forms = true;
        return 0;
}

/* What a sieve is asked for has the needle's size: the plain one, and as many digits of each form from the first that is
 * not shared. */
static int needle_add_sieve(Needles *ns, Needle *d) {
        size_t n = d->pair.needle_size;
        uint8_t digits[SIEVE_WORD_MAX];

        if (n < SIEVE_WORD_MIN || n > SIEVE_WORD_MAX)
                return 0;
        assert(d->has_forms && d->window >= n);
        d->sieve = malloc(sizeof(*d->sieve));
        if (!d->sieve)
                return -ENOMEM;

        sieve_init(d->sieve, n, ns->sieve_key);
        sieve_add(d->sieve, d->needle);
        for (unsigned i = 0; i < MASK_SHIFTS; i++) {
                for (size_t k = 0; k < n; k++)
                        digits[k] = (uint8_t) mask_base64_alphabet[d->forms[i].digits[d->forms[i].lead + k]];
                sieve_add(d->sieve, digits);
        }
        explicit_bzero(digits, sizeof(digits));
        return 0;
}

static int needles_add(Needles *ns, const MaskPair *pair) {
        Needle *d = &ns->list[ns->n++];
        int r;

        if (pair->needle_size == 0 || pair->needle_size > MASK_NEEDLE_MAX)
                return -EINVAL;
        for (size_t k = 0; k < pair->needle_size; k++)
                if (!mask_is_visible(((const uint8_t *) pair->needle)[k]))
                        return -EINVAL;

        /* values change and go while an answer is still masked */
        d->needle = malloc(pair->needle_size);
        if (!d->needle)
                return -ENOMEM;
        memcpy(d->needle, pair->needle, pair->needle_size);
        d->pair = *pair;
        d->pair.needle = d->needle;
        d->hash = mask_needles_hash_plain(ns, pair->needle, pair->needle_size);
        d->power = power(ns, pair->needle_size);
        use_length(ns, pair->needle_size);
        if (pair->needle_size < MASK_ENCODED_MIN)
                return 0;
        r = needle_add_forms(ns, d);
        return r < 0 ? r : needle_add_sieve(ns, d);
}

int mask_needles_new(Needles **ret, const MaskPair *pairs, size_t n_pairs) {
        _cleanup_(mask_needles_unrefp) Needles *ns = NULL;
        int r;

        if (n_pairs > MASK_PAIRS_MAX)
                return -E2BIG;

        ns = calloc(1, sizeof(*ns) + n_pairs * sizeof(*ns->list));
        if (!ns)
                return -ENOMEM;
        ns->n_refs = 1;
        ns->size = sizeof(*ns) + n_pairs * sizeof(*ns->list);

        if (getrandom(&ns->base, sizeof(ns->base), 0) != sizeof(ns->base) ||
            getrandom(ns->sieve_key, sizeof(ns->sieve_key), 0) != sizeof(ns->sieve_key))
                return -EIO;
        ns->base |= 1;

        for (size_t i = 0; i < n_pairs; i++) {
                r = needles_add(ns, &pairs[i]);
                if (r < 0)
                        return r;
        }

        *ret = TAKE_PTR(ns);
        return 0;
}

Needles *mask_needles_ref(Needles *ns) {
        ns->n_refs++;
        return ns;
}

Needles *mask_needles_unref(Needles *ns) {
        if (!ns || --ns->n_refs > 0)
                return NULL;
        for (size_t i = 0; i < ns->n; i++) {
                for (unsigned k = 0; k < MASK_SHIFTS; k++)
                        base64_form_done(&ns->list[i].forms[k]);
                secret_erase(ns->list[i].needle, ns->list[i].pair.needle_size);
                secret_erase(ns->list[i].sieve, sizeof(*ns->list[i].sieve));
        }
        explicit_bzero(ns, ns->size);
        free(ns);
        return NULL;
}
