/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* This host's own addresses, always as they are now: read again whenever the kernel says that one came or went. */

#include "egress/address.h"
#include "util/cleanup.h"

typedef struct HostAddresses HostAddresses;

int host_addresses_new(HostAddresses **ret);
HostAddresses *host_addresses_free(HostAddresses *h);
DEFINE_CLEANUP(HostAddresses *, host_addresses_free)

/* Borrowed until the next call. Negative errno if they cannot be read: then nothing may be judged. */
int host_addresses_get(HostAddresses *h, const Address **ret, size_t *ret_n);

/* Has the host an IPv6 address that could reach anything? */
bool host_addresses_has_ipv6(HostAddresses *h);
