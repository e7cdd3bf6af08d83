/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "egress/address.h"
#include "fence-api.bpf.h"
#include "util/cleanup.h"

typedef struct Case {
        const char *text;
        AddressVerdict verdict;
} Case;

static const Case cases[] = {
        { "1.1.1.1", ADDRESS_GLOBAL },
        { "8.8.8.8", ADDRESS_GLOBAL },
        { "192.0.0.9", ADDRESS_GLOBAL },
        { "192.31.196.1", ADDRESS_GLOBAL },
        { "2606:4700::1111", ADDRESS_GLOBAL },
        { "2001:4860:4860::8888", ADDRESS_GLOBAL },
        { "2001:1::1", ADDRESS_GLOBAL },
        { "2001:20::1", ADDRESS_GLOBAL },
        { "64:ff9b::101:101", ADDRESS_GLOBAL },

        { "0.0.0.0", ADDRESS_NOT_GLOBAL },
        { "0.1.2.3", ADDRESS_NOT_GLOBAL },
        { "10.0.0.1", ADDRESS_NOT_GLOBAL },
        { "100.64.0.1", ADDRESS_NOT_GLOBAL },
        { "127.0.0.1", ADDRESS_NOT_GLOBAL },
        { "127.8.8.8", ADDRESS_NOT_GLOBAL },
        { "169.254.1.1", ADDRESS_NOT_GLOBAL },
        { "172.16.0.1", ADDRESS_NOT_GLOBAL },
        { "172.31.255.255", ADDRESS_NOT_GLOBAL },
        { "172.32.0.1", ADDRESS_GLOBAL },
        { "192.0.0.8", ADDRESS_NOT_GLOBAL },
        { "192.0.0.170", ADDRESS_NOT_GLOBAL },
        { "192.0.2.1", ADDRESS_NOT_GLOBAL },
        { "192.88.99.1", ADDRESS_NOT_GLOBAL },
        { "192.168.1.1", ADDRESS_NOT_GLOBAL },
        { "198.18.0.1", ADDRESS_NOT_GLOBAL },
        { "198.19.255.255", ADDRESS_NOT_GLOBAL },
        { "198.51.100.7", ADDRESS_NOT_GLOBAL },
        { "203.0.113.7", ADDRESS_NOT_GLOBAL },
        { "224.0.0.1", ADDRESS_NOT_GLOBAL },
        { "240.0.0.1", ADDRESS_NOT_GLOBAL },
        { "255.255.255.255", ADDRESS_NOT_GLOBAL },
        { "::", ADDRESS_NOT_GLOBAL },
        { "::1", ADDRESS_NOT_GLOBAL },
        { "::1.1.1.1", ADDRESS_NOT_GLOBAL },
        { "::ffff:1.1.1.1", ADDRESS_NOT_GLOBAL },
        { "::ffff:10.0.0.1", ADDRESS_NOT_GLOBAL },
        { "64:ff9b::a00:1", ADDRESS_NOT_GLOBAL },
        { "64:ff9b:1::101:101", ADDRESS_NOT_GLOBAL },
        { "100::1", ADDRESS_NOT_GLOBAL },
        { "2001::1", ADDRESS_NOT_GLOBAL },
        { "2001:2::1", ADDRESS_NOT_GLOBAL },
        { "2001:10::1", ADDRESS_NOT_GLOBAL },
        { "2001:db8::1", ADDRESS_NOT_GLOBAL },
        { "2002:101:101::1", ADDRESS_NOT_GLOBAL },
        { "3fff::1", ADDRESS_NOT_GLOBAL },
        { "4000::1", ADDRESS_NOT_GLOBAL },
        { "5f00::1", ADDRESS_NOT_GLOBAL },
        { "fc00::1", ADDRESS_NOT_GLOBAL },
        { "fe80::1", ADDRESS_NOT_GLOBAL },
        { "fec0::1", ADDRESS_NOT_GLOBAL },
        { "ff02::1", ADDRESS_NOT_GLOBAL },

        { "169.254.169.254", ADDRESS_METADATA },
        { "169.254.170.2", ADDRESS_METADATA },
        { "168.63.129.16", ADDRESS_METADATA },
        { "100.100.100.200", ADDRESS_METADATA },
        { "100.96.0.96", ADDRESS_METADATA },
        { "100.96.0.97", ADDRESS_NOT_GLOBAL },
        { "fd00:ec2::254", ADDRESS_METADATA },
        { "::ffff:169.254.169.254", ADDRESS_METADATA },
        { "::169.254.169.254", ADDRESS_METADATA },
        { "64:ff9b::a9fe:a9fe", ADDRESS_METADATA },
        { "2002:a9fe:a9fe::", ADDRESS_METADATA },
        { "2001:0:0:0:0:0:5601:5601", ADDRESS_METADATA }, /* Teredo: inverted */
        { "2001:0:a9fe:a9fe::fefe:fefe", ADDRESS_METADATA }, /* Teredo: its server */
        { "2606:4700::5efe:169.254.169.254", ADDRESS_METADATA }, /* ISATAP */
        { "2606:4700::200:5efe:169.254.169.254", ADDRESS_METADATA },
        { "64:ff9b:1::169.254.169.254", ADDRESS_METADATA },
        { "64:ff9b:1:a9fe:a9:fe00::", ADDRESS_METADATA }, /* RFC 6052: behind 48 bits */
        { "64:ff9b:1:fa9:fe:a9fe::", ADDRESS_METADATA },  /* 56 */
        { "64:ff9b:1:f00:a9:fea9:fe00::", ADDRESS_METADATA }, /* 64 */
        { "::ffff:0:169.254.169.254", ADDRESS_METADATA }, /* RFC 2765 */
        { "169.254.169.253", ADDRESS_METADATA },
        { "169.254.169.123", ADDRESS_METADATA },
        { "169.254.170.23", ADDRESS_METADATA },
        { "169.254.0.23", ADDRESS_METADATA },
        { "169.254.42.42", ADDRESS_METADATA },
        { "192.0.0.192", ADDRESS_METADATA },
        { "192.80.8.124", ADDRESS_METADATA },
        { "fd00:ec2::253", ADDRESS_METADATA },
        { "fd00:ec2::123", ADDRESS_METADATA },
        { "fd20:ce::254", ADDRESS_METADATA },
        { "fd00:c1::a9fe:a9fe", ADDRESS_METADATA },
        { "fd00:100::100:200", ADDRESS_METADATA },
        { "fd00:a9fe:a9fe::1", ADDRESS_METADATA },
        { "fd00:42::42", ADDRESS_METADATA },
        { "fe80::a9fe:a9fe", ADDRESS_METADATA },
        { "2606:4700::5efe:10.0.0.1", ADDRESS_NOT_GLOBAL },
        { "2606:4700::5efe:1.1.1.1", ADDRESS_GLOBAL },
        { "2606:4700::5efe:0:a00:1", ADDRESS_GLOBAL }, /* not where ISATAP has it */
        { "192.80.8.125", ADDRESS_GLOBAL },
        { "192.0.0.10", ADDRESS_GLOBAL },
        { "2001:1::3", ADDRESS_GLOBAL },
        { "2001:1::4", ADDRESS_NOT_GLOBAL },
        { "2001:3::1", ADDRESS_GLOBAL },
        { "2001:4:112::1", ADDRESS_GLOBAL },
        { "2001:30::1", ADDRESS_GLOBAL },
        { "2620:4f:8000::1", ADDRESS_GLOBAL },

        { "9.9.9.9", ADDRESS_OWN },
        { "::ffff:9.9.9.9", ADDRESS_OWN },
        { "64:ff9b::909:909", ADDRESS_OWN },
        { "2620:fe::9", ADDRESS_OWN },
};

static void test_judge(void **state) {
        Address own[2];

        assert_return_code(address_parse("9.9.9.9", &own[0]), 0);
        assert_return_code(address_parse("2620:fe::9", &own[1]), 0);

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                AddressVerdict v;
                Address a;

                assert_return_code(address_parse(cases[i].text, &a), 0);
                v = address_judge(&a, &(AddressHost) { .own = own, .n_own = 2 });
                if (v != cases[i].verdict)
                        fail_msg("%s: %d instead of %d", cases[i].text, (int) v, (int) cases[i].verdict);
        }
}

/* The operator's networks open what is merely not global; never metadata, own, loopback, mapped or synthetic addresses. */
static void test_networks(void **state) {
        static const Case admitted[] = {
                { "203.0.113.7", ADDRESS_ADMITTED },
                { "10.1.2.3", ADDRESS_ADMITTED },
                { "fd00::7", ADDRESS_ADMITTED },
                { "169.254.169.254", ADDRESS_METADATA },
                { "169.254.1.1", ADDRESS_NOT_GLOBAL },
                { "fe80::1", ADDRESS_NOT_GLOBAL },
                { "255.255.255.255", ADDRESS_NOT_GLOBAL },
                { "64:ff9b:1::101:101", ADDRESS_ADMITTED },
                { "64:ff9b:1::10.0.0.1", ADDRESS_NOT_GLOBAL },
                { "64:ff9b:1::203.0.113.1", ADDRESS_OWN },
                { "fd00:ec2::254", ADDRESS_METADATA },
                { "::ffff:169.254.169.254", ADDRESS_METADATA },
                { "127.0.0.1", ADDRESS_NOT_GLOBAL },
                { "0.0.0.0", ADDRESS_NOT_GLOBAL },
                { "198.18.0.1", ADDRESS_NOT_GLOBAL },
                { "224.0.0.1", ADDRESS_NOT_GLOBAL },
                { "::ffff:10.1.2.3", ADDRESS_NOT_GLOBAL },
                { "2002:a01:203::1", ADDRESS_NOT_GLOBAL },
                { "203.0.113.1", ADDRESS_OWN },
        };
        AddressRange networks[2];
        Address own;

        assert_return_code(address_parse_range("0.0.0.0/0", &networks[0]), 0);
        assert_return_code(address_parse_range("::/0", &networks[1]), 0);
        assert_return_code(address_parse("203.0.113.1", &own), 0);

        for (size_t i = 0; i < ELEMENTSOF(admitted); i++) {
                AddressVerdict v;
                Address a;

                assert_return_code(address_parse(admitted[i].text, &a), 0);
                v = address_judge(&a, &(AddressHost) { .own = &own, .n_own = 1, .networks = networks, .n_networks = 2 });
                if (v != admitted[i].verdict)
                        fail_msg("%s: %d instead of %d", admitted[i].text, (int) v, (int) admitted[i].verdict);
        }

        assert_return_code(address_parse_range("203.0.113.0/24", &networks[0]), 0);
        assert_return_code(address_parse("10.1.2.3", &own), 0);
        assert_int_equal(address_judge(&own, &(AddressHost) { .networks = networks, .n_networks = 1 }), ADDRESS_NOT_GLOBAL);
}

/* What egressd calls metadata, the kernel's programs refuse on their own, whatever the map says. */
static void test_fence_agrees(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                uint8_t mapped[16] = { [10] = 0xff, [11] = 0xff };
                Address a;

                if (cases[i].verdict != ADDRESS_METADATA)
                        continue;
                assert_return_code(address_parse(cases[i].text, &a), 0);
                if (a.family == AF_INET)
                        memcpy(mapped + 12, a.bytes, 4);
                else
                        memcpy(mapped, a.bytes, 16);
                /* the other readings of a local-use translation prefix are egressd's alone: such an address is never global */
                if (strncmp(cases[i].text, "64:ff9b:1:", 10) != 0 && strncmp(cases[i].text, "2001:0:a9fe", 11) != 0 && strncmp(cases[i].text, "::ffff:0:", 9) != 0)
                        assert_true(fence_never(mapped));
        }
}

static void test_parse(void **state) {
        static const char *const bad[] = {
                "", "1", "1.2.3", "1.2.3.4.5", "0x7f.1", "017700000001", "1.2.3.256", "fe80::1%eth0", "[::1]", "a.b", "1.2.3.4:80",
        };
        static const char *const bad_ranges[] = {
                "1.2.3.4", "1.2.3.4/24", "1.2.3.0/33", "1.2.3.0/", "1.2.3.0/-1", "1.2.3.0/ 8", "::/129", "/8", "1.2.3.0/24x",
        };
        char text[ADDRESS_TEXT_SIZE];
        AddressRange range;
        Address a;

        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_int_equal(address_parse(bad[i], &a), -EINVAL);
        for (size_t i = 0; i < ELEMENTSOF(bad_ranges); i++)
                assert_int_equal(address_parse_range(bad_ranges[i], &range), -EINVAL);

        a = address_from_ipv4(0xc6120001);
        assert_string_equal(address_format(&a, text), "198.18.0.1");
        assert_return_code(address_parse("2001:DB8::1", &a), 0);
        assert_string_equal(address_format(&a, text), "2001:db8::1");

        assert_return_code(address_parse_range("203.0.112.0/22", &range), 0);
        assert_return_code(address_parse("203.0.115.255", &a), 0);
        assert_true(address_in_range(&a, &range));
        assert_return_code(address_parse("203.0.116.0", &a), 0);
        assert_false(address_in_range(&a, &range));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_judge),
                cmocka_unit_test(test_networks),
                cmocka_unit_test(test_fence_agrees),
                cmocka_unit_test(test_parse),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
