/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "proxy/refusal.h"
#include "proxy/relay.h"
#include "util/io.h"
#include "util/text.h"

typedef struct Fixture {
        sd_event *event;
        Relay *relay;
        int guest, origin;       /* the far ends */
        int guest_near, origin_near;
        bool done;
        int r;
        size_t let_on, seen;     /* of the filter */
        bool undecided;
        char observed[64];
} Fixture;

static void on_done(int r, void *userdata) {
        Fixture *f = userdata;

        assert_false(f->done);
        f->done = true;
        f->r = r;
}

static ssize_t filter(const uint8_t *data, size_t size, bool *ret_undecided, void *userdata) {
        Fixture *f = userdata;
        size_t n = size < f->let_on ? size : f->let_on;

        f->seen = size;
        f->let_on -= n;
        *ret_undecided = f->undecided;
        return (ssize_t) n;
}

static void observer(const uint8_t *data, size_t size, void *userdata) {
        Fixture *f = userdata;

        strncat(f->observed, (const char *) data, size);
}

static void begin(Fixture *f, RelayFilter fn) {
        int a[2], b[2];

        *f = (Fixture) {};
        assert_return_code(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, a), errno);
        assert_return_code(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, b), errno);
        f->guest = a[0];
        f->guest_near = a[1];
        f->origin = b[0];
        f->origin_near = b[1];
        assert_return_code(sd_event_new(&f->event), 0);
        assert_return_code(relay_new(&f->relay, f->event, f->guest_near, f->origin_near, fn, on_done, f), 0);
}

static void end(Fixture *f) {
        relay_free(f->relay);
        (void) fd_close(f->guest);
        (void) fd_close(f->origin);
        (void) fd_close(f->guest_near);
        (void) fd_close(f->origin_near);
        sd_event_unref(f->event);
}

static void turn(Fixture *f) {
        for (int i = 0; i < 20; i++)
                assert_return_code(sd_event_run(f->event, 0), 0);
}

static void expect(int fd, const char *text) {
        char buffer[4096];
        ssize_t n = recv(fd, buffer, sizeof(buffer) - 1, MSG_DONTWAIT);

        buffer[n > 0 ? n : 0] = '\0';
        assert_string_equal(buffer, text);
}

static bool at_end(int fd) {
        char c;

        return recv(fd, &c, 1, MSG_DONTWAIT) == 0;
}

static void say(int fd, const char *text) {
        assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static void test_both_ways(void **state) {
        Fixture f;

        begin(&f, NULL);
        say(f.guest, "question");
        say(f.origin, "answer");
        turn(&f);
        expect(f.origin, "question");
        expect(f.guest, "answer");

        /* half-close: the origin is told, and may still speak */
        (void) shutdown(f.guest, SHUT_WR);
        turn(&f);
        assert_true(at_end(f.origin));
        assert_false(f.done);
        say(f.origin, "more");
        turn(&f);
        expect(f.guest, "more");
        (void) shutdown(f.origin, SHUT_WR);
        turn(&f);
        assert_true(f.done);
        assert_int_equal(f.r, 0);
        assert_int_equal(relay_bytes_out(f.relay), 8);
        assert_int_equal(relay_bytes_in(f.relay), 10);
        end(&f);
}

/* Ten megabytes to somebody who reads slowly: all of it arrives, in order, and memory stays two buffers. */
static void test_backpressure(void **state) {
        static uint8_t block[65536];
        uint64_t sent = 0, got = 0, wanted = 10 << 20;
        Fixture f;

        begin(&f, NULL);
        while (got < wanted) {
                ssize_t n;

                for (size_t i = 0; i < sizeof(block); i++)
                        block[i] = (uint8_t) ((sent + i) % 251);
                n = sent < wanted ? send(f.origin, block, wanted - sent < sizeof(block) ? wanted - sent : sizeof(block), MSG_NOSIGNAL) : 0;
                sent += n > 0 ? (uint64_t) n : 0;
                assert_return_code(sd_event_run(f.event, 0), 0);
                n = recv(f.guest, block, 10000, MSG_DONTWAIT);
                for (ssize_t i = 0; i < n; i++)
                        assert_int_equal(block[i], (got + (uint64_t) i) % 251);
                got += n > 0 ? (uint64_t) n : 0;
        }
        assert_int_equal(relay_bytes_in(f.relay), wanted);
        end(&f);
}

static void test_filter(void **state) {
        Fixture f;

        begin(&f, filter);
        assert_return_code(relay_prepend(f.relay, "head ", 5), 0);
        say(f.guest, "abcdef");
        turn(&f);
        expect(f.origin, "head ");
        assert_int_equal(f.seen, 6);

        f.let_on = 2;
        relay_resume(f.relay);
        turn(&f);
        expect(f.origin, "ab");
        say(f.guest, "gh");
        turn(&f);
        assert_int_equal(f.seen, 6); /* cdefgh, from the first that was kept back */
        expect(f.origin, "");

        /* what was never let on is not sent when the guest ends */
        (void) shutdown(f.guest, SHUT_WR);
        turn(&f);
        assert_true(at_end(f.origin));
        end(&f);
}

static void test_refuse(void **state) {
        Fixture f;

        begin(&f, filter);
        say(f.guest, "not allowed");
        turn(&f);
        assert_return_code(relay_refuse(f.relay, "no", 2), 0);
        say(f.guest, "and more");
        turn(&f);
        assert_true(at_end(f.origin));
        expect(f.guest, ""); /* behind what the origin still has to say */
        say(f.origin, "late ");
        turn(&f);
        expect(f.guest, "late ");
        (void) shutdown(f.origin, SHUT_WR);
        turn(&f);
        expect(f.guest, "no");
        assert_true(at_end(f.guest));
        assert_false(f.done);
        (void) shutdown(f.guest, SHUT_WR);
        turn(&f);
        assert_true(f.done);
        assert_int_equal(relay_bytes_out(f.relay), 0);
        end(&f);
}

/* An origin that neither ends nor says anything does not keep the refusal back for long. */
static void test_refuse_silent_origin(void **state) {
        uint64_t since;
        Fixture f;

        begin(&f, filter);
        say(f.guest, "not allowed");
        turn(&f);
        since = time_monotonic();
        assert_return_code(relay_refuse(f.relay, "no", 2), 0);
        assert_int_equal(relay_refuse(f.relay, "no", 2), -ENOTCONN);
        while (!at_end(f.origin))
                turn(&f);
        while (time_monotonic() - since < (RELAY_QUIET_SEC + 1) * 1000000ULL)
                assert_return_code(sd_event_run(f.event, 50000), 0);
        expect(f.guest, "no");
        assert_true(at_end(f.guest));
        end(&f);
}

/* A guest that ends while it is decided about what it said last. */
static void test_undecided_at_end(void **state) {
        Fixture f;

        begin(&f, filter);
        f.undecided = true;
        say(f.guest, "abc");
        (void) shutdown(f.guest, SHUT_WR);
        turn(&f);
        expect(f.origin, "");
        assert_false(f.done);

        f.let_on = 2;
        f.undecided = false;
        relay_resume(f.relay);
        turn(&f);
        expect(f.origin, "ab");
        assert_true(at_end(f.origin));
        say(f.origin, "answer");
        (void) shutdown(f.origin, SHUT_WR);
        turn(&f);
        expect(f.guest, "answer");
        assert_true(f.done);
        end(&f);

        /* or is refused */
        begin(&f, filter);
        f.undecided = true;
        say(f.guest, "abc");
        (void) shutdown(f.guest, SHUT_WR);
        turn(&f);
        assert_return_code(relay_refuse(f.relay, "no", 2), 0);
        turn(&f);
        assert_true(at_end(f.origin));
        (void) shutdown(f.origin, SHUT_WR);
        turn(&f);
        expect(f.guest, "no");
        assert_true(f.done);
        assert_int_equal(relay_bytes_out(f.relay), 0);
        end(&f);
}

static void test_observer(void **state) {
        Fixture f;

        begin(&f, filter);
        relay_watch(f.relay, filter, observer);
        say(f.origin, "one ");
        turn(&f);
        say(f.origin, "two");
        turn(&f);
        assert_string_equal(f.observed, "one two");
        expect(f.guest, "one two");

        relay_watch(f.relay, NULL, NULL);
        say(f.origin, "three");
        say(f.guest, "all");
        turn(&f);
        assert_string_equal(f.observed, "one two");
        expect(f.origin, "all");
        end(&f);
}

/* A guest that has gone, towards an origin that does not read: neither a busy loop nor a lost byte. */
static void test_gone_guest(void **state) {
        static char block[65536];
        uint64_t sent = 0, got = 0;
        Fixture f;

        begin(&f, NULL);
        for (ssize_t n; (n = send(f.guest, block, sizeof(block), MSG_NOSIGNAL)) > 0; turn(&f))
                sent += (uint64_t) n;
        (void) shutdown(f.guest, SHUT_WR);
        (void) shutdown(f.origin, SHUT_WR);
        turn(&f);
        assert_return_code(sd_event_run(f.event, 0), 0);
        assert_int_equal(sd_event_run(f.event, 20000), 0); /* nothing to do: it waits */

        while (got < sent) {
                ssize_t n = recv(f.origin, block, sizeof(block), MSG_DONTWAIT);

                got += n > 0 ? (uint64_t) n : 0;
                assert_return_code(sd_event_run(f.event, 0), 0);
        }
        turn(&f);
        assert_true(f.done);
        assert_int_equal(f.r, 0);
        end(&f);
}

/* A listening pair over TCP, which knows resets. */
static void tcp_pair(int ret[static 2]) {
        struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        socklen_t n = sizeof(in);

        assert_return_code(bind(listener, (struct sockaddr *) &in, sizeof(in)), errno);
        assert_return_code(listen(listener, 1), errno);
        assert_return_code(getsockname(listener, (struct sockaddr *) &in, &n), errno);
        ret[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_return_code(connect(ret[0], (struct sockaddr *) &in, sizeof(in)), errno);
        ret[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        assert_return_code(ret[1], errno);
        assert_return_code(io_set_nonblock(ret[0], true), 0);
        (void) fd_close(listener);
}

static void begin_tcp(Fixture *f) {
        int a[2], b[2];

        *f = (Fixture) {};
        tcp_pair(a);
        tcp_pair(b);
        f->guest = a[0];
        f->guest_near = a[1];
        f->origin = b[0];
        f->origin_near = b[1];
        assert_return_code(sd_event_new(&f->event), 0);
        assert_return_code(relay_new(&f->relay, f->event, f->guest_near, f->origin_near, NULL, on_done, f), 0);
}

/* A guest in the middle of an upload hears what the origin said before it went. */
static void test_early_answer(void **state) {
        static char block[1 << 16];
        Fixture f;

        begin_tcp(&f);
        for (int i = 0; i < 100; i++) {
                (void) send(f.guest, block, sizeof(block), MSG_NOSIGNAL);
                turn(&f);
        }
        say(f.origin, "too large");
        f.origin = fd_close(f.origin); /* with unread bytes: a reset */
        for (int i = 0; i < 100; i++) {
                (void) send(f.guest, block, sizeof(block), MSG_NOSIGNAL);
                turn(&f);
        }
        expect(f.guest, "too large");
        assert_true(f.done);
        assert_int_equal(f.r, -ECONNRESET);
        end(&f);
}

/* One that went in order: the guest is told the end, what it still sends is for nobody. */
static void test_gone_origin(void **state) {
        Fixture f;

        begin(&f, NULL);
        say(f.origin, "bye");
        f.origin = fd_close(f.origin);
        say(f.guest, "anybody?");
        turn(&f);
        say(f.guest, "hello?");
        turn(&f);
        expect(f.guest, "bye");
        assert_true(at_end(f.guest));
        assert_false(f.done);
        (void) shutdown(f.guest, SHUT_WR);
        turn(&f);
        assert_true(f.done);
        assert_int_equal(relay_bytes_out(f.relay), 0);
        end(&f);
}

static void test_reset(void **state) {
        struct linger now = { .l_onoff = 1 };
        Fixture f;

        begin_tcp(&f);
        (void) setsockopt(f.origin, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        f.origin = fd_close(f.origin);
        turn(&f);
        assert_true(f.done);
        assert_int_equal(f.r, -ECONNRESET);
        end(&f);

        begin_tcp(&f);
        (void) setsockopt(f.guest, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        f.guest = fd_close(f.guest);
        turn(&f);
        assert_true(f.done);
        assert_int_equal(f.r, -ECONNRESET);
        end(&f);
}

static void test_refusals(void **state) {
        Refusal refusal = { .reason = "fronting", .rule = "egress/x.json#/allow/0", .name = "a.example", .port = 80 };
        uint8_t alert[REFUSAL_ALERT_SIZE];
        char *text;
        size_t n;

        text = refusal_http(&refusal, &n);
        assert_non_null(strstr(text, "HTTP/1.1 421 Misdirected Request\r\n"));
        assert_non_null(strstr(text, "\r\nAnchorhold-Rule: egress/x.json#/allow/0\r\n"));
        assert_non_null(strstr(text, "\"rule\": \"egress/x.json#/allow/0\""));
        assert_int_equal(n, strlen(text));
        free(text);

        refusal.reason = "no-rule";
        text = refusal_http(&refusal, &n);
        assert_int_equal(strncmp(text, "HTTP/1.1 403 ", 13), 0);
        free(text);

        refusal_alert("no-sni", alert);
        assert_memory_equal(alert, ((uint8_t[]) { 21, 3, 3, 0, 2, 2, 49 }), 7);
        refusal_alert("unavailable", alert);
        assert_int_equal(alert[6], 80);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_both_ways),
                cmocka_unit_test(test_backpressure),
                cmocka_unit_test(test_filter),
                cmocka_unit_test(test_refuse),
                cmocka_unit_test(test_refuse_silent_origin),
                cmocka_unit_test(test_undecided_at_end),
                cmocka_unit_test(test_observer),
                cmocka_unit_test(test_gone_guest),
                cmocka_unit_test(test_early_answer),
                cmocka_unit_test(test_gone_origin),
                cmocka_unit_test(test_reset),
                cmocka_unit_test(test_refusals),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
