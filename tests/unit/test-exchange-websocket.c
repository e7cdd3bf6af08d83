/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* WebSocket through an exchange: messages and fragments in both directions, what is masked, what is refused. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "exchange-world.h"

/* ---- the origin ---- */

#define GIT_SECRET "ghp_the-real-git-token"
#define SWITCH "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Accept: abc=\r\n"

/* Reads n bytes, whatever the records. */
static bool read_exactly(SSL *ssl, void *data, size_t n) {
        size_t have = 0;

        while (have < n) {
                int k = SSL_read(ssl, (char *) data + have, (int) (n - have));

                if (k <= 0)
                        return false;
                have += (size_t) k;
        }
        return true;
}

/* A short frame of a client's, its mask off. */
static bool read_frame(SSL *ssl, uint8_t *ret_first, char *ret_text) {
        uint8_t head[6];

        if (!read_exactly(ssl, head, sizeof(head)) || (head[1] & 0x7f) > 125 || !(head[1] & 0x80) ||
            !read_exactly(ssl, ret_text, head[1] & 0x7f))
                return false;
        for (unsigned i = 0; i < (head[1] & 0x7fU); i++)
                ret_text[i] ^= (char) head[2 + i % 4];
        ret_text[head[1] & 0x7f] = 0;
        *ret_first = head[0];
        return true;
}

/* Says what it got, in capitals as a mark of its own, and the secret once. */
static bool origin_websocket(World *w, SSL *ssl) {
        uint8_t first;
        char text[128];

        /* the first frame comes right behind the head */
        if (!origin_send(ssl, SWITCH "\r\n\x81\x05hello"))
                return false;
        while (read_frame(ssl, &first, text)) {
                uint8_t head[2] = { first, 0 };
                char reply[256];

                (void) snprintf(reply, sizeof(reply), first == 0x81 ? "GOT %s " GIT_SECRET : "%s", text);
                (void) strncat(w->seen, text, sizeof(w->seen) - strlen(w->seen) - 1);
                head[1] = (uint8_t) strlen(reply);
                if (first == 0x89)
                        head[0] = 0x8a;
                if (SSL_write(ssl, head, 2) != 2 || (head[1] > 0 && !origin_send(ssl, reply)))
                        return false;
                if (first == 0x88)
                        return false;
        }
        return false;
}

/* When a Close frame has come, a last message and its own Close, and it reads on: whoever speaks to it has to end. */
static bool origin_closing(World *w, SSL *ssl) {
        uint8_t first;
        char text[128];

        if (!origin_send(ssl, SWITCH "\r\n\x81\x05hello") || !read_frame(ssl, &first, text) || first != 0x88)
                return false;
        while (sem_wait(&w->may_go_on) < 0)
                ;
        (void) origin_send(ssl, "\x81\x04last\x88\x02\x03\xe8");
        (void) SSL_read(ssl, text, sizeof(text));
        return false;
}

/* In the middle of a message another host's credential gets the value that is in it, and in a ping behind it. */
static bool origin_rotated(World *w, SSL *ssl) {
        if (!origin_send(ssl, SWITCH "\r\n\x01\x10" "begun ghp_the-ro"))
                return false;
        while (sem_wait(&w->may_go_on) < 0)
                ;
        (void) origin_send(ssl, "\x80\x0f"
                                "tated-git-token\x89\x19" ROTATED);
        return false;
}

static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        if (strstr(w->seen, " /v1/ws-rotated"))
                return origin_rotated(w, ssl);
        if (strstr(w->seen, " /v1/ws-closing"))
                return origin_closing(w, ssl);
        if (strstr(w->seen, " /v1/ws "))
                return origin_websocket(w, ssl);
        if (strstr(w->seen, " /v1/ws-no"))
                return origin_send(ssl, "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno");
        if (strstr(w->seen, " /v1/ws-extended"))
                return origin_send(ssl, SWITCH "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n");
        if (strstr(w->seen, " /v1/ws-broken"))
                return origin_send(ssl, SWITCH "\r\n\x81\x02ok\xc1\x02zz");
        if (strstr(w->seen, " /v1/ws-other"))
                return origin_send(ssl, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: foo\r\nConnection: Upgrade\r\n\r\nfoo");
        if (strstr(w->seen, " /v1/101"))
                return origin_send(ssl, SWITCH "\r\n");
        return false;
}

/* ---- its clients ---- */

#define TOKEN "Private-Token: " OTHER "\r\n"
#define WS(path) GET(path) TOKEN UPGRADE
#define UPGRADE "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" \
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"

/* A short frame as a client sends it. */
static bool send_frame(SSL *ssl, uint8_t first, const char *text) {
        uint8_t frame[140] = { first, (uint8_t) (0x80 | strlen(text)), 0x12, 0xff, 0x00, 0x81 };

        for (size_t i = 0; i < strlen(text); i++)
                frame[6 + i] = (uint8_t) text[i] ^ frame[2 + i % 4];
        return SSL_write(ssl, frame, (int) (6 + strlen(text))) > 0;
}

static void client_of_websocket(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, WS("/v1/ws") "\r\n"));
        EXPECT(client_await(ssl, "hello", text, sizeof(text)));
        EXPECT(strstr(text, "HTTP/1.1 101 "));
        EXPECT(strstr(text, "\r\nSec-WebSocket-Accept: abc=\r\n"));
        EXPECT(strstr(text, "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x05hello"));
        *text = 0;
        EXPECT(send_frame(ssl, 0x81, "one"));
        EXPECT(client_await(ssl, "\x81\x25GOT one " OTHER, text, sizeof(text)));
        *text = 0;
        EXPECT(send_frame(ssl, 0x89, "ping"));
        EXPECT(client_await(ssl, "\x8a\x04ping", text, sizeof(text)));
        /* a message in fragments, which are echoed as they come, and are one when they have been masked */
        *text = 0;
        EXPECT(send_frame(ssl, 0x01, "tw"));
        EXPECT(send_frame(ssl, 0x80, "o"));
        EXPECT(client_await(ssl, "\x81\x03two", text, sizeof(text)));
        EXPECT(!strstr(text, GIT_SECRET));
        *text = 0;
        EXPECT(send_frame(ssl, 0x88, ""));
        EXPECT(!client_await(ssl, "never", text, sizeof(text)));
        EXPECT(strncmp(text, "\x88", 2) == 0);
        EXPECT(SSL_get_shutdown(ssl) & SSL_RECEIVED_SHUTDOWN);
        SSL_free(ssl);
        ERR_clear_error();
}

/* Its own Close and the end of what it sends, both before the origin has answered. */
static void client_of_closing(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, GET("/v1/ws-closing") UPGRADE "\r\n"));
        EXPECT(client_await(ssl, "hello", text, sizeof(text)));
        *text = 0;
        EXPECT(send_frame(ssl, 0x88, ""));
        (void) SSL_shutdown(ssl);
        EXPECT(sem_post(&w->may_go_on) == 0);
        EXPECT(client_await(ssl, "\x81\x04last\x88\x02\x03\xe8", text, sizeof(text)));
        EXPECT(!client_await(ssl, "never", text, sizeof(text)));
        SSL_free(ssl);
        ERR_clear_error();
}

/* The end without a Close: whoever has gone so is waited for by nobody. */
static void client_that_is_gone(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, GET("/v1/ws") UPGRADE "\r\n"));
        EXPECT(client_await(ssl, "hello", text, sizeof(text)));
        (void) SSL_shutdown(ssl);
        EXPECT(!client_await(ssl, "never", text, sizeof(text)));
        SSL_free(ssl);
        ERR_clear_error();
}

static void client_of_rotated(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, GET("/v1/ws-rotated") UPGRADE "\r\n"));
        EXPECT(client_await(ssl, "\x01\x06"
                                 "begun ",
                            text, sizeof(text)));
        (void) eventfd_write(w->rotate, 1);
        EXPECT(client_await(ssl, "\x80\x1d" OTHER "\x89\x1d" OTHER, text, sizeof(text)));
        EXPECT(!strstr(text, "ghp_the-"));
        SSL_free(ssl);
        ERR_clear_error();
}

/* What belongs to another host does not get through, whatever the mask; the client hears why. */
static void client_of_websocket_misuse(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, WS("/v1/ws") "\r\n"));
        EXPECT(client_await(ssl, "hello", text, sizeof(text)));
        *text = 0;
        EXPECT(send_frame(ssl, 0x81, "fine"));
        EXPECT(client_await(ssl, "GOT fine", text, sizeof(text)));
        *text = 0;
        EXPECT(send_frame(ssl, 0x82, "x third-Sentinel-0123456789 x"));
        EXPECT(!client_await(ssl, "never", text, sizeof(text)));
        EXPECT(strstr(text, "\x88\x13\x03\xf0"
                            "credential-misuse"));
        SSL_free(ssl);
        ERR_clear_error();
}

static void client_of_websocket_garbage(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, WS("/v1/ws") "\r\n"));
        EXPECT(client_await(ssl, "hello", text, sizeof(text)));
        *text = 0;
        EXPECT(client_send(ssl, "\x81\x05hello")); /* without a mask */
        EXPECT(!client_await(ssl, "never", text, sizeof(text)));
        EXPECT(strstr(text, "\x88\x0d\x03\xea"
                            "bad-request"));
        SSL_free(ssl);
        ERR_clear_error();
}

CLIENT(client_of_websocket_broken, WS("/v1/ws-broken") "\r\n", EXPECT(strstr(text, "\x81\x02ok")); EXPECT(strstr(text, "\x88\x12\x03\xf3" "origin-malformed"));)
CLIENT(client_of_websocket_no, GET("/v1/ws-no") TOKEN "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: a\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 426 "));
       EXPECT(!strcasestr(text, "websocket")); EXPECT(proper);)
CLIENT(client_of_websocket_extended, WS("/v1/ws-extended") "\r\n", EXPECT(strstr(text, "HTTP/1.1 502 ")); EXPECT(strstr(text, "origin-malformed"));)
CLIENT(client_of_websocket_other, WS("/v1/ws-other") "\r\n", EXPECT(strstr(text, "HTTP/1.1 502 ")); EXPECT(strstr(text, "origin-malformed")); EXPECT(!strstr(text, "foo"));)
CLIENT(client_of_uninvited_switch, GET("/v1/101") TOKEN "\r\n", EXPECT(strstr(text, "HTTP/1.1 502 ")); EXPECT(strstr(text, "origin-malformed"));)
CLIENT(client_of_websocket_post, "POST /v1/ws HTTP/1.1\r\nHost: " NAME "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
       "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nContent-Length: 0\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 400 "));)
CLIENT(client_of_websocket_8, GET("/v1/ws") "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\nSec-WebSocket-Key: a\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 400 "));)
CLIENT(client_of_unmetered, GET("/v1/ws") KEY "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: a\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 403 "));
       EXPECT(strstr(text, "unmetered"));)

/* The second credential is for this host as well here, and its provider counts nothing. */
static void test_websocket(void **state) {
        _cleanup_json_ json_t *hosts = json_pack("[s]", NAME), *ports = NULL;
        World *w = *state;

        ports = json_pack("[i]", (int) w->port);
        w->credentials[1].hosts = hosts;
        w->credentials[1].ports = ports;
        play(w, client_of_websocket);
        assert_non_null(strstr(w->seen, "Private-Token: " GIT_SECRET "\r\n"));
        assert_non_null(strstr(w->seen, "Connection: Upgrade\r\nUpgrade: websocket\r\n"));
        assert_non_null(strstr(w->seen, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"));
        assert_null(strstr(w->seen, "Extensions"));

        play(w, client_of_websocket_garbage);
        play(w, client_of_websocket_broken);
        play(w, client_of_websocket_no);
        play(w, client_of_websocket_extended);
        play(w, client_of_websocket_other);
        play(w, client_of_uninvited_switch);

        w->n_accepted = 0;
        play(w, client_of_websocket_post);
        play(w, client_of_websocket_8);
        play(w, client_of_unmetered);
        assert_int_equal(w->n_accepted, 0);
}

static void test_websocket_half_closed(void **state) {
        World *w = *state;

        play(w, client_of_closing);
        play(w, client_that_is_gone);
}

static void test_websocket_rotated(void **state) {
        play(*state, client_of_rotated);
}

static void test_websocket_misuse(void **state) {
        _cleanup_json_ json_t *hosts = json_pack("[s]", NAME), *ports = NULL, *rule = NULL;
        InjectCredential three[3];
        RunCredential third = {};
        World *w = *state;

        ports = json_pack("[i]", (int) w->port);
        rule = json_pack("{s:[s], s:[i], s:[{s:s}]}", "hosts", "elsewhere.example.org", "ports", 443, "places", "header", "x-third");
        memcpy(three, w->credentials, sizeof(w->credentials));
        third = w->secrets->credentials[1];
        third.name = (char *) "third";
        third.sentinel = (char *) "third-Sentinel-0123456789";
        third.rule = rule;
        third.secret = NULL;
        assert_int_equal(inject_credential_init(&three[2], &third), 0);
        three[1].hosts = hosts;
        three[1].ports = ports;
        w->context.credentials = three;
        w->context.n_credentials = 3;
        play(w, client_of_websocket_misuse);
        assert_null(strstr(w->seen, "third-Sentinel"));
        assert_true(logged(w, "\"event\":\"credential.misuse\""));
        assert_true(logged(w, "\"credential\":\"third\""));
        exchange_close_all(&w->context);
}

static int set_up_origin(void **state) {
        int r = set_up(state);

        ((World *) *state)->answer = origin_answer;
        return r;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_origin, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_websocket),
                TEST(test_websocket_half_closed),
                TEST(test_websocket_rotated),
                TEST(test_websocket_misuse),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
