/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The session: one loop over the port, SIGCHLD and every stream's descriptors.
 *
 * Frames to the host are encoded into one buffer that the port drains. Bulk output is read from a pipe
 * straight into that buffer, one chunk a stream and turn, only while the stream has credit and the buffer has more than
 * GUEST_OUT_RESERVE left; what is left is for answers, of which each frame of the host causes
 * at most two. The port is not read while less room than that is there. So memory is bounded by construction, and a flood
 * delays a ping by at most what the buffer holds.
 *
 * When the host goes away the session ends: every exec is killed, every stream forgotten, and the next hello
 * starts afresh.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "guest/guest.h"
#include "util/version.h"

enum {
        PORT_WAIT_USEC = 10 * 1000 * 1000,
        ABSENT_HOST_MSEC = 20, /* virtio ports report a missing peer as readiness, so this paces the loop */
        TICK_MSEC = 500,
        WHAT_MAX = 180,
};

/* ---- sending ---- */

size_t guest_out_room(const Guest *g) {
        return GUEST_OUT_SIZE - (g->out_end - g->out_start);
}

bool guest_has_room(const Guest *g) {
        return guest_out_room(g) > GUEST_OUT_RESERVE + CHANNEL_HEADER_SIZE;
}

/* Room for a whole frame at the buffer's end. */
static uint8_t *out_reserve(Guest *g, size_t size) {
        if (GUEST_OUT_SIZE - g->out_end < size) {
                memmove(g->out, g->out + g->out_start, g->out_end - g->out_start);
                g->out_end -= g->out_start;
                g->out_start = 0;
        }

        return GUEST_OUT_SIZE - g->out_end < size ? NULL : g->out + g->out_end;
}

void guest_send(Guest *g, ChannelType type, uint32_t stream, const void *payload, size_t size) {
        uint8_t *to = out_reserve(g, CHANNEL_HEADER_SIZE + size);

        if (!to) {
                guest_log("no room for a %s frame", channel_type_name(type)); /* excluded by the reserve */
                return;
        }

        channel_encode_header(to, type, stream, (uint32_t) size);
        if (size > 0)
                memcpy(to + CHANNEL_HEADER_SIZE, payload, size);
        g->out_end += CHANNEL_HEADER_SIZE + size;
}

void guest_send_json(Guest *g, ChannelType type, uint32_t stream, json_t *object) {
        char text[4096];
        size_t n = object ? json_dumpb(object, text, sizeof(text), JSON_COMPACT) : 0;

        if (n > 0 && n <= sizeof(text))
                guest_send(g, type, stream, text, n);
        else
                guest_send(g, type, stream, "{}", 2);
        json_decref(object);
}

void guest_send_exit_errno(Guest *g, uint32_t stream, int error, const char *what) {
        size_t n = strnlen(what, WHAT_MAX);
        char text[WHAT_MAX + 80];

        while (n > 0 && ((uint8_t) what[n] & 0xc0) == 0x80)
                n--; /* half a character is no text of JSON's */
        (void) snprintf(text, sizeof(text), "%.*s: %s", (int) n, what, strerror(error));
        guest_send_json(g, CHANNEL_EXIT, stream, json_pack("{s:i, s:s}", "errno", error, "error", text));
}

void guest_send_credit(Guest *g, Stream *s, uint32_t consumed) {
        uint32_t back = channel_receiver_consume(&s->receiver, consumed);
        uint8_t payload[4];

        if (back == 0)
                return;

        channel_encode_u32(payload, back);
        guest_send(g, CHANNEL_CREDIT, s->id, payload, sizeof(payload));
}

ssize_t guest_send_from(Guest *g, ChannelType type, Stream *s, int fd, size_t size) {
        size_t room = guest_out_room(g);
        uint8_t *to;
        ssize_t n;

        if (!guest_has_room(g))
                return -EAGAIN;

        room -= GUEST_OUT_RESERVE + CHANNEL_HEADER_SIZE;
        size = size < room ? size : room;
        size = size < s->sender.credit ? size : s->sender.credit;
        size = size < GUEST_CHUNK ? size : GUEST_CHUNK;
        if (size == 0)
                return -EAGAIN;

        to = out_reserve(g, CHANNEL_HEADER_SIZE + size);
        if (!to)
                return -EAGAIN;

        n = read(fd, to + CHANNEL_HEADER_SIZE, size);
        if (n < 0)
                return errno == EINTR ? -EAGAIN : -errno;
        if (n == 0)
                return 0;

        channel_encode_header(to, type, s->id, (uint32_t) n);
        g->out_end += CHANNEL_HEADER_SIZE + (size_t) n;
        s->sender.credit -= (uint32_t) n;
        return n;
}

static int flush_out(Guest *g) {
        while (g->out_start < g->out_end) {
                ssize_t n = write(g->port, g->out + g->out_start, g->out_end - g->out_start);

                if (n < 0)
                        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
                g->out_start += (size_t) n;
        }

        g->out_start = g->out_end = 0;
        return 0;
}

/* ---- streams ---- */

void stream_done(Stream *s) {
        if (s->kind == STREAM_PROCESS) {
                char path[64];

                (void) snprintf(path, sizeof(path), "/sys/fs/cgroup/exec-%u", s->id);
                (void) rmdir(path); /* stays, empty, while a killed process is not reaped yet */
        }

        (void) fd_close(s->fd);
        (void) fd_close(s->in);
        (void) fd_close(s->out);
        (void) fd_close(s->err);
        free(s->pending);
        free(s->java_store);
        *s = STREAM_INIT;
}

static Stream *find_stream(Guest *g, uint32_t id, StreamKind kind) {
        for (size_t i = 0; i < GUEST_STREAMS_MAX; i++)
                if (g->streams[i].kind == kind && (kind == STREAM_FREE || g->streams[i].id == id))
                        return g->streams + i;
        return NULL;
}

static void end_stream(Stream *s) {
        if (s->kind == STREAM_PROCESS)
                process_signal(s, SIGKILL);
        stream_done(s);
}

static void session_reset(Guest *g) {
        for (size_t i = 0; i < GUEST_STREAMS_MAX; i++)
                end_stream(g->streams + i);

        channel_parser_reset(g->parser);
        g->out_start = g->out_end = 0;
        g->greeted = g->seeded = g->clocked = false;
}

/* ---- frames ---- */

static void send_error(Guest *g, uint32_t stream, const char *reason) {
        guest_send_json(g, CHANNEL_ERROR, stream, json_pack("{s:s}", "reason", reason));
}

static void read_text(const char *path, char *ret, size_t size) {
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, ret, size - 1);

        ret[n > 0 ? n : 0] = 0;
        ret[strcspn(ret, "\n")] = 0;
}

static void on_hello(Guest *g, const json_t *hello) {
        const char *hostname = json_string_value(json_object_get(hello, "hostname"));
        const char *agent = json_string_value(json_object_get(hello, "agent"));
        json_t *network = json_object_get(hello, "network");
        struct utsname name = {};
        char boot_id[64];
        int r = 0;

        if (json_integer_value(json_object_get(hello, "protocol")) != CHANNEL_VERSION)
                return send_error(g, 0, "protocol versions differ");

        if (hostname)
                r = guest_setup_hostname(hostname);
        if (r < 0)
                guest_log("host name: %s", strerror(-r));

        if (json_is_object(network)) {
                r = guest_setup_network(network);
                if (r < 0)
                        return send_error(g, 0, "the network cannot be set up");
        }

        if (agent) {
                r = guest_mount_agent(agent);
                if (r < 0 && r != -EBUSY)
                        return send_error(g, 0, "the agent's image cannot be mounted");
        }

        (void) uname(&name);
        read_text("/proc/sys/kernel/random/boot_id", boot_id, sizeof(boot_id));
        g->greeted = true;
        guest_send_json(g, CHANNEL_HELLO, 0,
                        json_pack("{s:i, s:s, s:s, s:s, s:I}", "protocol", CHANNEL_VERSION, "boot_id", boot_id,
                                  "kernel", name.release, "version", ANCHORHOLD_VERSION, "uptime_us", (json_int_t) guest_now()));
}

/* Clones of one snapshot all start with the same generator: nothing may run before this. */
static void on_seed(Guest *g, const uint8_t *data, size_t size) {
        struct {
                struct rand_pool_info info;
                uint8_t bytes[CHANNEL_SEED_MAX];
        } pool = { .info = { .entropy_count = (int) size * 8, .buf_size = (int) size } };
        uint8_t id[16];
        char text[34];
        int fd, r = 0;

        memcpy((uint8_t *) &pool + offsetof(struct rand_pool_info, buf), data, size);
        fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
        if (fd < 0 || ioctl(fd, RNDADDENTROPY, &pool) < 0 || ioctl(fd, RNDRESEEDCRNG) < 0)
                r = -errno;
        (void) fd_close(fd);
        if (r < 0)
                return send_error(g, 0, "the seed cannot be mixed in");

        if (getrandom(id, sizeof(id), 0) == sizeof(id)) {
                for (size_t i = 0; i < sizeof(id); i++)
                        (void) snprintf(text + 2 * i, 3, "%02x", id[i]);
                memcpy(text + 32, "\n", 2);
                (void) guest_write_file("/etc/machine-id", text);
        }

        g->seeded = true;
        guest_send(g, CHANNEL_SEED, 0, NULL, 0);
}

static void on_clock(Guest *g, const json_t *clock) {
        json_int_t usec = json_integer_value(json_object_get(clock, "realtime_us"));
        struct timespec ts = { .tv_sec = usec / 1000000, .tv_nsec = usec % 1000000 * 1000 };

        if (usec <= 0 || clock_settime(CLOCK_REALTIME, &ts) < 0)
                return send_error(g, 0, "the clock cannot be set");

        g->clocked = true;
        guest_send(g, CHANNEL_CLOCK, 0, NULL, 0);
}

static void on_request(Guest *g, const ChannelFrame *f, const json_t *request) {
        Stream *s;

        if (!g->greeted || !g->seeded || !g->clocked)
                return send_error(g, 0, "hello, seed and clock come first");

        s = find_stream(g, 0, STREAM_FREE);
        if (!s)
                return guest_send_exit_errno(g, f->stream, EMFILE, "too many streams");

        *s = STREAM_INIT;
        s->id = f->stream;
        s->sender = CHANNEL_SENDER_INIT;
        s->receiver = CHANNEL_RECEIVER_INIT;

        if (f->type == CHANNEL_EXEC)
                (void) process_start(g, s, request);
        else if (f->type == CHANNEL_PUT)
                file_start_put(g, s, request);
        else
                file_start_get(g, s, request);
}

/* Frames for a stream that has ended meanwhile are no error: they were on their way. */
static void on_stream(Guest *g, const ChannelFrame *f, const json_t *request) {
        Stream *s = NULL;

        for (size_t i = 0; i < GUEST_STREAMS_MAX; i++)
                if (g->streams[i].kind != STREAM_FREE && g->streams[i].id == f->stream)
                        s = g->streams + i;
        if (!s)
                return;

        if (channel_type_has_credit(f->type) && channel_receiver_take(&s->receiver, f->size) < 0)
                return send_error(g, 0, "more than the stream's credit");

        if (f->type == CHANNEL_STDIN && s->kind == STREAM_PROCESS)
                process_take_stdin(g, s, f->payload, f->size);
        else if (f->type == CHANNEL_DATA && s->kind == STREAM_PUT)
                file_take_data(g, s, f->payload, f->size);
        else if (f->type == CHANNEL_SIGNAL && s->kind == STREAM_PROCESS)
                process_signal(s, (int) json_integer_value(json_object_get(request, "signal")));
        else if (f->type == CHANNEL_CREDIT && channel_sender_grant(&s->sender, f) < 0)
                send_error(g, 0, "credit beyond the window");
}

/* The scratch disk vanishes with the VM, so there is nothing to sync but what would only be thrown away. */
static void on_message(const json_t *message) {
        const char *text = json_string_value(json_object_get(message, "message"));

        if (text && strcmp(text, "poweroff") == 0)
                (void) reboot(RB_POWER_OFF);
}

static bool type_is_json(ChannelType type) {
        return type == CHANNEL_HELLO || type == CHANNEL_CLOCK || type == CHANNEL_EXEC || type == CHANNEL_SIGNAL ||
               type == CHANNEL_PUT || type == CHANNEL_GET || type == CHANNEL_MESSAGE;
}

static void on_frame(Guest *g, const ChannelFrame *f) {
        json_t *json = NULL;

        if (type_is_json(f->type)) {
                json = json_loadb((const char *) f->payload, f->size, 0, NULL);
                if (!json_is_object(json)) {
                        json_decref(json);
                        return send_error(g, 0, "not a JSON object");
                }
        }

        switch (f->type) {
        case CHANNEL_HELLO:
                on_hello(g, json);
                break;
        case CHANNEL_SEED:
                on_seed(g, f->payload, f->size);
                break;
        case CHANNEL_CLOCK:
                on_clock(g, json);
                break;
        case CHANNEL_EXEC:
        case CHANNEL_PUT:
        case CHANNEL_GET:
                on_request(g, f, json);
                break;
        case CHANNEL_MESSAGE:
                on_message(json);
                break;
        case CHANNEL_PING:
                guest_send(g, CHANNEL_PING, 0, f->payload, f->size);
                break;
        case CHANNEL_ERROR:
                session_reset(g);
                break;
        default:
                on_stream(g, f, json);
        }

        json_decref(json);
}

/* ---- the loop ---- */

static int find_port(char *ret, size_t size) {
        _cleanup_dir_ DIR *d = opendir("/sys/class/virtio-ports");
        char path[300], name[64];
        struct dirent *e;

        while (d && (e = readdir(d))) {
                (void) snprintf(path, sizeof(path), "/sys/class/virtio-ports/%.64s/name", e->d_name);
                read_text(path, name, sizeof(name));
                if (strcmp(name, CHANNEL_PORT_NAME) == 0) {
                        (void) snprintf(ret, size, "/dev/%.64s", e->d_name);
                        return 0;
                }
        }

        return -ENODEV;
}

static int open_port(void) {
        uint64_t end = guest_now() + PORT_WAIT_USEC;
        char path[80];
        int fd;

        while (find_port(path, sizeof(path)) < 0) {
                if (guest_now() > end) {
                        guest_log("no virtio-serial port named " CHANNEL_PORT_NAME);
                        return -ENODEV;
                }
                (void) usleep(1000);
        }

        fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* Returns -EPIPE when the host has gone, -EBADMSG for nonsense; both end the session. */
static int read_port(Guest *g) {
        ChannelFrame f;
        uint8_t *to;
        size_t room;
        ssize_t n;
        int r;

        channel_parser_reserve(g->parser, &to, &room);
        n = read(g->port, to, room);
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        if (n == 0)
                return -EPIPE;

        channel_parser_commit(g->parser, (size_t) n);
        while ((r = channel_parser_next(g->parser, &f)) > 0)
                on_frame(g, &f);
        return r;
}

/* Every stream gets one chunk; whoever was first is last the next time. */
static void serve_streams(Guest *g) {
        for (size_t i = 0; i < GUEST_STREAMS_MAX; i++) {
                Stream *s = g->streams + (g->turn + i) % GUEST_STREAMS_MAX;

                if (s->kind == STREAM_PROCESS) {
                        process_write_stdin(g, s);
                        process_read_output(g, s, &s->out, CHANNEL_STDOUT);
                        process_read_output(g, s, &s->err, CHANNEL_STDERR);
                        process_settle(g, s);
                } else if (s->kind == STREAM_GET)
                        file_send_data(g, s);
        }
        g->turn++;
}

static size_t add_poll(struct pollfd *fds, size_t n, int fd, short events) {
        fds[n] = (struct pollfd) { .fd = fd, .events = events };
        return n + 1;
}

/* What to wait for now; a stream without credit is not asked. Returns the time limit in *ret_msec. */
static size_t fill_poll(Guest *g, struct pollfd *fds, int *ret_msec) {
        bool room = guest_out_room(g) > GUEST_OUT_RESERVE + CHANNEL_FRAME_MAX;
        size_t n = 0;

        *ret_msec = -1;
        n = add_poll(fds, n, g->signals, POLLIN);
        n = add_poll(fds, n, g->port, (short) ((room ? POLLIN : 0) | (g->out_end > g->out_start ? POLLOUT : 0)));

        for (size_t i = 0; i < GUEST_STREAMS_MAX; i++) {
                Stream *s = g->streams + i;

                if (s->kind == STREAM_GET && room && s->sender.credit > 0)
                        *ret_msec = 0;
                if (s->kind != STREAM_PROCESS)
                        continue;
                if (s->in >= 0 && s->pending_start < s->pending_end)
                        n = add_poll(fds, n, s->in, POLLOUT);
                if (s->out >= 0 && room && s->sender.credit > 0)
                        n = add_poll(fds, n, s->out, POLLIN);
                if (s->err >= 0 && room && s->sender.credit > 0)
                        n = add_poll(fds, n, s->err, POLLIN);
                if (s->reaped && *ret_msec < 0)
                        *ret_msec = TICK_MSEC;
        }

        return n;
}

int guest_serve_once(Guest *g) {
        struct pollfd fds[2 + 3 * GUEST_STREAMS_MAX];
        struct signalfd_siginfo si;
        size_t n;
        int msec, r = 0;

        n = fill_poll(g, fds, &msec);
        if (poll(fds, n, msec) < 0)
                return errno == EINTR ? 0 : -errno;

        if (fds[0].revents) {
                while (read(g->signals, &si, sizeof(si)) == sizeof(si))
                        ;
                process_reap(g);
        }

        if (fds[1].revents & POLLIN)
                r = read_port(g);
        else if (fds[1].revents & POLLHUP)
                r = -EPIPE;
        if (r >= 0) {
                serve_streams(g);
                r = flush_out(g);
        }

        if (r == -EPIPE || r == -EBADMSG) {
                if (g->greeted)
                        guest_log("session over: %s", r == -EPIPE ? "the host has gone" : channel_parser_reason(g->parser));
                session_reset(g);
                (void) usleep(ABSENT_HOST_MSEC * 1000);
                r = 0;
        }

        return r;
}

int guest_init(Guest *g, int port) {
        sigset_t mask;
        int r;

        *g = (Guest) { .port = port, .signals = -1 };
        for (size_t i = 0; i < GUEST_STREAMS_MAX; i++)
                g->streams[i] = STREAM_INIT;

        (void) signal(SIGPIPE, SIG_IGN);
        (void) sigemptyset(&mask);
        (void) sigaddset(&mask, SIGCHLD);
        (void) sigprocmask(SIG_BLOCK, &mask, NULL);

        g->signals = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
        if (g->signals < 0)
                return -errno;

        g->out = malloc(GUEST_OUT_SIZE);
        if (!g->out)
                return -ENOMEM;

        r = channel_parser_new(&g->parser, CHANNEL_FROM_HOST);
        return r < 0 ? r : 0;
}

void guest_deinit(Guest *g) {
        for (size_t i = 0; i < GUEST_STREAMS_MAX; i++)
                end_stream(g->streams + i);

        g->parser = channel_parser_free(g->parser);
        free(g->out);
        g->out = NULL;
        g->signals = fd_close(g->signals);
        g->port = fd_close(g->port);
}

int guest_serve(void) {
        Guest g;
        int r;

        r = open_port();
        if (r < 0)
                return r;

        r = guest_init(&g, r);
        while (r >= 0)
                r = guest_serve_once(&g);

        guest_deinit(&g);
        return r;
}
