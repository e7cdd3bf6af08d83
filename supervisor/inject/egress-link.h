/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* inject's questions to egressd, and what egressd tells by itself. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"

typedef struct EgressLink EgressLink;

enum { EGRESS_ADDRESSES_MAX = 16 };

typedef struct EgressAnswer {
        bool pass;
        const char *reason, *rule; /* borrowed, for the time of the call */
        int64_t grant;             /* 0: none */
        bool covers;               /* the grant is for every request on the connection: there is nothing to ask within it */
        const char *addresses[EGRESS_ADDRESSES_MAX]; /* borrowed */
        size_t n_addresses;
        const json_t *git;         /* borrowed likewise: what the rule says about git (policy-git.h); NULL: it is not about that */
} EgressAnswer;

/* No heartbeat for ten seconds: everything must be closed. */
typedef void (*EgressLost)(void *userdata);
/* stream 0: the whole connection, else that request on it. */
typedef void (*EgressRevoked)(int64_t grant, int64_t stream, void *userdata);
typedef void (*EgressDone)(const EgressAnswer *answer, void *userdata);

int egress_link_new(EgressLink **ret, sd_event *event, const char *socket_path, EgressLost lost, EgressRevoked revoked, void *userdata);
/* Questions under way end with it, unanswered, and are not to be freed after. */
EgressLink *egress_link_free(EgressLink *l);
DEFINE_CLEANUP(EgressLink *, egress_link_free)

/* egressd allowed a request for that name, and was told that the run is another one than it is to secretd. */
typedef void (*EgressDisagrees)(const char *name, uint16_t port, const char *workflow, const char *stage, void *userdata);

/* What the run is to secretd; both are borrowed. From now on what egressd allows for something else is denied, with the reason "disagreement". */
void egress_link_expect(EgressLink *l, const char *workflow, const char *stage, EgressDisagrees disagrees);

/* The connection that is to carry a request, if there is one. */
typedef struct EgressWithin {
        int64_t grant;
        int32_t stream;      /* which request on it; 0: it carries one at a time */
        const int32_t *open; /* borrowed; all that are under way on it */
        size_t n_open;
} EgressWithin;

/* A question under way. Freeing it forgets the answer (a grant that still comes is given back). */
typedef struct EgressQuestion EgressQuestion;
EgressQuestion *egress_question_free(EgressQuestion *q);

/* May this request be made? Or, with method and path NULL, this connection? `second_path`: its head names another one (agreement-api.h). `within`: the connection that is to carry it, NULL: none yet. `done` is called once, from the
 * loop, unless the question is freed before; the question is over then. An egressd that is
 * not there answers as a deny, "unavailable". -ENOTCONN once it is lost. */
int egress_link_ask(EgressLink *l, const char *name, uint16_t port, const char *method, const char *path, bool second_path, const EgressWithin *within,
                    EgressDone done, void *userdata, EgressQuestion **ret);

/* Whoever has made a connection under a grant outside of the exchanges hears by itself that it is revoked, as long as it holds it; the owner's EgressRevoked hears of the
 * others. Embedded; released before it goes. */
typedef struct EgressHolder EgressHolder;
struct EgressHolder {
        EgressHolder *next, **prev;
        int64_t grant;
        void (*revoked)(void *userdata); /* may release it */
        void *userdata;
};

void egress_link_hold(EgressLink *l, EgressHolder *h, int64_t grant, void (*revoked)(void *userdata), void *userdata);
void egress_link_release(EgressHolder *h);

/* This process ends: egressd is told of all grants that are over, until then (CLOCK_MONOTONIC). Nothing may be asked after. */
void egress_link_tell_last(EgressLink *l, uint64_t until_usec);

/* The connection of that grant is over. */
void egress_link_done(EgressLink *l, int64_t grant, uint64_t bytes_in, uint64_t bytes_out, uint64_t duration_usec);
