/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The ends of TLS: which origin is believed, and what the guest is offered. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/rand.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include <sys/wait.h>

#include "exchange-world.h"
#include "inject/tls-sessions.h"

static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        return origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

/* ---- the origin's certificate ---- */

static void add_extension(X509 *cert, int nid, const char *value) {
        X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, NULL, nid, value);

        assert_non_null(ext);
        assert_int_equal(X509_add_ext(cert, ext, -1), 1);
        X509_EXTENSION_free(ext);
}

typedef struct Kind {
        const char *names;       /* as OpenSSL writes subject alternative names; NULL: it has none */
        const char *common_name; /* NULL: none */
        const char *purposes;    /* as it writes extended key usage; NULL: any */
        int from, until;         /* in hours from now */
        bool trusted;            /* made by the CA that is trusted, else by itself */
} Kind;

/* It becomes the origin's. Takes the key over. */
static void use_kind(World *w, const Kind *k, EVP_PKEY *key) {
        SecretView der = secret_view(w->ca_key);
        const unsigned char *p = (const unsigned char *) der.bytes;
        EVP_PKEY *ca_key = d2i_AutoPrivateKey(NULL, &p, (long) der.size);
        BIO *bio = BIO_new_mem_buf(w->ca_pem, -1);
        X509 *ca = PEM_read_bio_X509(bio, NULL, NULL, NULL), *cert = X509_new();
        X509_NAME *subject = X509_get_subject_name(cert);

        assert_int_equal(X509_set_version(cert, X509_VERSION_3), 1);
        assert_int_equal(ASN1_INTEGER_set(X509_get_serialNumber(cert), 1), 1);
        assert_non_null(X509_gmtime_adj(X509_getm_notBefore(cert), k->from * 3600L));
        assert_non_null(X509_gmtime_adj(X509_getm_notAfter(cert), k->until * 3600L));
        assert_int_equal(X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_ASC, (const unsigned char *) "an origin", -1, -1, 0), 1);
        if (k->common_name)
                assert_int_equal(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *) k->common_name, -1, -1, 0), 1);
        assert_int_equal(X509_set_issuer_name(cert, k->trusted ? X509_get_subject_name(ca) : subject), 1);
        assert_int_equal(X509_set_pubkey(cert, key), 1);
        if (k->names)
                add_extension(cert, NID_subject_alt_name, k->names);
        if (k->purposes)
                add_extension(cert, NID_ext_key_usage, k->purposes);
        assert_true(X509_sign(cert, k->trusted ? ca_key : key, EVP_sha256()) > 0);

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

static void use_certificate(World *w, const char *name, EVP_PKEY *key, int from, int until, bool trusted) {
        _cleanup_free_ char *names = text_format("DNS:%s", name);

        use_kind(w, &(Kind) { .names = names, .from = from, .until = until, .trusted = trusted }, key);
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

/* Only a name of the kind that CAs check counts, and only what was made for servers. */
static void test_what_it_is_for(void **state) {
        World *w = *state;

        use_kind(w, &(Kind) { .common_name = NAME, .from = -1, .until = 1, .trusted = true }, EVP_EC_gen("P-256"));
        check_bad(w, "hostname mismatch");
        use_kind(w, &(Kind) { .names = "email:" NAME "@example.org", .common_name = NAME, .from = -1, .until = 1, .trusted = true }, EVP_EC_gen("P-256"));
        check_bad(w, "hostname mismatch");
        use_kind(w, &(Kind) { .names = "DNS:" NAME, .common_name = "somebody else", .from = -1, .until = 1, .trusted = true }, EVP_EC_gen("P-256"));
        play(w, client_of_good);

        use_kind(w, &(Kind) { .names = "DNS:" NAME, .purposes = "clientAuth", .from = -1, .until = 1, .trusted = true }, EVP_EC_gen("P-256"));
        check_bad(w, "certificate purpose");
        use_kind(w, &(Kind) { .names = "DNS:" NAME, .purposes = "clientAuth,serverAuth", .from = -1, .until = 1, .trusted = true }, EVP_EC_gen("P-256"));
        play(w, client_of_good);
}

/* The host's CAs, in each form that it may have them. */
static void test_host_store(void **state) {
        static const char folder[] = "/run/host-cas";
        _cleanup_free_ char *hashed = NULL, *file = text_format("%s/bundle.crt", folder);
        World *w = *state;
        BIO *bio = BIO_new_mem_buf(w->ca_pem, -1);
        X509 *ca = PEM_read_bio_X509(bio, NULL, NULL, NULL);

        hashed = text_format("%s/%08lx.0", folder, X509_subject_name_hash(ca));
        BIO_free(bio);
        X509_free(ca);
        assert_int_equal(mkdir(folder, 0755), 0);
        assert_int_equal(setenv("SSL_CERT_DIR", folder, 1), 0);
        assert_int_equal(setenv("SSL_CERT_FILE", file, 1), 0);
        expected = "unable to get local issuer certificate";
        for (unsigned i = 0; i < 4; i++) {
                const char *path = i == 1 ? file : hashed;

                if (i == 1 || i == 3)
                        assert_int_equal(io_write_file_atomic(AT_FDCWD, path, w->ca_pem, strlen(w->ca_pem), 0644), 0);
                w->context.tls = tls_setup_free(w->context.tls);
                assert_int_equal(tls_setup_new(&w->context.tls, NULL), 0);
                play(w, i % 2 == 0 ? client_of_bad : client_of_good);
                if (i == 1)
                        assert_int_equal(unlink(file), 0);
        }
        /* it was read when it was asked for, and what comes later is found as well */
        assert_int_equal(unlink(hashed), 0);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, "/run/host-cas/00000000.0", w->ca_pem, strlen(w->ca_pem), 0644), 0);
        w->context.tls = tls_setup_free(w->context.tls);
        assert_int_equal(tls_setup_new(&w->context.tls, NULL), 0);
        play(w, client_of_bad);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, hashed, w->ca_pem, strlen(w->ca_pem), 0644), 0);
        play(w, client_of_good);

        assert_int_equal(unsetenv("SSL_CERT_DIR"), 0);
        assert_int_equal(unsetenv("SSL_CERT_FILE"), 0);
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

typedef struct Agreed {
        const char *groups, *ciphers; /* offered */
        const char *group, *cipher;   /* taken */
        const char *versions;         /* of HTTP, offered; NULL: not named */
} Agreed;

static const Agreed *agreed;

static void client_of_agreed(World *w) {
        SSL *ssl = client_connect_offering(w, NAME, agreed->versions);
        char text[4096] = "";
        const char *group;

        EXPECT(ssl);
        if (!ssl)
                return;
        group = SSL_group_to_name(ssl, (int) SSL_get_negotiated_group(ssl));
        if (!group || strcasecmp(group, agreed->group) != 0 || strcmp(SSL_get_cipher(ssl), agreed->cipher) != 0) {
                fprintf(stderr, "of %s and %s: %s, %s\n", agreed->groups, agreed->ciphers ?: "any", group ?: "none", SSL_get_cipher(ssl));
                w->disappointed++;
        }
        EXPECT(client_send(ssl, GET("/v1/x") "\r\n"));
        EXPECT(client_await(ssl, "0\r\n\r\n", text, sizeof(text)));
        SSL_free(ssl);
}

/* A guest that can do without ML-KEM does without, wherever that stands in its list; all else is in its own order.
 * (A star: it sends a key at once.) */
static void test_agreed(void **state) {
        static const char aes256[] = "TLS_AES_256_GCM_SHA384", aes128[] = "TLS_AES_128_GCM_SHA256";
        static const char chacha[] = "TLS_CHACHA20_POLY1305_SHA256";
        const Agreed list[] = {
                { "*X25519MLKEM768:*X25519", NULL, "X25519", aes256 },
                { "*X25519:*X25519MLKEM768", NULL, "X25519", aes256 },
                { "*X25519MLKEM768:X25519", NULL, "X25519", aes256 }, /* it is asked for the other key, */
                { "*X25519MLKEM768:X25519", NULL, "X25519", aes256, "\x02h2\x08http/1.1" }, /* also once an origin was asked first */
                { "*X25519MLKEM768:P-384", NULL, "secp384r1", aes256 },
                { "*P-256:*X25519", NULL, "secp256r1", aes256 },
                { "X25519MLKEM768", NULL, "X25519MLKEM768", aes256 },
                { "X25519", "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384", "X25519", aes128 },
                { "X25519", "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384", "X25519", chacha },
        };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(list); i++) {
                agreed = &list[i];
                w->groups = agreed->groups;
                w->ciphers = agreed->ciphers;
                play(w, client_of_agreed);
        }
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

/* ---- what stays in memory ---- */

/* What the origin says again and again, in a form that is nowhere in this process: as it is, only the child has it. */
enum { MASK = 0x5a,
       WORD = 32,
       WORDS = 256,
       FEW = 8 /* what a cipher leaves on the stack, and a sanitizer's copies of it */ };

static uint8_t masked_word[WORD];

/* How often it is in what this process can write; without the gigabytes of a sanitizer's own. */
__attribute__((no_sanitize("address"))) static size_t count_words(void) {
        _cleanup_(file_closep) FILE *maps = fopen("/proc/self/maps", "re");
        char line[512], mode[5];
        size_t n_found = 0;

        assert_non_null(maps);
        while (fgets(line, sizeof(line), maps)) {
                unsigned long begin, end;

                if (sscanf(line, "%lx-%lx %4s", &begin, &end, mode) != 3 || strncmp(mode, "rw", 2) != 0 || end - begin > 256UL * 1024 * 1024)
                        continue;
                for (const volatile uint8_t *p = (const volatile uint8_t *) begin; p + WORD <= (const volatile uint8_t *) end; p++) {
                        size_t n = 0;

                        while (n < WORD && (p[n] ^ MASK) == masked_word[n])
                                n++;
                        n_found += n == WORD;
                }
        }
        return n_found;
}

static int say_words(World *w, int fd) {
        uint8_t text[WORDS * WORD];
        SSL *ssl = SSL_new(w->origin_ctx);
        char byte;

        for (size_t i = 0; i < sizeof(text); i++)
                text[i] = masked_word[i % WORD] ^ MASK;
        (void) SSL_set_fd(ssl, fd);
        if (SSL_accept(ssl) != 1 || SSL_write(ssl, text, sizeof(text)) != sizeof(text))
                return 1;
        return SSL_read(ssl, &byte, 1) > 0; /* until the other end is closed */
}

static void on_ready(TlsStream *s, void *userdata) {
        *(unsigned *) userdata += 1;
}

/* What an origin said is gone from OpenSSL's memory once it was read: it may have been the value. */
static void test_plaintext_is_gone(void **state) {
        _cleanup_(tls_stream_freep) TlsStream *s = NULL;
        uint8_t got[WORDS * WORD];
        World *w = *state;
        size_t n_got = 0;
        unsigned ready = 0;
        int fds[2], status;
        pid_t child;

        assert_int_equal(RAND_bytes(masked_word, sizeof(masked_word)), 1);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
                (void) close(fds[0]);
                _exit(say_words(w, fds[1]));
        }
        (void) close(fds[1]);
        assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
        assert_int_equal(tls_stream_connect(&s, w->event, w->context.tls, fds[0], NAME, NULL, TLS_HTTP1, on_ready, &ready), 0);
        while (tls_stream_handshake(s) == 0)
                assert_true(sd_event_run(w->event, 100000) >= 0);
        assert_int_equal(tls_stream_want(s, true, false), 0);
        while (n_got < sizeof(got)) {
                ssize_t n = tls_stream_read(s, got + n_got, sizeof(got) - n_got);

                assert_true(n > 0 || n == -EAGAIN);
                if (n > 0)
                        n_got += (size_t) n;
                else
                        assert_true(sd_event_run(w->event, 100000) >= 0);
        }
        assert_int_equal(tls_stream_read(s, got, 1), -EAGAIN); /* which gives the buffer back */

        assert_true(count_words() >= WORDS - 1); /* the control: what was read is found */
        explicit_bzero(got, sizeof(got));
        assert_true(count_words() < FEW);
        s = tls_stream_free(s);
        assert_true(count_words() < FEW);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
}

/* ---- what is left of a broken connection ---- */

/* Both ends in this thread: neither waits for the other. */
static void shake_hands(World *w, int fd, TlsStream **ret_ours, int peer_fd, SSL **ret_peer) {
        static unsigned ready;
        int ours = 0, peers = 0;

        assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
        assert_int_equal(fcntl(peer_fd, F_SETFL, O_NONBLOCK), 0);
        assert_int_equal(tls_stream_connect(ret_ours, w->event, w->context.tls, fd, NAME, NULL, TLS_HTTP1, on_ready, &ready), 0);
        *ret_peer = SSL_new(w->origin_ctx);
        (void) SSL_set_fd(*ret_peer, peer_fd);
        for (unsigned i = 0; i < 8 && (ours != TLS_E_DONE || peers != 1); i++) {
                ours = tls_stream_handshake(*ret_ours);
                peers = SSL_accept(*ret_peer);
        }
        assert_int_equal(ours, TLS_E_DONE);
        assert_int_equal(peers, 1);
}

/* A peer that went is heard to its end; a connection on which a write failed of anything else is over. */
static void test_failed_writes(void **state) {
        World *w = *state;
        TlsStream *s;
        char text[16];
        int fds[2];
        SSL *peer;

        for (unsigned went = 0; went < 2; went++) {
                assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
                shake_hands(w, fds[0], &s, fds[1], &peer);
                assert_int_equal(tls_stream_write(s, "hello", 5), 5);
                assert_true(origin_send(peer, "good bye"));
                SSL_free(peer);
                if (went)
                        assert_int_equal(close(fds[1]), 0);
                else {
                        int full = open("/dev/full", O_RDWR | O_CLOEXEC | O_NONBLOCK);

                        assert_int_equal(dup3(full, fds[0], O_CLOEXEC), fds[0]);
                        assert_int_equal(close(full), 0);
                }

                assert_int_equal(tls_stream_write(s, "hello", 5), -ECONNRESET);
                tls_stream_look(s);
                if (went) {
                        assert_int_equal(tls_stream_read(s, text, sizeof(text)), 8);
                        assert_memory_equal(text, "good bye", 8);
                }
                assert_int_equal(tls_stream_read(s, text, sizeof(text)), -ECONNRESET);
                assert_int_equal(tls_stream_write(s, "hello", 5), -ECONNRESET);
                tls_stream_free(s);
                if (!went)
                        assert_int_equal(close(fds[1]), 0);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_certificates),
                TEST(test_what_it_is_for),
                TEST(test_host_store),
                TEST(test_plaintext_is_gone),
                TEST(test_failed_writes),
                TEST(test_leaf),
                TEST(test_agreed),
                TEST(test_connection_of_credential),
                TEST(test_session_is_resumed),
                cmocka_unit_test(test_sessions),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
