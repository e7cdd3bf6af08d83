/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/ssl.h>
#include <string.h>

#include "proxy/hello-retry.h"
#include "util/cleanup.h"

#define SECOND_NAME "hidden.example.net"

/* A client and a server of OpenSSL's, whose bytes the test carries. */
typedef struct Fixture {
        SSL_CTX *client_context, *server_context;
        SSL *client, *server;
        BIO *to_client, *from_client, *to_server, *from_server; /* borrowed by the two */
        char served[CLIENT_HELLO_NAME_MAX + 1];                 /* the name that the server chose by, last */
        unsigned n_served;
} Fixture;

static int on_name(SSL *ssl, int *alert, void *userdata) {
        const char *name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
        Fixture *f = userdata;

        (void) snprintf(f->served, sizeof(f->served), "%s", name ?: "");
        f->n_served++;
        return SSL_TLSEXT_ERR_OK;
}

/* Another name, as soon as the server has asked for another hello. */
static void on_message(int write_p, int version, int type, const void *data, size_t size, SSL *ssl, void *userdata) {
        if (!write_p && type == SSL3_RT_HANDSHAKE && size > 0 && ((const uint8_t *) data)[0] == SSL3_MT_SERVER_HELLO)
                (void) SSL_set_tlsext_host_name(ssl, SECOND_NAME);
}

static void add_certificate(SSL_CTX *ctx) {
        EVP_PKEY *key = EVP_EC_gen("P-256");
        X509 *cert = X509_new();

        assert_non_null(key);
        (void) X509_set_version(cert, X509_VERSION_3);
        (void) X509_gmtime_adj(X509_getm_notBefore(cert), 0);
        (void) X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
        (void) X509_set_pubkey(cert, key);
        assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
        assert_int_equal(SSL_CTX_use_certificate(ctx, cert), 1);
        assert_int_equal(SSL_CTX_use_PrivateKey(ctx, key), 1);
        X509_free(cert);
        EVP_PKEY_free(key);
}

static void begin(Fixture *f, const char *server_groups, bool change_name) {
        *f = (Fixture) { .client_context = SSL_CTX_new(TLS_client_method()), .server_context = SSL_CTX_new(TLS_server_method()) };

        (void) SSL_CTX_set1_groups_list(f->client_context, "X25519:P-256");
        (void) SSL_CTX_set1_groups_list(f->server_context, server_groups);
        (void) SSL_CTX_set_tlsext_servername_callback(f->server_context, on_name);
        (void) SSL_CTX_set_tlsext_servername_arg(f->server_context, f);
        add_certificate(f->server_context);
        f->client = SSL_new(f->client_context);
        f->server = SSL_new(f->server_context);
        f->to_client = BIO_new(BIO_s_mem());
        f->from_client = BIO_new(BIO_s_mem());
        f->to_server = BIO_new(BIO_s_mem());
        f->from_server = BIO_new(BIO_s_mem());
        SSL_set_bio(f->client, f->to_client, f->from_client);
        SSL_set_bio(f->server, f->to_server, f->from_server);
        SSL_set_accept_state(f->server);
        (void) SSL_set_tlsext_host_name(f->client, "www.example.org");
        if (change_name)
                SSL_set_msg_callback(f->client, on_message);
}

static void end(Fixture *f) {
        SSL_free(f->client);
        SSL_free(f->server);
        SSL_CTX_free(f->client_context);
        SSL_CTX_free(f->server_context);
}

static size_t client_says(Fixture *f, uint8_t *data, size_t max) {
        int n;

        (void) SSL_connect(f->client);
        n = BIO_read(f->from_client, data, (int) max);
        return n > 0 ? (size_t) n : 0;
}

static size_t server_answers(Fixture *f, const uint8_t *data, size_t size, uint8_t *answer, size_t max) {
        int n;

        (void) BIO_write(f->to_server, data, (int) size);
        (void) SSL_do_handshake(f->server);
        n = BIO_read(f->from_server, answer, (int) max);
        return n > 0 ? (size_t) n : 0;
}

/* What all this is for: a common server serves by the name in the second hello. */
static void test_second_name_wins(void **state) {
        uint8_t data[8192], answer[8192];
        HelloRetry h = {};
        ClientHello hello = {};
        size_t n, m, pass;
        Fixture f;

        begin(&f, "P-256", true);
        n = client_says(&f, data, sizeof(data));
        assert_int_equal(hello_retry_check_client(&h, data, n, &pass, &hello), HELLO_RETRY_PASS);
        assert_int_equal(pass, n);

        m = server_answers(&f, data, n, answer, sizeof(answer));
        assert_string_equal(f.served, "www.example.org");
        hello_retry_feed_server(&h, answer, m);
        assert_int_equal(h.state, HELLO_RETRY_ASKED);

        (void) BIO_write(f.to_client, answer, (int) m);
        n = client_says(&f, data, sizeof(data));
        (void) server_answers(&f, data, n, answer, sizeof(answer));
        assert_int_equal(f.n_served, 2);
        assert_string_equal(f.served, SECOND_NAME);

        /* and it is found, however it is cut */
        assert_int_equal(hello_retry_check_client(&h, data, n, &pass, &hello), HELLO_RETRY_SECOND);
        assert_string_equal(hello.sni, SECOND_NAME);
        for (size_t i = 0; i < n; i++) {
                assert_int_equal(hello_retry_check_client(&h, data, i, &pass, &hello), HELLO_RETRY_PASS);
                assert_true(pass <= 6); /* change_cipher_spec */
        }
        hello_retry_accept(&h);
        assert_int_equal(hello_retry_check_client(&h, data, n, &pass, &hello), HELLO_RETRY_PASS);
        assert_int_equal(pass, n);
        end(&f);
}

/* Without a retry nothing is looked at once the server has answered. */
static void test_no_retry(void **state) {
        uint8_t data[8192], answer[8192], junk[] = { 22, 3, 3, 0, 1, 1 };
        HelloRetry h = {};
        ClientHello hello;
        size_t n, m, pass;
        Fixture f;

        begin(&f, "X25519", false);
        n = client_says(&f, data, sizeof(data));
        for (size_t i = 0; i < n; i++) {
                assert_int_equal(hello_retry_check_client(&h, data, i, &pass, &hello), HELLO_RETRY_PASS);
                assert_int_equal(pass, 0);
        }
        assert_int_equal(hello_retry_check_client(&h, data, n, &pass, &hello), HELLO_RETRY_PASS);
        assert_int_equal(pass, n);

        /* sent ahead of the answer: it may be a hello */
        assert_int_equal(hello_retry_check_client(&h, junk, sizeof(junk), &pass, &hello), HELLO_RETRY_WAIT);
        assert_int_equal(pass, 0);

        m = server_answers(&f, data, n, answer, sizeof(answer));
        assert_int_equal(answer[0], 22);
        hello_retry_feed_server(&h, answer, m);
        assert_int_equal(h.state, HELLO_RETRY_OVER);
        assert_int_equal(hello_retry_check_client(&h, junk, sizeof(junk), &pass, &hello), HELLO_RETRY_PASS);
        assert_int_equal(pass, sizeof(junk));
        end(&f);
}

static void test_answers(void **state) {
        static const uint8_t hello[HELLO_RETRY_ANSWER + 40] = { 22, 3, 3, 0, 78, 2, 0, 0, 74, 3, 3 };
        uint8_t retry[8192], first[8192], cut[] = { 22, 3, 3, 0, 1, 2, 22, 3, 3 };
        HelloRetry h;
        size_t n, m;
        Fixture f;

        /* byte by byte, known as soon as the random value is */
        begin(&f, "P-256", false);
        n = client_says(&f, first, sizeof(first));
        m = server_answers(&f, first, n, retry, sizeof(retry));
        assert_true(m > HELLO_RETRY_ANSWER);
        h = (HelloRetry) {};
        for (size_t i = 0; i < HELLO_RETRY_ANSWER; i++) {
                assert_int_equal(h.state, HELLO_RETRY_UNKNOWN);
                hello_retry_feed_server(&h, retry + i, 1);
        }
        assert_int_equal(h.state, HELLO_RETRY_ASKED);
        end(&f);

        h = (HelloRetry) {};
        hello_retry_feed_server(&h, hello, sizeof(hello));
        assert_int_equal(h.state, HELLO_RETRY_OVER);
        h = (HelloRetry) {};
        hello_retry_feed_server(&h, (const uint8_t *) "\x15\x03\x03", 3);
        assert_int_equal(h.state, HELLO_RETRY_OVER);

        /* a server that cuts its answer into records too small to tell is taken for one that asked */
        h = (HelloRetry) {};
        hello_retry_feed_server(&h, cut, sizeof(cut));
        assert_int_equal(h.state, HELLO_RETRY_ASKED);
}

static void test_broken(void **state) {
        static const struct {
                const char *data;
                size_t size;
                HelloRetryOutcome outcome;
                size_t pass;
        } cases[] = {
                { "\x14\x03\x03\0\1\1\x17\x03\x03\0\2xy", 13, HELLO_RETRY_PASS, 13 },            /* change_cipher_spec, early data */
                { "\x14\x03\x03\0\1\1\x17\x03\x03\0\2x", 12, HELLO_RETRY_PASS, 6 },
                { "\x17\x03\x03\xff\xff", 5, HELLO_RETRY_BROKEN, 0 },                              /* longer than any */
                { "\x16\x03\x03\0\0", 5, HELLO_RETRY_BROKEN, 0 },                                  /* empty */
                { "\x16\x03\x03\0\0\x16\x03\x03\0\4\1\0\0\0", 14, HELLO_RETRY_BROKEN, 0 },
                { "\x16\x02\x03\0\4\1\0\0\0", 9, HELLO_RETRY_BROKEN, 0 },                          /* of another version */
                { "\x16\x03\x03\0\4\1\0\0\0", 9, HELLO_RETRY_BROKEN, 0 },                          /* an empty hello */
                { "\x16\x03\x03\0\4\1\0\1\0", 9, HELLO_RETRY_PASS, 0 },                            /* goes on */
                { "\x16\x03\x03\0\4\x10\0\0\0tail", 13, HELLO_RETRY_PASS, 13 },                    /* another message: no connection */
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                HelloRetry h = { .state = HELLO_RETRY_ASKED, .seen_first = true };
                ClientHello hello;
                size_t pass;

                assert_int_equal(hello_retry_check_client(&h, (const uint8_t *) cases[i].data, cases[i].size, &pass, &hello), cases[i].outcome);
                assert_int_equal(pass, cases[i].pass);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_second_name_wins),
                cmocka_unit_test(test_no_retry),
                cmocka_unit_test(test_answers),
                cmocka_unit_test(test_broken),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
