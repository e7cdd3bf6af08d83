/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A run's secrets as bytes: what inject gets over PID 1, and (without the credentials' values) what
 * secretd seals on disk.
 *
 *   {"run","item","workflow","stage","repository":text|null,"expires_usec","ca_pem","ca_key":[offset,length]|null,
 *    "credentials":[{"name","sentinel","rule","provider","minted":{"expires_usec"}|null,"secret":[offset,length]|null}]}
 *   newline
 *   the secrets' bytes; offsets count from the byte after the newline
 *
 * The object never holds a secret, so that the JSON library has no copy that it would not zero.
 */

#include "secret/run-secrets-api.h"

/* As a credential of systemd's: it gives a unit no more than a mebibyte, names included. */
enum { BUNDLE_MAX = SECRET_MAX - 4096 };

typedef enum BundleFlags {
        BUNDLE_WITH_SECRETS = 1 << 0, /* the credentials' values; the CA's key is always in it */
} BundleFlags;

/* The bytes are the caller's, to be given to secret_erase(). */
int bundle_format(const RunSecrets *s, BundleFlags flags, char **ret, size_t *ret_size);

/* -EBADMSG for anything that bundle_format() would not have written. */
int bundle_parse(RunSecrets **ret, const void *data, size_t size);
