/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The fence in the running kernel: kinds of sockets, their options, bind(), Unix sockets without a path. */

#include "fence-world.h"

#include <sys/un.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

typedef struct Kind {
        int family, type, protocol;
} Kind;

static int deed_socket(void *userdata) {
        Kind *k = userdata;
        _cleanup_fd_ int fd = socket(k->family, k->type | SOCK_CLOEXEC, k->protocol);

        return fd < 0 ? errno : 0;
}

static int deed_socket_elsewhere(void *userdata) {
        if (unshare(CLONE_NEWNET) < 0)
                return 255;
        return deed_socket(userdata);
}

static void test_kinds_of_sockets(void **state) {
        Kind refused[] = {
                { AF_INET, SOCK_RAW, IPPROTO_RAW },    { AF_INET, SOCK_RAW, IPPROTO_ICMP },
                { AF_INET6, SOCK_RAW, IPPROTO_ICMPV6 }, { AF_INET, SOCK_DGRAM, IPPROTO_ICMP },
                { AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE }, { AF_INET, SOCK_STREAM, IPPROTO_MPTCP },
        }, tcp = { AF_INET, SOCK_STREAM, 0 }, local = { AF_UNIX, SOCK_STREAM, 0 };

        for (size_t i = 0; i < ELEMENTSOF(refused); i++) {
                int r = in_cgroup(child_a, deed_socket, &refused[i]);

                if (deed_socket(&refused[i]) == 0)
                        assert_int_equal(r, EPERM);
                else
                        assert_int_not_equal(r, 0); /* this kernel has no such socket, or not for us */
        }
        assert_int_equal(in_cgroup(child_a, deed_socket, &tcp), 0);
        assert_int_equal(in_cgroup(child_a, deed_socket, &local), 0);
        assert_int_equal(in_cgroup(child_a, deed_socket_elsewhere, &tcp), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_socket_elsewhere, &local), 0);
}

/* A loose source route over the granted address. */
static int deed_source_route(void *userdata) {
        Target *t = userdata;
        uint8_t options[] = { 131, 7, 4, 203, 0, 113, 1, 1 };
        struct sockaddr_storage ss;
        socklen_t len = target_address(t, &ss);
        struct timeval tv = { .tv_usec = 500000 };
        _cleanup_fd_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (setsockopt(fd, IPPROTO_IP, IP_OPTIONS, options, sizeof(options)) < 0)
                return 255;
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
        return connect(fd, (struct sockaddr *) &ss, len) < 0 ? errno : 0;
}

static void test_source_route(void **state) {
        Target t = { "203.0.113.1", 0, SOCK_STREAM };
        _cleanup_fd_ int server = serve(t.address, &t.port, SOCK_STREAM);

        (void) grant(child_a, &t, LONG);
        assert_int_not_equal(in_cgroup(child_a, deed_source_route, &t), 0);
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), 0);
}

typedef struct UnixTarget {
        struct sockaddr_un address;
        socklen_t len;
        int type;
} UnixTarget;

static int deed_unix(void *userdata) {
        UnixTarget *t = userdata;
        _cleanup_fd_ int fd = socket(AF_UNIX, t->type | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return errno;
        return connect(fd, (struct sockaddr *) &t->address, t->len) < 0 ? errno : 0;
}

static int deed_unix_send(void *userdata) {
        UnixTarget *t = userdata;
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return errno;
        return sendto(fd, "x", 1, 0, (struct sockaddr *) &t->address, t->len) < 0 ? errno : 0;
}

static void test_abstract_sockets(void **state) {
        static const int types[] = { SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM };

        for (size_t i = 0; i < ELEMENTSOF(types); i++) {
                UnixTarget named = { .address.sun_family = AF_UNIX, .type = types[i] }, abstract = named;
                _cleanup_fd_ int at_path = -1, nowhere = -1;

                named.len = (socklen_t) sizeof(named.address);
                snprintf(named.address.sun_path, sizeof(named.address.sun_path), "/run/test-%zu", i);
                abstract.len = (socklen_t) (offsetof(struct sockaddr_un, sun_path) + 6);
                memcpy(abstract.address.sun_path, "\0fence", 6);

                must(at_path = socket(AF_UNIX, types[i] | SOCK_CLOEXEC, 0));
                must(nowhere = socket(AF_UNIX, types[i] | SOCK_CLOEXEC, 0));
                must(bind(at_path, (struct sockaddr *) &named.address, named.len));
                must(bind(nowhere, (struct sockaddr *) &abstract.address, abstract.len));
                if (types[i] != SOCK_DGRAM) {
                        must(listen(at_path, 4));
                        must(listen(nowhere, 4));
                }

                assert_int_equal(in_cgroup(child_a, deed_unix, &abstract), EPERM);
                assert_int_equal(in_cgroup(child_a, deed_unix, &named), 0);
                assert_int_equal(deed_unix(&abstract), 0); /* outside: a control */
                if (types[i] != SOCK_DGRAM)
                        continue;
                assert_int_equal(in_cgroup(child_a, deed_unix_send, &abstract), EPERM);
                assert_int_equal(in_cgroup(child_a, deed_unix_send, &named), 0);
                assert_int_equal(deed_unix_send(&abstract), 0);
        }
}

static void test_bind(void **state) {
        static const char *const addresses[] = { "203.0.113.1", "0.0.0.0", "127.0.0.1", "2001:db8::1", "::" };

        for (size_t i = 0; i < ELEMENTSOF(addresses); i++) {
                for (int type = SOCK_STREAM; type <= SOCK_DGRAM; type++) {
                        Target t = { addresses[i], 0, type }, privileged = { addresses[i], 53, type };

                        assert_int_equal(in_cgroup(child_a, deed_bind, &t), EPERM);
                        assert_int_equal(in_cgroup(child_a, deed_bind, &privileged), EPERM);
                        assert_int_equal(deed_bind(&t), 0); /* outside: a control */
                        assert_int_equal(deed_bind(&privileged), 0);
                }
        }
}

/* listen() without bind() takes a port of the kernel's choice and asks no bind hook. */
typedef struct Ear {
        int tell[2];
} Ear;

static int deed_listen(void *userdata) {
        struct sockaddr_in sin = {};
        socklen_t len = sizeof(sin);
        Ear *e = userdata;
        int fd;
        char c;

        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || listen(fd, 4) < 0 || getsockname(fd, (struct sockaddr *) &sin, &len) < 0)
                return 1;
        if (write(e->tell[1], &sin.sin_port, sizeof(sin.sin_port)) != sizeof(sin.sin_port))
                return 1;
        return (int) read(e->tell[1], &c, 1);
}

static int dial_ear(bool fenced) {
        Target t = { "203.0.113.1", 0, SOCK_STREAM };
        uint16_t port = 0;
        pid_t pid;
        int r;
        Ear e;

        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, e.tell));
        must(pid = fork());
        if (pid == 0) {
                close(e.tell[0]); /* as in line_open() */
                _exit(fenced ? in_cgroup(child_a, deed_listen, &e) : deed_listen(&e));
        }
        close(e.tell[1]);
        assert_int_equal(read(e.tell[0], &port, sizeof(port)), sizeof(port));
        t.port = ntohs(port);
        r = deed_connect(&t);
        close(e.tell[0]);
        must(waitpid(pid, NULL, 0));
        return r;
}

static void test_listen_unbound(void **state) {
        assert_int_not_equal(dial_ear(true), 0);
        assert_int_equal(dial_ear(false), 0); /* a control */
}

typedef struct Option {
        int family, level, name;
} Option;

static int deed_option(void *userdata) {
        uint8_t value[24] = { 1 };
        Option *o = userdata;
        _cleanup_fd_ int fd = socket(o->family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return 255;
        if (o->level == IPPROTO_IP && o->name == IP_OPTIONS)
                memcpy(value, (const uint8_t[]) { 131, 7, 4, 203, 0, 113, 1, 1 }, 8);
        if (o->name == SO_BINDTODEVICE && o->level == SOL_SOCKET)
                strcpy((char *) value, "lo");
        return setsockopt(fd, o->level, o->name, value, o->level == IPPROTO_IP && o->name == IP_OPTIONS ? 8 : 16) < 0 ? errno : 0;
}

static void test_options(void **state) {
        Option refused[] = {
                { AF_INET, IPPROTO_IP, IP_OPTIONS },       { AF_INET, IPPROTO_IP, IP_TRANSPARENT },
                { AF_INET, IPPROTO_IP, IP_FREEBIND },      { AF_INET, IPPROTO_IP, IP_TTL },
                { AF_INET, SOL_SOCKET, SO_MARK },          { AF_INET, SOL_SOCKET, SO_BINDTODEVICE },
                { AF_INET, SOL_SOCKET, SO_BINDTOIFINDEX }, { AF_INET, SOL_SOCKET, SO_PRIORITY },
                { AF_INET, SOL_SOCKET, SO_REUSEPORT },     { AF_INET6, IPPROTO_IPV6, IPV6_TRANSPARENT },
                { AF_INET6, IPPROTO_IPV6, IPV6_V6ONLY },   { AF_INET6, SOL_SOCKET, SO_MARK },
        }, allowed[] = {
                { AF_INET, IPPROTO_TCP, 1 /* TCP_NODELAY */ }, { AF_INET6, IPPROTO_TCP, 1 },
                { AF_INET, SOL_SOCKET, SO_KEEPALIVE },         { AF_INET, SOL_SOCKET, SO_RCVTIMEO },
                { AF_UNIX, SOL_SOCKET, SO_PASSCRED },
        };

        for (size_t i = 0; i < ELEMENTSOF(refused); i++) {
                assert_int_equal(in_cgroup(child_a, deed_option, &refused[i]), EPERM);
                assert_int_equal(deed_option(&refused[i]), 0); /* outside: a control */
        }
        for (size_t i = 0; i < ELEMENTSOF(allowed); i++)
                assert_int_equal(in_cgroup(child_a, deed_option, &allowed[i]), 0);

        /* not even a routing header: the kernel knows none of this type, the fence is asked first */
        Option header = { AF_INET6, IPPROTO_IPV6, IPV6_RTHDR };
        assert_int_equal(in_cgroup(child_a, deed_option, &header), EPERM);
        assert_int_not_equal(deed_option(&header), EPERM);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                T(test_kinds_of_sockets),
                T(test_source_route),
                T(test_abstract_sockets),
                T(test_bind),
                T(test_listen_unbound),
                T(test_options),
        };

        return RUN(tests);
}
