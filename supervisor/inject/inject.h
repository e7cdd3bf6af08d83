/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* anchor-inject: ends a run's inspected TLS and puts its credentials in. */

#include <systemd/sd-event.h>

#include "util/cleanup.h"

typedef struct Inject Inject;

typedef struct InjectPaths {
        const char *bundle; /* file from PID 1, see secret/bundle-api.h */
        const char *upstream_ca_dir;
        const char *egress, *run_api, *secret_api; /* sockets */
} InjectPaths;

/* Takes the socket that systemd passed. run must be the bundle's. */
int inject_new(Inject **ret, sd_event *event, const char *run, const InjectPaths *paths);
Inject *inject_free(Inject *i);
DEFINE_CLEANUP(Inject *, inject_free)
