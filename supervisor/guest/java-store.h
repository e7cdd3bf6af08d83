/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The certificates of a bundle as the store that Java trusts by default. */

#include <stddef.h>
#include <stdint.h>

/* Every certificate between PEM's lines in `pem`, as a key store; what lies outside of them, or is no Base64, is left out. *ret is the caller's. */
int java_store_make(const char *pem, size_t size, uint64_t now_ms, uint8_t **ret, size_t *ret_size);
