/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What resolver.c (names) and resolver-lookup.c (one question on its way) share. */

#include "egress/dns-cache.h"
#include "egress/dns-reply.h"
#include "egress/resolver.h"

enum {
        DNS_TYPE_A = 1,
        DNS_TYPE_AAAA = 28,
};

typedef struct Lookup {
        ResolverQuery *query;    /* borrowed */
        char name[254];          /* asked for now: the end of the chain so far */
        uint16_t type, id;
        unsigned tries, aliases;
        size_t server;           /* which one was asked last */
        bool busy, tcp, no_edns;
        int fd;                  /* owned */
        sd_event_source *io, *timer; /* owned */
        uint8_t question[2 + DNS_QUESTION_MAX]; /* with TCP's length in front */
        size_t n_question, n_sent;
        uint8_t *answer;         /* owned; TCP only */
        size_t n_answer;
        int result;
        uint32_t ttl;            /* seconds; the smallest of the chain's */
        Address addresses[DNS_REPLY_ADDRESSES_MAX];
        size_t n_addresses;
} Lookup;

struct ResolverQuery {
        Resolver *resolver;      /* borrowed */
        ResolverQuery *next, **prev;
        char name[254];
        Lookup lookups[2];       /* A, and AAAA if it is wanted; or AAAA alone */
        size_t n_lookups;
        sd_event_source *timer;  /* owned: waiting for the loop, then the end of its time */
        ResolverDone done;
        void *userdata;          /* borrowed */
};

struct Resolver {
        sd_event *event;         /* ref */
        ResolverServer servers[RESOLVER_SERVERS_MAX];
        size_t n_servers, current; /* current: the one to ask first */
        ResolverQuery *queries;  /* owned */
        size_t n_queries;
        DnsCache *cache;         /* owned */
};

/* Asks; ends with lookup_finished(), perhaps at once. */
void lookup_start(Lookup *l);
/* Closes what it holds. A lookup that is closed is never heard of again. */
void lookup_close(Lookup *l);

/* resolver.c: l->result, l->addresses and l->ttl are set. May free the query. */
void lookup_finished(Lookup *l);
