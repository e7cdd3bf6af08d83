/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Sealing of small blobs on disk: AES-256-GCM under a key of 32 bytes.
 *
 *   "AHSEAL1\n", 12 bytes of nonce (random), ciphertext, 16 bytes of tag
 *
 * `name` is authenticated but not stored, so that a blob moved to another run's file does not open.
 */

#include "util/secret.h"

enum { SEAL_KEY_SIZE = 32 };

int seal_close(const Secret *key, const char *name, const void *data, size_t size, void **ret, size_t *ret_size);

/* -EBADMSG if it was not sealed under this key and name. The bytes are the caller's, for secret_erase(). */
int seal_open(const Secret *key, const char *name, const void *data, size_t size, void **ret, size_t *ret_size);
