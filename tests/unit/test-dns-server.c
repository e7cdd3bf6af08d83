/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The DNS server towards a guest that asks properly, badly, or far too much; egressd is played by the test. */

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

#include <cmocka.h>

#include "ipc/ipc.h"
#include "own-world.h"
#include "proxy/dns-server.h"
#include "util/json.h"

#define EGRESS "/run/egress.sock"

enum { TYPE_A = 1, TYPE_TXT = 16, TYPE_AAAA = 28, NOERROR = 0, SERVFAIL = 2, REFUSED = 5 };

typedef struct World {
        sd_event *event;
        IpcServer *egress;
        IpcClient *client;
        DnsServer *server;
        struct sockaddr_in udp, tcp;
        int guest;               /* owned; UDP */
        bool hold;               /* egressd answers nothing */
        IpcCall *held[300];
        unsigned n_held, n_asked;
        char asked[300];         /* the last name and type */
        RefusedLog *refused;
        uint64_t n_told, n_told_refused, n_malformed, n_too_large;
} World;

static int on_resolve(IpcCall *call, json_t *params, void *userdata) {
        const char *name = json_string_value(json_object_get(params, "name"));
        World *w = userdata;

        w->n_asked++;
        (void) snprintf(w->asked, sizeof(w->asked), "%s %s", name, json_string_value(json_object_get(params, "qtype")));
        if (w->hold) {
                w->held[w->n_held++] = ipc_call_ref(call);
                return 0;
        }
        if (strncmp(name, "odd.", 4) == 0) /* an egressd gone mad opens nothing */
                return ipc_call_reply(call, json_pack("{s:s, s:i, s:s}", "verdict", "allow", "ttl", 5, "address", "not an address"));
        if (strncmp(name, "fail.", 5) == 0)
                return ipc_call_refuse(call, "Unavailable", "no");
        if (strncmp(name, "good.", 5) == 0)
                return ipc_call_reply(call, json_pack("{s:s, s:i, s:s, s:s}", "verdict", "allow", "ttl", 300, "address", "198.18.0.7", "rule", "r"));
        return ipc_call_reply(call, json_pack("{s:s, s:i, s:s, s:s}", "verdict", "refused", "ttl", 0, "rule", "default", "reason", "no-rule"));
}

static int on_refused(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;
        const char *reason = json_string_value(json_object_get(params, "reason"));
        uint64_t *n = strcmp(reason, "malformed") == 0 ? &w->n_malformed : strcmp(reason, "too-large") == 0 ? &w->n_too_large : &w->n_told;

        assert_true(n != &w->n_told || strcmp(reason, "rate") == 0);
        assert_string_equal(json_string_value(json_object_get(params, "event")), "dns");
        if (w->n_told_refused++ == 0) /* an egressd that is busy with a restart: told again */
                return ipc_call_refuse(call, "Unavailable", "no");
        *n += (uint64_t) json_integer_value(json_object_get(params, "count"));
        return ipc_call_reply(call, NULL);
}

static const IpcMethod methods[] = {
        { "io.anchorhold.Egress.Resolve", PEER_ROOT, on_resolve },
        { "io.anchorhold.Egress.Refused", PEER_ROOT, on_refused },
        {},
};

static int bound(int type, struct sockaddr_in *ret) {
        struct sockaddr_in any = { .sin_family = AF_INET };
        int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
        socklen_t n = sizeof(*ret);

        assert_int_equal(bind(fd, (struct sockaddr *) &any, sizeof(any)), 0);
        assert_int_equal(getsockname(fd, (struct sockaddr *) ret, &n), 0);
        ret->sin_addr.s_addr = htonl(0x7f000035); /* 127.0.0.53: whichever resolver the guest believes in */
        if (type == SOCK_STREAM)
                assert_int_equal(listen(fd, 64), 0);
        return fd;
}

static int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));
        int size = 4 << 20;

        assert_int_equal(sd_event_new(&w->event), 0);
        assert_int_equal(ipc_server_new(&w->egress, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(w->egress, own_world_listen(EGRESS)) >= 0);
        assert_int_equal(ipc_client_new(&w->client, w->event, EGRESS), 0);
        ipc_client_set_parallel(w->client, 64);
        assert_int_equal(refused_log_new(&w->refused, w->event, EGRESS), 0);
        assert_int_equal(dns_server_new(&w->server, w->event, w->client, w->refused), 0);
        assert_int_equal(dns_server_add_udp(w->server, bound(SOCK_DGRAM, &w->udp)), 0);
        assert_int_equal(dns_server_add_tcp(w->server, bound(SOCK_STREAM, &w->tcp)), 0);
        w->guest = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_int_equal(setsockopt(w->guest, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)), 0);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        ipc_client_free(w->client); /* as the proxy does: nobody answers any more */
        dns_server_free(w->server);
        refused_log_free(w->refused);
        while (w->n_held > 0)
                ipc_call_unref(w->held[--w->n_held]);
        ipc_server_free(w->egress);
        (void) close(w->guest);
        sd_event_unref(w->event);
        free(w);
        return 0;
}

/* A query as any resolver library makes it; its size. */
static size_t query(uint8_t *q, uint16_t id, const char *name, uint16_t type) {
        size_t n = 12;

        memset(q, 0, 12);
        q[0] = (uint8_t) (id >> 8);
        q[1] = (uint8_t) id;
        q[2] = 1; /* recursion desired */
        q[5] = 1;
        for (const char *label = name; *label;) {
                size_t k = strcspn(label, ".");

                q[n++] = (uint8_t) k;
                memcpy(q + n, label, k);
                n += k;
                label += k + (label[k] == '.');
        }
        q[n++] = 0;
        q[n++] = (uint8_t) (type >> 8);
        q[n++] = (uint8_t) type;
        q[n++] = 0;
        q[n++] = 1;
        return n;
}

static void send_query(World *w, uint16_t id, const char *name, uint16_t type) {
        uint8_t q[512];
        size_t n = query(q, id, name, type);

        assert_int_equal(sendto(w->guest, q, n, 0, (struct sockaddr *) &w->udp, sizeof(w->udp)), n);
}

/* One answer, if there is one: its size, from where it must come. */
static ssize_t take(World *w, uint8_t answer[static 512]) {
        struct sockaddr_in from;
        socklen_t n = sizeof(from);
        ssize_t size = recvfrom(w->guest, answer, 512, 0, (struct sockaddr *) &from, &n);

        if (size >= 0) {
                assert_int_equal(from.sin_addr.s_addr, w->udp.sin_addr.s_addr);
                assert_int_equal(from.sin_port, w->udp.sin_port);
        }
        return size;
}

static void ask(World *w, const char *name, uint16_t type, unsigned rcode, unsigned n_answers) {
        static uint16_t id = 1000;
        uint8_t a[512];
        ssize_t n;

        send_query(w, ++id, name, type);
        UNTIL(w->event, (n = take(w, a)) >= 0);
        assert_true(n >= 12);
        assert_int_equal(a[0] << 8 | a[1], id);
        assert_true(a[2] & 0x80);
        assert_int_equal(a[3] & 15, rcode);
        assert_int_equal(a[6] << 8 | a[7], n_answers);
        if (n_answers > 0)
                assert_non_null(memmem(a, (size_t) n, "\xc6\x12\x00\x07", 4));
}

static void test_udp(void **state) {
        World *w = *state;

        ask(w, "good.example.org", TYPE_A, NOERROR, 1);
        assert_string_equal(w->asked, "good.example.org A");
        ask(w, "GOOD.Example.ORG", TYPE_A, NOERROR, 1);
        assert_string_equal(w->asked, "good.example.org A");
        ask(w, "good.example.org", TYPE_AAAA, NOERROR, 0); /* no address of the other family, and none is invented */
        ask(w, "evil.example.org", TYPE_A, REFUSED, 0);
        ask(w, "fail.example.org", TYPE_A, SERVFAIL, 0);
        ask(w, "odd.example.org", TYPE_A, REFUSED, 0);
}

static void test_egressd_gone(void **state) {
        World *w = *state;

        w->egress = ipc_server_free(w->egress);
        ask(w, "good.example.org", TYPE_A, SERVFAIL, 0);
        assert_int_equal(unlink(EGRESS), 0);
        ask(w, "good.example.org", TYPE_A, SERVFAIL, 0);
}

static void test_broken(void **state) {
        static const char zeros[5000];
        World *w = *state;
        uint8_t q[512], a[512];
        size_t n;

        n = query(q, 7, "good.example.org", TYPE_A);
        assert_true(sendto(w->guest, q, 5, 0, (struct sockaddr *) &w->udp, sizeof(w->udp)) >= 0);
        assert_true(sendto(w->guest, "", 0, 0, (struct sockaddr *) &w->udp, sizeof(w->udp)) >= 0);
        assert_true(sendto(w->guest, zeros, sizeof(zeros), 0, (struct sockaddr *) &w->udp, sizeof(w->udp)) >= 0);
        q[2] |= 0x80; /* an answer: two servers would talk for ever */
        assert_true(sendto(w->guest, q, n, 0, (struct sockaddr *) &w->udp, sizeof(w->udp)) >= 0);
        run_for(w->event, 20000);
        while (take(w, a) >= 0)
                assert_true((a[3] & 15) != NOERROR);
        assert_int_equal(w->n_asked, 0);
        ask(w, "good.example.org", TYPE_A, NOERROR, 1);

        /* each is in the log */
        UNTIL(w->event, w->n_malformed == 3 && w->n_too_large == 1);
}

/* ---- TCP ---- */

static int dial(World *w) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        assert_true(connect(fd, (struct sockaddr *) &w->tcp, sizeof(w->tcp)) == 0 || errno == EINPROGRESS);
        return fd;
}

static void put(int fd, const void *data, size_t size) {
        assert_int_equal(send(fd, data, size, MSG_NOSIGNAL), size);
}

static void put_query(int fd, uint16_t id, const char *name) {
        uint8_t q[512];
        size_t n = query(q + 2, id, name, TYPE_A);

        q[0] = (uint8_t) (n >> 8);
        q[1] = (uint8_t) n;
        put(fd, q, n + 2);
}

/* Of a whole answer, or -1: closed. */
static int tcp_answer(World *w, int fd, unsigned *ret_rcode) {
        uint8_t a[514];
        size_t n = 0;

        for (;;) {
                ssize_t k = -1;

                UNTIL(w->event, (k = recv(fd, a + n, n < 2 ? 2 - n : 2 + (size_t) (a[0] << 8 | a[1]) - n, 0)) >= 0 || errno != EAGAIN);
                if (k <= 0)
                        return -1;
                n += (size_t) k;
                if (n >= 2 && n == 2 + (size_t) (a[0] << 8 | a[1]))
                        break;
        }
        *ret_rcode = a[5] & 15;
        return a[2] << 8 | a[3];
}

static void test_tcp(void **state) {
        World *w = *state;
        _cleanup_fd_ int fd = dial(w);
        uint8_t q[512];
        unsigned rcode;
        size_t n;

        /* many at once, answered in order */
        put_query(fd, 1, "good.example.org");
        put_query(fd, 2, "evil.example.org");
        put_query(fd, 3, "good.example.org");
        assert_int_equal(tcp_answer(w, fd, &rcode), 1);
        assert_int_equal(rcode, NOERROR);
        assert_int_equal(tcp_answer(w, fd, &rcode), 2);
        assert_int_equal(rcode, REFUSED);
        assert_int_equal(tcp_answer(w, fd, &rcode), 3);

        /* in pieces */
        n = query(q + 2, 4, "good.example.org", TYPE_A);
        q[0] = 0;
        q[1] = (uint8_t) n;
        for (size_t i = 0; i < n + 2; i++) {
                put(fd, q + i, 1);
                (void) sd_event_run(w->event, 0);
        }
        assert_int_equal(tcp_answer(w, fd, &rcode), 4);

        /* a length that no question has */
        put(fd, "\xff\xff", 2);
        assert_int_equal(tcp_answer(w, fd, &rcode), -1);
}

static void test_tcp_leaves(void **state) {
        World *w = *state;
        int fd = dial(w);

        w->hold = true;
        put_query(fd, 1, "good.example.org");
        UNTIL(w->event, w->n_held == 1);
        (void) close(fd);
        run_for(w->event, 10000);
        assert_int_equal(ipc_call_reply(w->held[0], json_pack("{s:s, s:i, s:s, s:s}", "verdict", "allow", "ttl", 3, "address", "198.18.0.7", "rule", "r")), 0);
        run_for(w->event, 10000);
        w->hold = false;
        ask(w, "good.example.org", TYPE_A, NOERROR, 1);
}

/* More connections than there is room for wait; one that ends makes room. */
static void test_tcp_limit(void **state) {
        World *w = *state;
        int fds[DNS_STREAMS_MAX + 1];
        unsigned rcode;
        uint8_t byte;

        for (unsigned i = 0; i <= DNS_STREAMS_MAX; i++) {
                fds[i] = dial(w);
                put_query(fds[i], (uint16_t) i, "good.example.org");
        }
        for (unsigned i = 0; i < DNS_STREAMS_MAX; i++)
                assert_int_equal(tcp_answer(w, fds[i], &rcode), i);
        run_for(w->event, 20000);
        assert_int_equal(recv(fds[DNS_STREAMS_MAX], &byte, 1, 0), -1);
        (void) close(fds[0]);
        assert_int_equal(tcp_answer(w, fds[DNS_STREAMS_MAX], &rcode), DNS_STREAMS_MAX);
        for (unsigned i = 1; i <= DNS_STREAMS_MAX; i++)
                (void) close(fds[i]);
}

/* ---- too much ---- */

/* A flood is answered, costs egressd a bounded number of questions, and is told as a number. */
static void test_flood(void **state) {
        World *w = *state;
        unsigned n_answers = 0, n_refused = 0, i;
        uint64_t start = time_monotonic();
        uint8_t a[512];

        /* a busy machine may need more of them until it is faster than DNS_RATE */
        for (i = 0; i < 2400 || (n_refused == 0 && i < 24000); i++) {
                send_query(w, (uint16_t) i, "good.example.org", TYPE_A);
                /* as fast as they are answered: what the kernel drops is not what is tested */
                while (n_answers < i + 1 && i % 32 == 31) {
                        UNTIL(w->event, take(w, a) >= 0);
                        n_answers++;
                        n_refused += (a[3] & 15) != NOERROR;
                }
        }
        assert_true(n_refused > 0);
        assert_int_equal(w->n_asked, i - n_refused);
        assert_true(w->n_asked <= 2 * DNS_RATE + (time_monotonic() - start) * DNS_RATE / 1000000 + 1);
        UNTIL(w->event, w->n_told == n_refused);
}

/* Of what is answered here, broken, of another kind or another version, there is no more than of questions; and all of it is told. */
static void test_flood_of_broken(void **state) {
        World *w = *state;
        unsigned n_answers = 0, n_rate = 0, i;
        uint8_t q[512], a[512];
        size_t n;

        for (i = 0; i < 2400 || (n_rate == 0 && i < 24000); i++) {
                n = query(q, (uint16_t) i, "good.example.org", TYPE_A);
                if (i % 2 == 0)
                        q[2] |= 5 << 3; /* an update: not implemented */
                else
                        q[5] = 2; /* two questions, of which there is one */
                assert_int_equal(sendto(w->guest, q, n, 0, (struct sockaddr *) &w->udp, sizeof(w->udp)), n);
                while (n_answers < i + 1 && i % 32 == 31) {
                        UNTIL(w->event, take(w, a) >= 0);
                        n_answers++;
                        n_rate += (a[3] & 15) == REFUSED;
                }
        }
        while (n_answers < i) {
                UNTIL(w->event, take(w, a) >= 0);
                n_answers++;
                n_rate += (a[3] & 15) == REFUSED;
        }
        assert_int_equal(w->n_asked, 0);
        UNTIL(w->event, w->n_told + w->n_malformed == i);
        assert_true(w->n_told > 0 && w->n_malformed >= 2 * DNS_RATE);
}

/* Questions that wait are bounded too. */
static void test_pending(void **state) {
        World *w = *state;
        unsigned n_refused = 0;
        uint8_t a[512];

        w->hold = true;
        for (unsigned i = 0; i < DNS_PENDING_MAX + 10; i++) {
                send_query(w, (uint16_t) i, "good.example.org", TYPE_A);
                (void) sd_event_run(w->event, 0);
        }
        run_for(w->event, 30000);
        while (take(w, a) >= 0) {
                assert_int_equal(a[3] & 15, SERVFAIL);
                n_refused++;
        }
        assert_int_equal(n_refused, 10);
}

static int enter_world(void **state) {
        struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP };
        int fd;

        own_world_enter(CLONE_NEWNET);
        fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &lo), 0);
        return close(fd);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_udp, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_egressd_gone, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_broken, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_tcp, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_tcp_leaves, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_tcp_limit, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_flood, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_flood_of_broken, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_pending, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
