/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "import/bundle-header.h"
#include "import/raw-diff.h"
#include "import/tree-path.h"
#include "util/cleanup.h"

#define OID_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define OID_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define PACK "PACK\0\0\0\2\0\0\1\3"

static int parse(const char *data, size_t size, BundleHeader *ret, const char **ret_reason) {
        return bundle_header_parse(data, size, ret, ret_reason);
}
#define PARSE(literal, h, reason) parse(literal, sizeof(literal) - 1, h, reason)

static void test_bundle_header(void **state) {
        const char *reason = NULL;
        BundleHeader h;

        assert_int_equal(PARSE("# v2 git bundle\n-" OID_B " what it was\n" OID_A " refs/anchorhold/result\n\n" PACK, &h, &reason), 0);
        assert_int_equal(h.n_refs, 1);
        assert_int_equal(h.n_prerequisites, 1);
        assert_string_equal(h.refs[0].oid, OID_A);
        assert_string_equal(h.refs[0].name, "refs/anchorhold/result");
        assert_int_equal(h.n_objects, 0x103);
        assert_int_equal(h.oid_length, 40);

        assert_int_equal(PARSE("# v3 git bundle\n@object-format=sha1\n" OID_A " r\n" OID_B " s\n\n" PACK, &h, &reason), 0);
        assert_int_equal(h.n_refs, 2);

        assert_int_equal(PARSE("# v2 git bundle\n\n" PACK, &h, &reason), 0); /* no reference: the caller's to refuse */
        assert_int_equal(h.n_refs, 0);
}

static void test_bundle_header_bad(void **state) {
        static const char *const bad[] = {
                "", "# v4 git bundle\n\n", "# v2 git bundle", "# v2 git bundle\n",
                "# v2 git bundle\n" OID_A " refs/heads/x\n",
                "# v2 git bundle\n" OID_A " refs/heads/x\n\nPAC",
                "# v2 git bundle\n" OID_A " refs/heads/x\n\nJUNKJUNKJUNK",
                "# v2 git bundle\n" OID_A "refs/heads/x\n\nPACK",
                "# v2 git bundle\n" OID_A " \n\nPACK",
                "# v2 git bundle\naaaa refs/heads/x\n\nPACK",
                "# v2 git bundle\n@object-format=sha1\n\nPACK",
                "# v3 git bundle\n@filter=blob:none\n\nPACK",
                "# v3 git bundle\n" OID_A " x\n@object-format=sha256\n\nPACK",
                "# v2 git bundle\n-xyz\n\nPACK",
                "# v2 git bundle\n" OID_A " x\n-" OID_B "\n\nPACK",
        };
        static char endless[2 * BUNDLE_HEADER_MAX] = "# v2 git bundle\n";
        const char *reason;
        BundleHeader h;

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                reason = NULL;
                if (parse(bad[i], strlen(bad[i]), &h, &reason) != -EBADMSG || !reason)
                        fail_msg("accepted: %s", bad[i]);
        }

        memset(endless + 16, 'a', sizeof(endless) - 16);
        assert_int_equal(parse(endless, sizeof(endless), &h, &reason), -EBADMSG);
}

static void test_paths(void **state) {
        static const char *const good[] = {
                "Makefile", "src/a.c", ".gitignore", ".gitattributes", "a/.github/x", "git", "x.git", "..a", "a..", "a b",
                "\xc3\xa9t\xc3\xa9", "git~2x", "...", ".gi", "a\n",
        };
        static const char *const bad[] = {
                "", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b",
                ".git", ".GIT", ".Git/config", "a/.git", "a/.git/hooks/x", ".git ", ".git.", ".git . .", ".git:stream",
                ".git::$INDEX_ALLOCATION", "git~1", "GIT~1", "a\\.git\\x", "a\\..\\b",
                ".g\xe2\x80\x8cit", "\xe2\x80\x8e.git", ".gi\xef\xbb\xbft", ".GI\xe2\x80\xaeT/x",
        };

        for (size_t i = 0; i < ELEMENTSOF(good); i++)
                if (tree_path_check(good[i], strlen(good[i])))
                        fail_msg("refused: %s", good[i]);
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (!tree_path_check(bad[i], strlen(bad[i])))
                        fail_msg("accepted: %s", bad[i]);

        assert_non_null(tree_path_check("a\0b", 3));
        static char longest[TREE_PATH_MAX + 1];
        memset(longest, 'a', sizeof(longest));
        assert_non_null(tree_path_check(longest, 256));
        assert_null(tree_path_check(longest, 255));
        for (size_t i = 100; i < sizeof(longest); i += 100)
                longest[i] = '/';
        assert_null(tree_path_check(longest, TREE_PATH_MAX - 10));
        assert_non_null(tree_path_check(longest, TREE_PATH_MAX + 1));
}

static void test_gitmodules(void **state) {
        static const char *const yes[] = {
                ".gitmodules", ".GitModules", "a/.gitmodules", ".gitmodules ", ".gitmodules:x", "gitmod~1", "GITMOD~4", "gi7eba~1",
                ".gitmod\xe2\x80\x8cules",
        };
        static const char *const no[] = { ".gitmodule", "gitmodules", "modules", ".gitignore", "" };

        for (size_t i = 0; i < ELEMENTSOF(yes); i++)
                assert_true(tree_path_is_gitmodules(yes[i], strlen(yes[i])));
        for (size_t i = 0; i < ELEMENTSOF(no); i++)
                assert_false(tree_path_is_gitmodules(no[i], strlen(no[i])));
}

static bool leaves(const char *path, const char *target) {
        return tree_link_leaves(path, strlen(path), target, strlen(target));
}

static void test_links(void **state) {
        assert_false(leaves("a", "b"));
        assert_false(leaves("a/b/c", "../../d"));
        assert_false(leaves("a/b", "./../x/./y"));
        assert_false(leaves("a", ".github/x"));
        assert_true(leaves("a", "../x"));
        assert_true(leaves("a/b", "../../x"));
        assert_true(leaves("a/b", "x/../../../a/b"));
        assert_true(leaves("a", "/etc/passwd"));
        assert_true(leaves("a", "C:\\x"));
        assert_true(leaves("a/b", "..\\..\\x"));
        assert_true(leaves("a", ""));

        /* x may be a link to where the tree begins, and then this is beside the tree */
        assert_true(leaves("a", "x/.."));
        assert_true(leaves("a/b", "../x/../y"));
        assert_true(leaves("a", ".git/config"));
        assert_true(leaves("a/b", "../.GIT/hooks"));
}

typedef struct Seen {
        unsigned n;
        char path[64];
        unsigned mode;
        char status;
} Seen;

static int on_change(const RawChange *c, void *userdata) {
        Seen *s = userdata;

        s->n++;
        assert_true(c->path_size < sizeof(s->path));
        memcpy(s->path, c->path, c->path_size);
        s->path[c->path_size] = 0;
        s->mode = c->new_mode;
        s->status = c->status;
        return strcmp(s->path, "stop") == 0 ? -ECANCELED : 0;
}

static void test_raw_diff(void **state) {
        static const char text[] = ":100644 100755 " OID_A " " OID_B " M\0src/a.c\0"
                                   ":000000 160000 " OID_A " " OID_B " A\0sub";
        static RawDiff d;
        Seen s = {};

        /* in pieces of every size */
        for (size_t step = 1; step < sizeof(text); step++) {
                s = (Seen) {};
                raw_diff_init(&d, on_change, &s);
                for (size_t i = 0; i < sizeof(text); i += step)
                        assert_int_equal(raw_diff_push(&d, text + i, step < sizeof(text) - i ? step : sizeof(text) - i), 0);
                assert_int_equal(raw_diff_end(&d), 0);
                assert_int_equal(s.n, 2);
                assert_string_equal(s.path, "sub");
                assert_int_equal(s.mode, 0160000);
                assert_int_equal(s.status, 'A');
        }

        raw_diff_init(&d, on_change, &s);
        assert_int_equal(raw_diff_push(&d, text, sizeof(text) - 1), 0);
        assert_int_equal(raw_diff_end(&d), -EBADMSG); /* ends within a path */
}

static void test_raw_diff_bad(void **state) {
        static const char *const bad[] = {
                "100644 100755 " OID_A " " OID_B " M", ":100644 100755 " OID_A " " OID_B " M1", ":100648 100755 " OID_A " " OID_B " M",
                ":100644 100755 " OID_A " " OID_B, ":100644 100755 aaaa " OID_B " M", "", ":",
        };
        static char huge[TREE_PATH_MAX * 2];
        static RawDiff d;
        Seen s = {};

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                raw_diff_init(&d, on_change, &s);
                assert_int_equal(raw_diff_push(&d, bad[i], strlen(bad[i]) + 1), -EBADMSG);
        }

        static const char meta[] = ":000000 100644 " OID_A " " OID_B " A";
        raw_diff_init(&d, on_change, &s);
        assert_int_equal(raw_diff_push(&d, meta, sizeof(meta)), 0);
        memset(huge, 'x', sizeof(huge));
        assert_int_equal(raw_diff_push(&d, huge, sizeof(huge)), -ENAMETOOLONG);

        raw_diff_init(&d, on_change, &s);
        assert_int_equal(raw_diff_push(&d, meta, sizeof(meta)), 0);
        assert_int_equal(raw_diff_push(&d, "stop", 5), -ECANCELED);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_bundle_header),
                cmocka_unit_test(test_bundle_header_bad),
                cmocka_unit_test(test_paths),
                cmocka_unit_test(test_gitmodules),
                cmocka_unit_test(test_links),
                cmocka_unit_test(test_raw_diff),
                cmocka_unit_test(test_raw_diff_bad),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
