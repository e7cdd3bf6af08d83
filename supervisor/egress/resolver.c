/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A ResolverQuery is one name; it has one Lookup for each record type. A Lookup is one question on its way: over UDP
 * with a socket of its own (connected, so that the kernel drops what comes from elsewhere, and with a port that the
 * kernel chose at random), to the next server after a timeout or a refusal, over TCP after a truncated answer,
 * and on to the end of a chain of aliases. Lookups end on their own or with their query; a query ends when
 * all its lookups have, or when its time is over.
 *
 * Answers are cached for their TTL, but at least a second, at most five minutes, and a "no" for five seconds.
 * Addresses are not judged here.
 */

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "egress/dns-reply.h"
#include "egress/resolver.h"
#include "util/text.h"

enum {
        TYPE_A = 1,
        TYPE_AAAA = 28,
        TRIES_MAX = 4,
        ALIASES_MAX = 4,
        TTL_MIN = 1,
        TTL_MAX = 300,
        TTL_NOTHING = 5,
};

typedef struct Lookup {
        ResolverQuery *query;    /* borrowed */
        char name[254];          /* asked for now: the end of the chain so far */
        uint16_t type, id;
        unsigned tries, aliases;
        bool busy, tcp;
        int fd;                  /* owned */
        sd_event_source *io, *timer; /* owned */
        uint8_t question[2 + DNS_QUESTION_MAX]; /* with TCP's length in front */
        size_t n_question, n_sent;
        uint8_t *answer;         /* owned; TCP only */
        size_t n_answer;
        int result;
        uint32_t ttl;
        Address addresses[DNS_REPLY_ADDRESSES_MAX];
        size_t n_addresses;
} Lookup;

struct ResolverQuery {
        Resolver *resolver;      /* borrowed */
        ResolverQuery *next, **prev;
        char name[254];
        Lookup lookups[2];
        size_t n_lookups;
        sd_event_source *timer;  /* owned: the end of its time, or of waiting for the loop */
        ResolverDone done;
        void *userdata;          /* borrowed */
};

typedef struct CacheEntry {
        char name[254];
        uint16_t type;
        uint64_t expires_usec;   /* 0: free */
        Address addresses[DNS_REPLY_ADDRESSES_MAX];
        size_t n_addresses;      /* 0: there is none */
} CacheEntry;

struct Resolver {
        sd_event *event;         /* ref */
        ResolverServer servers[RESOLVER_SERVERS_MAX];
        size_t n_servers;
        ResolverQuery *queries;  /* owned */
        size_t n_queries;
        CacheEntry *cache;       /* owned; RESOLVER_CACHE_MAX */
};

int resolver_new(Resolver **ret, sd_event *event) {
        Resolver *r;

        r = calloc(1, sizeof(*r));
        if (!r)
                return -ENOMEM;

        r->cache = calloc(RESOLVER_CACHE_MAX, sizeof(*r->cache));
        if (!r->cache) {
                free(r);
                return -ENOMEM;
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
        free(r->cache);
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
        memset(r->cache, 0, RESOLVER_CACHE_MAX * sizeof(*r->cache));
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

/* ---- cache ---- */

static CacheEntry *cache_find(Resolver *r, const char *name, uint16_t type) {
        uint64_t now = time_boottime();

        for (size_t i = 0; i < RESOLVER_CACHE_MAX; i++) {
                CacheEntry *e = &r->cache[i];

                if (e->expires_usec > now && e->type == type && strcmp(e->name, name) == 0)
                        return e;
        }
        return NULL;
}

static void cache_put(Resolver *r, const Lookup *l) {
        CacheEntry *e = cache_find(r, l->query->name, l->type);
        uint32_t ttl = l->ttl < TTL_MIN ? TTL_MIN : l->ttl > TTL_MAX ? TTL_MAX : l->ttl;

        if (!e) {
                e = &r->cache[0];
                for (size_t i = 1; i < RESOLVER_CACHE_MAX; i++)
                        if (r->cache[i].expires_usec < e->expires_usec)
                                e = &r->cache[i];
        }

        strcpy(e->name, l->query->name);
        e->type = l->type;
        e->expires_usec = time_boottime() + ttl * 1000000ULL;
        memcpy(e->addresses, l->addresses, sizeof(e->addresses));
        e->n_addresses = l->n_addresses;
}

/* ---- the end of a query ---- */

static void lookup_close(Lookup *l) {
        l->io = sd_event_source_disable_unref(l->io);
        l->timer = sd_event_source_disable_unref(l->timer);
        l->fd = fd_close(l->fd);
        free(l->answer);
        l->answer = NULL;
        l->n_answer = l->n_sent = 0;
}

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

/* IPv4 first: whoever connects tries one after the other. */
static void query_finish(ResolverQuery *q) {
        Address addresses[RESOLVER_ADDRESSES_MAX];
        size_t n = 0;
        int result = -ENOENT;

        for (size_t i = 0; i < q->n_lookups; i++) {
                const Lookup *l = &q->lookups[i];

                for (size_t j = 0; j < l->n_addresses && n < ELEMENTSOF(addresses); j++)
                        addresses[n++] = l->addresses[j];
                if (l->busy)
                        result = -ETIMEDOUT;
                else if (l->result < 0 && result == -ENOENT)
                        result = l->result;
        }

        q->done(n > 0 ? 0 : result, addresses, n, q->userdata);
        (void) resolver_query_free(q);
}

static void lookup_finish(Lookup *l, int result) {
        ResolverQuery *q = l->query;

        lookup_close(l);
        l->busy = false;
        l->result = result;
        if (result == 0 || result == -ENOENT)
                cache_put(q->resolver, l);

        for (size_t i = 0; i < q->n_lookups; i++)
                if (q->lookups[i].busy)
                        return;
        query_finish(q);
}

/* ---- one question ---- */

static void lookup_start(Lookup *l);

static void lookup_try_next(Lookup *l, int error) {
        lookup_close(l);
        l->tcp = false;
        if (++l->tries >= TRIES_MAX)
                lookup_finish(l, error);
        else
                lookup_start(l);
}

static void lookup_on_answer(Lookup *l, const uint8_t *data, size_t size) {
        DnsReply reply = {};

        switch (dns_reply_read(data, size, l->name, l->type, l->id, &reply)) {
        case DNS_REPLY_ADDRESSES:
                memcpy(l->addresses, reply.addresses, sizeof(l->addresses));
                l->n_addresses = reply.n_addresses;
                l->ttl = reply.ttl < l->ttl ? reply.ttl : l->ttl;
                lookup_finish(l, 0);
                return;

        case DNS_REPLY_ALIAS:
                if (++l->aliases > ALIASES_MAX || reply.name[0] == '\0') {
                        lookup_finish(l, -ELOOP);
                        return;
                }
                strcpy(l->name, reply.name);
                l->ttl = reply.ttl < l->ttl ? reply.ttl : l->ttl;
                lookup_close(l);
                l->tcp = false;
                lookup_start(l);
                return;

        case DNS_REPLY_NOTHING:
                l->ttl = TTL_NOTHING;
                lookup_finish(l, -ENOENT);
                return;

        case DNS_REPLY_TRUNCATED:
                if (l->tcp) {
                        lookup_try_next(l, -EBADMSG);
                        return;
                }
                lookup_close(l);
                l->tcp = true;
                lookup_start(l);
                return;

        case DNS_REPLY_FAILED:
                lookup_try_next(l, -EBADMSG);
                return;

        case DNS_REPLY_FOREIGN:
                if (l->tcp)
                        lookup_try_next(l, -EBADMSG);
                return; /* over UDP: somebody guesses; wait for the real one */
        }
}

static int lookup_on_udp(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Lookup *l = userdata;
        uint8_t data[4096];
        ssize_t n;

        n = recv(fd, data, sizeof(data), MSG_DONTWAIT);
        if (n < 0) {
                if (errno != EAGAIN && errno != EINTR)
                        lookup_try_next(l, -errno); /* nobody listens there */
                return 0;
        }

        lookup_on_answer(l, data, (size_t) n);
        return 0;
}

/* Sends the question, then collects two bytes of length and as many as they say. */
static int lookup_on_tcp(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Lookup *l = userdata;
        size_t wanted;
        ssize_t n;

        if (l->n_sent < l->n_question) {
                n = send(fd, l->question + l->n_sent, l->n_question - l->n_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
                if (n < 0) {
                        if (errno != EAGAIN && errno != EINTR)
                                lookup_try_next(l, -errno);
                        return 0;
                }
                l->n_sent += (size_t) n;
                if (l->n_sent == l->n_question)
                        (void) sd_event_source_set_io_events(s, EPOLLIN);
                return 0;
        }

        wanted = l->n_answer < 2 ? 2 : 2 + ((size_t) l->answer[0] << 8 | l->answer[1]);
        n = recv(fd, l->answer + l->n_answer, wanted - l->n_answer, MSG_DONTWAIT);
        if (n <= 0) {
                if (n == 0 || (errno != EAGAIN && errno != EINTR))
                        lookup_try_next(l, n == 0 ? -ECONNRESET : -errno);
                return 0;
        }

        l->n_answer += (size_t) n;
        if (l->n_answer >= 2 && l->n_answer == 2 + ((size_t) l->answer[0] << 8 | l->answer[1]))
                lookup_on_answer(l, l->answer + 2, l->n_answer - 2);
        return 0;
}

static int lookup_on_timeout(sd_event_source *s, uint64_t usec, void *userdata) {
        lookup_try_next(userdata, -ETIMEDOUT);
        return 0;
}

static int lookup_connect(Lookup *l, const ResolverServer *server) {
        struct sockaddr_in in4 = { .sin_family = AF_INET, .sin_port = htobe16(server->port) };
        struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htobe16(server->port) };
        bool v4 = server->address.family == AF_INET;
        int r;

        memcpy(&in4.sin_addr, server->address.bytes, sizeof(in4.sin_addr));
        memcpy(&in6.sin6_addr, server->address.bytes, sizeof(in6.sin6_addr));

        l->fd = socket(server->address.family, (l->tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (l->fd < 0)
                return -errno;
        r = connect(l->fd, v4 ? (struct sockaddr *) &in4 : (struct sockaddr *) &in6, v4 ? sizeof(in4) : sizeof(in6));
        if (r < 0 && errno != EINPROGRESS)
                return -errno;
        return 0;
}

static int lookup_send(Lookup *l) {
        Resolver *r = l->query->resolver;
        int k, n;

        if (r->n_servers == 0)
                return -ENOTCONN;
        if (getrandom(&l->id, sizeof(l->id), 0) != sizeof(l->id))
                return -EIO;

        n = dns_question_write(l->name, l->type, l->id, l->question + 2);
        if (n < 0)
                return n;
        l->question[0] = (uint8_t) (n >> 8);
        l->question[1] = (uint8_t) n;
        l->n_question = (size_t) n + 2;

        k = lookup_connect(l, &r->servers[l->tries % r->n_servers]);
        if (k < 0)
                return k;

        if (l->tcp) {
                l->answer = malloc(2 + DNS_REPLY_MAX);
                if (!l->answer)
                        return -ENOMEM;
        } else if (send(l->fd, l->question + 2, (size_t) n, MSG_NOSIGNAL) < 0)
                return -errno;

        k = sd_event_add_io(r->event, &l->io, l->fd, l->tcp ? EPOLLOUT : EPOLLIN, l->tcp ? lookup_on_tcp : lookup_on_udp, l);
        if (k < 0)
                return k;

        return sd_event_add_time_relative(r->event, &l->timer, CLOCK_MONOTONIC, RESOLVER_TRY_MSEC * 1000ULL, 1000,
                                          lookup_on_timeout, l);
}

/* Asks the next server; one that cannot even be sent to is passed over. */
static void lookup_start(Lookup *l) {
        int r;

        for (;;) {
                r = lookup_send(l);
                if (r >= 0)
                        return;
                lookup_close(l);
                if (++l->tries >= TRIES_MAX) {
                        lookup_finish(l, r);
                        return;
                }
        }
}

/* ---- queries ---- */

static int query_on_deadline(sd_event_source *s, uint64_t usec, void *userdata) {
        query_finish(userdata);
        return 0;
}

/* The first turn of the loop: only now may anything be answered. */
static int query_on_begin(sd_event_source *s, uint64_t usec, void *userdata) {
        ResolverQuery *q = userdata;
        bool pending[2] = {};
        int r;

        q->timer = sd_event_source_disable_unref(q->timer);
        r = sd_event_add_time_relative(q->resolver->event, &q->timer, CLOCK_MONOTONIC, RESOLVER_QUERY_MSEC * 1000ULL, 1000,
                                       query_on_deadline, q);
        if (r < 0) {
                query_finish(q);
                return 0;
        }

        for (size_t i = 0; i < q->n_lookups; i++) {
                Lookup *l = &q->lookups[i];
                const CacheEntry *e = cache_find(q->resolver, q->name, l->type);

                pending[i] = !e;
                if (!e)
                        continue;
                l->busy = false;
                l->result = e->n_addresses > 0 ? 0 : -ENOENT;
                l->n_addresses = e->n_addresses;
                memcpy(l->addresses, e->addresses, sizeof(l->addresses));
        }

        if (!pending[0] && (q->n_lookups < 2 || !pending[1])) {
                query_finish(q);
                return 0;
        }

        /* The last one to be started may end the query at once: nothing is touched behind it. */
        if (q->n_lookups == 2 && pending[0] && pending[1]) {
                lookup_start(&q->lookups[0]); /* cannot end the query: the other is busy */
                lookup_start(&q->lookups[1]);
        } else
                lookup_start(&q->lookups[pending[0] ? 0 : 1]);
        return 0;
}

int resolver_query(Resolver *r, ResolverQuery **ret, const char *name, bool want_ipv6, ResolverDone done, void *userdata) {
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
        q->n_lookups = want_ipv6 ? 2 : 1;
        for (size_t i = 0; i < q->n_lookups; i++) {
                q->lookups[i] = (Lookup) { .query = q, .type = i == 0 ? TYPE_A : TYPE_AAAA, .busy = true, .fd = -1, .ttl = UINT32_MAX };
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
