/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The audit record, so that another program can verify it. (docs/audit-format.md says the same at length,
 * with an example.)
 *
 * A record is one journal entry of namespace "anchorhold", written by anchor-auditd.service. Its fields, in the order in
 * which they are hashed; * may be missing:
 *
 *     ANCHORHOLD_SEQ      number of the record, decimal, from 1, no gap, no leading zero
 *     ANCHORHOLD_TIME     RFC 3339, UTC, milliseconds: "2026-01-31T12:34:56.789Z"
 *     ANCHORHOLD_BOOT     boot id, 32 hexadecimal digits
 *     ANCHORHOLD_EVENT    name of the event (audit-event.c)
 *     ANCHORHOLD_RUN *    run id
 *     ANCHORHOLD_ITEM *   item id
 *     ANCHORHOLD_ACTOR    on whose behalf, as the source says
 *     ANCHORHOLD_SOURCE   which unit (else "uid N") wrote it, as the kernel says
 *     ANCHORHOLD_DATA     a JSON object: keys sorted by their UTF-8 bytes, no white space, ASCII only
 *     MESSAGE             the sentence that a reader sees
 *     MESSAGE_ID          the event's id, 32 hexadecimal digits
 *     PRIORITY            syslog level, one digit
 *
 * and, not part of what is hashed as text:
 *
 *     ANCHORHOLD_PREV     HASH of the record before, 64 hexadecimal digits; zeros for the first
 *     ANCHORHOLD_HASH     SHA-256( PREV as 32 bytes || canonical )
 *
 * canonical is the line "anchorhold-audit-1\n", then for each field that is there, in the order above, its name, a
 * space, the length of its value in bytes in decimal, a space, the value, and "\n". Lengths make this unambiguous whatever the values
 * hold, and no JSON is needed to check it. MESSAGE is hashed as it was rendered, so that old records
 * verify although a later version may put the same event into other words.
 *
 * No value holds a line break or a zero byte, and all are UTF-8. Digits a-f are lower case everywhere. Entries of the namespace
 * without any of these ANCHORHOLD_ fields (journald's own) are no records.
 *
 * The same record may stand in the journal more than once: after a crash auditd sends again what it did not find
 * there, from the first missing one on, with the same numbers and hashes. So a log is good if its records from the first
 * to the last are there in order, and whatever else is there is an identical copy of one of them.
 */
#include "audit/audit-record.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/text.h"

#define CANONICAL_HEADER "anchorhold-audit-1\n"
#define OUR_PREFIX "ANCHORHOLD_"

static const struct {
        const char *name;
        bool optional;
} fields[_AUDIT_FIELDS] = {
        [AUDIT_SEQ]        = { "ANCHORHOLD_SEQ" },
        [AUDIT_TIME]       = { "ANCHORHOLD_TIME" },
        [AUDIT_BOOT]       = { "ANCHORHOLD_BOOT" },
        [AUDIT_EVENT]      = { "ANCHORHOLD_EVENT" },
        [AUDIT_RUN]        = { "ANCHORHOLD_RUN", true },
        [AUDIT_ITEM]       = { "ANCHORHOLD_ITEM", true },
        [AUDIT_ACTOR]      = { "ANCHORHOLD_ACTOR" },
        [AUDIT_SOURCE]     = { "ANCHORHOLD_SOURCE" },
        [AUDIT_DATA]       = { "ANCHORHOLD_DATA" },
        [AUDIT_MESSAGE]    = { "MESSAGE" },
        [AUDIT_MESSAGE_ID] = { "MESSAGE_ID" },
        [AUDIT_PRIORITY]   = { "PRIORITY" },
        [AUDIT_PREV]       = { "ANCHORHOLD_PREV" },
        [AUDIT_HASH]       = { "ANCHORHOLD_HASH" },
};

void audit_record_done(AuditRecord *r) {
        for (size_t i = 0; i < _AUDIT_FIELDS; i++)
                free(r->value[i]);
        *r = (AuditRecord) {};
}

int audit_record_set(AuditRecord *r, AuditField field, const char *text) {
        char *copy = NULL;

        if (text) {
                copy = strdup(text);
                if (!copy)
                        return -ENOMEM;
        }

        free(r->value[field]);
        r->value[field] = copy;
        return 0;
}

int audit_record_add(AuditRecord *r, const char *name, size_t name_size, const void *value, size_t size) {
        size_t i;

        for (i = 0; i < _AUDIT_FIELDS; i++)
                if (strlen(fields[i].name) == name_size && memcmp(fields[i].name, name, name_size) == 0)
                        break;

        if (name_size > strlen(OUR_PREFIX) && memcmp(name, OUR_PREFIX, strlen(OUR_PREFIX)) == 0) {
                r->ours = true;
                if (i == _AUDIT_FIELDS)
                        r->defect = "it has a field with our prefix that no record has";
        }
        if (i == _AUDIT_FIELDS)
                return 0;

        if (r->value[i]) {
                r->defect = "a field is there twice";
                return 0;
        }
        if (size > AUDIT_VALUE_MAX) {
                r->defect = "a field is longer than any record's";
                return 0;
        }
        if (memchr(value, '\0', size) || memchr(value, '\n', size)) {
                r->defect = "a field holds a line break or a zero byte";
                return 0;
        }

        r->value[i] = strndup(value, size);
        return r->value[i] ? 0 : -ENOMEM;
}

static int record_hash(const AuditRecord *r, const uint8_t prev[static AUDIT_HASH_SIZE], uint8_t ret[static AUDIT_HASH_SIZE]) {
        EVP_MD_CTX *ctx = EVP_MD_CTX_new();
        unsigned size = 0;
        bool ok;

        if (!ctx)
                return -ENOMEM;

        ok = EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) && EVP_DigestUpdate(ctx, prev, AUDIT_HASH_SIZE) &&
             EVP_DigestUpdate(ctx, CANONICAL_HEADER, strlen(CANONICAL_HEADER));
        for (size_t i = 0; ok && i < _AUDIT_HASHED; i++) {
                char head[64];
                int n;

                if (!r->value[i])
                        continue;
                n = snprintf(head, sizeof(head), "%s %zu ", fields[i].name, strlen(r->value[i]));
                ok = EVP_DigestUpdate(ctx, head, (size_t) n) && EVP_DigestUpdate(ctx, r->value[i], strlen(r->value[i])) &&
                     EVP_DigestUpdate(ctx, "\n", 1);
        }
        ok = ok && EVP_DigestFinal_ex(ctx, ret, &size) && size == AUDIT_HASH_SIZE;

        EVP_MD_CTX_free(ctx);
        return ok ? 0 : -EIO;
}

int audit_record_seal(AuditRecord *r, uint64_t seq, const uint8_t prev[static AUDIT_HASH_SIZE]) {
        char text[HEX_SHA256_SIZE];
        int k;

        (void) snprintf(text, sizeof(text), "%llu", (unsigned long long) seq);
        k = audit_record_set(r, AUDIT_SEQ, text);
        if (k < 0)
                return k;

        text_hex(prev, AUDIT_HASH_SIZE, text);
        k = audit_record_set(r, AUDIT_PREV, text);
        if (k < 0)
                return k;

        k = record_hash(r, prev, r->hash);
        if (k < 0)
                return k;

        text_hex(r->hash, AUDIT_HASH_SIZE, text);
        k = audit_record_set(r, AUDIT_HASH, text);
        if (k < 0)
                return k;

        r->seq = seq;
        memcpy(r->prev, prev, AUDIT_HASH_SIZE);
        return 0;
}

/* Decimal, from 1, no leading zero. */
static bool parse_seq(const char *text, uint64_t *ret) {
        uint64_t n = 0;

        if (text[0] < '1' || text[0] > '9')
                return false;
        for (; *text; text++) {
                if (*text < '0' || *text > '9' || n > (INT64_MAX - 9) / 10)
                        return false;
                n = n * 10 + (uint64_t) (*text - '0');
        }

        *ret = n;
        return true;
}

static bool is_time(const char *text) {
        static const char form[] = "dddd-dd-ddTdd:dd:dd.dddZ";

        for (size_t i = 0; i < sizeof(form); i++)
                if (form[i] == 'd' ? text[i] < '0' || text[i] > '9' : text[i] != form[i])
                        return false;

        return true;
}

static const char *record_form(AuditRecord *r) {
        uint8_t id[16];

        if (r->defect)
                return r->defect;
        for (size_t i = 0; i < _AUDIT_FIELDS; i++)
                if (!r->value[i] && !fields[i].optional)
                        return "a field is missing";

        if (!parse_seq(r->value[AUDIT_SEQ], &r->seq))
                return "ANCHORHOLD_SEQ is no number";
        if (text_unhex(r->value[AUDIT_PREV], r->prev, AUDIT_HASH_SIZE) < 0)
                return "ANCHORHOLD_PREV is no hash";
        if (text_unhex(r->value[AUDIT_HASH], r->hash, AUDIT_HASH_SIZE) < 0)
                return "ANCHORHOLD_HASH is no hash";
        if (!is_time(r->value[AUDIT_TIME]))
                return "ANCHORHOLD_TIME is no time";
        if (text_unhex(r->value[AUDIT_BOOT], id, sizeof(id)) < 0)
                return "ANCHORHOLD_BOOT is no boot id";
        if (text_unhex(r->value[AUDIT_MESSAGE_ID], id, sizeof(id)) < 0)
                return "MESSAGE_ID is no id";
        return NULL;
}

int audit_record_check(AuditRecord *r, const char **ret_reason) {
        uint8_t hash[AUDIT_HASH_SIZE];
        int k;

        /* also when something else is wrong: the number lets the finding name the record */
        if (r->value[AUDIT_SEQ])
                (void) parse_seq(r->value[AUDIT_SEQ], &r->seq);

        *ret_reason = record_form(r);
        if (*ret_reason)
                return AUDIT_CHECK_MALFORMED;

        k = record_hash(r, r->prev, hash);
        if (k < 0)
                return k;
        if (memcmp(hash, r->hash, AUDIT_HASH_SIZE) != 0) {
                *ret_reason = "its contents do not give its hash";
                return AUDIT_CHECK_HASH;
        }

        return AUDIT_CHECK_GOOD;
}

int audit_record_text(const AuditRecord *r, char **ret_text, size_t *ret_size) {
        char *text = NULL;
        size_t size;
        FILE *f;

        f = open_memstream(&text, &size);
        if (!f)
                return -ENOMEM;

        for (size_t i = 0; i < _AUDIT_FIELDS; i++)
                if (r->value[i])
                        (void) fprintf(f, "%s=%s\n", fields[i].name, r->value[i]);

        if (fclose(f) != 0) {
                free(text);
                return -ENOMEM;
        }
        if (size > AUDIT_RECORD_MAX) {
                free(text);
                return -EMSGSIZE;
        }

        *ret_text = text;
        *ret_size = size;
        return 0;
}

int audit_record_parse(const char *text, size_t size, AuditRecord *ret) {
        _cleanup_(audit_record_done) AuditRecord r = {};
        const char *end = text + size;
        const char *reason;
        int k;

        while (text < end) {
                const char *line_end = memchr(text, '\n', (size_t) (end - text)), *equal;

                if (!line_end)
                        return -EBADMSG;
                equal = memchr(text, '=', (size_t) (line_end - text));
                if (!equal)
                        return -EBADMSG;

                k = audit_record_add(&r, text, (size_t) (equal - text), equal + 1, (size_t) (line_end - equal - 1));
                if (k < 0)
                        return k;
                text = line_end + 1;
        }

        k = audit_record_check(&r, &reason);
        if (k < 0)
                return k;
        if (k != AUDIT_CHECK_GOOD)
                return -EBADMSG;

        *ret = r;
        r = (AuditRecord) {};
        return 0;
}
