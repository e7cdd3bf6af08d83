/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Two sessions of HTTP/2, one toward the guest and one toward the origin, whose streams are paired one to one. Bytes in, bytes out: the
 * connections are the owner's. */

#include "inject/request.h"

typedef struct H2Pair H2Pair;

/* Something may have become possible. Only from the loop, never from within a call of the owner's. */
typedef void (*H2Wake)(void *userdata);

typedef struct H2Origin {
        const char *name; /* borrowed, for as long as the pair */
        const char *rule; /* borrowed likewise; what it is inspected for. NULL: not known */
        uint16_t port;
        int64_t grant;    /* what its connection was opened under */
        bool covered;     /* which is for every request on it */
        const Refusal *refusal; /* copied; not NULL: there is no origin, and this is why: each request gets it for an answer */
} H2Origin;

/* The guest's session starts with its preface. */
int h2_pair_new(H2Pair **ret, ExchangeContext *c, const H2Origin *origin, H2Wake wake, void *userdata);
H2Pair *h2_pair_free(H2Pair *p);
DEFINE_CLEANUP(H2Pair *, h2_pair_free)

/* Bytes of one side; all of them are used. Negative errno: nothing can be done any more. */
int h2_pair_take_guest(H2Pair *p, const void *data, size_t size);
int h2_pair_take_origin(H2Pair *p, const void *data, size_t size);
/* The origin says nothing any more: what it owes is answered with an error, and the guest is told to go. */
int h2_pair_end_origin(H2Pair *p);

/* Appends what is to be sent, up to about max bytes. 1 if anything was, 0 if not. */
int h2_pair_give_guest(H2Pair *p, Buffer *out, size_t max);
int h2_pair_give_origin(H2Pair *p, Buffer *out, size_t max);

/* Once nothing more is to be sent, the guest's connection is to be closed. */
bool h2_pair_is_over(const H2Pair *p);

/* The credentials that its connection to the origin is for, a bit each by their number; 0: none was on it yet. */
uint64_t h2_pair_carried(const H2Pair *p);

/* The policy does not allow that stream of the guest's any more; there may be none. Negative errno as above. */
int h2_pair_cut(H2Pair *p, int32_t id);

/* Looks after deadlines; to be called every few seconds. */
int h2_pair_tick(H2Pair *p);
