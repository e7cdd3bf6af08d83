/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* How long a connection waits, for whom, and what ends then. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "exchange-world.h"
#include "inject/exchange-private.h"
#include "log-capture.h"

/* ---- time ---- */

/* What is under way and waits for nobody. */
static void settle(World *w) {
        while (sd_event_run(w->event, 0) > 0)
                ;
}

/* So much time goes by for the one connection that there is. */
static void pass(World *w, uint64_t usec) {
        Exchange *x = w->context.exchanges;
        uint64_t at;

        assert_true(sd_event_source_get_time(x->deadline, &at) >= 0);
        assert_true(sd_event_source_set_time(x->deadline, at > usec ? at - usec : 0) >= 0);
        x->idle_usec -= usec;
        settle(w);
}

/* ---- between requests ---- */

static sem_t may_ask;

static void await(sem_t *s) {
        while (sem_wait(s) < 0)
                ;
}

/* It answers, keeps the connection as if for another request, and then goes. */
static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        if (origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
                await(&w->may_go_on);
        return false;
}

static void client_of_two(World *w) {
        SSL *ssl = client_connect(w, NAME);

        EXPECT(ssl);
        for (unsigned i = 0; ssl && i < 2; i++) {
                char text[4096] = "";

                await(&may_ask);
                EXPECT(client_send(ssl, GET("/v1/x") KEY "\r\n"));
                EXPECT(client_await(ssl, "ok\r\n0\r\n\r\n", text, sizeof(text)));
                EXPECT(strstr(text, " 200 "));
        }
        if (ssl) {
                char byte;

                EXPECT(SSL_read(ssl, &byte, 1) <= 0); /* until it is ended */
        }
        SSL_free(ssl);
        ERR_clear_error();
}

/* Until that many requests were answered, and both connections wait for a next one. */
static void let_ask(World *w, unsigned n_requests) {
        const Exchange *x;

        (void) sem_post(&may_ask);
        do {
                assert_true(sd_event_run(w->event, UINT64_MAX) >= 0);
                x = w->context.exchanges;
                assert_non_null(x);
        } while (w->n_questions < n_requests || x->phase != PHASE_HEAD || !x->origin);
}

/* Until that is noticed: then the grant is given back. */
static void let_origin_go(World *w, unsigned n_done) {
        (void) sem_post(&w->may_go_on);
        while (w->n_done < n_done)
                assert_true(sd_event_run(w->event, UINT64_MAX) >= 0);
}

/* An origin that closes its connection, after five seconds as many do, takes nothing of the guest's time. */
static void test_origin_goes_first(void **state) {
        World *w = *state;
        pthread_t thread = begin_play(w, NAME, client_of_two);

        let_ask(w, 1);
        pass(w, 5 * SECOND_USEC);
        let_origin_go(w, 1);
        pass(w, ORIGIN_IDLE_USEC);
        assert_int_equal(w->context.n_exchanges, 1);

        /* the next request opens another, which goes as well; the guest's whole time is from when it began to wait */
        let_ask(w, 2);
        assert_int_equal(w->n_within, 0);
        pass(w, 5 * SECOND_USEC);
        let_origin_go(w, 2);
        pass(w, GUEST_IDLE_USEC - 35 * SECOND_USEC);
        assert_int_equal(w->context.n_exchanges, 1);
        pass(w, 30 * SECOND_USEC);
        assert_int_equal(w->context.n_exchanges, 0);

        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(w->disappointed, 0);
        assert_int_equal(w->n_accepted, 2);
}

/* ---- handshakes ---- */

static int begin(World *w) {
        int fds[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        assert_int_equal(exchange_start(&w->context, fds[1], NAME, w->port, "10.255.255.2", INSPECT_RULE), 0);
        settle(w);
        return fds[0];
}

static SSL *make_guest(int fd) {
        SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
        SSL *ssl = SSL_new(ctx);

        SSL_CTX_free(ctx);
        (void) SSL_set_tlsext_host_name(ssl, NAME);
        (void) SSL_set_fd(ssl, fd);
        return ssl;
}

/* It is there until its time is over, and then it is not, which is said. */
static void check_unfinished(World *w, int fd) {
        _cleanup_free_ char *said = NULL;
        size_t n_before, n_after;
        char scrap[8192];

        settle(w);
        assert_int_equal(w->context.exchanges->phase, PHASE_HANDSHAKE);
        log_begin();
        pass(w, HANDSHAKE_USEC / 2);
        n_before = w->context.n_exchanges;
        if (n_before > 0)
                pass(w, HANDSHAKE_USEC / 2);
        n_after = w->context.n_exchanges;
        said = log_end();

        assert_int_equal(n_before, 1);
        assert_int_equal(n_after, 0);
        assert_non_null(strstr(said, "no TLS with the guest for " NAME ": not done after 30 seconds\n"));
        while (read(fd, scrap, sizeof(scrap)) > 0)
                ;
        assert_int_equal(read(fd, scrap, sizeof(scrap)), 0);
        assert_int_equal(close(fd), 0);
}

static void test_handshake_unfinished(void **state) {
        World *w = *state;
        SSL *guest;
        char byte;
        int fd;

        fd = begin(w); /* says nothing */
        check_unfinished(w, fd);

        fd = begin(w); /* begins, and says no more */
        assert_int_equal(write(fd, "\x16\x03\x01", 3), 3);
        check_unfinished(w, fd);

        fd = begin(w); /* is answered, and says no more */
        guest = make_guest(fd);
        assert_true(SSL_connect(guest) < 0);
        settle(w);
        assert_int_equal(recv(fd, &byte, 1, MSG_PEEK), 1);
        check_unfinished(w, fd);
        SSL_free(guest);
        ERR_clear_error();
}

/* One that needs long has all of its time for its request as well. */
static void test_handshake_late(void **state) {
        _cleanup_free_ char *said = NULL;
        size_t n_before, n_after;
        World *w = *state;
        int fd = begin(w);
        SSL *guest = make_guest(fd);

        pass(w, HANDSHAKE_USEC * 2 / 3);
        for (unsigned i = 0; i < 8 && SSL_connect(guest) != 1; i++)
                settle(w);
        settle(w);
        assert_int_equal(SSL_is_init_finished(guest), 1);
        assert_int_equal(w->context.exchanges->phase, PHASE_HEAD);

        log_begin();
        pass(w, HANDSHAKE_USEC * 2 / 3);
        n_before = w->context.n_exchanges;
        if (n_before > 0)
                pass(w, HANDSHAKE_USEC * 2 / 3);
        n_after = w->context.n_exchanges;
        said = log_end();
        assert_int_equal(n_before, 1);
        assert_int_equal(n_after, 0);
        assert_null(strstr(said, "no TLS"));
        SSL_free(guest);
        assert_int_equal(close(fd), 0);
        ERR_clear_error();
}

static int set_up_origin(void **state) {
        int r = set_up(state);

        ((World *) *state)->answer = origin_answer;
        assert_int_equal(sem_init(&may_ask, 0, 0), 0);
        return r;
}

/* Whoever waits still is let go. */
static int tear_down_origin(void **state) {
        World *w = *state;

        for (unsigned i = 0; i < 2; i++) {
                (void) sem_post(&may_ask);
                (void) sem_post(&w->may_go_on);
        }
        return tear_down(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_origin, tear_down_origin)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_origin_goes_first),
                TEST(test_handshake_unfinished),
                TEST(test_handshake_late),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
