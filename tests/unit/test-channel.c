/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "vmm/channel.h"

/* Feeds data in pieces of `step` bytes; returns the number of frames, or the parser's error. */
static int feed(ChannelParser *p, const uint8_t *data, size_t size, size_t step, ChannelFrame *last) {
        int n = 0, r;

        while (size > 0) {
                size_t room, k;
                uint8_t *to;

                channel_parser_reserve(p, &to, &room);
                assert_true(room > 0);
                k = size < step ? size : step;
                k = k < room ? k : room;
                memcpy(to, data, k);
                channel_parser_commit(p, k);
                data += k;
                size -= k;

                for (;;) {
                        r = channel_parser_next(p, last);
                        if (r < 0)
                                return r;
                        if (r == 0)
                                break;
                        n++;
                }
        }
        return n;
}

static void test_round_trip(void **state) {
        static const size_t steps[] = { 1, 5, 12, 13, 4096, 1 << 20 };
        static uint8_t data[3 * CHANNEL_FRAME_MAX];
        size_t size = 0;

        channel_encode_header(data, CHANNEL_STDOUT, 7, CHANNEL_PAYLOAD_MAX);
        memset(data + CHANNEL_HEADER_SIZE, 'x', CHANNEL_PAYLOAD_MAX);
        size += CHANNEL_FRAME_MAX;
        channel_encode_header(data + size, CHANNEL_STDERR, 7, 0);
        size += CHANNEL_HEADER_SIZE;
        channel_encode_header(data + size, CHANNEL_EXIT, 0x01020304, 12);
        memcpy(data + size + CHANNEL_HEADER_SIZE, "{\"status\":0}", 12);
        size += CHANNEL_HEADER_SIZE + 12;

        for (size_t i = 0; i < ELEMENTSOF(steps); i++) {
                _cleanup_(channel_parser_freep) ChannelParser *p = NULL;
                ChannelFrame f;

                assert_int_equal(channel_parser_new(&p, CHANNEL_FROM_GUEST), 0);
                assert_int_equal(feed(p, data, size, steps[i], &f), 3);
                assert_int_equal(f.type, CHANNEL_EXIT);
                assert_int_equal(f.stream, 0x01020304);
                assert_int_equal(f.size, 12);
                assert_memory_equal(f.payload, "{\"status\":0}", 12);
        }
}

static void expect_bad(ChannelSide from, const uint8_t header[static CHANNEL_HEADER_SIZE], const char *word) {
        _cleanup_(channel_parser_freep) ChannelParser *p = NULL;
        uint8_t good[CHANNEL_HEADER_SIZE];
        ChannelFrame f;

        assert_int_equal(channel_parser_new(&p, from), 0);
        assert_int_equal(feed(p, header, CHANNEL_HEADER_SIZE, 1, &f), -EBADMSG);
        if (!strstr(channel_parser_reason(p), word))
                fail_msg("reason is \"%s\", expected \"%s\" in it", channel_parser_reason(p), word);

        /* and it stays so, until reset */
        channel_encode_header(good, CHANNEL_PING, 0, 0);
        assert_int_equal(feed(p, good, sizeof(good), 100, &f), -EBADMSG);
        channel_parser_reset(p);
        assert_int_equal(feed(p, good, sizeof(good), 100, &f), 1);
}

static void test_malformed(void **state) {
        static const struct {
                ChannelSide from;
                uint8_t header[CHANNEL_HEADER_SIZE];
                const char *word;
        } cases[] = {
                { CHANNEL_FROM_GUEST, { 2, 15 }, "version" },
                { CHANNEL_FROM_GUEST, { 1, 0 }, "unknown" },
                { CHANNEL_FROM_GUEST, { 1, 18 }, "unknown" },
                { CHANNEL_FROM_GUEST, { 1, 255 }, "unknown" },
                { CHANNEL_FROM_GUEST, { 1, 15, 1 }, "reserved" },
                { CHANNEL_FROM_GUEST, { 1, 15, 0, 1 }, "reserved" },
                { CHANNEL_FROM_GUEST, { 1, 15, 0, 0, 1 }, "stream" },
                { CHANNEL_FROM_GUEST, { 1, 6, 0, 0, 0 }, "stream" },
                { CHANNEL_FROM_GUEST, { 1, 4, 0, 0, 1 }, "not for this side" },
                { CHANNEL_FROM_HOST, { 1, 6, 0, 0, 1 }, "not for this side" },
                { CHANNEL_FROM_GUEST, { 1, 6, 0, 0, 1, 0, 0, 0, 1, 0, 1 }, "65537" },
                { CHANNEL_FROM_GUEST, { 1, 6, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255 }, "4294967295" },
                { CHANNEL_FROM_GUEST, { 1, 16, 0, 0, 1, 0, 0, 0, 3 }, "credit" },
                { CHANNEL_FROM_GUEST, { 1, 2, 0, 0, 0, 0, 0, 0, 1 }, "seed" },
                { CHANNEL_FROM_HOST, { 1, 2, 0, 0, 0, 0, 0, 0, 31 }, "seed" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                expect_bad(cases[i].from, cases[i].header, cases[i].word);
}

static void test_type_names(void **state) {
        assert_null(channel_type_name(0));
        assert_null(channel_type_name(_CHANNEL_TYPE_MAX));
        for (unsigned t = 1; t < _CHANNEL_TYPE_MAX; t++)
                assert_non_null(channel_type_name(t));

        assert_true(channel_type_has_credit(CHANNEL_STDOUT));
        assert_true(channel_type_has_credit(CHANNEL_DATA));
        assert_false(channel_type_has_credit(CHANNEL_EXIT));
}

static void test_credit(void **state) {
        ChannelReceiver r = CHANNEL_RECEIVER_INIT;
        ChannelSender s = { .credit = 10 };
        uint8_t n[4];
        ChannelFrame f = { .type = CHANNEL_CREDIT, .stream = 1, .size = 4, .payload = n };
        uint32_t back = 0;

        assert_int_equal(channel_receiver_take(&r, CHANNEL_WINDOW), 0);
        assert_int_equal(channel_receiver_take(&r, 1), -EPROTO);
        for (unsigned i = 0; i < CHANNEL_WINDOW / 1024; i++)
                back += channel_receiver_consume(&r, 1024);
        assert_int_equal(back, CHANNEL_WINDOW);
        assert_int_equal(channel_receiver_take(&r, CHANNEL_WINDOW), 0);

        channel_encode_u32(n, CHANNEL_WINDOW - 10);
        assert_int_equal(channel_sender_grant(&s, &f), 0);
        assert_int_equal(s.credit, CHANNEL_WINDOW);
        channel_encode_u32(n, 1);
        assert_int_equal(channel_sender_grant(&s, &f), -EPROTO);
        channel_encode_u32(n, UINT32_MAX);
        assert_int_equal(channel_sender_grant(&s, &f), -EPROTO);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_round_trip),
                cmocka_unit_test(test_malformed),
                cmocka_unit_test(test_type_names),
                cmocka_unit_test(test_credit),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
