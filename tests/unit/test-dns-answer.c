/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ldns/ldns.h>
#include <string.h>

#include "proxy/dns-answer.h"
#include "util/cleanup.h"

/* A query as a client's resolver would write it. */
static size_t make_query(const char *name, ldns_rr_type type, bool edns, uint8_t *ret, size_t max) {
        ldns_pkt *pkt = ldns_pkt_query_new(ldns_dname_new_frm_str(name), type, LDNS_RR_CLASS_IN, LDNS_RD);
        uint8_t *wire = NULL;
        size_t n;

        ldns_pkt_set_id(pkt, 0x1234);
        if (edns)
                ldns_pkt_set_edns_udp_size(pkt, 4096);
        assert_int_equal(ldns_pkt2wire(&wire, pkt, &n), LDNS_STATUS_OK);
        assert_true(n <= max);
        memcpy(ret, wire, n);
        free(wire);
        ldns_pkt_free(pkt);
        return n;
}

/* The answer, read back by ldns. */
static ldns_pkt *answer(const DnsQuestion *q, DnsVerdict verdict) {
        uint8_t wire[DNS_ANSWER_MAX];
        ldns_pkt *pkt = NULL;
        size_t n;

        n = dns_answer_write(q, verdict, 0xc6120007, 60, wire);
        assert_int_equal(ldns_wire2pkt(&pkt, wire, n), LDNS_STATUS_OK);
        assert_true(ldns_pkt_qr(pkt));
        assert_int_equal(ldns_pkt_id(pkt), 0x1234);
        return pkt;
}

static void check_answer(const DnsQuestion *q, DnsVerdict verdict, unsigned rcode, size_t n_answers) {
        ldns_pkt *pkt = answer(q, verdict);

        assert_int_equal(ldns_pkt_get_rcode(pkt), rcode);
        assert_int_equal(ldns_pkt_ancount(pkt), n_answers);
        ldns_pkt_free(pkt);
}

static void test_address(void **state) {
        uint8_t query[DNS_QUERY_MAX];
        DnsQuestion q;
        ldns_pkt *pkt;
        char *text;
        size_t n;

        n = make_query("Api.EXAMPLE.org.", LDNS_RR_TYPE_A, true, query, sizeof(query));
        dns_question_parse(query, n, &q);
        assert_int_equal(q.kind, DNS_ASK);
        assert_string_equal(q.name, "api.example.org");
        assert_true(q.address_wanted);

        pkt = answer(&q, DNS_ALLOWED);
        assert_true(ldns_pkt_ra(pkt));
        assert_true(ldns_pkt_rd(pkt));
        assert_true(ldns_pkt_edns(pkt));
        text = ldns_rr2str(ldns_rr_list_rr(ldns_pkt_answer(pkt), 0));
        assert_string_equal(text, "Api.EXAMPLE.org.\t60\tIN\tA\t198.18.0.7\n");
        free(text);
        ldns_pkt_free(pkt);

        check_answer(&q, DNS_REFUSED, LDNS_RCODE_REFUSED, 0);
        check_answer(&q, DNS_FAILED, LDNS_RCODE_SERVFAIL, 0);
}

static void test_types(void **state) {
        static const ldns_rr_type empty[] = { LDNS_RR_TYPE_AAAA, LDNS_RR_TYPE_HTTPS, LDNS_RR_TYPE_SVCB };
        static const ldns_rr_type refused[] = { LDNS_RR_TYPE_PTR, LDNS_RR_TYPE_TXT, LDNS_RR_TYPE_MX, LDNS_RR_TYPE_NS, LDNS_RR_TYPE_ANY, LDNS_RR_TYPE_NULL };
        uint8_t query[DNS_QUERY_MAX];
        DnsQuestion q;
        size_t n;

        for (size_t i = 0; i < ELEMENTSOF(empty); i++) {
                n = make_query("api.example.org.", empty[i], false, query, sizeof(query));
                dns_question_parse(query, n, &q);
                assert_int_equal(q.kind, DNS_ASK);
                assert_false(q.address_wanted);
                check_answer(&q, DNS_ALLOWED, LDNS_RCODE_NOERROR, 0);
                check_answer(&q, DNS_REFUSED, LDNS_RCODE_REFUSED, 0);
        }
        for (size_t i = 0; i < ELEMENTSOF(refused); i++) {
                n = make_query("api.example.org.", refused[i], false, query, sizeof(query));
                dns_question_parse(query, n, &q);
                assert_int_equal(q.kind, DNS_REPLY);
                assert_string_equal(q.name, "api.example.org");
                check_answer(&q, DNS_ALLOWED, LDNS_RCODE_REFUSED, 0);
        }
}

static void test_names(void **state) {
        static const char *const bad[] = { ".", "a\\032b.example.org.", "a\\000.example.org.", "a\\.b.example.org.", "\\195\\164.example.org.", "*.example.org." };
        uint8_t query[DNS_QUERY_MAX], longest[12 + 260] = { 0x12, 0x34, 1, 0, 0, 1 };
        DnsQuestion q;
        size_t n;

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                n = make_query(bad[i], LDNS_RR_TYPE_A, false, query, sizeof(query));
                dns_question_parse(query, n, &q);
                assert_int_equal(q.kind, DNS_REPLY);
                check_answer(&q, DNS_ALLOWED, LDNS_RCODE_REFUSED, 0);
        }

        /* 253 characters, the longest name there is */
        n = 12;
        for (size_t i = 0; i < 4; i++) {
                size_t length = i < 3 ? 63 : 61;

                longest[n++] = (uint8_t) length;
                memset(longest + n, 'a', length);
                n += length;
        }
        n += 1;
        longest[n + 1] = 1;
        longest[n + 3] = 1;
        dns_question_parse(longest, n + 4, &q);
        assert_int_equal(q.kind, DNS_ASK);
        assert_int_equal(strlen(q.name), 253);
        check_answer(&q, DNS_ALLOWED, LDNS_RCODE_NOERROR, 1);
}

static void test_broken(void **state) {
        uint8_t query[DNS_QUERY_MAX], copy[DNS_QUERY_MAX];
        DnsQuestion q;
        size_t n;

        n = make_query("api.example.org.", LDNS_RR_TYPE_A, false, query, sizeof(query));
        for (size_t i = 0; i < n; i++) {
                dns_question_parse(query, i, &q);
                assert_int_equal(q.kind, i < 12 ? DNS_DROP : DNS_REPLY);
                if (i >= 12)
                        check_answer(&q, DNS_ALLOWED, LDNS_RCODE_FORMERR, 0);
        }

        memcpy(copy, query, n);
        copy[2] |= 0x80; /* an answer */
        dns_question_parse(copy, n, &q);
        assert_int_equal(q.kind, DNS_DROP);
        assert_int_equal(dns_answer_write(&q, DNS_ALLOWED, 0, 0, copy), 0);

        memcpy(copy, query, n);
        copy[2] |= 0x28; /* an update */
        dns_question_parse(copy, n, &q);
        check_answer(&q, DNS_ALLOWED, LDNS_RCODE_NOTIMPL, 0);

        memcpy(copy, query, n);
        copy[5] = 2; /* two questions announced */
        dns_question_parse(copy, n, &q);
        check_answer(&q, DNS_ALLOWED, LDNS_RCODE_FORMERR, 0);

        memcpy(copy, query, n);
        copy[n - 1] = 3; /* class CH */
        dns_question_parse(copy, n, &q);
        check_answer(&q, DNS_ALLOWED, LDNS_RCODE_REFUSED, 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_address),
                cmocka_unit_test(test_types),
                cmocka_unit_test(test_names),
                cmocka_unit_test(test_broken),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
