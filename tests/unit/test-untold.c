/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Counts that outlive whoever counts: a child counts and is killed, and what it left is found. */

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "egress/untold.h"

#define A "r000000000001"
#define B "r000000000002"

static char folder[] = "/tmp/untold-XXXXXX", file[64];

static int set_up(void **state) {
        if (!mkdtemp(folder))
                return -1;
        (void) snprintf(file, sizeof(file), "%s/untold", folder);
        return 0;
}

static int tear_down(void **state) {
        return unlink(file) < 0 || rmdir(folder) < 0 ? -1 : 0;
}

typedef struct Left {
        uint64_t a[UNTOLD_N_EVENTS], b[UNTOLD_N_EVENTS];
        size_t n;
} Left;

static void on_left(const char *run, UntoldEvent event, uint64_t count, void *userdata) {
        Left *left = userdata;

        left->n++;
        if (strcmp(run, A) == 0)
                left->a[event] += count;
        else if (strcmp(run, B) == 0)
                left->b[event] += count;
}

static Left take(void) {
        _cleanup_(untold_freep) Untold *u = NULL;
        Left left = {};

        assert_int_equal(untold_open(&u, folder), 0);
        untold_take(u, on_left, &left);
        return left;
}

static void test_killed(void **state) {
        Left left;
        int status;
        pid_t pid;

        assert_int_equal(take().n, 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                Untold *u = NULL;

                if (untold_open(&u, folder) < 0)
                        _exit(1);
                for (int i = 0; i < 1000; i++)
                        (void) untold_add(u, A, UNTOLD_EGRESS_DENY, 1);
                (void) untold_add(u, A, UNTOLD_DNS_REFUSED, 7);
                (void) untold_add(u, B, UNTOLD_EGRESS_DENY, 5);
                untold_told(u, A, UNTOLD_EGRESS_DENY, 600);
                untold_told(u, B, UNTOLD_EGRESS_DENY, 5);
                (void) raise(SIGKILL);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));

        left = take();
        assert_int_equal(left.n, 2);
        assert_int_equal(left.a[UNTOLD_EGRESS_DENY], 400);
        assert_int_equal(left.a[UNTOLD_DNS_REFUSED], 7);
        assert_int_equal(left.b[UNTOLD_EGRESS_DENY], 0);
        assert_int_equal(take().n, 0); /* and told once */
}

static void test_full(void **state) {
        _cleanup_(untold_freep) Untold *u = NULL;
        Left left = {};
        char run[ID_LENGTH + 1];

        assert_int_equal(untold_open(&u, folder), 0);
        for (int i = 0; i < UNTOLD_RUNS_MAX; i++) {
                (void) snprintf(run, sizeof(run), "r%012d", i);
                assert_int_equal(untold_add(u, run, UNTOLD_EGRESS_DENY, 1), 0);
        }
        assert_int_equal(untold_add(u, "r00000000more", UNTOLD_EGRESS_DENY, 1), -ENOSPC);
        untold_told(u, "r000000000000", UNTOLD_EGRESS_DENY, 9); /* more than there are: none */
        assert_int_equal(untold_add(u, "r00000000more", UNTOLD_EGRESS_DENY, 1), 0);
        untold_take(u, on_left, &left);
        assert_int_equal(left.n, UNTOLD_RUNS_MAX);
}

static void test_other_file(void **state) {
        FILE *f = fopen(file, "we");

        assert_non_null(f);
        for (int i = 0; i < 100000; i++)
                (void) fputc('r', f);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(take().n, 0);

        f = fopen(file, "we"); /* of the right size */
        assert_non_null(f);
        for (int i = 0; i < UNTOLD_RUNS_MAX * 32; i++)
                (void) fputc('r', f);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(take().n, 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_killed),
                cmocka_unit_test(test_full),
                cmocka_unit_test(test_other_file),
        };

        return cmocka_run_group_tests(tests, set_up, tear_down);
}
