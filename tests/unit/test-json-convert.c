/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
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

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_there_and_back),
                cmocka_unit_test(test_limits),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
