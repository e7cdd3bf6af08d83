/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A limit of size is a limit of each file, and there are as many as one likes: so none may be made. Landlock says that; O_TMPFILE is for it
 * no making of a file but an opening for writing.
 */
#include "util/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/cleanup.h"

#define HANDLED                                                                                                                                  \
        (LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |              \
         LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM)

static int allow(int ruleset_fd, const char *path) {
        struct landlock_path_beneath_attr rule = { .allowed_access = LANDLOCK_ACCESS_FS_WRITE_FILE };
        _cleanup_fd_ int fd = open(path, O_PATH | O_CLOEXEC);

        if (fd < 0)
                return errno == ENOENT ? 0 : -errno;
        rule.parent_fd = fd;
        return syscall(SYS_landlock_add_rule, ruleset_fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0 ? -errno : 0;
}

int confine_files(uint64_t largest, const char *const *writable) {
        const struct landlock_ruleset_attr ruleset = { .handled_access_fs = HANDLED };
        const struct rlimit limit = { .rlim_cur = largest, .rlim_max = largest };
        _cleanup_fd_ int fd = -1;
        int r = 0;

        if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
                return -errno;

        /* as much of it as the first version has */
        fd = (int) syscall(SYS_landlock_create_ruleset, &ruleset, offsetof(struct landlock_ruleset_attr, handled_access_fs) + sizeof(ruleset.handled_access_fs), 0);
        if (fd < 0)
                return errno == ENOSYS || errno == EOPNOTSUPP ? CONFINE_E_SIZE_ONLY : -errno;
        for (; r >= 0 && *writable; writable++)
                r = allow(fd, *writable);
        if (r < 0)
                return r;

        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(SYS_landlock_restrict_self, fd, 0) < 0)
                return -errno;
        return 0;
}
