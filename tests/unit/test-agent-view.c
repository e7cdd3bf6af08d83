/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "run/agent-view.h"
#include "util/json.h"

static const char rules[] =
        "[{\"when\":{\"/type\":\"message\",\"/message/role\":\"assistant\"},\"each\":\"/message/content\","
        "  \"where\":{\"/type\":\"text\"},\"format\":\"{/text}\"},"
        " {\"when\":{\"/type\":\"tool\"},\"format\":\"> {/name} {/arguments}\"}]";

static const struct {
        const char *name, *input, *expected; /* NULL: nothing is shown */
        const char *last;                    /* with the end of the output; NULL: nothing more */
} cases[] = {
        { "text", "{\"type\":\"message\",\"message\":{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"hello\"},"
                  "{\"type\":\"image\",\"text\":\"no\"},{\"type\":\"text\",\"text\":\"there\\n\"}]}}\n", "hello\nthere\n" },
        { "a value that is no text", "{\"type\":\"tool\",\"name\":\"bash\",\"arguments\":{\"command\":\"ls\"}}\n",
          "> bash {\"command\":\"ls\"}\n" },
        { "a missing value", "{\"type\":\"tool\"}\n", ">  \n" },
        { "another role", "{\"type\":\"message\",\"message\":{\"role\":\"user\",\"content\":[]}}\n", NULL },
        { "content of another type", "{\"type\":\"message\",\"message\":{\"role\":\"assistant\",\"content\":\"text\"}}\n", NULL },
        { "no JSON", "Segmentation fault\n", "Segmentation fault\n" },
        { "JSON but no object", "[1]\n", "[1]\n" },
        { "an empty line", "\n", NULL },
        { "an unfinished line", "{\"type\":\"tool\"}", NULL, ">  \n" },
        { "an unfinished line that is no JSON", "[1]\npanic: ", "[1]\n", "panic: \n" },
};

static char *view(const char *input, size_t size, size_t piece, char **ret_last) {
        _cleanup_(agent_view_freep) AgentView *v = NULL;
        _cleanup_json_ json_t *j = NULL;
        char *text;

        assert_int_equal(json_parse(rules, strlen(rules), &j, NULL), 0);
        assert_int_equal(agent_view_new(&v, j), 0);
        for (size_t i = 0; i < size; i += piece)
                assert_int_equal(agent_view_push(v, input + i, i + piece < size ? piece : size - i), 0);
        text = agent_view_take(v);
        assert_int_equal(agent_view_end(v), 0);
        *ret_last = agent_view_take(v);
        assert_int_equal(agent_view_end(v), 0); /* once */
        assert_null(agent_view_take(v));
        return text;
}

static void test_cases(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                for (size_t piece = 1; piece < 2000; piece += 1998) {
                        _cleanup_free_ char *text = NULL, *last = NULL;

                        text = view(cases[i].input, strlen(cases[i].input), piece, &last);
                        if (cases[i].expected)
                                assert_string_equal(text, cases[i].expected);
                        else
                                assert_null(text);
                        if (cases[i].last)
                                assert_string_equal(last, cases[i].last);
                        else
                                assert_null(last);
                }
}

/* A zero byte hides nothing of what the agent said after it. */
static void test_zero_byte(void **state) {
        static const char input[] = "crash\0ed\n{\"type\":\"tool\",\"name\":\"next\"}\n";
        _cleanup_free_ char *last = NULL, *text = view(input, sizeof(input) - 1, 7, &last);

        assert_string_equal(text, "crash?ed\n> next \n");
}

/* A line without an end costs a bounded amount of memory, is shown cut short, and the next one is read again. */
static void test_long_line(void **state) {
        size_t size = 3 * 1024 * 1024;
        _cleanup_free_ char *input = malloc(size + 64), *text = NULL, *last = NULL;

        assert_non_null(input);
        memset(input, 'x', size);
        strcpy(input + size, "\n{\"type\":\"tool\",\"name\":\"next\"}\n");
        text = view(input, size + strlen(input + size), 65536, &last);
        assert_int_equal(text[0], 'x');
        assert_non_null(strstr(text, " …\n> next \n"));
        assert_true(strlen(text) < 1024);
}

/* One line cannot yield more than its share, however many elements it has, and no character is cut in two. */
static void test_bounded_yield(void **state) {
        _cleanup_free_ char *input = malloc(512 * 1024), *text = NULL, *last = NULL;
        _cleanup_json_ json_t *valid = NULL;
        char *p = input;

        assert_non_null(input);
        p = stpcpy(p, "{\"type\":\"message\",\"message\":{\"role\":\"assistant\",\"content\":[");
        for (int i = 0; i < 4000; i++)
                p = stpcpy(p, i ? ",{\"type\":\"text\",\"text\":\"äöü äöü äöü äöü\"}" : "{\"type\":\"text\",\"text\":\"äöü\"}");
        p = stpcpy(p, "]}}\n");
        text = view(input, (size_t) (p - input), 4096, &last);
        assert_true(strlen(text) < 16 * 1024);
        valid = json_string(text); /* takes UTF-8 alone */
        assert_non_null(valid);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_cases),
                cmocka_unit_test(test_zero_byte),
                cmocka_unit_test(test_long_line),
                cmocka_unit_test(test_bounded_yield),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
