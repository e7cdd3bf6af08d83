/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Denials on their way to the audit log: the first of its kind at once, its repetitions counted and told every
 * ten seconds, so that a guest that knocks a thousand times a second writes six records a minute. No I/O, no clock.
 * Nothing that was counted is lost: the counts of all records of a run are the number of its denials.
 *
 * What a kind's denials differ in (which request was denied) is kept beside the count, so that one record names all that was asked for. A guest
 * chooses how much that is: so there is a bound for a kind and one for a run, and what is beyond is counted. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/cleanup.h"
#include "util/text.h"

enum {
        DENIALS_WINDOW_USEC = 10 * 1000 * 1000,
        DENIALS_LAST_MAX = 64,
        DENIALS_MAX = 1024, /* kinds of one run at a time; beyond it, the rest is told as one kind */
        DENIALS_DETAILS_MAX = 32,         /* different ones of a kind between two records */
        DENIALS_DETAILS_OF_RUN_MAX = 256, /* of all its kinds at a time */
        DENIALS_DETAIL_SIZE = 256,        /* a longer one is only counted */
};

typedef struct DenialDetail {
        char *text;          /* owned */
        uint64_t count;
} DenialDetail;

typedef struct Denial {
        char run[ID_LENGTH + 1];
        const char *event;  /* static: "egress.deny", "dns.refused" */
        char *unit, *rule, *name, *reason, *detail; /* owned; detail is the first one's and may be NULL: a request, an address, a query type */
        uint16_t port;
        uint64_t count;      /* since the last time it was told */
        DenialDetail *details; /* owned; since then: what they were about, as far as it was kept. Not read from what is added */
        size_t n_details;
        uint64_t told_usec;
        bool told;           /* at all */
} Denial;

typedef struct Denials Denials;

/* Writes one record about `d`, which stands for d->count denials. False: not now, again later; with `last` there is no later. */
typedef bool (*DenialTell)(const Denial *d, bool last, void *userdata);

int denials_new(Denials **ret, DenialTell tell, void *userdata);
Denials *denials_free(Denials *d);
DEFINE_CLEANUP(Denials *, denials_free)

/* denial->count is how many it stands for, 0 for one. The strings are copied. Kinds are told apart by run, event, rule, name, port and reason (of which there are few); unit is the first one's. */
int denials_add(Denials *d, uint64_t now, const Denial *denial);

/* Tells what is due. Call once a second or so. */
void denials_tick(Denials *d, uint64_t now);

/* Tells what is left of one run (NULL: of all) and forgets it: DENIALS_LAST_MAX kinds, and the rest in sum by event and reason. */
void denials_flush(Denials *d, const char *run);

size_t denials_count(const Denials *d);
