/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* put and get: one file each way, as a stream of data frames under the stream's credit. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/guest.h"
#include "guest/java-store.h"

enum { BUNDLE_MAX = 16 * 1024 * 1024 };

static void make_parents(const char *path) {
        char folder[PATH_MAX];

        for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
                size_t n = (size_t) (slash - path);

                if (n >= sizeof(folder))
                        return; /* open() will say what is wrong */
                memcpy(folder, path, n);
                folder[n] = 0;
                (void) mkdir(folder, 0755);
        }
}

void file_start_put(Guest *g, Stream *s, const json_t *request) {
        const char *path = json_string_value(json_object_get(request, "path"));
        json_t *mode = json_object_get(request, "mode");
        const char *java_store = json_string_value(json_object_get(request, "java_store"));
        int how = json_is_true(json_object_get(request, "append")) ? O_APPEND : O_TRUNC;
        mode_t m = mode ? (mode_t) json_integer_value(mode) & 07777 : 0644;

        if (!path || path[0] != '/') {
                guest_send_exit_errno(g, s->id, EINVAL, "put needs an absolute path");
                return stream_done(s);
        }

        s->kind = STREAM_PUT;
        make_parents(path);
        s->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | how, m);
        if (java_store)
                s->java_store = strdup(java_store);
        if (s->fd < 0 || (mode && fchmod(s->fd, m) < 0) || (java_store && !s->java_store))
                s->error = errno; /* told when the data has come, so that the stream's frames are all used up */
}

/* The whole file at once or not at all: a process may be reading it. */
static int write_whole(const char *path, const uint8_t *data, size_t size) {
        _cleanup_fd_ int fd = -1;
        char part[PATH_MAX];
        ssize_t n;

        if (snprintf(part, sizeof(part), "%s.part", path) >= (int) sizeof(part))
                return -ENAMETOOLONG;
        make_parents(path);
        fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (fd < 0)
                return -errno;

        for (size_t done = 0; done < size; done += (size_t) n) {
                n = write(fd, data + done, size - done);
                if (n < 0)
                        return -errno;
        }
        return rename(part, path) < 0 ? -errno : 0;
}

/* The certificates of the bundle `fd`, as Java wants them. */
static int write_java_store(int fd, const char *path) {
        _cleanup_free_ uint8_t *store = NULL;
        _cleanup_free_ char *pem = NULL;
        struct stat st;
        size_t size;
        int r;

        if (fstat(fd, &st) < 0)
                return -errno;
        if (st.st_size > BUNDLE_MAX)
                return -EFBIG;
        pem = malloc((size_t) st.st_size + 1);
        if (!pem)
                return -ENOMEM;
        if (pread(fd, pem, (size_t) st.st_size, 0) != st.st_size)
                return -EIO;

        r = java_store_make(pem, (size_t) st.st_size, (uint64_t) st.st_mtim.tv_sec * 1000, &store, &size);
        return r < 0 ? r : write_whole(path, store, size);
}

void file_take_data(Guest *g, Stream *s, const uint8_t *data, size_t size) {
        if (size > 0) {
                for (size_t done = 0; !s->error && done < size;) {
                        ssize_t n = write(s->fd, data + done, size - done);

                        if (n < 0 && errno != EINTR)
                                s->error = errno;
                        else if (n > 0)
                                done += (size_t) n;
                }
                return guest_send_credit(g, s, (uint32_t) size);
        }

        if (!s->error && s->java_store)
                s->error = -write_java_store(s->fd, s->java_store);
        if (s->error)
                guest_send_exit_errno(g, s->id, s->error, "put");
        else
                guest_send_json(g, CHANNEL_EXIT, s->id, json_pack("{s:i}", "status", 0));
        stream_done(s);
}

void file_start_get(Guest *g, Stream *s, const json_t *request) {
        const char *path = json_string_value(json_object_get(request, "path"));
        json_int_t max = json_integer_value(json_object_get(request, "max"));
        struct stat st;

        s->fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
        if (s->fd < 0)
                guest_send_exit_errno(g, s->id, path ? errno : EINVAL, "get");
        else if (fstat(s->fd, &st) < 0 || !S_ISREG(st.st_mode))
                guest_send_exit_errno(g, s->id, EINVAL, "get: not a file");
        else if (st.st_size > max)
                guest_send_exit_errno(g, s->id, EFBIG, "get");
        else {
                s->kind = STREAM_GET;
                s->remaining = (uint64_t) st.st_size;
                return;
        }

        stream_done(s);
}

void file_send_data(Guest *g, Stream *s) {
        ssize_t n = 0;

        if (s->remaining > 0)
                n = guest_send_from(g, CHANNEL_DATA, s, s->fd, s->remaining);
        if (n == -EAGAIN)
                return;
        if (n < 0) {
                guest_send_exit_errno(g, s->id, (int) -n, "get");
                return stream_done(s);
        }

        s->remaining = n > 0 ? s->remaining - (uint64_t) n : 0; /* a file that shrank just ends */
        if (s->remaining > 0)
                return;

        guest_send(g, CHANNEL_DATA, s->id, NULL, 0);
        guest_send_json(g, CHANNEL_EXIT, s->id, json_pack("{s:i}", "status", 0));
        stream_done(s);
}
