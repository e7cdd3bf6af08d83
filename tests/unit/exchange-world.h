/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The whole way of a request: a TLS client as the guest, the exchange, a TLS origin, with stand-ins for egressd,
 * auditd and anchord. Client and origin are threads that block; the exchange runs in the event loop of the
 * main thread. In a mount and a network namespace of its own, because the sockets have fixed places.
 */

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "audit/audit-api.h"
#include "inject/buffer.h"
#include "inject/exchange.h"
#include "ipc/ipc.h"
#include "secret/run-ca.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

#define RUN "r0123456789ab"
#define NAME "api.example.org"
#define INSPECT_RULE "egress/test.json#/allow/0"
#define SENTINEL "sk-ant-api03-Sentinel0123456789abcdef"
#define SECRET "sk-ant-the-real-one-0123"
#define OTHER "ghp_AnotherSentinel0123456789"
#define HOUR 3600000000ULL
#define EGRESS_SOCKET "/run/anchorhold/egress.sock"
#define RUN_API_SOCKET "/run/anchorhold/run-api.sock"

/* Everything of one test. */
typedef struct World {
        sd_event *event;
        RunSecrets *secrets;
        InjectCredential credentials[2];
        ExchangeContext context;
        IpcServer *servers[3];
        IpcCall *watch;
        AuditClient *audit;
        Secret *ca_key;
        char *ca_pem;

        SSL_CTX *origin_ctx;
        int origin_fd;
        uint16_t port;
        pthread_t origin_thread;
        unsigned n_accepted, n_resumed;
        char seen[8192]; /* the last request's head as the origin got it */
        sem_t may_go_on;
        bool dawdles; /* the origin reads no body before it may go on */
        /* What the origin says to the request in `seen` with a body of that length; false: and closes. */
        bool (*answer)(struct World *w, SSL *ssl, ssize_t length);

        const char *speaks; /* what the origin chooses, "\x02h2" or the like; NULL: it negotiates nothing */

        const char *deny;   /* egressd's reason, NULL: allowed */
        const char *deny_path; /* only this one; NULL: any */
        const char *nowhere;   /* a path that is allowed, and no address comes with it */
        const char *git;    /* what egressd says of a rule about git, as JSON; NULL: nothing */
        bool covers;        /* egressd says that the grant is for every request */
        bool revokes;       /* the first credential is revoked while egressd thinks */
        bool audit_refuses;
        unsigned n_questions, n_done, n_within, n_second_paths;
        Buffer log;         /* audit events and usage, one a line */
        json_t *usage;

        void (*client)(struct World *w);
        const char *groups, *ciphers; /* what it offers, as OpenSSL writes them; NULL: what OpenSSL does */
        int client_done;    /* eventfd */
        int guest_fd;       /* the client's end */
        int rotate;         /* eventfd */
        int disappointed;
} World;

/* ---- stand-ins ---- */

static inline int on_connect(IpcCall *call, json_t *params, void *userdata) {
        const char *path = json_string_value(json_object_get(params, "path")) ?: "";
        World *w = userdata;

        w->n_questions++;
        if (w->watch) /* a test may take longer than the ten seconds after which silence counts as the end */
                (void) ipc_call_notify(w->watch, json_pack("{s:i}", "heartbeat", 2));
        if (w->revokes)
                w->credentials[0].revoked = true;
        if (json_object_get(params, "within"))
                w->n_within++;
        if (json_object_get(params, "second_path"))
                w->n_second_paths++;
        if (w->deny && (!w->deny_path || strcmp(path, w->deny_path) == 0))
                return ipc_call_reply(call, json_pack("{s:s, s:s, s:s, s:s, s:n, s:n}", "verdict", "deny", "reason", w->deny, "rule", "test",
                                                      "name", NAME, "grant", "addresses"));
        if (w->nowhere && strcmp(path, w->nowhere) == 0)
                return ipc_call_reply(call, json_pack("{s:s, s:s, s:s, s:s, s:i, s:[]}", "verdict", "pass", "reason", "allowed", "rule", "test",
                                                      "name", NAME, "grant", 7, "addresses"));
        return ipc_call_reply(call, json_pack("{s:s, s:s, s:s, s:s, s:i, s:b, s:[ss], s:o*}", "verdict", "pass", "reason", "allowed", "rule", "test",
                                              "name", NAME, "grant", 7, "covers", w->covers, "addresses", "127.0.0.9", "127.0.0.1", "git",
                                              w->git ? json_loads(w->git, 0, NULL) : NULL));
}

static inline int on_done(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        w->n_done++;
        return ipc_call_reply(call, NULL);
}

static inline int on_egress_watch(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        ipc_call_unref(w->watch);
        w->watch = ipc_call_ref(call);
        return ipc_call_notify(call, json_pack("{s:i}", "heartbeat", 1));
}

static inline int on_append(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;
        _cleanup_free_ char *text = json_canonical(params);

        if (w->audit_refuses)
                return ipc_call_refuse(call, "Unavailable", "not now");
        (void) buffer_append_text(&w->log, text);
        (void) buffer_append_text(&w->log, "\n");
        return ipc_call_reply(call, json_pack("{s:i, s:s}", "seq", 1, "hash", "00"));
}

static inline int on_add_usage(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        json_unref(w->usage);
        w->usage = json_incref(params);
        return ipc_call_reply(call, NULL);
}

static const IpcMethod egress_methods[] = {
        { "io.anchorhold.Egress.Connect", PEER_ROOT, on_connect },
        { "io.anchorhold.Egress.Done", PEER_ROOT, on_done },
        { "io.anchorhold.Egress.Watch", PEER_ROOT, on_egress_watch },
        {},
};
static const IpcMethod audit_methods[] = { { "io.anchorhold.Audit.Append", PEER_ROOT, on_append }, {} };
static const IpcMethod run_methods[] = { { "io.anchorhold.Run.AddUsage", PEER_ROOT, on_add_usage }, {} };

static inline int listen_unix(const char *path) {
        struct sockaddr_un un = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        strcpy(un.sun_path, path);
        (void) unlink(path);
        assert_true(fd >= 0);
        assert_int_equal(bind(fd, (struct sockaddr *) &un, sizeof(un)), 0);
        assert_int_equal(listen(fd, 16), 0);
        return fd;
}

static inline void serve(World *w, unsigned i, const IpcMethod *methods, const char *path) {
        assert_int_equal(ipc_server_new(&w->servers[i], w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(w->servers[i], listen_unix(path)) >= 0);
}

/* The credential for git.example.org gets another value, as inject does it. */
#define ROTATED "ghp_the-rotated-git-token"

static inline void rotate_other(World *w) {
        _cleanup_(secret_freep) Secret *secret = NULL;

        assert_int_equal(secret_new(&secret, ROTATED, strlen(ROTATED)), 0);
        assert_int_equal(inject_credential_update(&w->credentials[1], &w->secrets->credentials[1], &secret), CREDENTIAL_CHANGED);
        exchange_credential_changed(&w->context, &w->credentials[1]);
}

/* The same when a client's thread asks for it by w->rotate; then the origin may go on. */
static inline int on_rotate(sd_event_source *s, int fd, uint32_t events, void *userdata) {
        World *w = userdata;
        eventfd_t value;

        assert_int_equal(eventfd_read(fd, &value), 0);
        rotate_other(w);
        return sem_post(&w->may_go_on);
}

/* ---- the origin ---- */

static inline bool origin_send(SSL *ssl, const char *text) {
        return SSL_write(ssl, text, (int) strlen(text)) > 0;
}

/* A whole request: its head into w->seen; the length of its body, or -1. */
static inline ssize_t origin_read(World *w, SSL *ssl) {
        size_t n = 0, have, length = 0;
        char *end = NULL, *p;
        int k;

        while (!end) {
                k = SSL_read(ssl, w->seen + n, (int) (sizeof(w->seen) - 1 - n));
                if (k <= 0)
                        return -1;
                n += (size_t) k;
                w->seen[n] = 0;
                end = strstr(w->seen, "\r\n\r\n");
        }
        have = n - (size_t) (end + 4 - w->seen);
        end[2] = 0;
        p = strcasestr(w->seen, "\r\nContent-Length: ");
        if (p)
                length = strtoul(p + 18, NULL, 10);
        if (strcasestr(w->seen, "\r\nExpect: 100-continue") && !origin_send(ssl, "HTTP/1.1 100 Continue\r\n\r\n"))
                return -1;
        if (w->dawdles)
                (void) sem_wait(&w->may_go_on);
        while (have < length) {
                char scrap[16384];

                k = SSL_read(ssl, scrap, sizeof(scrap));
                if (k <= 0)
                        return -1;
                have += (size_t) k;
        }
        return (ssize_t) length;
}

static inline void *origin_main(void *userdata) {
        World *w = userdata;
        int fd;

        while ((fd = accept(w->origin_fd, NULL, NULL)) >= 0) {
                SSL *ssl = SSL_new(w->origin_ctx);
                ssize_t length;

                w->n_accepted++;
                (void) SSL_set_fd(ssl, fd);
                if (SSL_accept(ssl) == 1) {
                        w->n_resumed += SSL_session_reused(ssl) == 1;
                        while ((length = origin_read(w, ssl)) >= 0 && w->answer(w, ssl, length))
                                ;
                        (void) SSL_shutdown(ssl);
                }
                SSL_free(ssl);
                (void) close(fd);
        }
        return NULL;
}

/* ---- the client ---- */

/* offer: protocols in the form of ALPN, or NULL. */
static inline SSL *client_connect_offering(World *w, const char *sni, const char *offer) {
        SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
        BIO *bio = BIO_new_mem_buf(w->secrets->ca_pem, -1);
        X509 *ca = PEM_read_bio_X509(bio, NULL, NULL, NULL);
        SSL *ssl;

        BIO_free(bio);
        (void) X509_STORE_add_cert(SSL_CTX_get_cert_store(ctx), ca);
        X509_free(ca);
        SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
        ssl = SSL_new(ctx);
        SSL_CTX_free(ctx);
        (void) SSL_set1_host(ssl, NAME);
        if (sni)
                (void) SSL_set_tlsext_host_name(ssl, sni);
        if ((w->groups && SSL_set1_groups_list(ssl, w->groups) != 1) || (w->ciphers && SSL_set_ciphersuites(ssl, w->ciphers) != 1)) {
                SSL_free(ssl);
                return NULL;
        }
        if (offer)
                (void) SSL_set_alpn_protos(ssl, (const unsigned char *) offer, (unsigned) strlen(offer));
        (void) SSL_set_fd(ssl, w->guest_fd);
        if (SSL_connect(ssl) == 1)
                return ssl;
        SSL_free(ssl);
        return NULL;
}

static inline SSL *client_connect(World *w, const char *sni) {
        return client_connect_offering(w, sni, NULL);
}

static inline bool client_send(SSL *ssl, const char *text) {
        return SSL_write(ssl, text, (int) strlen(text)) > 0;
}

/* Reads until the text has come, or the end; appends to buffer. */
static inline bool client_await(SSL *ssl, const char *text, char *buffer, size_t size) {
        size_t n = strlen(buffer);

        while (!strstr(buffer, text)) {
                int k = n + 1 < size ? SSL_read(ssl, buffer + n, (int) (size - 1 - n)) : 0;

                if (k <= 0)
                        return false;
                n += (size_t) k;
                buffer[n] = 0;
        }
        return true;
}

static inline void *client_main(void *userdata) {
        World *w = userdata;

        w->client(w);
        (void) close(w->guest_fd);
        (void) eventfd_write(w->client_done, 1);
        return NULL;
}

/* cmocka's assertions are for its own thread only: a client that is disappointed says so and the test fails at its end. */
#define EXPECT(condition)                                                                \
        do {                                                                             \
                if (!(condition)) {                                                      \
                        fprintf(stderr, "line %d: expected %s\n", __LINE__, #condition); \
                        w->disappointed++;                                               \
                }                                                                        \
        } while (0)

/* ---- set up, run, tear down ---- */

static inline int origin_chooses(SSL *ssl, const unsigned char **ret, unsigned char *ret_size, const unsigned char *offered, unsigned size, void *userdata) {
        const World *w = userdata;
        unsigned char *chosen;

        if (!w->speaks)
                return SSL_TLSEXT_ERR_NOACK;
        if (SSL_select_next_proto(&chosen, ret_size, (const unsigned char *) w->speaks, (unsigned) strlen(w->speaks), offered, size) != OPENSSL_NPN_NEGOTIATED)
                return SSL_TLSEXT_ERR_ALERT_FATAL;
        *ret = chosen;
        return SSL_TLSEXT_ERR_OK;
}

static inline SSL_CTX *make_origin_ctx(World *w) {
        static const char *const names[] = { NAME };
        _cleanup_(leaf_maker_freep) LeafMaker *leaves = NULL;
        SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
        EVP_PKEY *key;
        X509 *cert;

        assert_int_equal(run_ca_make(RUN, names, 1, time_realtime() - HOUR, time_realtime() + HOUR, &w->ca_pem, &w->ca_key), 0);
        assert_int_equal(leaf_maker_new(&leaves, w->ca_pem, w->ca_key), 0);
        assert_int_equal(leaf_maker_get(leaves, NAME, &cert, &key), 0);
        assert_int_equal(SSL_CTX_use_certificate(ctx, cert), 1);
        assert_int_equal(SSL_CTX_use_PrivateKey(ctx, key), 1);
        SSL_CTX_set_alpn_select_cb(ctx, origin_chooses, w);
        return ctx;
}

/* All of the origin but who serves it. */
static inline void listen_as_origin(World *w) {
        struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t size = sizeof(in);

        w->origin_ctx = make_origin_ctx(w);
        w->origin_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(w->origin_fd, (struct sockaddr *) &in, sizeof(in)), 0);
        assert_int_equal(listen(w->origin_fd, 16), 0);
        assert_int_equal(getsockname(w->origin_fd, (struct sockaddr *) &in, &size), 0);
        w->port = ntohs(in.sin_port);
}

static inline void make_origin(World *w) {
        listen_as_origin(w);
        assert_int_equal(pthread_create(&w->origin_thread, NULL, origin_main, w), 0);
}

static inline void make_secrets(World *w) {
        static const char *const names[] = { NAME, "other.example.org" };
        json_t *rule, *other, *provider;

        rule = json_pack("{s:s, s:[s], s:[i], s:[ss], s:[s], s:[{s:s}, {s:b}, {s:s, s:s, s:s}, {s:s, s:s, s:s}, {s:s}]}", "provider", "test", "hosts", NAME, "ports", (int) w->port,
                         "methods", "GET", "POST", "paths", "/v1/", "places", "header", "x-api-key", "bearer", 1,
                         "query", "key", "method", "GET", "path", "/v1/feed", "json", "/key", "method", "POST", "path", "/v1/login", "git", "x-access-token");
        other = json_pack("{s:[s], s:[i], s:[{s:s}]}", "hosts", "git.example.org", "ports", 443, "places", "header", "private-token");
        provider = json_pack("{s:[s], s:[{s:s, s:s}], s:{s:[ss], s:[ss], s:[s]}, s:{s:{s:i, s:i}}}", "hosts", NAME, "calls", "method", "POST",
                             "path", "/v1/messages", "usage", "model", "/message/model", "/model", "input_tokens", "/message/usage/input_tokens",
                             "/usage/input_tokens", "output_tokens", "/usage/output_tokens", "prices", "default", "input", 1000000, "output", 2000000);
        assert_int_equal(run_secrets_new(&w->secrets, RUN, "i0123456789ab", "code-fix", "work", time_realtime() + HOUR, 2), 0);
        assert_int_equal(run_secrets_set_credential(w->secrets, 0, "model", SENTINEL, rule, provider), 0);
        assert_int_equal(run_secrets_set_credential(w->secrets, 1, "git", OTHER, other, NULL), 0);
        assert_int_equal(secret_new(&w->secrets->credentials[0].secret, SECRET, strlen(SECRET)), 0);
        assert_int_equal(secret_new(&w->secrets->credentials[1].secret, "ghp_the-real-git-token", 22), 0);
        assert_int_equal(run_ca_make(RUN, names, 2, time_realtime() - HOUR, time_realtime() + HOUR, &w->secrets->ca_pem, &w->secrets->ca_key), 0);
        json_decref(rule);
        json_decref(other);
        json_decref(provider);
        for (size_t i = 0; i < 2; i++)
                assert_int_equal(inject_credential_init(&w->credentials[i], &w->secrets->credentials[i]), 0);
}

static inline void on_lost(void *userdata) {
}

static inline void on_revoked(int64_t grant, int64_t stream, void *userdata) {
}

/* What every request meets but a guest and an origin. */
static inline void set_up_host(World *w, const char *ca_dir) {
        ExchangeContext *c = &w->context;

        assert_int_equal(sd_event_new(&w->event), 0);
        make_secrets(w);
        serve(w, 0, egress_methods, EGRESS_SOCKET);
        serve(w, 1, audit_methods, AUDIT_SOCKET);
        serve(w, 2, run_methods, RUN_API_SOCKET);

        *c = (ExchangeContext) { .event = w->event, .run = RUN, .credentials = w->credentials, .n_credentials = 2 };
        assert_int_equal(leaf_maker_new(&c->leaves, w->secrets->ca_pem, w->secrets->ca_key), 0);
        assert_int_equal(tls_setup_new(&c->tls, ca_dir), 0);
        assert_int_equal(egress_link_new(&c->egress, w->event, EGRESS_SOCKET, on_lost, on_revoked, w), 0);
        assert_int_equal(audit_client_new(&w->audit, w->event), 0);
        c->audit = w->audit;
        assert_int_equal(notes_new(&c->notes, w->event, c->audit, RUN, "/run/no-anchord.sock"), 0);
        assert_int_equal(tally_new(&c->tally, w->event, c->audit, RUN), 0);
        assert_int_equal(usage_report_new(&c->usage, w->event, c->audit, RUN, RUN_API_SOCKET), 0);
}

static inline void tear_down_host(World *w) {
        ExchangeContext *c = &w->context;

        exchange_close_all(c);
        usage_report_free(c->usage);
        tally_free(c->tally);
        audit_client_free(w->audit);
        notes_free(c->notes);
        egress_link_free(c->egress);
        tls_setup_free(c->tls);
        leaf_maker_free(c->leaves);
        ipc_call_unref(w->watch);
        for (size_t i = 0; i < ELEMENTSOF(w->servers); i++)
                ipc_server_free(w->servers[i]);
        run_secrets_free(w->secrets);
        buffer_done(&w->log);
        json_unref(w->usage);
        sd_event_unref(w->event);
}

static inline int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        w->client_done = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        assert_int_equal(sem_init(&w->may_go_on, 0, 0), 0);
        make_origin(w);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, "/run/anchorhold/ca/world.pem", w->ca_pem, strlen(w->ca_pem), 0644), 0);
        set_up_host(w, "/run/anchorhold/ca");
        w->rotate = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        assert_true(sd_event_add_io(w->event, NULL, w->rotate, EPOLLIN, on_rotate, w) >= 0);
        *state = w;
        return 0;
}

static inline int tear_down(void **state) {
        World *w = *state;

        exchange_close_all(&w->context);
        (void) shutdown(w->origin_fd, SHUT_RDWR);
        (void) pthread_join(w->origin_thread, NULL);
        (void) close(w->origin_fd);
        tear_down_host(w);
        secret_free(w->ca_key);
        free(w->ca_pem);
        SSL_CTX_free(w->origin_ctx);
        inject_credential_done(&w->credentials[1]);
        (void) close(w->client_done);
        (void) close(w->rotate);
        free(w);
        return 0;
}

/* Connects the client for `name`; whoever runs the loop joins its thread. */
static inline pthread_t begin_play(World *w, const char *name, void (*client)(World *w)) {
        pthread_t thread;
        int fds[2];

        w->client = client;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        w->guest_fd = fds[0];
        assert_int_equal(exchange_start(&w->context, fds[1], name, w->port, "10.255.255.2", INSPECT_RULE), 0);
        assert_int_equal(pthread_create(&thread, NULL, client_main, w), 0);
        return thread;
}

/* The same, and runs both until it is done. */
static inline void play_for(World *w, const char *name, void (*client)(World *w)) {
        pthread_t thread = begin_play(w, name, client);
        eventfd_t value;

        while (eventfd_read(w->client_done, &value) < 0)
                assert_true(sd_event_run(w->event, 50000) >= 0);
        /* what is still on its way to the stand-ins */
        while (sd_event_run(w->event, 100000) > 0)
                ;
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(w->disappointed, 0);
}

static inline void play(World *w, void (*client)(World *w)) {
        play_for(w, NAME, client);
}

static inline bool logged(World *w, const char *words) {
        return memmem(buffer_data(&w->log), buffer_size(&w->log), words, strlen(words));
}

#define KEY "x-api-key: " SENTINEL "\r\n"

/* One request; what came until the end is in text. The last read's error is returned: true for a proper end. */
static inline bool one_request(World *w, const char *request, char *text, size_t size) {
        SSL *ssl = client_connect(w, NAME);
        bool proper;

        *text = 0;
        EXPECT(ssl);
        if (!ssl)
                return false;
        EXPECT(client_send(ssl, request));
        (void) client_await(ssl, "never", text, size);
        proper = SSL_get_shutdown(ssl) & SSL_RECEIVED_SHUTDOWN;
        SSL_free(ssl);
        ERR_clear_error();
        return proper;
}

#define CLIENT(name, request, ...)                                         \
        static void name(World *w) {                                       \
                char text[8192];                                           \
                bool proper = one_request(w, request, text, sizeof(text)); \
                (void) proper;                                             \
                __VA_ARGS__                                                \
        }

#define GET(path) "GET " path " HTTP/1.1\r\nHost: " NAME "\r\n"

static inline int enter_own_world(void **state) {
        struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP };
        int fd;

        (void) signal(SIGPIPE, SIG_IGN);
        assert_int_equal(unshare(CLONE_NEWNS | CLONE_NEWNET), 0);
        /* in a chroot that is no mount point, whoever made it has seen to that */
        (void) mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
        assert_int_equal(mount("tmpfs", "/run", "tmpfs", 0, NULL), 0);
        assert_int_equal(mkdir("/run/anchorhold", 0755), 0);
        assert_int_equal(mkdir("/run/anchorhold/ca", 0755), 0);
        fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &lo), 0);
        return close(fd);
}
