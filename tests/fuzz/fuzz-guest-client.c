/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What a guest says, to the host's side of the channel with streams of each kind. The input is bytes of the channel in pieces, each with a byte before
 * it that says how long it is, or (255) stands for a frame as large as they get; the first byte says whether the guest has greeted already and whether its output is used up. Whatever comes: a session
 * begins once and is lost once, nothing is told of it afterwards; a stream has one exit and nothing after it, and never more output that nobody used
 * up than its window; and what the host says is its own side of the protocol.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "util/json.h"
#include "vmm/guest-client.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_STREAMS = 3, LARGE = 255 };

typedef struct World World;

typedef struct Seen {
        World *world;
        GuestStream *stream;
        ChannelType type;
        size_t waiting;
        bool gone;
} Seen;

struct World {
        Seen streams[N_STREAMS];
        int ready, lost;
        bool keep;
};

static void must(bool condition) {
        if (!condition)
                abort();
}

static void on_output(GuestStream *s, ChannelType type, const uint8_t *data, size_t size, void *userdata) {
        Seen *seen = userdata;
        unsigned sum = 0;

        must(seen->stream == s && !seen->gone && !seen->world->lost && size > 0);
        must(type == CHANNEL_STDOUT || type == CHANNEL_STDERR || type == CHANNEL_DATA);
        must((type == CHANNEL_DATA) == (seen->type == CHANNEL_GET));
        for (size_t i = 0; i < size; i++)
                sum += data[i];
        __asm__ volatile("" : : "r"(sum)); /* really read */

        seen->waiting += size;
        must(seen->waiting <= CHANNEL_WINDOW);
        if (!seen->world->keep) {
                guest_stream_consumed(s, seen->waiting);
                seen->waiting = 0;
        }
}

static void on_exit_frame(GuestStream *s, const GuestExit *e, void *userdata) {
        Seen *seen = userdata;

        must(seen->stream == s && !seen->gone && !seen->world->lost);
        must((e->kind == GUEST_EXIT_STATUS && e->value >= 0 && e->value <= 255) || (e->kind == GUEST_EXIT_SIGNAL && e->value >= 1 && e->value <= 64) ||
             (e->kind == GUEST_EXIT_ERRNO && e->value >= 1 && e->value <= 4095));
        seen->gone = true;
}

static void on_ready(GuestClient *c, json_t *hello, void *userdata) {
        static const GuestStreamHandler handler = { .output = on_output, .exit = on_exit_frame };
        static const ChannelType types[N_STREAMS] = { CHANNEL_EXEC, CHANNEL_GET, CHANNEL_PUT };
        World *w = userdata;

        must(w->ready++ == 0 && w->lost == 0 && json_is_object(hello));
        for (size_t i = 0; i < N_STREAMS; i++) {
                Seen *seen = w->streams + i;

                *seen = (Seen) { .world = w, .type = types[i] };
                must(guest_client_start(c, types[i], json_pack("{s:s}", "path", "x"), -1, &handler, seen, &seen->stream) == 0);
        }
}

static void on_lost(GuestClient *c, GuestLoss loss, const char *detail, void *userdata) {
        World *w = userdata;

        must(w->lost++ == 0 && detail[0]);
        for (const char *p = detail; *p; p++)
                must((unsigned char) *p >= ' '); /* part of it is the guest's, and goes to a terminal */
}

/* What the host has said is its own to say. */
static void hear(int fd, ChannelParser *p) {
        ChannelFrame f;
        uint8_t *to;
        size_t room;
        ssize_t n;
        int r;

        for (;;) {
                channel_parser_reserve(p, &to, &room);
                n = recv(fd, to, room, MSG_DONTWAIT);
                if (n <= 0)
                        return;
                channel_parser_commit(p, (size_t) n);
                while ((r = channel_parser_next(p, &f)) > 0)
                        ;
                must(r == 0);
        }
}

static void say(int fd, const void *data, size_t size) {
        must(send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t) size);
}

static void say_frame(int fd, ChannelType type, const char *payload) {
        uint8_t header[CHANNEL_HEADER_SIZE];

        channel_encode_header(header, type, 0, (uint32_t) strlen(payload));
        say(fd, header, sizeof(header));
        if (payload[0])
                say(fd, payload, strlen(payload));
}

/* So that windows can be filled by short inputs. */
static void say_large(int fd) {
        static uint8_t frame[CHANNEL_FRAME_MAX];

        channel_encode_header(frame, CHANNEL_STDOUT, 1, CHANNEL_PAYLOAD_MAX);
        say(fd, frame, sizeof(frame));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static const GuestClientHandler handler = { .ready = on_ready, .lost = on_lost };
        _cleanup_(channel_parser_freep) ChannelParser *heard = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(guest_client_freep) GuestClient *client = NULL;
        _cleanup_json_ json_t *hello = json_pack("{s:i}", "protocol", CHANNEL_VERSION);
        World w = {};
        int pair[2];

        if (size < 1)
                return 0;
        w.keep = data[0] & 2;
        must(sd_event_new(&event) >= 0 && channel_parser_new(&heard, CHANNEL_FROM_HOST) == 0);
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
        must(guest_client_new(&client, event, pair[0], hello, &handler, &w) == 0);
        if (data[0] & 1) {
                say_frame(pair[1], CHANNEL_HELLO, "{\"protocol\":1,\"boot_id\":\"b\"}");
                say_frame(pair[1], CHANNEL_SEED, "");
                say_frame(pair[1], CHANNEL_CLOCK, "");
        }

        data++;
        size--;
        while (size > 0 && !w.lost) {
                size_t n = data[0] == LARGE ? 0 : data[0];

                n = n < size - 1 ? n : size - 1;
                if (data[0] == LARGE)
                        say_large(pair[1]);
                else if (n > 0)
                        say(pair[1], data + 1, n);
                data += n + 1;
                size -= n + 1;
                while (!w.lost && sd_event_run(event, 0) > 0)
                        hear(pair[1], heard);
        }

        hear(pair[1], heard);
        (void) fd_close(pair[1]);
        while (!w.lost)
                must(sd_event_run(event, 1000000) > 0);
        return 0;
}
