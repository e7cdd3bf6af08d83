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

        n = dns_answer_write(q, verdict, 0xc6120007, 60, "no-rule (default)", wire);
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
        static const struct {
                const char *name, *shown;
        } bad[] = {
                { ".", "." }, { "a\\032B.example.org.", "a\\x20b.example.org" }, { "a\\000.example.org.", "a\\x00.example.org" },
                { "a\\.b.example.org.", "a\\x2eb.example.org" }, { "\\195\\164.example.org.", "\\xc3\\xa4.example.org" },
                { "*.example.org.", "\\x2a.example.org" }, { "a\\\\x20b.example.org.", "a\\x5cx20b.example.org" },
        };
        uint8_t query[DNS_QUERY_MAX], longest[12 + 260] = { 0x12, 0x34, 1, 0, 0, 1 };
        DnsQuestion q;
        size_t n;

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                n = make_query(bad[i].name, LDNS_RR_TYPE_A, false, query, sizeof(query));
                dns_question_parse(query, n, &q);
                assert_int_equal(q.kind, DNS_REPLY);
                assert_string_equal(q.name, bad[i].shown);
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
        char type[16];
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
        assert_int_equal(dns_answer_write(&q, DNS_ALLOWED, 0, 0, NULL, copy), 0);

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
        assert_string_equal(q.name, "api.example.org");
        assert_string_equal(dns_type_name(&q, type), "CLASS3");
}

/* The answer's option 15 (RFC 8914): its code and text, "" if there is none. */
static unsigned extended_error(const DnsQuestion *q, DnsVerdict verdict, const char *why, char ret_text[static DNS_ANSWER_MAX]) {
        static const uint8_t option[] = { 0, 15 };
        uint8_t wire[DNS_ANSWER_MAX], *at;
        size_t n, n_text;

        ret_text[0] = '\0';
        n = dns_answer_write(q, verdict, 1, 60, why, wire);
        at = memmem(wire + 12 + q->n_wire, n - 12 - q->n_wire, option, sizeof(option));
        if (!at)
                return 0;
        n_text = (size_t) (at[2] << 8 | at[3]) - 2;
        assert_ptr_equal(at + 6 + n_text, wire + n);
        memcpy(ret_text, at + 6, n_text);
        ret_text[n_text] = '\0';
        return (unsigned) (at[4] << 8 | at[5]);
}

static void test_edns(void **state) {
        uint8_t query[DNS_QUERY_MAX], wire[DNS_ANSWER_MAX];
        char text[DNS_ANSWER_MAX], long_why[300];
        ldns_pkt *pkt;
        DnsQuestion q;
        size_t n;

        /* who knows EDNS is told why, others are not */
        n = make_query("api.example.org.", LDNS_RR_TYPE_A, true, query, sizeof(query));
        dns_question_parse(query, n, &q);
        assert_int_equal(extended_error(&q, DNS_REFUSED, "no-rule (default)", text), 15);
        assert_string_equal(text, "no-rule (default)");
        assert_int_equal(extended_error(&q, DNS_FAILED, NULL, text), 14);
        assert_string_equal(text, "");
        assert_int_equal(extended_error(&q, DNS_ALLOWED, "x", text), 0);
        memset(long_why, 'y', sizeof(long_why) - 1);
        long_why[sizeof(long_why) - 1] = '\0';
        assert_int_equal(extended_error(&q, DNS_REFUSED, long_why, text), 15);
        assert_int_equal(strlen(text), DNS_WHY_MAX);

        /* DO is repeated */
        assert_int_equal(query[n - 11], 0);
        query[n - 4] = 0x80;
        dns_question_parse(query, n, &q);
        pkt = answer(&q, DNS_ALLOWED);
        assert_true(ldns_pkt_edns_do(pkt));
        assert_int_equal(ldns_pkt_edns_udp_size(pkt), 1232);
        ldns_pkt_free(pkt);

        /* version 1: BADVERS, whose upper bits are in the OPT record */
        query[n - 5] = 1;
        dns_question_parse(query, n, &q);
        assert_int_equal(q.kind, DNS_REPLY);
        pkt = answer(&q, DNS_ALLOWED);
        assert_int_equal(ldns_pkt_get_rcode(pkt), 0);
        assert_int_equal(ldns_pkt_edns_extended_rcode(pkt), 1);
        assert_int_equal(ldns_pkt_edns_version(pkt), 0);
        assert_int_equal(ldns_pkt_ancount(pkt), 0);
        ldns_pkt_free(pkt);

        /* two OPT records */
        query[n - 5] = 0;
        memcpy(query + n, query + n - 11, 11);
        query[11] = 2;
        dns_question_parse(query, n + 11, &q);
        check_answer(&q, DNS_ALLOWED, LDNS_RCODE_FORMERR, 0);

        n = make_query("api.example.org.", LDNS_RR_TYPE_A, false, query, sizeof(query));
        dns_question_parse(query, n, &q);
        assert_int_equal(extended_error(&q, DNS_REFUSED, "no-rule (default)", text), 0);
        assert_int_equal(dns_answer_write(&q, DNS_REFUSED, 0, 0, "x", wire), n);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_address),
                cmocka_unit_test(test_types),
                cmocka_unit_test(test_names),
                cmocka_unit_test(test_broken),
                cmocka_unit_test(test_edns),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
