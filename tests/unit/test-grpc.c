/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "inject/grpc.h"
#include "util/cleanup.h"

static void test_types(void **state) {
        assert_true(grpc_is_type("application/grpc"));
        assert_true(grpc_is_type("application/grpc+proto"));
        assert_true(grpc_is_type("Application/gRPC; charset=x"));
        assert_true(grpc_is_type("application/grpc-web+proto"));
        assert_true(grpc_is_type("application/connect+json"));
        assert_false(grpc_is_type("application/grpc-web-text"));
        assert_false(grpc_is_type("application/grpcx"));
        assert_false(grpc_is_type("application/json"));
        assert_false(grpc_is_type(""));
}

/* However the bytes are cut, messages end where they end. */
static void test_ends(void **state) {
        static const uint8_t body[] = { 0, 0, 0, 0, 3, 'a', 'b', 'c', 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 'd', 0, 0, 0, 1, 0, 'e' };
        static const size_t ends[] = { 8, 13, 19 };

        for (size_t piece = 1; piece <= sizeof(body); piece++) {
                GrpcReader r = {};
                size_t n_ends = 0;

                for (size_t start = 0; start < sizeof(body); start += piece) {
                        size_t stop = start + piece < sizeof(body) ? start + piece : sizeof(body);

                        for (size_t at = start; at < stop;) {
                                bool whole;
                                size_t n = grpc_next(&r, body + at, stop - at, &whole);

                                assert_true(n > 0 && n <= stop - at);
                                at += n;
                                if (whole) {
                                        assert_true(n_ends < ELEMENTSOF(ends));
                                        assert_int_equal(at, ends[n_ends++]);
                                } else
                                        assert_int_equal(at, stop);
                                if (at < 14)
                                        assert_false(r.compressed);
                        }
                }
                assert_int_equal(n_ends, ELEMENTSOF(ends));
                assert_true(r.compressed);
                assert_int_equal(r.left, 255);
        }
}

/* Flags that no protocol has: no message ends any more, however the rest looks. */
static void test_broken(void **state) {
        static const uint8_t flags[] = { 0, 1, 2, 3, 0x80, 0x81 };
        uint8_t body[16] = { 0, 0, 0, 0, 1, 'a', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };

        for (unsigned f = 0; f < 256; f++) {
                GrpcReader r = {};
                bool whole, known = memchr(flags, (int) f, sizeof(flags));

                body[6] = (uint8_t) f;
                assert_int_equal(grpc_next(&r, body, sizeof(body), &whole), 6);
                assert_true(whole);
                assert_int_equal(r.n_start, 6);
                assert_memory_equal(r.start, body, 6);
                assert_int_equal(grpc_next(&r, body + 6, 10, &whole), known ? 5 : 10);
                assert_int_equal(whole, known);
                assert_int_equal(r.broken, !known);
                if (!known) {
                        assert_false(r.compressed);
                        assert_int_equal(grpc_next(&r, body, 6, &whole), 6);
                        assert_false(whole);
                }
        }
}

/* How a message begins is kept, as far as there is room. */
static void test_start(void **state) {
        uint8_t body[GRPC_HEAD + 200] = { 0, 0, 0, 0, 200 };
        GrpcReader r = {};
        bool whole;

        for (size_t i = GRPC_HEAD; i < sizeof(body); i++)
                body[i] = (uint8_t) i;
        for (size_t i = 0; i < sizeof(body); i++) {
                assert_int_equal(grpc_next(&r, body + i, 1, &whole), 1);
                assert_int_equal(whole, i + 1 == sizeof(body));
                assert_int_equal(r.n_start, i < GRPC_START ? i + 1 : GRPC_START);
        }
        assert_memory_equal(r.start, body, GRPC_START);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_types),
                cmocka_unit_test(test_ends),
                cmocka_unit_test(test_broken),
                cmocka_unit_test(test_start),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
