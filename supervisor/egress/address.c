/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "egress/address.h"

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
