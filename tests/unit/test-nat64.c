/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "egress/nat64.h"
#include "util/cleanup.h"

static Address parse(const char *text) {
        Address a;

        assert_return_code(address_parse(text, &a), 0);
        return a;
}

static AddressRange parse_range(const char *text) {
        AddressRange range;

        assert_return_code(address_parse_range(text, &range), 0);
        return range;
}

/* RFC 6052, 2.4: 192.0.2.33 behind a prefix of each length. */
static const struct {
        const char *prefix, *address;
} examples[] = {
        { "2001:db8::/32", "2001:db8:c000:221::" },           { "2001:db8:100::/40", "2001:db8:1c0:2:21::" },
        { "2001:db8:122::/48", "2001:db8:122:c000:2:2100::" }, { "2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::" },
        { "2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::" }, { "2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33" },
};

static void test_extract(void **state) {
        Address expected = parse("192.0.2.33"), v4;

        for (size_t i = 0; i < ELEMENTSOF(examples); i++) {
                AddressRange prefix = parse_range(examples[i].prefix);
                Address a = parse(examples[i].address), elsewhere = parse("2001:dead::1");

                assert_true(nat64_is_length(prefix.prefix));
                assert_true(nat64_extract(&a, &prefix, &v4));
                assert_true(address_equal(&v4, &expected));
                assert_false(nat64_extract(&elsewhere, &prefix, &v4));
                assert_false(nat64_extract(&expected, &prefix, &v4));
        }
        assert_false(nat64_is_length(80));
}

static void test_find(void **state) {
        static const struct {
                const char *address, *prefix;
        } answers[] = {
                { "64:ff9b::192.0.0.170", "64:ff9b::/96" },          { "2001:db8:64::c000:ab", "2001:db8:64::/96" },
                { "2001:db8:c000:aa::", "2001:db8::/32" },           { "2001:db8:1c0:0:aa::", "2001:db8:100::/40" },
                { "2001:db8:122:c000:0:aa00::", "2001:db8:122::/48" }, { "2001:db8:122:3c0:0:aa::", "2001:db8:122:300::/56" },
                { "2001:db8:122:344:c0:0:aa00::", "2001:db8:122:344::/64" },
        };
        AddressRange found[NAT64_PREFIXES_MAX];

        for (size_t i = 0; i < ELEMENTSOF(answers); i++) {
                AddressRange expected = parse_range(answers[i].prefix);
                Address a = parse(answers[i].address);

                assert_int_equal(nat64_find_prefixes(&a, 1, found), 1);
                assert_int_equal(found[0].prefix, expected.prefix);
                assert_true(address_equal(&found[0].address, &expected.address));
        }
}

/* Both addresses of the name stand behind one prefix; what is no translator's says nothing; and there is an end to it. */
static void test_find_several(void **state) {
        Address many[NAT64_PREFIXES_MAX + 4], pair[] = { parse("2001:db8:64::c000:aa"), parse("2001:db8:64::c000:ab"), parse("192.0.0.170"), parse("2001:db8::1") };
        AddressRange found[NAT64_PREFIXES_MAX];

        assert_int_equal(nat64_find_prefixes(pair, ELEMENTSOF(pair), found), 1);
        assert_int_equal(nat64_find_prefixes(pair + 2, 2, found), 0);
        assert_int_equal(nat64_find_prefixes(NULL, 0, found), 0);

        for (size_t i = 0; i < ELEMENTSOF(many); i++) {
                many[i] = pair[0];
                many[i].bytes[5] = (uint8_t) i;
        }
        assert_int_equal(nat64_find_prefixes(many, NAT64_PREFIXES_MAX, found), NAT64_PREFIXES_MAX);
        many[NAT64_PREFIXES_MAX] = many[3]; /* one that was named before is none too many */
        assert_int_equal(nat64_find_prefixes(many, NAT64_PREFIXES_MAX + 1, found), NAT64_PREFIXES_MAX);
        assert_int_equal(nat64_find_prefixes(many, ELEMENTSOF(many), found), NAT64_PREFIXES_MAX + 1);
}

/* What is behind a prefix of this network is judged as what it is; the same address elsewhere is like any other. */
static void test_judge(void **state) {
        static const struct {
                const char *address;
                AddressVerdict named, unnamed;
        } cases[] = {
                { "2606:4700:64::169.254.169.254", ADDRESS_METADATA, ADDRESS_GLOBAL },
                { "2606:4700:64::100.100.100.200", ADDRESS_METADATA, ADDRESS_GLOBAL },
                { "2606:4700:64::9.9.9.9", ADDRESS_OWN, ADDRESS_GLOBAL },
                { "2606:4700:64::127.0.0.1", ADDRESS_NOT_GLOBAL, ADDRESS_GLOBAL },
                { "2606:4700:64::10.0.0.1", ADDRESS_NOT_GLOBAL, ADDRESS_GLOBAL },
                { "2606:4700:64::203.0.113.12", ADDRESS_NOT_GLOBAL, ADDRESS_GLOBAL }, /* networks are about addresses as they are */
                { "2606:4700:64::1.1.1.1", ADDRESS_GLOBAL, ADDRESS_GLOBAL },
                { "2606:4700:65::169.254.169.254", ADDRESS_GLOBAL, ADDRESS_GLOBAL },
                { "2620:fe:a9fe:a9fe::", ADDRESS_METADATA, ADDRESS_GLOBAL },
        };
        AddressRange prefixes[] = { parse_range("2606:4700:64::/96"), parse_range("2620:fe::/32") }, networks = parse_range("203.0.113.0/24");
        Address own = parse("9.9.9.9");
        AddressHost host = { .own = &own, .n_own = 1, .networks = &networks, .n_networks = 1 };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                Address a = parse(cases[i].address);

                host.nat64 = prefixes;
                host.n_nat64 = ELEMENTSOF(prefixes);
                if (address_judge(&a, &host) != cases[i].named)
                        fail_msg("%s behind a prefix", cases[i].address);
                host.n_nat64 = 0;
                if (address_judge(&a, &host) != cases[i].unnamed)
                        fail_msg("%s elsewhere", cases[i].address);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_extract),
                cmocka_unit_test(test_find),
                cmocka_unit_test(test_find_several),
                cmocka_unit_test(test_judge),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
