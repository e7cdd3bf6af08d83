/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the host's resolvers said, for as long as they said it holds. Bounded in number and time. No I/O, no clock. */

#include <stddef.h>
#include <stdint.h>

#include "egress/address.h"
#include "util/cleanup.h"

typedef struct DnsCache DnsCache;

typedef struct DnsCacheAnswer {
        int result;                /* 0; or -ENOENT: there is none; or why nobody could say */
        const Address *addresses;  /* borrowed until the next dns_cache_put() or dns_cache_clear() */
        size_t n_addresses;
} DnsCacheAnswer;

/* At most `size` answers: a new one takes the place of the oldest. */
int dns_cache_new(DnsCache **ret, size_t size);
DnsCache *dns_cache_free(DnsCache *c);
DEFINE_CLEANUP(DnsCache *, dns_cache_free)

/* Remembers an answer until now + ttl_usec, in place of an earlier one; nothing at all for a ttl of 0, nor without memory. */
void dns_cache_put(DnsCache *c, uint64_t now, const char *name, uint16_t type, uint64_t ttl_usec,
                   int result, const Address *addresses, size_t n_addresses);
bool dns_cache_find(DnsCache *c, uint64_t now, const char *name, uint16_t type, DnsCacheAnswer *ret);
void dns_cache_clear(DnsCache *c);
size_t dns_cache_count(const DnsCache *c);
