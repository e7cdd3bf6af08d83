/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The policy's file is copied to frozen/RUN/usr/lib/anchorhold/policy/egress/, and from then on that folder is the root from which
 * the run's policy is loaded, now and after a restart of egressd: the loader is the one that checks every other policy. The
 * copy must have the digest that the loader saw on disk when the run was registered.
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "egress/frozen-policy.h"
#include "util/io.h"

enum { POLICY_FILE_MAX_SIZE = 1024 * 1024 };

static char *frozen_root(const char *dir, const char *run) {
        return text_format("%s/frozen/%s", dir, run);
}

static int make_folders(const char *path) {
        _cleanup_free_ char *copy = strdup(path);

        if (!copy)
                return -ENOMEM;

        for (char *p = copy + 1; *p; p++)
                if (*p == '/') {
                        *p = '\0';
                        if (mkdir(copy, 0700) < 0 && errno != EEXIST)
                                return -errno;
                        *p = '/';
                }
        return mkdir(copy, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

int frozen_policy_make(const char *dir, const char *root, const char *run, const char *name) {
        static const char *const trees[] = { POLICY_OPERATOR_DIR, POLICY_VENDOR_DIR };
        _cleanup_free_ char *frozen = NULL, *folder = NULL, *target = NULL, *data = NULL;
        size_t size;
        int r = -ENOENT;

        frozen = frozen_root(dir, run);
        folder = frozen ? text_format("%s" POLICY_VENDOR_DIR "/policy/egress", frozen) : NULL;
        target = folder ? text_format("%s/%s.json", folder, name) : NULL;
        if (!target)
                return -ENOMEM;

        for (size_t i = 0; i < ELEMENTSOF(trees) && r == -ENOENT; i++) {
                _cleanup_free_ char *source = text_format("%s%s/policy/egress/%s.json", root, trees[i], name);

                if (!source)
                        return -ENOMEM;
                r = io_read_file(AT_FDCWD, source, POLICY_FILE_MAX_SIZE, &data, &size);
        }
        if (r < 0)
                return r;

        r = make_folders(folder);
        if (r < 0)
                return r;

        return io_write_file_atomic(AT_FDCWD, target, data, size, 0600);
}

void frozen_policy_remove(const char *dir, const char *run, const char *name) {
        _cleanup_free_ char *root = frozen_root(dir, run), *path = NULL;
        size_t n_root;

        path = root ? text_format("%s" POLICY_VENDOR_DIR "/policy/egress/%s.json", root, name ?: "") : NULL;
        if (!path)
                return;

        (void) unlink(path);
        n_root = strlen(root);
        for (char *slash; (slash = strrchr(path, '/')) && (size_t) (slash - path) >= n_root;) {
                *slash = '\0';
                (void) rmdir(path);
        }
}

int frozen_policy_load(const char *dir, const char *run, const char *name, const char *digest, Policy **ret_set, const EgressPolicy **ret) {
        _cleanup_(policy_freep) Policy *set = NULL;
        _cleanup_free_ char *root = frozen_root(dir, run);
        const EgressPolicy *policy;
        int r;

        if (!root)
                return -ENOMEM;

        r = policy_load(&set, root, NULL, NULL);
        if (r < 0)
                return r;
        policy = policy_find_egress(set, name, NULL);
        if (!policy || strcmp(egress_policy_digest(policy), digest) != 0)
                return -ESTALE;

        *ret_set = TAKE_PTR(set);
        *ret = policy;
        return 0;
}
