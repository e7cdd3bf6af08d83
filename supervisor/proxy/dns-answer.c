/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Questions are parsed by ldns, and what it read is then narrowed down. Exactly one question, of class IN, with a
 * host name; A, AAAA, HTTPS and SVCB are questions that an allowed name may be asked, and everything else (PTR of
 * course, but also MX, TXT, ANY …) is refused without asking anybody, since it could only carry data out or in.
 *
 * The answer repeats the question's bytes as they came, so that a client that varies the case of letters
 * recognises it. No record but one A record is ever made here.
 */

#include <ctype.h>
#include <ldns/ldns.h>
#include <stdio.h>
#include <string.h>

#include "proxy/dns-answer.h"
#include "util/cleanup.h"

static ldns_pkt *pkt_free(ldns_pkt *p) {
        ldns_pkt_free(p);
        return NULL;
}
DEFINE_CLEANUP(ldns_pkt *, pkt_free)

/* Presentation form of a name whose labels are letters, digits, dashes and underscores only. False otherwise. */
static bool name_to_text(const uint8_t *wire, size_t size, char ret[static DNS_NAME_MAX + 1]) {
        size_t n = 0;

        for (size_t at = 0; at < size && wire[at] != 0;) {
                size_t length = wire[at++];

                if (length > 63 || length > size - at || n + length + 1 > DNS_NAME_MAX)
                        return false;
                if (n > 0)
                        ret[n++] = '.';
                for (size_t i = 0; i < length; i++) {
                        char c = (char) wire[at + i];

                        if (!isascii(c) || (!isalnum(c) && c != '-' && c != '_'))
                                return false;
                        ret[n++] = (char) tolower(c);
                }
                at += length;
        }

        ret[n] = '\0';
        return n > 0;
}

static bool read_question(const ldns_pkt *pkt, DnsQuestion *ret) {
        const ldns_rr *rr = ldns_rr_list_rr(ldns_pkt_question(pkt), 0);
        const ldns_rdf *owner = rr ? ldns_rr_owner(rr) : NULL;
        uint16_t type, class;

        if (!owner || ldns_rdf_size(owner) > DNS_NAME_MAX + 2)
                return false;

        type = ldns_rr_get_type(rr);
        class = ldns_rr_get_class(rr);
        memcpy(ret->wire, ldns_rdf_data(owner), ldns_rdf_size(owner));
        ret->n_wire = ldns_rdf_size(owner);
        memcpy(ret->wire + ret->n_wire, (uint8_t[]) { type >> 8, type & 0xff, class >> 8, class & 0xff }, 4);
        ret->n_wire += 4;
        ret->type = type;

        if (class != LDNS_RR_CLASS_IN || !name_to_text(ldns_rdf_data(owner), ldns_rdf_size(owner), ret->name))
                ret->name[0] = '\0';
        return true;
}

void dns_question_parse(const uint8_t *data, size_t size, DnsQuestion *ret) {
        _cleanup_(pkt_freep) ldns_pkt *pkt = NULL;

        *ret = (DnsQuestion) { .kind = DNS_DROP };
        if (size < LDNS_HEADER_SIZE || size > DNS_QUERY_MAX || LDNS_QR_WIRE(data))
                return;

        ret->kind = DNS_REPLY;
        ret->id = LDNS_ID_WIRE(data);
        ret->opcode = LDNS_OPCODE_WIRE(data);
        ret->recursion_desired = LDNS_RD_WIRE(data);
        ret->checking_disabled = LDNS_CD_WIRE(data);
        if (ret->opcode != LDNS_PACKET_QUERY) {
                ret->rcode = LDNS_RCODE_NOTIMPL;
                return;
        }

        ret->rcode = LDNS_RCODE_FORMERR;
        if (LDNS_QDCOUNT(data) != 1 || LDNS_ANCOUNT(data) != 0 || LDNS_NSCOUNT(data) != 0 || LDNS_ARCOUNT(data) > 2)
                return;
        if (ldns_wire2pkt(&pkt, data, size) != LDNS_STATUS_OK)
                return;
        if (!read_question(pkt, ret))
                return;

        ret->edns = ldns_pkt_edns(pkt);
        if (ret->edns && ldns_pkt_edns_version(pkt) != 0)
                return;

        ret->rcode = LDNS_RCODE_REFUSED;
        if (ret->name[0] == '\0')
                return;

        switch (ret->type) {
        case LDNS_RR_TYPE_A:
                ret->address_wanted = true;
                ret->kind = DNS_ASK;
                break;
        case LDNS_RR_TYPE_AAAA:
        case LDNS_RR_TYPE_HTTPS:
        case LDNS_RR_TYPE_SVCB:
                ret->kind = DNS_ASK;
                break;
        }
}

static size_t put_number(uint8_t *at, uint64_t v, size_t bytes) {
        for (size_t i = 0; i < bytes; i++)
                at[i] = (uint8_t) (v >> (8 * (bytes - 1 - i)));
        return bytes;
}

size_t dns_answer_write(const DnsQuestion *q, DnsVerdict verdict, uint32_t address, uint32_t ttl,
                        uint8_t ret[static DNS_ANSWER_MAX]) {
        bool with_address = q->kind == DNS_ASK && verdict == DNS_ALLOWED && q->address_wanted;
        unsigned rcode = LDNS_RCODE_REFUSED;
        size_t n = 0;

        if (q->kind == DNS_DROP)
                return 0;
        if (q->kind == DNS_REPLY)
                rcode = q->rcode;
        else if (verdict == DNS_ALLOWED)
                rcode = LDNS_RCODE_NOERROR;
        else if (verdict == DNS_FAILED)
                rcode = LDNS_RCODE_SERVFAIL;

        n += put_number(ret + n, q->id, 2);
        n += put_number(ret + n, 0x80U | (unsigned) (q->opcode & 0xf) << 3 | (q->recursion_desired ? 1 : 0), 1); /* QR, RD */
        n += put_number(ret + n, 0x80U | (q->checking_disabled ? 0x10 : 0) | rcode, 1);                             /* RA, CD */
        n += put_number(ret + n, q->n_wire > 0, 2);
        n += put_number(ret + n, with_address, 2);
        n += put_number(ret + n, 0, 2);
        n += put_number(ret + n, q->edns, 2);

        memcpy(ret + n, q->wire, q->n_wire);
        n += q->n_wire;

        if (with_address) {
                n += put_number(ret + n, 0xc000 | LDNS_HEADER_SIZE, 2); /* the name in the question */
                n += put_number(ret + n, LDNS_RR_TYPE_A, 2);
                n += put_number(ret + n, LDNS_RR_CLASS_IN, 2);
                n += put_number(ret + n, ttl, 4);
                n += put_number(ret + n, 4, 2);
                n += put_number(ret + n, address, 4);
        }
        if (q->edns) {
                n += put_number(ret + n, 0, 1);
                n += put_number(ret + n, LDNS_RR_TYPE_OPT, 2);
                n += put_number(ret + n, 1232, 2); /* what we can receive */
                n += put_number(ret + n, 0, 4);
                n += put_number(ret + n, 0, 2);
        }
        return n;
}

const char *dns_type_name(uint16_t type, char ret[static 16]) {
        switch (type) {
        case LDNS_RR_TYPE_A:
                return "A";
        case LDNS_RR_TYPE_AAAA:
                return "AAAA";
        case LDNS_RR_TYPE_SVCB:
                return "SVCB";
        case LDNS_RR_TYPE_HTTPS:
                return "HTTPS";
        case LDNS_RR_TYPE_PTR:
                return "PTR";
        case LDNS_RR_TYPE_TXT:
                return "TXT";
        case LDNS_RR_TYPE_MX:
                return "MX";
        case LDNS_RR_TYPE_ANY:
                return "ANY";
        default:
                (void) snprintf(ret, 16, "TYPE%u", type);
                return ret;
        }
}
