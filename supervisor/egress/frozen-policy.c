/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What is frozen is the compiled policy (policy-live.c), with the place of each rule and what operators added, and not the file that it
 * came from: it means the same whatever else changes on the host. Its digest is in its name and in the database, and is
 * computed anew when it is read.
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "egress/frozen-policy.h"
#include "util/io.h"

enum { FROZEN_MAX = 256 * 1024 * 1024 };

static char *frozen_path(const char *dir, const char *run, const char *digest) {
        return text_format("%s/frozen/%s-%s.json", dir, run, digest);
}

int frozen_policy_write(const char *dir, const char *run, const EgressPolicy *p) {
        _cleanup_free_ char *folder = text_format("%s/frozen", dir), *path = frozen_path(dir, run, egress_policy_digest(p)), *text = NULL;
        size_t size;

        text = folder && path ? egress_policy_freeze(p, &size) : NULL;
        if (!text)
                return -ENOMEM;
        if (mkdir(folder, 0700) < 0 && errno != EEXIST)
                return -errno;

        return io_write_file_atomic(AT_FDCWD, path, text, size, 0600);
}

int frozen_policy_read(const char *dir, const char *run, const char *digest, EgressPolicy **ret) {
        _cleanup_free_ char *path = frozen_path(dir, run, digest), *text = NULL;
        _cleanup_(egress_policy_freep) EgressPolicy *p = NULL;
        size_t size;
        int r;

        if (!path)
                return -ENOMEM;

        r = io_read_file(AT_FDCWD, path, FROZEN_MAX, &text, &size);
        if (r < 0)
                return r;
        r = egress_policy_thaw(text, size, &p, NULL);
        if (r == -EINVAL || (r == 0 && strcmp(egress_policy_digest(p), digest) != 0))
                return -ESTALE;
        if (r < 0)
                return r;

        *ret = TAKE_PTR(p);
        return 0;
}

void frozen_policy_remove(const char *dir, const char *run, const char *keep) {
        _cleanup_free_ char *folder = text_format("%s/frozen", dir), *kept = keep ? text_format("%s-%s.json", run, keep) : NULL;
        _cleanup_dir_ DIR *d = folder ? opendir(folder) : NULL;
        size_t n = strlen(run);
        struct dirent *de;

        if (!d || (keep && !kept))
                return;

        while ((de = readdir(d)))
                if (strncmp(de->d_name, run, n) == 0 && de->d_name[n] == '-' && (!kept || strcmp(de->d_name, kept) != 0))
                        (void) unlinkat(dirfd(d), de->d_name, 0);
}
