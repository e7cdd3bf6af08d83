/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "vmm/vm-spec.h"

#define GOOD "{\"template\":\"base\",\"agent\":\"pi\",\"memory_mib\":1024,\"vcpus\":2,\"disk_mib\":8192,\"accel\":\"tcg\",\"digests\":{\"initrd\":\"abc\"}}"

static void test_good(void **state) {
        _cleanup_(vm_spec_done) VmSpec s = {};

        assert_int_equal(vm_spec_parse(GOOD, strlen(GOOD), &s, NULL), 0);
        assert_string_equal(s.template_name, "base");
        assert_string_equal(s.agent, "pi");
        assert_string_equal(json_string_value(json_object_get(s.digests, "initrd")), "abc");
        assert_int_equal(s.memory_mib, 1024);
        assert_false(s.kvm);
}

static void test_bad(void **state) {
        static const struct {
                const char *text, *word;
        } cases[] = {
                { "", "line" },
                { "[]", "not an object" },
                { "{\"template\":\"../x\",\"memory_mib\":512,\"vcpus\":1,\"disk_mib\":512,\"accel\":\"tcg\"}", "/template" },
                { "{\"template\":\"base\",\"agent\":\"a/b\",\"memory_mib\":512,\"vcpus\":1,\"disk_mib\":512,\"accel\":\"tcg\"}", "/agent" },
                { "{\"template\":\"base\",\"memory_mib\":1,\"vcpus\":1,\"disk_mib\":512,\"accel\":\"tcg\"}", "/memory_mib" },
                { "{\"template\":\"base\",\"memory_mib\":512,\"vcpus\":0,\"disk_mib\":512,\"accel\":\"tcg\"}", "/vcpus" },
                { "{\"template\":\"base\",\"memory_mib\":512,\"vcpus\":1,\"accel\":\"tcg\"}", "/disk_mib" },
                { "{\"template\":\"base\",\"memory_mib\":512,\"vcpus\":1,\"disk_mib\":512,\"accel\":\"auto\"}", "/accel" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *reason = NULL;
                VmSpec s = {};

                assert_int_equal(vm_spec_parse(cases[i].text, strlen(cases[i].text), &s, &reason), -EINVAL);
                assert_non_null(reason);
                if (!strstr(reason, cases[i].word))
                        fail_msg("case %zu: \"%s\" lacks \"%s\"", i, reason, cases[i].word);
        }
}

static bool has(char **argv, const char *word) {
        for (; *argv; argv++)
                if (strstr(*argv, word))
                        return true;
        return false;
}

static void test_command(void **state) {
        VmSpec spec = { .memory_mib = 512, .vcpus = 2 };
        VmParts parts = VM_PARTS_NULL;
        char **argv = NULL;

        parts.channel = 3;
        parts.qmp = 4;
        parts.kernel = 5;
        parts.initrd = 6;
        parts.root = 7;
        parts.scratch = 8;
        parts.name = "r000000000000";
        parts.cmdline = "quiet";
        parts.tsc_khz = 2000000;

        assert_int_equal(vm_command_build(&spec, &parts, &argv), 0);
        assert_true(has(argv, "elevateprivileges=deny,spawn=deny"));
        assert_true(has(argv, "tcg,thread=multi,tb-size=128"));
        assert_true(has(argv, "tsc_early_khz=2000000 mitigations=off"));
        assert_true(has(argv, "socket,id=channel,fd=3,"));
        assert_true(has(argv, "-nodefaults"));
        assert_false(has(argv, "virtio-net"));
        assert_false(has(argv, "serial=agent"));
        argv = vm_argv_free(argv);

        spec.kvm = true;
        parts.tap = 9;
        parts.agent = 10;
        assert_int_equal(vm_command_build(&spec, &parts, &argv), 0);
        assert_true(has(argv, "tap,id=net0,fd=9,"));
        assert_true(has(argv, "drive=agent,serial=agent"));
        assert_true(has(argv, "kvm"));
        assert_false(has(argv, "mitigations"));
        argv = vm_argv_free(argv);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_good),
                cmocka_unit_test(test_bad),
                cmocka_unit_test(test_command),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
