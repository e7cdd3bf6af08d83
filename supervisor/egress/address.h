/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* IP addresses as egressd judges them: which may be connected to on a guest's behalf, and why the others may not. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
        ADDRESS_TEXT_SIZE = 46,
};

/* AF_INET uses the first four bytes; the others are zero. Network byte order. */
typedef struct Address {
        int family;
        uint8_t bytes[16];
} Address;

typedef struct AddressRange {
        Address address;
        unsigned prefix;
} AddressRange;

typedef enum AddressVerdict {
        ADDRESS_GLOBAL,     /* globally reachable, as the registries say */
        ADDRESS_ADMITTED,   /* not, but in a network that the operator named */
        ADDRESS_NOT_GLOBAL,
        ADDRESS_METADATA,   /* a cloud's metadata or control service, in any spelling */
        ADDRESS_OWN,        /* this host's own */
} AddressVerdict;

/* Numeric forms only; no scope, no port, no octal or short IPv4. -EINVAL otherwise. */
int address_parse(const char *text, Address *ret);
int address_parse_range(const char *text, AddressRange *ret); /* "203.0.113.0/24"; bits beyond the prefix must be zero */
const char *address_format(const Address *a, char ret[static ADDRESS_TEXT_SIZE]);

Address address_from_ipv4(uint32_t host_order);
bool address_equal(const Address *a, const Address *b);
bool address_in_range(const Address *a, const AddressRange *range);

/* What the verdict depends on besides the address. All borrowed. */
typedef struct AddressHost {
        const Address *own;           /* this host's addresses */
        size_t n_own;
        const AddressRange *networks; /* what the operator admits in host.json */
        size_t n_networks;
        const AddressRange *nat64;    /* prefixes of its own behind which this network translates to IPv4 (nat64.h) */
        size_t n_nat64;
} AddressHost;

/* May this address be connected to? Metadata and own addresses are never admitted; neither are loopback, link-local, unspecified, multicast and synthetic
 * ones. An IPv6 address that a translator turns into IPv4 is no better than that one. */
AddressVerdict address_judge(const Address *a, const AddressHost *host);

static inline bool address_verdict_is_allowed(AddressVerdict v) {
        return v == ADDRESS_GLOBAL || v == ADDRESS_ADMITTED;
}

/* "metadata", "own-address" or "not-global": for those that are not allowed. */
const char *address_verdict_to_reason(AddressVerdict v);
