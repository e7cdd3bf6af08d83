/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>

#include "egress/dns-cache.h"

enum { A = 1, AAAA = 28, SECOND = 1000000 };

static Address address(uint8_t last) {
        return address_from_ipv4(0xcb007100u | last);
}

static void test_found_until_it_expires(void **state) {
        Address two[2] = { address(1), address(2) };
        DnsCacheAnswer answer;
        DnsCache *c = NULL;

        assert_return_code(dns_cache_new(&c, 8), 0);
        assert_false(dns_cache_find(c, 0, "a.example.org", A, &answer));
        dns_cache_put(c, 100, "a.example.org", A, 2 * SECOND, 0, two, 2);

        assert_true(dns_cache_find(c, 100 + 2 * SECOND - 1, "a.example.org", A, &answer));
        assert_int_equal(answer.result, 0);
        assert_int_equal(answer.n_addresses, 2);
        assert_true(address_equal(&answer.addresses[1], &two[1]));
        assert_false(dns_cache_find(c, 100, "a.example.org", AAAA, &answer));
        assert_false(dns_cache_find(c, 100, "b.example.org", A, &answer));

        assert_false(dns_cache_find(c, 100 + 2 * SECOND, "a.example.org", A, &answer));
        assert_int_equal(dns_cache_count(c), 0); /* and it is gone */
        dns_cache_free(c);
}

static void test_later_answer_replaces(void **state) {
        Address one = address(1), other = address(2);
        DnsCacheAnswer answer;
        DnsCache *c = NULL;

        assert_return_code(dns_cache_new(&c, 8), 0);
        dns_cache_put(c, 0, "a.example.org", A, SECOND, 0, &one, 1);
        dns_cache_put(c, 1, "a.example.org", A, SECOND, 0, &other, 1);
        assert_int_equal(dns_cache_count(c), 1);
        assert_true(dns_cache_find(c, 2, "a.example.org", A, &answer));
        assert_true(address_equal(answer.addresses, &other));

        dns_cache_put(c, 3, "a.example.org", A, SECOND, -ENOENT, NULL, 0);
        assert_true(dns_cache_find(c, 4, "a.example.org", A, &answer));
        assert_int_equal(answer.result, -ENOENT);
        assert_int_equal(answer.n_addresses, 0);

        /* "not to be kept" also ends what was kept before */
        dns_cache_put(c, 5, "a.example.org", A, 0, 0, &one, 1);
        assert_false(dns_cache_find(c, 5, "a.example.org", A, &answer));
        dns_cache_free(c);
}

static void test_the_oldest_goes(void **state) {
        DnsCacheAnswer answer;
        DnsCache *c = NULL;
        char name[32];

        assert_return_code(dns_cache_new(&c, 100), 0);
        for (unsigned i = 0; i < 1000; i++) {
                Address a = address((uint8_t) i);

                (void) snprintf(name, sizeof(name), "n%u.example.org", i);
                dns_cache_put(c, i, name, A, SECOND, 0, &a, 1);
                assert_true(dns_cache_count(c) <= 100);
        }
        for (unsigned i = 0; i < 1000; i++) {
                (void) snprintf(name, sizeof(name), "n%u.example.org", i);
                assert_int_equal(dns_cache_find(c, 1000, name, A, &answer), i >= 900);
                if (i >= 900)
                        assert_int_equal(answer.addresses[0].bytes[3], (uint8_t) i);
        }
        dns_cache_clear(c);
        assert_int_equal(dns_cache_count(c), 0);
        assert_false(dns_cache_find(c, 1000, "n999.example.org", A, &answer));
        dns_cache_free(c);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_found_until_it_expires),
                cmocka_unit_test(test_later_answer_replaces),
                cmocka_unit_test(test_the_oldest_goes),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
