/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What is masked in answers, and what is looked for in requests. Hundreds of connections look for the same, and each stream of
 * HTTP/2 anew: so what is worked out of the values is made once, and stays until one of them changes.
 */

#include <errno.h>
#include <string.h>

#include "inject/mask-needles.h"
#include "inject/request.h"

static void add_secret(MaskPair *pairs, size_t *n, const Secret *secret, const char *sentinel) {
        SecretView v;

        if (!secret)
                return;
        v = secret_view(secret);
        pairs[(*n)++] = (MaskPair) { v.bytes, v.size, sentinel, strlen(sentinel) };
}

/* How each of them begins, in the order of the pairs. */
static int find_beginnings(ExchangeContext *c, MaskPair *pairs, size_t n) {
        _cleanup_(mask_needles_unrefp) Needles *needles = NULL;
        Masker *fresh;
        int r;

        for (size_t i = 0; i < n; i++)
                if (pairs[i].needle_size > MASK_BEGINNING_MAX)
                        pairs[i].needle_size = MASK_BEGINNING_MAX + 1;
        r = mask_needles_new(&needles, pairs, n);
        if (r >= 0)
                r = masker_new_for(&fresh, needles);
        if (r < 0)
                return r;
        masker_free(c->beginnings);
        c->beginnings = fresh;
        return 0;
}

/* The values that an answer may hold. All answers of a run have the same, until one changes. */
static int find_answers(ExchangeContext *c, Needles **ret) {
        _Static_assert(RUN_CREDENTIALS_MAX * (1 + CREDENTIAL_FORMER_MAX) <= MASK_PAIRS_MAX, "all values of a run fit into one masker");
        MaskPair pairs[RUN_CREDENTIALS_MAX * (1 + CREDENTIAL_FORMER_MAX)] = {};
        Needles *fresh;
        size_t n = 0;
        int r;

        if (!c->answers || c->answers_generation != c->generation) {
                for (size_t i = 0; i < c->n_credentials; i++) {
                        const InjectCredential *k = &c->credentials[i];

                        add_secret(pairs, &n, k->source->secret, k->source->sentinel);
                        for (size_t f = 0; f < CREDENTIAL_FORMER_MAX; f++)
                                add_secret(pairs, &n, k->former[f], k->source->sentinel);
                }
                r = mask_needles_new(&fresh, pairs, n);
                if (r < 0)
                        return r;
                r = find_beginnings(c, pairs, n);
                if (r < 0) {
                        mask_needles_unref(fresh);
                        return r;
                }
                mask_needles_unref(c->answers);
                c->answers = fresh;
                c->answers_generation = c->generation;
        }
        *ret = c->answers;
        return 0;
}

/* The sentinels that have no business on the way to this host. One set is kept, the last: it does for each host that the same
 * credentials are for, and is made anew for one with others. A sentinel never changes. */
static int find_strays(const Request *q, Needles **ret) {
        _Static_assert(RUN_CREDENTIALS_MAX <= 64, "a bit for each credential");
        MaskPair pairs[RUN_CREDENTIALS_MAX];
        ExchangeContext *c = q->context;
        uint64_t foreign = 0;
        Needles *fresh;
        size_t n = 0;
        int r;

        for (size_t i = 0; i < c->n_credentials; i++) {
                const InjectCredential *k = &c->credentials[i];

                if (inject_credential_covers_host(k, q->name, q->port))
                        continue;
                foreign |= UINT64_C(1) << i;
                pairs[n++] = (MaskPair) { k->source->sentinel, strlen(k->source->sentinel), "", 0 };
        }
        if (!c->strays || c->strays_foreign != foreign) {
                r = mask_needles_new(&fresh, pairs, n);
                if (r < 0)
                        return r;
                mask_needles_unref(c->strays);
                c->strays = fresh;
                c->strays_foreign = foreign;
        }
        *ret = c->strays;
        return 0;
}

int request_make_masker(const Request *q, bool tripwire, Masker **ret) {
        Needles *needles;
        int r;

        r = tripwire ? find_strays(q, &needles) : find_answers(q->context, &needles);
        return r < 0 ? r : masker_new_for(ret, needles);
}

int request_renew_mask(Request *q) {
        Masker *fresh;
        int r;

        if (q->generation == q->context->generation)
                return 0;
        r = request_make_masker(q, false, &fresh);
        if (r < 0)
                return r;
        masker_take_over(fresh, q->mask);
        masker_free(q->mask);
        q->mask = fresh;
        q->generation = q->context->generation;
        return 0;
}

int request_feed_origin_websocket(Request *q, Websocket *s, const void *data, size_t size, Buffer *out) {
        _cleanup_(masker_freep) Masker *messages = NULL, *controls = NULL;
        int r;

        if (q->frames_generation != q->context->generation) {
                if ((r = request_make_masker(q, false, &messages)) < 0 || (r = request_make_masker(q, false, &controls)) < 0)
                        return r;
                websocket_set_maskers(s, TAKE_PTR(messages), TAKE_PTR(controls));
                q->frames_generation = q->context->generation;
        }
        return websocket_feed(s, data, size, out);
}

int request_new_websocket(Request *q, bool from_client, Websocket **ret) {
        _cleanup_(masker_freep) Masker *messages = NULL, *controls = NULL;
        int r;

        if ((r = request_make_masker(q, from_client, &messages)) < 0 || (r = request_make_masker(q, from_client, &controls)) < 0)
                return r;
        if (!from_client)
                q->frames_generation = q->context->generation;
        return websocket_new(ret, from_client, TAKE_PTR(messages), TAKE_PTR(controls));
}
