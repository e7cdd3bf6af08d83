/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Bytes from a guest, in the pieces that the first byte of each says, into the host's parser. What comes out are the bytes that went in, frame by
 * frame, and the same in one piece; after the first malformed frame nothing does, until the next session.
 */

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "vmm/channel.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* How far the frames in `data` go, and whether what follows is malformed. Credit is kept by both ends' accounts. */
static size_t parse(ChannelParser *p, const uint8_t *data, size_t size, bool in_pieces, bool *ret_failed) {
        ChannelReceiver flow = CHANNEL_RECEIVER_INIT;
        ChannelSender sender = { .credit = 0 };
        size_t fed = 0, parsed = 0;
        ChannelFrame f;
        int r = 0;

        while (r == 0 && fed < size) {
                size_t room, n = in_pieces ? 1 + data[fed] % 61 : size - fed;
                uint8_t *to;

                channel_parser_reserve(p, &to, &room);
                assert(room > 0);
                n = n < size - fed ? n : size - fed;
                n = n < room ? n : room;
                memcpy(to, data + fed, n);
                channel_parser_commit(p, n);
                fed += n;

                while ((r = channel_parser_next(p, &f)) > 0) {
                        uint8_t header[CHANNEL_HEADER_SIZE];

                        channel_encode_header(header, f.type, f.stream, f.size);
                        assert(f.size <= CHANNEL_PAYLOAD_MAX && channel_type_name(f.type));
                        assert(parsed + sizeof(header) + f.size <= fed);
                        assert(memcmp(data + parsed, header, sizeof(header)) == 0);
                        assert(memcmp(data + parsed + sizeof(header), f.payload, f.size) == 0);
                        parsed += sizeof(header) + f.size;

                        if (channel_type_has_credit(f.type) && channel_receiver_take(&flow, f.size) == 0)
                                (void) channel_receiver_consume(&flow, f.size);
                        if (f.type == CHANNEL_CREDIT)
                                (void) channel_sender_grant(&sender, &f);
                        assert(flow.open + flow.consumed <= CHANNEL_WINDOW && sender.credit <= CHANNEL_WINDOW);
                }
        }

        *ret_failed = r < 0;
        if (r < 0) {
                assert(channel_parser_reason(p)[0]);
                assert(channel_parser_next(p, &f) == -EBADMSG);
        }
        channel_parser_reset(p);
        assert(!channel_parser_reason(p)[0]);
        return parsed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_(channel_parser_freep) ChannelParser *p = NULL;
        bool failed, failed_whole;
        size_t parsed;

        if (size < 1 || channel_parser_new(&p, data[0] & 1 ? CHANNEL_FROM_HOST : CHANNEL_FROM_GUEST) < 0)
                return 0;

        parsed = parse(p, data + 1, size - 1, true, &failed);
        assert(parse(p, data + 1, size - 1, false, &failed_whole) == parsed);
        assert(failed == failed_whole);
        return 0;
}
