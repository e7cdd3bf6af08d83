/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * sd-varlink reads whatever there is, up to 16 MiB for each connection, before it looks for the end of a message. So it is not attached to the event
 * loop: this file calls it, and lets it read only when that is bounded.
 *
 *   - A message whose end has arrived is read.
 *   - The beginning of one stays in the socket, where it is the kernel's and on the sender's account, as long as it has room there.
 *   - One that is too large for that (LARGE) is read piece by piece by a connection that holds a place. There are so many places for units of runs
 *     and as many for everybody else, PLACES_OF_PEER of them for one run or user; who has none waits. So who sends many beginnings uses up its own
 *     places, and calls of a usual size need none.
 *   - More than message_max is not read: the connection is closed. So is one whose message has been unfinished for UNFINISHED_USEC, or has held
 *     a place for PLACE_USEC.
 *
 * What was read is counted by the kernel, as sd-varlink does not say: its offset for peeking (SO_PEEK_OFF) goes back by every byte that a read takes out of
 * the socket. What waits before and after says less, as a sender may go on writing at that very moment. So there is never more of a message than message_max
 * and what came into its last read, which is what a socket holds, some 200 KiB. Of what follows a whole message, a buffer's rest is read along with it.
 *
 * A held beginning would wake a level-triggered loop for ever: meanwhile the socket is watched for changes alone (EPOLLET). Peeking stops behind bytes that
 * came with a descriptor, and so does a read: the end of such a message may be there and not be seen, so its pieces are read as a large one's are.
 *
 * Where a message ends is not always seen: a read may get more than was peeked at. That there was a whole one shows at the latest when a call comes out of it.
 */

#include "ipc/ipc-intake.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "util/log.h"
#include "util/text.h"

enum {
        LARGE = 64 * 1024, /* less than any socket holds */
        PLACES = 16,
        PLACES_OF_PEER = 2,
        MESSAGE_MAX = 2 * 1024 * 1024,
        UNFINISHED_USEC = 30 * 1000 * 1000,
        PLACE_USEC = 10 * 1000 * 1000,
        EXIT_MSEC = 1000, /* for what is still to be written at the end */
};

struct IntakeShare {
        sd_event *event;       /* ref */
        sd_event_source *exit; /* ref */
        size_t message_max;
        uint64_t unfinished_usec, place_usec;
        Intake *first;
        char scan[LARGE];
};

struct Intake {
        IntakeShare *share;    /* borrowed */
        Intake *next, *previous;
        sd_varlink *link;      /* borrowed */
        Peer *peer;            /* borrowed */
        sd_event_source *io, *defer, *deadline; /* ref */
        uint32_t events;       /* that `io` waits for */
        size_t taken;          /* bytes of an unfinished message that were read */
        bool held;             /* what waits in the socket is not to be read yet */
        bool wants_place, has_place;
        bool hung_up;
        bool busy, gone;       /* being processed; freed meanwhile */
};

typedef enum Verdict { READ, HOLD, REFUSE } Verdict;

/* ---- places ---- */

static bool is_of_run(const Intake *i) {
        return i->peer->run[0] != 0;
}

static bool same_peer(const Intake *a, const Intake *b) {
        return strcmp(a->peer->run, b->peer->run) == 0 && (is_of_run(a) || a->peer->uid == b->peer->uid);
}

static bool take_place(Intake *i) {
        unsigned n = 0, n_of_peer = 0;

        if (i->has_place)
                return true;
        for (const Intake *k = i->share->first; k; k = k->next) {
                n += k->has_place && is_of_run(k) == is_of_run(i);
                n_of_peer += k->has_place && same_peer(k, i);
        }
        i->has_place = n < PLACES && n_of_peer < PLACES_OF_PEER;
        i->wants_place = !i->has_place;
        return i->has_place;
}

/* Whoever waits looks again. */
static void give_place(Intake *i) {
        if (!i->has_place)
                return;
        i->has_place = false;
        for (Intake *k = i->share->first; k; k = k->next)
                if (k->wants_place)
                        (void) sd_event_source_set_enabled(k->defer, SD_EVENT_ON);
}

/* ---- judging ---- */

static int on_deadline(sd_event_source *s, uint64_t usec, void *userdata) {
        Intake *i = userdata;
        char name[64];

        log_notice("%s (pid %d) did not finish its message, closing the connection", peer_name(i->peer, name), (int) i->peer->pid);
        (void) sd_varlink_close(i->link);
        return 0;
}

/* Nobody may take for ever: false if not even that can be watched. */
static bool set_deadline(Intake *i, uint64_t usec) {
        int r;

        if (i->deadline)
                r = sd_event_source_set_time_relative(i->deadline, usec);
        else
                r = sd_event_add_time_relative(i->share->event, &i->deadline, CLOCK_MONOTONIC, usec, 0, on_deadline, i);
        return r >= 0;
}

void intake_call_begins(Intake *i) {
        i->deadline = sd_event_source_disable_unref(i->deadline);
        i->taken = 0;
        i->wants_place = false;
        give_place(i);
}

/* May what waits in the socket be read? *ret_whole: how much of it belongs to a message whose end is there. */
static Verdict judge(Intake *i, int fd, size_t *ret_whole) {
        const IntakeShare *share = i->share;
        ssize_t n = recv(fd, i->share->scan, sizeof(share->scan), MSG_PEEK | MSG_DONTWAIT);
        const char *end = n > 0 ? memchr(share->scan, 0, (size_t) n) : NULL;
        int waiting = 0;

        *ret_whole = 0;
        if (n <= 0 || i->hung_up)
                return READ; /* nothing, the end, or an error: sd-varlink finds out. What is left when the other side is gone is little */
        if (end) {
                if (i->taken + (size_t) (end - share->scan) >= share->message_max)
                        return REFUSE;
                intake_call_begins(i);
                *ret_whole = (size_t) (end - share->scan) + 1;
                return READ;
        }

        if (ioctl(fd, FIONREAD, &waiting) < 0 || waiting < n)
                waiting = (int) n;
        if (i->taken + (size_t) waiting >= share->message_max)
                return REFUSE;
        if (!i->deadline && !set_deadline(i, share->unfinished_usec))
                return REFUSE;
        if (waiting < LARGE && waiting == n && !i->has_place)
                return HOLD;
        if (!i->has_place && (!take_place(i) || !set_deadline(i, share->place_usec)))
                return HOLD;
        return READ;
}

/* Peeking begins so far behind what waits; -1: there, and reads are not counted. */
static bool set_peek_offset(int fd, int offset) {
        return setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof(offset)) >= 0;
}

/* What was read since the offset was set to INT_MAX; nothing is counted from here on. */
static size_t read_since(int fd) {
        socklen_t size = sizeof(int);
        int offset = INT_MAX;

        (void) getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, &size);
        (void) set_peek_offset(fd, -1);
        return (size_t) (INT_MAX - offset);
}

/* ---- processing ---- */

static bool is_writable(int fd, int timeout_msec) {
        struct pollfd p = { .fd = fd, .events = POLLOUT };

        return poll(&p, 1, timeout_msec) > 0 && (p.revents & POLLOUT);
}

static void refuse(Intake *i) {
        char name[64];

        log_notice("%s (pid %d) sent more than the %zu bytes that a message may have, closing the connection", peer_name(i->peer, name), (int) i->peer->pid,
                   i->share->message_max);
        (void) sd_varlink_close(i->link);
}

/* sd-varlink takes one step of its own. false: it cannot be counted what that reads, or it may last for ever. */
static bool process(Intake *i, sd_varlink *link, size_t whole, int *ret) {
        int fd = sd_varlink_get_fd(link);
        size_t n;

        if (!set_peek_offset(fd, INT_MAX))
                return false;
        *ret = sd_varlink_process(link);
        if (i->gone)
                return true;
        n = read_since(fd);
        i->taken += n > whole ? n - whole : 0;
        return n <= whole || i->deadline || set_deadline(i, i->share->unfinished_usec);
}

/* One step: something is written, or a call made, or a message found, or something read. */
static int step(Intake *i) {
        sd_varlink *link = sd_varlink_ref(i->link);
        int events = sd_varlink_get_events(link), r = 0;
        Verdict verdict = READ;
        size_t whole = 0;

        i->busy = true;
        /* A write comes first, and is all that is done then. Anything else may end in a read: looking for a message in what is there does if there is none. */
        if (events >= 0 && !((events & EPOLLOUT) && is_writable(sd_varlink_get_fd(link), 0))) {
                verdict = judge(i, sd_varlink_get_fd(link), &whole);
                i->held = verdict == HOLD;
        }
        if (verdict == READ && !process(i, link, whole, &r))
                verdict = REFUSE;
        if (verdict == REFUSE)
                refuse(i);
        /* an answer is there that was not: so was a call, all of it */
        else if (verdict == READ && !i->gone && !(events & EPOLLOUT) && (sd_varlink_get_events(link) & EPOLLOUT))
                intake_call_begins(i);
        (void) sd_varlink_unref(link);

        i->busy = false;
        if (i->gone)
                free(i);
        else
                (void) sd_event_source_set_enabled(i->defer, r != 0 ? SD_EVENT_ON : SD_EVENT_OFF);
        return 0;
}

static int on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Intake *i = userdata;

        if (revents & (EPOLLHUP | EPOLLERR)) {
                i->hung_up = true;
                (void) sd_varlink_wait(i->link, 0); /* so that it knows as well */
        }
        return step(i);
}

static int on_defer(sd_event_source *s, void *userdata) {
        return step(userdata);
}

/* Before the loop waits: for what? Answers may have been given since. */
static int on_prepare(sd_event_source *s, void *userdata) {
        Intake *i = userdata;
        int wanted = sd_varlink_get_events(i->link);
        uint32_t events;

        if (wanted < 0)
                return 0;
        events = (uint32_t) wanted;
        if (i->held)
                events |= EPOLLIN | EPOLLET;
        /* setting it anew would make an edge of what is there */
        if (events != i->events && sd_event_source_set_io_events(s, events) >= 0)
                i->events = events;
        return 0;
}

/* The loop ends: answers that were given leave, if somebody takes them. */
static int on_exit_loop(sd_event_source *s, void *userdata) {
        IntakeShare *share = userdata;
        int left = EXIT_MSEC;

        while (share->first) {
                sd_varlink *link = sd_varlink_ref(share->first->link);
                uint64_t begin = time_monotonic();
                int events;

                while ((events = sd_varlink_get_events(link)) > 0 && (events & EPOLLOUT) && is_writable(sd_varlink_get_fd(link), left))
                        if (sd_varlink_process(link) <= 0)
                                break;
                left -= (int) ((time_monotonic() - begin) / 1000);
                if (left < 0)
                        left = 0;
                (void) sd_varlink_close(link);
                (void) sd_varlink_unref(link);
        }
        return 0;
}

/* ---- life ---- */

int intake_new(Intake **ret, IntakeShare *share, sd_varlink *link, Peer *peer) {
        Intake *i = calloc(1, sizeof(*i));
        int r;

        if (!i)
                return -ENOMEM;
        *i = (Intake) { .share = share, .link = link, .peer = peer, .next = share->first };
        if (i->next)
                i->next->previous = i;
        share->first = i;

        r = sd_event_add_io(share->event, &i->io, sd_varlink_get_fd(link), 0, on_io, i);
        if (r >= 0)
                r = sd_event_source_set_prepare(i->io, on_prepare);
        if (r >= 0)
                r = sd_event_add_defer(share->event, &i->defer, on_defer, i);
        if (r >= 0)
                r = sd_event_source_set_enabled(i->defer, SD_EVENT_OFF);
        if (r < 0) {
                (void) intake_free(i);
                return r;
        }

        *ret = i;
        return 0;
}

Intake *intake_free(Intake *i) {
        if (!i)
                return NULL;

        i->wants_place = false;
        give_place(i);
        if (i->next)
                i->next->previous = i->previous;
        if (i->previous)
                i->previous->next = i->next;
        else
                i->share->first = i->next;
        i->io = sd_event_source_disable_unref(i->io);
        i->defer = sd_event_source_disable_unref(i->defer);
        i->deadline = sd_event_source_disable_unref(i->deadline);
        i->gone = true;
        if (!i->busy)
                free(i);
        return NULL;
}

int intake_share_new(IntakeShare **ret, sd_event *event) {
        _cleanup_(intake_share_freep) IntakeShare *share = NULL;
        int r;

        share = calloc(1, sizeof(*share));
        if (!share)
                return -ENOMEM;
        share->event = sd_event_ref(event);
        share->message_max = MESSAGE_MAX;
        intake_set_times(share, UNFINISHED_USEC, PLACE_USEC);
        r = sd_event_add_exit(event, &share->exit, on_exit_loop, share);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(share);
        return 0;
}

IntakeShare *intake_share_free(IntakeShare *share) {
        if (!share)
                return NULL;

        (void) sd_event_source_disable_unref(share->exit);
        (void) sd_event_unref(share->event);
        free(share);
        return NULL;
}

void intake_set_message_max(IntakeShare *share, size_t bytes) {
        share->message_max = bytes;
}

void intake_set_times(IntakeShare *share, uint64_t unfinished_usec, uint64_t place_usec) {
        share->unfinished_usec = unfinished_usec;
        share->place_usec = place_usec;
}
