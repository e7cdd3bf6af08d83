/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "util/io.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "util/cleanup.h"

enum { IO_CHUNK = 64 * 1024 };

int io_write_full(int fd, const void *data, size_t size) {
        const char *p = data;

        while (size > 0) {
                ssize_t n = write(fd, p, size);

                if (n < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                if (n == 0)
                        return -EIO;

                p += n;
                size -= (size_t) n;
        }

        return 0;
}

ssize_t io_read_full(int fd, void *data, size_t size) {
        char *p = data;
        size_t done = 0;

        while (done < size) {
                ssize_t n = read(fd, p + done, size - done);

                if (n < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                if (n == 0)
                        break;

                done += (size_t) n;
        }

        return (ssize_t) done;
}

/* A first guess that lets an ordinary file be read without growing the buffer. */
static size_t io_size_hint(int fd, size_t max) {
        struct stat st;

        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size <= 0)
                return max < IO_CHUNK ? max : IO_CHUNK;

        return (uint64_t) st.st_size < max ? (size_t) st.st_size : max;
}

int io_read_fd(int fd, size_t max, char **ret_data, size_t *ret_size) {
        _cleanup_free_ char *data = NULL;
        size_t allocated, size = 0;

        if (max > SSIZE_MAX - 2)
                return -EINVAL;

        /* Room for one byte more than allowed, so that too much is noticed, and for the final zero. */
        allocated = io_size_hint(fd, max) + 2;
        data = malloc(allocated);
        if (!data)
                return -ENOMEM;

        for (;;) {
                ssize_t n = io_read_full(fd, data + size, allocated - 1 - size);

                if (n < 0)
                        return (int) n;

                size += (size_t) n;
                if (size > max)
                        return -EFBIG;
                if (size < allocated - 1)
                        break;

                allocated = allocated > max / 2 ? max + 2 : allocated * 2;
                char *grown = realloc(data, allocated);
                if (!grown)
                        return -ENOMEM;
                data = grown;
        }

        data[size] = '\0';
        *ret_data = TAKE_PTR(data);
        if (ret_size)
                *ret_size = size;
        return 0;
}

int io_read_file(int dir_fd, const char *path, size_t max, char **ret_data, size_t *ret_size) {
        _cleanup_fd_ int fd = -1;

        fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return -errno;

        return io_read_fd(fd, max, ret_data, ret_size);
}

static int io_open_parent(int dir_fd, const char *path) {
        char parent[PATH_MAX];
        const char *slash = strrchr(path, '/');
        size_t length;
        int fd;

        if (!slash)
                strcpy(parent, ".");
        else {
                length = slash == path ? 1 : (size_t) (slash - path);
                if (length >= sizeof(parent))
                        return -ENAMETOOLONG;
                memcpy(parent, path, length);
                parent[length] = '\0';
        }

        fd = openat(dir_fd, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static int io_fill(int fd, const void *data, size_t size, mode_t mode) {
        int r;

        /* the mode asked for, whatever the umask */
        if (fchmod(fd, mode) < 0)
                return -errno;

        r = io_write_full(fd, data, size);
        if (r < 0)
                return r;

        return fsync(fd) < 0 ? -errno : 0;
}

int io_write_file_atomic(int dir_fd, const char *path, const void *data, size_t size, mode_t mode) {
        _cleanup_fd_ int parent = -1, fd = -1;
        const char *name = strrchr(path, '/');
        char temporary[NAME_MAX + 1];
        uint64_t random;
        int r;

        name = name ? name + 1 : path;
        if (*name == '\0')
                return -EISDIR;

        parent = io_open_parent(dir_fd, path);
        if (parent < 0)
                return parent;

        if (getrandom(&random, sizeof(random), 0) != sizeof(random))
                return -EIO;
        if ((size_t) snprintf(temporary, sizeof(temporary), ".#%s.%016llx", name,
                              (unsigned long long) random) >= sizeof(temporary))
                return -ENAMETOOLONG;

        fd = openat(parent, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return -errno;

        r = io_fill(fd, data, size, mode);
        if (r >= 0 && renameat(parent, temporary, parent, name) < 0)
                r = -errno;
        if (r < 0) {
                (void) unlinkat(parent, temporary, 0);
                return r;
        }

        return fsync(parent) < 0 ? -errno : 0;
}

int io_copy(int from_fd, int to_fd, uint64_t max, uint64_t *ret_size) {
        _cleanup_free_ char *buffer = NULL;
        uint64_t size = 0;
        int r;

        buffer = malloc(IO_CHUNK);
        if (!buffer)
                return -ENOMEM;

        for (;;) {
                ssize_t n = read(from_fd, buffer, IO_CHUNK);

                if (n < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                if (n == 0)
                        break;
                if ((uint64_t) n > max - size)
                        return -EFBIG;

                r = io_write_full(to_fd, buffer, (size_t) n);
                if (r < 0)
                        return r;

                size += (uint64_t) n;
        }

        if (ret_size)
                *ret_size = size;
        return 0;
}

int io_memfd(const char *name, const void *data, size_t size) {
        _cleanup_fd_ int fd = -1;
        int r;

        fd = memfd_create(name, MFD_CLOEXEC);
        if (fd < 0)
                return -errno;

        r = io_write_full(fd, data, size);
        if (r < 0)
                return r;
        if (lseek(fd, 0, SEEK_SET) < 0)
                return -errno;

        return TAKE_FD(fd);
}

int io_set_nonblock(int fd, int on) {
        int flags = fcntl(fd, F_GETFL);

        if (flags < 0)
                return -errno;

        flags = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
        return fcntl(fd, F_SETFL, flags) < 0 ? -errno : 0;
}

int io_connect_unix(const char *path) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_fd_ int fd = -1;
        size_t length = strlen(path);

        if (length == 0 || length >= sizeof(address.sun_path))
                return -ENAMETOOLONG;
        memcpy(address.sun_path, path, length + 1);

        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;
        if (connect(fd, (struct sockaddr *) &address, sizeof(address)) < 0)
                return -errno;

        return TAKE_FD(fd);
}
