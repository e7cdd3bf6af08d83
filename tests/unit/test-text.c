/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "util/cleanup.h"
#include "util/text.h"

static void test_ids(void **state) {
        char a[ID_LENGTH + 1], b[ID_LENGTH + 1];

        assert_int_equal(text_make_id('r', a), 0);
        assert_int_equal(text_make_id('r', b), 0);
        assert_true(text_is_id('r', a));
        assert_false(text_is_id('i', a));
        assert_string_not_equal(a, b);

        assert_true(text_is_id('r', "r3k9x0a1b2c3d"));
        assert_false(text_is_id('r', NULL));
        assert_false(text_is_id('r', ""));
        assert_false(text_is_id('r', "r3k9x0a1b2c3"));
        assert_false(text_is_id('r', "r3k9x0a1b2c3dd"));
        assert_false(text_is_id('r', "r3k9x0a1b2c-d"));
        assert_false(text_is_id('r', "r3k9x0a1b2c3D"));
}

static void test_names(void **state) {
        char longest[65] = {};

        memset(longest, 'a', 63);
        assert_true(text_is_name("code-fix"));
        assert_true(text_is_name(longest));
        longest[63] = 'a';
        assert_false(text_is_name(longest));
        assert_false(text_is_name(NULL));
        assert_false(text_is_name(""));
        assert_false(text_is_name("1a"));
        assert_false(text_is_name("a/b"));
        assert_false(text_is_name("../a"));
        assert_false(text_is_name("A"));
}

static void test_hex(void **state) {
        uint8_t in[3] = { 0x00, 0xaf, 0x10 }, out[3];
        char hex[7];

        text_hex(in, 3, hex);
        assert_string_equal(hex, "00af10");
        assert_int_equal(text_unhex(hex, out, 3), 0);
        assert_memory_equal(in, out, 3);
        assert_int_equal(text_unhex("00af1", out, 3), -EINVAL);
        assert_int_equal(text_unhex("00af100", out, 3), -EINVAL);
        assert_int_equal(text_unhex("00AF10", out, 3), -EINVAL);
        assert_int_equal(text_unhex(NULL, out, 3), -EINVAL);

        for (int c = 0; c < 256; c++) {
                const char *digits = "0123456789abcdefABCDEF", *at = c ? strchr(digits, c) : NULL;
                int value = at ? (int) (at - digits) : -1;

                assert_int_equal(text_hex_digit((char) c), value > 15 ? value - 6 : value);
                assert_int_equal(text_lower_hex_digit((char) c), value > 15 ? -1 : value);
        }

        assert_true(text_is_commit("0123456789abcdef0123456789abcdef01234567"));
        assert_true(text_is_commit("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"));
        assert_false(text_is_commit("0123456789abcdef0123456789abcdef0123456"));
        assert_false(text_is_commit("0123456789abcdef0123456789abcdef012345678"));
        assert_false(text_is_commit("0123456789abcdef0123456789abcdef0123456g"));
        assert_false(text_is_commit(NULL));
}

static void test_time(void **state) {
        char text[TIME_TEXT_SIZE];
        uint64_t monotonic = time_monotonic(); /* read first: the two clocks run on between two reads */

        text_time(0, text);
        assert_string_equal(text, "1970-01-01T00:00:00.000Z");
        text_time(1769862896789123ULL, text);
        assert_string_equal(text, "2026-01-31T12:34:56.789Z");
        text_time(UINT64_MAX, text);
        assert_string_equal(text, "9999-12-31T23:59:59.999Z");

        assert_true(time_realtime() > 1700000000000000ULL);
        assert_true(time_boottime() >= monotonic);
}

static void check_escape(const char *in, size_t size, bool keep, const char *expected) {
        _cleanup_free_ char *out = text_escape(in, size, keep);

        assert_non_null(out);
        assert_string_equal(out, expected);
}

static void test_fit(void **state) {
        char to[8];

        text_fit("a\033[m", to, sizeof(to));
        assert_string_equal(to, "a\\x1b[m");
        text_fit("abcdef\xc3\xa4", to, sizeof(to));
        assert_string_equal(to, "abcdef");
        text_fit("abcde\xc3\xa4", to, sizeof(to));
        assert_string_equal(to, "abcde\xc3\xa4");
        text_fit("\xc3", to, sizeof(to)); /* cut off by somebody else */
        assert_string_equal(to, "\\xc3");
}

static void test_escape(void **state) {
        check_escape("", 0, false, "");
        check_escape("plain \xc3\xa9", 8, false, "plain \xc3\xa9");
        check_escape("a\nb\tc", 5, true, "a\nb\tc");
        check_escape("a\nb\tc", 5, false, "a\\x0ab\\x09c");
        check_escape("\x1b[31m", 5, true, "\\x1b[31m");
        check_escape("\r\x7f\0x", 4, true, "\\x0d\\x7f\\x00x");
        check_escape("\xc2\x9b", 2, true, "\\u{009b}");
        check_escape("\xe2\x80\xae", 3, true, "\\u{202e}");
        check_escape("\xef\xbf\xbe\xf0\x9f\xbf\xbf", 7, true, "\\u{fffe}\\u{1ffff}");
        check_escape("\xff\xc3", 2, true, "\\xff\\xc3");
        check_escape("\xc0\xaf", 2, true, "\\xc0\\xaf");             /* not the shortest form */
        check_escape("\xed\xa0\x80", 3, true, "\\xed\\xa0\\x80");    /* a surrogate */
        check_escape("\xf0\x9f\x98\x80", 4, true, "\xf0\x9f\x98\x80");
        check_escape("\xf4\x90\x80\x80", 4, true, "\\xf4\\x90\\x80\\x80");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_ids),  cmocka_unit_test(test_names),  cmocka_unit_test(test_hex),
                cmocka_unit_test(test_time), cmocka_unit_test(test_fit),
                cmocka_unit_test(test_escape),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
