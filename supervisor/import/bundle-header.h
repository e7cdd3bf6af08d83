/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The head of a git bundle (gitformat-bundle(5)) and of the pack behind it. Pure. */

#include <stddef.h>
#include <stdint.h>

#include "util/text.h"

#define BUNDLE_HEADER_MAX (64 * 1024)
#define BUNDLE_REFS_MAX 8       /* kept; more are counted */
#define BUNDLE_REF_NAME_MAX 255
#define BUNDLE_OID_SIZE 65      /* 64 hexadecimal digits and the zero byte */

typedef struct BundleRef {
        char oid[BUNDLE_OID_SIZE];
        char name[BUNDLE_REF_NAME_MAX + 1];
} BundleRef;

typedef struct BundleHeader {
        size_t oid_length;        /* 40, or 64 for SHA-256 */
        BundleRef refs[BUNDLE_REFS_MAX];
        size_t n_refs;            /* all of them */
        size_t n_prerequisites;
        size_t pack_offset;       /* where "PACK" begins */
        uint32_t n_objects;       /* as the pack claims */
} BundleHeader;

/* 0, or -EBADMSG with the reason, a static string. `data` are the file's first bytes, up to
 * BUNDLE_HEADER_MAX and the 12 of the pack's head. */
int bundle_header_parse(const void *data, size_t size, BundleHeader *ret, const char **ret_reason);
