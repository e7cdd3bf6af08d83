/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ipc/json-convert.h"
#include "util/json.h"

static void test_there_and_back(void **state) {
        static const char text[] = "{\"a\":[1,-2,2.5,null,true,false,\"\\u00E9\\n\"],\"b\":{},\"c\":[],\"d\":9223372036854775807}";
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        _cleanup_json_ json_t *in = NULL, *out = NULL;
        _cleanup_free_ char *back = NULL;

        assert_int_equal(json_parse(text, strlen(text), &in, NULL), 0);
        assert_int_equal(json_to_variant(in, &v), 0);
        assert_int_equal(json_from_variant(v, &out), 0);
        back = json_canonical(out);
        assert_string_equal(back, text);
}

static void test_limits(void **state) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        json_t *deep = json_array();
        json_t *out = NULL;

        assert_int_equal(sd_json_variant_new_unsigned(&v, UINT64_MAX), 0);
        assert_int_equal(json_from_variant(v, &out), -ERANGE);
        v = sd_json_variant_unref(v);

        for (unsigned i = 0; i < 200; i++)
                deep = json_pack("[o]", deep);
        assert_int_equal(json_to_variant(deep, &v), -ELOOP);
        json_decref(deep);
}

/* What sd-json takes and gives back: all but DEL, which is refused both ways, and noncharacters. */
static void test_every_character(void **state) {
        for (unsigned c = 1; c < 0x110000; c++) {
                _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL, *read = NULL;
                _cleanup_json_ json_t *in = NULL, *out = NULL;
                _cleanup_free_ char *text = NULL;
                char source[32];
                int r;

                if (c >= 0xd800 && c < 0xe000)
                        continue;
                if (c >= 0x10000)
                        (void) snprintf(source, sizeof(source), "[\"\\u%04x\\u%04x\"]", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + (c & 0x3ff));
                else
                        (void) snprintf(source, sizeof(source), "[\"\\u%04x\"]", c);
                assert_int_equal(json_parse(source, strlen(source), &in, NULL), 0);

                r = json_to_variant(in, &v);
                if (c == 0x7f || (c >= 0xfdd0 && c <= 0xfdef) || (c & 0xfffe) == 0xfffe) {
                        assert_int_equal(r, c == 0x7f ? -EILSEQ : -EUCLEAN);
                        continue;
                }
                assert_int_equal(r, 0);
                assert_true(sd_json_variant_format(v, 0, &text) >= 0);
                assert_true(sd_json_parse(text, 0, &read, NULL, NULL) >= 0);
                assert_int_equal(json_from_variant(read, &out), 0);
                assert_true(json_equal(in, out));
        }
}

static void test_deny_del(void **state) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL, *key = NULL;
        json_t *out = NULL;

        assert_true(sd_json_parse("[\"a\\u007f\"]", 0, &v, NULL, NULL) >= 0);
        assert_int_equal(json_from_variant(v, &out), -EILSEQ);
        assert_true(sd_json_parse("{\"a\\u007f\":1}", 0, &key, NULL, NULL) >= 0);
        assert_int_equal(json_from_variant(key, &out), -EILSEQ);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_there_and_back),
                cmocka_unit_test(test_limits),
                cmocka_unit_test(test_every_character),
                cmocka_unit_test(test_deny_del),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
