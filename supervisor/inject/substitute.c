/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A sentinel is worth nothing, so that looking for it outside of its places is no boundary but a trip wire: it
 * finds the agent, or what took it over, trying to carry its credential elsewhere. Looked for are the
 * text itself in any case, in the target and in field names and values, also percent-decoded, and in
 * Basic authorization decoded. Bodies are searched by the exchange, with a masker.
 *
 * A foreign credential is refused because with a key of its own an agent could make an allowed host
 * carry data to somebody else's account.
 */

#include "inject/substitute.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "egress/agreement.h"
#include "util/text.h"

/* Headers that carry a credential somewhere, whether or not a rule names them. */
static const char *const auth_headers[] = {
        "authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "private-token", "x-auth-token",
};

static int hex_digit(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        c |= 0x20;
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void percent_decode(const char *s, char *ret) {
        for (; *s; s++) {
                if (*s == '%' && hex_digit(s[1]) >= 0 && hex_digit(s[2]) >= 0) {
                        char c = (char) (hex_digit(s[1]) << 4 | hex_digit(s[2]));

                        *ret++ = c ? c : ' ';
                        s += 2;
                } else
                        *ret++ = *s;
        }
        *ret = 0;
}

static bool has_sentinel(const char *text, const char *sentinel) {
        _cleanup_free_ char *decoded = NULL;

        if (strcasestr(text, sentinel))
                return true;
        if (!strchr(text, '%'))
                return false;
        decoded = malloc(strlen(text) + 1);
        if (!decoded)
                return true; /* cannot look: do not let it pass */
        percent_decode(text, decoded);
        return strcasestr(decoded, sentinel);
}

/* "Basic <base64>" */
static bool has_sentinel_in_basic(const char *value, const char *sentinel) {
        _cleanup_free_ unsigned char *decoded = NULL;
        size_t size;
        int n;

        if (strncasecmp(value, "basic ", 6) != 0)
                return false;
        value += 6 + strspn(value + 6, " ");
        size = strlen(value) / 4 * 4;
        decoded = malloc(size / 4 * 3 + 1);
        if (!decoded)
                return true;
        n = EVP_DecodeBlock(decoded, (const unsigned char *) value, (int) size);
        if (n < 0)
                return false;
        decoded[n] = 0;
        for (int i = 0; i < n; i++)
                if (decoded[i] == 0)
                        decoded[i] = ' ';
        return has_sentinel((const char *) decoded, sentinel);
}

/* Is the sentinel all of that place in this field? */
static bool in_place(const CredentialPlace *place, const HttpField *field, const char *sentinel, size_t *ret_offset) {
        const char *value = field->value;
        size_t offset = 0;

        if (strcasecmp(field->name, place->header) != 0)
                return false;
        if (place->bearer) {
                if (strncasecmp(value, "bearer ", 7) != 0)
                        return false;
                offset = 7 + strspn(value + 7, " ");
        }
        if (strcmp(value + offset, sentinel) != 0)
                return false;
        *ret_offset = offset;
        return true;
}

static bool find_place(const InjectCredential *c, const HttpField *field, size_t *ret_offset) {
        for (size_t i = 0; i < c->n_places; i++)
                if (in_place(&c->places[i], field, c->source->sentinel, ret_offset))
                        return true;
        return false;
}

static void settle(SubstitutePlan *plan, SubstituteVerdict verdict, const InjectCredential *c, const char *where) {
        *plan = (SubstitutePlan) { .verdict = verdict, .credential = c, .where = where };
}

/* One field against one credential. False: the verdict is final. */
static bool judge_field(const InjectCredential *c, bool host_covered, size_t i, const HttpHead *head, SubstitutePlan *plan) {
        const HttpField *field = &head->fields[i];
        const char *sentinel = c->source->sentinel;
        size_t offset;

        if (host_covered && find_place(c, field, &offset)) {
                if (plan->n_items == SUBSTITUTE_MAX || http_head_find(head, field->name, NULL) > 1) {
                        settle(plan, SUBSTITUTE_MISUSE, c, field->name);
                        return false;
                }
                plan->verdict = SUBSTITUTE_REPLACE;
                plan->credential = c;
                plan->where = field->name;
                plan->items[plan->n_items++] = (Substitution) { .field = i, .offset = offset, .credential = c };
                return true;
        }
        if (has_sentinel(field->name, sentinel) || has_sentinel(field->value, sentinel) ||
            has_sentinel_in_basic(field->value, sentinel)) {
                settle(plan, SUBSTITUTE_MISUSE, c, field->name);
                return false;
        }
        return true;
}

static bool is_auth_header(const InjectCredential *c, const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(auth_headers); i++)
                if (agreement_same_field(name, auth_headers[i]))
                        return true;
        for (size_t i = 0; i < c->n_places; i++)
                if (agreement_same_field(name, c->places[i].header))
                        return true;
        return false;
}

const InjectCredential *substitute_find_sentinel(const InjectCredential *credentials, size_t n_credentials, const HttpField *field) {
        for (size_t i = 0; i < n_credentials; i++) {
                const char *sentinel = credentials[i].source->sentinel;

                if (has_sentinel(field->name, sentinel) || has_sentinel(field->value, sentinel) || has_sentinel_in_basic(field->value, sentinel))
                        return &credentials[i];
        }
        return NULL;
}

static bool is_replaced(const SubstitutePlan *plan, size_t field) {
        for (size_t i = 0; i < plan->n_items; i++)
                if (plan->items[i].field == field)
                        return true;
        return false;
}

/* No field of authentication may stand beside the run's own. */
static bool judge_foreign(const InjectCredential *c, const HttpHead *head, SubstitutePlan *plan) {
        for (size_t i = 0; i < head->n_fields; i++)
                if (!is_replaced(plan, i) && is_auth_header(c, head->fields[i].name) && *head->fields[i].value) {
                        settle(plan, SUBSTITUTE_FOREIGN, NULL, head->fields[i].name);
                        return false;
                }
        return true;
}

bool substitute_is_auth_field(const InjectCredential *credentials, size_t n_credentials, const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(auth_headers); i++)
                if (agreement_same_field(name, auth_headers[i]))
                        return true;
        for (size_t i = 0; i < n_credentials; i++)
                if (is_auth_header(&credentials[i], name))
                        return true;
        return false;
}

void substitute_plan(const InjectCredential *credentials, size_t n_credentials, const char *host, uint16_t port,
                     const HttpHead *head, SubstitutePlan *ret) {
        *ret = (SubstitutePlan) { .verdict = SUBSTITUTE_PLAIN };

        /* misuse first: it is the strongest finding, whatever else is wrong */
        for (size_t k = 0; k < n_credentials; k++) {
                const InjectCredential *c = &credentials[k];
                bool covered = inject_credential_covers_host(c, host, port);

                if (has_sentinel(head->target, c->source->sentinel)) {
                        settle(ret, SUBSTITUTE_MISUSE, c, "target");
                        return;
                }
                for (size_t i = 0; i < head->n_fields; i++)
                        if (!judge_field(c, covered, i, head, ret))
                                return;
        }

        for (size_t k = 0; k < n_credentials; k++)
                if (inject_credential_covers_host(&credentials[k], host, port) && !judge_foreign(&credentials[k], head, ret))
                        return;

        for (size_t i = 0; i < ret->n_items; i++) {
                const InjectCredential *c = ret->items[i].credential;
                const char *where = head->fields[ret->items[i].field].name;

                if (!c->source->secret || c->revoked) {
                        settle(ret, SUBSTITUTE_REVOKED, c, where);
                        return;
                }
                if (!inject_credential_covers_request(c, head->method, head->target)) {
                        settle(ret, SUBSTITUTE_NOT_HERE, c, where);
                        return;
                }
        }
}

static int write_line(const char *name, const void *value, size_t size, bool secret, void *userdata) {
        Buffer *out = userdata;
        int r;

        if ((r = buffer_append_text(out, name)) < 0 || (r = buffer_append_text(out, ": ")) < 0 || (r = buffer_append(out, value, size)) < 0)
                return r;
        return buffer_append_text(out, "\r\n");
}

static int write_field(Buffer *out, const char *name, const char *value) {
        return write_line(name, value, strlen(value), false, out);
}

/* An origin that does not read the body of a GET would take it for the next request: so there is none on that connection. */
static int write_end(const HttpHead *head, Buffer *out) {
        bool has_body = head->framing == HTTP_FRAMING_CHUNKED || head->framing == HTTP_FRAMING_LENGTH;

        if (head->websocket)
                return buffer_append_text(out, "Connection: Upgrade\r\nUpgrade: websocket\r\n");
        if (!has_body || (strcmp(head->method, "GET") != 0 && strcmp(head->method, "HEAD") != 0))
                return 0;
        return write_field(out, "Connection", "close");
}

static int write_framing(const HttpHead *head, Buffer *out) {
        char text[32];

        if (head->framing == HTTP_FRAMING_CHUNKED)
                return write_field(out, "Transfer-Encoding", "chunked");
        if (!head->has_length)
                return 0;
        (void) snprintf(text, sizeof(text), "%llu", (unsigned long long) head->length);
        return write_field(out, "Content-Length", text);
}

/* Also what a client of gRPC, or of Connect, would take its messages encoded in. */
static bool is_dropped(const HttpHead *head, const char *name) {
        static const char *const names[] = { "host", "accept-encoding", "grpc-accept-encoding", "connect-accept-encoding",
                                             "sec-websocket-extensions" /* permessage-deflate would make frames unreadable */ };

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (strcasecmp(name, names[i]) == 0)
                        return true;
        return http_field_is_hop_by_hop(head, name);
}

/* Is gzip, by its name, one of the codings that the client takes (RFC 9110, 12.5.3)? */
static bool accepts_gzip(const HttpHead *head) {
        const char *p = "";

        if (http_head_find(head, "accept-encoding", &p) != 1)
                return false;
        while (*p) {
                const char *weight;
                size_t n;
                bool gzip;

                p += strspn(p, ", \t");
                n = strcspn(p, ",; \t");
                gzip = n == strlen("gzip") && strncasecmp(p, "gzip", n) == 0;
                p += n;
                n = strcspn(p, ",");
                weight = memmem(p, n, "q=", 2);
                if (gzip)
                        return !weight || strtod(weight + 2, NULL) > 0;
                p += n;
        }
        return false;
}

/*
 * What the origin may encode its answer in: in what can be decoded here, but beside a secret in nothing. If text of the guest's and the secret
 * are compressed together, how much comes of it, and when, tells how alike they are (BREACH).
 */
static const char *choose_encoding(const HttpHead *head, const SubstitutePlan *plan) {
        return plan->n_items == 0 && accepts_gzip(head) ? "gzip" : "identity";
}

static int pass_substituted(const HttpField *field, const Substitution *s, SubstituteSink sink, void *userdata) {
        SecretView v = secret_view(s->credential->source->secret);
        Buffer value = {};
        int r;

        if ((r = buffer_append(&value, field->value, s->offset)) >= 0 && (r = buffer_append(&value, v.bytes, v.size)) >= 0)
                r = sink(field->name, buffer_data(&value), buffer_size(&value), true, userdata);
        buffer_done(&value);
        return r;
}

int substitute_fields(const HttpHead *head, const SubstitutePlan *plan, SubstituteSink sink, void *userdata) {
        const char *encoding = choose_encoding(head, plan);
        int r;

        r = sink("Accept-Encoding", encoding, strlen(encoding), false, userdata);
        for (size_t i = 0; i < head->n_fields && r >= 0; i++) {
                const HttpField *field = &head->fields[i];
                const Substitution *s = NULL;

                for (size_t k = 0; k < plan->n_items; k++)
                        if (plan->items[k].field == i)
                                s = &plan->items[k];
                if (s)
                        r = pass_substituted(field, s, sink, userdata);
                else if (!is_dropped(head, field->name))
                        r = sink(field->name, field->value, strlen(field->value), false, userdata);
        }
        return r < 0 ? r : 0;
}

int substitute_write(const HttpHead *head, const SubstitutePlan *plan, const char *host, uint16_t port, Buffer *out) {
        char authority[SUBSTITUTE_AUTHORITY_SIZE];
        int r;

        substitute_authority(host, port, authority);
        if ((r = buffer_append_text(out, head->method)) < 0 || (r = buffer_append_text(out, " ")) < 0 ||
            (r = buffer_append_text(out, head->target)) < 0 || (r = buffer_append_text(out, " HTTP/1.1\r\n")) < 0 ||
            (r = write_field(out, "Host", authority)) < 0 || (r = write_framing(head, out)) < 0 || (r = write_end(head, out)) < 0 ||
            (r = substitute_fields(head, plan, write_line, out)) < 0)
                return r;
        return buffer_append_text(out, "\r\n");
}

void substitute_authority(const char *host, uint16_t port, char *ret) {
        if (port == 443)
                (void) snprintf(ret, SUBSTITUTE_AUTHORITY_SIZE, "%s", host);
        else
                (void) snprintf(ret, SUBSTITUTE_AUTHORITY_SIZE, "%s:%u", host, port);
}
