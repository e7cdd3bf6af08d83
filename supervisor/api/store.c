/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The folders of items, and copies into them.
 *
 * Writing and fsync of some hundred MiB take seconds, in which anchord has to answer others; so each copy has a thread of its own. The
 * thread owns the copy's descriptors, reads what was set before it began, writes `result` alone, and says by an eventfd
 * that it is done; everything else happens in the loop: the thread is joined, and the caller told. No thread calls anything of
 * anchord, takes a lock, or sees a signal. At most COPY_RUNNING_MAX run at a time, others wait in their order; of one file only one, so that what
 * came last is what stays. An end of the store stops them at their next piece. A crash leaves a temporary name, which store_remove_partial() removes.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "api/store.h"
#include "util/io.h"
#include "util/text.h"

enum {
        COPY_PIECE = 256 * 1024,
        COPY_RUNNING_MAX = 4,
        COPY_MAX = 64,                /* under way and waiting */
        COPY_STACK_SIZE = 256 * 1024, /* of a thread */
};

typedef struct StoreCopy StoreCopy;

struct Store {
        sd_event *event; /* ref */
        int root_fd;     /* owned */
        StoreCopy *copies; /* owned; in the order in which they came */
        unsigned n_copies, n_running;
        uint64_t last_copy; /* number of */
        atomic_bool stop;   /* the threads give up */
};

struct StoreCopy {
        Store *store;            /* borrowed */
        StoreCopy *next;
        sd_event_source *source; /* owned */
        pthread_t thread;
        bool running;            /* the thread is to be joined */
        int from_fd, to_fd;      /* owned */
        int dir_fd;              /* owned */
        int done_fd;             /* owned; eventfd */
        char item[ID_LENGTH + 1];
        char *name, *temporary;  /* owned */
        uint64_t max;
        int result;              /* the thread's */
        StoreDone done;
        void *userdata;
};

static StoreCopy *copy_free(StoreCopy *c);

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

        atomic_store(&s->stop, true);
        while (s->copies)
                copy_free(s->copies);
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

/* NULL with errno. */
static DIR *open_dir(int root_fd, const char *name) {
        _cleanup_fd_ int fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);

        if (dir)
                (void) TAKE_FD(fd);
        return dir;
}

static int remove_all(int root_fd, const char *item) {
        _cleanup_dir_ DIR *dir = NULL;
        struct dirent *entry;

        dir = open_dir(root_fd, item);
        if (!dir)
                return -errno;

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

int store_usage(Store *s, const char *item, StoreUsage *ret) {
        _cleanup_dir_ DIR *dir = NULL;
        struct dirent *entry;
        StoreUsage u = {};

        if (!text_is_id('i', item))
                return -EINVAL;
        dir = open_dir(s->root_fd, item);
        if (!dir)
                return -errno;

        while ((entry = readdir(dir))) {
                bool log = strcmp(entry->d_name, STORE_EVENTS) == 0;
                struct stat st;

                if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
                        continue;
                *(log ? &u.log : &u.rest) += (uint64_t) st.st_blocks * 512;
                *(log ? &u.has_log : &u.has_rest) = true;
        }

        *ret = u;
        return 0;
}

int store_prune(Store *s, const char *item, bool log) {
        _cleanup_dir_ DIR *dir = NULL;
        struct dirent *entry;

        if (!text_is_id('i', item))
                return -EINVAL;
        dir = open_dir(s->root_fd, item);
        if (!dir)
                return errno == ENOENT ? 0 : -errno;

        while ((entry = readdir(dir)))
                if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && (strcmp(entry->d_name, STORE_EVENTS) == 0) == log &&
                    unlinkat(dirfd(dir), entry->d_name, 0) < 0)
                        return -errno;
        if (fsync(dirfd(dir)) < 0)
                return -errno;
        if (unlinkat(s->root_fd, item, AT_REMOVEDIR) < 0 && errno != ENOTEMPTY && errno != EEXIST)
                return -errno;
        return 0;
}

int store_remove_partial(Store *s, const char *item) {
        _cleanup_dir_ DIR *dir = NULL;
        struct dirent *entry;

        if (!text_is_id('i', item))
                return -EINVAL;
        dir = open_dir(s->root_fd, item);
        if (!dir)
                return errno == ENOENT ? 0 : -errno;

        while ((entry = readdir(dir))) {
                size_t length = strlen(entry->d_name);

                if (entry->d_name[0] == '.' && length > 4 && strcmp(entry->d_name + length - 4, ".new") == 0 && unlinkat(dirfd(dir), entry->d_name, 0) < 0)
                        return -errno;
        }
        return 0;
}

int store_list(Store *s, int (*handler)(const char *item, void *userdata), void *userdata) {
        _cleanup_dir_ DIR *dir = NULL;
        struct dirent *entry;
        int r;

        dir = open_dir(s->root_fd, ".");
        if (!dir)
                return -errno;

        while ((entry = readdir(dir))) {
                if (!text_is_id('i', entry->d_name))
                        continue;
                r = handler(entry->d_name, userdata);
                if (r < 0)
                        return r;
        }

        return 0;
}

/* ---- copies: the thread ---- */

static int copy_settle(StoreCopy *c) {
        if (fsync(c->to_fd) < 0)
                return -errno;
        if (renameat(c->dir_fd, c->temporary, c->dir_fd, c->name) < 0)
                return -errno;
        return fsync(c->dir_fd) < 0 ? -errno : 0;
}

/* Reads with pread: the offset is shared with whoever sent it. */
static int copy_all(StoreCopy *c) {
        _cleanup_free_ char *buffer = malloc(COPY_PIECE);
        uint64_t size = 0;
        ssize_t n;
        int r;

        if (!buffer)
                return -ENOMEM;

        while (!atomic_load(&c->store->stop)) {
                n = pread(c->from_fd, buffer, COPY_PIECE, (off_t) size);
                if (n < 0)
                        return -errno;
                if (n == 0)
                        return copy_settle(c);

                size += (uint64_t) n;
                if (size > c->max)
                        return -EFBIG;
                r = io_write_full(c->to_fd, buffer, (size_t) n);
                if (r < 0)
                        return r;
        }

        return -ECANCELED;
}

static void *copy_main(void *userdata) {
        StoreCopy *c = userdata;

        c->result = copy_all(c);
        if (c->result < 0)
                (void) unlinkat(c->dir_fd, c->temporary, 0);
        (void) eventfd_write(c->done_fd, 1);
        return NULL;
}

static int copy_start(StoreCopy *c) {
        pthread_attr_t attributes;
        sigset_t all, before;
        int r;

        r = pthread_attr_init(&attributes);
        if (r != 0)
                return -r;

        /* a thread inherits the mask: signals stay the loop's */
        (void) sigfillset(&all);
        (void) pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_attr_setstacksize(&attributes, COPY_STACK_SIZE);
        if (r == 0)
                r = pthread_create(&c->thread, &attributes, copy_main, c);
        (void) pthread_sigmask(SIG_SETMASK, &before, NULL);
        (void) pthread_attr_destroy(&attributes);
        if (r != 0)
                return -r;

        c->running = true;
        c->store->n_running++;
        return 0;
}

/* ---- copies: the loop ---- */

static StoreCopy *copy_free(StoreCopy *c) {
        if (!c)
                return NULL;

        for (StoreCopy **p = &c->store->copies; *p; p = &(*p)->next)
                if (*p == c) {
                        *p = c->next;
                        c->store->n_copies--;
                        break;
                }
        if (c->running) {
                (void) pthread_join(c->thread, NULL);
                c->store->n_running--;
        } else if (c->to_fd >= 0)
                (void) unlinkat(c->dir_fd, c->temporary, 0);

        c->source = sd_event_source_disable_unref(c->source);
        c->from_fd = fd_close(c->from_fd);
        c->to_fd = fd_close(c->to_fd);
        c->dir_fd = fd_close(c->dir_fd);
        c->done_fd = fd_close(c->done_fd);
        free(c->name);
        free(c->temporary);
        free(c);
        return NULL;
}
DEFINE_CLEANUP(StoreCopy *, copy_free)

/* Is another copy of the same file before it? */
static bool copy_is_held_up(const StoreCopy *c) {
        for (const StoreCopy *e = c->store->copies; e != c; e = e->next)
                if (strcmp(e->item, c->item) == 0 && strcmp(e->name, c->name) == 0)
                        return true;
        return false;
}

/* Starts what waits, as far as there is room. One that cannot be started is told so from the loop, as if it had run. */
static void copies_start(Store *s) {
        for (StoreCopy *c = s->copies; c && s->n_running < COPY_RUNNING_MAX; c = c->next) {
                int r;

                if (c->running || c->result < 0 || copy_is_held_up(c))
                        continue;
                r = copy_start(c);
                if (r >= 0)
                        continue;
                c->result = r;
                (void) eventfd_write(c->done_fd, 1);
        }
}

static int copy_on_done(sd_event_source *source, int fd, uint32_t events, void *userdata) {
        StoreCopy *c = userdata;
        StoreDone done = c->done;
        void *done_userdata = c->userdata;
        Store *s = c->store;
        int r;

        if (c->running) {
                (void) pthread_join(c->thread, NULL); /* its last step was to wake us */
                c->running = false;
                s->n_running--;
                c->to_fd = fd_close(c->to_fd); /* in place, or removed by the thread */
        }
        r = c->result;
        (void) copy_free(c);
        copies_start(s);
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

static int copy_new(Store *s, const char *item, const char *name, StoreCopy **ret) {
        _cleanup_(copy_freep) StoreCopy *c = NULL;
        int r;

        c = calloc(1, sizeof(*c));
        if (!c)
                return -ENOMEM;
        *c = (StoreCopy) { .store = s, .from_fd = -1, .to_fd = -1, .dir_fd = -1, .done_fd = -1 };

        c->name = strdup(name);
        (void) snprintf(c->item, sizeof(c->item), "%s", item);
        /* of its own: the copy before it may still be under way, for a run that was given up */
        c->temporary = text_format(".%s.%" PRIu64 ".new", name, ++s->last_copy);
        if (!c->name || !c->temporary)
                return -ENOMEM;

        c->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (c->done_fd < 0)
                return -errno;
        r = sd_event_add_io(s->event, &c->source, c->done_fd, EPOLLIN, copy_on_done, c);
        if (r < 0)
                return r;

        c->dir_fd = store_open_item(s, item, true);
        if (c->dir_fd < 0)
                return c->dir_fd;
        (void) unlinkat(c->dir_fd, c->temporary, 0);
        c->to_fd = openat(c->dir_fd, c->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (c->to_fd < 0)
                return -errno;

        *ret = TAKE_PTR(c);
        return 0;
}

int store_copy(Store *s, const char *item, const char *name, int fd, uint64_t max, StoreDone done, void *userdata) {
        _cleanup_fd_ int from = fd;
        StoreCopy *c = NULL, **end;
        int r;

        if (s->n_copies >= COPY_MAX)
                return -EBUSY;
        r = check_regular(from);
        if (r < 0)
                return r;
        r = copy_new(s, item, name, &c);
        if (r < 0)
                return r;

        c->from_fd = TAKE_FD(from);
        c->max = max;
        c->done = done;
        c->userdata = userdata;
        for (end = &s->copies; *end; end = &(*end)->next)
                ;
        *end = c;
        s->n_copies++;
        copies_start(s);
        return 0;
}
