/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Whatever the question: an answer that ldns can read, with the question's id, never more than one record. */

#include <ldns/ldns.h>
#include <stdlib.h>

#include "proxy/dns-answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        DnsQuestion q;

        dns_question_parse(data, size, &q);
        for (int v = DNS_REFUSED; v <= DNS_ALLOWED; v++) {
                uint8_t wire[DNS_ANSWER_MAX];
                ldns_pkt *pkt = NULL;
                size_t n;

                n = dns_answer_write(&q, (DnsVerdict) v, 0xc6120001, 60, v == DNS_REFUSED ? "no-rule (default)" : NULL, wire);
                if (q.kind == DNS_DROP) {
                        if (n != 0)
                                abort();
                        continue;
                }
                if (n == 0 || n > sizeof(wire) || ldns_wire2pkt(&pkt, wire, n) != LDNS_STATUS_OK)
                        abort();
                if (!ldns_pkt_qr(pkt) || ldns_pkt_id(pkt) != q.id || ldns_pkt_ancount(pkt) > (v == DNS_ALLOWED && q.address_wanted))
                        abort();
                ldns_pkt_free(pkt);
        }
        return 0;
}
