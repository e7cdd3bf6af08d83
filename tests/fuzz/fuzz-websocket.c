/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What goes on is a WebSocket again, with nothing left to be found in it, and the same whether it came in pieces or not. Input: one byte for
 * the direction and the size of pieces, then frames.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "inject/websocket.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static Websocket *start(bool from_client) {
        static const MaskPair pair = { "sk-real!", 8, "sentinel", 8 };
        Masker *messages = NULL, *controls = NULL;
        Websocket *s = NULL;

        if (masker_new(&messages, &pair, 1) < 0 || masker_new(&controls, &pair, 1) < 0 || websocket_new(&s, from_client, messages, controls) < 0)
                __builtin_trap();
        return s;
}

static int pass(bool from_client, const uint8_t *data, size_t size, size_t piece, Buffer *out, uint64_t *ret_hits) {
        _cleanup_(websocket_freep) Websocket *s = start(from_client);
        int r = 0;

        for (size_t i = 0; i < size && r == 0; i += piece)
                r = websocket_feed(s, data + i, piece < size - i ? piece : size - i, out);
        *ret_hits = websocket_hits(s);
        return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        Buffer whole = {}, pieces = {}, again = {};
        uint64_t hits, same, none;
        bool from_client;
        int a, b;

        if (size < 2)
                return 0;
        from_client = data[0] & 1;
        a = pass(from_client, data + 1, size - 1, size, &whole, &hits);
        b = pass(from_client, data + 1, size - 1, data[0] % 13 + 1, &pieces, &same);
        if (a != b || (a == 0 && hits != same))
                __builtin_trap();
        if (a == 0 && (pass(from_client, buffer_data(&whole), buffer_size(&whole), size, &again, &none) < 0 || none > 0 ||
                       pass(from_client, buffer_data(&pieces), buffer_size(&pieces), size, &again, &none) < 0 || none > 0))
                __builtin_trap();
        buffer_done(&whole);
        buffer_done(&pieces);
        buffer_done(&again);
        return 0;
}
