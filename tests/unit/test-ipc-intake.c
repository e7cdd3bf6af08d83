/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a server takes in of messages that have no end: of whom, how much, for how long; and that all others get through. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <malloc.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/ipc-intake.h"
#include "util/text.h"

enum {
        CLIENTS_MAX = 80,
        KIB = 1024,
        MIB = 1024 * 1024,
};

typedef struct Client {
        int fd;            /* the other end of the connection */
        Peer peer;
        Intake *intake;
        sd_varlink *link;
        size_t written, answered; /* bytes */
        bool closed;       /* by the server */
} Client;

typedef struct World {
        sd_event *event;
        IntakeShare *share;
        sd_varlink_server *server;
        Client clients[CLIENTS_MAX];
        unsigned n_clients, n_calls;
        Client *flood;     /* writes at the very moment at which the server reads, */
        bool flood_after;  /* and again right after it */
} World;

static World *world; /* sd-varlink's handlers have no other way to it */

/* As much of nothing as the socket takes now. */
static void fill(Client *c) {
        static char space[4 * KIB];
        ssize_t n;

        memset(space, ' ', sizeof(space));
        while ((n = send(c->fd, space, sizeof(space), MSG_NOSIGNAL | MSG_DONTWAIT)) > 0)
                c->written += (size_t) n;
}

/* In place of libc's, for sd-varlink too: between what the server finds waiting and what it reads the sender has gone on writing. */
ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
        bool flooded = world && world->flood && world->flood->link && fd == sd_varlink_get_fd(world->flood->link);
        ssize_t n;

        if (flooded)
                fill(world->flood);
        n = syscall(SYS_recvmsg, fd, message, flags);
        if (flooded && world->flood_after)
                fill(world->flood);
        return n;
}

static int on_size(sd_varlink *link, sd_json_variant *parameters, sd_varlink_method_flags_t flags, void *userdata) {
        world->n_calls++;
        return sd_varlink_reply(link, NULL);
}

static void on_gone(sd_varlink_server *server, sd_varlink *link, void *userdata) {
        Client *c = sd_varlink_get_userdata(link);

        c->intake = intake_free(c->intake);
        c->link = NULL;
}

static int set_up(void **state) {
        World *w = world = calloc(1, sizeof(*w));

        assert_int_equal(sd_event_new(&w->event), 0);
        assert_int_equal(intake_share_new(&w->share, w->event), 0);
        assert_true(sd_varlink_server_new(&w->server, 0) >= 0);
        assert_true(sd_varlink_server_bind_method(w->server, "io.anchorhold.Test.Size", on_size) >= 0);
        assert_true(sd_varlink_server_bind_disconnect(w->server, on_gone) >= 0);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        for (unsigned i = 0; i < w->n_clients; i++) {
                if (w->clients[i].link)
                        (void) sd_varlink_close(w->clients[i].link);
                (void) close(w->clients[i].fd);
        }
        (void) sd_varlink_server_unref(w->server);
        (void) intake_share_free(w->share);
        (void) sd_event_unref(w->event);
        free(w);
        return 0;
}

/* A connection of a unit of that run, or, "", of that user. */
static Client *join(World *w, const char *run, uid_t uid) {
        Client *c = &w->clients[w->n_clients++];
        int pair[2];

        assert_true(w->n_clients <= CLIENTS_MAX);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
        *c = (Client) { .fd = pair[0], .peer = { .pidfd = -1, .uid = uid, .unit = (char *) "" } };
        (void) snprintf(c->peer.run, sizeof(c->peer.run), "%s", run);
        assert_true(sd_varlink_server_add_connection(w->server, pair[1], &c->link) >= 0);
        (void) sd_varlink_set_userdata(c->link, c);
        assert_true(sd_varlink_set_allow_fd_passing_input(c->link, true) >= 0);
        assert_int_equal(intake_new(&c->intake, w->share, c->link, &c->peer), 0);
        return c;
}

static void turn(World *w) {
        for (unsigned i = 0; i < 50; i++)
                assert_true(sd_event_run(w->event, 0) >= 0);
}

/* Writes so much of nothing, as far as the server takes it; true if all was. */
static bool push(World *w, Client *c, size_t size) {
        static char space[64 * KIB];
        size_t done = 0;

        memset(space, ' ', sizeof(space));
        for (unsigned idle = 0; done < size && idle < 5;) {
                ssize_t n = send(c->fd, space, size - done < sizeof(space) ? size - done : sizeof(space), MSG_NOSIGNAL | MSG_DONTWAIT);

                if (n > 0) {
                        done += (size_t) n;
                        idle = 0;
                } else
                        idle++;
                turn(w);
        }
        c->written += done;
        return done == size;
}

static const char call_begins[] = "{\"method\":\"io.anchorhold.Test.Size\",\"parameters\":{}";

static void begin(World *w, Client *c) {
        assert_int_equal(send(c->fd, call_begins, strlen(call_begins), 0), strlen(call_begins));
        turn(w);
}

/* The end of a call that was begun; is it answered? */
static bool finish(World *w, Client *c) {
        char answer[256];
        ssize_t n;

        if (send(c->fd, "}", 2, MSG_NOSIGNAL) != 2)
                return false;
        for (unsigned i = 0; i < 20; i++) {
                turn(w);
                n = recv(c->fd, answer, sizeof(answer), MSG_DONTWAIT);
                if (n >= 0)
                        return n > 0 && answer[n - 1] == 0 && strstr(answer, "parameters");
        }
        return false;
}

static bool call_of(World *w, Client *c, size_t size) {
        begin(w, c);
        return push(w, c, size) && finish(w, c);
}

static bool is_closed(World *w, Client *c) {
        char byte;

        turn(w);
        return !c->link && recv(c->fd, &byte, 1, MSG_DONTWAIT) <= 0 && errno != EAGAIN;
}

static size_t allocated(void) {
        struct mallinfo2 info = mallinfo2();

        return info.uordblks + info.hblkhd;
}

static void test_whole_messages(void **state) {
        World *w = *state;
        Client *c = join(w, "r0123456789ab", 1000);

        for (unsigned i = 0; i < 3; i++) {
                assert_true(call_of(w, c, 0));
                assert_true(call_of(w, c, 40 * KIB));
                assert_true(call_of(w, c, MIB));
        }
        /* two at once: the second begins in what was read with the first */
        begin(w, c);
        assert_int_equal(send(c->fd, "}", 2, 0), 2);
        begin(w, c);
        assert_true(finish(w, c));
        assert_int_equal(w->n_calls, 11);
}

/* One large call after the other, each of which is there in part when the one before is answered: none counts for another. */
static void test_one_after_the_other(void **state) {
        static char space[100 * KIB];
        World *w = *state;
        Client *c = join(w, "r0123456789ab", 1000);
        char answers[4096];
        unsigned n = 0;

        memset(space, ' ', sizeof(space));
        begin(w, c);
        for (unsigned i = 0; i < 60; i++) {
                assert_true(push(w, c, 100 * KIB));
                assert_int_equal(send(c->fd, "}", 2, 0), 2);
                assert_int_equal(send(c->fd, call_begins, strlen(call_begins), 0), strlen(call_begins));
                assert_int_equal(send(c->fd, space, sizeof(space), 0), sizeof(space));
                turn(w);
                for (ssize_t got = recv(c->fd, answers, sizeof(answers), MSG_DONTWAIT); got > 0; got--)
                        n += answers[got - 1] == 0;
        }
        assert_true(finish(w, c));
        assert_int_equal(n, 60);
        assert_int_equal(w->n_calls, 61);
}

/* Beginnings that a socket holds cost the server nothing, however many there are, and no place: one that is large gets through among them. */
static void test_many_small_halves(void **state) {
        World *w = *state;
        size_t before, after;
        Client *other;

        for (unsigned i = 0; i < 60; i++)
                (void) join(w, "r0123456789ab", 1000);
        other = join(w, "r0123456789ab", 1000);
        assert_true(call_of(w, other, MIB));
        before = allocated();
        for (unsigned i = 0; i < 60; i++) {
                begin(w, &w->clients[i]);
                (void) push(w, &w->clients[i], 50 * KIB);
        }
        after = allocated();
        assert_true(after < before + MIB);
        assert_true(call_of(w, other, 0));
        assert_true(call_of(w, other, MIB));
        /* and each of them is a call once it is whole */
        for (unsigned i = 0; i < 60; i++)
                assert_true(finish(w, &w->clients[i]));
}

/* Large ones are read by as many of a run's connections as may, and the others wait: their senders cannot go on. Of another run none waits, nor does
 * any call of the usual size. */
static void test_many_large_halves(void **state) {
        World *w = *state;
        Client *same, *other, *operator;
        unsigned n_read = 0;
        size_t before;

        for (unsigned i = 0; i < 60; i++)
                (void) join(w, "r0123456789ab", 1000 + i % 3);
        same = join(w, "r0123456789ab", 1000);
        other = join(w, "r0000000other", 1000);
        operator= join(w, "", 1000);
        assert_true(call_of(w, other, MIB));
        before = allocated();
        for (unsigned i = 0; i < 60; i++) {
                begin(w, &w->clients[i]);
                n_read += push(w, &w->clients[i], MIB);
        }
        assert_int_equal(n_read, 2);
        assert_true(allocated() < before + 8 * MIB);

        assert_true(call_of(w, same, 100));
        assert_true(call_of(w, other, 100));
        assert_true(call_of(w, other, MIB));
        assert_true(call_of(w, operator, MIB));

        /* whoever ends makes room for one that waits */
        for (unsigned i = 0; i < 60; i++)
                if (w->clients[i].written == MIB)
                        assert_true(finish(w, &w->clients[i]));
        n_read = 0;
        for (unsigned i = 0; i < 60; i++)
                if (w->clients[i].written < MIB)
                        n_read += push(w, &w->clients[i], MIB - w->clients[i].written);
        assert_int_equal(n_read, 2);
}

/* What follows a whole message is held back like any other beginning: little of it was read along with the message. */
static void test_half_behind_a_whole(void **state) {
        World *w = *state;
        size_t before = 0;
        unsigned n_read = 0;

        for (unsigned i = 0; i < 42; i++)
                (void) join(w, "r0123456789ab", 1000);
        for (unsigned i = 0; i < 42; i++) {
                Client *c = &w->clients[i];

                if (i == 2)
                        before = allocated();
                begin(w, c);
                assert_int_equal(send(c->fd, "}", 2, 0), 2);
                begin(w, c);
                n_read += push(w, c, MIB);
        }
        assert_int_equal(n_read, 2);
        assert_int_equal(w->n_calls, 42);
        assert_true(allocated() < before + 40 * 256 * KIB);
        for (unsigned i = 0; i < 2; i++)
                assert_non_null(w->clients[i].link);
}

/* All places of units of runs are taken, by many of them: an operator's is not. */
static void test_places(void **state) {
        World *w = *state;
        unsigned n_read = 0;
        char run[ID_LENGTH + 1];

        for (unsigned i = 0; i < 40; i++) {
                Client *c;

                (void) snprintf(run, sizeof(run), "r%012u", i / 2);
                c = join(w, run, 1000);
                begin(w, c);
                n_read += push(w, c, MIB);
        }
        assert_int_equal(n_read, 16);
        assert_true(call_of(w, join(w, "", 0), MIB));
        assert_true(call_of(w, join(w, "r000000000000", 1000), 100));
}

static void test_too_large(void **state) {
        World *w = *state;
        Client *c = join(w, "", 0);

        assert_true(call_of(w, c, 2 * MIB - 300 * KIB));
        begin(w, c);
        assert_false(push(w, c, 4 * MIB));
        assert_true(is_closed(w, c));
        assert_true(c->written < 4 * MIB);

        intake_set_message_max(w->share, 100 * KIB);
        c = join(w, "", 0);
        assert_true(call_of(w, c, 90 * KIB));
        assert_false(call_of(w, c, 110 * KIB));
        assert_true(is_closed(w, c));
        /* also one that a socket holds */
        intake_set_message_max(w->share, 10 * KIB);
        c = join(w, "", 0);
        assert_true(call_of(w, c, 9 * KIB));
        assert_false(call_of(w, c, 11 * KIB));
        assert_true(is_closed(w, c));
}

/* How much a sender gets rid of who writes on while his message is read. */
static size_t flood(World *w, bool after) {
        Client *c = join(w, "", 0);

        begin(w, c);
        w->flood = c;
        w->flood_after = after;
        for (unsigned i = 0; c->link && i < 200; i++) {
                fill(c);
                turn(w);
        }
        w->flood = NULL;
        assert_true(is_closed(w, c));
        return c->written;
}

/* What he gets in beyond the limit is in the last read, or stays in the socket. */
static void test_too_large_while_it_is_written(void **state) {
        World *w = *state;
        Client *c = join(w, "", 0);
        size_t socket_holds;

        fill(c);
        socket_holds = c->written;
        intake_set_message_max(w->share, 256 * KIB);
        assert_in_range(flood(w, false), 256 * KIB, 256 * KIB + 2 * socket_holds);
        assert_in_range(flood(w, true), 256 * KIB, 256 * KIB + 2 * socket_holds);

        c = join(w, "", 0);
        assert_true(call_of(w, c, 250 * KIB));
        assert_true(call_of(w, c, 250 * KIB));
}

/* Who does not come to an end is not waited for; the larger it is, the shorter. */
static void test_time(void **state) {
        World *w = *state;
        Client *small, *large, *slow, *idle;
        uint64_t start;

        intake_set_times(w->share, 600 * 1000, 200 * 1000);
        idle = join(w, "", 0);
        slow = join(w, "", 1);
        small = join(w, "", 2);
        large = join(w, "", 3);
        begin(w, slow);
        begin(w, small);
        begin(w, large);
        assert_true(push(w, large, MIB));
        start = time_monotonic();
        while (large->link)
                assert_true(sd_event_run(w->event, 10000) >= 0);
        assert_true(time_monotonic() - start < 500 * 1000);
        assert_non_null(small->link);
        assert_true(finish(w, slow));
        while (small->link)
                assert_true(sd_event_run(w->event, 10000) >= 0);
        assert_true(is_closed(w, small) && is_closed(w, large));
        assert_true(call_of(w, slow, 0)); /* which was in time */
        assert_true(call_of(w, idle, 0)); /* which had nothing to say */
}

/* The first bytes bring a descriptor, and the rest is more than one read gets. */
static void test_with_descriptor(void **state) {
        union {
                char data[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
        } control = {};
        char *text = calloc(1, 150 * KIB);
        struct iovec iov = { .iov_base = text, .iov_len = 150 * KIB };
        struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.data, .msg_controllen = sizeof(control.data) };
        struct cmsghdr *head = CMSG_FIRSTHDR(&m);
        char answer[256];
        World *w = *state;
        Client *c = join(w, "", 0);

        memset(text, ' ', 150 * KIB);
        memcpy(text, call_begins, strlen(call_begins));
        memcpy(text + 150 * KIB - 2, "}", 2);
        *head = (struct cmsghdr) { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) };
        memcpy(CMSG_DATA(head), &(int) { STDERR_FILENO }, sizeof(int));
        assert_int_equal(sendmsg(c->fd, &m, 0), 150 * KIB);
        free(text);
        turn(w);
        assert_true(recv(c->fd, answer, sizeof(answer), MSG_DONTWAIT) > 0);
        assert_true(call_of(w, c, 0));
}

/* The other side goes in the middle of a message, small or large: so does the connection, and its place. */
static void test_gone(void **state) {
        World *w = *state;

        for (unsigned i = 0; i < 6; i++) {
                Client *c = join(w, "", 0);

                begin(w, c);
                (void) push(w, c, i % 2 == 0 ? KIB : MIB);
                assert_non_null(c->link);
                assert_int_equal(shutdown(c->fd, SHUT_RDWR), 0);
                turn(w);
                assert_null(c->link);
        }
        assert_true(call_of(w, join(w, "", 0), MIB));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_whole_messages, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_one_after_the_other, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_many_small_halves, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_many_large_halves, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_half_behind_a_whole, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_places, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_too_large, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_too_large_while_it_is_written, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_time, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_with_descriptor, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_gone, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
