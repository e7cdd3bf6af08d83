/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The addresses that stay shut whatever the maps say: the function is the one that the kernel runs. */

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fence-api.bpf.h"

static int never(const char *text) {
        uint8_t a[16] = { [10] = 0xff, [11] = 0xff };

        if (inet_pton(AF_INET, text, a + 12) != 1)
                assert_int_equal(inet_pton(AF_INET6, text, a), 1);
        return fence_never(a);
}

static void test_never(void **state) {
        static const char *const shut[] = {
                "169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.0.1", "100.100.100.200", "100.96.0.96", "64:ff9b::100.96.0.96",
                "168.63.129.16", "192.0.0.192", "127.0.0.1", "127.255.255.255", "0.0.0.0", "0.1.2.3",
                "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
                "::", "::1", "::169.254.169.254", "::ffff:169.254.169.254", "::ffff:127.0.0.1",
                "64:ff9b::169.254.169.254", "64:ff9b:1::169.254.169.254", "64:ff9b::127.0.0.1",
                "::ffff:0:169.254.169.254", "::ffff:0:127.0.0.1",
                /* behind 48, 56 and 64 bits of a local-use prefix */
                "64:ff9b:1:a9fe:a9:fe00:101:101", "64:ff9b:1:aa9:fe:a9fe:101:101", "64:ff9b:1:aaaa:a9:feaa:201:101",
                "2002:a9fe:a9fe::1", "2002:7f00:1::1",
                "2001:0:1:2:3:4:5601:5601" /* Teredo: ~169.254.169.254 */,
                "fe80::1", "febf::1", "ff02::1", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254",
                "192.80.8.124", "fd00:c1::a9fe:a9fe", "fd00:100::100:200", "fd00:a9fe:a9fe::1", "fd00:42::42",
                "2001:db8::5efe:169.254.169.254", "2001:db8::200:5efe:127.0.0.1",
        };

        for (size_t i = 0; i < sizeof(shut) / sizeof(shut[0]); i++)
                if (!never(shut[i]))
                        fail_msg("%s is open", shut[i]);
}

static void test_may_be_granted(void **state) {
        static const char *const open[] = {
                "1.1.1.1", "203.0.113.5", "10.0.0.1", "192.0.0.191", "100.100.100.201", "100.96.0.97", "100.97.0.96", "168.63.129.17",
                "170.254.169.254", "223.255.255.255", "::ffff:203.0.113.5", "2606:4700::1111",
                "64:ff9b::1.1.1.1", "::ffff:0:1.1.1.1", "64:ff9b:1::1.1.1.1", "64:ff9b:1:fffe::203.0.113.5", "2002:101:101::1", "2001:db8::1", "fc00::1", "fd00:ec3::254",
                "192.80.8.125", "fd21:ce::254", "2001:db8::5efe:203.0.113.5", "2001:db8::1:0:5efe:a9fe",
        };

        for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++)
                if (never(open[i]))
                        fail_msg("%s is shut", open[i]);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_never),
                cmocka_unit_test(test_may_be_granted),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
