/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Where the messages in a body of gRPC end: each has a byte of flags and a length of four before it. A body is no such one from the first byte of flags on
 * that none of the protocols has: then it is all one piece. No visible character is one of those, so that what a credential's value does to this, should it stand there, does
 * not depend on the value. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
        GRPC_HEAD = 5,
        GRPC_START = GRPC_HEAD + 64,
};

typedef struct GrpcReader {
        uint8_t start[GRPC_START]; /* of the message at hand, its head included, as far as it is there and fits; until the next one begins */
        size_t n_start;
        uint32_t left;   /* of the message whose head was read */
        bool whole;      /* it is */
        bool compressed; /* any message so far */
        bool broken;     /* it is no body of messages */
} GrpcReader;

/* By its content-type: gRPC, gRPC-Web in binary, or a stream of Connect, which frame alike. */
bool grpc_is_type(const char *content_type);

/* How many of the bytes belong together: up to the end of a message, then *ret_whole, or all of them. size is not 0. */
size_t grpc_next(GrpcReader *r, const uint8_t *data, size_t size, bool *ret_whole);
