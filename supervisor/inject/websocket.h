/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * One direction of a WebSocket (RFC 6455): frames are read strictly, what they carry is searched and masked, and goes on in frames
 * of our own. Pure: bytes in, bytes out.
 */

#include <stdbool.h>

#include "inject/buffer.h"
#include "inject/mask.h"

typedef struct Websocket Websocket;

enum {
        WEBSOCKET_PROTOCOL_ERROR = 1002,
        WEBSOCKET_POLICY_VIOLATION = 1008,
        WEBSOCKET_INTERNAL_ERROR = 1011,
};

/* Takes over both maskers, also if it fails: the first works on messages, the second on what control frames carry. from_client: frames
 * come masked, and go on masked. */
int websocket_new(Websocket **ret, bool from_client, Masker *messages, Masker *controls);
Websocket *websocket_free(Websocket *s);
DEFINE_CLEANUP(Websocket *, websocket_free)

/* Appends the frames that can go on by now. -EBADMSG: that is no WebSocket (websocket_error() says why), and what was appended is to be
 * thrown away; nothing more can be read then. */
int websocket_feed(Websocket *s, const void *data, size_t size, Buffer *out);

/* From here on, also in the middle of a message, for other needles. Takes over both. */
void websocket_set_maskers(Websocket *s, Masker *messages, Masker *controls);

/* A Close frame went on: nothing may follow it. */
bool websocket_is_closed(const Websocket *s);

/* A static text. */
const char *websocket_error(const Websocket *s);

/* How many needles were found so far, and the number of the last one. */
uint64_t websocket_hits(const Websocket *s);
size_t websocket_last_hit(const Websocket *s);

/* A Close frame as a server sends it; reason: 123 bytes at most are used. */
int websocket_close_frame(unsigned code, const char *reason, Buffer *out);
