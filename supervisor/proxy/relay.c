/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Each way has a buffer that is filled from one socket and emptied into the other. `ready` bytes of it are let on; without a
 * filter that is all of it. A way has ended when its source said so and its buffer is empty: then the
 * other side is told with shutdown(), and the other way lives on. The relay is done when both have.
 *
 * An origin that takes nothing any more may have answered before it went (an early error, say): what the guest sends is thrown away
 * then, and what the origin said is passed on first, whether its side ends in order or with an error.
 *
 * A source is only polled while its buffer has room, a sink only while there is something ready: so a peer that does
 * not read costs one buffer and no time.
 */

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "proxy/relay.h"
#include "util/text.h"

typedef struct Way {
        int from, to;          /* borrowed */
        uint8_t *buffer;       /* owned; RELAY_BUFFER */
        size_t start, end;     /* what it holds */
        size_t ready;          /* let on, from start */
        bool ended;            /* the source has no more */
        int error;             /* it ended with this one; negative errno */
        bool undecided;        /* what is not let on may still be */
        bool shut;             /* the sink has been told */
        bool broken_off;       /* it is not to be told in order */
        bool discarding;       /* what comes is thrown away */
        uint64_t bytes;
} Way;

struct Relay {
        sd_event *event;       /* ref */
        sd_event_source *guest, *origin, *idle; /* owned */
        Way out, in;           /* guest → origin, origin → guest */
        RelayFilter filter;
        RelayObserver observer;
        RelayDone done;
        void *userdata;        /* borrowed */
        bool finished, refused;
        uint64_t gone_usec;    /* the origin takes nothing any more: when patience with it ends; else 0 */
        uint8_t *last;         /* owned; refused, and this is still to be said */
        size_t n_last;
        uint64_t last_usec;    /* when it is said at the latest */
};

static size_t way_size(const Way *w) {
        return w->end - w->start;
}

static bool way_wants_input(const Way *w) {
        return !w->ended && (w->discarding || way_size(w) < RELAY_BUFFER);
}

static void relay_finish(Relay *r, int error) {
        if (r->finished)
                return;

        r->finished = true;
        r->guest = sd_event_source_disable_unref(r->guest);
        r->origin = sd_event_source_disable_unref(r->origin);
        r->idle = sd_event_source_disable_unref(r->idle);
        r->done(error, r->userdata);
}

/* The number of bytes that came. */
static int way_fill(Way *w) {
        ssize_t n;

        if (w->start > 0 && w->end == RELAY_BUFFER) {
                memmove(w->buffer, w->buffer + w->start, way_size(w));
                w->end -= w->start;
                w->start = 0;
        }

        n = recv(w->from, w->buffer + w->end, RELAY_BUFFER - w->end, MSG_DONTWAIT);
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        if (n == 0)
                w->ended = true;
        else if (!w->discarding)
                w->end += (size_t) n;
        return (int) n;
}

static int way_empty(Way *w) {
        while (w->ready > 0) {
                ssize_t n = send(w->to, w->buffer + w->start, w->ready, MSG_DONTWAIT | MSG_NOSIGNAL);

                if (n < 0)
                        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
                w->start += (size_t) n;
                w->ready -= (size_t) n;
                w->bytes += (uint64_t) n;
        }
        if (way_size(w) == 0)
                w->start = w->end = 0;
        return 0;
}

static int relay_filter(Relay *r) {
        Way *w = &r->out;
        size_t waiting = way_size(w) - w->ready;
        ssize_t n;

        if (!r->filter) {
                w->ready = way_size(w);
                return 0;
        }
        w->undecided = false;
        if (waiting == 0)
                return 0;

        n = r->filter(w->buffer + w->start + w->ready, waiting, &w->undecided, r->userdata);
        if (n < 0)
                return (int) n;
        if (r->finished)
                return 0;
        w->ready += (size_t) n <= waiting ? (size_t) n : waiting;
        return 0;
}

static void way_end(Way *w) {
        if (!w->ended || w->shut || w->ready > 0 || w->undecided)
                return;

        /* What the filter still keeps back of a source that has ended will never be complete. */
        w->start = w->end = 0;
        w->shut = true;
        if (!w->broken_off)
                (void) shutdown(w->to, SHUT_WR);
}

/* A hang-up is reported whatever one asks for. Whoever wants nothing of a socket is therefore not told about it at
 * all; whoever reads or writes it will find out. */
static int source_want(sd_event_source *s, uint32_t events) {
        int k;

        k = sd_event_source_set_io_events(s, events);
        if (k >= 0)
                k = sd_event_source_set_enabled(s, events ? SD_EVENT_ON : SD_EVENT_OFF);
        return k;
}

static uint64_t relay_patience(const Relay *r) {
        uint64_t sec = r->refused ? RELAY_REFUSED_SEC : r->out.shut || r->in.shut ? RELAY_HALF_CLOSED_SEC : RELAY_IDLE_SEC;
        uint64_t end = r->last ? r->last_usec : r->gone_usec, now = time_monotonic(), left;

        if (end == 0)
                return sec * 1000000ULL;

        left = end > now ? end - now : 0;
        return r->last && left > RELAY_QUIET_SEC * 1000000ULL ? RELAY_QUIET_SEC * 1000000ULL : left;
}

static int relay_arm(Relay *r) {
        uint32_t guest = 0, origin = 0;
        int k;

        if (way_wants_input(&r->out))
                guest |= EPOLLIN;
        if (r->in.ready > 0)
                guest |= EPOLLOUT;
        if (way_wants_input(&r->in))
                origin |= EPOLLIN;
        if (r->out.ready > 0)
                origin |= EPOLLOUT;

        k = source_want(r->guest, guest);
        if (k >= 0)
                k = source_want(r->origin, origin);
        if (k >= 0)
                k = sd_event_source_set_time_relative(r->idle, relay_patience(r));
        return k;
}

/* The guest's last word goes behind what the origin has said, when there is room for it. */
static void relay_say_last(Relay *r) {
        Way *in = &r->in;

        if (!r->last || !in->ended || r->n_last > RELAY_BUFFER - way_size(in))
                return;

        memmove(in->buffer, in->buffer + in->start, way_size(in));
        in->end = way_size(in);
        in->start = 0;
        memcpy(in->buffer + in->end, r->last, r->n_last);
        in->end += r->n_last;
        free(r->last);
        r->last = NULL;
}

static int relay_feed_guest(Relay *r) {
        int k;

        r->in.ready = way_size(&r->in);
        k = way_empty(&r->in);
        if (k < 0 || !r->last)
                return k;

        relay_say_last(r);
        r->in.ready = way_size(&r->in);
        return way_empty(&r->in);
}

static int relay_feed_origin(Relay *r) {
        Way *out = &r->out;
        int k;

        k = way_empty(out);
        if (k != -EPIPE && k != -ECONNRESET)
                return k;

        /* A reset is told once, and what is left is read as if it ended in order; -EPIPE came behind an end. */
        if (k == -ECONNRESET)
                r->in.error = k;
        if (r->gone_usec == 0)
                r->gone_usec = time_monotonic() + RELAY_GONE_SEC * 1000000ULL;
        r->filter = NULL;
        out->start = out->end = out->ready = 0;
        out->undecided = false;
        out->discarding = true;
        return 0;
}

static void relay_work(Relay *r, int error) {
        if (error >= 0)
                error = relay_filter(r);
        if (r->finished)
                return;

        if (error >= 0)
                error = relay_feed_origin(r);
        if (error >= 0)
                error = relay_feed_guest(r);
        if (error >= 0 && r->in.ended && r->in.ready == 0)
                error = r->in.error;
        if (error < 0) {
                relay_finish(r, error);
                return;
        }

        way_end(&r->out);
        if (!r->last)
                way_end(&r->in);
        if (r->out.shut && r->in.shut) {
                relay_finish(r, 0);
                return;
        }

        error = relay_arm(r);
        if (error < 0)
                relay_finish(r, error);
}

static int relay_on_io(Relay *r, Way *source, uint32_t revents) {
        int error = 0;

        if ((revents & (EPOLLIN | EPOLLHUP | EPOLLERR)) && way_wants_input(source)) {
                error = way_fill(source);
                if (error > 0 && source == &r->in && r->observer)
                        r->observer(source->buffer + source->end - error, (size_t) error, r->userdata);
        }
        if (error < 0 && source == &r->in) {
                source->ended = true;
                source->error = r->last ? 0 : source->error ?: error; /* an origin may answer the end of its input with a reset */
                error = 0;
        }
        relay_work(r, error < 0 ? error : 0);
        return 0;
}

static int relay_on_guest(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Relay *r = userdata;

        return relay_on_io(r, &r->out, revents);
}

static int relay_on_origin(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Relay *r = userdata;

        return relay_on_io(r, &r->in, revents);
}

static int relay_on_idle(sd_event_source *s, uint64_t usec, void *userdata) {
        Relay *r = userdata;

        if (r->last && !r->in.ended) {
                r->in.ended = true;
                (void) sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
                relay_work(r, 0);
        } else
                relay_finish(r, -ETIMEDOUT);
        return 0;
}

int relay_new(Relay **ret, sd_event *event, int guest_fd, int origin_fd, RelayFilter filter, RelayDone done, void *userdata) {
        _cleanup_(relay_freep) Relay *r = NULL;
        int k;

        r = malloc(sizeof(*r));
        if (!r)
                return -ENOMEM;

        *r = (Relay) {
                .event = sd_event_ref(event),
                .out = { .from = guest_fd, .to = origin_fd, .buffer = malloc(RELAY_BUFFER) },
                .in = { .from = origin_fd, .to = guest_fd, .buffer = malloc(RELAY_BUFFER) },
                .filter = filter,
                .done = done,
                .userdata = userdata,
        };
        if (!r->out.buffer || !r->in.buffer)
                return -ENOMEM;

        k = sd_event_add_io(event, &r->guest, guest_fd, EPOLLIN, relay_on_guest, r);
        if (k < 0)
                return k;
        k = sd_event_add_io(event, &r->origin, origin_fd, EPOLLIN, relay_on_origin, r);
        if (k < 0)
                return k;
        k = sd_event_add_time_relative(event, &r->idle, CLOCK_MONOTONIC, RELAY_IDLE_SEC * 1000000ULL, 1000000, relay_on_idle, r);
        if (k < 0)
                return k;

        *ret = TAKE_PTR(r);
        return 0;
}

Relay *relay_free(Relay *r) {
        if (!r)
                return NULL;

        sd_event_source_disable_unref(r->guest);
        sd_event_source_disable_unref(r->origin);
        sd_event_source_disable_unref(r->idle);
        sd_event_unref(r->event);
        free(r->out.buffer);
        free(r->in.buffer);
        free(r->last);
        free(r);
        return NULL;
}

int relay_prepend(Relay *r, const void *data, size_t size) {
        Way *w = &r->out;

        if (size > RELAY_BUFFER - w->end || way_size(w) != w->ready)
                return -ENOBUFS;

        memcpy(w->buffer + w->end, data, size);
        w->end += size;
        w->ready += size;
        return relay_arm(r);
}

void relay_watch(Relay *r, RelayFilter filter, RelayObserver observer) {
        r->filter = filter;
        r->observer = observer;
}

void relay_resume(Relay *r) {
        if (!r->finished)
                relay_work(r, 0);
}

static int relay_end(Relay *r, const void *data, size_t size, bool break_off) {
        struct linger now = { .l_onoff = 1 };
        Way *out = &r->out;

        if (r->finished || r->refused || r->in.shut)
                return -ENOTCONN;
        if (size > RELAY_BUFFER)
                return -ENOBUFS;
        r->last = malloc(size);
        if (!r->last)
                return -ENOMEM;
        memcpy(r->last, data, size);
        r->n_last = size;
        r->last_usec = time_monotonic() + RELAY_REFUSED_SEC * 1000000ULL;

        r->filter = NULL;
        r->observer = NULL;
        r->refused = true;
        out->start = out->end = out->ready = 0;
        out->undecided = false;
        out->discarding = true; /* until the guest ends: closing with unread bytes would reset what we said */
        if (break_off) {
                out->broken_off = r->in.ended = true;
                (void) setsockopt(out->to, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        } else
                (void) shutdown(out->to, SHUT_WR);
        relay_work(r, 0);
        return 0;
}

int relay_refuse(Relay *r, const void *data, size_t size) {
        return relay_end(r, data, size, false);
}

int relay_break_off(Relay *r, const void *data, size_t size) {
        return relay_end(r, data, size, true);
}

uint64_t relay_bytes_out(const Relay *r) {
        return r->out.bytes;
}

uint64_t relay_bytes_in(const Relay *r) {
        return r->in.bytes;
}
