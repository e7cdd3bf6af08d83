/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Codec of the guest channel; the format is in channel.h.
 *
 * The host parses bytes that an agent with root in its VM made up. So everything that can be judged from
 * a header alone is judged here, by one table, before a byte of payload is waited for: version, type,
 * direction, stream, length. What a payload means is the business of the two ends.
 *
 * No I/O, no allocation after channel_parser_new(), no state but one buffer. Linked into the static
 * anchor-guest as well, so it uses nothing but the C library.
 */

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "vmm/channel.h"

enum { BUFFER_SIZE = 2 * CHANNEL_FRAME_MAX };

enum StreamRule {
        STREAM_CONTROL, /* 0 only */
        STREAM_OTHER,   /* anything but 0 */
        STREAM_ANY,
};

typedef struct TypeRule {
        const char *name;
        unsigned from;
        enum StreamRule stream;
        uint32_t host_min, host_max;   /* payload bytes when sent by the host */
        uint32_t guest_min, guest_max; /* … and by the guest */
        bool credit;
} TypeRule;

#define BOTH (CHANNEL_FROM_HOST | CHANNEL_FROM_GUEST)
#define MAX CHANNEL_PAYLOAD_MAX

static const TypeRule rules[_CHANNEL_TYPE_MAX] = {
        [CHANNEL_HELLO]   = { "hello",   BOTH,               STREAM_CONTROL, 2, MAX, 2, 4096, false },
        [CHANNEL_SEED]    = { "seed",    BOTH,               STREAM_CONTROL, CHANNEL_SEED_MIN, CHANNEL_SEED_MAX, 0, 0, false },
        [CHANNEL_CLOCK]   = { "clock",   BOTH,               STREAM_CONTROL, 2, 256, 0, 0, false },
        [CHANNEL_EXEC]    = { "exec",    CHANNEL_FROM_HOST,  STREAM_OTHER,   2, MAX, 0, 0, false },
        [CHANNEL_STDIN]   = { "stdin",   CHANNEL_FROM_HOST,  STREAM_OTHER,   0, MAX, 0, 0, true },
        [CHANNEL_STDOUT]  = { "stdout",  CHANNEL_FROM_GUEST, STREAM_OTHER,   0, 0, 0, MAX, true },
        [CHANNEL_STDERR]  = { "stderr",  CHANNEL_FROM_GUEST, STREAM_OTHER,   0, 0, 0, MAX, true },
        [CHANNEL_EXIT]    = { "exit",    CHANNEL_FROM_GUEST, STREAM_OTHER,   0, 0, 2, 4096, false },
        [CHANNEL_SIGNAL]  = { "signal",  CHANNEL_FROM_HOST,  STREAM_OTHER,   2, 256, 0, 0, false },
        [CHANNEL_PUT]     = { "put",     CHANNEL_FROM_HOST,  STREAM_OTHER,   2, MAX, 0, 0, false },
        [CHANNEL_GET]     = { "get",     CHANNEL_FROM_HOST,  STREAM_OTHER,   2, MAX, 0, 0, false },
        [CHANNEL_DATA]    = { "data",    BOTH,               STREAM_OTHER,   0, MAX, 0, MAX, true },
        [CHANNEL_MESSAGE] = { "message", CHANNEL_FROM_HOST,  STREAM_CONTROL, 2, MAX, 0, 0, false },
        [CHANNEL_EVENT]   = { "event",   CHANNEL_FROM_GUEST, STREAM_CONTROL, 0, 0, 2, 4096, false },
        [CHANNEL_PING]    = { "ping",    BOTH,               STREAM_CONTROL, 0, CHANNEL_PING_MAX, 0, CHANNEL_PING_MAX, false },
        [CHANNEL_CREDIT]  = { "credit",  BOTH,               STREAM_OTHER,   4, 4, 4, 4, false },
        [CHANNEL_ERROR]   = { "error",   BOTH,               STREAM_ANY,     2, 4096, 2, 4096, false },
};

struct ChannelParser {
        ChannelSide from;
        bool failed;
        char reason[96];
        size_t start, end; /* unparsed bytes in buffer */
        uint8_t buffer[BUFFER_SIZE];
};

const char *channel_type_name(unsigned type) {
        return type > 0 && type < _CHANNEL_TYPE_MAX ? rules[type].name : NULL;
}

bool channel_type_has_credit(ChannelType type) {
        return type > 0 && type < _CHANNEL_TYPE_MAX && rules[type].credit;
}

void channel_encode_u32(uint8_t ret[static 4], uint32_t value) {
        ret[0] = (uint8_t) value;
        ret[1] = (uint8_t) (value >> 8);
        ret[2] = (uint8_t) (value >> 16);
        ret[3] = (uint8_t) (value >> 24);
}

uint32_t channel_decode_u32(const uint8_t data[static 4]) {
        return (uint32_t) data[0] | (uint32_t) data[1] << 8 | (uint32_t) data[2] << 16 | (uint32_t) data[3] << 24;
}

void channel_encode_header(uint8_t ret[static CHANNEL_HEADER_SIZE], ChannelType type, uint32_t stream, uint32_t size) {
        assert(type > 0 && type < _CHANNEL_TYPE_MAX);
        assert(size <= CHANNEL_PAYLOAD_MAX);

        ret[0] = CHANNEL_VERSION;
        ret[1] = (uint8_t) type;
        ret[2] = ret[3] = 0;
        channel_encode_u32(ret + 4, stream);
        channel_encode_u32(ret + 8, size);
}

int channel_parser_new(ChannelParser **ret, ChannelSide from) {
        ChannelParser *p;

        p = malloc(sizeof(*p));
        if (!p)
                return -ENOMEM;

        p->from = from;
        channel_parser_reset(p);
        *ret = p;
        return 0;
}

ChannelParser *channel_parser_free(ChannelParser *p) {
        free(p);
        return NULL;
}

void channel_parser_reset(ChannelParser *p) {
        p->failed = false;
        p->reason[0] = 0;
        p->start = p->end = 0;
}

void channel_parser_reserve(ChannelParser *p, uint8_t **ret_data, size_t *ret_size) {
        if (p->start > 0) {
                memmove(p->buffer, p->buffer + p->start, p->end - p->start);
                p->end -= p->start;
                p->start = 0;
        }

        *ret_data = p->buffer + p->end;
        *ret_size = BUFFER_SIZE - p->end;
}

void channel_parser_commit(ChannelParser *p, size_t size) {
        assert(size <= BUFFER_SIZE - p->end);
        p->end += size;
}

_printf_(2, 3) static int parser_fail(ChannelParser *p, const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        (void) vsnprintf(p->reason, sizeof(p->reason), format, ap);
        va_end(ap);
        p->failed = true;
        return -EBADMSG;
}

/* Judges a header; the payload may not have come yet. */
static int parser_check_header(ChannelParser *p, const uint8_t *h, ChannelFrame *ret) {
        uint32_t stream = channel_decode_u32(h + 4), size = channel_decode_u32(h + 8), min, max;
        const TypeRule *rule;

        if (h[0] != CHANNEL_VERSION)
                return parser_fail(p, "version %u instead of %u", h[0], CHANNEL_VERSION);
        if (!channel_type_name(h[1]))
                return parser_fail(p, "unknown frame type %u", h[1]);
        if (h[2] != 0 || h[3] != 0)
                return parser_fail(p, "reserved bytes are not zero");

        rule = rules + h[1];
        if (!(rule->from & p->from))
                return parser_fail(p, "%s is not for this side to send", rule->name);
        if ((rule->stream == STREAM_CONTROL && stream != 0) || (rule->stream == STREAM_OTHER && stream == 0))
                return parser_fail(p, "%s on stream %u", rule->name, stream);

        min = p->from == CHANNEL_FROM_HOST ? rule->host_min : rule->guest_min;
        max = p->from == CHANNEL_FROM_HOST ? rule->host_max : rule->guest_max;
        if (size < min || size > max)
                return parser_fail(p, "%s with %u bytes of payload (%u to %u)", rule->name, size, min, max);

        *ret = (ChannelFrame) { .type = h[1], .stream = stream, .size = size };
        return 0;
}

int channel_parser_next(ChannelParser *p, ChannelFrame *ret) {
        ChannelFrame frame = {};
        size_t available;
        int r;

        if (p->failed)
                return -EBADMSG;

        available = p->end - p->start;
        if (available < CHANNEL_HEADER_SIZE)
                return 0;

        r = parser_check_header(p, p->buffer + p->start, &frame);
        if (r < 0)
                return r;

        if (available - CHANNEL_HEADER_SIZE < frame.size)
                return 0;

        frame.payload = p->buffer + p->start + CHANNEL_HEADER_SIZE;
        p->start += CHANNEL_HEADER_SIZE + frame.size;
        *ret = frame;
        return 1;
}

const char *channel_parser_reason(const ChannelParser *p) {
        return p->reason;
}

int channel_sender_grant(ChannelSender *s, const ChannelFrame *credit) {
        uint32_t n;

        assert(credit->type == CHANNEL_CREDIT && credit->size == 4);
        n = channel_decode_u32(credit->payload);
        if (n > CHANNEL_WINDOW - s->credit)
                return -EPROTO;

        s->credit += n;
        return 0;
}

int channel_receiver_take(ChannelReceiver *r, uint32_t size) {
        if (size > r->open)
                return -EPROTO;

        r->open -= size;
        return 0;
}

uint32_t channel_receiver_consume(ChannelReceiver *r, uint32_t size) {
        uint32_t n;

        assert(size <= CHANNEL_WINDOW - r->open - r->consumed);
        r->consumed += size;
        if (r->consumed < CHANNEL_WINDOW / 4)
                return 0;

        n = r->consumed;
        r->consumed = 0;
        r->open += n;
        return n;
}
