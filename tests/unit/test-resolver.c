/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The resolver against name servers that live in the same event loop, on the loopback. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <ldns/ldns.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "egress/resolver.h"

typedef enum Mood { MOOD_ANSWER, MOOD_SILENT, MOOD_SERVFAIL, MOOD_TRUNCATE, MOOD_ALIAS, MOOD_NOTHING, MOOD_WRONG_ID,
                      MOOD_REFUSED, MOOD_NO_EDNS, MOOD_NO_TTL, MOOD_SOA, MOOD_NO_AAAA, MOOD_NO_A, MOOD_CIRCLE } Mood;

typedef struct Server {
        int udp, tcp;
        uint16_t port;
        Mood mood;
        unsigned n_udp, n_tcp;
        sd_event_source *sources[3];
} Server;

typedef struct Result {
        bool done;
        int r;
        size_t n;
        Address first;
        sd_event *event;
} Result;

static ldns_rr *record(const char *text) {
        ldns_rr *rr = NULL;

        assert_int_equal(ldns_rr_new_frm_str(&rr, text, 0, NULL, NULL), LDNS_STATUS_OK);
        return rr;
}

static size_t answer(Server *s, const uint8_t *query, size_t size, bool tcp, uint8_t *ret) {
        ldns_pkt *pkt = NULL;
        ldns_rr_type type;
        uint8_t *wire = NULL;
        bool alias, edns;
        size_t n;

        assert_int_equal(ldns_wire2pkt(&pkt, query, size), LDNS_STATUS_OK);
        type = ldns_rr_get_type(ldns_rr_list_rr(ldns_pkt_question(pkt), 0));
        alias = ldns_rdf_size(ldns_rr_owner(ldns_rr_list_rr(ldns_pkt_question(pkt), 0))) != 15; /* not "a.example.org" */
        edns = ldns_pkt_edns(pkt);
        ldns_pkt_set_qr(pkt, true);
        ldns_pkt_set_edns_udp_size(pkt, 0);

        if (s->mood == MOOD_SERVFAIL)
                ldns_pkt_set_rcode(pkt, LDNS_RCODE_SERVFAIL);
        else if (s->mood == MOOD_REFUSED)
                ldns_pkt_set_rcode(pkt, LDNS_RCODE_REFUSED);
        else if (s->mood == MOOD_NO_EDNS && edns)
                ldns_pkt_set_rcode(pkt, LDNS_RCODE_FORMERR);
        else if (s->mood == MOOD_CIRCLE)
                (void) ldns_pkt_push_rr(pkt, LDNS_SECTION_ANSWER, record(alias ? "other.example.net. 60 IN CNAME a.example.org." : "a.example.org. 60 IN CNAME other.example.net."));
        else if (s->mood == MOOD_NO_TTL)
                (void) ldns_pkt_push_rr(pkt, LDNS_SECTION_ANSWER, record(s->n_udp == 1 ? "a.example.org. 0 IN A 203.0.113.7" : "a.example.org. 0 IN A 203.0.113.8"));
        else if (s->mood == MOOD_SOA) {
                ldns_pkt_set_rcode(pkt, LDNS_RCODE_NXDOMAIN);
                (void) ldns_pkt_push_rr(pkt, LDNS_SECTION_AUTHORITY, record("example.org. 60 IN SOA ns.example.org. r.example.org. 1 1 1 1 60"));
        } else if (s->mood == MOOD_NOTHING)
                ldns_pkt_set_rcode(pkt, LDNS_RCODE_NXDOMAIN);
        else if (s->mood == MOOD_TRUNCATE && !tcp)
                ldns_pkt_set_tc(pkt, true);
        else if (s->mood == MOOD_ALIAS && !alias)
                (void) ldns_pkt_push_rr(pkt, LDNS_SECTION_ANSWER, record("a.example.org. 60 IN CNAME other.example.net."));
        else if (type == LDNS_RR_TYPE_AAAA)
                (void) ldns_pkt_push_rr(pkt, LDNS_SECTION_ANSWER, record(alias ? "other.example.net. 60 IN AAAA 2001:db8::1" : "a.example.org. 60 IN AAAA 2001:db8::1"));
        else
                (void) ldns_pkt_push_rr(pkt, LDNS_SECTION_ANSWER, record(alias ? "other.example.net. 60 IN A 203.0.113.9" : "a.example.org. 60 IN A 203.0.113.7"));
        if (s->mood == MOOD_WRONG_ID)
                ldns_pkt_set_id(pkt, (uint16_t) (ldns_pkt_id(pkt) + 1));

        assert_int_equal(ldns_pkt2wire(&wire, pkt, &n), LDNS_STATUS_OK);
        memcpy(ret, wire, n);
        free(wire);
        ldns_pkt_free(pkt);
        return n;
}

/* Is this a query for that type? The questions here are all for "a.example.org". */
static bool asks_for(const uint8_t *query, ssize_t n, uint8_t type) {
        return n > 12 + 15 + 2 && query[12 + 15 + 1] == type;
}

static int on_udp(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        struct sockaddr_in peer;
        socklen_t n_peer = sizeof(peer);
        uint8_t query[512], reply[1024];
        Server *s = userdata;
        ssize_t n;

        n = recvfrom(fd, query, sizeof(query), 0, (struct sockaddr *) &peer, &n_peer);
        assert_true(n > 0);
        s->n_udp++;
        if (s->mood != MOOD_SILENT && (s->mood != MOOD_NO_AAAA || !asks_for(query, n, 28)) && (s->mood != MOOD_NO_A || !asks_for(query, n, 1))) {
                size_t size = answer(s, query, (size_t) n, false, reply);

                assert_true(sendto(fd, reply, size, 0, (struct sockaddr *) &peer, n_peer) > 0);
        }
        return 0;
}

static int on_stream(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        uint8_t query[1024], reply[1024];
        Server *s = userdata;
        size_t size;
        ssize_t n;

        n = recv(fd, query, sizeof(query), 0);
        assert_true(n > 2);
        s->n_tcp++;
        size = answer(s, query + 2, (size_t) n - 2, true, reply + 2);
        reply[0] = (uint8_t) (size >> 8);
        reply[1] = (uint8_t) size;
        assert_true(send(fd, reply, 3, 0) == 3); /* in two pieces */
        assert_true(send(fd, reply + 3, size - 1, 0) > 0);
        s->sources[2] = sd_event_source_disable_unref(source);
        (void) close(fd);
        return 0;
}

static int on_tcp(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        Server *s = userdata;
        int client;

        client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        assert_true(client >= 0);
        assert_return_code(sd_event_add_io(sd_event_source_get_event(source), &s->sources[2], client, EPOLLIN, on_stream, s), 0);
        return 0;
}

static void server_start(Server *s, sd_event *event, Mood mood) {
        struct sockaddr_in local = { .sin_family = AF_INET, .sin_addr.s_addr = htobe32(INADDR_LOOPBACK) };
        socklen_t n = sizeof(local);

        *s = (Server) { .mood = mood };
        s->udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        s->tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_return_code(bind(s->tcp, (struct sockaddr *) &local, n), errno);
        assert_return_code(listen(s->tcp, 8), errno);
        assert_return_code(getsockname(s->tcp, (struct sockaddr *) &local, &n), errno);
        assert_return_code(bind(s->udp, (struct sockaddr *) &local, n), errno);
        s->port = be16toh(local.sin_port);
        assert_return_code(sd_event_add_io(event, &s->sources[0], s->udp, EPOLLIN, on_udp, s), 0);
        assert_return_code(sd_event_add_io(event, &s->sources[1], s->tcp, EPOLLIN, on_tcp, s), 0);
}

static void server_stop(Server *s) {
        sd_event_source_disable_unref(s->sources[0]);
        sd_event_source_disable_unref(s->sources[1]);
        sd_event_source_disable_unref(s->sources[2]);
        (void) close(s->udp);
        (void) close(s->tcp);
}

static void on_done(int r, const Address *addresses, size_t n, void *userdata) {
        Result *result = userdata;

        assert_false(result->done);
        *result = (Result) { .done = true, .r = r, .n = n, .event = result->event };
        if (n > 0)
                result->first = addresses[0];
}

/* One name, asked until it is answered. */
static Result ask(sd_event **event, Resolver *resolver, const char *name, bool ipv6) {
        Result result = { .event = *event };
        ResolverQuery *q;

        assert_return_code(resolver_query(resolver, &q, name, ipv6, on_done, &result), 0);
        assert_false(result.done);
        while (!result.done)
                assert_return_code(sd_event_run(*event, 10 * 1000 * 1000), 0);
        return result;
}

static void set_servers(Resolver *r, const Server *a, const Server *b) {
        ResolverServer servers[2] = {};

        assert_return_code(address_parse("127.0.0.1", &servers[0].address), 0);
        servers[1] = servers[0];
        servers[0].port = a->port;
        servers[1].port = b ? b->port : 0;
        resolver_set_servers(r, servers, b ? 2 : 1);
}

static Result ask_with(Mood first, Mood second, bool two, bool ipv6, Server *ret_first, Server *ret_second) {
        sd_event *event = NULL;
        Resolver *resolver = NULL;
        Server a, b;
        Result result;

        assert_return_code(sd_event_new(&event), 0);
        assert_return_code(resolver_new(&resolver, event), 0);
        server_start(&a, event, first);
        server_start(&b, event, second);
        set_servers(resolver, &a, two ? &b : NULL);
        result = ask(&event, resolver, "a.example.org", ipv6);
        resolver_free(resolver);
        server_stop(&a);
        server_stop(&b);
        sd_event_unref(event);
        if (ret_first)
                *ret_first = a;
        if (ret_second)
                *ret_second = b;
        return result;
}

static void test_answer(void **state) {
        Server a;
        Result r;

        r = ask_with(MOOD_ANSWER, MOOD_ANSWER, false, false, &a, NULL);
        assert_int_equal(r.r, 0);
        assert_int_equal(r.n, 1);
        assert_int_equal(r.first.bytes[3], 7);
        assert_int_equal(a.n_udp, 1);

        r = ask_with(MOOD_ANSWER, MOOD_ANSWER, false, true, &a, NULL);
        assert_int_equal(r.n, 2);
        assert_int_equal(r.first.family, AF_INET6); /* RFC 8305: the families take turns, IPv6 first */
        assert_int_equal(a.n_udp, 2);
}

static void test_failover(void **state) {
        Server a, b;
        Result r;

        r = ask_with(MOOD_SERVFAIL, MOOD_ANSWER, true, false, &a, &b);
        assert_int_equal(r.r, 0);
        assert_int_equal(b.n_udp, 1);

        r = ask_with(MOOD_SILENT, MOOD_ANSWER, true, false, &a, &b);
        assert_int_equal(r.r, 0);
        assert_int_equal(a.n_udp, 1);

        r = ask_with(MOOD_REFUSED, MOOD_ANSWER, true, false, &a, &b);
        assert_int_equal(r.r, 0);
        assert_int_equal(b.n_udp, 1);

        /* somebody who guesses ids is ignored, and the real answer still counts */
        r = ask_with(MOOD_WRONG_ID, MOOD_ANSWER, true, false, &a, &b);
        assert_int_equal(r.r, 0);

        r = ask_with(MOOD_SERVFAIL, MOOD_SERVFAIL, true, false, &a, &b);
        assert_int_equal(r.r, -EBADMSG);
        assert_int_equal(r.n, 0);
        assert_int_equal(a.n_udp + b.n_udp, 4);
}

static void test_tcp_and_alias(void **state) {
        Server a;
        Result r;

        r = ask_with(MOOD_TRUNCATE, MOOD_ANSWER, false, false, &a, NULL);
        assert_int_equal(r.r, 0);
        assert_int_equal(r.n, 1);
        assert_int_equal(a.n_tcp, 1);

        r = ask_with(MOOD_ALIAS, MOOD_ANSWER, false, false, &a, NULL);
        assert_int_equal(r.r, 0);
        assert_int_equal(r.first.bytes[3], 9);
        assert_int_equal(a.n_udp, 2);

        r = ask_with(MOOD_CIRCLE, MOOD_ANSWER, false, false, &a, NULL);
        assert_int_equal(r.r, -ELOOP);
        assert_true(a.n_udp <= 6);

        r = ask_with(MOOD_NO_EDNS, MOOD_ANSWER, false, false, &a, NULL);
        assert_int_equal(r.r, 0);
        assert_int_equal(a.n_udp, 2);

        r = ask_with(MOOD_NOTHING, MOOD_ANSWER, true, true, &a, NULL);
        assert_int_equal(r.r, -ENOENT);
        assert_int_equal(a.n_udp, 2);
}

typedef struct Bench {
        sd_event *event;
        Resolver *resolver;
        Server a, b;
} Bench;

static void bench_start(Bench *t, Mood first, Mood second) {
        *t = (Bench) {};
        assert_return_code(sd_event_new(&t->event), 0);
        assert_return_code(resolver_new(&t->resolver, t->event), 0);
        server_start(&t->a, t->event, first);
        server_start(&t->b, t->event, second);
        set_servers(t->resolver, &t->a, &t->b);
}

static void bench_stop(Bench *t) {
        resolver_free(t->resolver);
        server_stop(&t->a);
        server_stop(&t->b);
        sd_event_unref(t->event);
}

static void test_cache(void **state) {
        Bench t;
        Result r;

        /* for as long as the TTL says */
        bench_start(&t, MOOD_ANSWER, MOOD_ANSWER);
        for (int i = 0; i < 3; i++) {
                r = ask(&t.event, t.resolver, "a.example.org", true);
                assert_int_equal(r.n, 2);
        }
        assert_int_equal(t.a.n_udp, 2);

        /* other servers may say other things */
        set_servers(t.resolver, &t.b, NULL);
        (void) ask(&t.event, t.resolver, "a.example.org", true);
        assert_int_equal(t.b.n_udp, 2);
        bench_stop(&t);

        /* a TTL of zero is for one connection: the next one gets what is true then */
        bench_start(&t, MOOD_NO_TTL, MOOD_ANSWER);
        r = ask(&t.event, t.resolver, "a.example.org", false);
        assert_int_equal(r.first.bytes[3], 7);
        r = ask(&t.event, t.resolver, "a.example.org", false);
        assert_int_equal(r.first.bytes[3], 8);
        assert_int_equal(t.a.n_udp, 2);
        bench_stop(&t);

        /* "there is none" is kept if the zone says for how long (RFC 2308) */
        bench_start(&t, MOOD_SOA, MOOD_ANSWER);
        for (int i = 0; i < 3; i++)
                assert_int_equal(ask(&t.event, t.resolver, "a.example.org", false).r, -ENOENT);
        assert_int_equal(t.a.n_udp, 1);
        t.a.mood = MOOD_NOTHING;
        set_servers(t.resolver, &t.a, NULL);
        for (int i = 0; i < 3; i++)
                assert_int_equal(ask(&t.event, t.resolver, "a.example.org", false).r, -ENOENT);
        assert_int_equal(t.a.n_udp, 4);
        bench_stop(&t);

        /* and that nobody could say, for a moment */
        bench_start(&t, MOOD_SERVFAIL, MOOD_SERVFAIL);
        for (int i = 0; i < 3; i++)
                assert_int_equal(ask(&t.event, t.resolver, "a.example.org", false).r, -EBADMSG);
        assert_int_equal(t.a.n_udp + t.b.n_udp, 4);
        bench_stop(&t);
}

static uint64_t now_usec(void) {
        struct timespec ts;

        assert_return_code(clock_gettime(CLOCK_MONOTONIC, &ts), errno);
        return (uint64_t) ts.tv_sec * 1000000 + (uint64_t) ts.tv_nsec / 1000;
}

/* Half an answer now is worth more than a whole one in some seconds. */
static void test_other_family_is_not_waited_for(void **state) {
        uint64_t begin;
        Bench t;
        Result r;

        for (int i = 0; i < 2; i++) {
                bench_start(&t, i == 0 ? MOOD_NO_AAAA : MOOD_NO_A, MOOD_ANSWER);
                begin = now_usec();
                r = ask(&t.event, t.resolver, "a.example.org", true);
                assert_true(now_usec() - begin < RESOLVER_TRY_MSEC * 1000);
                assert_int_equal(r.r, 0);
                assert_int_equal(r.n, 1);
                assert_int_equal(r.first.family, i == 0 ? AF_INET : AF_INET6);

                /* what is known stays known, and what is not is asked for again */
                t.a.mood = MOOD_ANSWER;
                r = ask(&t.event, t.resolver, "a.example.org", true);
                assert_int_equal(r.n, 2);
                assert_int_equal(t.a.n_udp, 3);
                bench_stop(&t);
        }
}

/* One that does not answer is passed over by those who ask later as well. */
static void test_dead_server_is_remembered(void **state) {
        uint64_t begin;
        Bench t;

        bench_start(&t, MOOD_SILENT, MOOD_NO_TTL);
        assert_int_equal(ask(&t.event, t.resolver, "a.example.org", false).r, 0);
        begin = now_usec();
        for (int i = 0; i < 3; i++)
                assert_int_equal(ask(&t.event, t.resolver, "a.example.org", false).r, 0);
        assert_true(now_usec() - begin < RESOLVER_TRY_MSEC * 1000);
        assert_int_equal(t.a.n_udp, 1);
        bench_stop(&t);
}

static void test_nobody(void **state) {
        sd_event *event = NULL;
        Resolver *resolver = NULL;
        Server gone;
        Result r;

        assert_return_code(sd_event_new(&event), 0);
        assert_return_code(resolver_new(&resolver, event), 0);
        r = ask(&event, resolver, "a.example.org", true);
        assert_int_equal(r.r, -ENOTCONN); /* no resolver at all */
        resolver_free(resolver);
        sd_event_unref(event);

        event = NULL;
        resolver = NULL;
        assert_return_code(sd_event_new(&event), 0);
        assert_return_code(resolver_new(&resolver, event), 0);
        server_start(&gone, event, MOOD_ANSWER);
        server_stop(&gone);
        set_servers(resolver, &gone, NULL);
        r = ask(&event, resolver, "a.example.org", false);
        assert_true(r.r < 0 && r.r != -ENOENT); /* refused is not "no such name" */
        resolver_free(resolver);
        sd_event_unref(event);
}

static void never(int r, const Address *addresses, size_t n, void *userdata) {
        fail();
}

static void test_cancel_and_limit(void **state) {
        sd_event *event = NULL;
        Resolver *resolver = NULL;
        ResolverQuery *q;
        Server a;

        assert_return_code(sd_event_new(&event), 0);
        assert_return_code(resolver_new(&resolver, event), 0);
        server_start(&a, event, MOOD_SILENT);
        set_servers(resolver, &a, NULL);

        for (int i = 0; i < RESOLVER_QUERIES_MAX; i++)
                assert_return_code(resolver_query(resolver, &q, "a.example.org", false, never, NULL), 0);
        assert_int_equal(resolver_query(resolver, &q, "a.example.org", false, never, NULL), -EBUSY);
        assert_null(resolver_query_free(q));
        assert_return_code(resolver_query(resolver, &q, "a.example.org", false, never, NULL), 0);
        for (int i = 0; i < 50; i++)
                assert_return_code(sd_event_run(event, 0), 0);
        resolver_free(resolver); /* with all of them under way */
        server_stop(&a);
        sd_event_unref(event);
}

static void test_resolv_conf(void **state) {
        ResolverServer servers[RESOLVER_SERVERS_MAX];
        char text[ADDRESS_TEXT_SIZE];

        assert_int_equal(resolver_parse_resolv_conf("# nameserver 1.1.1.1\nnameserver 203.0.113.53\n nameserver\t2001:db8::53 \nsearch x\n"
                                                    "nameserver not-an-address\nnameserver fe80::1%eth0\nnameserver 9.9.9.9", servers), 3);
        assert_string_equal(address_format(&servers[1].address, text), "2001:db8::53");
        assert_int_equal(servers[2].port, 53);
        assert_int_equal(resolver_parse_resolv_conf("nameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\nnameserver 1.1.1.4\nnameserver 1.1.1.5\n", servers), 4);
        assert_int_equal(resolver_parse_resolv_conf("", servers), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_answer),
                cmocka_unit_test(test_failover),
                cmocka_unit_test(test_tcp_and_alias),
                cmocka_unit_test(test_cache),
                cmocka_unit_test(test_other_family_is_not_waited_for),
                cmocka_unit_test(test_dead_server_is_remembered),
                cmocka_unit_test(test_nobody),
                cmocka_unit_test(test_cancel_and_limit),
                cmocka_unit_test(test_resolv_conf),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
