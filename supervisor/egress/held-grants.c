/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * An answer that brings a grant and the message that says that it is revoked come over two sockets: whoever reads the message first must still know of it when the
 * answer comes. And while nobody watched (at the start, or when egressd began anew), nothing was said: so the first message of each Watch lists all
 * grants that there are, and the number of the latest one that there was.
 *
 * A grant is revoked if it was said to be, or if the list had to have it and has not: numbers go up and are never used again (egress-state.c), so
 * that what has a greater one than the latest was given afterwards. Both are forgotten when no question is open, since what is asked later
 * cannot bring a grant from before.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "egress/held-grants-api.h"
#include "util/log.h"

enum { GONE_MAX = 8192 }; /* more than one cgroup has */

typedef struct Ids {
        uint64_t *ids; /* owned */
        size_t n, n_allocated;
} Ids;

struct HeldGrants {
        HeldGrantRevoked revoked;
        void *userdata;
        Ids held;
        unsigned n_open;  /* questions */
        Ids gone;         /* was said to be revoked while one was open */
        bool forgot;      /* there is more than fits: whatever an open question brings is taken for revoked */
        Ids listed;       /* in the latest list, */
        uint64_t latest;  /* which has all up to here */
};

static int ids_add(Ids *s, uint64_t id) {
        if (s->n == s->n_allocated) {
                size_t n = s->n_allocated ? 2 * s->n_allocated : 16;
                uint64_t *grown = reallocarray(s->ids, n, sizeof(*grown));

                if (!grown)
                        return -ENOMEM;
                s->ids = grown;
                s->n_allocated = n;
        }
        s->ids[s->n++] = id;
        return 0;
}

static size_t ids_find(const Ids *s, uint64_t id) {
        size_t i = 0;

        while (i < s->n && s->ids[i] != id)
                i++;
        return i;
}

static void ids_done(Ids *s) {
        free(s->ids);
        *s = (Ids) {};
}

int held_grants_new(HeldGrants **ret, HeldGrantRevoked revoked, void *userdata) {
        HeldGrants *h = calloc(1, sizeof(*h));

        if (!h)
                return -ENOMEM;
        h->revoked = revoked;
        h->userdata = userdata;
        *ret = h;
        return 0;
}

static void forget(HeldGrants *h) {
        ids_done(&h->gone);
        ids_done(&h->listed);
        h->latest = 0;
        h->forgot = false;
}

HeldGrants *held_grants_free(HeldGrants *h) {
        if (!h)
                return NULL;

        forget(h);
        ids_done(&h->held);
        free(h);
        return NULL;
}

static bool is_gone(const HeldGrants *h, uint64_t id) {
        return h->forgot || ids_find(&h->gone, id) < h->gone.n || (id <= h->latest && ids_find(&h->listed, id) == h->listed.n);
}

/* ---- questions, and what they bring ---- */

void held_grants_ask(HeldGrants *h) {
        h->n_open++;
}

bool held_grants_answer(HeldGrants *h, uint64_t grant) {
        bool holds = true;

        if (grant > 0)
                holds = !is_gone(h, grant) && ids_add(&h->held, grant) >= 0;
        if (--h->n_open == 0)
                forget(h);
        return holds;
}

void held_grants_over(HeldGrants *h, uint64_t grant) {
        size_t i = ids_find(&h->held, grant);

        if (i < h->held.n)
                h->held.ids[i] = h->held.ids[--h->held.n];
}

/* ---- what Watch says ---- */

static void note_gone(HeldGrants *h, const json_t *revoked) {
        for (size_t i = 0; i < json_array_size(revoked); i++)
                if (h->gone.n >= GONE_MAX || ids_add(&h->gone, (uint64_t) json_integer_value(json_array_get(revoked, i))) < 0)
                        h->forgot = true;
}

static void note_list(HeldGrants *h, const json_t *list, uint64_t latest) {
        h->listed.n = 0;
        h->latest = latest;
        for (size_t i = 0; i < json_array_size(list); i++)
                if (ids_add(&h->listed, (uint64_t) json_integer_value(json_array_get(list, i))) < 0)
                        log_oom(); /* what is not in it counts as revoked */
}

/* Each is looked for anew: to cut a connection changes what is held. */
static void cut(HeldGrants *h) {
        _cleanup_free_ uint64_t *ids = NULL;
        size_t n = 0;

        ids = reallocarray(NULL, h->held.n + 1, sizeof(*ids));
        if (!ids) {
                log_oom(); /* the kernel drops their packets */
                return;
        }
        for (size_t i = 0; i < h->held.n; i++)
                if (is_gone(h, h->held.ids[i]))
                        ids[n++] = h->held.ids[i];
        for (size_t i = 0; i < n; i++)
                h->revoked(ids[i], h->userdata);
}

void held_grants_read(HeldGrants *h, const json_t *message) {
        const json_t *revoked = json_object_get(message, "revoked"), *list = json_object_get(message, "grants");
        json_int_t latest = json_integer_value(json_object_get(message, "latest"));

        if (json_array_size(revoked) == 0 && !json_is_array(list))
                return;
        note_gone(h, revoked);
        if (json_is_array(list))
                note_list(h, list, latest > 0 ? (uint64_t) latest : 0);
        cut(h);
        if (h->n_open == 0)
                forget(h);
}
