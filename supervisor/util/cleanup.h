/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Automatic cleanup.
 *
 * Destructors take the address of the variable, accept NULL or -1, and leave the variable in its
 * invalid state. DEFINE_CLEANUP makes `thing_freep` from `thing_free`.
 */

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((__cleanup__(f)))
#define _printf_(a, b) __attribute__((__format__(__printf__, a, b)))

#define ELEMENTSOF(a) (sizeof(a) / sizeof((a)[0]))

/* Hands over ownership: yields the value and leaves the invalid one behind. */
#define TAKE_GENERIC(var, type, nullvalue)                      \
        ({                                                      \
                type *_pvar_ = &(var);                          \
                type _var_ = *_pvar_;                           \
                *_pvar_ = (nullvalue);                          \
                _var_;                                          \
        })
#define TAKE_PTR(ptr) TAKE_GENERIC(ptr, typeof(ptr), NULL)
#define TAKE_FD(fd) TAKE_GENERIC(fd, int, -1)

#define DEFINE_CLEANUP(type, func)                              \
        static inline void func##p(type *p) {                   \
                if (*p)                                         \
                        *p = func(*p);                          \
        }

static inline void freep(void *p) {
        free(*(void **) p);
        *(void **) p = NULL;
}

/* Closes fd if it is one, keeps errno, returns -1: `fd = fd_close(fd)`. */
static inline int fd_close(int fd) {
        int saved = errno;

        if (fd >= 0)
                (void) close(fd);
        errno = saved;
        return -1;
}

static inline void fd_closep(int *fd) {
        *fd = fd_close(*fd);
}

static inline void file_closep(FILE **f) {
        if (*f)
                (void) fclose(*f);
        *f = NULL;
}

static inline void dir_closep(DIR **d) {
        if (*d)
                (void) closedir(*d);
        *d = NULL;
}

#define _cleanup_free_ _cleanup_(freep)
#define _cleanup_fd_ _cleanup_(fd_closep)
#define _cleanup_file_ _cleanup_(file_closep)
#define _cleanup_dir_ _cleanup_(dir_closep)
