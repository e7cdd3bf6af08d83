/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Workflow and harness become a run's spec; submissions that do not fit are refused with the reason. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "api/spec.h"
#include "util/json.h"

#define COMMIT_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define COMMIT_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static json_t *parse(const char *text) {
        json_t *j = NULL;

        assert_int_equal(json_parse(text, strlen(text), &j, NULL), 0);
        return j;
}

static const PolicyWorkflow exec_workflow = {
        .name = "exec", .template_name = "base", .memory_mib = 512, .vcpus = 2, .disk_mib = 4096, .run_s = 3600, .output_bytes = 1000,
        .steps = (const PolicyStep[]) { { .name = "exec", .kind = "exec", .cwd = "/root", .timeout_s = 60 } },
        .n_steps = 1,
};

static const char *at(json_t *j, const char *key) {
        return json_string_value(json_object_get(j, key));
}

static int64_t boot_s(SpecInput in, bool tcg, uint64_t configured_s) {
        _cleanup_json_ json_t *spec = NULL;

        in.tcg = tcg;
        in.boot_timeout_s = configured_s;
        assert_int_equal(spec_make_run(&in, &spec), 0);
        return json_integer_value(json_object_get(json_object_get(spec, "limits"), "boot_s"));
}

static void test_exec(void **state) {
        _cleanup_json_ json_t *command = parse("[\"/bin/echo\", \"a b\"]"), *spec = NULL;
        SpecInput in = {
                .run = "r000000000001", .item = "i000000000001", .attempt = 1, .workflow = &exec_workflow, .command = command, .tcg = true,
        };
        json_t *step;

        assert_int_equal(spec_make_run(&in, &spec), 0);
        assert_string_equal(at(spec, "stage"), "work");
        assert_true(json_is_null(json_object_get(spec, "repository")));
        assert_true(json_is_null(json_object_get(spec, "agent")));
        assert_int_equal(boot_s(in, true, 0), 60);
        assert_int_equal(boot_s(in, false, 0), 15);
        assert_int_equal(boot_s(in, false, 45), 45); /* of host.json: whatever the accelerator */
        assert_int_equal(boot_s(in, true, 45), 45);
        step = json_array_get(json_object_get(spec, "steps"), 0);
        assert_true(json_equal(json_object_get(step, "argv"), command));
        assert_string_equal(at(step, "cwd"), "/root");

        in.command = NULL;
        assert_int_equal(spec_make_run(&in, &spec), -EINVAL);
}

static void test_agent(void **state) {
        _cleanup_json_ json_t *harness = NULL, *argv = NULL, *env = NULL, *work = NULL, *verify = NULL, *vm = NULL, *manifest = NULL;
        PolicyStep steps[2] = { { .name = "agent", .kind = "agent", .cwd = "/workspace/repo", .timeout_s = 900 },
                                { .name = "check", .kind = "check", .cwd = "/workspace/repo", .timeout_s = 60, .feedback_rounds = 2 } };
        PolicyWorkflow w = { .name = "code-fix", .template_name = "base", .harness = "pi", .repository = true, .run_s = 10,
                             .steps = steps, .n_steps = 2, .verify = &steps[1], .n_verify = 1 };
        SpecInput in = { .run = "r000000000001", .item = "i000000000001", .attempt = 2, .workflow = &w, .task = "fix", .base = COMMIT_A };
        json_t *step;

        harness = parse("{\"image\": \"pi\", \"argv\": [\"pi\", \"{task}\"], \"env\": {\"A\": \"1\", \"K\": {\"sentinel\": \"anthropic\"}},"
                        " \"files\": [{\"path\": \"/x\", \"content\": \"y\"}], \"stdin\": \"{feedback}\"}");
        argv = parse("[\"make\", \"check\"]");
        env = parse("{\"A\": \"2\"}");
        manifest = parse("{\"name\": \"base\", \"digest\": \"d\", \"files\": {\"root.erofs\": \"s\"}}");
        in.harness = harness;
        steps[0].env = env;
        steps[1].argv = argv;

        assert_int_equal(spec_make_run(&in, &work), 0);
        assert_string_equal(at(work, "agent"), "pi");
        assert_string_equal(at(json_object_get(work, "repository"), "ref"), REF_BASE);
        step = json_array_get(json_object_get(work, "steps"), 0);
        assert_string_equal(json_string_value(json_array_get(json_object_get(step, "argv"), 1)), "{task}"); /* filled in by anchor-run */
        assert_string_equal(at(json_object_get(step, "env"), "A"), "2"); /* the step's wins */
        assert_string_equal(at(json_object_get(json_object_get(step, "env"), "K"), "sentinel"), "anthropic");
        assert_string_equal(at(step, "stdin"), "{feedback}");
        assert_string_equal(at(step, "cwd"), "/workspace/repo");
        assert_int_equal(json_array_size(json_object_get(step, "files")), 1);
        step = json_array_get(json_object_get(work, "steps"), 1);
        assert_int_equal(json_integer_value(json_object_get(json_object_get(step, "feedback"), "rounds")), 2);
        assert_int_equal(json_object_size(json_object_get(step, "env")), 0); /* a check sees nothing of the agent's */

        /* the second microVM: no agent, no task, only checks, and the result as the base */
        in.verify = true;
        in.base = COMMIT_B;
        assert_int_equal(spec_make_run(&in, &verify), 0);
        assert_true(json_is_null(json_object_get(verify, "agent")));
        assert_true(json_is_null(json_object_get(verify, "task")));
        assert_int_equal(json_array_size(json_object_get(verify, "steps")), 1);
        assert_string_equal(at(json_object_get(verify, "repository"), "base"), COMMIT_B);
        assert_string_equal(at(json_object_get(verify, "repository"), "ref"), REF_RESULT);
        assert_int_equal(spec_make_vm(&in, manifest, &vm), 0);
        assert_true(json_is_null(json_object_get(vm, "agent")));
        assert_string_equal(at(json_object_get(vm, "digests"), "root.erofs"), "s");
        assert_string_equal(at(vm, "accel"), "kvm");

        in.verify = false;
        in.harness = NULL;
        vm = json_unref(vm);
        assert_int_equal(spec_make_run(&in, &vm), -EINVAL);
}

static const char *cwd_of(const SpecInput *in) {
        _cleanup_json_ json_t *spec = NULL;
        static char cwd[64];

        assert_int_equal(spec_make_run(in, &spec), 0);
        (void) snprintf(cwd, sizeof(cwd), "%s", at(json_array_get(json_object_get(spec, "steps"), 0), "cwd"));
        return cwd;
}

/* The step's own, else the harness's for the agent and nobody else, else where the repository is. */
static void test_cwd(void **state) {
        _cleanup_json_ json_t *harness = parse("{\"argv\": [\"pi\", \"{task}\"], \"cwd\": \"/srv\", \"files\": [{\"path\": \"/x\", \"content\": \"y\", \"mode\": \"0600\"}]}"),
                              *plain = parse("{\"argv\": [\"pi\", \"{task}\"]}"), *argv = parse("[\"make\"]"), *spec = NULL;
        PolicyStep step = { .name = "s", .kind = "agent", .timeout_s = 9 };
        PolicyWorkflow w = { .name = "w", .template_name = "base", .repository = true, .run_s = 10, .steps = &step, .n_steps = 1 };
        SpecInput in = { .run = "r000000000001", .item = "i000000000001", .attempt = 1, .workflow = &w, .task = "fix", .base = COMMIT_A, .harness = harness };

        assert_string_equal(cwd_of(&in), "/srv");
        assert_int_equal(spec_make_run(&in, &spec), 0);
        assert_string_equal(at(json_array_get(json_object_get(json_array_get(json_object_get(spec, "steps"), 0), "files"), 0), "mode"), "0600");
        in.harness = plain;
        assert_string_equal(cwd_of(&in), "/workspace/repo");
        w.repository = false;
        assert_string_equal(cwd_of(&in), "/root");
        in.harness = harness;
        step.cwd = "/mnt";
        assert_string_equal(cwd_of(&in), "/mnt");
        step = (PolicyStep) { .name = "s", .kind = "check", .argv = argv, .timeout_s = 9 };
        assert_string_equal(cwd_of(&in), "/root");
}

static void test_submissions(void **state) {
        _cleanup_json_ json_t *good = parse("[\"true\"]"), *empty = parse("[]"), *wrong = parse("[1]"), *nameless = parse("[\"\"]");
        PolicyStep agent = { .name = "agent", .kind = "agent", .cwd = "/workspace/repo" };
        PolicyWorkflow fix = { .name = "f", .repository = true, .steps = &agent, .n_steps = 1 };

        assert_null(spec_check_submission(&exec_workflow, &(Submission) { .command = good }));
        assert_non_null(spec_check_submission(&exec_workflow, &(Submission) {}));
        assert_non_null(spec_check_submission(&exec_workflow, &(Submission) { .command = empty }));
        assert_non_null(spec_check_submission(&exec_workflow, &(Submission) { .command = wrong }));
        assert_non_null(spec_check_submission(&exec_workflow, &(Submission) { .command = nameless }));
        assert_non_null(spec_check_submission(&exec_workflow, &(Submission) { .command = good, .has_bundle = true }));
        assert_non_null(strstr(spec_check_submission(&exec_workflow, &(Submission) { .command = good, .task = "t" }) ?: "", "no agent"));
        assert_null(spec_check_submission(&fix, &(Submission) { .task = "t", .base = COMMIT_A, .has_bundle = true }));
        assert_non_null(spec_check_submission(&fix, &(Submission) { .task = "", .base = COMMIT_A, .has_bundle = true }));
        assert_non_null(spec_check_submission(&fix, &(Submission) { .base = COMMIT_A, .has_bundle = true }));
        assert_non_null(spec_check_submission(&fix, &(Submission) { .task = "t", .base = "HEAD", .has_bundle = true }));
        assert_non_null(spec_check_submission(&fix, &(Submission) { .task = "t", .base = COMMIT_A }));
        assert_non_null(spec_check_submission(&fix, &(Submission) { .task = "t", .base = COMMIT_A, .has_bundle = true, .command = good }));
}

/* What the guest's one frame for a step cannot take is refused when it is submitted. */
static void test_frames(void **state) {
        _cleanup_json_ json_t *in_argv = parse("{\"argv\": [\"pi\", \"{task}\"], \"env\": {\"K\": {\"sentinel\": \"s\"}}}"),
                              *in_stdin = parse("{\"argv\": [\"pi\"], \"stdin\": \"{task}\"}"), *command = NULL;
        PolicyStep agent = { .name = "agent", .kind = "agent", .cwd = "/workspace/repo" };
        PolicyWorkflow fix = { .name = "f", .steps = &agent, .n_steps = 1 };
        SpecInput in = { .workflow = &fix, .harness = in_argv };
        const char *pointer, *reason;
        char task[64 * 1024];

        memset(task, 't', sizeof(task));
        task[60 * 1024] = 0;
        in.task = task;
        assert_int_equal(spec_check_frames(&in, &pointer, &reason), 0);
        assert_null(reason);

        task[60 * 1024] = 't';
        task[sizeof(task) - 1] = 0;
        assert_int_equal(spec_check_frames(&in, &pointer, &reason), 0);
        assert_non_null(reason);
        assert_string_equal(pointer, "/task");
        in.harness = in_stdin; /* comes in pieces */
        assert_int_equal(spec_check_frames(&in, &pointer, &reason), 0);
        assert_null(reason);

        memset(task, '\n', 40 * 1024); /* JSON needs two bytes for each */
        task[40 * 1024] = 0;
        in.harness = in_argv;
        assert_int_equal(spec_check_frames(&in, &pointer, &reason), 0);
        assert_non_null(reason);

        memset(task, 'c', sizeof(task));
        task[sizeof(task) - 1] = 0;
        command = json_pack("[s]", task);
        in = (SpecInput) { .workflow = &exec_workflow, .command = command };
        assert_int_equal(spec_check_frames(&in, &pointer, &reason), 0);
        assert_non_null(reason);
        assert_string_equal(pointer, "/command");
}

static const char *seed(const char *text) {
        return spec_check_seed(text, strlen(text), COMMIT_A);
}

static void test_seeds(void **state) {
        assert_null(seed("# v2 git bundle\n" COMMIT_A " " REF_BASE "\n\nPACK"));
        assert_null(seed("# v3 git bundle\n@object-format=sha1\n" COMMIT_A " " REF_BASE "\n\nPACK"));
        assert_non_null(seed(""));
        assert_non_null(seed("# v2 git bundle\n"));
        assert_non_null(seed("# v2 git bundle\n\n"));
        assert_non_null(seed("# v2 git bundle\n" COMMIT_A " " REF_BASE));
        assert_non_null(seed("# v2 git bundle\n" COMMIT_B " " REF_BASE "\n\n"));
        assert_non_null(seed("# v2 git bundle\n-" COMMIT_B "\n" COMMIT_A " " REF_BASE "\n\n"));
        assert_non_null(seed("# v2 git bundle\n" COMMIT_A " " REF_BASE "\n" COMMIT_A " refs/heads/x\n\n"));
        assert_non_null(seed("# v2 git bundle\n" COMMIT_A " " REF_BASE "\n" COMMIT_A " " REF_BASE "\n\n"));
        assert_non_null(seed("#!/bin/sh\n"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_exec),
                cmocka_unit_test(test_agent),
                cmocka_unit_test(test_cwd),
                cmocka_unit_test(test_submissions),
                cmocka_unit_test(test_frames),
                cmocka_unit_test(test_seeds),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
