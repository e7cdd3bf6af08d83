/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The host's own addresses are known as they are at the moment of the question. In a network of its own. */

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

#include <cmocka.h>

#include "egress/host-addresses.h"
#include "own-world.h"

static void set_address(const char *name, uint32_t address) {
        struct ifreq req = {};
        struct sockaddr_in *in = (struct sockaddr_in *) &req.ifr_addr;
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        (void) snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", name);
        *in = (struct sockaddr_in) { .sin_family = AF_INET, .sin_addr.s_addr = htonl(address) };
        assert_int_equal(ioctl(fd, SIOCSIFADDR, &req), 0);
        req.ifr_flags = IFF_UP;
        assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &req), 0);
        (void) close(fd);
}

static void add_ipv6(const char *address) {
        struct { struct in6_addr address; uint32_t prefix; int index; } req = { .prefix = 64, .index = (int) if_nametoindex("lo") };
        int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        assert_int_equal(inet_pton(AF_INET6, address, &req.address), 1);
        assert_int_equal(ioctl(fd, SIOCSIFADDR, &req), 0);
        (void) close(fd);
}

static bool has(HostAddresses *h, const char *text) {
        const Address *list;
        Address wanted;
        size_t n;

        assert_true(address_parse(text, &wanted) >= 0);
        assert_int_equal(host_addresses_get(h, &list, &n), 0);
        for (size_t i = 0; i < n; i++)
                if (list[i].family == wanted.family && memcmp(list[i].bytes, wanted.bytes, wanted.family == AF_INET ? 4 : 16) == 0)
                        return true;
        return false;
}

static void test_changes(void **state) {
        _cleanup_(host_addresses_freep) HostAddresses *h = NULL;

        assert_int_equal(host_addresses_new(&h), 0);
        assert_false(has(h, "203.0.113.5"));
        set_address("lo", 0x7f000001);
        assert_true(has(h, "127.0.0.1"));
        set_address("lo:1", 0xcb007105);
        assert_true(has(h, "203.0.113.5"));
        assert_true(has(h, "203.0.113.5")); /* from memory */
        set_address("lo:1", 0xcb007106);
        assert_true(has(h, "203.0.113.6"));
        assert_false(has(h, "203.0.113.5"));

        /* so many changes that the kernel gives up telling each */
        for (unsigned i = 0; i < 3000; i++)
                set_address("lo:1", 0xcb007107 + i % 2);
        assert_true(has(h, "203.0.113.8"));
        assert_false(has(h, "203.0.113.6"));
}

static void test_ipv6(void **state) {
        _cleanup_(host_addresses_freep) HostAddresses *h = NULL;

        assert_int_equal(host_addresses_new(&h), 0);
        assert_false(host_addresses_has_ipv6(h)); /* ::1 leads nowhere */
        add_ipv6("fe80::5");
        assert_false(host_addresses_has_ipv6(h));
        add_ipv6("fd00::5");
        assert_true(host_addresses_has_ipv6(h));
        assert_true(has(h, "fd00::5"));
}

static int enter_world(void **state) {
        own_world_enter(CLONE_NEWNET);
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_changes),
                cmocka_unit_test(test_ipv6),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
