/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Each secret has pages of its own, between two that cannot be touched: an overrun of a neighbour on
 * the heap meets no secret, and mlock and MADV_DONTDUMP, which work on whole pages, cover nothing else.
 * Secrets are few (a run has a handful), so that the rounding up costs nothing worth counting.
 */

#include "util/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/io.h"

/* Most are small, and pages of these are locked: so room grows with what comes. */
enum { ROOM_FIRST = 64 * 1024 };

struct Secret {
        size_t size;
        size_t mapped;  /* with both guard pages */
        uint8_t *map;   /* owned */
        uint8_t *bytes; /* within map */
};

static int secret_allocate(Secret **ret, size_t size) {
        size_t page = (size_t) sysconf(_SC_PAGESIZE), inner;
        _cleanup_(secret_freep) Secret *s = NULL;
        void *map;

        if (size == 0 || size > SECRET_MAX)
                return -EINVAL;

        s = malloc(sizeof(*s));
        if (!s)
                return -ENOMEM;

        inner = (size + page - 1) / page * page;
        *s = (Secret) { .size = size, .mapped = inner + 2 * page };

        map = mmap(NULL, s->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED)
                return -errno;

        s->map = map;
        s->bytes = s->map + page;
        if (mprotect(s->bytes, inner, PROT_READ | PROT_WRITE) < 0 || mlock(s->bytes, inner) < 0 ||
            madvise(s->bytes, inner, MADV_DONTDUMP) < 0)
                return -errno;

        *ret = TAKE_PTR(s);
        return 0;
}

int secret_new(Secret **ret, const void *data, size_t size) {
        _cleanup_(secret_freep) Secret *s = NULL;
        int r;

        r = secret_allocate(&s, size);
        if (r < 0)
                return r;

        memcpy(s->bytes, data, size);
        *ret = TAKE_PTR(s);
        return 0;
}

int secret_new_random(Secret **ret, size_t size) {
        _cleanup_(secret_freep) Secret *s = NULL;
        size_t done = 0;
        int r;

        r = secret_allocate(&s, size);
        if (r < 0)
                return r;

        while (done < size) {
                ssize_t n = getrandom(s->bytes + done, size - done, 0);

                if (n < 0 && errno != EINTR)
                        return -errno;
                if (n > 0)
                        done += (size_t) n;
        }

        *ret = TAKE_PTR(s);
        return 0;
}

int secret_read_file(Secret **ret, int dir_fd, const char *path) {
        _cleanup_(secret_freep) Secret *s = NULL;
        _cleanup_fd_ int fd = -1;
        struct stat st;
        ssize_t n;
        int r;

        fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW);
        if (fd < 0)
                return -errno;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EBADF;
        if (st.st_size == 0)
                return -ENODATA;
        if (st.st_size > SECRET_MAX)
                return -EFBIG;

        r = secret_allocate(&s, (size_t) st.st_size);
        if (r < 0)
                return r;

        n = io_read_full(fd, s->bytes, s->size);
        if (n < 0)
                return (int) n;
        if ((size_t) n != s->size)
                return -EIO; /* it became shorter while we read */

        *ret = TAKE_PTR(s);
        return 0;
}

/* To that size, of which `used` bytes are kept. */
static int secret_grow(Secret **s, size_t used, size_t size) {
        _cleanup_(secret_freep) Secret *larger = NULL;
        int r;

        r = secret_allocate(&larger, size);
        if (r < 0)
                return r;
        memcpy(larger->bytes, (*s)->bytes, used);
        secret_free(*s);
        *s = TAKE_PTR(larger);
        return 0;
}

int secret_read_fd(Secret **ret, int fd) {
        _cleanup_(secret_freep) Secret *room = NULL;
        size_t used = 0;
        char more;
        ssize_t n;
        int r;

        r = secret_allocate(&room, ROOM_FIRST);
        if (r < 0)
                return r;

        for (;;) {
                n = io_read_full(fd, room->bytes + used, room->size - used);
                if (n < 0)
                        return (int) n;
                used += (size_t) n;
                if (used < room->size || room->size == SECRET_MAX)
                        break;
                r = secret_grow(&room, used, 4 * room->size);
                if (r < 0)
                        return r;
        }
        if (used == 0)
                return -ENODATA;
        if (used == SECRET_MAX && io_read_full(fd, &more, 1) != 0)
                return -EFBIG;
        return secret_new(ret, room->bytes, used);
}

Secret *secret_free(Secret *s) {
        if (!s)
                return NULL;

        if (s->map) {
                /* half-built ones may not be writable yet; they hold nothing either */
                if (mprotect(s->bytes, s->mapped - 2 * (size_t) (s->bytes - s->map), PROT_READ | PROT_WRITE) == 0)
                        explicit_bzero(s->bytes, s->size);
                (void) munmap(s->map, s->mapped);
        }
        free(s);
        return NULL;
}

SecretView secret_view(const Secret *s) {
        return (SecretView) { .bytes = (const SecretByte *) s->bytes, .size = s->size };
}

bool secret_equals(const Secret *s, const void *data, size_t size) {
        return size == s->size && CRYPTO_memcmp(s->bytes, data, size) == 0;
}

void secret_erase(void *data, size_t size) {
        if (!data)
                return;
        explicit_bzero(data, size);
        free(data);
}

int secret_protect_process(void) {
        const struct rlimit none = {};

        if (prctl(PR_SET_DUMPABLE, 0) < 0)
                return -errno;
        if (setrlimit(RLIMIT_CORE, &none) < 0)
                return -errno;
        if (mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) < 0) {
                if (errno != ENOMEM && errno != EPERM)
                        return -errno;
                return SECRET_E_SWAPPABLE;
        }

        return 0;
}
