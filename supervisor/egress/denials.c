/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A table of kinds by hash, for a guest chooses how many there are; and one count for each run of how many of them are its.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "egress/denials.h"

enum { BUCKETS = 4096 };

typedef struct Kind Kind;

struct Kind {
        Denial denial;
        Kind *next;            /* owned: the next one in its bucket */
};

typedef struct RunKinds RunKinds;

struct RunKinds {
        RunKinds *next;        /* owned */
        char run[ID_LENGTH + 1];
        size_t n_kinds, n_details;
};

struct Denials {
        DenialTell tell;
        void *userdata;        /* borrowed */
        RunKinds *runs;        /* owned */
        size_t n_kinds;
        Kind *buckets[BUCKETS];/* owned */
};

static void forget_details(Denial *d) {
        for (size_t i = 0; i < d->n_details; i++)
                free(d->details[i].text);
        free(d->details);
        d->details = NULL;
        d->n_details = 0;
}

static void denial_done(Denial *d) {
        forget_details(d);
        free(d->unit);
        free(d->rule);
        free(d->name);
        free(d->reason);
        free(d->detail);
}

static Kind *kind_free(Kind *k) {
        if (k)
                denial_done(&k->denial);
        free(k);
        return NULL;
}
DEFINE_CLEANUP(Kind *, kind_free)

int denials_new(Denials **ret, DenialTell tell, void *userdata) {
        Denials *d;

        d = calloc(1, sizeof(*d));
        if (!d)
                return -ENOMEM;

        d->tell = tell;
        d->userdata = userdata;
        *ret = d;
        return 0;
}

Denials *denials_free(Denials *d) {
        if (!d)
                return NULL;

        for (size_t i = 0; i < BUCKETS; i++)
                while (d->buckets[i]) {
                        Kind *next = d->buckets[i]->next;

                        (void) kind_free(d->buckets[i]);
                        d->buckets[i] = next;
                }
        while (d->runs) {
                RunKinds *next = d->runs->next;

                free(d->runs);
                d->runs = next;
        }
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

/* ---- finding ---- */

static bool same_kind(const Denial *a, const Denial *b) {
        return a->port == b->port && strcmp(a->name, b->name) == 0 && strcmp(a->run, b->run) == 0 && strcmp(a->event, b->event) == 0 &&
               strcmp(a->rule, b->rule) == 0 && strcmp(a->reason, b->reason) == 0;
}

static uint64_t hash_text(uint64_t h, const char *s) {
        for (; *s; s++)
                h = (h ^ (uint8_t) *s) * 0x100000001b3ULL;
        return (h ^ 0xff) * 0x100000001b3ULL;
}

static Kind **find_kind(Denials *d, const Denial *denial) {
        uint64_t h = hash_text(hash_text(hash_text(0xcbf29ce484222325ULL ^ denial->port, denial->run), denial->name), denial->reason);
        Kind **at = &d->buckets[(h ^ h >> 32) % BUCKETS];

        while (*at && !same_kind(&(*at)->denial, denial))
                at = &(*at)->next;
        return at;
}

static RunKinds **find_run(Denials *d, const char *run) {
        RunKinds **at = &d->runs;

        while (*at && strcmp((*at)->run, run) != 0)
                at = &(*at)->next;
        return at;
}

static void forget(Denials *d, Kind **at) {
        Kind *k = *at;
        RunKinds **run = find_run(d, k->denial.run), *gone = *run;

        assert(gone); /* each kind is counted */
        *at = k->next;
        d->n_kinds--;
        gone->n_details -= k->denial.n_details;
        if (--gone->n_kinds == 0) {
                *run = gone->next;
                free(gone);
        }
        (void) kind_free(k);
}

/* ---- adding ---- */

static uint64_t count_of(const Denial *denial) {
        return denial->count > 0 ? denial->count : 1;
}

static void tell(Denials *d, Denial *denial, uint64_t now) {
        if (!d->tell(denial, false, d->userdata))
                return;
        (*find_run(d, denial->run))->n_details -= denial->n_details;
        forget_details(denial);
        denial->count = 0;
        denial->told = true;
        denial->told_usec = now;
}

/* What does not fit is in the kind's count and in no detail's. */
static int count_detail(RunKinds *run, Denial *kind, const char *text, uint64_t count) {
        DenialDetail *grown;

        for (size_t i = 0; i < kind->n_details; i++)
                if (strcmp(kind->details[i].text, text) == 0) {
                        kind->details[i].count += count;
                        return 0;
                }
        if (kind->n_details >= DENIALS_DETAILS_MAX || run->n_details >= DENIALS_DETAILS_OF_RUN_MAX || strlen(text) > DENIALS_DETAIL_SIZE)
                return 0;

        grown = reallocarray(kind->details, kind->n_details + 1, sizeof(*grown));
        if (!grown)
                return -ENOMEM;
        kind->details = grown;
        grown[kind->n_details] = (DenialDetail) { .text = strdup(text), .count = count };
        if (!grown[kind->n_details].text)
                return -ENOMEM;
        kind->n_details++;
        run->n_details++;
        return 0;
}

/* One more of a kind that there is. */
static int count_more(Denials *d, Denial *kind, const Denial *denial) {
        int r = 0;

        /* the first of those that the next record is about is named in full, however long */
        if (kind->count == 0) {
                char *detail = NULL;

                r = copy_string(&detail, denial->detail);
                if (r >= 0) {
                        free(kind->detail);
                        kind->detail = detail;
                }
        }
        kind->count += count_of(denial);
        if (r >= 0 && denial->detail)
                r = count_detail(*find_run(d, kind->run), kind, denial->detail, count_of(denial));
        return r;
}

static int count_kind(Denials *d, const char *run) {
        RunKinds **at = find_run(d, run), *new;

        if (!*at) {
                new = calloc(1, sizeof(*new));
                if (!new)
                        return -ENOMEM;
                memcpy(new->run, run, sizeof(new->run));
                *at = new;
        }
        (*at)->n_kinds++;
        d->n_kinds++;
        return 0;
}

static int add_kind(Denials *d, uint64_t now, const Denial *denial) {
        _cleanup_(kind_freep) Kind *k = NULL;
        Kind **at = find_kind(d, denial);
        int r;

        k = calloc(1, sizeof(*k));
        if (!k)
                return -ENOMEM;

        k->denial = (Denial) { .event = denial->event, .port = denial->port };
        memcpy(k->denial.run, denial->run, sizeof(k->denial.run));
        if (copy_string(&k->denial.unit, denial->unit) < 0 || copy_string(&k->denial.rule, denial->rule) < 0 ||
            copy_string(&k->denial.name, denial->name) < 0 || copy_string(&k->denial.reason, denial->reason) < 0 || count_kind(d, denial->run) < 0)
                return -ENOMEM;

        *at = TAKE_PTR(k);
        r = count_more(d, &(*at)->denial, denial);
        tell(d, &(*at)->denial, now);
        return r;
}

int denials_add(Denials *d, uint64_t now, const Denial *denial) {
        Kind *known = *find_kind(d, denial);
        Denial overflow = *denial;
        const RunKinds *run;

        if (known)
                return count_more(d, &known->denial, denial);

        run = *find_run(d, denial->run);
        if (!run || run->n_kinds < DENIALS_MAX)
                return add_kind(d, now, denial);

        /* A guest that asks for ever new names fills its own table only, and what it gets is one common kind. */
        overflow.name = (char *) "";
        overflow.port = 0;
        overflow.rule = (char *) "overflow";
        overflow.detail = (char *) "too many different denials; counted together";
        known = *find_kind(d, &overflow);
        return known ? count_more(d, &known->denial, &overflow) : add_kind(d, now, &overflow);
}

/* ---- telling ---- */

void denials_tick(Denials *d, uint64_t now) {
        if (d->n_kinds == 0)
                return;

        for (size_t i = 0; i < BUCKETS; i++)
                for (Kind **at = &d->buckets[i]; *at;) {
                        Denial *denial = &(*at)->denial;

                        if (denial->told && now - denial->told_usec < DENIALS_WINDOW_USEC) {
                                at = &(*at)->next;
                        } else if (denial->count > 0) {
                                tell(d, denial, now);
                                at = &(*at)->next;
                        } else {
                                forget(d, at); /* a whole window of silence: the next one is a first one again */
                        }
                }
}

/* What is told at the end may be too much for one record each. There are few events and reasons. */
typedef struct Sums {
        Denial denials[32];
        size_t n;
} Sums;

static bool add_to_sums(Sums *s, const Denial *denial) {
        for (size_t i = 0; i < s->n; i++)
                if (s->denials[i].event == denial->event && strcmp(s->denials[i].reason, denial->reason) == 0 &&
                    strcmp(s->denials[i].run, denial->run) == 0) {
                        s->denials[i].count += denial->count;
                        return true;
                }
        if (s->n >= ELEMENTSOF(s->denials))
                return false;

        s->denials[s->n] = (Denial) {
                .event = denial->event,
                .unit = strdup(denial->unit ?: ""),
                .rule = (char *) "overflow",
                .name = (char *) "",
                .reason = strdup(denial->reason),
                .detail = (char *) "what was left at the end, counted together",
                .count = denial->count,
        };
        if (!s->denials[s->n].unit || !s->denials[s->n].reason) {
                free(s->denials[s->n].unit);
                free(s->denials[s->n].reason);
                return false;
        }
        memcpy(s->denials[s->n].run, denial->run, sizeof(denial->run));
        s->n++;
        return true;
}

void denials_flush(Denials *d, const char *run) {
        size_t n_told = 0;
        Sums sums = {};

        for (size_t i = 0; i < BUCKETS; i++)
                for (Kind **at = &d->buckets[i]; *at;) {
                        Denial *denial = &(*at)->denial;

                        if (run && strcmp(denial->run, run) != 0) {
                                at = &(*at)->next;
                                continue;
                        }
                        if (denial->count > 0 && (n_told++ < DENIALS_LAST_MAX || !add_to_sums(&sums, denial)))
                                (void) d->tell(denial, true, d->userdata);
                        forget(d, at);
                }

        for (size_t i = 0; i < sums.n; i++) {
                (void) d->tell(&sums.denials[i], true, d->userdata);
                free(sums.denials[i].unit);
                free(sums.denials[i].reason);
        }
}

size_t denials_count(const Denials *d) {
        return d->n_kinds;
}
