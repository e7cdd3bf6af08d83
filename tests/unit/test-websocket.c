/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "inject/websocket.h"

#define SECRET "sk-real-0123456789"
#define SENTINEL "sk-sentinel-abcdefghij"

static Websocket *open_websocket(bool from_client) {
        static const MaskPair pair = { SECRET, sizeof(SECRET) - 1, SENTINEL, sizeof(SENTINEL) - 1 };
        Masker *messages = NULL, *controls = NULL;
        Websocket *s = NULL;

        assert_int_equal(masker_new(&messages, &pair, 1), 0);
        assert_int_equal(masker_new(&controls, &pair, 1), 0);
        assert_int_equal(websocket_new(&s, from_client, messages, controls), 0);
        return s;
}

/* What a server's frames become, fed in pieces of each size. Frames are compared only if the input comes as a whole; else what they carry. */
static void check(const char *frames, size_t size, const char *expected, size_t expected_size) {
        _cleanup_(websocket_freep) Websocket *s = open_websocket(false);
        Buffer out = {};

        assert_int_equal(websocket_feed(s, frames, size, &out), 0);
        assert_int_equal(buffer_size(&out), expected_size);
        assert_memory_equal(buffer_data(&out), expected, expected_size);
        buffer_done(&out);
}

#define CHECK(frames, expected) check(frames, sizeof(frames) - 1, expected, sizeof(expected) - 1)

static void test_server(void **state) {
        CHECK("\x81\x05hello", "\x81\x05hello");
        CHECK("\x82\x00", "\x82\x00");
        CHECK("\x81\x18key: " SECRET "!", "\x81\x1ckey: " SENTINEL "!");
        /* two messages, and control frames between the fragments of one */
        CHECK("\x81\x01"
              "a\x82\x01"
              "b",
              "\x81\x01"
              "a\x82\x01"
              "b");
        CHECK("\x01\x03one\x89\x02hi\x80\x04 two", "\x89\x02hi\x81\x07one two");
        CHECK("\x01\x05one, \x89\x02hi\x80\x04 two", "\x01\x05one, \x89\x02hi\x80\x04 two");
        /* across fragments, and around a control frame that has it as well */
        CHECK("\x01\x08sk-real-\x89\x12" SECRET "\x80\x0a" "0123456789", "\x89\x16" SENTINEL "\x81\x16" SENTINEL);
        /* a Close frame's code is no text, its reason is */
        CHECK("\x88\x14\x03\xe8" SECRET, "\x88\x18\x03\xe8" SENTINEL);
        CHECK("\x88\x00", "\x88\x00");
        CHECK("\x8a\x00", "\x8a\x00");
}

/* What frames carry, whatever they are; the masks of a client's are taken off. */
static void read_all(const Buffer *b, bool masked, Buffer *out) {
        const uint8_t *p = buffer_data(b), *end = p + buffer_size(b);

        while (p < end) {
                size_t size = p[1] & 0x7f, n = 2;

                if (size >= 126) {
                        size_t bytes = size == 126 ? 2 : 8;

                        for (size = 0; bytes > 0; bytes--)
                                size = size << 8 | p[n++];
                }
                assert_int_equal(p[1] >> 7, masked);
                for (size_t i = 0; i < size; i++) {
                        uint8_t c = masked ? p[n + 4 + i] ^ p[n + i % 4] : p[n + i];

                        assert_int_equal(buffer_append(out, &c, 1), 0);
                }
                p += n + size + (masked ? 4 : 0);
        }
        assert_ptr_equal(p, end);
}

/* A long message in pieces of any size: nothing is late, and nothing of it is another byte. */
static void test_pieces(void **state) {
        static uint8_t message[70000 + 14];
        static const uint8_t key[] = { 0x11, 0x80, 0xff, 0x02 };
        const size_t size = 70000;

        for (int from_client = 0; from_client < 2; from_client++)
                for (size_t piece = 1; piece < sizeof(message); piece = piece * 3 + 1) {
                        _cleanup_(websocket_freep) Websocket *s = open_websocket(from_client);
                        const size_t head = from_client ? 14 : 10;
                        Buffer out = {}, plain = {};

                        memcpy(message, "\x82\xff\0\0\0\0\0\1\x11\x70\x11\x80\xff\x02", 14);
                        message[1] = from_client ? 0xff : 0x7f;
                        for (size_t i = 0; i < size; i++)
                                message[head + i] = (uint8_t) (i * 7 / 3) ^ (from_client ? key[i % 4] : 0);
                        for (size_t i = 0; i < head + size; i += piece)
                                assert_int_equal(websocket_feed(s, message + i, piece < head + size - i ? piece : head + size - i, &out), 0);
                        read_all(&out, from_client, &plain);
                        assert_int_equal(buffer_size(&plain), size);
                        for (size_t i = 0; i < size; i++)
                                assert_int_equal(buffer_data(&plain)[i], (uint8_t) (i * 7 / 3));
                        assert_int_equal(websocket_hits(s), 0);
                        buffer_done(&out);
                        buffer_done(&plain);
                }
}

/* A client's frame, masked, is searched. */
static void test_client(void **state) {
        static const uint8_t key[] = { 1, 2, 3, 4 };
        _cleanup_(websocket_freep) Websocket *s = open_websocket(true);
        uint8_t frame[6 + sizeof(SECRET) - 1] = { 0x81, 0x80 | (sizeof(SECRET) - 1), 1, 2, 3, 4 };
        Buffer out = {}, plain = {};

        for (size_t i = 0; i < sizeof(SECRET) - 1; i++)
                frame[6 + i] = (uint8_t) SECRET[i] ^ key[i % 4];
        assert_int_equal(websocket_feed(s, frame, 15, &out), 0);
        assert_int_equal(buffer_size(&out), 0); /* nothing of it leaves before it is known not to be one */
        assert_int_equal(websocket_feed(s, frame + 15, sizeof(frame) - 15, &out), 0);
        assert_int_equal(websocket_hits(s), 1);
        read_all(&out, true, &plain);
        assert_int_equal(buffer_size(&plain), strlen(SENTINEL));
        assert_memory_equal(buffer_data(&plain), SENTINEL, strlen(SENTINEL));
        buffer_done(&out);
        buffer_done(&plain);
}

static void test_refused(void **state) {
        static const struct {
                bool from_client;
                size_t size;
                const char *frames;
        } cases[] = {
                { false, 2, "\x91\x00" },                                  /* reserved bits */
                { false, 2, "\xc1\x00" },                                  /* permessage-deflate */
                { false, 2, "\x83\x00" }, { false, 2, "\x8b\x00" },        /* unknown kinds */
                { false, 6, "\x81\x80\0\0\0\0" },                          /* a server masks nothing */
                { true, 2, "\x81\x00" },                                   /* a client everything */
                { false, 2, "\x80\x00" },                                  /* continuation of nothing */
                { false, 4, "\x01\x00\x81\x00" },                          /* a message within one */
                { false, 2, "\x09\x00" },                                  /* a control frame in fragments */
                { false, 4, "\x89\x7e\x00\x7e" },                          /* or too large */
                { false, 4, "\x81\x7e\x00\x7d" },                          /* lengths with too many bytes */
                { false, 10, "\x81\x7f\0\0\0\0\0\0\xff\xff" },
                { false, 10, "\x81\x7f\x80\0\0\0\0\0\0\0" },               /* and beyond what there is */
                { false, 3, "\x88\x01x" },                                 /* half a code */
                { false, 4, "\x88\x00\x81\x00" },                          /* behind the Close frame */
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_(websocket_freep) Websocket *s = open_websocket(cases[i].from_client);
                Buffer out = {};

                assert_int_equal(websocket_feed(s, cases[i].frames, cases[i].size, &out), -EBADMSG);
                assert_string_not_equal(websocket_error(s), "no error");
                assert_int_equal(websocket_feed(s, "\x81\x00", 2, &out), -EBADMSG);
                buffer_done(&out);
        }
}

static void test_close_frame(void **state) {
        Buffer out = {};

        assert_int_equal(websocket_close_frame(WEBSOCKET_POLICY_VIOLATION, "no", &out), 0);
        assert_int_equal(buffer_size(&out), 6);
        assert_memory_equal(buffer_data(&out), "\x88\x04\x03\xf0no", 6);
        buffer_done(&out);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_server),
                cmocka_unit_test(test_pieces),
                cmocka_unit_test(test_client),
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_close_frame),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
