/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Bytes from a guest, in the pieces that the first byte of each says, into the host's parser. */

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "vmm/channel.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_(channel_parser_freep) ChannelParser *p = NULL;
        ChannelReceiver flow = CHANNEL_RECEIVER_INIT;
        unsigned sum = 0;

        if (size < 1 || channel_parser_new(&p, data[0] & 1 ? CHANNEL_FROM_HOST : CHANNEL_FROM_GUEST) < 0)
                return 0;

        data++;
        size--;
        while (size > 0) {
                size_t room, n = 1 + data[0] % 61;
                ChannelFrame f;
                uint8_t *to;
                int r;

                channel_parser_reserve(p, &to, &room);
                assert(room > 0);
                n = n < size ? n : size;
                n = n < room ? n : room;
                memcpy(to, data, n);
                channel_parser_commit(p, n);
                data += n;
                size -= n;

                while ((r = channel_parser_next(p, &f)) > 0) {
                        assert(f.size <= CHANNEL_PAYLOAD_MAX);
                        assert(channel_type_name(f.type));
                        for (uint32_t i = 0; i < f.size; i++)
                                sum += f.payload[i];
                        if (channel_type_has_credit(f.type) && channel_receiver_take(&flow, f.size) == 0)
                                (void) channel_receiver_consume(&flow, f.size);
                }
                if (r < 0) {
                        assert(channel_parser_reason(p)[0]);
                        break;
                }
        }
        __asm__ volatile("" : : "r"(sum)); /* the payload was really read */
        return 0;
}
