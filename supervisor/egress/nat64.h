/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Behind which IPv6 prefixes a network translates to IPv4, and what is behind them (RFC 6052, RFC 7050). Pure. */

#include "egress/address.h"

/* The name that exists for this question alone (RFC 7050, 3): its only addresses are IPv4, so that an IPv6 address is a translator's. */
#define NAT64_NAME "ipv4only.arpa"

enum {
        NAT64_PREFIXES_MAX = 16,
};

/* Is this a length that RFC 6052, 2.2 has: 32, 40, 48, 56, 64 or 96 bits? */
bool nat64_is_length(unsigned prefix);

/* The IPv4 address inside an address with such a prefix. False if `a` is not IPv6, or not below it. */
bool nat64_extract(const Address *a, const AddressRange *prefix, Address *ret);

/* The prefixes that the addresses of NAT64_NAME give away (RFC 7050, 3); how many, or NAT64_PREFIXES_MAX + 1 if there are more than are returned. Where
 * an address can be read in two ways, both count. */
size_t nat64_find_prefixes(const Address *addresses, size_t n, AddressRange ret[static NAT64_PREFIXES_MAX]);
