/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The body of a POST to git-upload-pack: what is asked for, of both versions of the protocol (gitprotocol-pack(5), gitprotocol-v2(5)). Everything is
 * read to see that it is that and nothing else; which objects it wants is the origin's to judge. Pure.
 */

#include <stdbool.h>
#include <stdint.h>

#include "inject/buffer.h"
#include "util/cleanup.h"

typedef struct GitFetch {
        char command[16]; /* of version 2: "ls-refs", "fetch", …; else "fetch", or "" if there is nothing in it */
        unsigned version; /* 0: versions 0 and 1, which ask alike */
        uint64_t n_wants, n_haves;
        bool shallow, partial; /* asks for less than everything: of the history; of the objects */
        const char *error;     /* static; why it cannot be read */

        /* the reader's own */
        Buffer line;
        bool in_arguments, failed;
} GitFetch;

void git_fetch_done(GitFetch *f);

/* Reads on; last: nothing more will come. -EBADMSG: it is no such request. */
int git_fetch_feed(GitFetch *f, const void *data, size_t size, bool last);
