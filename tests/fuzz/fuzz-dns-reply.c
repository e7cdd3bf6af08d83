/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <stdlib.h>

#include "egress/dns-reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        DnsReply reply = {};
        DnsReplyOutcome outcome;

        if (size < 2)
                return 0;

        outcome = dns_reply_read(data, size, "api.example.org", 1, (uint16_t) (data[0] << 8 | data[1]), &reply);
        if (reply.n_addresses > DNS_REPLY_ADDRESSES_MAX || (outcome == DNS_REPLY_ADDRESSES) != (reply.n_addresses > 0))
                abort();
        return 0;
}
