/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Host side of the guest channel.
 *
 * What a hostile guest can do here: send any bytes at any speed. Each turn of the loop reads at most two
 * frames' worth of them, at a lower priority than timers and everything else, so a flood delays nothing. Frames are checked by the
 * parser, then against the session's state: an answer that was not asked for, a stream that does not exist or has
 * ended, bytes beyond the credit, a second hello: each ends the session with a reason. Memory is
 * bounded by the parser's buffer, the output buffer, and CHANNEL_WINDOW for each stream that we opened.
 *
 * Frames to the guest go through one bounded buffer as well; input of streams is read from its file only while there is
 * room in it.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "util/io.h"
#include "util/text.h"
#include "vmm/guest-client.h"

enum {
        STREAMS_MAX = 16,
        OUT_SIZE = 4 * CHANNEL_FRAME_MAX,
        INPUT_CHUNK = 32 * 1024,
        OUT_RESERVE = CHANNEL_FRAME_MAX + 1024, /* room that input leaves to requests */
        SEED_SIZE = 64,
        PING_INTERVAL_USEC = 10 * 1000 * 1000,
        PING_TIMEOUT_USEC = 60 * 1000 * 1000,
        IO_PRIORITY = SD_EVENT_PRIORITY_NORMAL + 10,
};

typedef enum Phase { WAIT_HELLO, WAIT_SEED, WAIT_CLOCK, READY, LOST } Phase;

struct GuestStream {
        GuestClient *client; /* borrowed */
        uint32_t id;
        ChannelType type;
        ChannelSender sender;
        ChannelReceiver receiver;
        bool ended[_CHANNEL_TYPE_MAX]; /* stdout, stderr, data: the empty frame has come */
        int input;                     /* owned; -1: none or all sent */
        const GuestStreamHandler *handler; /* borrowed; NULL: abandoned */
        void *userdata;
};

struct GuestClient {
        sd_event *event;              /* ref */
        sd_event_source *io, *pinger; /* ref */
        int fd;                       /* owned */
        Phase phase;
        ChannelParser *parser;        /* owned */
        const GuestClientHandler *handler;
        void *userdata;
        uint32_t last_stream;
        GuestStream *streams[STREAMS_MAX]; /* owned */
        uint64_t ping_cookie, ping_sent_usec; /* cookie 0: none under way */
        json_t *hello;                /* owned; the guest's */
        uint8_t out[OUT_SIZE];
        size_t out_start, out_end;
};

static void client_pump(GuestClient *c);

static GuestStream *stream_free(GuestStream *s) {
        if (s)
                s->input = fd_close(s->input);
        free(s);
        return NULL;
}

GuestClient *guest_client_free(GuestClient *c) {
        if (!c)
                return NULL;

        for (size_t i = 0; i < STREAMS_MAX; i++)
                c->streams[i] = stream_free(c->streams[i]);
        c->io = sd_event_source_disable_unref(c->io);
        c->pinger = sd_event_source_disable_unref(c->pinger);
        c->fd = fd_close(c->fd);
        (void) channel_parser_free(c->parser);
        json_decref(c->hello);
        c->event = sd_event_unref(c->event);
        free(c);
        return NULL;
}

_printf_(3, 4) static void client_lose(GuestClient *c, GuestLoss loss, const char *format, ...) {
        char detail[256];
        va_list ap;

        if (c->phase == LOST)
                return;

        va_start(ap, format);
        (void) vsnprintf(detail, sizeof(detail), format, ap);
        va_end(ap);

        c->phase = LOST;
        c->io = sd_event_source_disable_unref(c->io);
        c->pinger = sd_event_source_disable_unref(c->pinger);
        c->fd = fd_close(c->fd);
        c->handler->lost(c, loss, detail, c->userdata);
}

/* ---- to the guest ---- */

static size_t out_room(const GuestClient *c) {
        return OUT_SIZE - (c->out_end - c->out_start);
}

static uint8_t *out_reserve(GuestClient *c, size_t size) {
        if (size > out_room(c))
                return NULL;
        if (size > OUT_SIZE - c->out_end) {
                memmove(c->out, c->out + c->out_start, c->out_end - c->out_start);
                c->out_end -= c->out_start;
                c->out_start = 0;
        }

        return c->out + c->out_end;
}

static int client_flush(GuestClient *c) {
        while (c->out_start < c->out_end) {
                ssize_t n = send(c->fd, c->out + c->out_start, c->out_end - c->out_start, MSG_NOSIGNAL | MSG_DONTWAIT);

                if (n < 0) {
                        if (errno == EAGAIN)
                                break;
                        /* What the guest sent before it went is still to be read; that ends in EOF. */
                        c->out_start = c->out_end;
                        break;
                }
                c->out_start += (size_t) n;
        }

        return sd_event_source_set_io_events(c->io, EPOLLIN | (c->out_start < c->out_end ? EPOLLOUT : 0));
}

static int client_send(GuestClient *c, ChannelType type, uint32_t stream, const void *payload, size_t size) {
        uint8_t *to;

        if (c->phase == LOST)
                return -EPIPE;

        to = out_reserve(c, CHANNEL_HEADER_SIZE + size);
        if (!to)
                return -ENOBUFS;

        channel_encode_header(to, type, stream, (uint32_t) size);
        if (size > 0)
                memcpy(to + CHANNEL_HEADER_SIZE, payload, size);
        c->out_end += CHANNEL_HEADER_SIZE + size;
        return client_flush(c);
}

static int client_send_json(GuestClient *c, ChannelType type, uint32_t stream, const json_t *object) {
        _cleanup_free_ char *text = json_dumps(object, JSON_COMPACT);
        size_t size;

        if (!text)
                return -ENOMEM;

        size = strlen(text);
        return size > CHANNEL_PAYLOAD_MAX ? -E2BIG : client_send(c, type, stream, text, size);
}

/* One chunk of a stream's input. True if it may go on at once. */
static bool stream_pump(GuestStream *s) {
        ChannelType type = s->type == CHANNEL_EXEC ? CHANNEL_STDIN : CHANNEL_DATA;
        uint8_t data[INPUT_CHUNK];
        size_t size = sizeof(data);
        ssize_t n;

        if (s->input < 0 || s->sender.credit == 0 || out_room(s->client) < OUT_RESERVE + CHANNEL_HEADER_SIZE + INPUT_CHUNK)
                return false;

        size = size < s->sender.credit ? size : s->sender.credit;
        n = read(s->input, data, size);
        if (n <= 0) {
                s->input = fd_close(s->input); /* a file of our own: an error is its end */
                n = 0;
        }

        s->sender.credit -= (uint32_t) n;
        return client_send(s->client, type, s->id, data, (size_t) n) >= 0 && n > 0;
}

static void client_pump(GuestClient *c) {
        bool more = true;

        while (more && c->phase == READY) {
                more = false;
                for (size_t i = 0; i < STREAMS_MAX; i++)
                        if (c->streams[i] && stream_pump(c->streams[i]))
                                more = true;
        }
}

/* ---- from the guest ---- */

static GuestStream **find_stream(GuestClient *c, uint32_t id) {
        for (size_t i = 0; i < STREAMS_MAX; i++)
                if (c->streams[i] && c->streams[i]->id == id)
                        return c->streams + i;
        return NULL;
}

static void on_handshake(GuestClient *c, const ChannelFrame *f) {
        static const ChannelType expected[] = {
                [WAIT_HELLO] = CHANNEL_HELLO, [WAIT_SEED] = CHANNEL_SEED, [WAIT_CLOCK] = CHANNEL_CLOCK,
        };

        if (f->type == CHANNEL_EVENT)
                return;
        if (f->type != expected[c->phase])
                return client_lose(c, GUEST_CHANNEL_ERROR, "%s instead of %s", channel_type_name(f->type),
                                   channel_type_name(expected[c->phase]));

        if (f->type == CHANNEL_HELLO) {
                json_t *hello = json_loadb((const char *) f->payload, f->size, JSON_REJECT_DUPLICATES, NULL);

                if (!json_is_object(hello) || json_integer_value(json_object_get(hello, "protocol")) != CHANNEL_VERSION ||
                    !json_is_string(json_object_get(hello, "boot_id"))) {
                        json_decref(hello);
                        return client_lose(c, GUEST_CHANNEL_ERROR, "hello is not what it should be");
                }
                c->hello = hello;
        }

        c->phase++;
        if (c->phase == READY)
                c->handler->ready(c, c->hello, c->userdata);
}

static void on_ping(GuestClient *c, const ChannelFrame *f) {
        if (c->ping_cookie == 0 || f->size != sizeof(c->ping_cookie) ||
            memcmp(f->payload, &c->ping_cookie, sizeof(c->ping_cookie)) != 0)
                return client_lose(c, GUEST_CHANNEL_ERROR, "a ping that nobody sent");

        c->ping_cookie = 0;
}

static void on_output(GuestStream *s, const ChannelFrame *f) {
        if (s->ended[f->type])
                return client_lose(s->client, GUEST_CHANNEL_ERROR, "%s after its end", channel_type_name(f->type));
        if ((f->type == CHANNEL_DATA) != (s->type == CHANNEL_GET))
                return client_lose(s->client, GUEST_CHANNEL_ERROR, "%s on a stream of %s", channel_type_name(f->type),
                                   channel_type_name(s->type));
        if (channel_receiver_take(&s->receiver, f->size) < 0)
                return client_lose(s->client, GUEST_CHANNEL_ERROR, "%s beyond the stream's credit", channel_type_name(f->type));

        if (f->size == 0)
                s->ended[f->type] = true;
        else if (s->handler && s->handler->output)
                s->handler->output(s, f->type, f->payload, f->size, s->userdata);
        else
                guest_stream_consumed(s, f->size);
}

/* {"status": 0..255} or {"signal": 1..64} or {"errno": …, "error": …} */
static int parse_exit(const json_t *j, GuestExit *ret) {
        json_t *value;

        if ((value = json_object_get(j, "status"))) {
                ret->kind = GUEST_EXIT_STATUS;
                if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > 255)
                        return -EBADMSG;
        } else if ((value = json_object_get(j, "signal"))) {
                ret->kind = GUEST_EXIT_SIGNAL;
                if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > 64)
                        return -EBADMSG;
        } else if ((value = json_object_get(j, "errno"))) {
                ret->kind = GUEST_EXIT_ERRNO;
                ret->text = json_string_value(json_object_get(j, "error"));
                if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > 4095)
                        return -EBADMSG;
        } else
                return -EBADMSG;

        ret->value = (int) json_integer_value(value);
        return 0;
}

static void on_exit_frame(GuestClient *c, GuestStream **slot, const ChannelFrame *f) {
        GuestStream *s = *slot;
        json_t *j = json_loadb((const char *) f->payload, f->size, JSON_REJECT_DUPLICATES, NULL);
        GuestExit e = {};

        if (!json_is_object(j) || parse_exit(j, &e) < 0)
                client_lose(c, GUEST_CHANNEL_ERROR, "exit is not what it should be");
        else {
                *slot = NULL;
                if (s->handler)
                        s->handler->exit(s, &e, s->userdata);
                (void) stream_free(s);
        }

        json_decref(j);
}

static void on_error_frame(GuestClient *c, const ChannelFrame *f) {
        json_t *j = json_loadb((const char *) f->payload, f->size, 0, NULL);
        const char *reason = json_string_value(json_object_get(j, "reason"));
        _cleanup_free_ char *text = reason ? text_escape(reason, strlen(reason), false) : NULL;

        client_lose(c, GUEST_REFUSED, "%.200s", text ?: "no reason given");
        json_decref(j);
}

static void on_frame(GuestClient *c, const ChannelFrame *f) {
        GuestStream **slot = NULL;

        if (f->type == CHANNEL_ERROR)
                return on_error_frame(c, f);
        if (c->phase < READY)
                return on_handshake(c, f);
        if (f->type == CHANNEL_EVENT)
                return; /* nothing that a guest says of itself is worth keeping yet */
        if (f->type == CHANNEL_PING)
                return on_ping(c, f);

        if (f->stream > 0)
                slot = find_stream(c, f->stream);
        if (f->type == CHANNEL_HELLO)
                return client_lose(c, GUEST_CHANNEL_ERROR, "a second hello: the guest has booted anew");
        if (!slot)
                return client_lose(c, GUEST_CHANNEL_ERROR, "%s on stream %u, which is not open",
                                   channel_type_name(f->type), f->stream);

        if (f->type == CHANNEL_EXIT)
                on_exit_frame(c, slot, f);
        else if (f->type == CHANNEL_CREDIT) {
                if (channel_sender_grant(&(*slot)->sender, f) < 0)
                        client_lose(c, GUEST_CHANNEL_ERROR, "credit beyond the window");
        } else
                on_output(*slot, f);
}

static int client_on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        GuestClient *c = userdata;
        ChannelFrame f;
        uint8_t *to;
        size_t room;
        ssize_t n;
        int r;

        if (revents & EPOLLOUT && client_flush(c) < 0)
                client_lose(c, GUEST_GONE, "cannot write to the channel");

        if (c->phase != LOST && revents & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
                channel_parser_reserve(c->parser, &to, &room);
                n = recv(fd, to, room, MSG_DONTWAIT);
                if (n > 0) {
                        channel_parser_commit(c->parser, (size_t) n);
                        while (c->phase != LOST && (r = channel_parser_next(c->parser, &f)) != 0) {
                                if (r < 0)
                                        client_lose(c, GUEST_CHANNEL_ERROR, "%s", channel_parser_reason(c->parser));
                                else
                                        on_frame(c, &f);
                        }
                } else if (n == 0 || errno != EAGAIN)
                        client_lose(c, GUEST_GONE, "the virtual machine has ended");
        }

        client_pump(c);
        return 0;
}

static int client_on_pinger(sd_event_source *source, uint64_t usec, void *userdata) {
        GuestClient *c = userdata;

        if (c->phase == READY && c->ping_cookie == 0) {
                if (getrandom(&c->ping_cookie, sizeof(c->ping_cookie), 0) < 0 || c->ping_cookie == 0)
                        c->ping_cookie = 1;
                c->ping_sent_usec = time_monotonic();
                (void) client_send(c, CHANNEL_PING, 0, &c->ping_cookie, sizeof(c->ping_cookie));
        } else if (c->phase == READY && time_monotonic() - c->ping_sent_usec > PING_TIMEOUT_USEC) {
                client_lose(c, GUEST_SILENT, "no answer for %u s", PING_TIMEOUT_USEC / 1000000);
                return 0;
        }

        (void) sd_event_source_set_time_relative(source, PING_INTERVAL_USEC);
        return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

/* ---- for the caller ---- */

static int client_greet(GuestClient *c, const json_t *hello) {
        char clock[64];
        uint8_t seed[SEED_SIZE];
        int r;

        if (getrandom(seed, sizeof(seed), 0) != sizeof(seed))
                return -EIO;

        r = client_send_json(c, CHANNEL_HELLO, 0, hello);
        if (r < 0)
                return r;

        r = client_send(c, CHANNEL_SEED, 0, seed, sizeof(seed));
        explicit_bzero(seed, sizeof(seed));
        if (r < 0)
                return r;

        (void) snprintf(clock, sizeof(clock), "{\"realtime_us\":%llu}", (unsigned long long) time_realtime());
        return client_send(c, CHANNEL_CLOCK, 0, clock, strlen(clock));
}

int guest_client_new(GuestClient **ret, sd_event *event, int fd, json_t *hello,
                     const GuestClientHandler *handler, void *userdata) {
        _cleanup_(guest_client_freep) GuestClient *c = NULL;
        int r;

        c = calloc(1, sizeof(*c));
        if (!c)
                return -ENOMEM;

        c->fd = -1;
        c->handler = handler;
        c->userdata = userdata;
        c->event = sd_event_ref(event);

        r = channel_parser_new(&c->parser, CHANNEL_FROM_GUEST);
        if (r < 0)
                return r;

        r = io_set_nonblock(fd, true);
        if (r < 0)
                return r;

        r = sd_event_add_io(event, &c->io, fd, EPOLLIN, client_on_io, c);
        if (r < 0)
                return r;

        r = sd_event_source_set_priority(c->io, IO_PRIORITY);
        if (r < 0)
                return r;

        r = sd_event_add_time_relative(event, &c->pinger, CLOCK_MONOTONIC, PING_INTERVAL_USEC, 0, client_on_pinger, c);
        if (r < 0)
                return r;

        c->fd = fd;
        r = client_greet(c, hello);
        if (r < 0) {
                c->fd = -1; /* stays the caller's */
                return r;
        }

        *ret = TAKE_PTR(c);
        return 0;
}

int guest_client_poweroff(GuestClient *c) {
        static const char message[] = "{\"message\":\"poweroff\"}";

        return client_send(c, CHANNEL_MESSAGE, 0, message, sizeof(message) - 1);
}

int guest_client_start(GuestClient *c, ChannelType type, json_t *request, int input_fd,
                       const GuestStreamHandler *handler, void *userdata, GuestStream **ret) {
        GuestStream **slot = NULL, *s;
        int r;

        for (size_t i = 0; i < STREAMS_MAX && !slot; i++)
                if (!c->streams[i])
                        slot = c->streams + i;

        s = slot && request && c->phase == READY ? calloc(1, sizeof(*s)) : NULL;
        if (!s) {
                json_decref(request);
                return c->phase != READY ? -EPIPE : !slot ? -EMFILE : -ENOMEM;
        }

        *s = (GuestStream) {
                .client = c,
                .id = c->last_stream + 1,
                .type = type,
                .sender = CHANNEL_SENDER_INIT,
                .receiver = CHANNEL_RECEIVER_INIT,
                .input = -1,
                .handler = handler,
                .userdata = userdata,
        };

        if (input_fd >= 0) {
                s->input = fcntl(input_fd, F_DUPFD_CLOEXEC, 3);
                r = s->input < 0 ? -errno : 0;
        } else
                r = 0;
        if (r >= 0 && type == CHANNEL_EXEC)
                r = json_object_set_new(request, "stdin", json_boolean(input_fd >= 0)) < 0 ? -ENOMEM : 0;
        if (r >= 0)
                r = client_send_json(c, type, s->id, request);
        json_decref(request);
        if (r < 0) {
                (void) stream_free(s);
                return r;
        }

        c->last_stream++;
        *slot = s;
        if (ret)
                *ret = s;
        client_pump(c);
        return 0;
}

void guest_stream_consumed(GuestStream *s, size_t size) {
        uint32_t back = channel_receiver_consume(&s->receiver, (uint32_t) size);
        uint8_t payload[4];

        if (back == 0)
                return;

        channel_encode_u32(payload, back);
        /* A guest that lets this buffer fill up with credits does not read its channel. */
        if (client_send(s->client, CHANNEL_CREDIT, s->id, payload, sizeof(payload)) == -ENOBUFS)
                client_lose(s->client, GUEST_SILENT, "the guest does not read its channel");
}

int guest_stream_signal(GuestStream *s, int number) {
        char text[32];
        int n = snprintf(text, sizeof(text), "{\"signal\":%d}", number);

        return client_send(s->client, CHANNEL_SIGNAL, s->id, text, (size_t) n);
}

void guest_stream_abandon(GuestStream *s) {
        s->handler = NULL;
        s->input = fd_close(s->input);
}
