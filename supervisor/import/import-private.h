/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the steps of an import share. */

#include "import/git.h"
#include "import/import.h"
#include "util/cleanup.h"

/* Outcome of a step, next to 0 and negative errno: import->result->reason says why. */
#define IMPORT_REJECTED 1

#define IMPORT_BASE_REF "refs/anchorhold/base"

typedef struct Import {
        const ImportRequest *rq; /* borrowed */
        ImportResult *result;    /* borrowed */
        Git git;
        char *repository;        /* owned */
        BundleHeader header;     /* of the result */
} Import;

/* Sets the reason and returns IMPORT_REJECTED. */
int import_reject(Import *im, const char *format, ...) __attribute__((__format__(__printf__, 2, 3)));

/* What a call of git that must succeed returned: 0, a rejection that names `what`, or negative errno. */
int import_git_failed(Import *im, int r, const char *what);

/* An unnamed file for what one git writes and another reads. Negative errno. */
int import_temporary(Import *im);

/* A sum of what git writes: lines that are a number each. */
typedef struct ImportAmount {
        char line[128];
        size_t used;
        uint64_t n, bytes, max_n, max_bytes;
} ImportAmount;

/* A GitOutput; userdata is an ImportAmount. -ENOENT: a line is no number ("OID missing"); -EOVERFLOW: there are too many; -E2BIG: the sum is too large. */
int import_amount_read(const char *data, size_t size, void *userdata);

/* import-walk.c: what the new commits changed, path by path. */
int import_walk_changes(Import *im);
