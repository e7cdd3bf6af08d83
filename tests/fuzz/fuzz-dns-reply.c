/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Answers of a resolver, or of who can forge its packets, to either question. There are addresses if and only if the outcome says so, of the kind that
 * was asked for; a chain ends in a name that can be asked for in turn; and what is not of our question, or of another number, is nobody's answer.
 */

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "egress/dns-reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NAME "api.example.org"

enum { A = 1, AAAA = 28 };

static void must(int condition) {
        if (!condition)
                abort();
}

static DnsReplyOutcome read_reply(const uint8_t *data, size_t size, uint16_t type, uint16_t id) {
        DnsReply reply = {};
        DnsReplyOutcome outcome = dns_reply_read(data, size, NAME, type, id, &reply);

        must(reply.n_addresses <= DNS_REPLY_ADDRESSES_MAX && (outcome == DNS_REPLY_ADDRESSES) == (reply.n_addresses > 0));
        for (size_t i = 0; i < reply.n_addresses; i++)
                must(reply.addresses[i].family == (type == A ? AF_INET : AF_INET6));

        must(strnlen(reply.name, sizeof(reply.name)) < sizeof(reply.name));
        if (outcome == DNS_REPLY_ALIAS) {
                uint8_t question[DNS_QUESTION_MAX];

                must(reply.name[0] && dns_question_write(reply.name, type, id, true, question) > 0);
        }
        return outcome;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        DnsReplyOutcome a, aaaa;
        uint16_t id;

        if (size < 2)
                return 0;
        id = (uint16_t) (data[0] << 8 | data[1]);

        a = read_reply(data, size, A, id);
        aaaa = read_reply(data, size, AAAA, id);
        must(a != DNS_REPLY_ADDRESSES || aaaa == DNS_REPLY_FOREIGN);
        must(aaaa != DNS_REPLY_ADDRESSES || a == DNS_REPLY_FOREIGN);
        must(read_reply(data, size, A, id ^ 1) == DNS_REPLY_FOREIGN);
        return 0;
}
