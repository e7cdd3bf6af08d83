/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a site has decided for itself: one digest over every file below /etc/anchorhold, by name and content. It does not ask what
 * they mean, so that nothing which any daemon reads there can change without it. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "policy/policy.h"
#include "util/io.h"

enum { DEPTH_MAX = 8, FILE_MAX = 64 * 1024 * 1024 };

static inline void free_context(EVP_MD_CTX **ctx) {
        EVP_MD_CTX_free(*ctx);
}

/* With its size before it, so that no two lists of files are the same bytes. */
static int add(EVP_MD_CTX *ctx, const void *data, size_t size) {
        uint64_t n = size;

        return EVP_DigestUpdate(ctx, &n, sizeof(n)) == 1 && EVP_DigestUpdate(ctx, data, size) == 1 ? 0 : -EIO;
}

static int add_file(EVP_MD_CTX *ctx, int dir, const char *name) {
        _cleanup_free_ char *data = NULL;
        size_t size = 0;
        int r;

        r = io_read_file(dir, name, FILE_MAX, &data, &size);
        if (r == -EACCES || r == -EPERM || r == -ENOENT || r == -EFBIG)
                return add(ctx, "?", 1); /* none that a daemon could read either; that it is there counts */
        return r < 0 ? r : add(ctx, data, size);
}

static int add_folder(EVP_MD_CTX *ctx, int dir, const char *prefix, unsigned depth) {
        struct dirent **list = NULL;
        int n, r = 0;

        n = scandirat(dir, ".", &list, NULL, alphasort);
        if (n < 0)
                return -errno;

        for (int i = 0; i < n; i++) {
                const char *name = list[i]->d_name;
                _cleanup_free_ char *path = text_format("%s/%s", prefix, name);
                struct stat st;

                if (r >= 0 && !path)
                        r = -ENOMEM;
                /* hidden: temporary files of whoever writes there, and nothing that is read */
                if (r >= 0 && name[0] != '.' && fstatat(dir, name, &st, 0) == 0) {
                        if (S_ISDIR(st.st_mode) && depth < DEPTH_MAX) {
                                _cleanup_fd_ int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

                                r = fd < 0 ? add(ctx, path, strlen(path)) : add_folder(ctx, fd, path, depth + 1);
                        } else if (S_ISREG(st.st_mode)) {
                                r = add(ctx, path, strlen(path));
                                if (r >= 0)
                                        r = add_file(ctx, dir, name);
                        }
                }
                free(list[i]);
        }
        free(list);
        return r;
}

int policy_site_digest(const char *folder, char ret[static HEX_SHA256_SIZE]) {
        _cleanup_(free_context) EVP_MD_CTX *ctx = EVP_MD_CTX_new();
        _cleanup_fd_ int dir = -1;
        unsigned char digest[EVP_MAX_MD_SIZE];
        unsigned size = 0;
        int r;

        if (!ctx || EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1)
                return -ENOMEM;

        dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0 && errno != ENOENT)
                return -errno;
        r = dir < 0 ? 0 : add_folder(ctx, dir, "", 0);
        if (r < 0)
                return r;

        if (EVP_DigestFinal_ex(ctx, digest, &size) != 1)
                return -EIO;
        text_hex(digest, size, ret);
        return 0;
}
