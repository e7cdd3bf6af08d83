/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A bundle from a guest, with the real git: what is accepted, and every way in which one may be wrong. */

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <jansson.h>

#include "import/import-private.h"
#include "import/import.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/text.h"

#define REF "refs/anchorhold/result"
#define MIB (1024ULL * 1024)

static char top[] = "/tmp/test-import-XXXXXX";
static char base[41];

/* In the folder `top`, with B the base commit, and git as it is nowhere configured. */
static void shell(const char *script) {
        _cleanup_free_ char *all = text_format("set -e; exec 2>&1; cd %s; B=%s; export HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null "
                                               "GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=c@d; %s",
                                               top, base, script);

        if (system(all) != 0)
                fail_msg("script failed: %s", script);
}

static int set_up(void **state) {
        _cleanup_free_ char *head = NULL, *path = NULL;
        size_t size;

        assert_non_null(mkdtemp(top));
        shell("git init -q -b main base; cd base; mkdir src; echo one >src/a; echo two >b; git add -A; git commit -qm first;"
              "git update-ref refs/anchorhold/base HEAD; git rev-parse HEAD >../head; git bundle create -q ../seed.bundle refs/anchorhold/base; mkdir ../work");
        path = text_format("%s/head", top);
        assert_int_equal(io_read_file(AT_FDCWD, path, 100, &head, &size), 0);
        memcpy(base, head, 40);
        return 0;
}

static int tear_down(void **state) {
        _cleanup_free_ char *command = text_format("rm -rf %s", top);

        return system(command);
}

/* What a guest leaves after this in its copy of the base. */
static void make_result(const char *script) {
        _cleanup_free_ char *all = text_format("rm -rf c result.bundle; cp -r base c; cd c; %s; git update-ref " REF " ${R:-HEAD};"
                                               "git bundle create -q ../result.bundle " REF " $EXTRA ^$B", script);

        shell(all);
}

static int open_top(const char *name) {
        _cleanup_free_ char *path = text_format("%s/%s", top, name);
        int fd = open(path, O_RDWR | O_CLOEXEC);

        assert_true(fd >= 0);
        return fd;
}

static ImportRequest default_request(void) {
        static char work[64];
        ImportRequest rq = { .base = base, .ref = REF, .bundle_bytes = MIB, .diff_bytes = MIB, .work_dir = work };

        (void) snprintf(work, sizeof(work), "%s/work", top);
        import_default_limits(&rq);
        rq.timeout_usec = 20 * 1000 * 1000;
        return rq;
}

static void check(ImportRequest *rq, ImportResult *ret) {
        _cleanup_fd_ int seed = open_top("seed.bundle"), result = open_top("result.bundle");

        rq->seed_fd = seed;
        rq->result_fd = result;
        assert_int_equal(import_check(rq, ret), 0);
        assert_int_equal(rmdir(rq->work_dir), 0); /* nothing is left in it */
        assert_int_equal(mkdir(rq->work_dir, 0700), 0);
}

static void expect_rejection(ImportRequest rq, const char *reason) {
        ImportResult result = IMPORT_RESULT_NULL;

        check(&rq, &result);
        assert_false(result.ok);
        assert_non_null(result.reason);
        if (!strstr(result.reason, reason))
                fail_msg("expected \"%s\", got \"%s\"", reason, result.reason);
        assert_int_equal(result.bundle_fd, -1);
        assert_int_equal(result.diff_fd, -1);
        import_result_done(&result);
}

static void rejected(const char *script, const char *reason) {
        make_result(script);
        expect_rejection(default_request(), reason);
}

static json_int_t fact(const ImportResult *r, const char *key) {
        return json_integer_value(json_object_get(r->facts, key));
}

static char *text_of(int fd) {
        char *text = calloc(1, 65536);

        assert_true(pread(fd, text, 65535, 0) >= 0);
        return text;
}

static void test_good(void **state) {
        _cleanup_free_ char *bundle = NULL, *diff = NULL;
        ImportResult result = IMPORT_RESULT_NULL;
        ImportRequest rq = default_request();

        make_result("echo more >>src/a; git commit -qam second; git mv b c; git commit -qam third; ln -s src/a l; git add l; git commit -qm link");
        check(&rq, &result);
        assert_true(result.ok);
        assert_int_equal(strlen(result.commit), 40);
        assert_int_equal(fact(&result, "commits"), 3);
        assert_int_equal(json_array_size(json_object_get(result.facts, "symlinks_outside")), 0);
        bundle = text_of(result.bundle_fd);
        assert_int_equal(strncmp(bundle, "# v2 git bundle\n", 16), 0);
        assert_non_null(strstr(bundle, "refs/anchorhold/base\n"));
        assert_non_null(strstr(bundle, result.commit));
        assert_null(strstr(bundle, "\n-")); /* complete: the second microVM gets nothing else */
        diff = text_of(result.diff_fd);
        assert_non_null(strstr(diff, "\n+more\n"));
        assert_non_null(strstr(diff, "rename from b"));
        assert_true(json_is_false(json_object_get(result.facts, "diff_truncated")));
        import_result_done(&result);
}

static void test_merge(void **state) {
        ImportResult result = IMPORT_RESULT_NULL;
        ImportRequest rq = default_request();

        make_result("git checkout -qb x; echo x >x; git add x; git commit -qm x; git checkout -q main; echo y >y; git add y; git commit -qm y; git merge -q x");
        check(&rq, &result);
        assert_true(result.ok);
        assert_int_equal(fact(&result, "commits"), 3);
        import_result_done(&result);
}

static void test_reported(void **state) {
        ImportResult result = IMPORT_RESULT_NULL;
        ImportRequest rq = default_request();
        _cleanup_free_ char *diff = NULL;

        rq.diff_bytes = 64;
        make_result("ln -s ../../etc/passwd src/l; ln -s /etc/shadow m; git add -A; git commit -qm links");
        check(&rq, &result);
        assert_true(result.ok);
        assert_int_equal(json_array_size(json_object_get(result.facts, "symlinks_outside")), 2);
        assert_true(json_is_true(json_object_get(result.facts, "diff_truncated")));
        diff = text_of(result.diff_fd);
        assert_non_null(strstr(diff, "was cut off here"));
        assert_true(strlen(diff) < 200);
        import_result_done(&result);
}

static void test_references(void **state) {
        rejected("echo x >x; git add x; git commit -qm x; git update-ref refs/heads/evil HEAD; EXTRA=refs/heads/evil", "nobody asked for: refs/heads/evil");
        rejected("git checkout -q --orphan o; git commit -qm alone", "does not descend from the base");
        rejected("echo x >x; git add x; git commit -qm x; git tag -m t v1; R=$(git rev-parse v1)", "does not name a commit");
        rejected("echo x >x; git add x; git commit -qm x; R=$(git rev-parse HEAD:x)", "does not name a commit");
        make_result("echo x >x; git add x; git commit -qm x");
        shell("sed -i 's!^[0-9a-f]\\{40\\} " REF "!0123456789012345678901234567890123456789 " REF "!' result.bundle");
        expect_rejection(default_request(), "not in the bundle");
        make_result("echo x >x; git add x; git commit -qm x");
        shell("sed -i \"s!^[0-9a-f]\\{40\\} " REF "!$B " REF "!\" result.bundle");
        expect_rejection(default_request(), "nothing was committed");
}

static void test_paths(void **state) {
        static const struct { const char *name, *reason; } names[] = {
                { ".GIT", "the bundle's pack" }, { "git~1", "the bundle's pack" }, { ".g\xe2\x80\x8cit", "the bundle's pack" },
                { ".GITMODULES", ".gitmodules" }, { "gitmod~1", ".gitmodules" },
        };

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                _cleanup_free_ char *script = text_format("O=$(echo x | git hash-object -w --stdin); T=$(printf '100644 blob %%s\\t%s\\n' $O | git mktree);"
                                                          "R=$(git commit-tree -p $B -m evil $T)", names[i].name);

                /* --strict stops the first before our own walk does */
                rejected(script, names[i].reason);
        }
        /* what was there for one commit only was there */
        rejected("printf '[submodule \"x\"]\\n' >.gitmodules; git add -A; git commit -qm add; git rm -q .gitmodules; git commit -qm remove", ".gitmodules");
        rejected("git update-index --add --cacheinfo 160000,$B,sub; git commit -qm sub", "submodule");
        /* and on the other side of a merge as well */
        rejected("git checkout -qb x; git update-index --add --cacheinfo 160000,$B,sub; git commit -qm sub; git checkout -q main; echo y >y; git add y;"
                 "git commit -qm y; git merge -q -s ours x", "submodule");
}

static void test_objects(void **state) {
        rejected("T=$(git rev-parse HEAD^{tree}); R=$(printf 'tree %s\\nparent %s\\nauthor nobody\\ncommitter c <c@d> 1 +0000\\n\\nx' $T $B |"
                 " git hash-object -w --literally -t commit --stdin)", "the bundle's pack");

        make_result("echo x >x; git add x; git commit -qm x");
        shell("truncate -s -10 result.bundle");
        expect_rejection(default_request(), "the bundle's pack");
        make_result("echo x >x; git add x; git commit -qm x");
        shell("printf '\\377\\377\\377' | dd of=result.bundle bs=1 seek=$(($(stat -c %s result.bundle) - 40)) conv=notrunc status=none");
        expect_rejection(default_request(), "the bundle's pack");
        shell("echo '# v2 git bundle' >result.bundle");
        expect_rejection(default_request(), "result bundle");
        shell(": >result.bundle");
        expect_rejection(default_request(), "result bundle");
}

static void test_amounts(void **state) {
        ImportRequest rq = default_request();

        make_result("for i in 1 2 3; do echo $i >x; git add x; git commit -qm $i; done");
        rq.max_commits = 2;
        expect_rejection(rq, "has 3 commits, more than 2");
        rq.max_commits = 3;
        rq.max_objects = 8;
        expect_rejection(rq, "claims 9 objects, more than 8");

        make_result("head -c 4000000 /dev/zero >zero; git add zero; git commit -qm bomb");
        rq = default_request();
        rq.unpacked_bytes = MIB;
        expect_rejection(rq, "more than 1M unpacked");
        rq = default_request();
        rq.bundle_bytes = 200;
        expect_rejection(rq, "bundle is larger than 200B");
        rq = default_request();
        rq.timeout_usec = 1;
        expect_rejection(rq, "not done in time");
}

static void test_base(void **state) {
        ImportRequest rq = default_request();
        ImportResult result = IMPORT_RESULT_NULL;

        make_result("echo x >x; git add x; git commit -qm x");
        rq.base = "cccccccccccccccccccccccccccccccccccccccc";
        expect_rejection(rq, "base commit is not in the seed");
        rq.base = "--help";
        assert_int_equal(import_check(&rq, &result), -EINVAL);
        rq = default_request();
        rq.work_dir = "/nonexistent";
        assert_int_equal(import_check(&rq, &result), -ENOENT); /* our own trouble is no verdict */
}

/* Each reason has its own word: what is missing is not called too much. */
static void test_amount_of_lines(void **state) {
        static const struct { const char *text; uint64_t max_n, max_bytes; int r; } cases[] = {
                { "12\n30\n", 2, 42, 0 },
                { "12\n30\n", 2, 41, -E2BIG },
                { "12\n30\n", 1, 42, -EOVERFLOW },
                { "12\n0123456789012345678901234567890123456789 missing\n", 2, 42, -ENOENT },
                { "0123456789012345678901234567890123456789 missing\n", 2, 42, -ENOENT },
                { "\n", 2, 42, -ENOENT },
                { "99999999999999999999999\n", 2, UINT64_MAX, -ENOENT },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                for (size_t cut = 0; cut <= strlen(cases[i].text); cut++) {
                        ImportAmount a = { .max_n = cases[i].max_n, .max_bytes = cases[i].max_bytes };
                        int r = import_amount_read(cases[i].text, cut, &a);

                        if (r == 0)
                                r = import_amount_read(cases[i].text + cut, strlen(cases[i].text + cut), &a);
                        assert_int_equal(r, cases[i].r);
                }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_good),
                cmocka_unit_test(test_merge),
                cmocka_unit_test(test_reported),
                cmocka_unit_test(test_references),
                cmocka_unit_test(test_paths),
                cmocka_unit_test(test_objects),
                cmocka_unit_test(test_amounts),
                cmocka_unit_test(test_amount_of_lines),
                cmocka_unit_test(test_base),
        };

        return cmocka_run_group_tests(tests, set_up, tear_down);
}
