/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "inject/mask.h"

#define PAIR(a, b) { a, sizeof(a) - 1, b, sizeof(b) - 1 }

/* Feeds the text in two pieces, cut at every place, and in single bytes. */
static void check(const MaskPair *pairs, size_t n, const char *text, const char *expected) {
        size_t size = strlen(text);

        for (size_t cut = 0; cut <= size + 1; cut++) {
                _cleanup_(masker_freep) Masker *m = NULL;
                Buffer out = {};

                assert_int_equal(masker_new(&m, pairs, n), 0);
                if (cut <= size) {
                        assert_int_equal(masker_feed(m, text, cut, &out), 0);
                        assert_int_equal(masker_feed(m, text + cut, size - cut, &out), 0);
                } else
                        for (size_t i = 0; i < size; i++)
                                assert_int_equal(masker_feed(m, text + i, 1, &out), 0);
                assert_int_equal(masker_finish(m, &out), 0);
                assert_int_equal(buffer_size(&out), strlen(expected));
                assert_memory_equal(buffer_data(&out), expected, strlen(expected));
                buffer_done(&out);
        }
}

static void test_replace(void **state) {
        const MaskPair one[] = { PAIR("sk-real", "sk-sentinel") };
        const MaskPair two[] = { PAIR("aaab", "1"), PAIR("aaabcc", "2") };

        check(one, 1, "key: sk-real.", "key: sk-sentinel.");
        check(one, 1, "sk-realsk-realsk-rea", "sk-sentinelsk-sentinelsk-rea");
        check(one, 1, "sk-sk-real", "sk-sk-sentinel");
        check(one, 1, "{\"a\":\"sk-real\"}\n\nsk-rea l", "{\"a\":\"sk-sentinel\"}\n\nsk-rea l");
        check(two, 2, "aaaabccaaab aaabc", "a21 1c");
}

/* An event stream's events leave at once, whatever they hold. */
static void test_nothing_late(void **state) {
        const MaskPair pairs[] = { PAIR("sk-real-0123456789-0123456789", "x") };
        _cleanup_(masker_freep) Masker *m = NULL;
        Buffer out = {};

        assert_int_equal(masker_new(&m, pairs, 1), 0);
        assert_int_equal(masker_feed(m, "data: {\"x\":1}\n\n", 15, &out), 0);
        assert_int_equal(buffer_size(&out), 15);
        buffer_done(&out);
}

/* What waits depends on the needle's length alone: a right guess and a wrong one wait alike. */
static void test_hold_back_is_blind(void **state) {
        const MaskPair pairs[] = { PAIR("sk-real-0123456789", "x") };
        static const char *const guesses[] = { "sk-real-0123", "sk-real-0124", "############" };

        for (size_t i = 0; i < ELEMENTSOF(guesses); i++) {
                _cleanup_(masker_freep) Masker *m = NULL;
                Buffer out = {};

                assert_int_equal(masker_new(&m, pairs, 1), 0);
                assert_int_equal(masker_feed(m, "it is: ", 7, &out), 0);
                assert_int_equal(masker_feed(m, guesses[i], 12, &out), 0);
                assert_int_equal(buffer_size(&out), 7);
                assert_int_equal(masker_feed(m, "zzzzzzzzzz", 10, &out), 0);
                assert_int_equal(buffer_size(&out), 7 + 22 - 17);
                buffer_done(&out);
        }
}

static void test_bad_needles(void **state) {
        const MaskPair blank[] = { PAIR("a b", "x") }, empty[] = { PAIR("", "x") };
        Masker *m = NULL;

        assert_int_equal(masker_new(&m, blank, 1), -EINVAL);
        assert_int_equal(masker_new(&m, empty, 1), -EINVAL);
}

static void test_no_needles(void **state) {
        check(NULL, 0, "anything", "anything");
}

static void test_buffer_zeroes(void **state) {
        Buffer b = {};
        const uint8_t *p;

        assert_int_equal(buffer_append_text(&b, "secret"), 0);
        p = b.data;
        buffer_consume(&b, 3);
        assert_memory_equal(p, "\0\0\0ret", 6);
        buffer_clear(&b);
        assert_memory_equal(p, "\0\0\0\0\0\0", 6);
        buffer_done(&b);
        assert_int_equal(buffer_size(&b), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_replace),
                cmocka_unit_test(test_nothing_late),
                cmocka_unit_test(test_hold_back_is_blind),
                cmocka_unit_test(test_bad_needles),
                cmocka_unit_test(test_no_needles),
                cmocka_unit_test(test_buffer_zeroes),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
