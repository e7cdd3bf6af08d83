/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * For tests of the guest's own code: its loop in this process, on one end of a pair of sockets, and the test as the host on the other.
 * Mounts, network and host name are the test's own; so is the cgroup that stands where the microVM's root of them would be. What a guest does to its
 * machine and a test may not do to this one is below, in place of the C library's.
 */

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "guest/guest.h"
#include "own-world.h"
#include "util/json.h"

enum { HOST_STREAMS = GUEST_STREAMS_MAX + 8, SAID_MAX = 1024 * 1024 };

/* What came for one stream. */
typedef struct Said {
        char *out, *err;             /* owned: stdout or data, and stderr; of a flood the beginning */
        size_t n_out, n_err;
        unsigned n_out_ends, n_err_ends;
        json_t *exit;                /* owned */
        uint64_t credit;             /* given back by the guest */
} Said;

typedef struct Host {
        Guest g;
        int fd;
        ChannelParser *parser;
        Said said[HOST_STREAMS];
        unsigned count[_CHANNEL_TYPE_MAX];
        json_t *error, *hello;       /* owned: the last ones */
        uint8_t ping[CHANNEL_PING_MAX];
        size_t n_ping;
        size_t owed[HOST_STREAMS];   /* credit, given between two frames */
        bool keep;                   /* give none */
} Host;

static unsigned n_clocks_set, n_power_offs;
static struct timespec clock_set;

int clock_settime(clockid_t clock, const struct timespec *ts) {
        n_clocks_set++;
        clock_set = *ts;
        return 0;
}

int reboot(int how) {
        assert_int_equal(how, RB_POWER_OFF);
        n_power_offs++;
        return 0;
}

/* ---- the place ---- */

#define CGROUPS "/run/cgroups"

static char own_cgroup[] = CGROUPS "/test-guest-XXXXXX";

static inline int guest_world_enter(void **state) {
        own_world_enter(CLONE_NEWNET | CLONE_NEWUTS);
        own_world_cover("/etc");
        assert_int_equal(mount("tmpfs", "/tmp", "tmpfs", 0, NULL), 0);
        assert_int_equal(mount("tmpfs", "/sys", "tmpfs", 0, NULL), 0);
        assert_int_equal(mkdir("/sys/fs", 0755), 0);
        assert_int_equal(mkdir("/sys/fs/cgroup", 0755), 0);
        assert_int_equal(mkdir(CGROUPS, 0755), 0);
        assert_int_equal(mount("cgroup2", CGROUPS, "cgroup2", 0, NULL), 0);
        assert_non_null(mkdtemp(own_cgroup));
        assert_int_equal(mount(own_cgroup, "/sys/fs/cgroup", NULL, MS_BIND, NULL), 0);
        return 0;
}

/* What was killed is not gone yet when that is said. */
static inline void remove_cgroup(const char *path) {
        while (rmdir(path) < 0 && errno == EBUSY)
                (void) usleep(1000);
}

static inline void remove_cgroups_of_execs(void) {
        for (uint32_t id = 1; id < HOST_STREAMS; id++) {
                char path[64];

                (void) snprintf(path, sizeof(path), "/sys/fs/cgroup/exec-%u", id);
                remove_cgroup(path);
        }
}

/* Also of a test that failed. */
static inline int guest_world_leave(void **state) {
        assert_int_equal(guest_write_file("/sys/fs/cgroup/cgroup.kill", "1"), 0);
        remove_cgroups_of_execs();
        remove_cgroup(own_cgroup);
        return 0;
}

/* A guest that has heard everything it wants to hear before it works; what that is, test-guest-session says. */
static inline Host *host_new(bool begun) {
        Host *h = calloc(1, sizeof(*h));
        int pair[2];

        assert_non_null(h);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
        h->fd = pair[0];
        assert_int_equal(channel_parser_new(&h->parser, CHANNEL_FROM_GUEST), 0);
        assert_int_equal(guest_init(&h->g, pair[1]), 0);
        h->g.greeted = h->g.seeded = h->g.clocked = begun;
        return h;
}

static inline void said_done(Said *s) {
        free(s->out);
        free(s->err);
        json_decref(s->exit);
        *s = (Said) {};
}

/* All that the guest started is gone, and so are the cgroups of it. */
static inline void host_free(Host *h) {
        siginfo_t si;

        guest_deinit(&h->g);
        while (waitid(P_ALL, 0, &si, WEXITED) == 0)
                ;
        remove_cgroups_of_execs();

        for (size_t i = 0; i < HOST_STREAMS; i++)
                said_done(h->said + i);
        json_decref(h->error);
        json_decref(h->hello);
        h->parser = channel_parser_free(h->parser);
        h->fd = fd_close(h->fd);
        free(h);
}

/* ---- the host's words ---- */

static inline bool host_hear(Host *h);

static inline void host_write(Host *h, const void *data, size_t size) {
        for (size_t done = 0; done < size;) {
                ssize_t n = write(h->fd, (const uint8_t *) data + done, size - done);

                if (n >= 0)
                        done += (size_t) n;
                else {
                        assert_int_equal(errno, EAGAIN);
                        if (!host_hear(h))
                                assert_int_equal(guest_serve_once(&h->g), 0);
                }
        }
}

static inline void host_say(Host *h, ChannelType type, uint32_t stream, const void *payload, size_t size) {
        uint8_t header[CHANNEL_HEADER_SIZE];

        channel_encode_header(header, type, stream, (uint32_t) size);
        host_write(h, header, sizeof(header));
        host_write(h, payload, size);
}

static inline void host_say_text(Host *h, ChannelType type, uint32_t stream, const char *text) {
        host_say(h, type, stream, text, strlen(text));
}

/* ---- the guest's ---- */

static inline void append(char **to, size_t *n, const ChannelFrame *f) {
        if (!*to)
                *to = malloc(SAID_MAX + 1);
        assert_non_null(*to);
        if (*n + f->size <= SAID_MAX) {
                memcpy(*to + *n, f->payload, f->size);
                (*to)[*n + f->size] = 0;
        }
        *n += f->size;
}

static inline json_t *parse_object(const ChannelFrame *f) {
        json_t *j = json_loadb((const char *) f->payload, f->size, 0, NULL);

        assert_true(json_is_object(j));
        return j;
}

static inline void host_take(Host *h, const ChannelFrame *f) {
        Said *s = h->said + f->stream;

        assert_true(f->stream < HOST_STREAMS);
        assert_null(s->exit); /* which is the last frame of a stream */
        h->count[f->type]++;
        switch (f->type) {
        case CHANNEL_HELLO:
                json_decref(h->hello);
                h->hello = parse_object(f);
                break;
        case CHANNEL_ERROR:
                json_decref(h->error);
                h->error = parse_object(f);
                break;
        case CHANNEL_PING:
                memcpy(h->ping, f->payload, f->size);
                h->n_ping = f->size;
                break;
        case CHANNEL_STDOUT:
        case CHANNEL_DATA:
                append(&s->out, &s->n_out, f);
                s->n_out_ends += f->size == 0;
                break;
        case CHANNEL_STDERR:
                append(&s->err, &s->n_err, f);
                s->n_err_ends += f->size == 0;
                break;
        case CHANNEL_CREDIT:
                s->credit += channel_decode_u32(f->payload);
                break;
        case CHANNEL_EXIT:
                s->exit = parse_object(f);
                break;
        default:
                break;
        }
}

/* Everything that the guest has said until now; false: nothing new. */
static inline bool host_hear(Host *h) {
        bool heard = false;
        ChannelFrame f;
        uint8_t *to;
        size_t room;
        ssize_t n;
        int r;

        for (;;) {
                channel_parser_reserve(h->parser, &to, &room);
                n = read(h->fd, to, room);
                if (n <= 0)
                        return heard;
                heard = true;
                channel_parser_commit(h->parser, (size_t) n);
                while ((r = channel_parser_next(h->parser, &f)) > 0) {
                        host_take(h, &f);
                        if (channel_type_has_credit(f.type))
                                h->owed[f.stream] += f.size;
                }
                assert_int_equal(r, 0);
        }
}

static inline void host_give_credit(Host *h, uint32_t stream, uint32_t n) {
        uint8_t payload[4];

        channel_encode_u32(payload, n);
        host_say(h, CHANNEL_CREDIT, stream, payload, sizeof(payload));
}

/* One turn of both: the guest's loop waits if it has nothing to do, so this is for when something is to come. */
static inline void host_turn(Host *h) {
        for (uint32_t id = 1; id < HOST_STREAMS && h->fd >= 0 && !h->keep; id++) {
                size_t owed = h->owed[id];

                h->owed[id] = 0;
                if (owed > 0 && !h->said[id].exit)
                        host_give_credit(h, id, (uint32_t) owed);
        }

        if (h->fd < 0 || !host_hear(h))
                assert_int_equal(guest_serve_once(&h->g), 0);
}

#define TURN_UNTIL(h, condition)        \
        while (!(condition))            \
                host_turn(h)

/* ---- whole requests ---- */

static inline Said *host_wait(Host *h, uint32_t stream) {
        TURN_UNTIL(h, h->said[stream].exit);
        return h->said + stream;
}

/* `type` with this object, to its end. */
static inline Said *host_ask(Host *h, ChannelType type, uint32_t stream, const char *request) {
        host_say_text(h, type, stream, request);
        return host_wait(h, stream);
}

/* One argument for sh, in a string of JSON: without quotation marks and backslashes. */
static inline void host_start_shell(Host *h, uint32_t stream, const char *script, bool with_stdin) {
        char request[2048];

        assert_true(strlen(script) < sizeof(request) - 64);
        (void) snprintf(request, sizeof(request), "{\"argv\": [\"/bin/sh\", \"-c\", \"%s\"], \"stdin\": %s}", script, with_stdin ? "true" : "false");
        host_say_text(h, CHANNEL_EXEC, stream, request);
}

static inline Said *host_shell(Host *h, uint32_t stream, const char *script) {
        host_start_shell(h, stream, script, false);
        return host_wait(h, stream);
}

static inline int exit_number(const Said *s, const char *name) {
        json_t *number = json_object_get(s->exit, name);

        return json_is_integer(number) ? (int) json_integer_value(number) : -1;
}
