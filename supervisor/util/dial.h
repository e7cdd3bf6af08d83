/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* One TCP connection to the first of several addresses that answers, tried as RFC 8305, section 5, says: in their order, the
 * next one when the last has failed or after a quarter of a second. */

#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"

enum {
        DIAL_ADDRESSES_MAX = 16,          /* of a longer list the first ones are tried */
        DIAL_STAGGER_USEC = 250 * 1000,
        DIAL_TIMEOUT_USEC = 10 * 1000 * 1000, /* for all of them */
};

typedef struct Dial Dial;

/* Called once, from the loop: a connected non-blocking descriptor, the callee's, or the negative errno of the last failure (-ETIMEDOUT
 * if time was up first). `failures` says what went wrong at which address, for a log: "", or "ADDRESS: reason; …". It may free the dial. */
typedef void (*DialDone)(int fd, const char *failures, void *userdata);

/* Addresses are IPv4 or IPv6 in text form and are copied. Nothing is tried before the loop runs. */
int dial_new(Dial **ret, sd_event *event, const char *const *addresses, size_t n_addresses, uint16_t port, DialDone done, void *userdata);
/* Closes what was not given away; `done` is not called any more. */
Dial *dial_free(Dial *d);
DEFINE_CLEANUP(Dial *, dial_free)
