/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "util/cgroup.h"
#include "util/cleanup.h"

static void test_mount(void **state) {
        _cleanup_free_ char *plain = NULL, *hybrid = NULL, *escaped = NULL;

        plain = cgroup_find_mount("24 30 0:22 / /sys rw - sysfs sysfs rw\n"
                                  "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
        assert_string_equal(plain, "/sys/fs/cgroup");

        hybrid = cgroup_find_mount("40 30 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                                   "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw");
        assert_string_equal(hybrid, "/sys/fs/cgroup/unified");

        escaped = cgroup_find_mount("41 31 0:38 / /a\\040b\\134c rw - cgroup2 none rw\n");
        assert_string_equal(escaped, "/a b\\c");

        assert_null(cgroup_find_mount("40 30 0:30 / /cgroup2 rw - cgroup cgroup2 rw\n"));
        assert_null(cgroup_find_mount(""));
}

static void test_root_of_a_mount(void **state) {
        static const char text[] = "24 1 0:22 / / ro - overlay composefs ro\n"
                                   "30 24 254:0 /ostree/deploy/a/deploy/b.0/etc /etc rw,relatime shared:9 - ext4 /dev/vda rw\n"
                                   "31 24 254:0 /ostree/deploy/a/var /var rw - ext4 /dev/vda rw\n"
                                   "32 30 254:0 /x\\040y /etc rw - ext4 /dev/vda rw\n";
        _cleanup_free_ char *var = mountinfo_find_root(text, "/var"), *etc = mountinfo_find_root(text, "/etc"), *root = mountinfo_find_root(text, "/");

        assert_string_equal(var, "/ostree/deploy/a/var");
        assert_string_equal(etc, "/x y"); /* the one on top */
        assert_string_equal(root, "/");
        assert_null(mountinfo_find_root(text, "/et"));
        assert_null(mountinfo_find_root("", "/"));
        assert_null(mountinfo_find_root("24 1\n", "/"));
}

static void test_path(void **state) {
        _cleanup_free_ char *hybrid = NULL, *root = NULL;

        hybrid = cgroup_find_path("12:pids:/x\n0::/anchorhold.slice/a.service\n");
        assert_string_equal(hybrid, "/anchorhold.slice/a.service");

        root = cgroup_find_path("0::/");
        assert_string_equal(root, "/");

        assert_null(cgroup_find_path("10::/x\n1:name=systemd:/\n"));
}

static void test_cut(void **state) {
        char path[] = "/a.slice/b.slice/c.service", own[] = "/a.slice", other[] = "/ab.slice/a.sl";

        assert_true(cgroup_cut_path(path, "b.slice"));
        assert_string_equal(path, "/a.slice/b.slice");
        assert_true(cgroup_cut_path(own, "a.slice"));
        assert_string_equal(own, "/a.slice");
        assert_false(cgroup_cut_path(other, "a.slice"));
        assert_string_equal(other, "/ab.slice/a.sl");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_mount),
                cmocka_unit_test(test_root_of_a_mount),
                cmocka_unit_test(test_path),
                cmocka_unit_test(test_cut),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
