/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Certificates that a run's guest accepts, signed by the run's CA, one for each inspected name. */

#include <openssl/types.h>

#include "util/cleanup.h"
#include "util/secret.h"

typedef struct LeafMaker LeafMaker;

/* -EBADMSG if certificate and key are not what secretd makes. */
int leaf_maker_new(LeafMaker **ret, const char *ca_pem, const Secret *ca_key);
LeafMaker *leaf_maker_free(LeafMaker *m);
DEFINE_CLEANUP(LeafMaker *, leaf_maker_free)

/* Borrowed, valid until the next call. -EACCES if the CA may not sign for that name. */
int leaf_maker_get(LeafMaker *m, const char *name, X509 **ret_cert, EVP_PKEY **ret_key);
