/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* For tests of anchorctl's verbs: a tree of policy files, and what a verb says. It defines functions: one file of a program includes it. */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include <cmocka.h>

#include "ctl/ctl.h"
#include "policy-tree.h"

static Tree tree;
static char *out, *err;

static inline int setup(void **state) {
        tree_new(&tree);
        tree_add_vendor(&tree);
        return 0;
}

static inline int teardown(void **state) {
        tree_free(&tree);
        free(out);
        free(err);
        out = err = NULL;
        return 0;
}

#define CTL(...) run_ctl((const char *[]) { "anchorctl", __VA_ARGS__, NULL })

static inline CtlExit run_ctl(const char **argv) {
        char missing[128], *copy[16] = {};
        Ctl ctl = { .egress_path = missing };
        size_t out_size, err_size;
        int argc = 0;
        CtlExit r;

        (void) snprintf(missing, sizeof(missing), "%s/no.sock", tree.root);
        for (; argv[argc]; argc++)
                copy[argc] = (char *) argv[argc];
        free(out);
        free(err);
        ctl.out = open_memstream(&out, &out_size);
        ctl.err = open_memstream(&err, &err_size);
        ctl.o.no_pager = true;
        r = ctl_run(&ctl, argc, copy);
        (void) fclose(ctl.out);
        (void) fclose(ctl.err);
        return r;
}

static inline void assert_has(const char *text, const char *part) {
        if (!strstr(text, part))
                fail_msg("\"%s\" is not in:\n%s", part, text);
}

static inline void assert_lacks(const char *text, const char *part) {
        if (strstr(text, part))
                fail_msg("\"%s\" is in:\n%s", part, text);
}

/* A file below the root, its path. ' for ". */
static inline const char *put(const char *name, const char *text) {
        static char path[16][300];
        static size_t next;
        char copy[4096], *to = path[next++ % ELEMENTSOF(path)];

        (void) snprintf(copy, sizeof(copy), "%s", text);
        for (char *p = copy; (p = strchr(p, '\'')); p++)
                *p = '"';
        tree_put(&tree, name, copy);
        (void) snprintf(to, sizeof(path[0]), "%s/%s", tree.root, name);
        return to;
}

static inline size_t count_of(const char *text, const char *part) {
        size_t n = 0;

        for (const char *at = strstr(text, part); at; at = strstr(at + 1, part))
                n++;
        return n;
}
