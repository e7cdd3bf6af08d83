/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The whole of anchor-proxy in a network of its own: what the guest gets for what egressd says. egressd, inject and the origin
 * are played by the test.
 */

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "egress/egress-api.h"
#include "ipc/ipc.h"
#include "own-world.h"
#include "proxy/proxy-private.h"
#include "util/json.h"

#define RUN "r0123456789ab"
#define EGRESS "/run/anchorhold/egress.sock"
#define NAME "good.example.org"

enum { SYNTHETIC = 0xc6120007, ORIGIN = 0x7f000009, ORIGIN_PORT = 8443, GRANT = 42 };

typedef struct World {
        sd_event *event;
        Proxy *proxy;
        IpcServer *egress, *inject, *secretd;
        IpcCall *watch;
        int origin, origin_fd;      /* owned; listener, and the latest connection */
        const char *look, *connect; /* verdicts */
        const char *reason, *protocol;
        unsigned n_looks, n_connects, n_taken, n_done;
        char looked[512], asked[1024], took[256], done[256], refused[256];
        bool inject_refuses, inject_waits, holds;
        IpcCall *held;              /* ref; a Connect that is not answered */
        IpcCall *take;              /* ref; not answered */
        int taken_fd;               /* owned */
} World;

/* ---- the others ---- */

static void keep(char *to, size_t size, json_t *params) {
        _cleanup_free_ char *text = json_canonical(params);

        (void) snprintf(to, size, "%s", text);
}

static int on_look(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        w->n_looks += !json_is_true(json_object_get(params, "resolve")); /* of those that say nothing for a while */
        keep(w->looked, sizeof(w->looked), params);
        return ipc_call_reply(call, json_pack("{s:s, s:s, s:s, s:s, s:s*}", "verdict", w->look, "reason", w->reason, "rule", "egress/t#/allow/0",
                                              "name", NAME, "protocol", strcmp(w->look, "deny") == 0 ? NULL : w->protocol));
}

static int reply_grant(IpcCall *call) {
        return ipc_call_reply(call, json_pack("{s:s, s:s, s:s, s:s, s:i, s:[s]}", "verdict", "pass", "reason", "allowed", "rule", "egress/t#/allow/0", "name", NAME,
                                              "grant", GRANT, "addresses", "127.0.0.9"));
}

static int on_connect(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        w->n_connects++;
        keep(w->asked, sizeof(w->asked), params);
        if (strcmp(w->connect, "pass") != 0)
                return ipc_call_reply(call, json_pack("{s:s, s:s, s:s, s:s}", "verdict", w->connect, "reason", w->reason, "rule", "egress/t#/allow/0", "name", NAME));
        if (w->holds) {
                w->held = ipc_call_ref(call);
                return 0;
        }
        return reply_grant(call);
}

static int on_done(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        w->n_done++;
        keep(w->done, sizeof(w->done), params);
        return ipc_call_reply(call, NULL);
}

static int on_refused(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        keep(w->refused, sizeof(w->refused), params);
        return ipc_call_reply(call, NULL);
}

static int on_watch(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        ipc_call_unref(w->watch);
        w->watch = ipc_call_ref(call);
        return ipc_call_notify(call, json_pack("{s:i}", "heartbeat", 1));
}

static int on_take(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        w->n_taken++;
        keep(w->took, sizeof(w->took), params);
        if (w->inject_refuses)
                return ipc_call_refuse(call, "Unavailable", "no");
        w->taken_fd = ipc_call_take_fd(call, 0);
        if (w->inject_waits) {
                w->take = ipc_call_ref(call);
                return 0;
        }
        return ipc_call_reply(call, NULL);
}

static const IpcMethod egress_methods[] = {
        { "io.anchorhold.Egress.Look", PEER_ROOT, on_look },       { "io.anchorhold.Egress.Connect", PEER_ROOT, on_connect },
        { "io.anchorhold.Egress.Done", PEER_ROOT, on_done },       { "io.anchorhold.Egress.Watch", PEER_ROOT, on_watch },
        { "io.anchorhold.Egress.Refused", PEER_ROOT, on_refused }, {},
};
static int on_sentinels(IpcCall *call, json_t *params, void *userdata) {
        return ipc_call_reply(call, json_pack("{s:{}}", "sentinels"));
}

static const IpcMethod secret_methods[] = { { "io.anchorhold.Secret.Sentinels", PEER_ROOT, on_sentinels }, {} };
static const IpcMethod inject_methods[] = { { "io.anchorhold.Inject.Take", PEER_ROOT, on_take }, {} };

static IpcServer *serve(World *w, const IpcMethod *methods, const char *path) {
        IpcServer *s = NULL;

        assert_int_equal(ipc_server_new(&s, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(s, own_world_listen(path)) >= 0);
        return s;
}

/* ---- sockets ---- */

static int bound(int type, uint32_t address, uint16_t port) {
        struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(address) };
        int one = 1, fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        (void) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        assert_int_equal(bind(fd, (struct sockaddr *) &in, sizeof(in)), 0);
        if (type == SOCK_STREAM)
                assert_int_equal(listen(fd, 1024), 0);
        return fd;
}

/* As anchor-proxy@.socket does it. */
static void pass_listeners(void) {
        static const struct { int type; uint16_t port; } sockets[] = {
                { SOCK_STREAM, PROXY_TRANSPARENT_PORT }, { SOCK_DGRAM, PROXY_DNS_PORT }, { SOCK_STREAM, PROXY_DNS_PORT }, { SOCK_STREAM, PROXY_EXPLICIT_PORT },
        };
        char pid[32];

        for (int i = 0; i < (int) ELEMENTSOF(sockets); i++) {
                int fd = bound(sockets[i].type, INADDR_ANY, sockets[i].port), high = fcntl(fd, F_DUPFD_CLOEXEC, 100);

                (void) close(fd);
                assert_int_equal(dup3(high, 3 + i, O_CLOEXEC), 3 + i);
                (void) close(high);
        }
        (void) snprintf(pid, sizeof(pid), "%d", (int) getpid());
        assert_int_equal(setenv("LISTEN_PID", pid, 1) | setenv("LISTEN_FDS", "4", 1), 0);
}

static int dial(uint32_t address, uint16_t port) {
        struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(address) };
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        assert_int_equal(connect(fd, (struct sockaddr *) &in, sizeof(in)), 0);
        assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
        return fd;
}

static void put(int fd, const void *data, size_t size) {
        assert_int_equal(send(fd, data, size, MSG_NOSIGNAL), size);
}

static void put_text(int fd, const char *text) {
        put(fd, text, strlen(text));
}

/* Reads until the text has come, or the end: 0; or a reset: -ECONNRESET. */
static int await(World *w, int fd, const char *text, char *buffer, size_t size) {
        size_t n = 0;
        ssize_t k;

        for (;;) {
                UNTIL(w->event, (k = recv(fd, buffer + n, size - 1 - n, 0)) >= 0 || errno != EAGAIN);
                if (k <= 0)
                        return k < 0 ? -errno : 0;
                n += (size_t) k;
                buffer[n] = 0;
                if (text && memmem(buffer, n, text, strlen(text)))
                        return 1;
        }
}

static size_t make_hello(uint8_t *ret, size_t max) {
        SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
        SSL *ssl = SSL_new(ctx);
        BIO *out = BIO_new(BIO_s_mem());
        int n;

        SSL_set_bio(ssl, BIO_new(BIO_s_mem()), out);
        (void) SSL_set_tlsext_host_name(ssl, NAME);
        SSL_set_connect_state(ssl);
        (void) SSL_do_handshake(ssl);
        n = BIO_read(out, ret, (int) max);
        SSL_free(ssl);
        SSL_CTX_free(ctx);
        assert_true(n > 100);
        return (size_t) n;
}

static int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        for (int i = 3; i < 7; i++)
                if (fcntl(i, F_GETFD) < 0)
                        assert_int_equal(dup2(2, i), i);
        *w = (World) { .origin_fd = -1, .taken_fd = -1, .look = "pass", .connect = "pass", .reason = "allowed", .protocol = "raw" };
        assert_int_equal(sd_event_new(&w->event), 0);
        w->egress = serve(w, egress_methods, EGRESS);
        w->inject = serve(w, inject_methods, "/run/anchorhold/run/" RUN "/inject");
        w->secretd = serve(w, secret_methods, "/run/anchorhold/secret-api.sock");
        w->origin = bound(SOCK_STREAM, ORIGIN, ORIGIN_PORT);
        pass_listeners();
        assert_int_equal(proxy_new(&w->proxy, w->event, RUN), 0);
        UNTIL(w->event, w->watch);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        proxy_free(w->proxy);
        ipc_call_unref(w->watch);
        ipc_call_unref(w->take);
        ipc_call_unref(w->held);
        ipc_server_free(w->egress);
        ipc_server_free(w->inject);
        ipc_server_free(w->secretd);
        (void) close(w->origin);
        (void) fd_close(w->origin_fd);
        (void) fd_close(w->taken_fd);
        sd_event_unref(w->event);
        free(w);
        return 0;
}

/* ---- through ---- */

/* A tunnel to the origin, up to its first bytes. */
static int tunnel(World *w) {
        int fd = dial(INADDR_LOOPBACK, PROXY_EXPLICIT_PORT);
        char buffer[1024];

        put_text(fd, "CONNECT " NAME ":8443 HTTP/1.1\r\nHost: " NAME ":8443\r\n\r\n");
        assert_int_equal(await(w, fd, "200 Connection established", buffer, sizeof(buffer)), 1);
        put_text(fd, "ping");
        UNTIL(w->event, (w->origin_fd = accept4(w->origin, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0);
        assert_int_equal(await(w, w->origin_fd, "ping", buffer, sizeof(buffer)), 1);
        return fd;
}

static void test_tunnel(void **state) {
        World *w = *state;
        char buffer[1024];
        int fd = tunnel(w);

        assert_non_null(strstr(w->looked, "\"name\":\"" NAME "\""));
        assert_non_null(strstr(w->looked, "\"port\":8443"));
        assert_null(strstr(w->looked, "address"));
        assert_non_null(strstr(w->asked, "\"protocol\":\"raw\""));
        put_text(w->origin_fd, "pong!");
        assert_int_equal(await(w, fd, "pong!", buffer, sizeof(buffer)), 1);
        assert_int_equal(w->n_done, 0);
        w->origin_fd = fd_close(w->origin_fd);
        assert_int_equal(await(w, fd, NULL, buffer, sizeof(buffer)), 0);
        (void) close(fd);
        UNTIL(w->event, w->n_done == 1); /* the grant is given back, once, with what went over it */
        assert_non_null(strstr(w->done, "\"grant\":42"));
        assert_non_null(strstr(w->done, "\"bytes_in\":5"));
        assert_non_null(strstr(w->done, "\"bytes_out\":4"));
        run_for(w->event, 10000);
        assert_int_equal(w->n_done, 1);
        assert_int_equal(w->proxy->n_connections, 0);
}

static void test_revoked(void **state) {
        World *w = *state;
        char buffer[64];
        int fd = tunnel(w);

        assert_int_equal(ipc_call_notify(w->watch, json_pack("{s:i, s:[i]}", "heartbeat", 2, "revoked", 41)), 0);
        run_for(w->event, 10000);
        assert_int_equal(w->proxy->n_connections, 1);
        assert_int_equal(ipc_call_notify(w->watch, json_pack("{s:i, s:[i]}", "heartbeat", 3, "revoked", 42)), 0);
        assert_int_equal(await(w, fd, NULL, buffer, sizeof(buffer)), -ECONNRESET);
        assert_int_equal(await(w, w->origin_fd, NULL, buffer, sizeof(buffer)) <= 0, 1);
        assert_int_equal(w->proxy->n_connections, 0);
        UNTIL(w->event, w->n_done == 1); /* with what went over it */
        assert_non_null(strstr(w->done, "\"bytes_out\":4"));
        (void) close(fd);
}

/* When the proxy ends, its connections end with it, and egressd hears what went over them. (In a process of its own: it waits for the answer, which this one gives.) */
static void test_last_words(void **state) {
        World *w = *state;
        char buffer[64];
        int fd = tunnel(w), status;
        pid_t child;

        put_text(w->origin_fd, "pong!");
        assert_int_equal(await(w, fd, "pong!", buffer, sizeof(buffer)), 1);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
                (void) proxy_free(w->proxy);
                _exit(0);
        }
        UNTIL(w->event, waitpid(child, &status, WNOHANG) == child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_int_equal(w->n_done, 1);
        assert_non_null(strstr(w->done, "\"bytes_in\":5"));
        assert_non_null(strstr(w->done, "\"bytes_out\":4"));
        (void) close(fd);
}

/* Takes a message, which may be a beat or not, over, and waits until the proxy has read it. */
static void tell(World *w, json_t *message) {
        uint64_t before = w->proxy->beat_usec = time_boottime() - 1;

        assert_int_equal(ipc_call_notify(w->watch, message), 0);
        assert_int_equal(ipc_call_notify(w->watch, json_pack("{s:i}", "heartbeat", 2)), 0);
        UNTIL(w->event, w->proxy->beat_usec != before);
}

/* Two sockets: the word that it is revoked may come before the grant. */
static void test_revoked_before_it_is_known(void **state) {
        World *w = *state;
        int fd;

        w->holds = true;
        for (unsigned revoked = 0; revoked < 2; revoked++) {
                char buffer[64] = "";

                fd = dial(INADDR_LOOPBACK, PROXY_EXPLICIT_PORT);
                put_text(fd, "CONNECT " NAME ":8443 HTTP/1.1\r\nHost: " NAME ":8443\r\n\r\n");
                UNTIL(w->event, w->held);
                tell(w, json_pack("{s:[i]}", "revoked", revoked ? GRANT : GRANT - 1));
                assert_int_equal(reply_grant(w->held), 0);
                w->held = ipc_call_unref(w->held);
                if (revoked) {
                        while (await(w, fd, NULL, buffer, sizeof(buffer)) > 0)
                                ;
                        UNTIL(w->event, w->n_done == 2);
                        assert_int_equal(accept4(w->origin, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), -1);
                } else { /* the control */
                        UNTIL(w->event, (w->origin_fd = accept4(w->origin, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0);
                        w->origin_fd = fd_close(w->origin_fd);
                }
                (void) close(fd);
                UNTIL(w->event, w->n_done == revoked + 1);
        }
}

/* What was said while nobody listened: it watches anew at once, and what is not on the list is cut. */
static void test_revoked_while_nobody_listened(void **state) {
        World *w = *state;
        char buffer[64];
        uint64_t begin, before;
        int fd = tunnel(w);

        for (unsigned listed = 2; listed-- > 0;) {
                w->watch = ipc_call_unref(w->watch); /* which ends it */
                before = w->proxy->beat_usec = time_boottime() - 1;
                begin = time_monotonic();
                UNTIL(w->event, w->watch && w->proxy->beat_usec != before);
                assert_true(time_monotonic() - begin < 700 * 1000);
                tell(w, listed ? json_pack("{s:[i], s:i}", "grants", GRANT, "latest", GRANT) : json_pack("{s:[], s:i}", "grants", "latest", GRANT));
                assert_int_equal(w->proxy->n_connections, listed);
        }
        assert_int_equal(await(w, fd, NULL, buffer, sizeof(buffer)), -ECONNRESET);
        (void) close(fd);
}

/* A list is no beat. */
static void test_list_without_a_heartbeat(void **state) {
        World *w = *state;
        uint64_t before = w->proxy->beat_usec = time_boottime() - 1;

        UNTIL(w->event, w->proxy->beat_usec != before); /* the first one of the watch */
        w->proxy->beat_usec = time_boottime() - EGRESS_HEARTBEAT_LOST_USEC / 2;
        assert_int_equal(ipc_call_notify(w->watch, json_pack("{s:[], s:i}", "grants", "latest", 0)), 0);
        run_for(w->event, 20000);
        assert_true(time_boottime() - w->proxy->beat_usec >= EGRESS_HEARTBEAT_LOST_USEC / 2);
        tell(w, json_object());
}

/* An origin that is not there. */
static void test_unreachable(void **state) {
        World *w = *state;
        int fd = dial(INADDR_LOOPBACK, PROXY_EXPLICIT_PORT);
        char buffer[1024];

        put_text(fd, "GET http://" NAME ":9999/x HTTP/1.1\r\nHost: " NAME ":9999\r\n\r\n");
        w->protocol = "http";
        (void) await(w, fd, NULL, buffer, sizeof(buffer));
        assert_non_null(strstr(buffer, "HTTP/1.1 502 "));
        UNTIL(w->event, w->n_done == 1);
        (void) close(fd);
}

/* ---- handed on ---- */

static void test_inspect(void **state) {
        World *w = *state;
        uint8_t hello[4096], there[4096];
        int fd = dial(SYNTHETIC, PROXY_TRANSPARENT_PORT);
        size_t n = make_hello(hello, sizeof(hello));

        w->look = w->connect = "inspect";
        w->protocol = "tls";
        /* in two pieces: nothing is decided before it is whole */
        put(fd, hello, 50);
        run_for(w->event, 20000);
        assert_int_equal(w->n_looks, 1);
        assert_int_equal(w->n_connects, 0);
        assert_non_null(strstr(w->looked, "\"address\":\"198.18.0.7\""));
        put(fd, hello + 50, n - 50);
        UNTIL(w->event, w->n_taken == 1);
        assert_non_null(strstr(w->asked, "\"sni\":\"" NAME "\""));
        assert_non_null(strstr(w->took, "\"name\":\"" NAME "\""));
        assert_non_null(strstr(w->took, "\"port\":15001"));
        assert_non_null(strstr(w->took, "\"rule\":\"egress/t#/allow/0\""));
        assert_int_equal(recv(w->taken_fd, there, sizeof(there), MSG_DONTWAIT), n); /* unread */
        assert_memory_equal(there, hello, n);
        UNTIL(w->event, w->proxy->n_connections == 0);
        put_text(w->taken_fd, "from inject"); /* and still open */
        assert_int_equal(await(w, fd, "from inject", (char *) there, sizeof(there)), 1);
        (void) close(fd);
}

static void expect_alert(World *w, int fd, uint8_t description) {
        char buffer[64] = {};

        assert_int_equal(await(w, fd, NULL, buffer, sizeof(buffer)), 0);
        assert_int_equal(buffer[0], 0x15);
        assert_int_equal(buffer[5], 2);
        assert_int_equal(buffer[6], description);
}

static void test_inject_refuses(void **state) {
        World *w = *state;
        uint8_t hello[4096];
        int fd = dial(SYNTHETIC, PROXY_TRANSPARENT_PORT);

        w->look = w->connect = "inspect";
        w->protocol = "tls";
        w->inject_refuses = true;
        put(fd, hello, make_hello(hello, sizeof(hello)));
        expect_alert(w, fd, 80); /* internal_error: nothing was decided */
        (void) close(fd);
}

/* It has the connection, and its answer does not come: whatever the guest hears from now on is inject's word. */
static void test_inject_does_not_answer(void **state) {
        World *w = *state;
        char buffer[64] = {};
        int fd = dial(SYNTHETIC, PROXY_TRANSPARENT_PORT);

        w->look = w->connect = "inspect";
        w->protocol = "http";
        w->inject_waits = true;
        put_text(fd, "GET / HTTP/1.1\r\nHost: " NAME "\r\n\r\n");
        UNTIL(w->event, w->n_taken == 1);
        run_for(w->event, 5500000);
        assert_int_equal(w->proxy->n_connections, 0);
        assert_int_equal(recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT), -1);
        assert_int_equal(errno, EAGAIN);
        put_text(w->taken_fd, "from inject");
        assert_int_equal(await(w, fd, "from inject", buffer, sizeof(buffer)), 1);
        assert_string_equal(buffer, "from inject");
        (void) close(fd);
}

/* ---- refused, in the language of whoever asks ---- */

static void test_refused_http(void **state) {
        World *w = *state;
        char buffer[2048];
        int fd = dial(SYNTHETIC, PROXY_TRANSPARENT_PORT);

        w->look = "deny";
        w->reason = "port";
        put_text(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_int_equal(await(w, fd, NULL, buffer, sizeof(buffer)), 0);
        assert_non_null(strstr(buffer, "HTTP/1.1 403 "));
        assert_non_null(strcasestr(buffer, "\r\nAnchorhold-Reason: port\r\n"));
        assert_non_null(strcasestr(buffer, "\r\nAnchorhold-Rule: egress/t#/allow/0\r\n"));
        assert_int_equal(w->n_connects, 0);
        (void) close(fd);
}

static void test_refused_tls(void **state) {
        World *w = *state;
        uint8_t hello[4096];
        int fd = dial(SYNTHETIC, PROXY_TRANSPARENT_PORT);

        w->connect = "deny";
        w->protocol = "tls";
        w->reason = "fronting";
        put(fd, hello, make_hello(hello, sizeof(hello)));
        expect_alert(w, fd, 49); /* access_denied */
        (void) close(fd);
}

static void test_refused_silence(void **state) {
        World *w = *state;
        char buffer[64];
        int fd = dial(SYNTHETIC, PROXY_TRANSPARENT_PORT);

        w->look = "deny";
        assert_int_equal(await(w, fd, NULL, buffer, sizeof(buffer)), -ECONNRESET);
        (void) close(fd);
}

static void test_literal(void **state) {
        World *w = *state;
        char buffer[64];
        int fd = dial(INADDR_LOOPBACK, PROXY_TRANSPARENT_PORT); /* a transparent listener takes any address */

        assert_int_equal(await(w, fd, NULL, buffer, sizeof(buffer)), -ECONNRESET);
        assert_int_equal(w->n_looks, 0);
        (void) close(fd);
}

static void test_malformed_head(void **state) {
        static const char *const heads[] = {
                "CONNECT " NAME " HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT :443 HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT " NAME ":99999 HTTP/1.1\r\nHost: x\r\n\r\n",
                "GET /relative HTTP/1.1\r\nHost: x\r\n\r\n", "GET ftp://" NAME "/ HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01 no HTTP\r\n\r\n",
        };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(heads); i++) {
                char buffer[2048] = {};
                int fd = dial(INADDR_LOOPBACK, PROXY_EXPLICIT_PORT);

                put_text(fd, heads[i]);
                assert_int_equal(await(w, fd, NULL, buffer, sizeof(buffer)), 0);
                assert_non_null(strstr(buffer, "HTTP/1.1 400 "));
                (void) close(fd);
        }
        assert_int_equal(w->n_looks, 0);
        UNTIL(w->event, strstr(w->refused, "malformed"));
}

static void test_egressd_gone(void **state) {
        World *w = *state;
        char buffer[2048];
        int fd;

        w->watch = ipc_call_unref(w->watch);
        w->egress = ipc_server_free(w->egress);
        fd = dial(INADDR_LOOPBACK, PROXY_EXPLICIT_PORT);
        put_text(fd, "CONNECT " NAME ":8443 HTTP/1.1\r\nHost: " NAME ":8443\r\n\r\n");
        assert_int_equal(await(w, fd, NULL, buffer, sizeof(buffer)), 0);
        assert_non_null(strstr(buffer, "HTTP/1.1 503 "));
        assert_non_null(strcasestr(buffer, "Anchorhold-Reason: unavailable"));
        (void) close(fd);
}

/* ---- too many ---- */

static void test_too_many(void **state) {
        World *w = *state;
        int fds[PROXY_CONNECTIONS_MAX + 1];

        w->protocol = "tls"; /* so that each waits for a hello */
        for (unsigned i = 0; i <= PROXY_CONNECTIONS_MAX; i++)
                fds[i] = dial(SYNTHETIC, PROXY_TRANSPARENT_PORT);
        UNTIL(w->event, w->n_looks == PROXY_CONNECTIONS_MAX);
        run_for(w->event, 20000);
        assert_int_equal(w->n_looks, PROXY_CONNECTIONS_MAX);
        assert_int_equal(w->proxy->n_connections, PROXY_CONNECTIONS_MAX);
        (void) close(fds[0]);
        UNTIL(w->event, w->n_looks == PROXY_CONNECTIONS_MAX + 1);
        for (unsigned i = 1; i <= PROXY_CONNECTIONS_MAX; i++)
                (void) close(fds[i]);
        UNTIL(w->event, w->proxy->n_connections == 0);
}

static void interface_up(const char *name, uint32_t address) {
        struct ifreq req = {};
        struct sockaddr_in *in = (struct sockaddr_in *) &req.ifr_addr;
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        (void) snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", name);
        *in = (struct sockaddr_in) { .sin_family = AF_INET, .sin_addr.s_addr = htonl(address) };
        assert_int_equal(ioctl(fd, SIOCSIFADDR, &req), 0);
        req.ifr_flags = IFF_UP;
        assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &req), 0);
        (void) close(fd);
}

static int enter_world(void **state) {
        own_world_enter(CLONE_NEWNET);
        interface_up("lo", INADDR_LOOPBACK);
        interface_up("lo:1", SYNTHETIC);
        return mkdir("/run/anchorhold/run", 0755) | mkdir("/run/anchorhold/run/" RUN, 0755);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_tunnel, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_revoked, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_last_words, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_revoked_before_it_is_known, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_revoked_while_nobody_listened, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_list_without_a_heartbeat, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_unreachable, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_inspect, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_inject_refuses, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_inject_does_not_answer, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_refused_http, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_refused_tls, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_refused_silence, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_literal, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_malformed_head, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_egressd_gone, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_too_many, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
