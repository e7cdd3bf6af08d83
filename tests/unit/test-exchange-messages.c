/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* gRPC-Web and Connect over HTTP/1.1: each message goes on when it is whole; and a value that stands across what looks like the end of one is masked all the
 * same. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "exchange-world.h"

#define FIRST "{\"said\":\"without.a.blank.to.its.very.end.\"}" /* 43 bytes, all visible: more than a value is long */
#define SECOND "{\"key\":\"" SECRET "\"}"

/* ---- the origin ---- */

static bool origin_write(SSL *ssl, const void *data, size_t size) {
        return SSL_write(ssl, data, (int) size) > 0;
}

static bool origin_message(SSL *ssl, uint8_t flags, const char *text) {
        uint8_t message[5 + 128] = { flags, 0, 0, 0, (uint8_t) strlen(text) };

        memcpy(message + 5, text, strlen(text));
        return origin_write(ssl, message, 5 + strlen(text));
}

static void go_on(World *w) {
        while (sem_wait(&w->may_go_on) < 0)
                ;
}

/* Two messages, and the one that says that it was the last: each when the one before has come through. */
static bool origin_stream(World *w, SSL *ssl) {
        (void) origin_message(ssl, 0, FIRST);
        go_on(w);
        (void) origin_message(ssl, 0, SECOND);
        go_on(w);
        (void) origin_message(ssl, 0x80, "grpc-status:0\r\n");
        return false;
}

/* A message that ends in the value's first so many characters, as whoever may choose what stands before an echo can have it; then the rest. */
static bool origin_cut(World *w, SSL *ssl, size_t cut) {
        char text[64];

        (void) snprintf(text, sizeof(text), "x %.*s", (int) cut, SECRET);
        (void) origin_message(ssl, 0, text);
        go_on(w);
        (void) origin_send(ssl, SECRET + cut);
        (void) origin_send(ssl, " and on\n");
        return false;
}

/* A message whose length is the value's first character: so where it ends would tell that one. */
static bool origin_length(World *w, SSL *ssl) {
        char body[256];
        size_t n = 4 + (size_t) snprintf(body + 4, sizeof(body) - 4, "%s%0150d", SECRET, 0);

        memset(body, 0, 4);
        (void) origin_write(ssl, body, n);
        go_on(w);
        return false;
}

/* Reads a body, framing and all, into the second half of w->seen, until that text is in it, perhaps with the head. False: it never was. */
static bool origin_await(World *w, SSL *ssl, const char *text) {
        size_t n = sizeof(w->seen) / 2;

        while (!memmem(w->seen, sizeof(w->seen), text, strlen(text))) {
                int k = n < sizeof(w->seen) ? SSL_read(ssl, w->seen + n, (int) (sizeof(w->seen) - n)) : 0;

                if (k <= 0)
                        return false;
                n += (size_t) k;
        }
        return true;
}

static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        const char *cut;

        if (strstr(w->seen, " /v1/up")) /* the first message is here: that is enough */
                return origin_await(w, ssl, FIRST) && origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ncame.\n");
        if (strstr(w->seen, " /v1/stray"))
                return origin_await(w, ssl, OTHER);

        (void) origin_send(ssl, strstr(w->seen, "connect") ? "HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\n\r\n"
                                                           : "HTTP/1.1 200 OK\r\nContent-Type: application/grpc-web+proto\r\n\r\n");
        cut = strstr(w->seen, " /v1/cut-");
        if (cut)
                return origin_cut(w, ssl, strtoul(cut + strlen(" /v1/cut-"), NULL, 10));
        return strstr(w->seen, " /v1/length") ? origin_length(w, ssl) : origin_stream(w, ssl);
}

/* ---- its clients ---- */

/* What has come, in which there are zero bytes; and what that is without the frames of its chunks. */
typedef struct Got {
        char bytes[4096], plain[4096];
        size_t n, n_plain;
} Got;

static void take_chunks_off(Got *g) {
        const char *body = memmem(g->bytes, g->n, "\r\n\r\n", 4);
        size_t at = body ? (size_t) (body + 4 - g->bytes) : g->n;

        memcpy(g->plain, g->bytes, at);
        g->n_plain = at;
        while (at < g->n) {
                const char *line = memmem(g->bytes + at, g->n - at, "\r\n", 2);
                size_t begin = line ? (size_t) (line + 2 - g->bytes) : g->n, size = line ? strtoul(g->bytes + at, NULL, 16) : 0;

                if (size > g->n - begin)
                        size = g->n - begin;
                memcpy(g->plain + g->n_plain, g->bytes + begin, size);
                g->n_plain += size;
                at = begin + size + 2;
        }
}

static bool has(const Got *g, const char *text) {
        return memmem(g->plain, g->n_plain, text, strlen(text));
}

static bool await(SSL *ssl, Got *g, const char *text) {
        while (!has(g, text)) {
                int k = SSL_read(ssl, g->bytes + g->n, (int) (sizeof(g->bytes) - g->n));

                if (k <= 0)
                        return false;
                g->n += (size_t) k;
                take_chunks_off(g);
        }
        return true;
}

/* Nothing is waited for without an end: what does not come is no message that goes on. */
static SSL *ask(World *w, const char *request) {
        struct timeval patience = { .tv_sec = 20 };
        SSL *ssl = client_connect(w, NAME);

        EXPECT(ssl);
        if (!ssl)
                return NULL;
        EXPECT(setsockopt(w->guest_fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0);
        EXPECT(client_send(ssl, request));
        return ssl;
}

/* It is not there for a fifth of a second: nor would it be later, as the origin says nothing more before it is told to. */
static bool comes_not(World *w, SSL *ssl, Got *g, const char *text) {
        struct timeval little = { .tv_usec = 200 * 1000 }, patience = { .tv_sec = 20 };
        bool came;

        (void) setsockopt(w->guest_fd, SOL_SOCKET, SO_RCVTIMEO, &little, sizeof(little));
        came = await(ssl, g, text);
        (void) setsockopt(w->guest_fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
        return !came;
}

static void go(World *w) {
        (void) sem_post(&w->may_go_on);
}

static void end(SSL *ssl) {
        SSL_free(ssl);
        ERR_clear_error();
}

static void stream(World *w, const char *request, bool waits) {
        SSL *ssl = ask(w, request);
        Got g = {};

        if (!ssl)
                return;
        EXPECT(waits ? comes_not(w, ssl, &g, FIRST) : await(ssl, &g, FIRST));
        go(w);
        EXPECT(await(ssl, &g, FIRST));
        EXPECT(waits ? comes_not(w, ssl, &g, SENTINEL "\"}") : await(ssl, &g, "{\"key\":\"" SENTINEL "\"}"));
        go(w);
        EXPECT(await(ssl, &g, "{\"key\":\"" SENTINEL "\"}"));
        EXPECT(await(ssl, &g, "grpc-status:0\r\n"));
        EXPECT(!has(&g, SECRET));
        end(ssl);
}

static void client_of_web(World *w) {
        stream(w, GET("/v1/web") KEY "\r\n", false);
}

static void client_of_connect(World *w) {
        stream(w, GET("/v1/connect") KEY "\r\n", false);
}

static void client_that_waits(World *w) {
        stream(w, GET("/v1/web") KEY "\r\n", true);
}

/* As much of the beginning as may has come; the rest does not, and what stands behind it does. */
static void client_of_short_cut(World *w) {
        SSL *ssl = ask(w, GET("/v1/cut-8") KEY "\r\n");
        Got g = {};

        if (!ssl)
                return;
        EXPECT(await(ssl, &g, "x sk-ant-t"));
        go(w);
        EXPECT(await(ssl, &g, " and on\n"));
        EXPECT(!has(&g, "real-one"));
        EXPECT(has(&g, SENTINEL + 8));
        end(ssl);
}

static void client_of_long_cut(World *w) {
        SSL *ssl = ask(w, GET("/v1/cut-9") KEY "\r\n");
        Got g = {};

        if (!ssl)
                return;
        EXPECT(await(ssl, &g, "x "));
        EXPECT(comes_not(w, ssl, &g, "x s"));
        go(w);
        EXPECT(await(ssl, &g, SENTINEL));
        EXPECT(await(ssl, &g, " and on\n"));
        end(ssl);
}

static void client_of_length(World *w) {
        SSL *ssl = ask(w, GET("/v1/length") KEY "\r\n");
        char all[160];
        Got g = {};

        if (!ssl)
                return;
        (void) snprintf(all, sizeof(all), "%0150d", 0);
        EXPECT(await(ssl, &g, SENTINEL "0000"));
        EXPECT(comes_not(w, ssl, &g, all));
        go(w);
        EXPECT(await(ssl, &g, all));
        EXPECT(!has(&g, SECRET));
        end(ssl);
}

static void client_of_upload(World *w) {
        static const char chunk[] = "30\r\n\0\0\0\0\x2b" FIRST "\r\n";
        SSL *ssl = ask(w, "POST /v1/up HTTP/1.1\r\nHost: " NAME "\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n");
        Got g = {};

        if (!ssl)
                return;
        EXPECT(SSL_write(ssl, chunk, sizeof(chunk) - 1) > 0);
        EXPECT(await(ssl, &g, "came."));
        end(ssl);
}

/* Another host's sentinel, cut by what the guest says is the end of a message. */
static void client_of_stray(World *w) {
        static const char chunk[] = "2b\r\n\0\0\0\0\x0c"
                                    "x " OTHER " and on\r\n";
        SSL *ssl = ask(w, "POST /v1/stray HTTP/1.1\r\nHost: " NAME "\r\nContent-Type: application/grpc-web\r\nTransfer-Encoding: chunked\r\n\r\n");
        Got g = {};

        if (!ssl)
                return;
        EXPECT(SSL_write(ssl, chunk, sizeof(chunk) - 1) > 0);
        EXPECT(await(ssl, &g, "credential-misuse"));
        end(ssl);
}

/* ---- tests ---- */

static void test_message_by_message(void **state) {
        World *w = *state;

        play(w, client_of_web);
        play(w, client_of_connect);
        assert_false(w->context.wary);
}

static void test_short_cut(void **state) {
        World *w = *state;

        play(w, client_of_short_cut);
        assert_false(w->context.wary);
        play(w, client_of_web); /* nothing has changed for anybody */
}

/* Who gets that far learns that it is the beginning of a value, once: every message waits for the next one now. */
static void test_long_cut(void **state) {
        World *w = *state;

        play(w, client_of_long_cut);
        assert_true(w->context.wary);
        play(w, client_that_waits);
        play(w, client_of_long_cut);
}

static void test_value_for_a_length(void **state) {
        World *w = *state;

        play(w, client_of_length);
        assert_true(w->context.wary);
}

static void test_upload(void **state) {
        World *w = *state;

        play(w, client_of_upload);
}

static void test_stray_in_upload(void **state) {
        World *w = *state;

        play(w, client_of_stray);
        assert_true(logged(w, "\"event\":\"credential.misuse\""));
        assert_null(memmem(w->seen, sizeof(w->seen), OTHER + 12, strlen(OTHER + 12)));
}

static int set_up_origin(void **state) {
        int r = set_up(state);

        ((World *) *state)->answer = origin_answer;
        return r;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_origin, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_message_by_message),
                TEST(test_short_cut),
                TEST(test_long_cut),
                TEST(test_value_for_a_length),
                TEST(test_upload),
                TEST(test_stray_in_upload),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
