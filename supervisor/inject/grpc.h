/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Where the messages in a body of gRPC end: each has a byte of flags and a length of four before it. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct GrpcReader {
        uint8_t head[5];
        unsigned n_head;
        uint32_t left;   /* of the message whose head was read */
        bool compressed; /* any message so far */
} GrpcReader;

/* By its content-type: gRPC, gRPC-Web in binary, or a stream of Connect, which frame alike. */
bool grpc_is_type(const char *content_type);

/* How many of the bytes belong together: up to the end of a message, then *ret_whole, or all of them. size is not 0. */
size_t grpc_next(GrpcReader *r, const uint8_t *data, size_t size, bool *ret_whole);
