/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Strict mode: only listed units of the host may send anything. See strict.c. For root, and for the warden alone. */

#include <systemd/sd-event.h>

#include "util/cleanup.h"
#include "util/json.h"

typedef struct Strict Strict;

int strict_new(Strict **ret, sd_event *event);
Strict *strict_free(Strict *s);
DEFINE_CLEANUP(Strict *, strict_free)

/*
 * Reads host.json and makes the maps say the same. A host.json that cannot be used changes nothing, and strict_to_json() says so. If it is
 * not known at all what this host wants, or the maps cannot be written: negative errno, and the reason in *ret_reason (the caller's).
 */
int strict_settle(Strict *s, char **ret_reason);

/* {"on", "problem", "units": the names listed, "present": how many cgroups these are, "dropped": units whose packets were}; NULL without memory. */
json_t *strict_to_json(const Strict *s);
