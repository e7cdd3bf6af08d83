/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Each key has a time at which its next thing would be due if it kept exactly to the rate (the "theoretical arrival time" of the
 * generic cell rate algorithm). A thing may begin as long as that lies no further ahead than the burst takes.
 * Keys are a ring: whoever had a turn goes to its end. A key that is quiet and has nothing waiting is forgotten.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "egress/fair-queue.h"

typedef struct Item Item;
typedef struct Key Key;

struct Item {
        Item *next;    /* owned */
        void *item;
};

struct Key {
        Key *next;     /* owned */
        char *name;    /* owned */
        uint64_t due_usec;
        Item *first, **last; /* owned */
        size_t n_items;
};

struct FairQueue {
        FairQueueLimits limits;
        void (*drop)(void *item);
        Key *keys, **keys_end;   /* owned */
        size_t n_waiting;
};

int fair_queue_new(FairQueue **ret, const FairQueueLimits *limits, void (*drop)(void *item)) {
        FairQueue *q;

        q = malloc(sizeof(*q));
        if (!q)
                return -ENOMEM;
        *q = (FairQueue) { .limits = *limits, .drop = drop };
        q->keys_end = &q->keys;
        *ret = q;
        return 0;
}

/* Takes *at out of the ring; it is the caller's. */
static Key *unlink_key(FairQueue *q, Key **at) {
        Key *k = *at;

        *at = k->next;
        if (!k->next)
                q->keys_end = at;
        k->next = NULL;
        return k;
}

static void append_key(FairQueue *q, Key *k) {
        *q->keys_end = k;
        q->keys_end = &k->next;
}

static Item *take_item(FairQueue *q, Key *k) {
        Item *i = k->first;

        k->first = i->next;
        if (!k->first)
                k->last = &k->first;
        k->n_items--;
        q->n_waiting--;
        return i;
}

static void free_key(FairQueue *q, Key *k) {
        while (k->first) {
                Item *i = take_item(q, k);

                q->drop(i->item);
                free(i);
        }
        free(k->name);
        free(k);
}

FairQueue *fair_queue_free(FairQueue *q) {
        if (!q)
                return NULL;

        while (q->keys)
                free_key(q, unlink_key(q, &q->keys));
        free(q);
        return NULL;
}

/* Finds the key, and on the way forgets those that no longer matter. */
static Key **find_key(FairQueue *q, uint64_t now, const char *name) {
        Key **at = &q->keys;

        while (*at && strcmp((*at)->name, name) != 0) {
                if (!(*at)->first && (*at)->due_usec <= now)
                        free_key(q, unlink_key(q, at));
                else
                        at = &(*at)->next;
        }
        return at;
}

static int add_key(FairQueue *q, const char *name, Key **ret) {
        Key *k;

        k = calloc(1, sizeof(*k));
        if (!k)
                return -ENOMEM;
        k->last = &k->first;
        k->name = strdup(name);
        if (!k->name) {
                free(k);
                return -ENOMEM;
        }
        append_key(q, k);
        *ret = k;
        return 0;
}

static uint64_t wait_of(const FairQueue *q, const Key *k, uint64_t now) {
        uint64_t ahead = q->limits.interval_usec * q->limits.burst;

        return k->due_usec > now + ahead ? k->due_usec - now - ahead : 0;
}

static void begin(const FairQueue *q, Key *k, uint64_t now) {
        k->due_usec = (k->due_usec > now ? k->due_usec : now) + q->limits.interval_usec;
}

int fair_queue_add(FairQueue *q, uint64_t now, const char *key, void *item) {
        Key *k = *find_key(q, now, key);
        Item *i;
        int r;

        if (!k) {
                r = add_key(q, key, &k);
                if (r < 0)
                        return r;
        }

        if (!k->first && wait_of(q, k, now) == 0) {
                begin(q, k, now);
                return FAIR_QUEUE_NOW;
        }
        if (k->n_items >= q->limits.max_waiting)
                return -EBUSY;

        i = malloc(sizeof(*i));
        if (!i)
                return -ENOMEM;
        *i = (Item) { .item = item };
        *k->last = i;
        k->last = &i->next;
        k->n_items++;
        q->n_waiting++;
        return FAIR_QUEUE_LATER;
}

void *fair_queue_next(FairQueue *q, uint64_t now) {
        for (Key **at = &q->keys; *at; at = &(*at)->next) {
                Key *k = *at;
                void *item;
                Item *i;

                if (!k->first || wait_of(q, k, now) > 0)
                        continue;

                begin(q, k, now);
                i = take_item(q, k);
                item = i->item;
                free(i);
                append_key(q, unlink_key(q, at));
                return item;
        }
        return NULL;
}

uint64_t fair_queue_wait_usec(const FairQueue *q, uint64_t now) {
        uint64_t least = UINT64_MAX;

        if (q->n_waiting == 0)
                return least;
        for (const Key *k = q->keys; k; k = k->next)
                if (k->first && wait_of(q, k, now) < least)
                        least = wait_of(q, k, now);
        return least;
}

void fair_queue_forget(FairQueue *q, const char *key) {
        for (Key **at = &q->keys; *at; at = &(*at)->next)
                if (strcmp((*at)->name, key) == 0) {
                        free_key(q, unlink_key(q, at));
                        return;
                }
}
