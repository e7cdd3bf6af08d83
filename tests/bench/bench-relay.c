/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The least that a relay of TCP can do: accept, connect, splice both ways in the kernel. One process, one epoll loop. What passed-through
 * connections are compared with.
 *
 *   bench-relay ADDRESS PORT ORIGIN PORT
 */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE = 256 * 1024 };

typedef struct Pair Pair;

typedef struct Side {
        Pair *pair;
        int fd, pipe[2];  /* what was read from fd waits in pipe */
        size_t waiting;
        bool ended, told; /* nothing more comes; the other side was told so */
} Side;

struct Pair {
        Side sides[2];
        Pair *next_dead;
        bool dead;
};

static Pair *dead; /* freed when all events of a round were looked at */

static struct sockaddr_in address_of(const char *ip, const char *port) {
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t) strtoul(port, NULL, 10)) };

        (void) inet_pton(AF_INET, ip, &a.sin_addr);
        return a;
}

static void pair_end(Pair *p) {
        if (p->dead)
                return;
        for (int i = 0; i < 2; i++) {
                (void) close(p->sides[i].fd);
                (void) close(p->sides[i].pipe[0]);
                (void) close(p->sides[i].pipe[1]);
        }
        p->dead = true;
        p->next_dead = dead;
        dead = p;
}

/* From one side to the other as far as it goes; false: broken. */
static bool carry(Side *from, Side *to) {
        for (;;) {
                ssize_t n;

                if (from->waiting == 0 && !from->ended) {
                        n = splice(from->fd, NULL, from->pipe[1], NULL, PIECE, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
                        if (n < 0)
                                return errno == EAGAIN || errno == ENOTCONN;
                        from->ended = n == 0;
                        from->waiting = (size_t) n;
                }
                if (from->waiting == 0) {
                        if (!from->told)
                                (void) shutdown(to->fd, SHUT_WR);
                        from->told = true;
                        return true;
                }
                n = splice(from->pipe[0], NULL, to->fd, NULL, from->waiting, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
                if (n < 0)
                        return errno == EAGAIN || errno == ENOTCONN;
                from->waiting -= (size_t) n;
        }
}

static void watch(int loop, Side *s) {
        struct epoll_event e = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = s };

        (void) epoll_ctl(loop, EPOLL_CTL_ADD, s->fd, &e);
}

static void begin(int loop, int fd, const struct sockaddr_in *origin) {
        Pair *p = calloc(1, sizeof(*p));
        const int on = 1;

        if (!p)
                abort();
        for (int i = 0; i < 2; i++) {
                p->sides[i].pair = p;
                if (pipe2(p->sides[i].pipe, O_CLOEXEC | O_NONBLOCK) < 0)
                        abort();
        }
        p->sides[0].fd = fd;
        p->sides[1].fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (p->sides[1].fd < 0)
                abort();
        for (int i = 0; i < 2; i++)
                (void) setsockopt(p->sides[i].fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        if (connect(p->sides[1].fd, (const struct sockaddr *) origin, sizeof(*origin)) < 0 && errno != EINPROGRESS)
                pair_end(p);
        else {
                watch(loop, &p->sides[0]);
                watch(loop, &p->sides[1]);
        }
}

static void on_event(Side *s, uint32_t events) {
        Pair *p = s->pair;
        Side *a = &p->sides[0], *b = &p->sides[1];

        if (p->dead)
                return;
        if ((events & EPOLLERR) || !carry(a, b) || !carry(b, a) || (a->told && b->told))
                pair_end(p);
}

int main(int argc, char **argv) {
        struct sockaddr_in here, origin;
        int listener, loop, on = 1;
        struct epoll_event e = { .events = EPOLLIN };

        if (argc != 5)
                return 2;
        here = address_of(argv[1], argv[2]);
        origin = address_of(argv[3], argv[4]);
        listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        loop = epoll_create1(EPOLL_CLOEXEC);
        if (listener < 0 || loop < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
            bind(listener, (struct sockaddr *) &here, sizeof(here)) < 0 || listen(listener, 512) < 0 ||
            epoll_ctl(loop, EPOLL_CTL_ADD, listener, &e) < 0) {
                perror("bench-relay");
                return 1;
        }

        for (;;) {
                struct epoll_event events[64];
                int n = epoll_wait(loop, events, 64, -1), fd;

                for (int i = 0; i < n; i++) {
                        if (events[i].data.ptr) {
                                on_event(events[i].data.ptr, events[i].events);
                                continue;
                        }
                        while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
                                begin(loop, fd, &origin);
                }
                while (dead) {
                        Pair *p = dead;

                        dead = p->next_dead;
                        free(p);
                }
        }
}
