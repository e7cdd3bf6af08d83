/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The ends of TLS: which origin is believed, and what the guest is offered. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include "exchange-world.h"
#include "inject/tls-sessions.h"

static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        return origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

/* ---- the origin's certificate ---- */

static void add_name(X509 *cert, const char *name) {
        _cleanup_free_ char *value = text_format("DNS:%s", name);
        X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, value);

        assert_non_null(ext);
        assert_int_equal(X509_add_ext(cert, ext, -1), 1);
        X509_EXTENSION_free(ext);
}

/* A certificate, from and until so many hours from now, by the CA that is trusted or by itself; it becomes the origin's. Takes the key over. */
static void use_certificate(World *w, const char *name, EVP_PKEY *key, int from, int until, bool trusted) {
        SecretView der = secret_view(w->ca_key);
        const unsigned char *p = (const unsigned char *) der.bytes;
        EVP_PKEY *ca_key = d2i_AutoPrivateKey(NULL, &p, (long) der.size);
        BIO *bio = BIO_new_mem_buf(w->ca_pem, -1);
        X509 *ca = PEM_read_bio_X509(bio, NULL, NULL, NULL), *cert = X509_new();
        X509_NAME *subject = X509_get_subject_name(cert);

        assert_int_equal(X509_set_version(cert, X509_VERSION_3), 1);
        assert_int_equal(ASN1_INTEGER_set(X509_get_serialNumber(cert), 1), 1);
        assert_non_null(X509_gmtime_adj(X509_getm_notBefore(cert), from * 3600L));
        assert_non_null(X509_gmtime_adj(X509_getm_notAfter(cert), until * 3600L));
        assert_int_equal(X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_ASC, (const unsigned char *) "an origin", -1, -1, 0), 1);
        assert_int_equal(X509_set_issuer_name(cert, trusted ? X509_get_subject_name(ca) : subject), 1);
        assert_int_equal(X509_set_pubkey(cert, key), 1);
        add_name(cert, name);
        assert_true(X509_sign(cert, trusted ? ca_key : key, EVP_sha256()) > 0);

        SSL_CTX_free(w->origin_ctx); /* which keeps one of each kind of key */
        w->origin_ctx = SSL_CTX_new(TLS_server_method());
        SSL_CTX_set_security_level(w->origin_ctx, 0); /* an origin may offer anything */
        assert_int_equal(SSL_CTX_use_cert_and_key(w->origin_ctx, cert, key, NULL, 1), 1);
        BIO_free(bio);
        X509_free(ca);
        X509_free(cert);
        EVP_PKEY_free(ca_key);
        EVP_PKEY_free(key);
}

static const char *expected;

CLIENT(client_of_good, GET("/v1/x") KEY "Connection: close\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 200 "));)
CLIENT(client_of_bad, GET("/v1/x") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 502 ")); EXPECT(strstr(text, "origin-certificate")); EXPECT(strstr(text, expected));)

static void check_bad(World *w, const char *message) {
        expected = message;
        *w->seen = 0;
        play(w, client_of_bad);
        assert_string_equal(w->seen, "");
}

/* Each is refused with a reason that says which, and gets nothing; the same but for that is believed. */
static void test_certificates(void **state) {
        World *w = *state;

        use_certificate(w, NAME, EVP_EC_gen("P-256"), -1, 1, true);
        play(w, client_of_good);
        assert_non_null(strstr(w->seen, SECRET));

        use_certificate(w, NAME, EVP_EC_gen("P-256"), -1, 1, false);
        check_bad(w, "self-signed certificate");
        use_certificate(w, NAME, EVP_EC_gen("P-256"), -2, -1, true);
        check_bad(w, "certificate has expired");
        use_certificate(w, NAME, EVP_EC_gen("P-256"), 1, 2, true);
        check_bad(w, "certificate is not yet valid");
        use_certificate(w, "api.example.net", EVP_EC_gen("P-256"), -1, 1, true);
        check_bad(w, "hostname mismatch");
        use_certificate(w, "*.org", EVP_EC_gen("P-256"), -1, 1, true);
        check_bad(w, "hostname mismatch");
        use_certificate(w, NAME, EVP_RSA_gen(1024), -1, 1, true);
        check_bad(w, "key too weak");
        assert_true(logged(w, "\"reason\":\"origin-certificate\""));

        use_certificate(w, NAME, EVP_RSA_gen(2048), -1, 1, true);
        play(w, client_of_good);
}

/* ---- what the guest is offered ---- */

static void client_of_leaf(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";
        GENERAL_NAMES *names;
        X509 *leaf;

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, GET("/v1/x") "\r\n"));
        EXPECT(client_await(ssl, "0\r\n\r\n", text, sizeof(text)));

        /* nothing to come back with: no ticket, no session to resume, no early data */
        EXPECT(!SSL_SESSION_has_ticket(SSL_get_session(ssl)));
        EXPECT(!SSL_SESSION_is_resumable(SSL_get_session(ssl)));
        EXPECT(SSL_SESSION_get_max_early_data(SSL_get_session(ssl)) == 0);

        /* one name, which is no address and no wildcard, and no right to sign */
        leaf = SSL_get1_peer_certificate(ssl);
        names = X509_get_ext_d2i(leaf, NID_subject_alt_name, NULL, NULL);
        EXPECT(sk_GENERAL_NAME_num(names) == 1);
        EXPECT(sk_GENERAL_NAME_value(names, 0)->type == GEN_DNS);
        EXPECT(strcmp((const char *) ASN1_STRING_get0_data(sk_GENERAL_NAME_value(names, 0)->d.dNSName), NAME) == 0);
        EXPECT(X509_check_ca(leaf) == 0);
        EXPECT(X509_get_extension_flags(leaf) & EXFLAG_XKUSAGE && X509_get_extended_key_usage(leaf) == XKU_SSL_SERVER);
        GENERAL_NAMES_free(names);
        X509_free(leaf);
        SSL_free(ssl);
        ERR_clear_error();
}

static void test_leaf(void **state) {
        play(*state, client_of_leaf);
}

/* ---- whose connection it is ---- */

static void client_of_changes(World *w) {
        SSL *ssl = client_connect(w, NAME);
        static const char *const fields[] = { KEY, KEY, "", "Private-Token: " OTHER "\r\n", "Private-Token: " OTHER "\r\n" };

        EXPECT(ssl);
        if (!ssl)
                return;
        for (size_t i = 0; i < ELEMENTSOF(fields); i++) {
                char text[4096] = "";

                EXPECT(client_send(ssl, GET("/v1/x")));
                EXPECT(!*fields[i] || client_send(ssl, fields[i]));
                EXPECT(client_send(ssl, "\r\n"));
                EXPECT(client_await(ssl, "0\r\n\r\n", text, sizeof(text)));
        }
        SSL_free(ssl);
}

/* A connection to the origin that a credential has been on is for no other, and for nobody without one. */
static void test_connection_of_credential(void **state) {
        _cleanup_json_ json_t *hosts = json_pack("[s]", NAME), *ports = NULL;
        World *w = *state;

        ports = json_pack("[i]", (int) w->port);
        w->credentials[1].hosts = hosts;
        w->credentials[1].ports = ports;
        play(w, client_of_changes);
        assert_int_equal(w->n_accepted, 3);
        assert_int_equal(w->n_questions, 5);
        assert_int_equal(w->n_within, 2);
        assert_int_equal(w->n_resumed, 0); /* nor is its session */
}

static void client_of_one(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, GET("/v1/x") KEY "\r\n"));
        EXPECT(client_await(ssl, "0\r\n\r\n", text, sizeof(text)));
        EXPECT(!SSL_session_reused(ssl));
        SSL_free(ssl);
}

/* A verified origin is come back to; the guest comes back with nothing. */
static void test_session_is_resumed(void **state) {
        World *w = *state;

        for (unsigned i = 0; i < 3; i++) {
                play(w, client_of_one);
                assert_int_equal(w->n_accepted, i + 1);
                assert_int_equal(w->n_resumed, i);
        }
}

static SSL_SESSION *session_of(unsigned i) {
        SSL_SESSION *s = SSL_SESSION_new();
        unsigned char id = (unsigned char) i;

        assert_non_null(s);
        assert_int_equal(SSL_SESSION_set1_id(s, &id, 1), 1);
        return s;
}

static void expect_session(TlsSessions *store, const char *key, unsigned i) {
        SSL_SESSION *s = tls_sessions_take(store, key);
        unsigned n;

        assert_non_null(s);
        assert_int_equal(*SSL_SESSION_get_id(s, &n), i);
        SSL_SESSION_free(s);
}

/* Each is given out once, the newest first; so many of one key, so many in all. */
static void test_sessions(void **state) {
        _cleanup_(tls_sessions_freep) TlsSessions *store = NULL;

        assert_int_equal(tls_sessions_new(&store), 0);
        assert_null(tls_sessions_take(store, "a"));
        for (unsigned i = 0; i < TLS_SESSIONS_OF_KEY_MAX + 2; i++)
                tls_sessions_put(store, "a", session_of(i));
        tls_sessions_put(store, "b", session_of(100));
        for (unsigned i = TLS_SESSIONS_OF_KEY_MAX + 2; i > 2; i--)
                expect_session(store, "a", i - 1);
        assert_null(tls_sessions_take(store, "a"));
        expect_session(store, "b", 100);

        for (unsigned i = 0; i < TLS_SESSIONS_MAX + 1; i++) {
                char key[16];

                (void) snprintf(key, sizeof(key), "key%u", i);
                tls_sessions_put(store, key, session_of(i));
        }
        assert_null(tls_sessions_take(store, "key0"));
        expect_session(store, "key1", 1);
        expect_session(store, "key64", 64);
}

static int set_up_origin(void **state) {
        int r = set_up(state);

        ((World *) *state)->answer = origin_answer;
        return r;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_origin, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_certificates),
                TEST(test_leaf),
                TEST(test_connection_of_credential),
                TEST(test_session_is_resumed),
                cmocka_unit_test(test_sessions),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
