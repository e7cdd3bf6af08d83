/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Private keys of GitHub Apps: what a host has as the value of a credential of that kind, and what is made with one. Pure. */

#include <stdint.h>

#include "util/secret.h"

enum {
        /* For how long a proof is good, and how far its beginning is dated back, for clocks that differ: it is used at once, and
         * whoever has one can do what the app can. GitHub takes up to ten minutes. */
        APP_PROOF_S = 120,
        APP_PROOF_BACK_S = 60,
};

/* Does this begin like a key in PEM (RFC 7468)? Then it is no token, whatever policy says. */
bool app_key_is_pem(const Secret *value);

/* What is wrong with it as the key of an app, or NULL: one RSA key of 2048 to 8192 bits, not encrypted. */
const char *app_key_check(const Secret *value);

/* A JSON Web Token (RFC 7519, RS256 of RFC 7518, 3.3) by which the app proves itself: iss (visible ASCII, no quotes), iat, exp. -EINVAL: it is no
 * such key. */
int app_key_sign(const Secret *key, const char *iss, uint64_t now_usec, Secret **ret);

/* A key of SEAL_KEY_SIZE bytes that only the holder of this value can make: another one for each purpose. */
int app_key_derive(const Secret *key, const char *purpose, Secret **ret);
