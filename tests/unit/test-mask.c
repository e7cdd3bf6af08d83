/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <openssl/evp.h>

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

/* The forms of one secret. Its Base64 was made with another program. */
#define SECRET "sk-real/0+123456789?"
#define SENTINEL "sk-fake/0+abcdefghi?"

static void test_escapes(void **state) {
        const MaskPair one[] = { PAIR(SECRET, SENTINEL) };

        check(one, 1, "k=sk-real%2F0%2B123456789%3F&x", "k=" SENTINEL "&x");
        check(one, 1, "k=sk-real%2f0%2b123456789?&x", "k=" SENTINEL "&x");
        check(one, 1, "%73%6B%2d%72%65%61%6C%2f%30%2B%31%32%33%34%35%36%37%38%39%3f", SENTINEL);
        check(one, 1, "\"sk-real\\/0+123456789?\"", "\"" SENTINEL "\"");
        check(one, 1, "\"\\u0073k-real\\u002F0+1234\\u0035\\u0036789\\u003f\"", "\"" SENTINEL "\"");
        check(one, 1, "https:\\/\\/h\\/?k=sk%2Dreal\\/0%2B123456789%3f", "https:\\/\\/h\\/?k=" SENTINEL);
        check(one, 1, "%%73k-real/0+123456789?", "%" SENTINEL);
        /* no escape of it at all, or not of all of it */
        check(one, 1, "sk-real%2G0+123456789?", "sk-real%2G0+123456789?");
        check(one, 1, "sk-real%2F0+12345678%", "sk-real%2F0+12345678%");
        check(one, 1, "sk-real\\u002 0+123456789?", "sk-real\\u002 0+123456789?");
        check(one, 1, "sk-real%2F0+123456789%3", "sk-real%2F0+123456789%3");
        check(one, 1, "\\\\u0073k-real/0+123456789?", "\\\\u0073k-real/0+123456789?");
}

static void test_base64(void **state) {
        const MaskPair one[] = { PAIR(SECRET, SENTINEL) };
        const MaskPair shorter[] = { PAIR(SECRET, "abc") };

        check(one, 1, "c2stcmVhbC8wKzEyMzQ1Njc4OT8=", "c2stZmFrZS8wK2FiY2RlZmdoaT8=");
        check(one, 1, "c2stcmVhbC8wKzEyMzQ1Njc4OT8", "c2stZmFrZS8wK2FiY2RlZmdoaT8");
        /* "x:" and "xy:" and "\xff:" before it, and "!!" behind it */
        check(one, 1, "Basic eDpzay1yZWFsLzArMTIzNDU2Nzg5PyEh", "Basic eDpzay1mYWtlLzArYWJjZGVmZ2hpPyEh");
        check(one, 1, "eHk6c2stcmVhbC8wKzEyMzQ1Njc4OT8hIQ==", "eHk6c2stZmFrZS8wK2FiY2RlZmdoaT8hIQ==");
        check(one, 1, "/zpzay1yZWFsLzArMTIzNDU2Nzg5PyEh", "/zpzay1mYWtlLzArYWJjZGVmZ2hpPyEh");
        check(one, 1, "_zpzay1yZWFsLzArMTIzNDU2Nzg5PyEh", "_zpzay1mYWtlLzArYWJjZGVmZ2hpPyEh");
        /* within escapes */
        check(one, 1, "a=c2stcmVhbC8wKzEyMzQ1Njc4OT8%3D", "a=c2stZmFrZS8wK2FiY2RlZmdoaT8%3D");
        check(one, 1, "a=c2stcmVhbC8wKzE%79MzQ1Njc4OT8%3D", "a=c2stZmFrZS8wK2FiY2RlZmdoaT8%3D");
        check(one, 1, "\"c2stcmVhbC8w\\u004bzEyMzQ1Njc4OT8=\"", "\"c2stZmFrZS8wK2FiY2RlZmdoaT8=\"");
        /* one bit is another */
        check(one, 1, "c2stcmVhbC8wKzEyMzQ1Njc4OT4=", "c2stcmVhbC8wKzEyMzQ1Njc4OT4=");
        /* a replacement of another length is cut or repeated: what stands around stays where it is */
        check(shorter, 1, "eHk6c2stcmVhbC8wKzEyMzQ1Njc4OT8hIQ==", "eHk6YWJjYWJjYWJjYWJjYWJjYWJjYWIhIQ==");
}

/* ---- what is let go at the end of a message ---- */

/* The forms in which it may stand in a message, and what its first MASK_BEGINNING_MAX + 1 characters are in them. */
static const struct { const char *text, *beginning, *masked; } forms[] = {
        { SECRET, "sk-real/0", SENTINEL },
        { "sk-real%2F0%2B123456789%3F", "sk-real%2F0", SENTINEL },
        { "sk-real\\/0+1234\\u003567\\u00389?", "sk-real\\/0", SENTINEL },
        { "c2stcmVhbC8wKzEyMzQ1Njc4OT8", "c2stcmVhbC8w", "c2stZmFrZS8wK2FiY2RlZmdoaT8" },
};

static void assert_out(const Buffer *out, const char *text) {
        assert_int_equal(buffer_size(out), strlen(text));
        assert_memory_equal(buffer_data(out), text, strlen(text));
}

/* Cut anywhere: of the secret's beginning no more gets out than may, the rest of it never does, and what stands around it always. */
static void test_release(void **state) {
        static const MaskPair one[] = { PAIR(SECRET, SENTINEL) }, beginning[] = { { SECRET, MASK_BEGINNING_MAX + 1, "", 0 } };

        for (size_t f = 0; f < sizeof(forms) / sizeof(*forms); f++) {
                const char *text = forms[f].text;
                size_t size = strlen(text), n_held = 0;

                for (size_t cut = 0; cut <= size; cut++) {
                        _cleanup_(masker_freep) Masker *m = NULL, *b = NULL;
                        char expected[128];
                        Buffer out = {};
                        int r;

                        assert_int_equal(masker_new(&m, one, 1), 0);
                        assert_int_equal(masker_new(&b, beginning, 1), 0);
                        assert_int_equal(masker_feed(m, "a message ", 10, &out), 0);
                        assert_int_equal(masker_feed(m, text, cut, &out), 0);
                        r = masker_release(m, b, &out);
                        assert_true(r == 0 || r == 1);
                        n_held += r == 1;
                        if (cut == size) { /* all of it is there: the sentinel goes on in its place */
                                (void) snprintf(expected, sizeof(expected), "a message %s", forms[f].masked);
                                assert_int_equal(r, 0);
                                assert_out(&out, expected);
                        } else {
                                (void) snprintf(expected, sizeof(expected), "a message %.*s", r == 0 ? (int) cut : 0, text);
                                assert_out(&out, expected);
                                assert_int_equal(r, cut >= strlen(forms[f].beginning));
                        }

                        assert_int_equal(masker_feed(m, text + cut, size - cut, &out), 0);
                        assert_int_equal(masker_feed(m, " and the next", 13, &out), 0);
                        assert_int_equal(masker_finish(m, &out), 0);
                        assert_int_equal(buffer_append(&out, "", 1), 0);
                        if (r == 1 || cut == size) {
                                (void) snprintf(expected, sizeof(expected), "a message %s and the next", forms[f].masked);
                                assert_string_equal((const char *) buffer_data(&out), expected);
                        } else {
                                assert_memory_equal(buffer_data(&out), expected, strlen(expected));
                                assert_null(strstr((const char *) buffer_data(&out), text + strlen(forms[f].beginning)));
                                assert_non_null(strstr((const char *) buffer_data(&out), " and the next"));
                        }
                        assert_int_equal(masker_hits(m), 1);
                        buffer_done(&out);
                }
                assert_int_equal(n_held, size - strlen(forms[f].beginning));
        }
}

/* Once each byte: what was let go before counts. And what only looks like it goes on at once. */
static void test_release_often(void **state) {
        static const MaskPair one[] = { PAIR(SECRET, SENTINEL) }, beginning[] = { { SECRET, MASK_BEGINNING_MAX + 1, "", 0 } };
        static const char other[] = "sk-reaL/0+123456789? sk-real/1+123456789?";

        for (unsigned wrong = 0; wrong < 2; wrong++) {
                _cleanup_(masker_freep) Masker *m = NULL, *b = NULL;
                const char *text = wrong ? other : SECRET;
                Buffer out = {};

                assert_int_equal(masker_new(&m, one, 1), 0);
                assert_int_equal(masker_new(&b, beginning, 1), 0);
                for (size_t i = 0; i < strlen(text); i++) {
                        assert_int_equal(masker_feed(m, text + i, 1, &out), 0);
                        assert_int_equal(masker_release(m, b, &out), !wrong && i >= MASK_BEGINNING_MAX && i + 1 < strlen(text));
                        if (wrong)
                                assert_int_equal(buffer_size(&out), i + 1);
                }
                assert_int_equal(masker_finish(m, &out), 0);
                assert_out(&out, wrong ? other : "sk-real/"
                                                 "0+abcdefghi?");
                assert_int_equal(masker_hits(m), !wrong);
                buffer_done(&out);
        }
}

/* Without beginnings nothing is spared, and the needle is found all the same: so is one that goes on in another masker. */
static void test_release_and_find(void **state) {
        static const MaskPair one[] = { PAIR(SECRET, "") };

        for (size_t cut = 1; cut < strlen(SECRET); cut++) {
                _cleanup_(masker_freep) Masker *m = NULL, *next = NULL;
                Buffer out = {};

                assert_int_equal(masker_new(&m, one, 1), 0);
                assert_int_equal(masker_new(&next, one, 1), 0);
                assert_int_equal(masker_feed(m, SECRET, cut, &out), 0);
                assert_int_equal(masker_release(m, NULL, &out), 0);
                assert_int_equal(buffer_size(&out), cut);
                assert_int_equal(masker_hits(m), 0);
                masker_take_over(next, m);
                assert_int_equal(masker_feed(next, SECRET + cut, strlen(SECRET) - cut, &out), 0);
                assert_int_equal(masker_finish(next, &out), 0);
                assert_int_equal(masker_hits(next), 1);
                assert_int_equal(buffer_size(&out), cut);
                buffer_done(&out);
        }
}

static void test_begins_before(void **state) {
        static const MaskPair one[] = { { SECRET, MASK_BEGINNING_MAX + 1, "", 0 } };
        _cleanup_(masker_freep) Masker *m = NULL;

        assert_int_equal(masker_new(&m, one, 1), 0);
        assert_int_equal(masker_begins_before(m, "\0\0\0\0sk-real/0", 13, 5), 1);
        assert_int_equal(masker_begins_before(m, "\0sk-real/0+1234", 15, 5), 1);
        assert_int_equal(masker_begins_before(m, "\0a sk-real%2f0", 14, 5), 1);
        assert_int_equal(masker_begins_before(m, "\0\0\0\0\x11sk-real/0", 14, 5), 0);
        assert_int_equal(masker_begins_before(m, "\0\0\0\0sk-real/", 12, 5), 0);
        assert_int_equal(masker_begins_before(m, "", 0, 5), 0);
}

/* In each alphabet the other digits mean the same, and come back in the same one. */
static void test_base64_alphabets(void **state) {
        const MaskPair one[] = { PAIR("~~~??" "?>>>", "??" "?~~~??" "?") };

        check(one, 1, "fn5+Pz8/Pj4+", "Pz8/fn5+Pz8/");
        check(one, 1, "fn5-Pz8_Pj4-", "Pz8_fn5-Pz8_");
        check(one, 1, "fn5\\u002bPz8\\/Pj4+", "Pz8/fn5+Pz8/");
        check(one, 1, "fn5%2BPz8%2FPj4%2b", "Pz8%2Ffn5%2BPz8%2F");
}

/* ---- long needles: where a sieve looks first ---- */

enum { NEEDLE_LONGEST = 300, AROUND = 2 * NEEDLE_LONGEST };

/* The same pseudo-random characters each time, of Base64's first alphabet. */
static void fill(char *p, size_t n, uint32_t seed) {
        for (size_t i = 0; i < n; i++) {
                seed = seed * 1664525 + 1013904223;
                p[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[seed >> 26];
        }
}

/* `form` once at each distance from the start: it is found, once, and what stands around it stays; with one character changed it is not. */
static void check_everywhere(const MaskPair *pair, const char *form, size_t n_changed) {
        size_t n = strlen(form);

        for (size_t before = 0; before < 130; before++) {
                char text[2 * AROUND], around[AROUND];
                size_t tail = 70, size = before + n + tail;

                fill(around, sizeof(around), (uint32_t) (before + n));
                memcpy(text, around, before);
                memcpy(text + before, form, n);
                memcpy(text + before + n, around + before, tail);

                for (unsigned changed = 0; changed < 2; changed++) {
                        _cleanup_(masker_freep) Masker *m = NULL;
                        Buffer out = {};

                        if (changed)
                                text[before + n_changed] ^= 1;
                        assert_int_equal(masker_new(&m, pair, 1), 0);
                        assert_int_equal(masker_feed(m, text, size, &out), 0);
                        assert_int_equal(masker_finish(m, &out), 0);
                        assert_int_equal(masker_hits(m), !changed);
                        assert_true(buffer_size(&out) >= before + tail - 2);
                        assert_memory_equal(buffer_data(&out), text, before ? before - 1 : 0);
                        if (changed)
                                assert_memory_equal(buffer_data(&out), text, size);
                        buffer_done(&out);
                }
        }
}

static void test_long_needles(void **state) {
        static const size_t sizes[] = { 31, 32, 33, 46, 95, 108, 255, 256, 257 };

        for (size_t i = 0; i < ELEMENTSOF(sizes); i++) {
                size_t n = sizes[i];
                char needle[NEEDLE_LONGEST], behind[NEEDLE_LONGEST + 3] = "\1\2\3", form[AROUND];
                MaskPair pair = { needle, n, "r", 1 };

                fill(needle, n, (uint32_t) n);
                needle[n] = '\0';
                needle[5] = '-';
                needle[n - 3] = '_';
                check_everywhere(&pair, needle, n / 2);
                for (unsigned shift = 0; shift < 3; shift++) {
                        memcpy(behind + shift, needle, n);
                        assert_true(EVP_EncodeBlock((unsigned char *) form, (unsigned char *) behind, (int) (shift + n)) > 0);
                        check_everywhere(&pair, form, 4 + n / 2);
                        for (char *c = form; *c; c++)
                                *c = *c == '+' ? '-' : *c == '/' ? '_' : *c;
                        check_everywhere(&pair, form, 4 + n / 2);
                }
        }
}

/* The shorter one is found first where both stand, and the longer one where the shorter is none. */
static void test_long_and_short(void **state) {
        const MaskPair pairs[] = {
                PAIR("abcdefghijklmnopqrstuvwxyz0123456789ABCDEF", "<long>"),
                PAIR("efghijklmn", "<short>"),
                PAIR("0123456789ABCDEFabcdefghijklmnopqrstuvwxyz----", "<other>"),
        };

        check(pairs, 3, "efghijklmn+abcdefghijklmnopqrstuvwxyz0123456789ABCDEF", "<short>+<long>");
        check(pairs, 3, "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFabcdefghijklmnopqrstuvwxyz----", "<long>abcd<short>opqrstuvwxyz----");
        check(pairs, 3, "x0123456789ABCDEFabcdefghijklmnopqrstuvwxyz----efghijklmn", "x<other><short>");
}

/* What is held back depends on lengths alone: a stream with a part of the secret comes in the same pieces as one with anything else. */
static void test_hold_back_is_blind(void **state) {
        static const struct {
                const char *right, *wrong;
        } streams[] = {
                { "it is: sk-real/0+1234 and so on", "it is: xk-real/0+1234 and so on" },
                { "sk-real/0+12345678sk-real/0+12345678", "sk-real/0+12345679#################!" },
                { "sk-real/0+1234567zzzzzzzzzzzzzzzzzzzzzz", "azzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz" },
                { "k=sk-real%2F0%2B12345678%38&zzzzzzzzzzzzzzzzzzzzzzzzz", "k=sk-real%2E0%2C12345678%38&zzzzzzzzzzzzzzzzzzzzzzzzz" },
                { "\\u0073k-real\\/0+12345678\\u0038\\u0038zzzzzzz", "\\u0074k-real\\/1+12345678\\u0038\\u0038zzzzzzz" },
                { "c2stcmVhbC8wKzEyMzQ1Njc4OT4====================", "c2stcmVhbC8wKzEyMzQ1Njc4OS4====================" },
                { "eDpzay1yZWFsLzArMTIzNDU2Nzg5AAAAAAAAAAAAAAA", "eDpzay1yZWFsLzArMTIzNDU2Nzg4AAAAAAAAAAAAAAA" },
                { "event: sk-real/0+12345678\n\nsk-real/0+123456789", "event: sk-reel/0+12345678\n\nsk-real/0+12345678." },
        };
        const MaskPair pairs[] = { PAIR(SECRET, SENTINEL) };

        for (size_t i = 0; i < ELEMENTSOF(streams); i++)
                for (size_t piece = 1; piece < 30; piece++) {
                        _cleanup_(masker_freep) Masker *a = NULL, *b = NULL;
                        size_t size = strlen(streams[i].right);
                        Buffer right = {}, wrong = {};

                        assert_int_equal(size, strlen(streams[i].wrong));
                        assert_int_equal(masker_new(&a, pairs, 1), 0);
                        assert_int_equal(masker_new(&b, pairs, 1), 0);
                        for (size_t at = 0; at < size; at += piece) {
                                size_t n = piece < size - at ? piece : size - at;

                                assert_int_equal(masker_feed(a, streams[i].right + at, n, &right), 0);
                                assert_int_equal(masker_feed(b, streams[i].wrong + at, n, &wrong), 0);
                                assert_int_equal(buffer_size(&right), buffer_size(&wrong));
                        }
                        buffer_done(&right);
                        buffer_done(&wrong);
                }
}

/* No more than the longest form, less one: 27 digits of Base64. With escapes, as many units. */
static void test_hold_back_is_short(void **state) {
        const MaskPair pairs[] = { PAIR(SECRET, SENTINEL) };
        static const struct {
                const char *text;
                size_t held;
        } cases[] = {
                { "it is: 0123456789", 10 },
                { "it is: 0123456789012345678901234567890123456789", 27 },
                { "%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41%41", 81 },
                { "0123456789012345678901234567890123456789\n", 0 },
                { "0123456789012345678901234567890123456789\n%4", 2 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_(masker_freep) Masker *m = NULL;
                Buffer out = {};

                assert_int_equal(masker_new(&m, pairs, 1), 0);
                assert_int_equal(masker_feed(m, cases[i].text, strlen(cases[i].text), &out), 0);
                assert_int_equal(strlen(cases[i].text) - buffer_size(&out), cases[i].held);
                buffer_done(&out);
        }
}

static void test_bad_needles(void **state) {
        static const char huge[MASK_NEEDLE_MAX + 1];
        const MaskPair blank[] = { PAIR("a b", "x") }, empty[] = { PAIR("", "x") }, large[] = { { huge, sizeof(huge), "", 0 } };
        Masker *m = NULL;

        assert_int_equal(masker_new(&m, blank, 1), -EINVAL);
        assert_int_equal(masker_new(&m, empty, 1), -EINVAL);
        assert_int_equal(masker_new(&m, large, 1), -EINVAL);
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
                cmocka_unit_test(test_escapes),
                cmocka_unit_test(test_base64),
                cmocka_unit_test(test_release),
                cmocka_unit_test(test_release_often),
                cmocka_unit_test(test_release_and_find),
                cmocka_unit_test(test_begins_before),
                cmocka_unit_test(test_base64_alphabets),
                cmocka_unit_test(test_long_needles),
                cmocka_unit_test(test_long_and_short),
                cmocka_unit_test(test_hold_back_is_blind),
                cmocka_unit_test(test_hold_back_is_short),
                cmocka_unit_test(test_bad_needles),
                cmocka_unit_test(test_no_needles),
                cmocka_unit_test(test_buffer_zeroes),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
