/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "fence-api.bpf.h"
#include "net/fence.h"
#include "util/log.h"

typedef struct Attempt {
        const char *what;
        int family, type;
} Attempt;

static const Attempt attempts[] = {
        { "TCP connect over IPv4 (program connect4)",  AF_INET,  SOCK_STREAM },
        { "TCP connect over IPv6 (program connect6)",  AF_INET6, SOCK_STREAM },
        { "UDP datagram over IPv4 (program sendmsg4)", AF_INET,  SOCK_DGRAM },
        { "UDP datagram over IPv6 (program sendmsg6)", AF_INET6, SOCK_DGRAM },
        { "connect to an abstract socket (program connect_unix)",  AF_UNIX, SOCK_STREAM },
        { "datagram to an abstract socket (program sendmsg_unix)", AF_UNIX, SOCK_DGRAM },
};

static socklen_t nowhere(int family, struct sockaddr_storage *ret) {
        *ret = (struct sockaddr_storage) { .ss_family = (sa_family_t) family };

        if (family == AF_UNIX) {
                static const char name[] = "\0" FENCE_TEST_NAME;

                memcpy(((struct sockaddr_un *) ret)->sun_path, name, sizeof(name) - 1);
                return (socklen_t) (offsetof(struct sockaddr_un, sun_path) + sizeof(name) - 1);
        }

        if (family == AF_INET) {
                struct sockaddr_in *sin = (struct sockaddr_in *) ret;

                sin->sin_port = htons(FENCE_TEST_PORT);
                sin->sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1 */
                return sizeof(*sin);
        }

        struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *) ret;

        sin6->sin6_port = htons(FENCE_TEST_PORT);
        sin6->sin6_addr.s6_addr[0] = 0x20; /* 2001:db8::1 */
        sin6->sin6_addr.s6_addr[1] = 0x01;
        sin6->sin6_addr.s6_addr[2] = 0x0d;
        sin6->sin6_addr.s6_addr[3] = 0xb8;
        sin6->sin6_addr.s6_addr[15] = 1;
        return sizeof(*sin6);
}

static int attempt_is_refused(const Attempt *a) {
        struct sockaddr_storage to;
        _cleanup_fd_ int fd = -1;
        socklen_t len;
        int r;

        fd = socket(a->family, a->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                /* seccomp, a kernel without IPv6, or the sock_create program in a private namespace */
                return errno == EAFNOSUPPORT || errno == EPERM || errno == EACCES ? 0 : -errno;

        len = nowhere(a->family, &to);
        if (a->type == SOCK_STREAM)
                r = connect(fd, (struct sockaddr *) &to, len);
        else
                r = (int) sendto(fd, "", 0, MSG_NOSIGNAL, (struct sockaddr *) &to, len);

        return r < 0 && errno == EPERM ? 0 : -ENOTRECOVERABLE;
}

int fence_self_test(const char **ret_what) {
        int r;

        for (size_t i = 0; i < ELEMENTSOF(attempts); i++) {
                r = attempt_is_refused(&attempts[i]);
                if (r < 0) {
                        if (ret_what)
                                *ret_what = attempts[i].what;
                        return r;
                }
        }

        return 0;
}

int fence_require(void) {
        const char *what = "";
        int r;

        r = fence_self_test(&what);
        if (r == -ENOTRECOVERABLE)
                return log_error_errno(r, "not fenced: the kernel did not refuse this: %s", what);
        if (r < 0)
                return log_error_errno(r, "not known to be fenced: could not try this: %s", what);
        return 0;
}
