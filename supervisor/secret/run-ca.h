/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The certification authority of one run: trusted by that run's guest alone, and able to sign for the inspected names alone. */

#include <stddef.h>
#include <stdint.h>

#include "util/secret.h"

/*
 * A self-signed ECDSA P-256 certificate whose critical constraints admit the given names (exact, or
 * "*.example.org"), no IP address, no further CA, and server authentication only. Times are
 * CLOCK_REALTIME. The PEM text is the caller's; the key is DER.
 */
int run_ca_make(const char *run, const char *const *names, size_t n_names,
                uint64_t not_before_usec, uint64_t not_after_usec, char **ret_cert_pem, Secret **ret_key);
