/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Whose turn is it? Each key (a run) may begin so many things a second; what is beyond that waits, and those that wait take turns
 * by key. So one that asks without end costs the others next to nothing. No I/O, no clock. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/cleanup.h"

typedef struct FairQueue FairQueue;

typedef struct FairQueueLimits {
        uint64_t interval_usec; /* one begins every so often in the long run */
        uint64_t burst;         /* and so many at once after a pause */
        size_t max_waiting;     /* of one key */
} FairQueueLimits;

/* `drop` is called for an item that is given up (fair_queue_forget(), fair_queue_free()). */
int fair_queue_new(FairQueue **ret, const FairQueueLimits *limits, void (*drop)(void *item));
FairQueue *fair_queue_free(FairQueue *q);
DEFINE_CLEANUP(FairQueue *, fair_queue_free)

enum {
        _FAIR_QUEUE_SUCCESS,
        FAIR_QUEUE_NOW,    /* it is its turn: the item is the caller's */
        FAIR_QUEUE_LATER,  /* kept, until fair_queue_next() gives it back */
};

/* -EBUSY if too many of that key wait: the item stays the caller's. */
int fair_queue_add(FairQueue *q, uint64_t now, const char *key, void *item);

/* The next item whose turn has come; the caller's. NULL if there is none yet. */
void *fair_queue_next(FairQueue *q, uint64_t now);

/* How long until fair_queue_next() has something; UINT64_MAX if nothing waits. */
uint64_t fair_queue_wait_usec(const FairQueue *q, uint64_t now);

/* Drops what waits of that key. */
void fair_queue_forget(FairQueue *q, const char *key);
