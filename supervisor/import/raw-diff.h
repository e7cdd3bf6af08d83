/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Reader of `git diff-tree --raw -z --no-renames`, byte by byte as it comes. Pure. */

#include <stddef.h>
#include <stdint.h>

#include "import/bundle-header.h"
#include "import/tree-path.h"

typedef struct RawChange {
        unsigned old_mode, new_mode; /* octal in the text: 0100644, 0120000, 0160000, 0 for none */
        char oid[BUNDLE_OID_SIZE];   /* of what is there afterwards */
        char status;                 /* 'A', 'D', 'M', 'T', … */
        const char *path;            /* borrowed, not zero-terminated */
        size_t path_size;
} RawChange;

/* Negative ends the reading and is returned. */
typedef int (*RawChangeHandler)(const RawChange *change, void *userdata);

typedef struct RawDiff {
        RawChangeHandler handler;
        void *userdata; /* borrowed */
        RawChange change;
        int in_path;
        size_t used;
        char buffer[TREE_PATH_MAX + 64];
} RawDiff;

void raw_diff_init(RawDiff *d, RawChangeHandler handler, void *userdata);

/* -EBADMSG for text that git would not write; -ENAMETOOLONG for a path beyond TREE_PATH_MAX. */
int raw_diff_push(RawDiff *d, const char *data, size_t size);

/* -EBADMSG if the text ended in the middle of something. */
int raw_diff_end(const RawDiff *d);
