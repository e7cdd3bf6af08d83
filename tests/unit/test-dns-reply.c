/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ldns/ldns.h>
#include <string.h>

#include "egress/dns-reply.h"
#include "util/cleanup.h"

enum { A = 1, AAAA = 28 };

/* A resolver's answer to (name, type) made of records in zone file form. */
static size_t make_reply(const char *name, uint16_t type, ldns_pkt_rcode rcode, bool tc, const char *const *records, uint8_t *ret, size_t max) {
        ldns_pkt *pkt = ldns_pkt_query_new(ldns_dname_new_frm_str(name), (ldns_rr_type) type, LDNS_RR_CLASS_IN, LDNS_RD);
        uint8_t *wire = NULL;
        size_t n;

        ldns_pkt_set_id(pkt, 7);
        ldns_pkt_set_qr(pkt, true);
        ldns_pkt_set_tc(pkt, tc);
        ldns_pkt_set_rcode(pkt, rcode);
        for (; records && *records; records++) {
                ldns_rr *rr = NULL;

                assert_int_equal(ldns_rr_new_frm_str(&rr, *records, 0, NULL, NULL), LDNS_STATUS_OK);
                assert_true(ldns_pkt_push_rr(pkt, ldns_rr_get_type(rr) == LDNS_RR_TYPE_SOA ? LDNS_SECTION_AUTHORITY : LDNS_SECTION_ANSWER, rr));
        }
        assert_int_equal(ldns_pkt2wire(&wire, pkt, &n), LDNS_STATUS_OK);
        assert_true(n <= max);
        memcpy(ret, wire, n);
        free(wire);
        ldns_pkt_free(pkt);
        return n;
}

static DnsReplyOutcome read_reply(const char *name, uint16_t type, ldns_pkt_rcode rcode, const char *const *records, DnsReply *ret) {
        uint8_t wire[4096];
        size_t n;

        n = make_reply(name, type, rcode, false, records, wire, sizeof(wire));
        return dns_reply_read(wire, n, name, type, 7, ret);
}

static void test_question(void **state) {
        uint8_t wire[DNS_QUESTION_MAX];
        ldns_pkt *pkt = NULL;
        int n;

        n = dns_question_write("api.example.org", AAAA, 0xbeef, true, wire);
        assert_true(n > 12);
        assert_int_equal(ldns_wire2pkt(&pkt, wire, (size_t) n), LDNS_STATUS_OK);
        assert_int_equal(ldns_pkt_id(pkt), 0xbeef);
        assert_false(ldns_pkt_qr(pkt));
        assert_true(ldns_pkt_rd(pkt));
        assert_int_equal(ldns_pkt_edns_udp_size(pkt), 1232);
        ldns_pkt_free(pkt);

        n = dns_question_write("api.example.org", AAAA, 0xbeef, false, wire);
        assert_int_equal(ldns_wire2pkt(&pkt, wire, (size_t) n), LDNS_STATUS_OK);
        assert_false(ldns_pkt_edns(pkt));
        ldns_pkt_free(pkt);
}

static void test_addresses(void **state) {
        DnsReply reply = {};
        char text[ADDRESS_TEXT_SIZE];

        assert_int_equal(read_reply("API.example.org", A, LDNS_RCODE_NOERROR,
                                    (const char *const[]) { "api.example.org. 60 IN A 203.0.113.1", "api.example.org. 30 IN A 203.0.113.2",
                                                            "other.example.org. 30 IN A 203.0.113.3", NULL }, &reply), DNS_REPLY_ADDRESSES);
        assert_int_equal(reply.n_addresses, 2);
        assert_int_equal(reply.ttl, 30);
        assert_string_equal(address_format(&reply.addresses[0], text), "203.0.113.1");

        assert_int_equal(read_reply("api.example.org", AAAA, LDNS_RCODE_NOERROR,
                                    (const char *const[]) { "api.example.org. 60 IN AAAA 2001:db8::1", "api.example.org. 60 IN A 203.0.113.1", NULL }, &reply),
                         DNS_REPLY_ADDRESSES);
        assert_int_equal(reply.n_addresses, 1);
        assert_string_equal(address_format(&reply.addresses[0], text), "2001:db8::1");
}

static void test_alias(void **state) {
        DnsReply reply = {};

        /* in any order, and what the chain does not reach does not count */
        assert_int_equal(read_reply("api.example.org", A, LDNS_RCODE_NOERROR,
                                    (const char *const[]) { "c.example.net. 9 IN A 203.0.113.1", "_b.example.net. 60 IN CNAME c.example.net.",
                                                            "api.example.org. 60 IN CNAME _b.example.net.", "api.example.org. 60 IN A 203.0.113.66", NULL }, &reply),
                         DNS_REPLY_ADDRESSES);
        assert_int_equal(reply.n_addresses, 1);
        assert_int_equal(reply.addresses[0].bytes[3], 1);
        assert_int_equal(reply.ttl, 9);

        assert_int_equal(read_reply("api.example.org", A, LDNS_RCODE_NOERROR,
                                    (const char *const[]) { "api.example.org. 60 IN CNAME b.example.net.", NULL }, &reply), DNS_REPLY_ALIAS);
        assert_string_equal(reply.name, "b.example.net.");

        assert_int_equal(read_reply("api.example.org", A, LDNS_RCODE_NOERROR,
                                    (const char *const[]) { "api.example.org. 60 IN CNAME b.example.net.", "b.example.net. 60 IN CNAME api.example.org.", NULL }, &reply),
                         DNS_REPLY_FAILED);
}

static void test_others(void **state) {
        const char *const one[] = { "api.example.org. 60 IN A 203.0.113.1", NULL };
        uint8_t wire[4096];
        DnsReply reply = {};
        size_t n;

        assert_int_equal(read_reply("api.example.org", A, LDNS_RCODE_NXDOMAIN, NULL, &reply), DNS_REPLY_NOTHING);
        assert_int_equal(read_reply("api.example.org", A, LDNS_RCODE_NOERROR, NULL, &reply), DNS_REPLY_NOTHING);
        assert_int_equal(read_reply("api.example.org", A, LDNS_RCODE_SERVFAIL, NULL, &reply), DNS_REPLY_FAILED);
        assert_int_equal(read_reply("api.example.org", A, LDNS_RCODE_REFUSED, one, &reply), DNS_REPLY_FAILED);

        n = make_reply("api.example.org", A, LDNS_RCODE_NOERROR, true, NULL, wire, sizeof(wire));
        assert_int_equal(dns_reply_read(wire, n, "api.example.org", A, 7, &reply), DNS_REPLY_TRUNCATED);

        n = make_reply("api.example.org", A, LDNS_RCODE_NOERROR, false, one, wire, sizeof(wire));
        assert_int_equal(dns_reply_read(wire, n, "api.example.org", A, 8, &reply), DNS_REPLY_FOREIGN);
        assert_int_equal(dns_reply_read(wire, n, "api.example.org", AAAA, 7, &reply), DNS_REPLY_FOREIGN);
        assert_int_equal(dns_reply_read(wire, n, "b.example.org", A, 7, &reply), DNS_REPLY_FOREIGN);
        for (size_t i = 0; i < n; i++)
                assert_int_not_equal(dns_reply_read(wire, i, "api.example.org", A, 7, &reply), DNS_REPLY_ADDRESSES);
}

static void test_how_long_there_is_nothing(void **state) {
        static const char soa[] = "example.org. 900 IN SOA ns.example.org. root.example.org. 1 7200 900 1209600 60";
        DnsReply reply = {};

        assert_int_equal(read_reply("api.example.org", A, LDNS_RCODE_NXDOMAIN, (const char *const[]) { soa, NULL }, &reply), DNS_REPLY_NOTHING);
        assert_int_equal(reply.ttl, 60);
        assert_int_equal(read_reply("api.example.org", AAAA, LDNS_RCODE_NOERROR,
                                    (const char *const[]) { "example.org. 30 IN SOA ns.example.org. root.example.org. 1 7200 900 1209600 60", NULL }, &reply),
                         DNS_REPLY_NOTHING);
        assert_int_equal(reply.ttl, 30);
        assert_int_equal(read_reply("api.example.org", A, LDNS_RCODE_NXDOMAIN,
                                    (const char *const[]) { "api.example.org. 60 IN CNAME b.example.org.", soa, NULL }, &reply), DNS_REPLY_NOTHING);
        assert_int_equal(reply.ttl, 60);

        reply.ttl = 7;
        assert_int_equal(read_reply("api.example.org", A, LDNS_RCODE_NXDOMAIN, NULL, &reply), DNS_REPLY_NOTHING);
        assert_int_equal(reply.ttl, 0);
}

static void test_no_edns(void **state) {
        uint8_t wire[4096];
        DnsReply reply = {};

        assert_int_equal(read_reply("api.example.org", A, LDNS_RCODE_FORMERR, NULL, &reply), DNS_REPLY_NO_EDNS);
        assert_int_equal(read_reply("api.example.org", A, LDNS_RCODE_NOTIMPL, NULL, &reply), DNS_REPLY_NO_EDNS);

        /* no more than a header */
        (void) make_reply("api.example.org", A, LDNS_RCODE_FORMERR, false, NULL, wire, sizeof(wire));
        wire[5] = 0;
        assert_int_equal(dns_reply_read(wire, 12, "api.example.org", A, 7, &reply), DNS_REPLY_NO_EDNS);
        assert_int_equal(dns_reply_read(wire, 12, "api.example.org", A, 8, &reply), DNS_REPLY_FOREIGN);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_question),
                cmocka_unit_test(test_addresses),
                cmocka_unit_test(test_alias),
                cmocka_unit_test(test_others),
                cmocka_unit_test(test_how_long_there_is_nothing),
                cmocka_unit_test(test_no_edns),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
