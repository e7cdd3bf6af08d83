/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * {"files": [{"dev", "ino", "size", "mtime_ns", "ctime_ns", "sha256"}, …]}
 *
 * Any change of a file sets its ctime, which nobody can set otherwise. Two changes within one tick of the kernel's clock may have
 * the same; so a file is measured only once its last change is long enough ago, and its state is taken before and after: then a
 * change that came while it was read, or later, shows.
 *
 * Who could forge that (by setting the clock back, or by writing to the disk below the file system) is root on this host, and could as well replace
 * the launcher. The manifest's signature is checked at each boot of a microVM, here or not.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"
#include "vmm/vm-measured.h"
#include "vmm/vm-template.h"

enum { MEASURED_MAX = 1024 * 1024, FILES_MAX = 1024 };

#define NSEC_PER_SEC 1000000000LL

static int64_t nsec(const struct timespec *ts) {
        return ts->tv_sec * NSEC_PER_SEC + ts->tv_nsec;
}

static bool is_number(const json_t *entry, const char *key, int64_t value) {
        const json_t *j = json_object_get(entry, key);

        return json_is_integer(j) && json_integer_value(j) == value;
}

static bool is_same(const json_t *entry, const struct stat *st) {
        return is_number(entry, "dev", (int64_t) st->st_dev) && is_number(entry, "ino", (int64_t) st->st_ino) && is_number(entry, "size", st->st_size) &&
               is_number(entry, "mtime_ns", nsec(&st->st_mtim)) && is_number(entry, "ctime_ns", nsec(&st->st_ctim));
}

json_t *vm_measured_load(const char *path) {
        _cleanup_free_ char *text = NULL;
        json_t *measured = NULL;
        size_t size = 0;

        if (io_read_file(AT_FDCWD, path, MEASURED_MAX, &text, &size) < 0 || json_parse(text, size, &measured, NULL) < 0)
                return NULL;
        return measured;
}

bool vm_measured_has(const json_t *measured, const struct stat *st, const char *digest) {
        const json_t *entry;
        size_t i;

        json_array_foreach(json_object_get(measured, "files"), i, entry) {
                const char *found = json_string_value(json_object_get(entry, "sha256"));

                if (found && strcmp(found, digest) == 0 && is_same(entry, st))
                        return true;
        }
        return false;
}

/* ---- measuring ---- */

static void wait_until_settled(const struct stat *st, uint64_t settle_usec) {
        int64_t age = (int64_t) time_realtime() - nsec(&st->st_ctim) / 1000;

        /* one from the future is not waited for: it would not be in order either */
        if (age < (int64_t) settle_usec)
                (void) usleep((useconds_t) (age < 0 ? settle_usec : settle_usec - (uint64_t) age));
}

static int measure_file(int dir_fd, const char *file, const char *digest, uint64_t settle_usec, json_t **ret) {
        _cleanup_fd_ int fd = openat(dir_fd, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        struct stat before, after;
        int r;

        if (fd < 0 || fstat(fd, &before) < 0)
                return -errno;
        if (!S_ISREG(before.st_mode))
                return -EBADF;
        wait_until_settled(&before, settle_usec);

        if (fstat(fd, &before) < 0)
                return -errno;
        if ((int64_t) time_realtime() - nsec(&before.st_ctim) / 1000 < (int64_t) settle_usec)
                return -EBUSY;
        r = vm_template_check_contents(fd, digest);
        if (r < 0)
                return r;
        if (fstat(fd, &after) < 0)
                return -errno;

        *ret = json_pack("{s:I, s:I, s:I, s:I, s:I, s:s}", "dev", (json_int_t) before.st_dev, "ino", (json_int_t) before.st_ino, "size",
                         (json_int_t) before.st_size, "mtime_ns", (json_int_t) nsec(&before.st_mtim), "ctime_ns", (json_int_t) nsec(&before.st_ctim),
                         "sha256", digest);
        if (!*ret)
                return -ENOMEM;
        return is_same(*ret, &after) ? 0 : -EBUSY;
}

static void measure_template(int templates_fd, const char *name, const char *keys, uint64_t settle_usec, json_t *list) {
        _cleanup_fd_ int dir_fd = openat(templates_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        _cleanup_json_ json_t *manifest = NULL;
        _cleanup_free_ char *reason = NULL;
        const char *file;
        json_t *digest;
        int r;

        if (dir_fd < 0)
                return;
        r = vm_template_read(dir_fd, name, keys, &manifest, &reason);
        if (r < 0) {
                log_warning_errno(r, "template %s: %s", name, reason ?: "unreadable");
                return;
        }

        json_object_foreach(json_object_get(manifest, "files"), file, digest) {
                _cleanup_json_ json_t *entry = NULL;

                if (!json_is_string(digest) || json_array_size(list) >= FILES_MAX)
                        continue;
                r = measure_file(dir_fd, file, json_string_value(digest), settle_usec, &entry);
                if (r >= 0)
                        r = json_array_append(list, entry) < 0 ? -ENOMEM : 0;
                if (r < 0)
                        log_warning_errno(r, "template %s: %s is not measured, so each boot from it reads it", name, file);
        }
}

json_t *vm_measured_make(const char *templates, const char *keys, uint64_t settle_usec) {
        _cleanup_json_ json_t *list = json_array();
        _cleanup_dir_ DIR *d = opendir(templates);
        struct dirent *e;

        if (!list)
                return NULL;
        while (d && (e = readdir(d)))
                if (text_is_name(e->d_name))
                        measure_template(dirfd(d), e->d_name, keys, settle_usec, list);
        return json_pack("{s:O}", "files", list);
}
