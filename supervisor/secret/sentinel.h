/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Sentinels: what a guest holds in place of a credential. Random, worth nothing, in a shape that the tool accepts. */

#include <stddef.h>

/* Makes one of `length` characters that starts with prefix and goes on with characters of the named
 * alphabet. The text is the caller's. -EINVAL if the alphabet is unknown or fewer than 128 bits of it would
 * be random: a shape that is too tight to tell sentinels apart is a mistake in the policy file.
 *
 * checksum may be NULL, or "crc32-base62": the last six characters are the CRC-32 (as zlib has it) of what stands between prefix and
 * them, in base 62 (digits, capital and small letters), as in GitHub's tokens, which tools check before they use one. */
int sentinel_make(const char *prefix, const char *alphabet, size_t length, const char *checksum, char **ret);
