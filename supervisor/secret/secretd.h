/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* anchor-secretd: everything that hands out secrets, and to whom. */

#include <systemd/sd-event.h>

#include "util/cleanup.h"

typedef struct Secretd Secretd;

typedef struct SecretdPaths {
        const char *credentials; /* NULL: none */
        const char *state, *key;
        const char *policy_root; /* "" on a host */
        const char *upstream_ca; /* certificates that every guest trusts; NULL: none */
} SecretdPaths;

/* Takes the sockets that systemd passed: "secret" and "secret-api". */
int secretd_new(Secretd **ret, sd_event *event, const SecretdPaths *paths);
Secretd *secretd_free(Secretd *d);
DEFINE_CLEANUP(Secretd *, secretd_free)
