/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "egress/denials.h"

struct Denials {
        DenialTell tell;
        void *userdata;        /* borrowed */
        Denial *kinds;         /* owned; unordered */
        size_t n_kinds, n_allocated;
};

static void denial_done(Denial *d) {
        free(d->unit);
        free(d->rule);
        free(d->name);
        free(d->reason);
        free(d->detail);
}

int denials_new(Denials **ret, DenialTell tell, void *userdata) {
        Denials *d;

        d = malloc(sizeof(*d));
        if (!d)
                return -ENOMEM;

        *d = (Denials) { .tell = tell, .userdata = userdata };
        *ret = d;
        return 0;
}

Denials *denials_free(Denials *d) {
        if (!d)
                return NULL;

        for (size_t i = 0; i < d->n_kinds; i++)
                denial_done(&d->kinds[i]);
        free(d->kinds);
        free(d);
        return NULL;
}

static int copy_string(char **ret, const char *s) {
        if (!s) {
                *ret = NULL;
                return 0;
        }
        *ret = strdup(s);
        return *ret ? 0 : -ENOMEM;
}

static bool same_kind(const Denial *a, const Denial *b) {
        return strcmp(a->run, b->run) == 0 && strcmp(a->event, b->event) == 0 && strcmp(a->rule, b->rule) == 0 &&
               strcmp(a->name, b->name) == 0 &&
               strcmp(a->reason, b->reason) == 0 && a->port == b->port;
}

static void forget(Denials *d, size_t i) {
        denial_done(&d->kinds[i]);
        d->kinds[i] = d->kinds[--d->n_kinds];
}

static void tell(Denials *d, Denial *denial, uint64_t now) {
        d->tell(denial, d->userdata);
        denial->count = 0;
        denial->told_usec = now;
}

static uint64_t count_of(const Denial *denial) {
        return denial->count > 0 ? denial->count : 1;
}

static int add_kind(Denials *d, uint64_t now, const Denial *denial) {
        Denial copy = { .event = denial->event, .port = denial->port, .count = count_of(denial) };

        if (d->n_kinds == d->n_allocated) {
                size_t n = d->n_allocated ? d->n_allocated * 2 : 16;
                Denial *kinds;

                kinds = reallocarray(d->kinds, n, sizeof(*kinds));
                if (!kinds)
                        return -ENOMEM;
                d->kinds = kinds;
                d->n_allocated = n;
        }

        memcpy(copy.run, denial->run, sizeof(copy.run));
        if (copy_string(&copy.unit, denial->unit) < 0 || copy_string(&copy.rule, denial->rule) < 0 ||
            copy_string(&copy.name, denial->name) < 0 || copy_string(&copy.reason, denial->reason) < 0 ||
            copy_string(&copy.detail, denial->detail) < 0) {
                denial_done(&copy);
                return -ENOMEM;
        }

        d->kinds[d->n_kinds] = copy;
        tell(d, &d->kinds[d->n_kinds++], now);
        return 0;
}

static size_t count_of_run(const Denials *d, const char *run) {
        size_t n = 0;

        for (size_t i = 0; i < d->n_kinds; i++)
                n += strcmp(d->kinds[i].run, run) == 0;
        return n;
}

int denials_add(Denials *d, uint64_t now, const Denial *denial) {
        Denial overflow = *denial;

        for (size_t i = 0; i < d->n_kinds; i++)
                if (same_kind(&d->kinds[i], denial)) {
                        d->kinds[i].count += count_of(denial);
                        return 0;
                }

        if (count_of_run(d, denial->run) < DENIALS_MAX)
                return add_kind(d, now, denial);

        /* A guest that asks for ever new names fills its own table only, and what it gets is one common kind. */
        overflow.name = (char *) "";
        overflow.port = 0;
        overflow.rule = (char *) "overflow";
        overflow.detail = (char *) "too many different denials; counted together";
        for (size_t i = 0; i < d->n_kinds; i++)
                if (same_kind(&d->kinds[i], &overflow)) {
                        d->kinds[i].count += count_of(denial);
                        return 0;
                }
        return add_kind(d, now, &overflow);
}

void denials_tick(Denials *d, uint64_t now) {
        for (size_t i = 0; i < d->n_kinds;) {
                Denial *k = &d->kinds[i];

                if (now - k->told_usec < DENIALS_WINDOW_USEC) {
                        i++;
                } else if (k->count > 0) {
                        tell(d, k, now);
                        i++;
                } else {
                        forget(d, i); /* a whole window of silence: the next one is a first one again */
                }
        }
}

void denials_flush(Denials *d, const char *run) {
        for (size_t i = 0; i < d->n_kinds;) {
                if (run && strcmp(d->kinds[i].run, run) != 0) {
                        i++;
                        continue;
                }
                if (d->kinds[i].count > 0)
                        tell(d, &d->kinds[i], 0);
                forget(d, i);
        }
}

size_t denials_count(const Denials *d) {
        return d->n_kinds;
}
