/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Questions to the host's resolver and what its answers say. Pure: bytes in, addresses out. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "egress/address.h"

enum {
        DNS_REPLY_MAX = 65535,
        DNS_REPLY_ADDRESSES_MAX = 16,
        DNS_REPLY_CHAIN_MAX = 16,
        DNS_QUESTION_MAX = 300,
};

typedef enum DnsReplyOutcome {
        DNS_REPLY_ADDRESSES,
        DNS_REPLY_ALIAS,      /* the chain ends in `name` without an address: ask for that one */
        DNS_REPLY_NOTHING,    /* no such name, or no such address: the resolver is sure */
        DNS_REPLY_TRUNCATED,  /* ask again over TCP */
        DNS_REPLY_NO_EDNS,    /* the resolver does not know EDNS (RFC 6891, 7): ask again without */
        DNS_REPLY_FAILED,     /* the resolver could not say: try another one */
        DNS_REPLY_FOREIGN,    /* not an answer to our question: ignore it */
} DnsReplyOutcome;

typedef struct DnsReply {
        Address addresses[DNS_REPLY_ADDRESSES_MAX];
        size_t n_addresses;
        uint32_t ttl;         /* the smallest of the chain's; of a "nothing" what RFC 2308, 5 says, 0 without an SOA record */
        char name[254];       /* where the chain ends, as ldns writes it; "" if too long */
} DnsReply;

/* type is 1 (A) or 28 (AAAA). The number of bytes, or negative errno. */
int dns_question_write(const char *name, uint16_t type, uint16_t id, bool edns, uint8_t ret[static DNS_QUESTION_MAX]);

DnsReplyOutcome dns_reply_read(const uint8_t *data, size_t size, const char *name, uint16_t type, uint16_t id, DnsReply *ret);
