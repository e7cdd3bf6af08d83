/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* For tests of policy: a root with the vendor's files as the image has them, and an operator's to fill. */

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "policy/policy.h"
#include "util/io.h"

typedef struct Tree {
        char root[64];
        Policy *policy;
        PolicyFinding *findings;
        size_t n_findings;
} Tree;

static inline void tree_put(const Tree *t, const char *path, const char *text) {
        char full[1024];

        (void) snprintf(full, sizeof(full), "%s/%s", t->root, path);
        for (char *p = full + strlen(t->root) + 1; (p = strchr(p, '/')); p++) {
                *p = '\0';
                assert_true(mkdir(full, 0755) == 0 || errno == EEXIST);
                *p = '/';
        }
        assert_int_equal(io_write_file_atomic(AT_FDCWD, full, text, strlen(text), 0644), 0);
}

static inline void tree_copy(const Tree *t, const char *from, const char *to) {
        char *data = NULL;
        size_t size;

        assert_int_equal(io_read_file(AT_FDCWD, from, 1 << 20, &data, &size), 0);
        tree_put(t, to, data);
        free(data);
}

/* The files of policy/, laid out as image/ installs them. */
static inline void tree_add_vendor(const Tree *t) {
        static const char *const folders[] = { "providers", "credentials", "egress", "harness", "workflows", "schema" };

        tree_copy(t, "policy/host.json", "usr/lib/anchorhold/host.json");
        tree_copy(t, "policy/authority.json", "usr/lib/anchorhold/authority.json");
        for (size_t i = 0; i < ELEMENTSOF(folders); i++) {
                char from[300], to[600];
                struct dirent *de;
                DIR *d;

                (void) snprintf(from, sizeof(from), "policy/%s", folders[i]);
                d = opendir(from);
                if (!d)
                        continue;
                while ((de = readdir(d))) {
                        if (de->d_name[0] == '.')
                                continue;
                        (void) snprintf(from, sizeof(from), "policy/%s/%.200s", folders[i], de->d_name);
                        (void) snprintf(to, sizeof(to), "usr/lib/anchorhold/%s", from);
                        tree_copy(t, from, to);
                }
                (void) closedir(d);
        }
}

static inline void tree_new(Tree *t) {
        *t = (Tree) { .root = "/tmp/anchorhold-policy-XXXXXX" };
        assert_non_null(mkdtemp(t->root));
}

static inline void tree_forget(Tree *t) {
        t->policy = policy_free(t->policy);
        policy_findings_free(t->findings, t->n_findings);
        t->findings = NULL;
        t->n_findings = 0;
}

static inline void tree_load(Tree *t) {
        tree_forget(t);
        assert_int_equal(policy_load(&t->policy, t->root, &t->findings, &t->n_findings), 0);
}

static inline int tree_remove(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        return remove(path);
}

static inline void tree_free(Tree *t) {
        tree_forget(t);
        assert_int_equal(nftw(t->root, tree_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* The reason at file and pointer, NULL if there is no such finding. */
static inline const char *tree_finding(const Tree *t, const char *file, const char *pointer) {
        for (size_t i = 0; i < t->n_findings; i++)
                if (strcmp(t->findings[i].file + strlen(t->root), file) == 0 &&
                    strcmp(t->findings[i].pointer, pointer) == 0)
                        return t->findings[i].reason;
        return NULL;
}

static inline void tree_print(const Tree *t) {
        for (size_t i = 0; i < t->n_findings; i++)
                fprintf(stderr, "%s: %s: %s\n", t->findings[i].file, t->findings[i].pointer, t->findings[i].reason);
}

/* A tree for each test, as its state. */
static inline int tree_setup(void **state) {
        static Tree t;

        tree_new(&t);
        *state = &t;
        return 0;
}

static inline int tree_teardown(void **state) {
        tree_free(*state);
        return 0;
}

/* Loads one egress policy, "x", ' for ". */
static inline const EgressPolicy *tree_load_egress(Tree *t, const char *text) {
        const EgressPolicy *e;
        char copy[4096];

        (void) snprintf(copy, sizeof(copy), "%s", text);
        for (char *p = copy; (p = strchr(p, '\'')); p++)
                *p = '"';
        tree_put(t, "etc/anchorhold/policy/egress/x.json", copy);
        tree_load(t);
        tree_print(t);
        e = policy_find_egress(t->policy, "x", NULL);
        assert_non_null(e);
        return e;
}

/* What "x" says of one request. rule: below its file, "" for none. */
static inline void tree_expect(const EgressPolicy *e, const char *name, uint16_t port, const char *method, const char *path,
                               EgressVerdict verdict, const char *rule, const char *reason) {
        char full[64] = "default";
        EgressDecision d;

        egress_policy_decide(e, name, port, method, path, &d);
        if (*rule)
                (void) snprintf(full, sizeof(full), "egress/x.json#/%s", rule);
        assert_string_equal(d.reason, reason);
        assert_string_equal(d.rule, full);
        assert_int_equal(d.verdict, verdict);
}
