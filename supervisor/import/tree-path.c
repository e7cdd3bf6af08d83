/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Three file systems see .git in names that are not: HFS+ ignores case and some invisible code points,
 * NTFS ignores case, trailing dots and spaces, and what follows a colon (a stream), takes a backslash
 * for a separator, and has short names (GIT~1). Whoever merges the result may work on one of them.
 */

#include <ctype.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "import/tree-path.h"

/* Decodes one code point; an invalid byte is itself. The number of bytes. */
static size_t decode(const uint8_t *p, size_t left, uint32_t *ret) {
        size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : p[0] >= 0xc0 ? 2 : 1;
        uint32_t c = n == 1 ? p[0] : p[0] & (0x7fU >> n);

        if (n > left)
                n = 1;
        for (size_t i = 1; i < n; i++) {
                if ((p[i] & 0xc0) != 0x80) {
                        *ret = p[0];
                        return 1;
                }
                c = c << 6 | (p[i] & 0x3f);
        }
        *ret = n == 1 ? p[0] : c;
        return n;
}

/* Those that HFS+ leaves out when it compares names (Apple TN1150). */
static bool hfs_ignores(uint32_t c) {
        return (c >= 0x200c && c <= 0x200f) || (c >= 0x202a && c <= 0x202e) || (c >= 0x206a && c <= 0x206f) || c == 0xfeff;
}

static bool hfs_equals(const char *name, size_t size, const char *wanted) {
        const uint8_t *p = (const uint8_t *) name;

        while (size > 0) {
                uint32_t c;
                size_t n = decode(p, size, &c);

                p += n;
                size -= n;
                if (hfs_ignores(c))
                        continue;
                if (c >= 0x80 || *wanted == 0 || tolower((int) c) != *wanted)
                        return false;
                wanted++;
        }
        return *wanted == 0;
}

static bool ntfs_equals(const char *name, size_t size, const char *wanted) {
        const char *colon = memchr(name, ':', size);

        if (colon)
                size = (size_t) (colon - name);
        while (size > 0 && (name[size - 1] == ' ' || name[size - 1] == '.'))
                size--;
        return size == strlen(wanted) && strncasecmp(name, wanted, size) == 0;
}

static bool is_dotgit(const char *name, size_t size) {
        return hfs_equals(name, size, ".git") || ntfs_equals(name, size, ".git") || ntfs_equals(name, size, "git~1");
}

static bool has_prefix(const char *name, size_t size, const char *prefix) {
        return size >= strlen(prefix) && strncasecmp(name, prefix, strlen(prefix)) == 0;
}

/* Short names are made from the first six letters, or from two and a hash of the name: for .gitmodules gi7eba. */
static bool is_gitmodules(const char *name, size_t size) {
        return hfs_equals(name, size, ".gitmodules") || ntfs_equals(name, size, ".gitmodules") ||
               has_prefix(name, size, "gitmod~") || has_prefix(name, size, "gi7eb");
}

/* One name after the other; both kinds of separators. */
static bool next_name(const char **path, size_t *left, const char **ret, size_t *ret_size) {
        size_t n = 0;

        if (*left == 0)
                return false;
        while (n < *left && (*path)[n] != '/' && (*path)[n] != '\\')
                n++;
        *ret = *path;
        *ret_size = n;
        n += n < *left;
        *path += n;
        *left -= n;
        return true;
}

const char *tree_path_check(const char *path, size_t size) {
        const char *name;
        size_t n;

        if (size == 0 || size > TREE_PATH_MAX)
                return "is empty or longer than 4096 bytes";
        if (memchr(path, 0, size))
                return "contains a zero byte";
        if (path[0] == '/' || path[size - 1] == '/')
                return "begins or ends with a slash";

        while (next_name(&path, &size, &name, &n)) {
                if (n > TREE_NAME_MAX)
                        return "has a name of more than 255 bytes";
                if ((n == 1 && name[0] == '.') || (n == 2 && memcmp(name, "..", 2) == 0))
                        return "has . or .. as a name";
                if (n == 0)
                        return "has an empty name";
                if (is_dotgit(name, n))
                        return "has a name that some file system takes for .git";
        }
        return NULL;
}

bool tree_path_is_gitmodules(const char *path, size_t size) {
        const char *name;
        size_t n;

        while (next_name(&path, &size, &name, &n))
                if (is_gitmodules(name, n))
                        return true;
        return false;
}

/* A name may be another link, and what is above where that leads can be anything: so up comes first, from the link's own folder, which is none. */
bool tree_link_leaves(const char *path, size_t path_size, const char *target, size_t target_size) {
        const char *name;
        bool below = false;
        long depth = 0;
        size_t n;

        if (target_size == 0 || target[0] == '/' || target[0] == '\\' || (target_size > 1 && target[1] == ':'))
                return true;

        for (size_t i = 0; i < path_size; i++)
                depth += path[i] == '/';

        while (next_name(&target, &target_size, &name, &n)) {
                if (n == 0 || (n == 1 && name[0] == '.'))
                        continue;
                if (n == 2 && memcmp(name, "..", 2) == 0) {
                        if (below || --depth < 0)
                                return true;
                } else if (is_dotgit(name, n))
                        return true;
                else
                        below = true;
        }
        return false;
}
