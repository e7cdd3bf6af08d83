/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Attempts are begun in order by one timer, which an attempt's failure brings forward. The first that connects wins: the others
 * are closed before `done` hears of it. The list is over when every attempt has failed, or with the time for all of them.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "util/dial.h"

enum { FAILURES_MAX = 1024 };

typedef struct Attempt {
        Dial *dial;               /* borrowed */
        int fd;                   /* owned */
        sd_event_source *io;      /* owned */
        char text[INET6_ADDRSTRLEN];
        union {
                struct sockaddr any;
                struct sockaddr_in in4;
                struct sockaddr_in6 in6;
        } address;
} Attempt;

struct Dial {
        sd_event *event;          /* ref */
        sd_event_source *next, *end; /* owned */
        DialDone done;
        void *userdata;           /* borrowed */
        Attempt attempts[DIAL_ADDRESSES_MAX];
        size_t n_attempts, n_begun, n_open;
        int error;                /* of the last failure */
        char failures[FAILURES_MAX];
};

static void attempt_close(Attempt *a) {
        a->io = sd_event_source_disable_unref(a->io);
        a->fd = fd_close(a->fd);
}

static void dial_finish(Dial *d, int fd) {
        char failures[FAILURES_MAX]; /* whoever is told may free the dial, and read on */
        DialDone done = d->done;

        for (size_t i = 0; i < d->n_begun; i++)
                attempt_close(&d->attempts[i]);
        d->next = sd_event_source_disable_unref(d->next);
        d->end = sd_event_source_disable_unref(d->end);
        strcpy(failures, d->failures);
        done(fd, failures, d->userdata);
}

static void attempt_failed(Attempt *a, int error) {
        Dial *d = a->dial;
        size_t n = strlen(d->failures);

        attempt_close(a);
        d->error = error;
        (void) snprintf(d->failures + n, sizeof(d->failures) - n, "%s%s: %s", n ? "; " : "", a->text, strerror(-error));
}

/* Begins the next one at once, or ends. */
static void dial_go_on(Dial *d) {
        int r = 0;

        if (d->n_begun < d->n_attempts) {
                r = sd_event_source_set_time_relative(d->next, 0);
                if (r >= 0)
                        r = sd_event_source_set_enabled(d->next, SD_EVENT_ONESHOT);
        }
        if (r < 0 || (d->n_begun == d->n_attempts && d->n_open == 0))
                dial_finish(d, r < 0 ? r : d->error);
}

static int attempt_on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Attempt *a = userdata;
        Dial *d = a->dial;
        socklen_t n = sizeof(int);
        int error = 0;

        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) < 0)
                error = errno;
        if (error == 0) {
                dial_finish(d, TAKE_FD(a->fd));
                return 0;
        }

        d->n_open--;
        attempt_failed(a, -error);
        dial_go_on(d);
        return 0;
}

static int attempt_begin(Attempt *a) {
        socklen_t size = a->address.any.sa_family == AF_INET ? sizeof(a->address.in4) : sizeof(a->address.in6);
        int one = 1;

        a->fd = socket(a->address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (a->fd < 0)
                return -errno;
        (void) setsockopt(a->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        (void) setsockopt(a->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));

        if (connect(a->fd, &a->address.any, size) < 0 && errno != EINPROGRESS)
                return -errno;
        return sd_event_add_io(a->dial->event, &a->io, a->fd, EPOLLOUT, attempt_on_io, a);
}

static int dial_on_next(sd_event_source *s, uint64_t usec, void *userdata) {
        Dial *d = userdata;
        Attempt *a = &d->attempts[d->n_begun++];
        int r;

        r = attempt_begin(a);
        if (r < 0) {
                attempt_failed(a, r);
                dial_go_on(d);
                return 0;
        }

        d->n_open++;
        if (d->n_begun == d->n_attempts)
                return 0;
        r = sd_event_source_set_time_relative(s, DIAL_STAGGER_USEC);
        if (r >= 0)
                r = sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
        if (r < 0)
                dial_finish(d, r);
        return 0;
}

static int dial_on_end(sd_event_source *s, uint64_t usec, void *userdata) {
        dial_finish(userdata, -ETIMEDOUT);
        return 0;
}

static int attempt_init(Attempt *a, Dial *d, const char *text, uint16_t port) {
        *a = (Attempt) { .dial = d, .fd = -1 };
        if (strlen(text) >= sizeof(a->text))
                return -EINVAL;
        strcpy(a->text, text);

        if (inet_pton(AF_INET, text, &a->address.in4.sin_addr) == 1) {
                a->address.in4.sin_family = AF_INET;
                a->address.in4.sin_port = htons(port);
                return 0;
        }
        if (inet_pton(AF_INET6, text, &a->address.in6.sin6_addr) == 1) {
                a->address.in6.sin6_family = AF_INET6;
                a->address.in6.sin6_port = htons(port);
                return 0;
        }
        return -EINVAL;
}

int dial_new(Dial **ret, sd_event *event, const char *const *addresses, size_t n_addresses, uint16_t port, DialDone done, void *userdata) {
        _cleanup_(dial_freep) Dial *d = NULL;
        int r;

        if (n_addresses == 0)
                return -EINVAL;
        d = calloc(1, sizeof(*d));
        if (!d)
                return -ENOMEM;

        d->event = sd_event_ref(event);
        d->done = done;
        d->userdata = userdata;
        while (d->n_attempts < n_addresses && d->n_attempts < DIAL_ADDRESSES_MAX) {
                r = attempt_init(&d->attempts[d->n_attempts], d, addresses[d->n_attempts], port);
                if (r < 0)
                        return r;
                d->n_attempts++;
        }

        r = sd_event_add_time_relative(event, &d->next, CLOCK_MONOTONIC, 0, 1000, dial_on_next, d);
        if (r < 0)
                return r;
        r = sd_event_add_time_relative(event, &d->end, CLOCK_MONOTONIC, DIAL_TIMEOUT_USEC, 10000, dial_on_end, d);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(d);
        return 0;
}

Dial *dial_free(Dial *d) {
        if (!d)
                return NULL;

        for (size_t i = 0; i < d->n_begun; i++)
                attempt_close(&d->attempts[i]);
        sd_event_source_disable_unref(d->next);
        sd_event_source_disable_unref(d->end);
        sd_event_unref(d->event);
        free(d);
        return NULL;
}
