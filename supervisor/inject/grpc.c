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

size_t grpc_next(GrpcReader *r, const uint8_t *data, size_t size, bool *ret_whole) {
        size_t at = 0, n;

        while (at < size && r->n_head < sizeof(r->head)) {
                r->head[r->n_head++] = data[at++];
                if (r->n_head == sizeof(r->head)) {
                        r->left = (uint32_t) r->head[1] << 24 | (uint32_t) r->head[2] << 16 | (uint32_t) r->head[3] << 8 | r->head[4];
                        r->compressed = r->compressed || r->head[0] & 1;
                }
        }

        n = size - at < r->left ? size - at : r->left;
        r->left -= (uint32_t) n;
        *ret_whole = r->n_head == sizeof(r->head) && r->left == 0;
        if (*ret_whole)
                r->n_head = 0;
        return at + n;
}
