/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Questions are parsed by ldns, and what it read is then narrowed down. Exactly one question, of class IN, with a
 * host name; A, AAAA, HTTPS and SVCB are questions that an allowed name may be asked, and everything else (PTR of
 * course, but also MX, TXT, ANY …) is refused without asking anybody, since it could only carry data out or in.
 *
 * The answer repeats the question's bytes as they came, so that a client that varies the case of letters
 * recognises it. No record but one A record is ever made here.
 */

#include <assert.h>
#include <ctype.h>
#include <ldns/ldns.h>
#include <stdio.h>
#include <string.h>

#include "proxy/dns-answer.h"
#include "util/cleanup.h"

enum {
        RCODE_BADVERS = 16,
        OPTION_EXTENDED_ERROR = 15,
        EXTENDED_ERROR_NOT_READY = 14,
        EXTENDED_ERROR_BLOCKED = 15,
};

/* Header, question, one address, and an OPT record with a reason. */
static_assert(12 + DNS_NAME_MAX + 2 + 4 + 16 + 11 + 6 + DNS_WHY_MAX <= DNS_ANSWER_MAX, "an answer that does not fit");

static ldns_pkt *pkt_free(ldns_pkt *p) {
        ldns_pkt_free(p);
        return NULL;
}
DEFINE_CLEANUP(ldns_pkt *, pkt_free)

/* Presentation form of a name. True if its labels are letters, digits, dashes and underscores only; any other byte is \xNN, also a
 * dot within a label, so that no two names look alike. */
static bool name_to_text(const uint8_t *wire, size_t size, char ret[static DNS_SHOWN_MAX + 1]) {
        bool fine = true;
        size_t n = 0;

        for (size_t at = 0; at < size && wire[at] != 0;) {
                size_t length = wire[at++];

                /* a byte becomes four characters at most, and a label's length byte one */
                if (length > 63 || length > size - at || n + 4 * length + 1 > DNS_SHOWN_MAX) {
                        fine = false;
                        break;
                }
                if (n > 0)
                        ret[n++] = '.';
                for (size_t i = 0; i < length; i++) {
                        char c = (char) wire[at + i];

                        if (isascii(c) && (isalnum(c) || c == '-' || c == '_'))
                                ret[n++] = (char) tolower(c);
                        else {
                                n += (size_t) sprintf(ret + n, "\\x%02x", wire[at + i]);
                                fine = false;
                        }
                }
                at += length;
        }

        if (n == 0) {
                ret[n++] = '.'; /* the root */
                fine = false;
        }
        ret[n] = '\0';
        return fine;
}

/* False: there is none that can be repeated. */
static bool read_question(const ldns_pkt *pkt, DnsQuestion *ret, bool *ret_is_host) {
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
        ret->class = class;
        *ret_is_host = name_to_text(ldns_rdf_data(owner), ldns_rdf_size(owner), ret->name);
        return true;
}

/* ldns takes OPT records out of the additional section. More than one is an error, another version than ours one of its own (RFC 6891, 6.1). */
static bool read_edns(const ldns_pkt *pkt, const uint8_t *data, DnsQuestion *ret) {
        ret->edns = ldns_pkt_edns(pkt);
        if (!ret->edns)
                return true;

        ret->dnssec_ok = ldns_pkt_edns_do(pkt);
        if (LDNS_ARCOUNT(data) - ldns_pkt_arcount(pkt) > 1)
                return false;
        if (ldns_pkt_edns_version(pkt) != 0) {
                ret->rcode = RCODE_BADVERS;
                return false;
        }
        return true;
}

void dns_question_parse(const uint8_t *data, size_t size, DnsQuestion *ret) {
        _cleanup_(pkt_freep) ldns_pkt *pkt = NULL;
        bool is_host = false;

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
        if (!read_question(pkt, ret, &is_host) || !read_edns(pkt, data, ret))
                return;

        ret->rcode = LDNS_RCODE_REFUSED;
        if (!is_host || ret->class != LDNS_RR_CLASS_IN)
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

/* An OPT record; with what the header's four bits cannot hold of the code, and, with a refusal, why. */
static size_t put_opt(uint8_t *at, const DnsQuestion *q, unsigned rcode, const char *why) {
        size_t n = 0, n_why = why ? strnlen(why, DNS_WHY_MAX) : 0;

        n += put_number(at + n, 0, 1);
        n += put_number(at + n, LDNS_RR_TYPE_OPT, 2);
        n += put_number(at + n, 1232, 2); /* what we can receive */
        n += put_number(at + n, rcode >> 4, 1);
        n += put_number(at + n, 0, 1);    /* version */
        n += put_number(at + n, q->dnssec_ok ? 0x8000 : 0, 2); /* has to be repeated (RFC 3225, 3) */
        if (rcode != LDNS_RCODE_REFUSED && rcode != LDNS_RCODE_SERVFAIL)
                return n + put_number(at + n, 0, 2);

        n += put_number(at + n, 4 + 2 + n_why, 2);
        n += put_number(at + n, OPTION_EXTENDED_ERROR, 2);
        n += put_number(at + n, 2 + n_why, 2);
        n += put_number(at + n, rcode == LDNS_RCODE_REFUSED ? EXTENDED_ERROR_BLOCKED : EXTENDED_ERROR_NOT_READY, 2);
        if (n_why > 0)
                memcpy(at + n, why, n_why);
        return n + n_why;
}

size_t dns_answer_write(const DnsQuestion *q, DnsVerdict verdict, uint32_t address, uint32_t ttl, const char *why,
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
        n += put_number(ret + n, 0x80U | (q->checking_disabled ? 0x10 : 0) | (rcode & 0xf), 1);                     /* RA, CD */
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
        if (q->edns)
                n += put_opt(ret + n, q, rcode, why);
        return n;
}

const char *dns_type_name(const DnsQuestion *q, char ret[static 16]) {
        if (q->class != LDNS_RR_CLASS_IN) {
                (void) snprintf(ret, 16, "CLASS%u", q->class);
                return ret;
        }

        switch (q->type) {
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
                (void) snprintf(ret, 16, "TYPE%u", q->type);
                return ret;
        }
}
