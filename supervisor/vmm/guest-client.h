/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The host's side of the guest channel, on an event loop: one session, its streams, their flow control. */

#include <jansson.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"
#include "vmm/channel.h"

typedef struct GuestClient GuestClient;
typedef struct GuestStream GuestStream;

/* Why a session ended. */
typedef enum GuestLoss {
        GUEST_GONE,          /* the connection was closed: the VM ended, or was stopped */
        GUEST_CHANNEL_ERROR, /* a malformed or impossible frame; nothing more is read */
        GUEST_REFUSED,       /* the guest reported an error of its own on stream 0 */
        GUEST_SILENT,        /* no answer to a ping */
} GuestLoss;

typedef struct GuestClientHandler {
        /* hello, seed and clock are acknowledged. `hello` is the guest's, borrowed. */
        void (*ready)(GuestClient *c, json_t *hello, void *userdata);
        /* Once, and nothing after it; streams get no exit. `detail` is text for a log, partly the guest's.
         * The client must not be freed in it, nor in any other handler: leave that to the loop's next turn. */
        void (*lost)(GuestClient *c, GuestLoss loss, const char *detail, void *userdata);
} GuestClientHandler;

/* Takes fd over on success and starts at once: hello (borrowed object), seed, clock. `handler` must outlive the client. */
int guest_client_new(GuestClient **ret, sd_event *event, int fd, json_t *hello,
                     const GuestClientHandler *handler, void *userdata);
GuestClient *guest_client_free(GuestClient *c); /* frees its streams, calls no handler any more */
DEFINE_CLEANUP(GuestClient *, guest_client_free)

int guest_client_poweroff(GuestClient *c);

/* How a stream ended: as the guest says. */
typedef struct GuestExit {
        enum { GUEST_EXIT_STATUS, GUEST_EXIT_SIGNAL, GUEST_EXIT_ERRNO } kind;
        int value;
        const char *text; /* with an errno; borrowed, hostile */
} GuestExit;

typedef struct GuestStreamHandler {
        /* Bytes of stdout, stderr or data. They count against the guest's window until
         * guest_stream_consumed() is called for them. May be NULL: then they are dropped. */
        void (*output)(GuestStream *s, ChannelType type, const uint8_t *data, size_t size, void *userdata);
        /* The last call; the stream is freed after it. */
        void (*exit)(GuestStream *s, const GuestExit *e, void *userdata);
} GuestStreamHandler;

/* Starts a stream. `request` is the JSON object of exec, put or get and is taken over, also on failure.
 * input_fd: a file whose bytes go as stdin (exec) or data (put), from its offset to its end; -1 for none;
 * duplicated. -E2BIG if the request does not fit into a frame. The stream belongs to the client. */
int guest_client_start(GuestClient *c, ChannelType type, json_t *request, int input_fd,
                       const GuestStreamHandler *handler, void *userdata, GuestStream **ret);

void guest_stream_consumed(GuestStream *s, size_t size);
int guest_stream_signal(GuestStream *s, int signal);

/* Gives the stream up: no handler any more, frames for it are dropped; its memory goes at its exit. */
void guest_stream_abandon(GuestStream *s);
