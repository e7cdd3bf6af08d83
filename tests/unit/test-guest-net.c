/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The guest's network as the hello says it, on an eth0 of the test's own. */

#include <arpa/inet.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>

#include "guest-world.h"

#define NETWORK "\"address\": \"10.255.255.2/30\", \"gateway\": \"10.255.255.1\""

static int tap = -1;

static int setup(void **state) {
        struct ifreq req = { .ifr_name = "eth0", .ifr_flags = IFF_TAP | IFF_NO_PI };

        (void) guest_world_enter(state);
        assert_int_equal(mknod("/run/tun", S_IFCHR | 0600, makedev(10, 200)), 0);
        tap = open("/run/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
        assert_true(tap >= 0);
        assert_int_equal(ioctl(tap, TUNSETIFF, &req), 0);
        return 0;
}

static int teardown(void **state) {
        tap = fd_close(tap);
        return guest_world_leave(state);
}

/* True if it worked; else the error is of the network. */
static bool say_hello(const char *network) {
        Host *h = host_new(false);
        bool greeted;
        char hello[256];

        (void) snprintf(hello, sizeof(hello), "{\"protocol\": 1, \"network\": {%s}}", network);
        host_say_text(h, CHANNEL_HELLO, 0, hello);
        TURN_UNTIL(h, h->hello || h->error);
        if (h->error)
                assert_string_equal(json_string_value(json_object_get(h->error, "reason")), "the network cannot be set up");
        greeted = h->hello;
        host_free(h);
        return greeted;
}

static void expect_address(unsigned long what, const char *expected) {
        struct ifreq req = { .ifr_name = "eth0" };
        struct sockaddr_in address;
        char text[INET_ADDRSTRLEN];
        _cleanup_fd_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        assert_int_equal(ioctl(fd, what, &req), 0);
        memcpy(&address, &req.ifr_addr, sizeof(address));
        assert_string_equal(inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text)), expected);
}

static void test_not_a_network(void **state) {
        static const char *const networks[] = {
                "", "\"address\": \"10.255.255.2/30\"", "\"gateway\": \"10.255.255.1\"",
                "\"address\": \"10.255.255.2\", \"gateway\": \"10.255.255.1\"",
                "\"address\": \"10.255.255.2/0\", \"gateway\": \"10.255.255.1\"",
                "\"address\": \"10.255.255.2/33\", \"gateway\": \"10.255.255.1\"",
                "\"address\": \"10.255.255.256/30\", \"gateway\": \"10.255.255.1\"",
                "\"address\": \"10.255.255.2/30\", \"gateway\": \"gateway\"",
                "\"address\": \"10.255.255.2/30\", \"gateway\": \"192.0.2.1\"", /* of no network that it has */
        };

        for (size_t i = 0; i < ELEMENTSOF(networks); i++)
                assert_false(say_hello(networks[i]));
}

static void test_as_told(void **state) {
        struct ifreq req = { .ifr_name = "eth0" };
        _cleanup_fd_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        _cleanup_file_ FILE *routes = NULL, *resolver = NULL;
        char line[256];
        bool found = false;

        assert_int_equal(symlink("/nowhere/stub-resolv.conf", "/etc/link"), 0);
        assert_int_equal(rename("/etc/link", "/etc/resolv.conf"), 0);
        assert_true(say_hello(NETWORK ", \"dns\": \"10.255.255.1\", \"mtu\": 1400"));
        assert_true(say_hello(NETWORK ", \"dns\": \"10.255.255.1\", \"mtu\": 1400")); /* a host that came again */

        expect_address(SIOCGIFADDR, "10.255.255.2");
        expect_address(SIOCGIFNETMASK, "255.255.255.252");
        assert_int_equal(ioctl(fd, SIOCGIFMTU, &req), 0);
        assert_int_equal(req.ifr_mtu, 1400);
        assert_int_equal(ioctl(fd, SIOCGIFFLAGS, &req), 0);
        assert_true(req.ifr_flags & IFF_UP);

        routes = fopen("/proc/net/route", "re");
        assert_non_null(routes);
        while (fgets(line, sizeof(line), routes))
                found |= strncmp(line, "eth0\t00000000\t01FFFF0A\t0003", 27) == 0;
        assert_true(found);

        resolver = fopen("/etc/resolv.conf", "re");
        assert_non_null(resolver);
        assert_non_null(fgets(line, sizeof(line), resolver));
        assert_string_equal(line, "nameserver 10.255.255.1\n");
}

/* 0, or the errno of a datagram from a process that belongs to the guest's cgroups. */
static int send_to(const char *address) {
        pid_t pid = fork();
        int status;

        if (pid == 0) {
                struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9) };
                int fd, one = 1;

                if (guest_write_file("/sys/fs/cgroup/cgroup.procs", "0") < 0)
                        _exit(255);
                (void) inet_pton(AF_INET, address, &to.sin_addr);
                fd = socket(AF_INET, SOCK_DGRAM, 0);
                (void) setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &one, sizeof(one));
                _exit(sendto(fd, "x", 1, 0, (struct sockaddr *) &to, sizeof(to)) == 1 ? 0 : errno);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

/* Nobody would answer those; everything else is the host's to judge. */
static void test_groups_are_refused_at_once(void **state) {
        assert_true(say_hello(NETWORK));
        assert_int_equal(guest_setup_lo(), 0);
        assert_int_equal(send_to("255.255.255.255"), EPERM);
        assert_int_equal(send_to("10.255.255.3"), EPERM);
        assert_int_equal(send_to("224.0.0.1"), EPERM);
        assert_int_equal(send_to("239.255.255.250"), EPERM);
        assert_int_equal(send_to("10.255.255.1"), 0);
        assert_int_equal(send_to("203.0.113.9"), 0);
        assert_int_equal(send_to("223.255.255.255"), 0);
        assert_int_equal(send_to("127.255.255.255"), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_not_a_network),
                cmocka_unit_test(test_as_told),
                cmocka_unit_test(test_groups_are_refused_at_once),
        };

        return cmocka_run_group_tests(tests, setup, teardown);
}
