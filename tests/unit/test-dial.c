/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "util/dial.h"
#include "util/text.h"

typedef struct Fixture {
        sd_event *event;
        Dial *dial;
        int fd;
        bool done;
        char failures[1024];
        uint16_t port;
        int listener;
} Fixture;

static void on_done(int fd, const char *failures, void *userdata) {
        Fixture *f = userdata;

        assert_false(f->done);
        f->done = true;
        f->fd = fd;
        (void) snprintf(f->failures, sizeof(f->failures), "%s", failures);
        f->dial = dial_free(f->dial);
}

/* A listener on one loopback address and a free port; the other addresses of 127/8 refuse. */
static int listen_at(const char *address, uint16_t *port, int backlog) {
        struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(*port) };
        socklen_t n = sizeof(in);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        assert_int_equal(inet_pton(AF_INET, address, &in.sin_addr), 1);
        assert_return_code(bind(fd, (struct sockaddr *) &in, sizeof(in)), errno);
        assert_return_code(listen(fd, backlog), errno);
        assert_return_code(getsockname(fd, (struct sockaddr *) &in, &n), errno);
        *port = ntohs(in.sin_port);
        return fd;
}

static void begin(Fixture *f) {
        *f = (Fixture) { .fd = -1 };
        assert_return_code(sd_event_new(&f->event), 0);
        f->listener = listen_at("127.0.0.1", &f->port, 16);
}

static void end(Fixture *f) {
        f->dial = dial_free(f->dial);
        f->fd = f->fd >= 0 ? fd_close(f->fd) : -1;
        f->listener = fd_close(f->listener);
        sd_event_unref(f->event);
}

/* Microseconds until it was over. */
static uint64_t dial(Fixture *f, const char *const *addresses, size_t n) {
        uint64_t since = time_monotonic();

        assert_return_code(dial_new(&f->dial, f->event, addresses, n, f->port, on_done, f), 0);
        while (!f->done)
                assert_return_code(sd_event_run(f->event, UINT64_MAX), 0);
        return time_monotonic() - since;
}

static void check_peer(int fd, const char *address) {
        struct sockaddr_in in = {};
        char text[INET_ADDRSTRLEN];
        socklen_t n = sizeof(in);

        assert_return_code(getpeername(fd, (struct sockaddr *) &in, &n), errno);
        assert_string_equal(inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text)), address);
}

static void test_first_refuses(void **state) {
        const char *const addresses[] = { "127.0.0.2", "127.0.0.3", "127.0.0.1", "127.0.0.4" };
        uint64_t took;
        Fixture f;

        begin(&f);
        took = dial(&f, addresses, 4);
        assert_true(f.fd >= 0);
        check_peer(f.fd, "127.0.0.1");
        assert_string_equal(f.failures, "127.0.0.2: Connection refused; 127.0.0.3: Connection refused");
        assert_true(took < DIAL_STAGGER_USEC); /* a failure does not wait for the next one's turn */
        end(&f);
}

/* An address that does not answer costs a quarter of a second, and its attempt is closed. */
static void test_first_is_silent(void **state) {
        const char *const addresses[] = { "127.0.0.2", "127.0.0.1" };
        struct sockaddr_in in = { .sin_family = AF_INET };
        int silent, fill[2];
        uint64_t took;
        Fixture f;

        /* a full backlog drops what comes next */
        begin(&f);
        silent = listen_at("127.0.0.2", &f.port, 0);
        in.sin_port = htons(f.port);
        (void) inet_pton(AF_INET, "127.0.0.2", &in.sin_addr);
        for (size_t i = 0; i < 2; i++) {
                fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
                (void) connect(fill[i], (struct sockaddr *) &in, sizeof(in));
        }

        took = dial(&f, addresses, 2);
        assert_true(f.fd >= 0);
        check_peer(f.fd, "127.0.0.1");
        assert_true(took >= DIAL_STAGGER_USEC && took < 4 * DIAL_STAGGER_USEC);
        assert_string_equal(f.failures, "");
        end(&f);
        (void) fd_close(silent);
        (void) fd_close(fill[0]);
        (void) fd_close(fill[1]);
}

static void test_none(void **state) {
        const char *const addresses[] = { "127.0.0.2", "127.0.0.3" }, *const bad[] = { "www.example.org" };
        Fixture f;

        begin(&f);
        (void) dial(&f, addresses, 2);
        assert_int_equal(f.fd, -ECONNREFUSED);
        assert_int_equal(dial_new(&f.dial, f.event, bad, 1, f.port, on_done, &f), -EINVAL);
        assert_int_equal(dial_new(&f.dial, f.event, bad, 0, f.port, on_done, &f), -EINVAL);
        end(&f);
}

/* One that is freed under way calls nobody. */
static void test_freed(void **state) {
        const char *const addresses[] = { "127.0.0.1", "127.0.0.2" };
        Fixture f;

        begin(&f);
        assert_return_code(dial_new(&f.dial, f.event, addresses, 2, f.port, on_done, &f), 0);
        assert_return_code(sd_event_run(f.event, UINT64_MAX), 0);
        f.dial = dial_free(f.dial);
        for (int i = 0; i < 5; i++)
                assert_return_code(sd_event_run(f.event, 1000), 0);
        assert_false(f.done);
        end(&f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_first_refuses),
                cmocka_unit_test(test_first_is_silent),
                cmocka_unit_test(test_none),
                cmocka_unit_test(test_freed),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
