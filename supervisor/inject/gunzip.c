/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/gunzip.h"

#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { PIECE = 16 * 1024, GZIP_ONLY = 16 + MAX_WBITS };

struct Gunzip {
        z_stream z;
        bool inside; /* of a member */
        int failure;
        uint64_t in, out;
};

/* zlib keeps the last 32 KiB of the text, which may hold a secret. */
static void *zeroed_alloc(void *opaque, unsigned n, unsigned size) {
        return calloc(n, size);
}

static void zeroing_free(void *opaque, void *p) {
        if (p)
                explicit_bzero(p, malloc_usable_size(p));
        free(p);
}

int gunzip_new(Gunzip **ret) {
        Gunzip *g = calloc(1, sizeof(*g));

        if (!g)
                return -ENOMEM;
        g->z.zalloc = zeroed_alloc;
        g->z.zfree = zeroing_free;
        if (inflateInit2(&g->z, GZIP_ONLY) != Z_OK) {
                free(g);
                return -ENOMEM;
        }
        *ret = g;
        return 0;
}

Gunzip *gunzip_free(Gunzip *g) {
        if (!g)
                return NULL;
        (void) inflateEnd(&g->z);
        free(g);
        return NULL;
}

/* One call of inflate(): at most a piece. Whether there may be more without more input: *ret_again. */
static int inflate_piece(Gunzip *g, Buffer *out, bool *ret_again) {
        uint8_t *p = buffer_reserve(out, PIECE);
        size_t n;
        int rc;

        if (!p)
                return -ENOMEM;
        if (!g->inside) { /* what follows a member can only be another one (RFC 1952, 2.2) */
                if (inflateReset(&g->z) != Z_OK)
                        return -EBADMSG;
                g->inside = true;
        }

        g->z.next_out = p;
        g->z.avail_out = PIECE;
        rc = inflate(&g->z, Z_SYNC_FLUSH);
        n = PIECE - g->z.avail_out;
        buffer_commit(out, n);
        g->out += n;
        if (rc == Z_STREAM_END)
                g->inside = false;
        else if (rc == Z_MEM_ERROR)
                return -ENOMEM;
        else if (rc != Z_OK && rc != Z_BUF_ERROR) /* the latter: it needs more input */
                return -EBADMSG;

        *ret_again = g->z.avail_in > 0 || (g->inside && g->z.avail_out == 0);
        return 0;
}

int gunzip_feed(Gunzip *g, const void *data, size_t size, Buffer *out) {
        bool again = size > 0;

        if (g->failure < 0)
                return g->failure;
        g->in += size;
        g->z.next_in = (Bytef *) data; /* zlib does not write to it */
        g->z.avail_in = (uInt) size;
        while (again && g->failure == 0) {
                g->failure = inflate_piece(g, out, &again);
                if (g->failure == 0 && g->out > GUNZIP_FREE && g->out - GUNZIP_FREE > g->in * GUNZIP_RATIO)
                        g->failure = -EFBIG;
        }
        return g->failure;
}

int gunzip_finish(const Gunzip *g) {
        if (g->failure < 0)
                return g->failure;
        return g->inside ? -EBADMSG : 0;
}
