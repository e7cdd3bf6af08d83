/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A guest that offers HTTP/2 over TLS: what it gets, and when the origin is connected to. The streams themselves are test-h2-pair's. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "exchange-world.h"

#define H2 "\x02h2"
#define H1 "\x08http/1.1"

static bool has_chosen(SSL *ssl, const char *protocol) {
        const unsigned char *name;
        unsigned size;

        SSL_get0_alpn_selected(ssl, &name, &size);
        return size == strlen(protocol) && memcmp(name, protocol, size) == 0;
}

static bool answer_plainly(World *w, SSL *ssl, ssize_t length) {
        return origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

static int set_up_origin(void **state) {
        World *w;

        (void) set_up(state);
        w = *state;
        w->answer = answer_plainly;
        return 0;
}

/* What a server must send first: SETTINGS. */
static void expect_h2(World *w, SSL *ssl) {
        static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
        unsigned char head[9];

        EXPECT(has_chosen(ssl, "h2"));
        EXPECT(SSL_write(ssl, preface, sizeof(preface)) == sizeof(preface));
        EXPECT(SSL_read(ssl, head, sizeof(head)) == sizeof(head));
        EXPECT(head[3] == 4);
}

static void client_of_h2(World *w) {
        SSL *ssl = client_connect_offering(w, NAME, H2 H1);

        EXPECT(ssl);
        if (!ssl)
                return;
        expect_h2(w, ssl);
        SSL_free(ssl);
}

static void test_h2(void **state) {
        World *w = *state;

        w->speaks = H2 H1;
        play(w, client_of_h2);
        assert_int_equal(w->n_accepted, 1);
        assert_int_equal(w->n_questions, 1);
        assert_int_equal(w->n_done, 1);
}

/* The origin does not speak it, or does not negotiate at all: then the guest does not get it either, and the connection that was made is used. */
static void client_of_h1_chosen(World *w) {
        SSL *ssl = client_connect_offering(w, NAME, H2 H1);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(has_chosen(ssl, "http/1.1"));
        EXPECT(client_send(ssl, GET("/v1/x") KEY "\r\n"));
        EXPECT(client_await(ssl, "0\r\n\r\n", text, sizeof(text)));
        EXPECT(strstr(text, "HTTP/1.1 200 "));
        SSL_free(ssl);
}

static void test_h1_chosen(void **state) {
        World *w = *state;

        play(w, client_of_h1_chosen);
        assert_int_equal(w->n_accepted, 1);
        assert_int_equal(w->n_within, 1);
        w->speaks = H1;
        play(w, client_of_h1_chosen);
        assert_int_equal(w->n_accepted, 2);
        assert_non_null(strstr(w->seen, SECRET));
}

static void client_of_h1_chosen_without(World *w) {
        SSL *ssl = client_connect_offering(w, NAME, H2 H1);
        char text[4096] = "";

        EXPECT(ssl && client_send(ssl, GET("/v1/x") "\r\n"));
        EXPECT(ssl && client_await(ssl, "0\r\n\r\n", text, sizeof(text)));
        EXPECT(strstr(text, "HTTP/1.1 200 "));
        SSL_free(ssl);
}

/* A session of TLS is for the credential that its connection has carried, also if the connection was opened before anybody knew which. */
static void test_sessions(void **state) {
        World *w = *state;

        play(w, client_of_h1_chosen);
        play(w, client_of_h1_chosen_without);
        assert_int_equal(w->n_resumed, 0); /* it would be that of the credential's */
        play(w, client_of_h1_chosen);
        assert_int_equal(w->n_resumed, 1); /* the control: nobody's, before it is known that this one carries one */
        assert_non_null(strstr(w->seen, SECRET));
        assert_int_equal(w->n_accepted, 3);
}

/* Who does not offer it is judged before any connection is made, as ever. */
static void client_of_h1_only(World *w) {
        SSL *ssl = client_connect_offering(w, NAME, H1);

        EXPECT(ssl && has_chosen(ssl, "http/1.1"));
        SSL_free(ssl);
}

static void test_h1_only(void **state) {
        World *w = *state;

        w->speaks = H2 H1;
        play(w, client_of_h1_only);
        assert_int_equal(w->n_accepted, 0);
        assert_int_equal(w->n_questions, 0);
}

/* The reason reaches whoever speaks HTTP/1.1 at its first request, and others in HTTP/2. */
static void client_of_strange_origin_first(World *w) {
        SSL *ssl = client_connect_offering(w, NAME, H2 H1);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(has_chosen(ssl, "http/1.1"));
        EXPECT(client_send(ssl, GET("/v1/x") KEY "\r\n"));
        EXPECT(!client_await(ssl, "never", text, sizeof(text)));
        EXPECT(strstr(text, "HTTP/1.1 502 "));
        EXPECT(strstr(text, "origin-certificate"));
        SSL_free(ssl);
        ERR_clear_error();
}

static void client_of_h2_only(World *w) {
        SSL *ssl = client_connect_offering(w, NAME, H2);

        EXPECT(ssl);
        if (!ssl)
                return;
        expect_h2(w, ssl);
        SSL_free(ssl);
}

static void test_untrusted_origin_first(void **state) {
        World *w = *state;

        w->context.tls = tls_setup_free(w->context.tls);
        assert_int_equal(tls_setup_new(&w->context.tls, NULL), 0);
        w->speaks = H2 H1;
        play(w, client_of_strange_origin_first);
        assert_true(logged(w, "origin-certificate"));
        play(w, client_of_h2_only);
        assert_string_equal(w->seen, "");
}

/* Neither an origin without HTTP/2 nor one that is denied leaves the guest without an answer. */
static void test_h2_only(void **state) {
        World *w = *state;

        w->speaks = H1;
        play(w, client_of_h2_only);
        w->speaks = NULL;
        play(w, client_of_h2_only);
        assert_true(logged(w, "origin-version"));
        w->deny = "no-rule";
        play(w, client_of_h2_only);
}

static void client_of_nothing_known(World *w) {
        EXPECT(!client_connect_offering(w, NAME, "\x03"
                                                 "foo"));
        ERR_clear_error();
}

static void test_nothing_known(void **state) {
        play(*state, client_of_nothing_known);
}

int main(void) {
#define T(test) cmocka_unit_test_setup_teardown(test, set_up_origin, tear_down)
        const struct CMUnitTest tests[] = {
                T(test_h2), T(test_h1_chosen), T(test_sessions), T(test_h1_only), T(test_untrusted_origin_first), T(test_h2_only), T(test_nothing_known),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
