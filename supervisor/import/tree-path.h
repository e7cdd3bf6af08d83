/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What a path in a tree of git may be called. Pure. git's own fsck asks the same of every tree (hasDotgit and its
 * kin); this is the second answer, from other code. */

#include <stdbool.h>
#include <stddef.h>

#define TREE_PATH_MAX 4096
#define TREE_NAME_MAX 255

/* NULL, or why no checkout should ever see this path, a static string. */
const char *tree_path_check(const char *path, size_t size);

/* Is one of the path's components .gitmodules, in a form that some file system takes for it? */
bool tree_path_is_gitmodules(const char *path, size_t size);

/* May a symbolic link at `path` lead out of the tree, by way of other links as well, or into .git? Both with sizes. */
bool tree_link_leaves(const char *path, size_t path_size, const char *target, size_t target_size);
