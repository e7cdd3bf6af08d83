/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* In one piece or byte by byte: the same heads end at the same places. */

#include <stdlib.h>
#include <string.h>

#include "proxy/http-head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct Seen {
        HttpOutcome last;
        size_t sum, n_heads;
} Seen;

/* What an origin would get of an absolute-form request is one whole head, of the same method and host. */
static void check_rewritten(const char *head, size_t size, const HttpRequest *q) {
        _cleanup_(http_follower_freep) HttpFollower *f = NULL;
        _cleanup_free_ char *out = NULL;
        const HttpRequest *again;
        size_t n, taken;

        out = http_rewrite_head(head, size, q, "/path", &n);
        if (!out || http_follower_new(&f) < 0)
                abort();
        if (http_follower_feed(f, out, n, &taken) != HTTP_HEAD_END || taken != n)
                abort();
        again = http_follower_request(f);
        if (strcmp(again->method, q->method) != 0 || strcmp(again->target, "/path") != 0 || again->upgrade ||
            strcmp(again->host ? again->host : "-", q->host ? q->host : "-") != 0)
                abort();
}

static Seen follow(const char *data, size_t size, size_t piece) {
        _cleanup_(http_follower_freep) HttpFollower *f = NULL;
        Seen seen = {};
        unsigned idle = 0;

        if (http_follower_new(&f) < 0)
                abort();
        for (size_t at = 0; at < size;) {
                size_t m = size - at < piece ? size - at : piece, taken;
                HttpOutcome o = http_follower_feed(f, data + at, m, &taken);

                if (taken > m || (taken == 0 && ++idle > size + 8))
                        abort();
                at += taken;
                seen.last = o;
                if (o == HTTP_REFUSED)
                        return seen;
                if (o == HTTP_HEAD_END) {
                        const HttpRequest *q = http_follower_request(f);

                        if (seen.n_heads == 0 && piece == size && !q->upgrade)
                                check_rewritten(data, at, q);
                        seen.n_heads++;
                        seen.sum += at + strlen(q->method) + strlen(q->target) + (q->host ? strlen(q->host) : 0);
                }
        }
        return seen;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        Seen a, b;

        if (size > 2 * HTTP_HEAD_MAX)
                return 0;

        a = follow((const char *) data, size, size ? size : 1);
        b = follow((const char *) data, size, 1);
        if (a.n_heads > b.n_heads || (a.last != HTTP_REFUSED && (a.n_heads != b.n_heads || a.sum != b.sum)))
                abort();
        return 0;
}
