/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <string.h>

#include "egress/nat64.h"
#include "util/cleanup.h"

/* RFC 6052, 2.2: which bytes hold the IPv4 address; byte 8, in the midst of it, is always zero. */
static const struct Layout {
        unsigned prefix;
        uint8_t at[4];
} layouts[] = {
        { 32, { 4, 5, 6, 7 } },   { 40, { 5, 6, 7, 9 } },    { 48, { 6, 7, 9, 10 } },
        { 56, { 7, 9, 10, 11 } }, { 64, { 9, 10, 11, 12 } }, { 96, { 12, 13, 14, 15 } },
};

static const struct Layout *find_layout(unsigned prefix) {
        for (size_t i = 0; i < ELEMENTSOF(layouts); i++)
                if (layouts[i].prefix == prefix)
                        return &layouts[i];
        return NULL;
}

bool nat64_is_length(unsigned prefix) {
        return find_layout(prefix);
}

static Address embedded(const Address *a, const struct Layout *l) {
        Address v4 = { .family = AF_INET };

        for (size_t i = 0; i < 4; i++)
                v4.bytes[i] = a->bytes[l->at[i]];
        return v4;
}

bool nat64_extract(const Address *a, const AddressRange *prefix, Address *ret) {
        const struct Layout *l = find_layout(prefix->prefix);

        if (!l || a->family != AF_INET6 || !address_in_range(a, prefix))
                return false;
        *ret = embedded(a, l);
        return true;
}

/* 192.0.0.170 and .171 (RFC 7050, 8.2). */
static bool is_well_known(const Address *v4) {
        return v4->bytes[0] == 192 && v4->bytes[1] == 0 && v4->bytes[2] == 0 && (v4->bytes[3] == 170 || v4->bytes[3] == 171);
}

static AddressRange prefix_of(const Address *a, unsigned prefix) {
        AddressRange range = { .address.family = AF_INET6, .prefix = prefix };

        memcpy(range.address.bytes, a->bytes, prefix / 8);
        return range;
}

static bool is_known(const AddressRange *list, size_t n, const AddressRange *range) {
        for (size_t i = 0; i < n; i++)
                if (list[i].prefix == range->prefix && address_equal(&list[i].address, &range->address))
                        return true;
        return false;
}

size_t nat64_find_prefixes(const Address *addresses, size_t n, AddressRange ret[static NAT64_PREFIXES_MAX]) {
        size_t n_found = 0;

        for (size_t i = 0; i < n; i++)
                for (size_t k = 0; k < ELEMENTSOF(layouts); k++) {
                        Address v4 = embedded(&addresses[i], &layouts[k]);
                        AddressRange range;

                        if (addresses[i].family != AF_INET6 || !is_well_known(&v4))
                                continue;
                        range = prefix_of(&addresses[i], layouts[k].prefix);
                        if (is_known(ret, n_found, &range))
                                continue;
                        if (n_found == NAT64_PREFIXES_MAX)
                                return NAT64_PREFIXES_MAX + 1;
                        ret[n_found++] = range;
                }
        return n_found;
}
