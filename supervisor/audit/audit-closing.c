/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The closing line of an export, the only field of its last entry:
 *
 *     __ANCHORHOLD_EXPORT=anchorhold-export-1 COUNT FIRST LAST HASH TIME SIGNATURE
 *
 * COUNT entries with a field of ours stand before it, from record FIRST to record LAST, which has that HASH. TIME is taken before the
 * journal is read, so that whatever was kept by then is in the file. SIGNATURE is Ed25519 over the line up to and without the space before it, with the
 * key of the checkpoints; what is signed begins with another word than theirs.
 *
 * It tells a file whose end (or beginning) is missing from a whole one. Checked against the key, it also tells that nobody closed a shorter file anew;
 * an older export of the same log is a whole one nevertheless, and has an earlier TIME.
 */
#include "audit/audit-closing.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LINE_HEADER "anchorhold-export-1 "

/* What is signed. */
static int closing_text(const AuditClosing *c, char ret[static AUDIT_CLOSING_LINE_MAX]) {
        char hash[HEX_SHA256_SIZE];

        text_hex(c->head.hash, AUDIT_HASH_SIZE, hash);
        return snprintf(ret, AUDIT_CLOSING_LINE_MAX, LINE_HEADER "%llu %llu %llu %s %s", (unsigned long long) c->records, (unsigned long long) c->first_seq,
                        (unsigned long long) c->head.seq, hash, c->time);
}

void audit_closing_line(const AuditClosing *c, char ret[static AUDIT_CLOSING_LINE_MAX]) {
        int n = closing_text(c, ret);

        (void) snprintf(ret + n, (size_t) (AUDIT_CLOSING_LINE_MAX - n), " %s", c->signature);
}

int audit_closing_sign(const AuditKey *key, AuditClosing *c) {
        char text[AUDIT_CLOSING_LINE_MAX];

        (void) closing_text(c, text);
        return audit_key_sign(key, text, c->signature);
}

int audit_closing_verify(const AuditKey *key, const AuditClosing *c) {
        char text[AUDIT_CLOSING_LINE_MAX];

        (void) closing_text(c, text);
        return audit_key_verify(key, text, c->signature);
}

int audit_closing_parse(const char *line, size_t size, AuditClosing *ret) {
        char copy[AUDIT_CLOSING_LINE_MAX], hash[HEX_SHA256_SIZE], again[AUDIT_CLOSING_LINE_MAX];
        unsigned long long records, first, last;
        AuditClosing c = {};
        int n = 0;

        if (size >= sizeof(copy) || memchr(line, '\0', size))
                return -EBADMSG;
        memcpy(copy, line, size);
        copy[size] = '\0';

        if (sscanf(copy, LINE_HEADER "%18llu %18llu %18llu %64[0-9a-f] %24[0-9TZ:.-] %128[0-9a-f]%n", &records, &first, &last, hash, c.time, c.signature, &n) != 6 ||
            (size_t) n != size || text_unhex(hash, c.head.hash, AUDIT_HASH_SIZE) < 0)
                return -EBADMSG;

        c.records = records;
        c.first_seq = first;
        c.head.seq = last;
        /* exactly this form: the signature is over the text, not over what it means */
        audit_closing_line(&c, again);
        if (records == 0 || strlen(c.signature) != AUDIT_SIGNATURE_HEX - 1 || strcmp(again, copy) != 0)
                return -EBADMSG;

        *ret = c;
        return 0;
}
