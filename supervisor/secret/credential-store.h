/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The credentials of this host, as PID 1 decrypted them for secretd. */

#include "util/cleanup.h"
#include "util/secret.h"

typedef struct CredentialStore CredentialStore;

enum { CREDENTIAL_MAX_SIZE = 8192 }; /* of a value */

/* Where the host's encrypted credentials are, each under its name, and what is before that name inside. */
#define CREDENTIAL_FOLDER "/var/lib/anchorhold/credentials"
#define CREDENTIAL_PREFIX "cred_"

/* Reads every `cred_NAME` of the folder (NULL: an empty store). A file that is no credential (its name,
 * size or bytes) is logged
 * and left out. */
int credential_store_load(CredentialStore **ret, const char *folder);
CredentialStore *credential_store_free(CredentialStore *s);
DEFINE_CLEANUP(CredentialStore *, credential_store_free)

size_t credential_store_size(const CredentialStore *s);
const char *credential_store_name(const CredentialStore *s, size_t i);

/* Borrowed, or NULL. */
const Secret *credential_store_find(const CredentialStore *s, const char *name);

/* Drops one line end behind a value, which is an editor's. *ret_wrong: why what is left can be no credential's value, or NULL. */
int credential_value_take(Secret **value, const char **ret_wrong);
