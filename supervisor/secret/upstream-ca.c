/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "secret/upstream-ca.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/io.h"

enum {
        PEM_MAX = 512 * 1024,
};

static int is_pem(const struct dirent *entry) {
        size_t n = strlen(entry->d_name);

        return n > 4 && entry->d_name[0] != '.' && strcmp(entry->d_name + n - 4, ".pem") == 0;
}

static int append_file(int dir_fd, const char *name, char **text, size_t *size) {
        _cleanup_free_ char *data = NULL;
        size_t n = 0;
        char *grown;
        int r;

        r = io_read_file(dir_fd, name, PEM_MAX - *size, &data, &n);
        if (r < 0)
                return r;

        grown = realloc(*text, *size + n + 2);
        if (!grown)
                return -ENOMEM;
        memcpy(grown + *size, data, n);
        grown[*size + n] = '\n'; /* a file may lack its last line break */
        grown[*size + n + 1] = '\0';
        *text = grown;
        *size += n + 1;
        return 0;
}

int upstream_ca_read(const char *dir, char **ret_pem) {
        _cleanup_free_ char *text = NULL;
        _cleanup_fd_ int dir_fd = -1;
        struct dirent **entries = NULL;
        size_t size = 0;
        int n, r = 0;

        text = strdup("");
        if (!text)
                return -ENOMEM;

        dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        n = dir_fd < 0 ? -1 : scandirat(dir_fd, ".", &entries, is_pem, alphasort);
        if (n < 0 && errno != ENOENT)
                return -errno;

        for (int i = 0; i < n; i++) {
                if (r >= 0)
                        r = append_file(dir_fd, entries[i]->d_name, &text, &size);
                free(entries[i]);
        }
        free(entries);
        if (r < 0)
                return r;

        *ret_pem = TAKE_PTR(text);
        return 0;
}
