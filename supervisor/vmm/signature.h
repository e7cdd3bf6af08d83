/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Whether bytes were signed by somebody this host trusts. OpenSSL's errors stay in signature.c. */

#include <stddef.h>

enum { SIGNATURE_SIZE = 64 }; /* Ed25519, RFC 8032 */

/* Where public keys are (PEM, Ed25519, files named *.pem), the operator's folder first: a file there hides the
 * vendor's of the same name, and an empty one takes that key out of use. */
#define SIGNATURE_KEYS "/etc/anchorhold/keys:/usr/lib/anchorhold/keys"

/* `keys`: folders as in SIGNATURE_KEYS; a missing folder has no keys. 0 if one of their keys made this signature of data;
 * -EKEYREJECTED: none did; other negative errno: could not be found out, which is no yes. A file that holds no such key
 * is logged and passed over. */
int signature_check(const char *keys, const void *data, size_t size, const void *signature, size_t signature_size);
