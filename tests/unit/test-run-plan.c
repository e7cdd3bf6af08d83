/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The pure parts of anchor-run: spec, plan, command, text. */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "run/run-command.h"
#include "run/run-plan.h"
#include "run/run-text.h"
#include "util/json.h"
#include "vmm/channel.h"

#define HEAD "\"run\":\"r000000000000\",\"item\":\"i000000000000\",\"workflow\":\"w\",\"template\":\"base\",\"attempt\":1,\"round\":1," \
             "\"limits\":{\"boot_s\":60,\"run_s\":3600,\"output_bytes\":1000,\"bundle_bytes\":1000},"
#define REPOSITORY "\"repository\":{\"base\":\"0123456789012345678901234567890123456789\",\"ref\":\"refs/anchorhold/base\",\"result_ref\":\"refs/anchorhold/result\"},"
#define STEP_PREPARE "{\"name\":\"deps\",\"kind\":\"prepare\",\"argv\":[\"true\"],\"timeout_s\":9}"
#define STEP_AGENT "{\"name\":\"agent\",\"kind\":\"agent\",\"argv\":[\"a\",\"{task}\"],\"env\":{\"KEY\":{\"sentinel\":\"c\"},\"X\":\"1\"},\"cwd\":\"/workspace/repo\",\"timeout_s\":9}"
#define STEP_CHECK "{\"name\":\"check\",\"kind\":\"check\",\"argv\":[\"make\"],\"timeout_s\":9,\"feedback\":{\"rounds\":2}}"

static void parse(const char *text, RunSpec *ret) {
        _cleanup_json_ json_t *j = NULL;
        char *reason = NULL;

        assert_int_equal(json_parse(text, strlen(text), &j, NULL), 0);
        if (run_spec_parse(j, ret, &reason) < 0)
                fail_msg("%s", reason);
}

static void test_spec(void **state) {
        static const struct {
                const char *text, *word;
        } bad[] = {
                { "{}", "/run" },
                { "{" HEAD "\"stage\":\"x\",\"steps\":[]}", "/stage" },
                { "{" HEAD "\"stage\":\"work\"}", "/steps" },
                { "{" HEAD "\"stage\":\"work\",\"steps\":[1]}", "/steps/0" },
                { "{" HEAD "\"stage\":\"work\",\"steps\":[{\"name\":\"a\",\"kind\":\"b\",\"argv\":[\"x\"],\"timeout_s\":1}]}", "/steps/0/kind" },
                { "{" HEAD "\"stage\":\"work\",\"steps\":[{\"name\":\"a\",\"kind\":\"exec\",\"argv\":[],\"timeout_s\":1}]}", "/steps/0/argv" },
                { "{" HEAD "\"stage\":\"work\",\"steps\":[{\"name\":\"a\",\"kind\":\"exec\",\"argv\":[1],\"timeout_s\":1}]}", "/steps/0/argv" },
                { "{" HEAD "\"stage\":\"work\",\"repository\":{\"base\":\"zz\",\"ref\":\"r\",\"result_ref\":\"r\"},\"steps\":[]}", "/repository/base" },
                { "{" HEAD "\"stage\":\"work\",\"steps\":[{\"name\":\"a\",\"kind\":\"exec\",\"argv\":[\"x\"],\"timeout_s\":1,\"files\":[{\"path\":\"x\",\"content\":\"\"}]}]}", "/steps/0/files" },
                { "{" HEAD "\"stage\":\"work\",\"steps\":[{\"name\":\"a\",\"kind\":\"exec\",\"argv\":[\"x\"],\"timeout_s\":1,\"files\":[{\"path\":\"/x\",\"content\":\"\",\"mode\":384}]}]}", "/steps/0/files" },
                { "{" HEAD "\"stage\":\"work\",\"steps\":[{\"name\":\"a\",\"kind\":\"exec\",\"argv\":[\"x\"],\"timeout_s\":1,\"files\":[{\"path\":\"/x\",\"content\":\"\",\"mode\":\"0800\"}]}]}", "/steps/0/files" },
                { "{" HEAD "\"stage\":\"work\",\"steps\":[{\"name\":\"a\",\"kind\":\"exec\",\"argv\":[\"x\"],\"timeout_s\":1,\"files\":[{\"path\":\"/x\",\"content\":\"\",\"mode\":\"1777\"}]}]}", "/steps/0/files" },
        };

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                _cleanup_json_ json_t *j = NULL;
                _cleanup_free_ char *reason = NULL;
                RunSpec s = {};

                assert_int_equal(json_parse(bad[i].text, strlen(bad[i].text), &j, NULL), 0);
                assert_int_equal(run_spec_parse(j, &s, &reason), -EINVAL);
                if (!strstr(reason, bad[i].word))
                        fail_msg("case %zu: \"%s\" lacks \"%s\"", i, reason, bad[i].word);
        }
}

static void ended(RunPlan *p, const char *name, int status) {
        const RunStep *s = run_plan_next(p);

        assert_non_null(s);
        assert_string_equal(s->name, name);
        run_plan_step_ended(p, &(RunStepEnd) { .kind = RUN_END_STATUS, .value = status });
}

static void test_plan(void **state) {
        _cleanup_(run_spec_done) RunSpec s = {};
        RunPlan p;

        parse("{" HEAD REPOSITORY "\"stage\":\"work\",\"steps\":[" STEP_PREPARE "," STEP_AGENT "," STEP_CHECK "]}", &s);

        run_plan_init(&p, &s); /* all goes well */
        ended(&p, "deps", 0);
        ended(&p, "agent", 0);
        ended(&p, "check", 0);
        assert_null(run_plan_next(&p));
        assert_false(p.failed);
        assert_int_equal(p.round, 1);

        run_plan_init(&p, &s); /* the second round does it */
        ended(&p, "deps", 0);
        ended(&p, "agent", 0);
        ended(&p, "check", 2);
        assert_int_equal(p.round, 2);
        ended(&p, "agent", 0);
        ended(&p, "check", 0);
        assert_null(run_plan_next(&p));
        assert_false(p.failed);

        run_plan_init(&p, &s); /* two rounds, and no more */
        ended(&p, "deps", 0);
        for (unsigned i = 0; i < 3; i++) {
                assert_false(p.failed);
                ended(&p, "agent", 0);
                ended(&p, "check", 2);
        }
        assert_null(run_plan_next(&p));
        assert_true(p.failed);
        assert_non_null(strstr(p.reason, "exit status 2"));

        run_plan_init(&p, &s); /* prepare has no second chance */
        ended(&p, "deps", 1);
        assert_null(run_plan_next(&p));
        assert_true(p.failed);

        run_plan_init(&p, &s); /* an agent that fails ends the run */
        ended(&p, "deps", 0);
        run_plan_step_ended(&p, &(RunStepEnd) { .kind = RUN_END_TIMEOUT });
        assert_true(p.failed);
        assert_non_null(strstr(p.reason, "time limit"));
}

static void test_plan_without_agent(void **state) {
        _cleanup_(run_spec_done) RunSpec s = {};
        RunPlan p;

        parse("{" HEAD REPOSITORY "\"stage\":\"verify\",\"steps\":[" STEP_CHECK "]}", &s);
        assert_true(s.verify);
        run_plan_init(&p, &s);
        ended(&p, "check", 1);
        assert_null(run_plan_next(&p));
        assert_true(p.failed);
}

static void test_command(void **state) {
        static const char *const bundles[] = { "SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO",
                                               "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" };
        _cleanup_json_ json_t *sentinels = json_pack("{s:s}", "c", "sk-1"), *request = NULL, *again = NULL;
        _cleanup_free_ char *reason = NULL, *text = NULL;
        RunContext context = { .task = "do {feedback} it", .feedback = "", .sentinels = sentinels };
        _cleanup_(run_spec_done) RunSpec s = {};

        parse("{" HEAD "\"stage\":\"work\",\"steps\":[" STEP_AGENT "]}", &s);

        assert_int_equal(run_command_build(s.steps, &context, &request, &reason), 0);
        assert_string_equal(json_string_value(json_array_get(json_object_get(request, "argv"), 1)), "do {feedback} it");
        assert_string_equal(json_string_value(json_object_get(json_object_get(request, "env"), "KEY")), "sk-1");
        assert_null(json_object_get(json_object_get(request, "env"), "SSL_CERT_FILE"));

        context.feedback = "check failed";
        context.has_ca = true;
        assert_int_equal(run_command_build(s.steps, &context, &again, &reason), 0);
        assert_string_equal(json_string_value(json_array_get(json_object_get(again, "argv"), 1)), "do {feedback} it\n\ncheck failed");
        for (size_t i = 0; i < ELEMENTSOF(bundles); i++)
                assert_string_equal(json_string_value(json_object_get(json_object_get(again, "env"), bundles[i])), RUN_GUEST_BUNDLE);
        assert_string_equal(json_string_value(json_object_get(json_object_get(again, "env"), "NODE_EXTRA_CA_CERTS")), RUN_GUEST_CA);

        text = run_command_fill("{ta{task}{}{feedback}{", s.steps, &context);
        assert_string_equal(text, "{tado {feedback} it\n\ncheck failed{}check failed{");
        again = json_unref(again);

        context.sentinels = NULL;
        assert_int_equal(run_command_build(s.steps, &context, &again, &reason), -EINVAL);
        assert_non_null(strstr(reason, "no credential \"c\""));
}

/* The task goes out whole; feedback gives way, from its beginning and between two characters. */
static void test_long_feedback(void **state) {
        _cleanup_json_ json_t *sentinels = json_pack("{s:s}", "c", "sk-1"), *request = NULL;
        _cleanup_free_ char *reason = NULL, *task = malloc(60001), *feedback = malloc(16001), *dump = NULL;
        RunContext context = { .sentinels = sentinels };
        _cleanup_(run_spec_done) RunSpec s = {};
        const char *arg;

        memset(task, 't', 60000);
        task[60000] = 0;
        for (size_t i = 0; i < 16000; i += 2)
                memcpy(feedback + i, "\xc3\xa4", 2);
        strcpy(feedback + 15997, "end");
        feedback[15996] = ' ';
        context.task = task;
        context.feedback = feedback;
        parse("{" HEAD "\"stage\":\"work\",\"steps\":[" STEP_AGENT "]}", &s);

        assert_int_equal(run_command_build(s.steps, &context, &request, &reason), 0);
        dump = json_dumps(request, JSON_COMPACT);
        assert_in_range(strlen(dump), CHANNEL_PAYLOAD_MAX - 256, CHANNEL_PAYLOAD_MAX - 64);
        arg = json_string_value(json_array_get(json_object_get(request, "argv"), 1));
        assert_memory_equal(arg, task, 60000);
        assert_memory_equal(arg + 60000, "\n\n\xc3\xa4", 4);
        assert_string_equal(arg + strlen(arg) - 3, "end");
}

static void check_text(const char *in, size_t size, bool last, size_t room, const char *expected, size_t used) {
        char out[256];
        size_t n = 0;

        assert_int_equal(run_text_encode((const uint8_t *) in, size, last, out, room, &n), used);
        assert_int_equal(n, strlen(expected));
        assert_memory_equal(out, expected, n);
}

static void test_text(void **state) {
        check_text("hello\n\t\033", 8, false, 256, "hello\n\t\033", 8);
        check_text("a\0b", 3, false, 256, "a\\x00b", 3);
        check_text("\xc3\xa4", 2, false, 256, "\xc3\xa4", 2);
        check_text("x\xc3", 2, false, 256, "x", 1);
        check_text("x\xc3", 2, true, 256, "x\\xc3", 2);
        check_text("\xc0\x80", 2, false, 256, "\\xc0\\x80", 2);         /* overlong */
        check_text("\xed\xa0\x80", 3, false, 256, "\\xed\\xa0\\x80", 3); /* surrogate */
        check_text("\xf4\x90\x80\x80", 4, false, 256, "\\xf4\\x90\\x80\\x80", 4);
        check_text("\xf0\x9f\x98\x80!", 5, false, 256, "\xf0\x9f\x98\x80!", 5);
        check_text("a\x7f", 2, false, 256, "a\\x7f", 2);
        check_text("\xef\xbf\xbd\xef\xbf\xbe", 6, false, 256, "\xef\xbf\xbd\\xef\\xbf\\xbe", 6); /* U+FFFD, U+FFFE */
        check_text("\xef\xb7\x8f\xef\xb7\x90", 6, false, 256, "\xef\xb7\x8f\\xef\\xb7\\x90", 6); /* U+FDCF, U+FDD0 */
        check_text("\xf0\x9f\xbf\xbf", 4, false, 256, "\\xf0\\x9f\\xbf\\xbf", 4);              /* U+1FFFF */
        check_text("abcdef", 6, false, 3, "abc", 3);
        check_text("ab\xff", 3, false, 5, "ab", 2);
}

static void test_tail(void **state) {
        static RunTail t;
        _cleanup_free_ char *a = NULL, *b = NULL;

        run_tail_clear(&t);
        run_tail_push(&t, "one\ntwo\n", 8);
        a = run_tail_text(&t);
        assert_string_equal(a, "one\ntwo\n");

        for (unsigned i = 0; i < 10000; i++)
                run_tail_push(&t, "line\n", 5);
        run_tail_push(&t, "end", 3);
        b = run_tail_text(&t);
        assert_true(strlen(b) <= sizeof(t.data));
        assert_memory_equal(b, "line\nline\n", 10);
        assert_string_equal(b + strlen(b) - 8, "line\nend");
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_spec),
                cmocka_unit_test(test_plan),
                cmocka_unit_test(test_plan_without_agent),
                cmocka_unit_test(test_command),
                cmocka_unit_test(test_long_feedback),
                cmocka_unit_test(test_text),
                cmocka_unit_test(test_tail),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
