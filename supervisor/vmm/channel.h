/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The guest channel: what anchor-run and anchor-guest say to each other over one byte stream
 * (virtio-serial port "anchorhold.0"). This file and channel.c are the only code that host and guest
 * share, and they do no I/O.
 *
 * A frame is a header of twelve bytes, little endian, and a payload:
 *
 *      offset  size
 *      0       1     version   1
 *      1       1     type      one of ChannelType
 *      2       2     reserved  0
 *      4       4     stream    0 for the control stream
 *      8       4     length    of the payload, at most 65,536
 *
 * Types, who sends them, on which stream, and the payload ("{…}": a JSON object):
 *
 *      hello    both    0   host {"protocol": 1, "hostname", "agent": ?, "network": ?{"address", "gateway", "dns", "mtu": ?}}
 *                           guest {"protocol": 1, "boot_id", "kernel", "version", "uptime_us"}
 *      seed     both    0   host 32 to 512 bytes of entropy; guest: nothing (mixed in)
 *      clock    both    0   host {"realtime_us"}; guest: nothing (set)
 *      exec     host    N   {"argv": […], "env": {…}, "cwd", "stdin": bool}
 *      stdin    host    N   bytes; nothing = end of file
 *      stdout   guest   N   bytes; nothing = end of file
 *      stderr   guest   N   bytes; nothing = end of file
 *      exit     guest   N   {"status"} or {"signal"} or {"errno", "error"}: the last frame of the stream
 *      signal   host    N   {"signal"}: to every process of the exec
 *      put      host    N   {"path", "mode": ?, "append": ?bool, "java_store": ?path}, then data; guest answers exit
 *                           (java_store: where the certificates of the file as it is then go in the form that Java reads)
 *      get      host    N   {"path", "max"}; guest answers data, then exit
 *      data     both    N   bytes; nothing = end of file
 *      message  host    0   {"message": "poweroff"}
 *      event    guest   0   {"event": …}: worth a line in a log, never answered
 *      ping     both    0   up to 64 bytes; the guest echoes them
 *      credit   both    N   four bytes, little endian: so many more payload bytes may come
 *      error    both    any {"reason"}; on stream 0 the session is over
 *
 * A session begins with the host's hello; the guest answers with its own, then acknowledges seed and
 * clock in turn, and accepts nothing else before both. The host picks stream numbers, from 1 upwards,
 * each once in a session.
 *
 * Flow control: each direction of a stream may carry CHANNEL_WINDOW payload bytes of stdin, stdout, stderr
 * and data frames (stdout and stderr together); what has been consumed is given back with credit.
 * Sending beyond the credit is a protocol error. All other frames are bounded in another way: one answer for each request, and
 * the host reads no faster than it can handle them.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/cleanup.h"

#define CHANNEL_PORT_NAME "anchorhold.0"

enum {
        CHANNEL_VERSION = 1,
        CHANNEL_HEADER_SIZE = 12,
        CHANNEL_PAYLOAD_MAX = 65536,
        CHANNEL_FRAME_MAX = CHANNEL_HEADER_SIZE + CHANNEL_PAYLOAD_MAX,
        CHANNEL_SEED_MIN = 32,
        CHANNEL_SEED_MAX = 512,
        CHANNEL_PING_MAX = 64,
        CHANNEL_WINDOW = 256 * 1024,
};

typedef enum ChannelType {
        CHANNEL_HELLO = 1,
        CHANNEL_SEED,
        CHANNEL_CLOCK,
        CHANNEL_EXEC,
        CHANNEL_STDIN,
        CHANNEL_STDOUT,
        CHANNEL_STDERR,
        CHANNEL_EXIT,
        CHANNEL_SIGNAL,
        CHANNEL_PUT,
        CHANNEL_GET,
        CHANNEL_DATA,
        CHANNEL_MESSAGE,
        CHANNEL_EVENT,
        CHANNEL_PING,
        CHANNEL_CREDIT,
        CHANNEL_ERROR,
        _CHANNEL_TYPE_MAX,
} ChannelType;

/* Whose frames are parsed: each side sends only the types that are its own. */
typedef enum ChannelSide {
        CHANNEL_FROM_HOST = 1 << 0,
        CHANNEL_FROM_GUEST = 1 << 1,
} ChannelSide;

typedef struct ChannelFrame {
        ChannelType type;
        uint32_t stream;
        uint32_t size;
        const uint8_t *payload; /* borrowed from the parser, until its next call */
} ChannelFrame;

/* "hello", …; NULL for a number that is no type. */
const char *channel_type_name(unsigned type);

/* Does this type's payload count against the stream's credit? */
bool channel_type_has_credit(ChannelType type);

void channel_encode_header(uint8_t ret[static CHANNEL_HEADER_SIZE], ChannelType type, uint32_t stream, uint32_t size);
void channel_encode_u32(uint8_t ret[static 4], uint32_t value);
uint32_t channel_decode_u32(const uint8_t data[static 4]);

/*
 * Parser. Bytes are put where channel_parser_reserve() says and are announced with _commit(); _next()
 * then yields frames until it wants more. It holds less than two frames, whatever comes. The first
 * malformed frame makes it fail for good.
 */
typedef struct ChannelParser ChannelParser;

int channel_parser_new(ChannelParser **ret, ChannelSide from);
ChannelParser *channel_parser_free(ChannelParser *p);
DEFINE_CLEANUP(ChannelParser *, channel_parser_free)

/* Never fewer than one byte, once _next() has returned 0. Invalidates earlier frames. */
void channel_parser_reserve(ChannelParser *p, uint8_t **ret_data, size_t *ret_size);
void channel_parser_commit(ChannelParser *p, size_t size);

/* 1 and a frame; 0: more bytes are needed; -EBADMSG: channel_parser_reason() says why. */
int channel_parser_next(ChannelParser *p, ChannelFrame *ret);
const char *channel_parser_reason(const ChannelParser *p);

/* Forgets everything, for a new session. */
void channel_parser_reset(ChannelParser *p);

/* Flow control of one direction of one stream, the sender's view: how much it may still send. */
typedef struct ChannelSender {
        uint32_t credit;
} ChannelSender;

#define CHANNEL_SENDER_INIT ((ChannelSender) { .credit = CHANNEL_WINDOW })

/* -EPROTO if the window would get larger than it was at first. */
int channel_sender_grant(ChannelSender *s, const ChannelFrame *credit);

/* And the receiver's: what the peer may still send, and what was consumed but not yet given back. */
typedef struct ChannelReceiver {
        uint32_t open;
        uint32_t consumed;
} ChannelReceiver;

#define CHANNEL_RECEIVER_INIT ((ChannelReceiver) { .open = CHANNEL_WINDOW })

/* -EPROTO if the peer sent more than it may. */
int channel_receiver_take(ChannelReceiver *r, uint32_t size);

/* Notes that so much has been consumed; returns what to give back now, 0 to wait for more. */
uint32_t channel_receiver_consume(ChannelReceiver *r, uint32_t size);
