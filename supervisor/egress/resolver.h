/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A stub resolver on sd-event: names to addresses through the host's resolvers, without ever blocking. */

#include <systemd/sd-event.h>

#include "egress/address.h"
#include "util/cleanup.h"

enum {
        RESOLVER_SERVERS_MAX = 4,
        RESOLVER_QUERIES_MAX = 2048, /* twice as many as requests for which they are: what bounds those is just to each run, this is not */
        RESOLVER_ADDRESSES_MAX = 16,
        RESOLVER_CACHE_MAX = 8192,
        RESOLVER_TRY_MSEC = 1500,   /* one question to one server */
        RESOLVER_QUERY_MSEC = 6000, /* everything that belongs to one name */
};

typedef struct Resolver Resolver;
typedef struct ResolverQuery ResolverQuery;

typedef struct ResolverServer {
        Address address;
        uint16_t port;
} ResolverServer;

int resolver_new(Resolver **ret, sd_event *event);
Resolver *resolver_free(Resolver *r);
DEFINE_CLEANUP(Resolver *, resolver_free)

/* Later questions go to these, in this order; what is cached is forgotten if they differ from before. */
void resolver_set_servers(Resolver *r, const ResolverServer *servers, size_t n);

/* The "nameserver" lines of a resolv.conf; the number of servers. */
size_t resolver_parse_resolv_conf(const char *text, ResolverServer ret[static RESOLVER_SERVERS_MAX]);

/* Called once, from the event loop, never from within resolver_query(). r is 0 with at least one address, -ENOENT if
 * the resolvers are sure that there is none, -ETIMEDOUT or another negative errno if they could not say. IPv6 and
 * IPv4 addresses take turns, in the order in which whoever connects should try them. */
typedef void (*ResolverDone)(int r, const Address *addresses, size_t n, void *userdata);

/* `name` is normalised. IPv6 addresses are asked for only if wanted. -EBUSY beyond RESOLVER_QUERIES_MAX. The
 * query frees itself after `done`; until then resolver_query_free() cancels it. */
int resolver_query(Resolver *r, ResolverQuery **ret, const char *name, bool want_ipv6, ResolverDone done, void *userdata);
/* The same for IPv6 addresses alone, for whose answer it waits: none is -ENOENT only if the resolvers said so. */
int resolver_query_ipv6(Resolver *r, ResolverQuery **ret, const char *name, ResolverDone done, void *userdata);
ResolverQuery *resolver_query_free(ResolverQuery *q);
DEFINE_CLEANUP(ResolverQuery *, resolver_query_free)
