/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The only way out of a run's namespace: listeners inside it, origins outside. See proxy.c. */

#include <systemd/sd-event.h>

#include "util/cleanup.h"

typedef struct Proxy Proxy;

/* Takes the descriptors that systemd passed. `run` is this unit's run. */
int proxy_new(Proxy **ret, sd_event *event, const char *run);
Proxy *proxy_free(Proxy *p);
DEFINE_CLEANUP(Proxy *, proxy_free)
