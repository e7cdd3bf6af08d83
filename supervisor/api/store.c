/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "api/store.h"
#include "util/io.h"
#include "util/text.h"

enum {
        COPY_PIECE = 1024 * 1024, /* a turn of the event loop */
        COPY_MAX = 64,            /* copies under way */
};

struct Store {
        sd_event *event; /* ref */
        int root_fd;     /* owned */
        unsigned n_copies;
        uint64_t last_copy; /* number of */
};

struct StoreCopy {
        Store *store;            /* borrowed */
        sd_event_source *source; /* owned */
        int from_fd, to_fd;      /* owned */
        int dir_fd;              /* owned */
        char *name, *temporary;  /* owned */
        uint64_t done_size, max;
        StoreDone done;
        void *userdata;
};

int store_new(Store **ret, sd_event *event, const char *root) {
        _cleanup_(store_freep) Store *s = NULL;

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (Store) { .event = sd_event_ref(event), .root_fd = -1 };

        s->root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (s->root_fd < 0)
                return -errno;

        *ret = TAKE_PTR(s);
        return 0;
}

Store *store_free(Store *s) {
        if (!s)
                return NULL;

        s->root_fd = fd_close(s->root_fd);
        sd_event_unref(s->event);
        free(s);
        return NULL;
}

int store_open_item(Store *s, const char *item, bool make) {
        int fd;

        if (!text_is_id('i', item))
                return -EINVAL;

        if (make) {
                if (mkdirat(s->root_fd, item, 0700) == 0)
                        (void) fsync(s->root_fd);
                else if (errno != EEXIST)
                        return -errno;
        }

        fd = openat(s->root_fd, item, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        return fd < 0 ? -errno : fd;
}

int store_open_file(Store *s, const char *item, const char *name) {
        _cleanup_fd_ int dir = store_open_item(s, item, false);
        int fd;

        if (dir < 0)
                return dir;

        fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        return fd < 0 ? -errno : fd;
}

bool store_has_file(Store *s, const char *item, const char *name) {
        _cleanup_fd_ int fd = store_open_file(s, item, name);

        return fd >= 0;
}

static int remove_all(int root_fd, const char *item) {
        _cleanup_dir_ DIR *dir = NULL;
        struct dirent *entry;
        int fd;

        fd = openat(root_fd, item, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return -errno;
        dir = fdopendir(fd);
        if (!dir) {
                (void) fd_close(fd);
                return -errno;
        }

        while ((entry = readdir(dir)))
                if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                    unlinkat(dirfd(dir), entry->d_name, 0) < 0)
                        return -errno;

        return unlinkat(root_fd, item, AT_REMOVEDIR) < 0 ? -errno : 0;
}

int store_remove(Store *s, const char *item, const char *name) {
        _cleanup_fd_ int dir = -1;

        if (!name)
                return text_is_id('i', item) ? remove_all(s->root_fd, item) : -EINVAL;

        dir = store_open_item(s, item, false);
        if (dir < 0)
                return dir;
        if (unlinkat(dir, name, 0) < 0)
                return -errno;
        return fsync(dir) < 0 ? -errno : 0;
}

int store_list(Store *s, int (*handler)(const char *item, void *userdata), void *userdata) {
        _cleanup_dir_ DIR *dir = NULL;
        struct dirent *entry;
        int fd, r;

        fd = openat(s->root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        dir = fdopendir(fd);
        if (!dir) {
                (void) fd_close(fd);
                return -errno;
        }

        while ((entry = readdir(dir))) {
                if (!text_is_id('i', entry->d_name))
                        continue;
                r = handler(entry->d_name, userdata);
                if (r < 0)
                        return r;
        }

        return 0;
}

/* ---- copies ---- */

StoreCopy *store_copy_cancel(StoreCopy *c) {
        if (!c)
                return NULL;

        c->source = sd_event_source_disable_unref(c->source);
        if (c->to_fd >= 0 && c->dir_fd >= 0)
                (void) unlinkat(c->dir_fd, c->temporary, 0);
        c->from_fd = fd_close(c->from_fd);
        c->to_fd = fd_close(c->to_fd);
        c->dir_fd = fd_close(c->dir_fd);
        c->store->n_copies--;
        free(c->name);
        free(c->temporary);
        free(c);
        return NULL;
}
DEFINE_CLEANUP(StoreCopy *, store_copy_cancel)

static int copy_settle(StoreCopy *c) {
        if (fsync(c->to_fd) < 0)
                return -errno;
        if (renameat(c->dir_fd, c->temporary, c->dir_fd, c->name) < 0)
                return -errno;
        c->to_fd = fd_close(c->to_fd);
        return fsync(c->dir_fd) < 0 ? -errno : 0;
}

/* 1 while there is more, 0 at the end. Reads with pread: the offset is shared with whoever sent it. */
static int copy_piece(StoreCopy *c) {
        char buffer[64 * 1024];
        ssize_t n;
        int r;

        for (size_t piece = 0; piece < COPY_PIECE; piece += (size_t) n) {
                n = pread(c->from_fd, buffer, sizeof(buffer), (off_t) c->done_size);
                if (n < 0)
                        return -errno;
                if (n == 0)
                        return 0;

                c->done_size += (uint64_t) n;
                if (c->done_size > c->max)
                        return -EFBIG;

                r = io_write_full(c->to_fd, buffer, (size_t) n);
                if (r < 0)
                        return r;
        }

        return 1;
}

static int copy_on_turn(sd_event_source *source, void *userdata) {
        StoreCopy *c = userdata;
        StoreDone done = c->done;
        void *done_userdata = c->userdata;
        int r;

        r = copy_piece(c);
        if (r > 0)
                return 0;
        if (r == 0)
                r = copy_settle(c);

        (void) store_copy_cancel(c);
        done(r, done_userdata);
        return 0;
}

/* A file that somebody's own file system serves could make a read wait for ever. */
static int check_regular(int fd) {
        struct stat st;
        struct statfs fs;

        if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode) || fs.f_type == FUSE_SUPER_MAGIC)
                return -EMEDIUMTYPE;
        return 0;
}

int store_copy(Store *s, const char *item, const char *name, int fd, uint64_t max, StoreDone done, void *userdata, StoreCopy **ret) {
        _cleanup_(store_copy_cancelp) StoreCopy *c = NULL;
        _cleanup_fd_ int from = fd;
        int r;

        if (s->n_copies >= COPY_MAX)
                return -EBUSY;

        r = check_regular(from);
        if (r < 0)
                return r;

        c = calloc(1, sizeof(*c));
        if (!c)
                return -ENOMEM;
        *c = (StoreCopy) { .store = s, .from_fd = TAKE_FD(from), .to_fd = -1, .dir_fd = -1, .max = max, .done = done, .userdata = userdata };
        s->n_copies++;

        c->name = strdup(name);
        /* of its own: a call that is repeated while its first copy goes on makes a second one */
        c->temporary = text_format(".%s.%" PRIu64 ".new", name, ++s->last_copy);
        if (!c->name || !c->temporary)
                return -ENOMEM;

        c->dir_fd = store_open_item(s, item, true);
        if (c->dir_fd < 0)
                return c->dir_fd;

        (void) unlinkat(c->dir_fd, c->temporary, 0);
        c->to_fd = openat(c->dir_fd, c->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (c->to_fd < 0)
                return -errno;

        r = sd_event_add_defer(s->event, &c->source, copy_on_turn, c);
        if (r < 0)
                return r;
        r = sd_event_source_set_enabled(c->source, SD_EVENT_ON);
        if (r < 0)
                return r;
        r = sd_event_source_set_priority(c->source, SD_EVENT_PRIORITY_IDLE);
        if (r < 0)
                return r;

        if (ret)
                *ret = c;
        c = NULL;
        return 0;
}
