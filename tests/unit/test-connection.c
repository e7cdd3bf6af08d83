/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A guest's connection through the proxy to an origin, in one thread: the guest's and the origin's ends are sockets of the
 * test's, egressd is a stand-in that allows one name and compares as the real one does. In a mount and a network namespace of
 * its own, because the sockets have fixed places.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cmocka.h>

#include "egress/agreement-api.h"
#include "egress/egress-api.h"
#include "fake-auditd.h"
#include "proxy/connection-private.h"
#include "util/json.h"
#include "util/text.h"

#define NAME "www.example.org"
#define SYNTHETIC "198.18.0.1"
#define RUN "r0123456789ab"
#define KEY "sk-test-0123456789abcdefABCDEFxyz"
#define TOKEN "ghp_zyxwvutsrqponmlkjihgfedcba9876543210"
#define SECRET_SOCKET "/run/anchorhold/secret-api.sock"
#define RUN_SOCKET "/run/anchorhold/run-api.sock"

enum { TLS_PORT = 443, HTTP_PORT = 80, RAW_PORT = 22, PATIENCE_USEC = 3 * 1000 * 1000 };

static const uint16_t ports[] = { TLS_PORT, HTTP_PORT, RAW_PORT };

typedef struct World {
        sd_event *event;
        IpcServer *server;
        Proxy proxy;
        int listeners[ELEMENTSOF(ports)];
        int guest, origin;    /* the far ends; -1 */
        char got[65536];      /* by whoever read last */
        size_t n_got;
        unsigned n_looks, n_connects, n_within, n_denied, n_done;
        char refused[64];     /* the reason that the proxy told */
        IpcServer *secretd, *anchord;
        FakeAuditd auditd;
        const char *secretd_says; /* an error, if it is not to say the sentinels */
        unsigned n_looks_further;
        unsigned n_second_paths;
        bool holds;           /* what is to be connected waits for its answer … */
        IpcCall *held;        /* … here; ref */
        bool leads_nowhere;   /* the name, once it is resolved */
        unsigned n_sentinels, n_misuses;
        char misuse[256];     /* the last that anchord was told */
} World;

/* ---- egressd ---- */

static EgressProtocol protocol_of(uint64_t port) {
        return port == TLS_PORT ? EGRESS_TLS : port == HTTP_PORT ? EGRESS_HTTP : EGRESS_RAW;
}

static const char *text_of(json_t *params, const char *key) {
        return json_string_value(json_object_get(params, key));
}

static bool is_allowed(json_t *params) {
        const char *address = text_of(params, "address"), *name = text_of(params, "name");

        return address ? strcmp(address, SYNTHETIC) == 0 : name && strcmp(name, NAME) == 0;
}

static int reply_deny(World *w, IpcCall *call, const char *reason) {
        w->n_denied++;
        return ipc_call_reply(call, json_pack("{s:s, s:s, s:s, s:s}", "verdict", "deny", "reason", reason, "rule", "test", "name", NAME));
}

static int on_look(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        w->n_looks++;
        if (!is_allowed(params))
                return reply_deny(w, call, "no-rule");
        if (json_is_true(json_object_get(params, "resolve"))) {
                w->n_looks_further++;
                if (w->leads_nowhere)
                        return reply_deny(w, call, "metadata");
        }
        return ipc_call_reply(call, json_pack("{s:s, s:s, s:s, s:s, s:s}", "verdict", "pass", "reason", "allowed", "rule", "test", "name", NAME,
                                              "protocol", protocol_to_text(protocol_of((uint64_t) json_integer_value(json_object_get(params, "port"))))));
}

static int reply_grant(IpcCall *call) {
        return ipc_call_reply(call, json_pack("{s:s, s:s, s:s, s:s, s:i, s:[ss]}", "verdict", "pass", "reason", "allowed", "rule", "test", "name", NAME,
                                              "grant", 7, "addresses", "127.0.0.9", "127.0.0.1"));
}

static int on_connect(IpcCall *call, json_t *params, void *userdata) {
        uint16_t port = (uint16_t) json_integer_value(json_object_get(params, "port"));
        Observed seen = { .sni = text_of(params, "sni"), .ech = json_is_true(json_object_get(params, "ech")), .host = text_of(params, "host") };
        World *w = userdata;
        const char *reason;

        w->n_connects++;
        w->n_within += json_object_get(params, "within") != NULL;
        w->n_second_paths += json_object_get(params, "second_path") != NULL;
        assert_return_code(protocol_from_text(text_of(params, "protocol"), &seen.protocol), 0);
        reason = is_allowed(params) ? agreement_check(NAME, port, protocol_of(port), &seen) : "no-rule";
        if (reason)
                return reply_deny(w, call, reason);
        if (w->holds) {
                w->held = ipc_call_ref(call);
                return 0;
        }
        return reply_grant(call);
}

static int on_done(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        w->n_done++;
        return ipc_call_reply(call, NULL);
}

static int on_refused(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        (void) snprintf(w->refused, sizeof(w->refused), "%s", text_of(params, "reason"));
        return ipc_call_reply(call, NULL);
}

static const IpcMethod methods[] = {
        { EGRESS_INTERFACE ".Look", PEER_ROOT, on_look },       { EGRESS_INTERFACE ".Connect", PEER_ROOT, on_connect },
        { EGRESS_INTERFACE ".Done", PEER_ROOT, on_done },       { EGRESS_INTERFACE ".Refused", PEER_ROOT, on_refused },
        {},
};

/* ---- secretd, anchord ---- */

static int on_sentinels(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        w->n_sentinels++;
        if (w->secretd_says)
                return ipc_call_refuse(call, w->secretd_says, "not now");
        return ipc_call_reply(call, json_pack("{s:{s:s, s:s}}", "sentinels", "key", KEY, "token", TOKEN));
}

static int on_misuse(IpcCall *call, json_t *params, void *userdata) {
        _cleanup_free_ char *text = json_canonical(params);
        World *w = userdata;

        w->n_misuses++;
        (void) snprintf(w->misuse, sizeof(w->misuse), "%s", text);
        return ipc_call_reply(call, NULL);
}

static const IpcMethod secret_methods[] = { { "io.anchorhold.Secret.Sentinels", PEER_ROOT, on_sentinels }, {} };
static const IpcMethod run_methods[] = { { "io.anchorhold.Run.Misuse", PEER_ROOT, on_misuse }, {} };

static IpcServer *serve_others(World *w, const IpcMethod *list, const char *path) {
        IpcServer *server = NULL;

        assert_return_code(ipc_server_new(&server, w->event, list, w), 0);
        assert_return_code(ipc_server_listen_fd(server, own_world_listen(path)), 0);
        return server;
}

static void serve(World *w) {
        struct sockaddr_un un = { .sun_family = AF_UNIX, .sun_path = EGRESS_SOCKET };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        (void) unlink(un.sun_path);
        assert_return_code(bind(fd, (struct sockaddr *) &un, sizeof(un)), errno);
        assert_return_code(listen(fd, 16), errno);
        assert_return_code(ipc_server_new(&w->server, w->event, methods, w), 0);
        assert_return_code(ipc_server_listen_fd(w->server, fd), 0);
}

/* ---- what the proxy calls when a place is free ---- */

static int listen_at(uint16_t port) {
        struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;

        (void) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        assert_return_code(bind(fd, (struct sockaddr *) &in, sizeof(in)), errno);
        assert_return_code(listen(fd, 64), errno);
        return fd;
}

static void on_revoked(uint64_t grant, void *userdata) {
        connections_cut_grant(userdata, grant);
}

static int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        w->guest = w->origin = -1;
        assert_return_code(sd_event_new(&w->event), 0);
        serve(w);
        for (size_t i = 0; i < ELEMENTSOF(ports); i++)
                w->listeners[i] = listen_at(ports[i]);
        w->proxy.event = w->event;
        w->proxy.transparent.fd = w->proxy.explicit_proxy.fd = -1;
        assert_return_code(ipc_client_new(&w->proxy.egress, w->event, EGRESS_SOCKET), 0);
        ipc_client_set_parallel(w->proxy.egress, 4);
        assert_return_code(refused_log_new(&w->proxy.refused, w->event, EGRESS_SOCKET), 0);
        assert_return_code(grant_ends_new(&w->proxy.ends, w->event, EGRESS_SOCKET), 0);
        assert_return_code(held_grants_new(&w->proxy.held, on_revoked, &w->proxy), 0);
        w->secretd = serve_others(w, secret_methods, SECRET_SOCKET);
        w->anchord = serve_others(w, run_methods, RUN_SOCKET);
        fake_auditd_start(&w->auditd, w->event);
        assert_return_code(ipc_client_new(&w->proxy.secretd, w->event, SECRET_SOCKET), 0);
        assert_return_code(audit_client_new(&w->proxy.audit, w->event), 0);
        assert_return_code(notes_new(&w->proxy.notes, w->event, w->proxy.audit, RUN, RUN_SOCKET), 0);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        connections_cut_all(&w->proxy, "the test ends");
        ipc_client_free(w->proxy.egress);
        grant_ends_free(w->proxy.ends);
        refused_log_free(w->proxy.refused);
        held_grants_free(w->proxy.held);
        ipc_client_free(w->proxy.secretd);
        audit_client_free(w->proxy.audit);
        notes_free(w->proxy.notes);
        sentinels_done(&w->proxy.sentinels);
        connections_done(&w->proxy);
        ipc_server_free(w->secretd);
        ipc_server_free(w->anchord);
        fake_auditd_stop(&w->auditd);
        assert_int_equal(w->proxy.n_connections, 0);
        ipc_server_free(w->server);
        for (size_t i = 0; i < ELEMENTSOF(ports); i++)
                (void) fd_close(w->listeners[i]);
        (void) fd_close(w->guest);
        (void) fd_close(w->origin);
        sd_event_unref(w->event);
        free(w);
        return 0;
}

/* ---- moves ---- */

static void turn(World *w) {
        assert_return_code(sd_event_run(w->event, 10000), 0);
}

/* A connection of the guest's, as the listener would hand it over. port 0: to the explicit proxy. */
static void guest_connects(World *w, uint16_t port) {
        struct sockaddr_in local = { .sin_family = AF_INET, .sin_port = htons(port ?: PROXY_EXPLICIT_PORT) }, peer = { .sin_family = AF_INET }, in = {};
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), near;
        socklen_t n = sizeof(in);

        in = (struct sockaddr_in) { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        assert_return_code(bind(listener, (struct sockaddr *) &in, sizeof(in)), errno);
        assert_return_code(listen(listener, 1), errno);
        assert_return_code(getsockname(listener, (struct sockaddr *) &in, &n), errno);
        (void) fd_close(w->guest);
        w->guest = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_return_code(connect(w->guest, (struct sockaddr *) &in, sizeof(in)), errno);
        near = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        assert_return_code(near, errno);
        (void) fd_close(listener);

        (void) inet_pton(AF_INET, port ? SYNTHETIC : "10.255.255.1", &local.sin_addr);
        connection_begin(&w->proxy, near, port == 0, &local, &peer);
}

static void say(int fd, const void *data, size_t size) {
        assert_int_equal(send(fd, data, size, MSG_NOSIGNAL), size);
}

static void say_text(int fd, const char *text) {
        say(fd, text, strlen(text));
}

static void origin_accepts(World *w, uint16_t port) {
        uint64_t end = time_monotonic() + PATIENCE_USEC;

        w->origin = fd_close(w->origin);
        for (size_t i = 0; i < ELEMENTSOF(ports); i++)
                while (ports[i] == port && w->origin < 0 && time_monotonic() < end) {
                        turn(w);
                        w->origin = accept4(w->listeners[i], NULL, NULL, SOCK_CLOEXEC);
                }
        assert_true(w->origin >= 0);
}

static bool nobody_waits(World *w) {
        for (size_t i = 0; i < ELEMENTSOF(ports); i++)
                if (accept4(w->listeners[i], NULL, NULL, SOCK_CLOEXEC) >= 0)
                        return false;
        return true;
}

static bool nobody_came(World *w) {
        for (int i = 0; i < 20; i++)
                turn(w);
        return nobody_waits(w);
}

/* Reads until there is as much, or the end (n_wanted 0), or a reset: -ECONNRESET. */
static int read_far(World *w, int fd, size_t n_wanted) {
        uint64_t end = time_monotonic() + PATIENCE_USEC;

        w->n_got = 0;
        while (time_monotonic() < end) {
                ssize_t n = recv(fd, w->got + w->n_got, sizeof(w->got) - 1 - w->n_got, MSG_DONTWAIT);

                if (n == 0 || (n < 0 && errno == ECONNRESET)) {
                        w->got[w->n_got] = '\0';
                        return n == 0 ? 0 : -ECONNRESET;
                }
                if (n > 0)
                        w->n_got += (size_t) n;
                w->got[w->n_got] = '\0';
                if (n_wanted > 0 && w->n_got >= n_wanted)
                        return 1;
                if (n < 0)
                        turn(w);
        }
        return -ETIMEDOUT;
}

static void expect_text(World *w, int fd, const char *text) {
        assert_int_equal(read_far(w, fd, strlen(text)), 1);
        assert_string_equal(w->got, text);
}

static void expect_gone(World *w) {
        uint64_t end = time_monotonic() + PATIENCE_USEC;

        while (w->proxy.n_connections > 0 && time_monotonic() < end)
                turn(w);
        assert_int_equal(w->proxy.n_connections, 0);
}

static size_t put(uint8_t *at, const void *data, size_t n) {
        memcpy(at, data, n);
        return n;
}

/* A ClientHello in one record. */
static size_t make_hello(const char *name, uint8_t *ret) {
        size_t n_name = strlen(name), n_extensions = 4 + 5 + n_name, n_body = 2 + 32 + 1 + 4 + 2 + 2 + n_extensions, n = 0;

        n += put(ret + n, (uint8_t[]) { 22, 3, 1, 0, (uint8_t) (n_body + 4), 1, 0, 0, (uint8_t) n_body, 3, 3 }, 11);
        memset(ret + n, 'r', 32);
        n += 32;
        n += put(ret + n, (uint8_t[]) { 0, 0, 2, 0x13, 1, 1, 0, 0, (uint8_t) n_extensions }, 9);
        n += put(ret + n, (uint8_t[]) { 0, 0, 0, (uint8_t) (5 + n_name), 0, (uint8_t) (3 + n_name), 0, 0, (uint8_t) n_name }, 9);
        n += put(ret + n, name, n_name);
        return n;
}

#define GET(path, host) "GET " path " HTTP/1.1\r\nHost: " host "\r\n\r\n"
#define OK(body) "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" body

static const uint8_t denied_alert[] = { 21, 3, 3, 0, 2, 2, 49 };

/* ---- tests ---- */

static void test_raw_origin_speaks_first(void **state) {
        World *w = *state;

        guest_connects(w, RAW_PORT);
        origin_accepts(w, RAW_PORT); /* at the second address; the first refuses */
        say_text(w->origin, "SSH-2.0-x\r\n");
        expect_text(w, w->guest, "SSH-2.0-x\r\n");
        say_text(w->guest, "GET anything\r\n");
        expect_text(w, w->origin, "GET anything\r\n");
        (void) shutdown(w->origin, SHUT_WR);
        assert_int_equal(read_far(w, w->guest, 0), 0);
        say_text(w->guest, "still here");
        expect_text(w, w->origin, "still here");
        (void) shutdown(w->guest, SHUT_WR);
        assert_int_equal(read_far(w, w->origin, 0), 0);
        expect_gone(w);
        UNTIL(w->event, w->n_done > 0);
        for (int i = 0; i < 5; i++)
                turn(w);
        assert_int_equal(w->n_done, 1);
}

/* What ends while egressd is away, it hears of when it is back. */
static void test_ends_without_egressd(void **state) {
        World *w = *state;

        guest_connects(w, RAW_PORT);
        origin_accepts(w, RAW_PORT);
        say_text(w->origin, "SSH-2.0-x\r\n");
        expect_text(w, w->guest, "SSH-2.0-x\r\n");
        w->server = ipc_server_free(w->server);
        connections_cut_all(&w->proxy, "no heartbeat");
        for (int i = 0; i < 5; i++)
                turn(w);
        assert_int_equal(w->n_done, 0);
        serve(w);
        UNTIL(w->event, w->n_done == 1);
}

/* What is granted to a connection that is over by then is given back. */
static void test_granted_too_late(void **state) {
        World *w = *state;

        w->holds = true;
        guest_connects(w, RAW_PORT);
        UNTIL(w->event, w->held);
        connections_cut_all(&w->proxy, "no heartbeat");
        assert_int_equal(w->n_done, 0);
        assert_return_code(reply_grant(w->held), 0);
        w->held = ipc_call_unref(w->held);
        UNTIL(w->event, w->n_done == 1);
}

static void test_tls(void **state) {
        uint8_t hello[512];
        World *w = *state;
        size_t n;

        /* byte by byte, and what is behind it */
        n = make_hello(NAME, hello);
        n += put(hello + n, "\x17\3\3\0\5early", 10);
        guest_connects(w, TLS_PORT);
        for (size_t i = 0; i < n; i++) {
                say(w->guest, hello + i, 1);
                turn(w);
        }
        origin_accepts(w, TLS_PORT);
        assert_int_equal(read_far(w, w->origin, n), 1);
        assert_memory_equal(w->got, hello, n);
        say(w->origin, "\x16\3\3\0\x4e\2\0\0\x4a\3\3--------------------------------", 43);
        assert_int_equal(read_far(w, w->guest, 43), 1);
        say(w->guest, "\x16\3\3\0\1\1", 6); /* nothing is looked at any more */
        assert_int_equal(read_far(w, w->origin, 6), 1);

        n = make_hello("other.example.org", hello);
        guest_connects(w, TLS_PORT);
        say(w->guest, hello, n);
        assert_int_equal(read_far(w, w->guest, 0), 0);
        assert_int_equal(w->n_got, sizeof(denied_alert));
        assert_memory_equal(w->got, denied_alert, sizeof(denied_alert));
        assert_true(nobody_came(w));
}

/* Whoever waits for the server to speak is not let wait for long if the name leads nowhere. */
static void test_silent_guest(void **state) {
        static const uint16_t silent[] = { TLS_PORT, HTTP_PORT };
        World *w = *state;
        uint64_t begin;

        w->leads_nowhere = true;
        for (size_t i = 0; i < ELEMENTSOF(silent); i++) {
                begin = time_monotonic();
                guest_connects(w, silent[i]);
                assert_int_equal(read_far(w, w->guest, 0), 0);
                assert_true(time_monotonic() - begin < 1000000);
                if (silent[i] == TLS_PORT)
                        assert_memory_equal(w->got, denied_alert, sizeof(denied_alert));
                else
                        assert_non_null(strstr(w->got, "Anchorhold-Reason: metadata"));
                w->guest = fd_close(w->guest);
                expect_gone(w);
        }
        assert_int_equal(w->n_looks_further, 2);
        assert_int_equal(w->n_connects, 0);

        /* the control: who has somewhere to go may take longer, and is asked about once; who speaks at once, not at all */
        w->leads_nowhere = false;
        guest_connects(w, HTTP_PORT);
        for (begin = time_monotonic(); time_monotonic() - begin < 700000;)
                assert_return_code(sd_event_run(w->event, 20000), 0);
        assert_int_equal(w->n_looks_further, 3);
        say_text(w->guest, "GET / HTTP/1.1\r\nHost: " NAME "\r\n\r\n");
        origin_accepts(w, HTTP_PORT);
        guest_connects(w, HTTP_PORT);
        say_text(w->guest, "GET / HTTP/1.1\r\nHost: " NAME "\r\n\r\n");
        origin_accepts(w, HTTP_PORT);
        assert_int_equal(w->n_looks_further, 3);
        assert_int_equal(w->n_connects, 2);
}

/* egressd hears of each request whether a field of it names another path, and of the next one nothing of that. */
static void test_second_path(void **state) {
        World *w = *state;

        guest_connects(w, HTTP_PORT);
        say_text(w->guest, "MOVE /a HTTP/1.1\r\nHost: " NAME "\r\nDestination: /b\r\n\r\n");
        origin_accepts(w, HTTP_PORT);
        expect_text(w, w->origin, "MOVE /a HTTP/1.1\r\nHost: " NAME "\r\nDestination: /b\r\n\r\n");
        assert_int_equal(w->n_second_paths, 1);
        say_text(w->guest, "GET /c HTTP/1.1\r\nHost: " NAME "\r\n\r\n");
        expect_text(w, w->origin, "GET /c HTTP/1.1\r\nHost: " NAME "\r\n\r\n");
        assert_int_equal(w->n_connects, 2);
        assert_int_equal(w->n_second_paths, 1);
}

static void test_second_hello(void **state) {
        static const char retry[] = "\x16\3\3\0\x4e\2\0\0\x4a\3\3"
                                    "\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91"
                                    "\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c";
        static const char *const names[] = { NAME, "WWW.example.org", NAME ".", "other.example.org" };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                uint8_t hello[512];
                size_t n;

                guest_connects(w, TLS_PORT);
                n = make_hello(NAME, hello);
                say(w->guest, hello, n);
                origin_accepts(w, TLS_PORT);
                assert_int_equal(read_far(w, w->origin, n), 1);

                n = make_hello(names[i], hello);
                say(w->guest, hello, n);
                for (int k = 0; k < 5; k++)
                        turn(w);
                assert_int_equal(recv(w->origin, w->got, 1, MSG_DONTWAIT), -1); /* not before the answer */
                say(w->origin, retry, sizeof(retry) - 1);
                assert_int_equal(read_far(w, w->guest, sizeof(retry) - 1), 1);
                if (i < 3) {
                        assert_int_equal(read_far(w, w->origin, n), 1);
                        assert_memory_equal(w->got, hello, n);
                        continue;
                }
                assert_int_equal(read_far(w, w->origin, 0), 0);
                assert_int_equal(w->n_got, 0);
                w->origin = fd_close(w->origin);
                assert_int_equal(read_far(w, w->guest, 0), 0);
                assert_memory_equal(w->got, denied_alert, sizeof(denied_alert));
        }
        assert_int_equal(w->n_within, 2); /* the same name needs no question */
        assert_int_equal(w->n_denied, 1);
}

static void test_pipelined_and_half_closed(void **state) {
        World *w = *state;

        guest_connects(w, HTTP_PORT);
        say_text(w->guest, GET("/1", NAME) GET("/2", NAME) GET("/3", NAME "."));
        (void) shutdown(w->guest, SHUT_WR);
        origin_accepts(w, HTTP_PORT);
        assert_int_equal(read_far(w, w->origin, 0), 0);
        assert_string_equal(w->got, GET("/1", NAME) GET("/2", NAME) GET("/3", NAME "."));
        say_text(w->origin, OK("one") OK("two") OK("the"));
        w->origin = fd_close(w->origin);
        assert_int_equal(read_far(w, w->guest, 0), 0);
        assert_string_equal(w->got, OK("one") OK("two") OK("the"));
        expect_gone(w);
        assert_int_equal(w->n_within, 2);
}

static void test_denied_in_its_order(void **state) {
        World *w = *state;

        guest_connects(w, HTTP_PORT);
        say_text(w->guest, GET("/1", NAME) GET("/2", "other.example.org") GET("/3", NAME));
        origin_accepts(w, HTTP_PORT);
        assert_int_equal(read_far(w, w->origin, 0), 0);
        assert_string_equal(w->got, GET("/1", NAME));
        say_text(w->origin, OK("one"));
        w->origin = fd_close(w->origin);
        assert_int_equal(read_far(w, w->guest, 0), 0);
        assert_int_equal(strncmp(w->got, OK("one") "HTTP/1.1 421 ", strlen(OK("one") "HTTP/1.1 421 ")), 0);
        assert_non_null(strstr(w->got, "\"rule\": \"test\""));
}

static void test_refusals(void **state) {
        static const struct {
                uint16_t port; /* 0: explicit proxy */
                const char *said, *answer; /* NULL: a reset */
                const char *refused;
        } cases[] = {
                { HTTP_PORT, GET("/", "other.example.org"), "HTTP/1.1 421 ", "" },
                { HTTP_PORT, "GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 421 ", "" },
                { HTTP_PORT, "SSH-2.0-x\r\n", NULL, "" },
                { HTTP_PORT, "GET http://www.example.org/ HTTP/1.1\r\nHost: www.example.org\r\n\r\n", "HTTP/1.1 403 ", "" },
                { HTTP_PORT, "GET / HTTP/1.1\r\nHost: www.example.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "HTTP/1.1 403 ", "" },
                { TLS_PORT, GET("/", NAME), "HTTP/1.1 403 ", "" },
                { TLS_PORT, "SSH-2.0-x\r\n", NULL, "" },
                { 0, "GET / HTTP/1.1\r\nHost: www.example.org\r\n\r\n", "HTTP/1.1 400 ", "malformed" },
                { 0, "CONNECT www.example.org HTTP/1.1\r\n\r\n", "HTTP/1.1 400 ", "malformed" },
                { 0, "CONNECT other.example.org:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 403 ", "" },
                { 0, "GET http://www.example.org:22/ HTTP/1.1\r\nHost: www.example.org:22\r\n\r\n", "HTTP/1.1 403 ", "protocol" },
                { 0, "GET http://www.example.org/ HTTP/1.1\r\nHost: other.example.org\r\n\r\n", "HTTP/1.1 421 ", "" },
        };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                w->refused[0] = '\0';
                guest_connects(w, cases[i].port);
                say_text(w->guest, cases[i].said);
                assert_int_equal(read_far(w, w->guest, 0), cases[i].answer ? 0 : -ECONNRESET);
                if (cases[i].answer)
                        assert_int_equal(strncmp(w->got, cases[i].answer, strlen(cases[i].answer)), 0);
                assert_true(nobody_came(w));
                assert_string_equal(w->refused, cases[i].refused);
        }
}

static void test_explicit_proxy(void **state) {
        static const char ok[] = "HTTP/1.1 200 Connection established\r\n\r\n";
        World *w = *state;

        guest_connects(w, 0);
        say_text(w->guest, "CONNECT www.example.org:22 HTTP/1.1\r\nProxy-Authorization: Basic eA==\r\n\r\nhello");
        expect_text(w, w->guest, ok);
        origin_accepts(w, RAW_PORT);
        expect_text(w, w->origin, "hello");

        /* one request a connection; what follows it is for nobody */
        guest_connects(w, 0);
        say_text(w->guest, "POST http://www.example.org/a HTTP/1.1\r\nHost: www.example.org\r\nContent-Length: 4\r\nConnection: X\r\nX: 1\r\n\r\nbody"
                           "GET http://other.example.org/b HTTP/1.1\r\nHost: other.example.org\r\n\r\n");
        origin_accepts(w, HTTP_PORT);
        expect_text(w, w->origin, "POST /a HTTP/1.1\r\nHost: www.example.org\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody");
        say_text(w->origin, OK("one"));
        w->origin = fd_close(w->origin);
        assert_int_equal(read_far(w, w->guest, 0), 0);
        assert_string_equal(w->got, OK("one"));
}

/* ---- sentinels ---- */

#define HEAD(line, fields) line " HTTP/1.1\r\nHost: " NAME "\r\n" fields "\r\n"
#define CHUNKED "Transfer-Encoding: chunked\r\n"

/* One that is blocked, and the same without a sentinel, which passes. `x` stands for what is inserted. */
typedef struct Way {
        const char *head, *body, *where;
        bool absolute;
} Way;

static const Way ways[] = {
        { HEAD("GET /?q=" KEY, ""), "", "target" },
        { HEAD("GET /?q=%73k-test-0123456789%61bcdefABCDEFxyz", ""), "", "target" },
        { HEAD("GET /?q=SK-TEST-0123456789ABCDEFabcdefXYZ", ""), "", "target" },
        { HEAD("GET /?q=" TOKEN, ""), "", "target" },
        { HEAD("GET /", "X-Key: " KEY "\r\n"), "", "X-Key" },
        { HEAD("GET /", "Authorization: Bearer " TOKEN "\r\n"), "", "Authorization" },
        { HEAD("GET /", "Authorization: Basic bWU6c2stdGVzdC0wMTIzNDU2Nzg5YWJjZGVmQUJDREVGeHl6\r\n"), "", "Authorization" },
        { HEAD("GET /", "Authorization: Basic U0stVEVTVC0wMTIzNDU2Nzg5QUJDREVGYWJjZGVmWFlaOg==\r\n"), "", "Authorization" }, /* in capitals */
        { HEAD("GET /", "Cookie: a=b; c=c2stdGVzdC0wMTIzNDU2Nzg5YWJjZGVmQUJDREVGeHl6\r\n"), "", "Cookie" },
        { HEAD("GET /", "X-" KEY ": 1\r\n"), "", "X-" KEY },
        { HEAD("POST /", "Content-Length: 38\r\n"), "note=" KEY, "body" },
        { HEAD("POST /", "Content-Length: 9999\r\n"), "{\"a\":\"" KEY, "body" }, /* there would be more */
        { HEAD("POST /", "Content-Length: 9999\r\n"), "{\"a\":\"\\u0073k-test-0123456789abcdefABCDEFxyz", "body" },
        { HEAD("POST /", "Content-Length: 60\r\n"), "a=c2stdGVzdC0wMTIzNDU2Nzg5YWJjZGVmQUJDREVGeHl6            ", "body" },
        { HEAD("POST /", CHUNKED), "7\r\nsk-test\r\n1a;x=y\r\n-0123456789abcdefABCDEFxyz\r\n0\r\n\r\n", "body" },
        { HEAD("POST /", CHUNKED), "1;" KEY "\r\nx\r\n0\r\n\r\n", "body" },
        { HEAD("POST /", CHUNKED), "1\r\nx\r\n0\r\nX-Trailer: " TOKEN "\r\n\r\n", "body" },
        { "GET http://" NAME "/?q=" KEY " HTTP/1.1\r\nHost: " NAME "\r\n\r\n", "", "target", true },
        { "POST http://" NAME "/ HTTP/1.1\r\nHost: " NAME "\r\nContent-Length: 33\r\n\r\n", KEY, "body", true },
};

static const Way ways_that_pass[] = {
        { HEAD("GET /?q=sk-test-0123456789abcdefABCDEFxy_", ""), "", NULL },
        { HEAD("GET /", "Authorization: Basic bWU6c2stdGVzdA==\r\n"), "", NULL },
        { HEAD("POST /", "Content-Length: 38\r\n"), "note=sk-test-0123456789abcdefABCDEFxy_", NULL },
        { HEAD("POST /", CHUNKED), "7\r\nsk-test\r\n1a;x=y\r\n-0123456789abcdefABCDEFxy_\r\n0\r\nX-Trailer: 1\r\n\r\n", NULL },
};

static bool has_sentinel(const World *w) {
        return strcasestr(w->got, KEY) || strcasestr(w->got, TOKEN) || strstr(w->got, "bcdefABCDEFxyz") || strstr(w->got, "QUJDREVGeHl6");
}

static void expect_record(World *w, const char *credential, const char *where) {
        _cleanup_free_ char *wanted = NULL;

        UNTIL(w->event, w->n_misuses == 1);
        wanted = text_format("{\"credential\":\"%s\",\"name\":\"" NAME "\",\"where\":\"%s\"}", credential, where);
        assert_string_equal(w->misuse, wanted);
        UNTIL(w->event, w->auditd.records && strstr(w->auditd.records, "\"event\":\"credential.misuse\""));
        assert_non_null(strstr(w->auditd.records, "\"reason\":\"misuse\""));
}

/* Sent whole, and byte by byte; as the first request, and behind one that was served. Each has a proxy of its own, since alike records are counted. */
static void test_sentinels_are_blocked(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(ways); i++)
                for (unsigned how = 0; how < (ways[i].absolute ? 2 : 4); how++) {
                        _cleanup_free_ char *all = text_format("%s%s", ways[i].head, ways[i].body);
                        void *fresh = NULL;
                        World *w;

                        (void) set_up(&fresh);
                        w = fresh;
                        guest_connects(w, ways[i].absolute ? 0 : HTTP_PORT);
                        if (how & 2) {
                                say_text(w->guest, GET("/first", NAME));
                                origin_accepts(w, HTTP_PORT);
                                expect_text(w, w->origin, GET("/first", NAME));
                                say_text(w->origin, OK("one"));
                                expect_text(w, w->guest, OK("one"));
                        }
                        for (size_t k = 0; k < strlen(all); k += how & 1 ? 1 : strlen(all)) {
                                (void) send(w->guest, all + k, how & 1 ? 1 : strlen(all), MSG_NOSIGNAL); /* it may be over */
                                assert_return_code(sd_event_run(w->event, 0), 0);
                        }
                        if (!(how & 2) && *ways[i].body)
                                origin_accepts(w, HTTP_PORT);
                        if (w->origin >= 0 && !*ways[i].body) { /* the last word comes behind the origin's */
                                assert_int_equal(read_far(w, w->origin, 0), 0);
                                assert_int_equal(w->n_got, 0);
                                w->origin = fd_close(w->origin);
                        }
                        assert_int_equal(read_far(w, w->guest, 0), 0);
                        assert_int_equal(strncmp(w->got, "HTTP/1.1 403 ", 13), 0);
                        assert_non_null(strstr(w->got, "Anchorhold-Reason: credential-misuse\r\nAnchorhold-Rule: default\r\n"));
                        expect_record(w, strstr(all, TOKEN) ? "token" : "key", ways[i].where);
                        assert_int_equal(w->n_sentinels, 1);
                        assert_true(nobody_waits(w));
                        if (*ways[i].body) { /* not an end that could be taken for the body's */
                                w->guest = fd_close(w->guest);
                                assert_int_equal(read_far(w, w->origin, 0), -ECONNRESET);
                                assert_false(has_sentinel(w));
                        }
                        (void) tear_down(&fresh);
                }
        (void) state;
}

/* The same without them: on one connection, one after the other. */
static void test_without_sentinels(void **state) {
        World *w = *state;

        guest_connects(w, HTTP_PORT);
        for (size_t i = 0; i < ELEMENTSOF(ways_that_pass); i++) {
                _cleanup_free_ char *all = text_format("%s%s", ways_that_pass[i].head, ways_that_pass[i].body);

                for (size_t k = 0; k < strlen(all); k++) {
                        say(w->guest, all + k, 1);
                        turn(w);
                }
                if (i == 0)
                        origin_accepts(w, HTTP_PORT);
                expect_text(w, w->origin, all);
                say_text(w->origin, OK("one"));
                expect_text(w, w->guest, OK("one"));
        }
        assert_int_equal(w->n_sentinels, 1); /* they stay what they are */
        assert_int_equal(w->n_misuses, 0);
        assert_null(w->auditd.records);
}

/* What was let on before stays; what is behind the sentinel never leaves. */
static void test_sentinel_deep_in_a_body(void **state) {
        static const char head[] = HEAD("PUT /", "Content-Length: 1000000\r\n");
        char piece[1000];
        World *w = *state;
        size_t n = sizeof(head) - 1;

        memset(piece, 'a', sizeof(piece));
        guest_connects(w, HTTP_PORT);
        say_text(w->guest, head);
        origin_accepts(w, HTTP_PORT);
        expect_text(w, w->origin, head);
        for (unsigned i = 0; i < 300; i++) {
                say(w->guest, piece, sizeof(piece));
                assert_int_equal(read_far(w, w->origin, sizeof(piece)), 1);
                n += w->n_got;
        }
        assert_int_equal(n, sizeof(head) - 1 + 300 * sizeof(piece));
        say_text(w->guest, KEY);
        (void) send(w->guest, piece, sizeof(piece), MSG_NOSIGNAL);
        assert_int_equal(read_far(w, w->guest, 0), 0);
        assert_int_equal(strncmp(w->got, "HTTP/1.1 403 ", 13), 0);
        w->guest = fd_close(w->guest);
        assert_int_equal(read_far(w, w->origin, 0), -ECONNRESET);
        assert_int_equal(w->n_got, 0);
}

/* Without an answer of secretd's nothing is read in cleartext; TLS is not its affair. A run that it does not know has none. */
static void test_which_sentinels(void **state) {
        World *w = *state;
        uint8_t hello[512];
        size_t n = make_hello(NAME, hello);

        w->secretd_says = "Unavailable";
        guest_connects(w, HTTP_PORT);
        say_text(w->guest, GET("/", NAME));
        assert_int_equal(read_far(w, w->guest, 0), 0);
        assert_int_equal(strncmp(w->got, "HTTP/1.1 503 ", 13), 0);
        assert_true(nobody_came(w));
        guest_connects(w, TLS_PORT);
        say(w->guest, hello, n);
        origin_accepts(w, TLS_PORT);
        assert_int_equal(w->n_sentinels, 1);

        w->secretd_says = "NoSuchRun";
        guest_connects(w, HTTP_PORT);
        say_text(w->guest, GET("/" KEY, NAME));
        origin_accepts(w, HTTP_PORT);
        expect_text(w, w->origin, GET("/" KEY, NAME));
        assert_int_equal(w->n_sentinels, 2);
}

/* In whatever state a connection is: cut by its grant, by all, or by a guest that goes. */
static void test_cut(void **state) {
        World *w = *state;

        guest_connects(w, RAW_PORT);
        origin_accepts(w, RAW_PORT);
        connections_cut_grant(&w->proxy, 8);
        assert_int_equal(w->proxy.n_connections, 1);
        connections_cut_grant(&w->proxy, 7);
        assert_int_equal(w->proxy.n_connections, 0);
        assert_int_equal(read_far(w, w->guest, 0), -ECONNRESET);

        for (unsigned turns = 0; turns < 12; turns++)
                for (size_t i = 0; i < 4; i++) {
                        const uint16_t to[] = { TLS_PORT, HTTP_PORT, RAW_PORT, 0 };
                        uint8_t hello[512];

                        guest_connects(w, to[i]);
                        if (to[i] == TLS_PORT)
                                say(w->guest, hello, make_hello(NAME, hello));
                        else
                                say_text(w->guest, to[i] ? GET("/", NAME) GET("/2", "other.example.org") : "CONNECT www.example.org:443 HTTP/1.1\r\n\r\n");
                        for (unsigned k = 0; k < turns; k++)
                                turn(w);
                        if (turns % 2) {
                                w->guest = fd_close(w->guest);
                                turn(w);
                        }
                        connections_cut_all(&w->proxy, "test");
                        assert_int_equal(w->proxy.n_connections, 0);
                }
}

static void test_nobody_decides(void **state) {
        World *w = *state;

        w->server = ipc_server_free(w->server);
        guest_connects(w, HTTP_PORT);
        say_text(w->guest, GET("/", NAME));
        assert_int_equal(read_far(w, w->guest, 0), 0);
        assert_int_equal(strncmp(w->got, "HTTP/1.1 503 ", 13), 0);
        assert_true(nobody_came(w));
}

/* ---- a world of its own ---- */

static int enter_own_world(void **state) {
        struct ifreq lo = { .ifr_name = "lo" };
        int fd;

        assert_return_code(unshare(CLONE_NEWNS | CLONE_NEWNET), errno);
        /* in a chroot that is no mount point, whoever made it has seen to that */
        (void) mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
        assert_return_code(mount("tmpfs", "/run", "tmpfs", 0, NULL), errno);
        assert_return_code(mkdir("/run/anchorhold", 0755), errno);
        fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        lo.ifr_flags = IFF_UP;
        assert_return_code(ioctl(fd, SIOCSIFFLAGS, &lo), errno);
        (void) fd_close(fd);
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_raw_origin_speaks_first, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_ends_without_egressd, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_granted_too_late, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_tls, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_silent_guest, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_second_path, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_second_hello, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_pipelined_and_half_closed, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_denied_in_its_order, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_explicit_proxy, set_up, tear_down),
                cmocka_unit_test(test_sentinels_are_blocked),
                cmocka_unit_test_setup_teardown(test_without_sentinels, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_sentinel_deep_in_a_body, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_which_sentinels, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_cut, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_nobody_decides, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
