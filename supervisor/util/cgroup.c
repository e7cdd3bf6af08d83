/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "util/cgroup.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/text.h"

#define MAX_PROC_FILE (1024 * 1024)

/* Undoes the \ooo of mountinfo(5) in place. */
static void unescape_octal(char *s) {
        char *to = s;

        while (*s) {
                if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
                        *to++ = (char) ((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
                        s += 4;
                } else
                        *to++ = *s++;
        }
        *to = 0;
}

/* Field number n (from 0) of a line, as a copy. */
static char *copy_field(const char *line, unsigned n) {
        for (; n > 0; n--) {
                line += strcspn(line, " \n");
                if (*line != ' ')
                        return NULL;
                line++;
        }
        return strndup(line, strcspn(line, " \n"));
}

char *cgroup_find_mount(const char *mountinfo) {
        for (const char *line = mountinfo; *line;) {
                const char *end = line + strcspn(line, "\n");
                const char *type = memmem(line, (size_t) (end - line), " - cgroup2 ", strlen(" - cgroup2 "));

                if (type) {
                        char *path = copy_field(line, 4);

                        if (path)
                                unescape_octal(path);
                        return path;
                }
                line = *end ? end + 1 : end;
        }
        return NULL;
}

char *mountinfo_find_root(const char *mountinfo, const char *target) {
        char *found = NULL;

        for (const char *line = mountinfo; *line;) {
                _cleanup_free_ char *at = copy_field(line, 4);

                if (at) {
                        unescape_octal(at);
                        if (strcmp(at, target) == 0) {
                                free(found);
                                found = copy_field(line, 3); /* the last one is on top */
                        }
                }
                line += strcspn(line, "\n");
                line += *line == '\n';
        }
        if (found)
                unescape_octal(found);
        return found;
}

char *cgroup_find_path(const char *proc_cgroup) {
        for (const char *line = proc_cgroup; *line;) {
                size_t len = strcspn(line, "\n");

                if (strncmp(line, "0::/", 4) == 0)
                        return strndup(line + 3, len - 3);
                line += len + (line[len] == '\n');
        }
        return NULL;
}

bool cgroup_cut_path(char *path, const char *name) {
        size_t len = strlen(name);

        for (char *p = path; *p == '/';) {
                size_t n = strcspn(++p, "/");

                if (n == len && memcmp(p, name, len) == 0) {
                        p[n] = 0;
                        return true;
                }
                p += n;
        }
        return false;
}

static int find_mount(char **ret) {
        _cleanup_free_ char *mountinfo = NULL;
        int r;

        r = io_read_file(AT_FDCWD, "/proc/self/mountinfo", MAX_PROC_FILE, &mountinfo, NULL);
        if (r < 0)
                return r;

        *ret = cgroup_find_mount(mountinfo);
        return *ret ? 0 : -ENOMEDIUM;
}

int cgroup_open_root(void) {
        _cleanup_free_ char *mount = NULL;
        int fd, r;

        r = find_mount(&mount);
        if (r < 0)
                return r;

        fd = open(mount, O_PATH | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

int cgroup_open_own(const char *name) {
        _cleanup_free_ char *own = NULL, *mount = NULL, *path = NULL, *whole = NULL;
        int fd, r;

        r = find_mount(&mount);
        if (r < 0)
                return r;
        r = io_read_file(AT_FDCWD, "/proc/self/cgroup", MAX_PROC_FILE, &own, NULL);
        if (r < 0)
                return r;

        path = cgroup_find_path(own);
        if (!path)
                return -ENOMEDIUM;
        if (name && !cgroup_cut_path(path, name))
                return -ENOENT;

        whole = text_format("%s%s", mount, path);
        if (!whole)
                return -ENOMEM;

        fd = open(whole, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

int cgroup_open(const char *path) {
        _cleanup_free_ char *mount = NULL, *whole = NULL;
        int fd, r;

        r = find_mount(&mount);
        if (r < 0)
                return r;
        whole = text_format("%s/%s", mount, path);
        if (!whole)
                return -ENOMEM;

        fd = open(whole, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}
