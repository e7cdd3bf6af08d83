/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Decodes a gzip stream (RFC 1952, also of several members) as it comes. Pure: bytes in, bytes out. */

#include <stddef.h>
#include <stdint.h>

#include "inject/buffer.h"
#include "util/cleanup.h"

enum {
        GUNZIP_FREE = 1024 * 1024, /* so much may come of however little */
        GUNZIP_RATIO = 200,        /* beyond that, so many bytes of one; text hardly ever shrinks to a hundredth */
};

typedef struct Gunzip Gunzip;

int gunzip_new(Gunzip **ret);
Gunzip *gunzip_free(Gunzip *g);
DEFINE_CLEANUP(Gunzip *, gunzip_free)

/* Appends what can be said by now. -EBADMSG: that is no gzip; -EFBIG: it swells beyond all measure; -ENOMEM. Nothing more is decoded
 * after a failure. */
int gunzip_feed(Gunzip *g, const void *data, size_t size, Buffer *out);

/* The stream is over: -EBADMSG if that is in the middle of a member. No byte at all is no member. */
int gunzip_finish(const Gunzip *g);
