/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The guest's DNS questions and our answers, as packets. Pure: bytes in, bytes out; who may be looked up is decided elsewhere. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
        DNS_QUERY_MAX = 4096,  /* longer ones are dropped */
        DNS_ANSWER_MAX = 512,  /* every answer fits what any client can take (RFC 1035, 4.2.1), so that none is ever truncated */
        DNS_NAME_MAX = 253,
        DNS_SHOWN_MAX = 4 * DNS_NAME_MAX,
        DNS_WHY_MAX = 120,     /* of the text that says why; the rest is cut off */
};

typedef enum DnsKind {
        DNS_DROP,     /* no query at all: no answer, or two servers would talk for ever */
        DNS_REPLY,    /* the answer is known already: dns_answer_write() with DNS_REFUSED writes it (format error, not implemented, refused) */
        DNS_ASK,      /* a question that an allowed name may be asked: look at `name` and `address_wanted` */
} DnsKind;

typedef struct DnsQuestion {
        DnsKind kind;
        char name[DNS_SHOWN_MAX + 1]; /* lower case, without the last dot; a byte that no host name has is \xNN. "" if there was no question */
        uint16_t type;               /* 1 A, 28 AAAA, 64 SVCB, 65 HTTPS, … */
        uint16_t class;              /* 1 IN */
        bool address_wanted;         /* an A question: the others get an empty answer */
        /* the rest is for dns_answer_write() */
        uint16_t id;
        uint8_t opcode, rcode;
        bool recursion_desired, checking_disabled, edns, dnssec_ok;
        uint8_t wire[DNS_NAME_MAX + 2 + 4]; /* the question as it was asked, upper case kept */
        size_t n_wire;
} DnsQuestion;

typedef enum DnsVerdict {
        DNS_REFUSED,
        DNS_FAILED,   /* SERVFAIL: we cannot say now */
        DNS_ALLOWED,  /* the address if it was wanted, else an empty answer */
} DnsVerdict;

void dns_question_parse(const uint8_t *data, size_t size, DnsQuestion *ret);

/* The number of bytes written to ret; never 0 for a question that is not DNS_DROP. `address` is in host byte order. `why` may be
 * NULL: a client that knows EDNS is told so with the refusal, as an extended error (RFC 8914). */
size_t dns_answer_write(const DnsQuestion *q, DnsVerdict verdict, uint32_t address, uint32_t ttl, const char *why,
                        uint8_t ret[static DNS_ANSWER_MAX]);

/* "A", "TYPE99"; "CLASS3" if the question is not about the Internet. */
const char *dns_type_name(const DnsQuestion *q, char ret[static 16]);
