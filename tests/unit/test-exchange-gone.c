/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* An origin that says its last word and goes while the guest still has something to send: the guest hears it. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <netinet/tcp.h>

#include "exchange-world.h"

/*
 * The order of events is what matters: the exchange comes to write, and finds the connection reset, before it has read what the origin said. So the loop
 * stands still from when the origin has the request, and goes on when there is more from the guest and the origin is gone.
 */
static int hold; /* eventfd */
static sem_t asked, held, sent, gone;

static void await(sem_t *s) {
        while (sem_wait(s) < 0)
                ;
}

static int on_hold(sd_event_source *s, int fd, uint32_t events, void *userdata) {
        eventfd_t value;

        assert_int_equal(eventfd_read(fd, &value), 0);
        (void) sem_post(&held);
        await(&gone);
        return 0;
}

/* ---- the origin ---- */

#define SWITCH "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: abc=\r\n\r\n"

/* Closes its end of the connection, and resets it: there are bytes that it has not read. */
static void go(SSL *ssl) {
        const struct linger now = { .l_onoff = 1 };
        int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

        (void) setsockopt(SSL_get_fd(ssl), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        (void) dup3(fd, SSL_get_fd(ssl), O_CLOEXEC);
        (void) close(fd);
}

static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        bool ws = strstr(w->seen, " /v1/ws ");
        const int on = 1;
        char byte;

        /* a reset takes with it what has not left yet */
        (void) setsockopt(SSL_get_fd(ssl), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        if (ws && !origin_send(ssl, SWITCH "\x81\x05hello"))
                return false;
        (void) sem_post(&asked);
        /* the piece behind the head has come: the exchange has nothing else to do */
        (void) SSL_read(ssl, &byte, 1);
        (void) eventfd_write(hold, 1);
        await(&sent);
        (void) origin_send(ssl, ws ? "\x88\x09\x03\xf1too big" : "HTTP/1.1 413 Content Too Large\r\nContent-Length: 7\r\n\r\ntoo big");
        go(ssl);
        (void) sem_post(&gone);
        return false;
}

/* ---- its clients ---- */

/* As long as that: of a body some is held back, which may be the beginning of a sentinel. */
enum { PIECE = 4000 };

/* One piece after another, the second when the loop stands still; what comes then. */
static void send_pieces(World *w, const char *request, const char *head, size_t head_size, const char *tail, char *text, size_t text_size) {
        SSL *ssl = client_connect(w, NAME);
        char piece[PIECE + 32];
        size_t size = head_size + PIECE + strlen(tail);

        memcpy(piece, head, head_size);
        memset(piece + head_size, 'x', PIECE);
        memcpy(piece + head_size + PIECE, tail, strlen(tail));
        *text = 0;
        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, request));
        await(&asked);
        EXPECT(SSL_write(ssl, piece, (int) size) > 0);
        await(&held);
        EXPECT(SSL_write(ssl, piece, (int) size) > 0);
        (void) sem_post(&sent);
        (void) client_await(ssl, "never", text, text_size);
        SSL_free(ssl);
        ERR_clear_error();
}

static void client_of_upload(World *w) {
        char text[4096];

        send_pieces(w, "POST /v1/upload HTTP/1.1\r\nHost: " NAME "\r\n" KEY "Transfer-Encoding: chunked\r\n\r\n", "fa0\r\n", 5, "\r\n", text, sizeof(text));
        EXPECT(strstr(text, "HTTP/1.1 413 "));
        EXPECT(strstr(text, "big\r\n0\r\n\r\n"));
}

static void client_of_websocket(World *w) {
        char text[4096];

        send_pieces(w, GET("/v1/ws") "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: a\r\n\r\n",
                    "\x82\xfe\x0f\xa0\0\0\0\0", 8, "", text, sizeof(text));
        EXPECT(strstr(text, "\x88\x09\x03\xf1too big"));
}

static void test_upload(void **state) {
        play(*state, client_of_upload);
}

static void test_websocket(void **state) {
        play(*state, client_of_websocket);
}

static int set_up_origin(void **state) {
        int r = set_up(state);
        World *w = *state;

        w->answer = origin_answer;
        hold = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        assert_true(sd_event_add_io(w->event, NULL, hold, EPOLLIN, on_hold, w) >= 0);
        assert_int_equal(sem_init(&asked, 0, 0), 0);
        assert_int_equal(sem_init(&held, 0, 0), 0);
        assert_int_equal(sem_init(&sent, 0, 0), 0);
        assert_int_equal(sem_init(&gone, 0, 0), 0);
        return r;
}

static int tear_down_origin(void **state) {
        int r = tear_down(state);

        (void) close(hold);
        return r;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_origin, tear_down_origin)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_upload),
                TEST(test_websocket),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
