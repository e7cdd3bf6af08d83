/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The program `uplink` at the devices of this process's network namespace: everyone but loopback. For root. */

#include <stddef.h>

#include "util/cleanup.h"

typedef struct Uplinks Uplinks; /* the devices that have been seen */

int uplinks_new(Uplinks **ret);
Uplinks *uplinks_free(Uplinks *u); /* leaves the programs where they are */
DEFINE_CLEANUP(Uplinks *, uplinks_free)

/*
 * Attaches the pinned program, before any other, to each device that was not seen yet and on which it is not in force, and pins
 * the link in FENCE_LINKS_DIR, so that it stays when this process goes. A device that was seen and has lost it is left so:
 * uplink_check() tells. One on which this failed is tried again the next time. Pins of devices that are no more are removed. ret_attached: how many were attached. On failure *ret_reason
 * (the caller's) says what failed first; the other devices have been tried all the same.
 */
int uplinks_attach(Uplinks *u, size_t *ret_attached, char **ret_reason);

/* Is it in force, and asked first, on each device there is? 0, -ENOTRECOVERABLE if not, other negative errno; *ret_reason as above. */
int uplink_check(char **ret_reason);
