/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A ResolverQuery is one name; it has one Lookup for each record type (resolver-lookup.c). Lookups end on their own or with
 * their query. A query ends when all its lookups have, or when its time is over, or a little after one of them has addresses: the
 * other family must not hold up a connection (RFC 8305, 3).
 *
 * The addresses of the two families take turns, IPv6 first (RFC 8305, 4), so that whoever connects to one after the other
 * has tried both families soon.
 *
 * Answers are cached for their TTL, but at most five minutes, and not at all for a TTL of zero. "There is none" is kept as
 * RFC 2308 says, likewise bounded; that nobody could say, for a second (RFC 9520). A change of servers empties the cache.
 * Addresses are not judged here.
 */

#include <errno.h>
#include <string.h>

#include "egress/resolver-private.h"
#include "util/text.h"

enum {
        TTL_MAX = 300,
        TTL_FAILED = 1,
        IPV6_USEC = 50 * 1000,  /* for AAAA, once there are A: RFC 8305's "Resolution Delay" */
        IPV4_USEC = 250 * 1000, /* for A, once there are AAAA: which alone may lead nowhere */
};

int resolver_new(Resolver **ret, sd_event *event) {
        Resolver *r;
        int k;

        r = calloc(1, sizeof(*r));
        if (!r)
                return -ENOMEM;

        k = dns_cache_new(&r->cache, RESOLVER_CACHE_MAX);
        if (k < 0) {
                free(r);
                return k;
        }

        r->event = sd_event_ref(event);
        *ret = r;
        return 0;
}

Resolver *resolver_free(Resolver *r) {
        if (!r)
                return NULL;

        while (r->queries)
                (void) resolver_query_free(r->queries);
        dns_cache_free(r->cache);
        sd_event_unref(r->event);
        free(r);
        return NULL;
}

void resolver_set_servers(Resolver *r, const ResolverServer *servers, size_t n) {
        bool same;

        if (n > RESOLVER_SERVERS_MAX)
                n = RESOLVER_SERVERS_MAX;

        same = n == r->n_servers;
        for (size_t i = 0; same && i < n; i++)
                same = address_equal(&servers[i].address, &r->servers[i].address) && servers[i].port == r->servers[i].port;
        if (same)
                return;

        memcpy(r->servers, servers, n * sizeof(*servers));
        r->n_servers = n;
        r->current = 0;
        dns_cache_clear(r->cache);
}

size_t resolver_parse_resolv_conf(const char *text, ResolverServer ret[static RESOLVER_SERVERS_MAX]) {
        size_t n = 0;

        while (*text && n < RESOLVER_SERVERS_MAX) {
                size_t length = strcspn(text, "\n");
                char line[128], *word, *save = NULL;

                if (length < sizeof(line)) {
                        memcpy(line, text, length);
                        line[length] = '\0';
                        word = strtok_r(line, " \t\r", &save);
                        if (word && strcmp(word, "nameserver") == 0) {
                                word = strtok_r(NULL, " \t\r", &save);
                                if (word && address_parse(word, &ret[n].address) >= 0)
                                        ret[n++].port = 53;
                        }
                }
                text += length + (text[length] == '\n');
        }
        return n;
}

/* ---- the end of a query ---- */

ResolverQuery *resolver_query_free(ResolverQuery *q) {
        if (!q)
                return NULL;

        for (size_t i = 0; i < q->n_lookups; i++)
                lookup_close(&q->lookups[i]);
        sd_event_source_disable_unref(q->timer);
        *q->prev = q->next;
        if (q->next)
                q->next->prev = q->prev;
        q->resolver->n_queries--;
        free(q);
        return NULL;
}

static size_t interleave(const Lookup *first, const Lookup *second, Address ret[static RESOLVER_ADDRESSES_MAX]) {
        size_t n = 0;

        for (size_t i = 0; i < DNS_REPLY_ADDRESSES_MAX; i++) {
                if (i < first->n_addresses && n < RESOLVER_ADDRESSES_MAX)
                        ret[n++] = first->addresses[i];
                if (second && i < second->n_addresses && n < RESOLVER_ADDRESSES_MAX)
                        ret[n++] = second->addresses[i];
        }
        return n;
}

static void query_finish(ResolverQuery *q) {
        Address addresses[RESOLVER_ADDRESSES_MAX];
        int result = -ENOENT;
        size_t n;

        n = q->n_lookups == 2 ? interleave(&q->lookups[1], &q->lookups[0], addresses) : interleave(&q->lookups[0], NULL, addresses);
        for (size_t i = 0; i < q->n_lookups; i++) {
                const Lookup *l = &q->lookups[i];

                if (l->busy)
                        result = -ETIMEDOUT;
                else if (l->result < 0 && result == -ENOENT)
                        result = l->result;
        }

        q->done(n > 0 ? 0 : result, addresses, n, q->userdata);
        (void) resolver_query_free(q);
}

static int query_on_deadline(sd_event_source *s, uint64_t usec, void *userdata) {
        query_finish(userdata);
        return 0;
}

static int query_set_timer(ResolverQuery *q, uint64_t usec) {
        q->timer = sd_event_source_disable_unref(q->timer);
        return sd_event_add_time_relative(q->resolver->event, &q->timer, CLOCK_MONOTONIC, usec, 1000, query_on_deadline, q);
}

/* All but this one have ended. If there are addresses already, it gets a little more time only. False: none at all. */
static bool query_wait_for_other(ResolverQuery *q, const Lookup *busy) {
        const Lookup *other = &q->lookups[busy == &q->lookups[0]];

        if (other->n_addresses == 0)
                return true;
        return query_set_timer(q, busy->type == DNS_TYPE_A ? IPV4_USEC : IPV6_USEC) >= 0;
}

static void query_go_on(ResolverQuery *q) {
        const Lookup *busy = NULL;

        for (size_t i = 0; i < q->n_lookups; i++)
                if (q->lookups[i].busy)
                        busy = &q->lookups[i];

        if (!busy || !query_wait_for_other(q, busy))
                query_finish(q);
}

static void cache_lookup(const Lookup *l) {
        Resolver *r = l->query->resolver;
        uint32_t ttl = l->ttl > TTL_MAX ? TTL_MAX : l->ttl;

        if (l->result < 0 && l->result != -ENOENT)
                ttl = TTL_FAILED;
        dns_cache_put(r->cache, time_boottime(), l->query->name, l->type, ttl * 1000000ULL, l->result, l->addresses, l->n_addresses);
}

void lookup_finished(Lookup *l) {
        cache_lookup(l);
        query_go_on(l->query);
}

/* ---- queries ---- */

/* True if the answer was at hand. */
static bool answer_from_cache(Lookup *l) {
        DnsCacheAnswer known;

        if (!dns_cache_find(l->query->resolver->cache, time_boottime(), l->query->name, l->type, &known))
                return false;

        l->busy = false;
        l->result = known.result;
        l->n_addresses = known.n_addresses;
        memcpy(l->addresses, known.addresses, known.n_addresses * sizeof(Address));
        return true;
}

/* The first turn of the loop: only now may anything be answered. */
static int query_on_begin(sd_event_source *s, uint64_t usec, void *userdata) {
        ResolverQuery *q = userdata;
        Lookup *pending[2];
        size_t n = 0;

        if (query_set_timer(q, RESOLVER_QUERY_MSEC * 1000ULL) < 0) {
                query_finish(q);
                return 0;
        }

        for (size_t i = 0; i < q->n_lookups; i++)
                if (!answer_from_cache(&q->lookups[i]))
                        pending[n++] = &q->lookups[i];
        if (n == 0 || (n < q->n_lookups && !query_wait_for_other(q, pending[0]))) {
                query_finish(q);
                return 0;
        }

        for (size_t i = 0; i < n; i++)
                lookup_start(pending[i]); /* only the last one can end the query, by which it may be gone */
        return 0;
}

static int query_new(Resolver *r, ResolverQuery **ret, const char *name, const uint16_t *types, size_t n_types, ResolverDone done, void *userdata) {
        ResolverQuery *q;
        int k;

        if (strlen(name) >= sizeof(q->name))
                return -EINVAL;
        if (r->n_queries >= RESOLVER_QUERIES_MAX)
                return -EBUSY;

        q = calloc(1, sizeof(*q));
        if (!q)
                return -ENOMEM;

        q->resolver = r;
        q->done = done;
        q->userdata = userdata;
        strcpy(q->name, name);
        q->n_lookups = n_types;
        for (size_t i = 0; i < q->n_lookups; i++) {
                q->lookups[i] = (Lookup) { .query = q, .type = types[i], .busy = true, .fd = -1, .ttl = UINT32_MAX };
                strcpy(q->lookups[i].name, name);
        }

        q->next = r->queries;
        q->prev = &r->queries;
        if (q->next)
                q->next->prev = &q->next;
        r->queries = q;
        r->n_queries++;

        k = sd_event_add_time_relative(r->event, &q->timer, CLOCK_MONOTONIC, 0, 1, query_on_begin, q);
        if (k < 0) {
                (void) resolver_query_free(q);
                return k;
        }

        *ret = q;
        return 0;
}

int resolver_query(Resolver *r, ResolverQuery **ret, const char *name, bool want_ipv6, ResolverDone done, void *userdata) {
        return query_new(r, ret, name, (const uint16_t[]) { DNS_TYPE_A, DNS_TYPE_AAAA }, want_ipv6 ? 2 : 1, done, userdata);
}

int resolver_query_ipv6(Resolver *r, ResolverQuery **ret, const char *name, ResolverDone done, void *userdata) {
        return query_new(r, ret, name, (const uint16_t[]) { DNS_TYPE_AAAA }, 1, done, userdata);
}
