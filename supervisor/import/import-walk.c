/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Every path that any new commit adds or changes, against each of its parents. What the base already
 * has and nobody touched is the operator's own. Rejected: submodules, .gitmodules in any disguise, names that
 * some file system takes for .git. Reported, not rejected: symbolic links that lead out of the tree, for a
 * repository may have its reasons, and nothing here follows one.
 */

#include <errno.h>
#include <string.h>

#include "import/import-private.h"
#include "import/raw-diff.h"
#include "util/io.h"
#include "util/text.h"

#define MODE_FILE 0100644
#define MODE_EXECUTABLE 0100755
#define MODE_LINK 0120000
#define MODE_SUBMODULE 0160000

#define LINKS_MAX 256
#define LINK_TARGET_MAX 4096
#define LINKS_REPORTED 16

typedef struct Link {
        char oid[BUNDLE_OID_SIZE];
        char *path; /* owned */
        size_t path_size;
} Link;

typedef struct Walk {
        Import *import; /* borrowed */
        RawDiff diff;
        uint64_t n_changes;
        Link links[LINKS_MAX];
        size_t n_links;
} Walk;

static void walk_done(Walk *w) {
        for (size_t i = 0; i < w->n_links; i++)
                free(w->links[i].path);
        w->n_links = 0;
}

static int reject_path(Walk *w, const RawChange *c, const char *what) {
        _cleanup_free_ char *path = text_escape(c->path, c->path_size < 200 ? c->path_size : 200, false);
        int r;

        r = import_reject(w->import, "path \"%s\" %s", path ?: "?", what);
        return r < 0 ? r : -ECANCELED;
}

static int remember_link(Walk *w, const RawChange *c) {
        Link *l;

        if (w->n_links >= LINKS_MAX)
                return reject_path(w, c, "is one of more than 256 new symbolic links");

        l = &w->links[w->n_links];
        l->path = strndup(c->path, c->path_size);
        if (!l->path)
                return -ENOMEM;
        l->path_size = c->path_size;
        memcpy(l->oid, c->oid, sizeof(l->oid));
        w->n_links++;
        return 0;
}

/* -ECANCELED: rejected, with the reason set. */
static int on_change(const RawChange *c, void *userdata) {
        Walk *w = userdata;
        const char *wrong;

        w->n_changes++;
        if (c->new_mode == 0) /* taking something away harms nobody */
                return 0;

        wrong = tree_path_check(c->path, c->path_size);
        if (wrong)
                return reject_path(w, c, wrong);
        if (tree_path_is_gitmodules(c->path, c->path_size))
                return reject_path(w, c, "is, or on some file system becomes, .gitmodules: submodules are not accepted");

        switch (c->new_mode) {
        case MODE_FILE:
        case MODE_EXECUTABLE:
                return 0;
        case MODE_LINK:
                return remember_link(w, c);
        case MODE_SUBMODULE:
                return reject_path(w, c, "is a submodule: submodules are not accepted");
        default:
                return reject_path(w, c, "has a mode that is neither file nor symbolic link");
        }
}

static int on_output(const char *data, size_t size, void *userdata) {
        Walk *w = userdata;

        return raw_diff_push(&w->diff, data, size);
}

static int walk(Walk *w) {
        static const char *const diff_tree[] = {
                "diff-tree", "--stdin", "--raw", "-r", "-m", "-z", "--root", "--no-commit-id", "--no-renames", "--no-abbrev",
                "--no-ext-diff", NULL,
        };
        Import *im = w->import;
        const char *const rev_list[] = { "rev-list", im->result->commit, "--not", im->rq->base, NULL };
        _cleanup_fd_ int list = import_temporary(im);
        int r;

        if (list < 0)
                return list;
        r = import_git_failed(im, git_run(&im->git, rev_list, -1, list, NULL, NULL), "the result's history");
        if (r != 0)
                return r;
        if (lseek(list, 0, SEEK_SET) < 0)
                return -errno;

        raw_diff_init(&w->diff, on_change, w);
        r = git_run(&im->git, diff_tree, list, -1, on_output, w);
        if (r == 0)
                r = raw_diff_end(&w->diff);
        switch (r) {
        case -ECANCELED:
                return IMPORT_REJECTED;
        case -EBADMSG:
        case -ENAMETOOLONG:
                return import_reject(im, "the changes cannot be read: a path is too long or malformed");
        default:
                return import_git_failed(im, r, "the result's changes");
        }
}

/* ---- links ---- */

typedef struct Target {
        char data[LINK_TARGET_MAX];
        size_t size;
} Target;

static int on_target(const char *data, size_t size, void *userdata) {
        Target *t = userdata;

        if (size > sizeof(t->data) - t->size)
                return -EFBIG;
        memcpy(t->data + t->size, data, size);
        t->size += size;
        return 0;
}

static int judge_link(Walk *w, const Link *l, json_t *outside) {
        const char *const cat[] = { "cat-file", "blob", l->oid, NULL };
        _cleanup_free_ char *path = NULL, *target = NULL;
        Import *im = w->import;
        Target t = {};
        int r;

        r = git_run(&im->git, cat, -1, -1, on_target, &t);
        path = text_escape(l->path, l->path_size < 200 ? l->path_size : 200, false);
        if (r == -EFBIG)
                return import_reject(im, "symbolic link \"%s\" has a target of more than %u bytes", path ?: "?", LINK_TARGET_MAX);
        r = import_git_failed(im, r, "a symbolic link");
        if (r != 0 || !tree_link_leaves(l->path, l->path_size, t.data, t.size))
                return r;

        target = text_escape(t.data, t.size < 200 ? t.size : 200, false);
        if (!path || !target)
                return -ENOMEM;
        if (json_array_size(outside) < LINKS_REPORTED &&
            json_array_append_new(outside, json_pack("{s:s, s:s}", "path", path, "target", target)) < 0)
                return -ENOMEM;
        return 0;
}

int import_walk_changes(Import *im) {
        _cleanup_(walk_done) Walk w = { .import = im };
        json_t *outside;
        int r;

        r = walk(&w);
        if (r != 0)
                return r;

        outside = json_array();
        if (!outside ||
            json_object_set_new(im->result->facts, "symlinks_outside", outside) < 0 ||
            json_object_set_new(im->result->facts, "changes", json_integer((json_int_t) w.n_changes)) < 0)
                return -ENOMEM;

        for (size_t i = 0; i < w.n_links; i++) {
                r = judge_link(&w, &w.links[i], outside);
                if (r != 0)
                        return r;
        }
        return 0;
}
