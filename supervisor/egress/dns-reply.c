/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <ldns/ldns.h>
#include <string.h>

#include "egress/dns-reply.h"
#include "util/cleanup.h"

static ldns_pkt *pkt_free(ldns_pkt *p) {
        ldns_pkt_free(p);
        return NULL;
}
DEFINE_CLEANUP(ldns_pkt *, pkt_free)

static ldns_rdf *rdf_free(ldns_rdf *r) {
        ldns_rdf_deep_free(r);
        return NULL;
}
DEFINE_CLEANUP(ldns_rdf *, rdf_free)

int dns_question_write(const char *name, uint16_t type, uint16_t id, bool edns, uint8_t ret[static DNS_QUESTION_MAX]) {
        _cleanup_(pkt_freep) ldns_pkt *pkt = NULL;
        _cleanup_free_ uint8_t *wire = NULL;
        ldns_rdf *owner;
        size_t n;

        owner = ldns_dname_new_frm_str(name);
        if (!owner)
                return -EINVAL;
        pkt = ldns_pkt_query_new(owner, (ldns_rr_type) type, LDNS_RR_CLASS_IN, LDNS_RD); /* takes owner over */
        if (!pkt) {
                ldns_rdf_deep_free(owner);
                return -ENOMEM;
        }

        ldns_pkt_set_id(pkt, id);
        if (edns)
                ldns_pkt_set_edns_udp_size(pkt, 1232);
        if (ldns_pkt2wire(&wire, pkt, &n) != LDNS_STATUS_OK)
                return -ENOMEM;
        if (n > DNS_QUESTION_MAX)
                return -EINVAL;

        memcpy(ret, wire, n);
        return (int) n;
}

static bool is_our_question(const ldns_pkt *pkt, const ldns_rdf *name, uint16_t type) {
        const ldns_rr_list *list = ldns_pkt_question(pkt);
        const ldns_rr *rr = list && ldns_rr_list_rr_count(list) == 1 ? ldns_rr_list_rr(list, 0) : NULL;

        return rr && (uint16_t) ldns_rr_get_type(rr) == type && ldns_rr_get_class(rr) == LDNS_RR_CLASS_IN &&
               ldns_dname_compare(ldns_rr_owner(rr), name) == 0;
}

/* The target of the alias that `name` has in these records; NULL if it has none. Borrowed. */
static const ldns_rdf *find_alias(const ldns_rr_list *records, const ldns_rdf *name, uint32_t *ttl) {
        for (size_t i = 0; i < ldns_rr_list_rr_count(records); i++) {
                const ldns_rr *rr = ldns_rr_list_rr(records, i);

                if (ldns_rr_get_type(rr) != LDNS_RR_TYPE_CNAME || ldns_rr_get_class(rr) != LDNS_RR_CLASS_IN ||
                    ldns_rr_rd_count(rr) != 1 || ldns_dname_compare(ldns_rr_owner(rr), name) != 0)
                        continue;
                if (ldns_rr_ttl(rr) < *ttl)
                        *ttl = ldns_rr_ttl(rr);
                return ldns_rr_rdf(rr, 0);
        }
        return NULL;
}

static void collect_addresses(const ldns_rr_list *records, const ldns_rdf *name, uint16_t type, DnsReply *ret) {
        size_t size = type == LDNS_RR_TYPE_A ? 4 : 16;

        for (size_t i = 0; i < ldns_rr_list_rr_count(records) && ret->n_addresses < DNS_REPLY_ADDRESSES_MAX; i++) {
                const ldns_rr *rr = ldns_rr_list_rr(records, i);
                const ldns_rdf *data = ldns_rr_rd_count(rr) == 1 ? ldns_rr_rdf(rr, 0) : NULL;
                Address a = { .family = type == LDNS_RR_TYPE_A ? AF_INET : AF_INET6 };

                if ((uint16_t) ldns_rr_get_type(rr) != type || ldns_rr_get_class(rr) != LDNS_RR_CLASS_IN ||
                    ldns_dname_compare(ldns_rr_owner(rr), name) != 0 || !data || ldns_rdf_size(data) != size)
                        continue;

                memcpy(a.bytes, ldns_rdf_data(data), size);
                ret->addresses[ret->n_addresses++] = a;
                if (ldns_rr_ttl(rr) < ret->ttl)
                        ret->ttl = ldns_rr_ttl(rr);
        }
}

/* Follows the aliases from the question's name; the name at the end is in ret. NULL if the chain is broken or turns in a circle. */
static const ldns_rdf *follow_chain(const ldns_rr_list *records, const ldns_rdf *name, DnsReply *ret, unsigned *ret_steps) {
        unsigned steps = 0;

        for (const ldns_rdf *next; (next = find_alias(records, name, &ret->ttl)); name = next)
                if (++steps > DNS_REPLY_CHAIN_MAX)
                        return NULL;

        *ret_steps = steps;
        return name;
}

/* How long there is nothing: the SOA record's own TTL or its last field, whichever is less (RFC 2308, 5). */
static uint32_t nothing_ttl(const ldns_pkt *pkt) {
        const ldns_rr_list *records = ldns_pkt_authority(pkt);

        for (size_t i = 0; i < ldns_rr_list_rr_count(records); i++) {
                const ldns_rr *rr = ldns_rr_list_rr(records, i);
                uint32_t minimum;

                if (ldns_rr_get_type(rr) != LDNS_RR_TYPE_SOA || ldns_rr_get_class(rr) != LDNS_RR_CLASS_IN ||
                    ldns_rr_rd_count(rr) != 7 || ldns_rdf_size(ldns_rr_rdf(rr, 6)) != sizeof(minimum))
                        continue;
                minimum = ldns_rdf2native_int32(ldns_rr_rdf(rr, 6));
                return minimum < ldns_rr_ttl(rr) ? minimum : ldns_rr_ttl(rr);
        }
        return 0;
}

DnsReplyOutcome dns_reply_read(const uint8_t *data, size_t size, const char *name, uint16_t type, uint16_t id, DnsReply *ret) {
        _cleanup_(pkt_freep) ldns_pkt *pkt = NULL;
        _cleanup_(rdf_freep) ldns_rdf *question = NULL;
        _cleanup_free_ char *text = NULL;
        DnsReply reply = { .ttl = UINT32_MAX };
        const ldns_rr_list *records;
        const ldns_rdf *end;
        unsigned steps;

        if (size < LDNS_HEADER_SIZE || size > DNS_REPLY_MAX || !LDNS_QR_WIRE(data) || LDNS_ID_WIRE(data) != id)
                return DNS_REPLY_FOREIGN;

        /* Often without the question, and sometimes nothing but a header. */
        if (LDNS_RCODE_WIRE(data) == LDNS_RCODE_FORMERR || LDNS_RCODE_WIRE(data) == LDNS_RCODE_NOTIMPL)
                return DNS_REPLY_NO_EDNS;

        question = ldns_dname_new_frm_str(name);
        if (!question)
                return DNS_REPLY_FAILED;
        if (ldns_wire2pkt(&pkt, data, size) != LDNS_STATUS_OK)
                return LDNS_TC_WIRE(data) ? DNS_REPLY_TRUNCATED : DNS_REPLY_FAILED;
        if (!is_our_question(pkt, question, type))
                return DNS_REPLY_FOREIGN;
        if (ldns_pkt_tc(pkt))
                return DNS_REPLY_TRUNCATED;
        if (ldns_pkt_get_rcode(pkt) != LDNS_RCODE_NOERROR && ldns_pkt_get_rcode(pkt) != LDNS_RCODE_NXDOMAIN)
                return DNS_REPLY_FAILED;

        records = ldns_pkt_answer(pkt);
        end = follow_chain(records, question, &reply, &steps);
        if (!end)
                return DNS_REPLY_FAILED;
        collect_addresses(records, end, type, &reply);

        if (reply.n_addresses == 0 && (steps == 0 || ldns_pkt_get_rcode(pkt) == LDNS_RCODE_NXDOMAIN)) {
                reply.ttl = nothing_ttl(pkt);
                *ret = reply;
                return DNS_REPLY_NOTHING;
        }

        /* An alias may have labels that no host has, such as "_x". One that needs escapes to be longer than a name may be is not asked for. */
        text = ldns_rdf2str(end);
        if (!text)
                return DNS_REPLY_FAILED;
        if (strlen(text) < sizeof(reply.name))
                strcpy(reply.name, text);
        else if (reply.n_addresses == 0) {
                *ret = (DnsReply) {};
                return DNS_REPLY_NOTHING;
        }

        *ret = reply;
        return reply.n_addresses > 0 ? DNS_REPLY_ADDRESSES : DNS_REPLY_ALIAS;
}
