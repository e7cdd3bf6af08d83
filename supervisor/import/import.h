/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Checks the bundle that came out of a work run's guest. No checkout, no network, no configuration. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "import/bundle-header.h"

typedef struct ImportRequest {
        int seed_fd, result_fd;    /* borrowed; regular files */
        const char *base;          /* full object name; must be in the seed */
        const char *ref;           /* the one reference that the result must have */
        uint64_t bundle_bytes;     /* most that the result may have */
        uint64_t diff_bytes;       /* the diff text is cut off after that */
        uint64_t unpacked_bytes;   /* most that its objects may have, unpacked and summed up */
        uint64_t max_objects, max_commits;
        uint64_t timeout_usec;     /* for everything */
        const char *work_dir;      /* where the repository is made and removed again */
} ImportRequest;

/* The limits that are nobody's to choose yet, for a bundle of that size: unpacked four times as much, and 256 MiB in any case. */
void import_default_limits(ImportRequest *rq);

typedef struct ImportResult {
        bool ok;
        char *reason;              /* owned; why not, printable */
        char commit[BUNDLE_OID_SIZE];
        json_t *facts;             /* owned */
        int bundle_fd, diff_fd;    /* owned; at offset 0; -1 unless ok */
} ImportResult;

#define IMPORT_RESULT_NULL ((ImportResult) { .bundle_fd = -1, .diff_fd = -1 })
void import_result_done(ImportResult *r);

/* 0 with a verdict in ret, or negative errno if none could be reached (our own trouble: no disk, no memory). */
int import_check(const ImportRequest *rq, ImportResult *ret);
