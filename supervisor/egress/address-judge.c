/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * `special` is the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890 and its updates,
 * https://www.iana.org/assignments/iana-ipv4-special-registry and .../iana-ipv6-special-registry) as of
 * 2025-10-09, column "Globally Reachable". "N/A" (6to4, Teredo) counts as no. Added to it, because those
 * registries are not about them: multicast, IPv4-compatible IPv6, deprecated site-local, and, for IPv6, everything outside of
 * 2000::/3, the only unicast space that IANA has allocated (64:ff9b::/96 excepted, whose embedded address decides).
 *
 * The most specific entry that contains an address decides, so that an exception such as 192.0.0.9/32 wins over
 * its block. An address in none of them is reachable.
 *
 * An IPv6 address that carries an IPv4 address somewhere is no better than that one: whoever translates or unpacks it
 * ends up there. A translation prefix that a network chose for itself (RFC 6052, 2.2) looks like any other: egressd asks the network for
 * it (RFC 7050), see docs/egress.md.
 */

#include <string.h>

#include "egress/address.h"
#include "egress/nat64.h"
#include "util/cleanup.h"

enum { EMBEDDED_MAX = 5 };

typedef struct SpecialRange {
        AddressRange range;
        bool global;
} SpecialRange;

#define V4(a, b, c, d, bits) { { .family = AF_INET, .bytes = { a, b, c, d } }, bits }
#define HI(w) (uint8_t) ((w) >> 8)
#define LO(w) (uint8_t) (w)
#define V6(a, b, c, d, e, f, g, h, bits)                                                                    \
        { { .family = AF_INET6, .bytes = { HI(a), LO(a), HI(b), LO(b), HI(c), LO(c), HI(d), LO(d),            \
                                           HI(e), LO(e), HI(f), LO(f), HI(g), LO(g), HI(h), LO(h) } }, bits }

static const SpecialRange special[] = {
        /* IPv4 */
        { V4(0, 0, 0, 0, 8),                              false }, /* "this network", RFC 791 */
        { V4(10, 0, 0, 0, 8),                             false }, /* private use, RFC 1918 */
        { V4(100, 64, 0, 0, 10),                          false }, /* shared address space, RFC 6598 */
        { V4(127, 0, 0, 0, 8),                            false }, /* loopback, RFC 1122 */
        { V4(169, 254, 0, 0, 16),                         false }, /* link local, RFC 3927 */
        { V4(172, 16, 0, 0, 12),                          false }, /* private use, RFC 1918 */
        { V4(192, 0, 0, 0, 24),                           false }, /* IETF protocol assignments, RFC 6890 */
        { V4(192, 0, 0, 9, 32),                           true  }, /* port control protocol anycast, RFC 7723 */
        { V4(192, 0, 0, 10, 32),                          true  }, /* TURN anycast, RFC 8155 */
        { V4(192, 0, 2, 0, 24),                           false }, /* documentation, RFC 5737 */
        { V4(192, 31, 196, 0, 24),                        true  }, /* AS112-v4, RFC 7535 */
        { V4(192, 52, 193, 0, 24),                        true  }, /* AMT, RFC 7450 */
        { V4(192, 88, 99, 0, 24),                         false }, /* deprecated 6to4 relay anycast, RFC 7526 */
        { V4(192, 168, 0, 0, 16),                         false }, /* private use, RFC 1918 */
        { V4(192, 175, 48, 0, 24),                        true  }, /* direct delegation AS112, RFC 7534 */
        { V4(198, 18, 0, 0, 15),                          false }, /* benchmarking, RFC 2544; here: synthetic addresses */
        { V4(198, 51, 100, 0, 24),                        false }, /* documentation, RFC 5737 */
        { V4(203, 0, 113, 0, 24),                         false }, /* documentation, RFC 5737 */
        { V4(224, 0, 0, 0, 4),                            false }, /* multicast, RFC 5771 */
        { V4(240, 0, 0, 0, 4),                            false }, /* reserved, RFC 1112; limited broadcast, RFC 8190 */
        /* IPv6 */
        { V6(0, 0, 0, 0, 0, 0, 0, 0, 0),                  false }, /* not allocated for unicast … */
        { V6(0x2000, 0, 0, 0, 0, 0, 0, 0, 3),             true  }, /* … but this */
        { V6(0x64, 0xff9b, 0, 0, 0, 0, 0, 0, 96),         true  }, /* IPv4-IPv6 translation, RFC 6052: judged by what is embedded */
        { V6(0x64, 0xff9b, 1, 0, 0, 0, 0, 0, 48),         false }, /* IPv4-IPv6 translation, local use, RFC 8215 */
        { V6(0x2001, 0, 0, 0, 0, 0, 0, 0, 23),            false }, /* IETF protocol assignments, RFC 2928 */
        { V6(0x2001, 0, 0, 0, 0, 0, 0, 0, 32),            false }, /* Teredo, RFC 4380: N/A */
        { V6(0x2001, 1, 0, 0, 0, 0, 0, 1, 128),           true  }, /* port control protocol anycast, RFC 7723 */
        { V6(0x2001, 1, 0, 0, 0, 0, 0, 2, 128),           true  }, /* TURN anycast, RFC 8155 */
        { V6(0x2001, 1, 0, 0, 0, 0, 0, 3, 128),           true  }, /* DNS-SD service registration anycast, RFC 9665 */
        { V6(0x2001, 2, 0, 0, 0, 0, 0, 0, 48),            false }, /* benchmarking, RFC 5180 */
        { V6(0x2001, 3, 0, 0, 0, 0, 0, 0, 32),            true  }, /* AMT, RFC 7450 */
        { V6(0x2001, 4, 0x112, 0, 0, 0, 0, 0, 48),        true  }, /* AS112-v6, RFC 7535 */
        { V6(0x2001, 0x10, 0, 0, 0, 0, 0, 0, 28),         false }, /* deprecated ORCHID, RFC 4843 */
        { V6(0x2001, 0x20, 0, 0, 0, 0, 0, 0, 28),         true  }, /* ORCHIDv2, RFC 7343 */
        { V6(0x2001, 0x30, 0, 0, 0, 0, 0, 0, 28),         true  }, /* drone remote identification, RFC 9374 */
        { V6(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0, 32),        false }, /* documentation, RFC 3849 */
        { V6(0x2002, 0, 0, 0, 0, 0, 0, 0, 16),            false }, /* 6to4, RFC 3056: N/A */
        { V6(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0, 48),    true  }, /* direct delegation AS112, RFC 7534 */
        { V6(0x3fff, 0, 0, 0, 0, 0, 0, 0, 20),            false }, /* documentation, RFC 9637 */
};

/*
 * What answers there gives away credentials of the machine, or controls it. Some of these lie in globally reachable
 * space, and others where an operator's `networks` may well reach. The sources are the providers' own pages on
 * instance metadata, or where there is none, the data source of cloud-init for that provider.
 */
static const AddressRange metadata[] = {
        V4(169, 254, 169, 0, 24),                   /* .254: AWS, Azure, Google, Oracle, IBM, DigitalOcean, Hetzner, Vultr, Huawei, OpenStack …;
                                                       AWS also .253 DNS, .123 time, .249 to .251 licences */
        V4(169, 254, 170, 0, 24),                   /* AWS: .2 ECS task credentials, .23 EKS pod identity */
        V4(169, 254, 0, 23, 32),                    /* Tencent Cloud: metadata.tencentyun.com */
        V4(169, 254, 42, 42, 32),                   /* Scaleway */
        V4(100, 100, 100, 200, 32),                 /* Alibaba Cloud: ECS instance metadata */
        V4(100, 96, 0, 96, 32),                     /* BytePlus, Volcano Engine: docs.byteplus.com, "Viewing instance metadata" (2026-11) */
        V4(168, 63, 129, 16, 32),                   /* Azure: wire server and DNS */
        V4(192, 0, 0, 192, 32),                     /* Oracle Cloud Infrastructure Classic */
        V4(192, 80, 8, 124, 32),                    /* Equinix Metal: metadata.platformequinix.com */
        V6(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0, 32),    /* AWS: ::254 metadata, ::253 DNS, ::123 time, ::23 pod identity */
        V6(0xfd20, 0xce, 0, 0, 0, 0, 0, 0, 32),     /* Google: ::254 */
        V6(0xfd00, 0xc1, 0, 0, 0, 0, 0, 0, 32),     /* Oracle: ::a9fe:a9fe */
        V6(0xfd00, 0x100, 0, 0, 0, 0, 0, 0, 32),    /* Alibaba Cloud: ::100:200 */
        V6(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 0, 48), /* Akamai (Linode): ::1 */
        V6(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42, 128), /* Scaleway */
        V6(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe, 128), /* OpenStack */
};

/* Never admitted, not even by the operator's list: what is this machine's or this link's, and what only wraps something else. */
static const AddressRange never[] = {
        V4(0, 0, 0, 0, 8),
        V4(127, 0, 0, 0, 8),
        V4(169, 254, 0, 0, 16),
        V4(198, 18, 0, 0, 15),
        V4(224, 0, 0, 0, 3), /* multicast, reserved, broadcast */
        V6(0, 0, 0, 0, 0, 0, 0, 0, 96),
        V6(0, 0, 0, 0, 0, 0xffff, 0, 0, 96),
        V6(0x2001, 0, 0, 0, 0, 0, 0, 0, 32),
        V6(0x2002, 0, 0, 0, 0, 0, 0, 0, 16),
        V6(0xfe80, 0, 0, 0, 0, 0, 0, 0, 10),
        V6(0xff00, 0, 0, 0, 0, 0, 0, 0, 8),
};

static const AddressRange
        compatible = V6(0, 0, 0, 0, 0, 0, 0, 0, 96),
        mapped = V6(0, 0, 0, 0, 0, 0xffff, 0, 0, 96),
        translated = V6(0, 0, 0, 0, 0xffff, 0, 0, 0, 96),
        nat64 = V6(0x64, 0xff9b, 0, 0, 0, 0, 0, 0, 96),
        nat64_local = V6(0x64, 0xff9b, 1, 0, 0, 0, 0, 0, 48),
        teredo = V6(0x2001, 0, 0, 0, 0, 0, 0, 0, 32),
        six_to_four = V6(0x2002, 0, 0, 0, 0, 0, 0, 0, 16);

static bool in_list(const Address *a, const AddressRange *list, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (address_in_range(a, &list[i]))
                        return true;
        return false;
}

static void add_bytes(const Address *a, const uint8_t at[4], uint8_t flip, Address **next) {
        **next = (Address) { .family = AF_INET };
        for (size_t i = 0; i < 4; i++)
                (*next)->bytes[i] = a->bytes[at[i]] ^ flip;
        (*next)++;
}

/* The IPv4 addresses inside an IPv4-mapped, -compatible or -translated (RFC 2765), NAT64 (RFC 6052, RFC 8215), 6to4, Teredo or ISATAP address: how
 * many. A local-use NAT64 prefix may be read with four lengths, and Teredo names a server and a client. */
static size_t find_embedded(const Address *a, Address ret[static EMBEDDED_MAX]) {
        /* RFC 6052, 2.2: where the address is behind prefixes of 96, 64, 56 and 48 bits; byte 8 is always zero */
        static const uint8_t last[] = { 12, 13, 14, 15 }, behind_64[] = { 9, 10, 11, 12 }, behind_56[] = { 7, 9, 10, 11 },
                             behind_48[] = { 6, 7, 9, 10 }, second[] = { 2, 3, 4, 5 }, fifth[] = { 4, 5, 6, 7 };
        Address *next = ret;

        if (a->family != AF_INET6)
                return 0;

        if (address_in_range(a, &mapped) || address_in_range(a, &nat64) || address_in_range(a, &translated) ||
            (address_in_range(a, &compatible) && (a->bytes[12] || a->bytes[13] || a->bytes[14])))
                add_bytes(a, last, 0, &next);
        else if (address_in_range(a, &nat64_local)) {
                add_bytes(a, last, 0, &next);
                add_bytes(a, behind_64, 0, &next);
                add_bytes(a, behind_56, 0, &next);
                add_bytes(a, behind_48, 0, &next);
        } else if (address_in_range(a, &six_to_four))
                add_bytes(a, second, 0, &next);
        else if (address_in_range(a, &teredo)) {
                add_bytes(a, fifth, 0, &next);   /* its server */
                add_bytes(a, last, 0xff, &next); /* its client, every bit flipped */
        }

        /* ISATAP (RFC 5214, 6.1) is an interface identifier, behind any prefix. */
        if ((a->bytes[8] & 0xfd) == 0 && a->bytes[9] == 0 && a->bytes[10] == 0x5e && a->bytes[11] == 0xfe)
                add_bytes(a, last, 0, &next);

        return (size_t) (next - ret);
}

static bool is_global(const Address *a) {
        bool found = false, global = false;
        unsigned best = 0;

        for (size_t i = 0; i < ELEMENTSOF(special); i++)
                if (address_in_range(a, &special[i].range) && (!found || special[i].range.prefix >= best)) {
                        found = true;
                        best = special[i].range.prefix;
                        global = special[i].global;
                }

        return !found || global;
}

static bool is_own(const Address *a, const Address *own, size_t n_own) {
        for (size_t i = 0; i < n_own; i++)
                if (address_equal(a, &own[i]))
                        return true;
        return false;
}

/* The operator's networks name addresses as they are, not wrapped ones. */
static AddressVerdict judge_inner(const Address *inner, const AddressHost *host) {
        return address_judge(inner, &(AddressHost) { .own = host->own, .n_own = host->n_own });
}

/* What is carried inside may come out under several readings: one that must never be reached condemns it, and so does
 * having none that could be. */
static AddressVerdict judge_embedded(const Address *a, const AddressHost *host) {
        AddressVerdict verdict = ADDRESS_GLOBAL;
        Address inner[EMBEDDED_MAX];
        bool any = false;
        size_t n;

        n = find_embedded(a, inner);
        for (size_t i = 0; i < n; i++) {
                AddressVerdict v = judge_inner(&inner[i], host);

                if (v == ADDRESS_METADATA || v == ADDRESS_OWN)
                        return v;
                any = any || v == ADDRESS_GLOBAL;
                verdict = any ? ADDRESS_GLOBAL : v;
        }
        return verdict;
}

/* Here the reading is known. */
static AddressVerdict judge_translated(const Address *a, const AddressHost *host) {
        for (size_t i = 0; i < host->n_nat64; i++) {
                AddressVerdict v;
                Address inner;

                if (!nat64_extract(a, &host->nat64[i], &inner))
                        continue;
                v = judge_inner(&inner, host);
                if (!address_verdict_is_allowed(v))
                        return v;
        }
        return ADDRESS_GLOBAL;
}

AddressVerdict address_judge(const Address *a, const AddressHost *host) {
        AddressVerdict v;

        if (in_list(a, metadata, ELEMENTSOF(metadata)))
                return ADDRESS_METADATA;
        if (is_own(a, host->own, host->n_own))
                return ADDRESS_OWN;

        v = judge_embedded(a, host);
        if (!address_verdict_is_allowed(v))
                return v;
        v = judge_translated(a, host);
        if (!address_verdict_is_allowed(v))
                return v;

        if (in_list(a, never, ELEMENTSOF(never)))
                return ADDRESS_NOT_GLOBAL;
        if (is_global(a))
                return ADDRESS_GLOBAL;

        return in_list(a, host->networks, host->n_networks) ? ADDRESS_ADMITTED : ADDRESS_NOT_GLOBAL;
}

const char *address_verdict_to_reason(AddressVerdict v) {
        switch (v) {
        case ADDRESS_METADATA:
                return "metadata";
        case ADDRESS_OWN:
                return "own-address";
        default:
                return "not-global";
        }
}
