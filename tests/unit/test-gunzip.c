/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <cmocka.h>

#include "inject/gunzip.h"

static void gzip(const void *data, size_t size, Buffer *out) {
        z_stream z = {};
        uint8_t *p;

        assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
        p = buffer_reserve(out, deflateBound(&z, size));
        z.next_in = (Bytef *) data;
        z.avail_in = (uInt) size;
        z.next_out = p;
        z.avail_out = (uInt) deflateBound(&z, size);
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        buffer_commit(out, z.total_out);
        (void) deflateEnd(&z);
}

static void check(const Buffer *encoded, size_t piece, const void *expected, size_t size) {
        _cleanup_(gunzip_freep) Gunzip *g = NULL;
        Buffer out = {};

        assert_int_equal(gunzip_new(&g), 0);
        for (size_t i = 0; i < buffer_size(encoded); i += piece) {
                size_t n = buffer_size(encoded) - i < piece ? buffer_size(encoded) - i : piece;

                assert_int_equal(gunzip_feed(g, buffer_data(encoded) + i, n, &out), 0);
        }
        assert_int_equal(gunzip_finish(g), 0);
        assert_int_equal(buffer_size(&out), size);
        if (size > 0)
                assert_memory_equal(buffer_data(&out), expected, size);
        buffer_done(&out);
}

static void test_pieces(void **state) {
        static uint8_t text[300000];
        Buffer encoded = {};
        unsigned seed = 1;

        for (size_t i = 0; i < sizeof(text); i++) {
                seed = seed * 1103515245 + 12345;
                text[i] = "abcdefghijklmnop"[seed >> 16 & 15];
        }
        /* of exactly one piece of output, of more, of less, and of nothing */
        for (size_t size = 0; size <= sizeof(text); size += size < 16384 ? 16384 : sizeof(text) - 16384) {
                gzip(text, size, &encoded);
                check(&encoded, 1, text, size);
                check(&encoded, 7, text, size);
                check(&encoded, 100000, text, size);
                buffer_done(&encoded);
        }
        check(&encoded, 1, "", 0);
}

static void test_members(void **state) {
        Buffer encoded = {};

        gzip("one,", 4, &encoded);
        gzip("two", 3, &encoded);
        check(&encoded, 1, "one,two", 7);
        check(&encoded, 1000, "one,two", 7);
        buffer_done(&encoded);
}

static int decode(const void *data, size_t size, int *ret_finish) {
        _cleanup_(gunzip_freep) Gunzip *g = NULL;
        Buffer out = {};
        int r;

        assert_int_equal(gunzip_new(&g), 0);
        r = gunzip_feed(g, data, size, &out);
        *ret_finish = gunzip_finish(g);
        buffer_done(&out);
        return r;
}

static void test_broken(void **state) {
        Buffer encoded = {};
        int end;

        assert_int_equal(decode("no gzip at all", 14, &end), -EBADMSG);
        assert_int_equal(end, -EBADMSG);

        gzip("a text", 6, &encoded);
        assert_int_equal(decode(buffer_data(&encoded), buffer_size(&encoded), &end), 0);
        assert_int_equal(end, 0);
        assert_int_equal(decode(buffer_data(&encoded), buffer_size(&encoded) - 1, &end), 0);
        assert_int_equal(end, -EBADMSG);

        /* its checksum */
        encoded.data[encoded.end - 5] ^= 1;
        assert_int_equal(decode(buffer_data(&encoded), buffer_size(&encoded), &end), -EBADMSG);
        encoded.data[encoded.end - 5] ^= 1;

        /* something else behind it */
        assert_int_equal(buffer_append_text(&encoded, "x"), 0);
        (void) decode(buffer_data(&encoded), buffer_size(&encoded), &end);
        assert_int_equal(end, -EBADMSG);
        buffer_done(&encoded);
}

/* Eight megabytes in eight kilobytes are refused, one in one are not. */
static void test_bomb(void **state) {
        enum { LARGE = 8 * 1024 * 1024 };
        uint8_t *zeros = calloc(1, LARGE);
        Buffer encoded = {};
        int end;

        assert_non_null(zeros);
        gzip(zeros, LARGE, &encoded);
        assert_true(buffer_size(&encoded) < 10000);
        assert_int_equal(decode(buffer_data(&encoded), buffer_size(&encoded), &end), -EFBIG);
        assert_int_equal(end, -EFBIG);
        buffer_done(&encoded);

        gzip(zeros, GUNZIP_FREE, &encoded);
        check(&encoded, 100000, zeros, GUNZIP_FREE);
        buffer_done(&encoded);
        free(zeros);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_pieces),
                cmocka_unit_test(test_members),
                cmocka_unit_test(test_broken),
                cmocka_unit_test(test_bomb),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
