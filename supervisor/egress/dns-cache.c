/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A table of chains by a hash of (name, type), and one list through all entries in the order in which they were put, whose
 * head is the next to go. The hash is seeded: names come from policies' wildcards, that is, from guests.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "egress/dns-cache.h"

typedef struct Entry Entry;

struct Entry {
        Entry *chain;             /* owned: the next one with this hash */
        Entry *older, *newer;     /* borrowed */
        uint64_t expires_usec;
        uint16_t type;
        int result;
        size_t n_addresses;
        char *name;               /* behind the addresses */
        Address addresses[];
};

struct DnsCache {
        uint64_t seed;
        size_t size, n_entries, n_buckets;
        Entry *oldest, *newest;   /* borrowed */
        Entry *buckets[];         /* owned */
};

int dns_cache_new(DnsCache **ret, size_t size) {
        size_t n_buckets = 16;
        DnsCache *c;

        while (n_buckets < size)
                n_buckets *= 2;
        c = calloc(1, sizeof(*c) + n_buckets * sizeof(c->buckets[0]));
        if (!c)
                return -ENOMEM;
        c->size = size;
        c->n_buckets = n_buckets;
        if (getrandom(&c->seed, sizeof(c->seed), 0) != sizeof(c->seed)) {
                free(c);
                return -EIO;
        }
        *ret = c;
        return 0;
}

static Entry **bucket_of(DnsCache *c, const char *name, uint16_t type) {
        uint64_t h = c->seed ^ type;

        for (; *name; name++)
                h = (h ^ (uint8_t) *name) * 0x100000001b3ULL;
        h ^= h >> 32;
        return &c->buckets[h & (c->n_buckets - 1)];
}

static Entry **find(DnsCache *c, const char *name, uint16_t type) {
        Entry **p = bucket_of(c, name, type);

        while (*p && ((*p)->type != type || strcmp((*p)->name, name) != 0))
                p = &(*p)->chain;
        return p;
}

static void forget(DnsCache *c, Entry **at) {
        Entry *e = *at;

        *at = e->chain;
        *(e->older ? &e->older->newer : &c->oldest) = e->newer;
        *(e->newer ? &e->newer->older : &c->newest) = e->older;
        c->n_entries--;
        free(e);
}

void dns_cache_clear(DnsCache *c) {
        while (c->oldest)
                forget(c, find(c, c->oldest->name, c->oldest->type));
}

DnsCache *dns_cache_free(DnsCache *c) {
        if (c)
                dns_cache_clear(c);
        free(c);
        return NULL;
}

void dns_cache_put(DnsCache *c, uint64_t now, const char *name, uint16_t type, uint64_t ttl_usec,
                   int result, const Address *addresses, size_t n_addresses) {
        Entry **at = find(c, name, type), *e;
        size_t n_name = strlen(name) + 1;

        if (*at)
                forget(c, at);
        if (ttl_usec == 0 || c->size == 0)
                return;
        if (c->n_entries >= c->size)
                forget(c, find(c, c->oldest->name, c->oldest->type));

        e = malloc(sizeof(*e) + n_addresses * sizeof(e->addresses[0]) + n_name);
        if (!e)
                return; /* it is asked for again */
        *e = (Entry) {
                .older = c->newest,
                .expires_usec = now + ttl_usec,
                .type = type,
                .result = result,
                .n_addresses = n_addresses,
                .name = (char *) &e->addresses[n_addresses],
        };
        if (n_addresses > 0)
                memcpy(e->addresses, addresses, n_addresses * sizeof(e->addresses[0]));
        memcpy(e->name, name, n_name);

        at = bucket_of(c, name, type);
        e->chain = *at;
        *at = e;
        *(c->newest ? &c->newest->newer : &c->oldest) = e;
        c->newest = e;
        c->n_entries++;
}

bool dns_cache_find(DnsCache *c, uint64_t now, const char *name, uint16_t type, DnsCacheAnswer *ret) {
        Entry **at = find(c, name, type);

        if (!*at)
                return false;
        if ((*at)->expires_usec <= now) {
                forget(c, at);
                return false;
        }

        *ret = (DnsCacheAnswer) { .result = (*at)->result, .addresses = (*at)->addresses, .n_addresses = (*at)->n_addresses };
        return true;
}

size_t dns_cache_count(const DnsCache *c) {
        return c->n_entries;
}
