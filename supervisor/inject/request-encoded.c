/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A body with a place that came in gzip (RFC 9110, 8.4.1.3): it is judged as what it stands for, and encoded anew if that changes. If it does
 * not, it leaves as it came. Other codings cannot be read here, and are refused (body-place.c).
 */

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "inject/request.h"

/* Of all requests of a run together: a place is for logins, and an agent has no hundreds of them under way. */
enum { HELD_ALL_MAX = 16 * 1024 * 1024 };

/* zlib keeps the last 32 KiB of the text, which holds a secret. */
static void *zeroed_alloc(void *opaque, unsigned n, unsigned size) {
        return calloc(n, size);
}

static void zeroing_free(void *opaque, void *p) {
        if (p)
                explicit_bzero(p, malloc_usable_size(p));
        free(p);
}

/* One member, without a name or a time. */
static int encode(const void *data, size_t size, Buffer *out) {
        z_stream z = { .zalloc = zeroed_alloc, .zfree = zeroing_free, .next_in = (Bytef *) data, .avail_in = (uInt) size };
        uint8_t *p;
        size_t n;
        int rc;

        if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
                return -ENOMEM;
        n = deflateBound(&z, (uLong) size);
        p = buffer_reserve(out, n);
        if (!p) {
                (void) deflateEnd(&z);
                return -ENOMEM;
        }
        z.next_out = p;
        z.avail_out = (uInt) n;
        rc = deflate(&z, Z_FINISH);
        buffer_commit(out, n - z.avail_out);
        (void) deflateEnd(&z);
        return rc == Z_STREAM_END ? 0 : -EIO;
}

static int decode(const Buffer *encoded, Buffer *out) {
        _cleanup_(gunzip_freep) Gunzip *g = NULL;
        const uint8_t *p = buffer_data(encoded);
        size_t size = buffer_size(encoded);
        int r;

        r = gunzip_new(&g);
        while (r >= 0 && size > 0) {
                size_t n = size < 1024 ? size : 1024; /* so that a bomb is noticed before it has swollen far */

                r = gunzip_feed(g, p, n, out);
                if (r >= 0 && buffer_size(out) > BODY_HELD_MAX)
                        return -EFBIG;
                p += n;
                size -= n;
        }
        return r < 0 ? r : gunzip_finish(g);
}

static int deny(Request *q, unsigned status, const char *reason, const char *message, Refusal *ret) {
        request_deny(q, q->head, status, reason, "body", message, ret);
        return REQUEST_E_REFUSED;
}

int request_count_held(Request *q, size_t size, Refusal *ret) {
        if (q->context->held + size > HELD_ALL_MAX)
                return deny(q, 503, "busy", "Too many bodies with a place for a credential are under way in this run. Try again.", ret);
        q->context->held += size;
        q->n_held += size;
        return 0;
}

int request_open_held(Request *q, Refusal *ret) {
        Buffer decoded = {}, out = {};
        const char *coding;
        int r;

        if (buffer_size(&q->held) == 0 || http_head_find(q->head, "content-encoding", &coding) != 1 || !body_place_is_gzip(coding))
                return 0;
        r = decode(&q->held, &decoded);
        if (r < 0)
                buffer_done(&decoded);
        if (r == -EFBIG)
                return deny(q, 413, "body-too-large", "A body with a place for a credential may have 256 KiB, also when it is decoded.", ret);
        if (r == -EBADMSG)
                return deny(q, 422, "cannot-substitute", "The body has a place for a credential, but is not the gzip that its head says.", ret);
        if (r < 0)
                return r;

        q->held_encoded = q->held;
        q->held = decoded;
        r = request_count_held(q, buffer_size(&q->held), ret);
        if (r != 0)
                return r;
        r = request_feed_body(q, buffer_data(&q->held), buffer_size(&q->held), true, &out, ret);
        buffer_done(&out);
        return r;
}

int request_write_held(Request *q, Buffer *out) {
        Buffer plain = {};
        int r;

        if (buffer_size(&q->held_encoded) == 0)
                return body_place_write(&q->rewrite, buffer_data(&q->held), buffer_size(&q->held), out);
        if (q->rewrite.n_spans == 0)
                return buffer_append(out, buffer_data(&q->held_encoded), buffer_size(&q->held_encoded));
        r = body_place_write(&q->rewrite, buffer_data(&q->held), buffer_size(&q->held), &plain);
        if (r >= 0)
                r = encode(buffer_data(&plain), buffer_size(&plain), out);
        buffer_done(&plain);
        return r;
}
