/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The table below is the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890 and its updates,
 * https://www.iana.org/assignments/iana-ipv4-special-registry and .../iana-ipv6-special-registry) as of
 * 2025-10-09, column "Globally Reachable". "N/A" (6to4, Teredo) counts as no. Added to it, because those
 * registries are not about them: multicast, IPv4-compatible IPv6, deprecated site-local, and, for IPv6, everything outside of
 * 2000::/3, the only unicast space that IANA has allocated (64:ff9b::/96 excepted, whose embedded address decides).
 *
 * The most specific entry that contains an address decides, so that an exception such as 192.0.0.9/32 wins over
 * its block. An address in none of them is reachable.
 */

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "egress/address.h"
#include "util/cleanup.h"

typedef struct SpecialRange {
        const char *range;
        bool global;
} SpecialRange;

static const SpecialRange special[] = {
        /* IPv4 */
        { "0.0.0.0/8",           false }, /* "this network", RFC 791 */
        { "10.0.0.0/8",          false }, /* private use, RFC 1918 */
        { "100.64.0.0/10",       false }, /* shared address space, RFC 6598 */
        { "127.0.0.0/8",         false }, /* loopback, RFC 1122 */
        { "169.254.0.0/16",      false }, /* link local, RFC 3927 */
        { "172.16.0.0/12",       false }, /* private use, RFC 1918 */
        { "192.0.0.0/24",        false }, /* IETF protocol assignments, RFC 6890 */
        { "192.0.0.9/32",        true  }, /* port control protocol anycast, RFC 7723 */
        { "192.0.0.10/32",       true  }, /* TURN anycast, RFC 8155 */
        { "192.0.2.0/24",        false }, /* documentation, RFC 5737 */
        { "192.31.196.0/24",     true  }, /* AS112-v4, RFC 7535 */
        { "192.52.193.0/24",     true  }, /* AMT, RFC 7450 */
        { "192.88.99.0/24",      false }, /* deprecated 6to4 relay anycast, RFC 7526 */
        { "192.168.0.0/16",      false }, /* private use, RFC 1918 */
        { "192.175.48.0/24",     true  }, /* direct delegation AS112, RFC 7534 */
        { "198.18.0.0/15",       false }, /* benchmarking, RFC 2544; here: synthetic addresses */
        { "198.51.100.0/24",     false }, /* documentation, RFC 5737 */
        { "203.0.113.0/24",      false }, /* documentation, RFC 5737 */
        { "224.0.0.0/4",         false }, /* multicast, RFC 5771 */
        { "240.0.0.0/4",         false }, /* reserved, RFC 1112; limited broadcast, RFC 8190 */
        /* IPv6 */
        { "::/0",                false }, /* not allocated for unicast … */
        { "2000::/3",            true  }, /* … but this */
        { "64:ff9b::/96",        true  }, /* IPv4-IPv6 translation, RFC 6052: judged by what is embedded */
        { "64:ff9b:1::/48",      false }, /* IPv4-IPv6 translation, local use, RFC 8215 */
        { "2001::/23",           false }, /* IETF protocol assignments, RFC 2928 */
        { "2001::/32",           false }, /* Teredo, RFC 4380: N/A */
        { "2001:1::1/128",       true  }, /* port control protocol anycast, RFC 7723 */
        { "2001:1::2/128",       true  }, /* TURN anycast, RFC 8155 */
        { "2001:1::3/128",       true  }, /* DNS-SD service registration anycast, RFC 9665 */
        { "2001:2::/48",         false }, /* benchmarking, RFC 5180 */
        { "2001:3::/32",         true  }, /* AMT, RFC 7450 */
        { "2001:4:112::/48",     true  }, /* AS112-v6, RFC 7535 */
        { "2001:10::/28",        false }, /* deprecated ORCHID, RFC 4843 */
        { "2001:20::/28",        true  }, /* ORCHIDv2, RFC 7343 */
        { "2001:30::/28",        true  }, /* drone remote identification, RFC 9374 */
        { "2001:db8::/32",       false }, /* documentation, RFC 3849 */
        { "2002::/16",           false }, /* 6to4, RFC 3056: N/A */
        { "2620:4f:8000::/48",   true  }, /* direct delegation AS112, RFC 7534 */
        { "3fff::/20",           false }, /* documentation, RFC 9637 */
};

/* What answers there gives away credentials of the machine, or controls it. Some of these are in globally reachable space. */
static const char *const metadata[] = {
        "169.254.169.254/32",  /* AWS, Azure, Google, OpenStack, DigitalOcean, Oracle … */
        "169.254.170.0/24",    /* AWS: task and pod credentials (.2, .23) */
        "169.254.169.0/24",    /* AWS: DNS and time (.253, .123) */
        "100.100.100.200/32",  /* Alibaba */
        "168.63.129.16/32",    /* Azure: wire server */
        "192.0.0.192/32",      /* Oracle Classic */
        "fd00:ec2::/32",       /* AWS: ::254 metadata, ::253 DNS, ::23 pod credentials */
        "fd20:ce::254/128",    /* Google */
        "fe80::a9fe:a9fe/128", /* OpenStack */
};

/* Never admitted, not even by the operator's list. */
static const char *const never[] = {
        "0.0.0.0/8", "127.0.0.0/8", "198.18.0.0/15", "224.0.0.0/4", "255.255.255.255/32",
        "::/96", "::ffff:0:0/96", "2001::/32", "2002::/16", "ff00::/8",
};

int address_parse(const char *text, Address *ret) {
        Address a = { .family = AF_INET };

        if (inet_pton(AF_INET, text, a.bytes) == 1) {
                *ret = a;
                return 0;
        }

        a = (Address) { .family = AF_INET6 };
        if (inet_pton(AF_INET6, text, a.bytes) != 1)
                return -EINVAL;

        *ret = a;
        return 0;
}

static unsigned address_bits(const Address *a) {
        return a->family == AF_INET ? 32 : 128;
}

int address_parse_range(const char *text, AddressRange *ret) {
        char host[ADDRESS_TEXT_SIZE];
        const char *slash = strchr(text, '/');
        AddressRange range = {};
        unsigned long prefix;
        char *end;
        int r;

        if (!slash || (size_t) (slash - text) >= sizeof(host) || slash[1] < '0' || slash[1] > '9')
                return -EINVAL;
        memcpy(host, text, slash - text);
        host[slash - text] = '\0';

        r = address_parse(host, &range.address);
        if (r < 0)
                return r;

        errno = 0;
        prefix = strtoul(slash + 1, &end, 10);
        if (errno || *end || prefix > address_bits(&range.address))
                return -EINVAL;
        range.prefix = prefix;

        for (unsigned bit = range.prefix; bit < address_bits(&range.address); bit++)
                if (range.address.bytes[bit / 8] & (0x80 >> (bit % 8)))
                        return -EINVAL;

        *ret = range;
        return 0;
}

const char *address_format(const Address *a, char ret[static ADDRESS_TEXT_SIZE]) {
        if (!inet_ntop(a->family, a->bytes, ret, ADDRESS_TEXT_SIZE))
                ret[0] = '\0';
        return ret;
}

Address address_from_ipv4(uint32_t host_order) {
        Address a = { .family = AF_INET };
        uint32_t net = htonl(host_order);

        memcpy(a.bytes, &net, sizeof(net));
        return a;
}

bool address_equal(const Address *a, const Address *b) {
        return a->family == b->family && memcmp(a->bytes, b->bytes, address_bits(a) / 8) == 0;
}

bool address_in_range(const Address *a, const AddressRange *range) {
        unsigned whole = range->prefix / 8, rest = range->prefix % 8;
        uint8_t mask = (uint8_t) (0xff << (8 - rest));

        if (a->family != range->address.family || memcmp(a->bytes, range->address.bytes, whole) != 0)
                return false;

        return rest == 0 || (a->bytes[whole] & mask) == (range->address.bytes[whole] & mask);
}

static bool in_text_range(const Address *a, const char *text, unsigned *ret_prefix) {
        AddressRange range;

        int r;

        r = address_parse_range(text, &range);
        assert(r >= 0); /* the tables are ours, and every judgement goes through all of them */

        if (!address_in_range(a, &range))
                return false;
        if (ret_prefix)
                *ret_prefix = range.prefix;
        return true;
}

static bool in_list(const Address *a, const char *const *list, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (in_text_range(a, list[i], NULL))
                        return true;
        return false;
}

bool address_embedded_ipv4(const Address *a, Address *ret) {
        Address v4 = { .family = AF_INET };
        bool inverted = false;
        size_t at;

        if (a->family != AF_INET6)
                return false;

        /* 64:ff9b:1::/48 holds the usual /96 */
        if (in_text_range(a, "::ffff:0:0/96", NULL) || in_text_range(a, "64:ff9b::/96", NULL) || in_text_range(a, "64:ff9b:1::/48", NULL) ||
            (in_text_range(a, "::/96", NULL) && (a->bytes[12] || a->bytes[13] || a->bytes[14])))
                at = 12;
        else if (in_text_range(a, "2002::/16", NULL))
                at = 2;
        else if (in_text_range(a, "2001::/32", NULL)) {
                at = 12;
                inverted = true; /* Teredo stores the client's address with every bit flipped */
        } else
                return false;

        for (size_t i = 0; i < 4; i++)
                v4.bytes[i] = inverted ? (uint8_t) ~a->bytes[at + i] : a->bytes[at + i];
        *ret = v4;
        return true;
}

static bool is_global(const Address *a) {
        bool found = false, global = false;
        unsigned best = 0, prefix;

        for (size_t i = 0; i < ELEMENTSOF(special); i++)
                if (in_text_range(a, special[i].range, &prefix) && (!found || prefix >= best)) {
                        found = true;
                        best = prefix;
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

AddressVerdict address_judge(const Address *a, const Address *own, size_t n_own,
                             const AddressRange *networks, size_t n_networks) {
        Address inner;

        if (in_list(a, metadata, ELEMENTSOF(metadata)))
                return ADDRESS_METADATA;
        if (is_own(a, own, n_own))
                return ADDRESS_OWN;

        if (address_embedded_ipv4(a, &inner)) {
                AddressVerdict v = address_judge(&inner, own, n_own, NULL, 0);

                if (!address_verdict_is_allowed(v))
                        return v;
        }

        if (in_list(a, never, ELEMENTSOF(never)))
                return ADDRESS_NOT_GLOBAL;
        if (is_global(a))
                return ADDRESS_GLOBAL;

        for (size_t i = 0; i < n_networks; i++)
                if (address_in_range(a, &networks[i]))
                        return ADDRESS_ADMITTED;

        return ADDRESS_NOT_GLOBAL;
}
