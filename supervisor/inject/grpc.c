/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/grpc.h"

#include <string.h>
#include <strings.h>

#include "util/cleanup.h"

bool grpc_is_type(const char *content_type) {
        static const char *const types[] = { "application/grpc", "application/grpc-web", "application/connect" };
        size_t n = strcspn(content_type, "+; \t");

        for (size_t i = 0; i < ELEMENTSOF(types); i++)
                if (strlen(types[i]) == n && strncasecmp(content_type, types[i], n) == 0)
                        return true;
        return false;
}

/* gRPC: 1, compressed. gRPC-Web: 0x80, trailers. Connect: 2, the end. */
static bool are_flags(uint8_t flags) {
        return (flags & 0x7c) == 0 && (flags & 0x82) != 0x82;
}

static size_t smaller(size_t a, size_t b) {
        return a < b ? a : b;
}

size_t grpc_next(GrpcReader *r, const uint8_t *data, size_t size, bool *ret_whole) {
        size_t at = 0, n, kept;

        if (r->whole)
                r->n_start = 0;
        r->whole = *ret_whole = false;
        r->broken = r->broken || (r->n_start == 0 && !are_flags(*data));
        if (r->broken)
                return size;

        while (at < size && r->n_start < GRPC_HEAD) {
                r->start[r->n_start++] = data[at++];
                if (r->n_start == GRPC_HEAD) {
                        r->left = (uint32_t) r->start[1] << 24 | (uint32_t) r->start[2] << 16 | (uint32_t) r->start[3] << 8 | r->start[4];
                        r->compressed = r->compressed || r->start[0] & 1;
                }
        }

        n = smaller(size - at, r->n_start < GRPC_HEAD ? 0 : r->left);
        kept = smaller(n, GRPC_START - r->n_start);
        memcpy(r->start + r->n_start, data + at, kept);
        r->n_start += kept;
        r->left -= (uint32_t) n;
        r->whole = *ret_whole = r->n_start >= GRPC_HEAD && r->left == 0;
        return at + n;
}
