/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "util/json-position.h"
#include "util/json.h"

static json_t *parse(const char *text) {
        json_t *j = NULL;

        assert_int_equal(json_parse(text, strlen(text), &j, NULL), 0);
        return j;
}

static void test_parse(void **state) {
        static const char *const bad[] = { "", "{", "{}x", "{} {}", "{\"a\":1,\"a\":2}", "[1,]", "nul", "\"\\u0000\"" };
        _cleanup_json_ json_t *j = NULL;

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                _cleanup_free_ char *reason = NULL;

                assert_int_equal(json_parse(bad[i], strlen(bad[i]), &j, &reason), -EINVAL);
                assert_non_null(strstr(reason, "line "));
        }
        /* which jansson passes over */
        assert_int_equal(json_parse("[9\0]", 4, &j, NULL), -EINVAL);
        j = parse("\"text\"");
        assert_string_equal(json_string_value(j), "text");
}

static void test_position(void **state) {
        static const char text[] =
                "{ \"a\": [1,\n  {\"b/c\":\n\"x\\\"]\\\\\",\n \"\\u00e9~\": null},\n\n [[],\n{}]],\n\"n\": 1}\n";
        static const struct {
                const char *pointer;
                unsigned line;
        } cases[] = {
                { "", 1 }, { "/a", 1 }, { "/a/0", 1 }, { "/a/1", 2 }, { "/a/1/b~1c", 3 }, { "/a/1/\xc3\xa9~0", 4 }, { "/a/2", 6 }, { "/a/2/1", 7 }, { "/n", 8 },
                /* what is not there is where it would have been */
                { "/nothing", 1 }, { "/a/1/nothing", 2 }, { "/a/7", 1 }, { "/n/x", 8 },
        };
        _cleanup_json_ json_t *j = NULL;
        uint32_t *lines = NULL;
        unsigned line;
        size_t n;

        j = parse(text); /* it is JSON */
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                assert_int_equal(json_position(text, strlen(text), cases[i].pointer, &line), 0);
                if (line != cases[i].line)
                        fail_msg("%s: line %u instead of %u", cases[i].pointer, line, cases[i].line);
        }
        assert_int_equal(json_position(text, strlen(text), "a", &line), -EINVAL);
        assert_int_equal(json_position("{\"a\" 1}", 7, "/a", &line), -EINVAL);

        assert_int_equal(json_element_lines(text, strlen(text), "a", &lines, &n), 0);
        assert_int_equal(n, 3);
        assert_int_equal(lines[0], 1);
        assert_int_equal(lines[1], 2);
        assert_int_equal(lines[2], 6);
        free(lines);
        lines = NULL;
        assert_int_equal(json_element_lines(text, strlen(text), "n", &lines, &n), 0);
        assert_int_equal(n, 0);
        assert_null(lines);
}

static void test_range(void **state) {
        static const char text[] = " { \"a\\u0062\" : 100 ,\"c\":[ {\"d\": \"x\\\"y\"} , -1.5e3 ], \"e\": {} }";
        static const struct {
                const char *pointer, *value;
        } cases[] = { { "/ab", "100" }, { "/c/0/d", "\"x\\\"y\"" }, { "/c/1", "-1.5e3" }, { "/e", "{}" }, { "/c/0", "{\"d\": \"x\\\"y\"}" } };
        size_t begin, end;

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                assert_int_equal(json_range(text, strlen(text), cases[i].pointer, &begin, &end), 1);
                assert_int_equal(end - begin, strlen(cases[i].value));
                assert_memory_equal(text + begin, cases[i].value, end - begin);
        }
        assert_int_equal(json_range(text, strlen(text), "/x", &begin, &end), 0);
        assert_int_equal(json_range(text, strlen(text), "/ab/x", &begin, &end), 0);
        assert_int_equal(json_range(text, strlen(text), "/c/2", &begin, &end), 0);
        assert_int_equal(json_range(text, strlen(text), "ab", &begin, &end), -EINVAL);
        assert_int_equal(json_range("{\"a\":", 5, "/a", &begin, &end), -EINVAL);
}

static void test_canonical(void **state) {
        _cleanup_json_ json_t *j = parse(" { \"b\" : [1, 2.5, null], \"a\" : \"\xc3\xa9/\\n\" , \"aa\":{}} ");
        _cleanup_free_ char *text = json_canonical(j);
        _cleanup_json_ json_t *empty = json_object();
        char hex[65];

        assert_string_equal(text, "{\"a\":\"\\u00E9/\\n\",\"aa\":{},\"b\":[1,2.5,null]}");
        assert_int_equal(json_digest(empty, hex), 0);
        /* printf '{}' | sha256sum */
        assert_string_equal(hex, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
}

static void test_readers(void **state) {
        _cleanup_json_ json_t *j = parse("{\"s\":\"x\",\"n\":5,\"b\":true,\"o\":{},\"a\":[],\"z\":null}");
        _cleanup_(json_reader_done) JsonReader r = {};
        const char *s = NULL;
        uint64_t n = 7;
        bool b = false;
        json_t *c = NULL;

        assert_true(json_read_string(&r, j, "", "s", JSON_F_REQUIRED, &s));
        assert_string_equal(s, "x");
        assert_false(json_read_uint(&r, j, "", "none", 0, 0, 9, &n));
        assert_false(json_read_uint(&r, j, "", "z", JSON_F_NULLABLE, 0, 9, &n));
        assert_int_equal(n, 7);
        assert_true(json_read_uint(&r, j, "", "n", 0, 5, 5, &n));
        assert_int_equal(n, 5);
        assert_true(json_read_bool(&r, j, "", "b", 0, &b));
        assert_true(b);
        assert_true(json_read_object(&r, j, "", "o", 0, &c));
        assert_true(json_read_array(&r, j, "", "a", 0, &c));
        assert_false(r.failed);
}

static void check_failure(const char *document, void (*read)(JsonReader *, json_t *), const char *pointer, const char *reason) {
        _cleanup_json_ json_t *j = parse(document);
        _cleanup_(json_reader_done) JsonReader r = {};

        read(&r, j);
        assert_true(r.failed);
        assert_string_equal(r.pointer, pointer);
        assert_string_equal(r.reason, reason);
}

static void read_missing(JsonReader *r, json_t *j) {
        const char *s;

        (void) json_read_string(r, j, "/x", "a/b~", JSON_F_REQUIRED, &s);
        (void) json_read_string(r, j, "", "later", JSON_F_REQUIRED, &s);
}

static void read_type(JsonReader *r, json_t *j) {
        bool b;

        (void) json_read_bool(r, j, "", "n", 0, &b);
}

static void read_null(JsonReader *r, json_t *j) {
        const char *s;

        (void) json_read_string(r, j, "", "z", 0, &s);
}

static void read_range(JsonReader *r, json_t *j) {
        uint64_t n;

        (void) json_read_uint(r, j, "", "n", 0, 1, 4, &n);
}

static void read_keys(JsonReader *r, json_t *j) {
        static const char *const known[] = { "n", NULL };

        json_check_keys(r, j, "/base", known);
}

static void test_failures(void **state) {
        check_failure("{}", read_missing, "/x/a~1b~0", "is missing");
        check_failure("{\"n\":5}", read_type, "/n", "must be true or false, is an integer");
        check_failure("{\"z\":null}", read_null, "/z", "must be a string, is null");
        check_failure("{\"n\":5}", read_range, "/n", "must be from 1 to 4, is 5");
        check_failure("{\"n\":-5}", read_range, "/n", "must be from 1 to 4, is -5");
        check_failure("{\"n\":1,\"q\":2}", read_keys, "/base/q", "is not a known key");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_parse),
                cmocka_unit_test(test_position),
                cmocka_unit_test(test_range),
                cmocka_unit_test(test_canonical),
                cmocka_unit_test(test_readers),
                cmocka_unit_test(test_failures),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
