/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The digest over what a site has decided: any file counts, by name and content, and nothing else does. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "policy/policy.h"
#include "util/io.h"

static char folder[] = "/tmp/test-policy-site.XXXXXX";

static void put(const char *path, const char *text) {
        _cleanup_free_ char *full = text_format("%s/%s", folder, path);

        assert_return_code(io_write_file_atomic(AT_FDCWD, full, text, strlen(text), 0644), 0);
}

static void make_folder(const char *path) {
        _cleanup_free_ char *full = text_format("%s/%s", folder, path);

        assert_return_code(mkdir(full, 0755), 0);
}

static void digest(char ret[static HEX_SHA256_SIZE]) {
        assert_return_code(policy_site_digest(folder, ret), 0);
}

static void test_every_change_counts(void **state) {
        char none[HEX_SHA256_SIZE], one[HEX_SHA256_SIZE], other[HEX_SHA256_SIZE], again[HEX_SHA256_SIZE];

        digest(none);
        make_folder("policy");
        digest(again);
        assert_string_equal(none, again); /* a folder alone decides nothing */

        put("host.json", "{}");
        put("policy/a.json", "1");
        digest(one);
        assert_string_not_equal(none, one);

        put("policy/a.json", "2");
        digest(other);
        assert_string_not_equal(one, other);
        put("policy/a.json", "1"); /* another file of the same content */
        digest(again);
        assert_string_equal(one, again);

        put(".host.json.tmp", "x");
        digest(again);
        assert_string_equal(one, again);
}

/* Names and contents cannot be confused: "ab" with "c" is not "a" with "bc". */
static void test_a_moved_byte_counts(void **state) {
        char one[HEX_SHA256_SIZE], other[HEX_SHA256_SIZE];
        _cleanup_free_ char *from = text_format("%s/ab", folder), *to = text_format("%s/a", folder);

        put("ab", "c");
        digest(one);
        assert_return_code(rename(from, to), 0);
        put("a", "bc");
        digest(other);
        assert_string_not_equal(one, other);
}

static void test_no_folder_is_no_file(void **state) {
        char none[HEX_SHA256_SIZE], empty[HEX_SHA256_SIZE];
        char fresh[] = "/tmp/test-policy-site.XXXXXX";

        assert_non_null(mkdtemp(fresh));
        assert_return_code(policy_site_digest(fresh, empty), 0);
        assert_return_code(rmdir(fresh), 0);
        assert_return_code(policy_site_digest(fresh, none), 0);
        assert_string_equal(none, empty);
        assert_int_equal(policy_site_digest("/dev/null", none), -ENOTDIR);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_every_change_counts),
                cmocka_unit_test(test_a_moved_byte_counts),
                cmocka_unit_test(test_no_folder_is_no_file),
        };

        if (!mkdtemp(folder))
                return 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
}
