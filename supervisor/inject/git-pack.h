/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What the commits at the beginning of a pack (gitformat-pack(5)) prove about ancestry. Pure.
 *
 * An object's name is the hash of what is in it, and a commit has the names of its parents in it. So a chain of commits that were read here,
 * from one name to another, is proof that the one descends from the other, whoever made the pack and whatever else is in it. What is
 * not in the pack proves nothing.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/cleanup.h"

enum {
        GIT_NAME_MAX = 32,                  /* bytes of a SHA-256; 20 of a SHA-1 */
        GIT_PACK_COMMITS_MAX = 8192,
        GIT_PACK_OBJECTS_MAX = 32768,       /* of any kind, before the first tree or blob */
        GIT_PACK_KEPT_MAX = 8 * 1024 * 1024, /* of commits, unpacked */
        GIT_COMMIT_MAX = 1024 * 1024,        /* one */
        GIT_PACK_UNPACKED_MAX = 64 * 1024 * 1024, /* of everything that is looked at */
};

typedef struct GitPack GitPack;

/* name_size: 20 or 32. */
int git_pack_new(GitPack **ret, size_t name_size);
GitPack *git_pack_free(GitPack *p);
DEFINE_CLEANUP(GitPack *, git_pack_free)

/* Reads on. True: nothing more is to be learned from it, since it went on to other objects than commits and tags (git writes these first), is
 * over, is no pack, or a bound is reached. */
bool git_pack_feed(GitPack *p, const void *data, size_t size);

size_t git_pack_commits(const GitPack *p);

/* Is there a chain from one to the other, through commits that were read? Names of name_size bytes. One that is its own
 * ancestor without a step is none. */
bool git_pack_descends(GitPack *p, const uint8_t *name, const uint8_t *ancestor);
