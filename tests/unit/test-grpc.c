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

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_types),
                cmocka_unit_test(test_ends),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
