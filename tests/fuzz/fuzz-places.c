/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The rewriter of requests: a head and a body, against a credential with every kind of place. Whatever comes in, what would leave has
 * the sentinel in none of the forms that are looked for, as plain decoders see them that share nothing with what looks for them; and it differs from
 * what came in the places alone.
 */

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "inject/body-place.h"
#include "util/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SENTINEL "tok_Sentinel0123456789"
#define SECRET "re\"al\\v&a=l%u+e/1"

static const char rule[] = "{\"hosts\":[\"a.example\"],\"ports\":[443],\"places\":[{\"header\":\"x-key\"},{\"bearer\":true},{\"basic\":\"either\"},"
                           "{\"query\":\"key\",\"method\":\"GET\",\"path\":\"/q\"},{\"json\":\"/a/0/k\",\"method\":\"POST\",\"path\":\"/b\"},"
                           "{\"form\":\"key\",\"method\":\"POST\",\"path\":\"/b\"}]%s}";

/* ---- the forms, decoded as plainly as can be ---- */

static int digit_of(const char *digits, int c) {
        const char *p = c > 0 ? strchr(digits, c) : NULL;

        return p ? (int) (p - digits) : -1;
}

static int hex_of(const uint8_t *p, size_t n) {
        int value = 0;

        for (size_t i = 0; i < n; i++) {
                int d = digit_of("0123456789abcdef", p[i] >= 'A' && p[i] <= 'F' ? p[i] | 0x20 : p[i]);

                if (d < 0)
                        return -1;
                value = value * 16 + d;
        }
        return value;
}

static size_t undo_percent(const uint8_t *p, size_t size, uint8_t *out) {
        size_t n = 0;

        for (size_t i = 0; i < size; i++) {
                int value = p[i] == '%' && size - i > 2 ? hex_of(p + i + 1, 2) : -1;

                out[n++] = value < 0 ? p[i] : (uint8_t) value;
                i += value < 0 ? 0 : 2;
        }
        return n;
}

static size_t undo_json(const uint8_t *p, size_t size, uint8_t *out) {
        size_t n = 0;

        for (size_t i = 0; i < size; i++) {
                int value = p[i] == '\\' && size - i > 5 && p[i + 1] == 'u' ? hex_of(p + i + 2, 4) : -1;

                if (value >= 0) {
                        out[n++] = value < 0x80 ? (uint8_t) value : '?';
                        i += 5;
                } else if (p[i] == '\\' && size - i > 1 && digit_of("\"\\/", p[i + 1]) >= 0)
                        out[n++] = p[++i];
                else
                        out[n++] = p[i];
        }
        return n;
}

/* Each run of its characters is decoded; the first `skip` ones of each are not its. */
static size_t undo_base64(const uint8_t *p, size_t size, size_t skip, uint8_t *out) {
        static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", url[] = "-_";
        size_t n = 0, in_run = 0;
        uint32_t bits = 0;

        for (size_t i = 0; i < size; i++) {
                int d = digit_of(plain, p[i]), u = digit_of(url, p[i]);

                d = u >= 0 ? 62 + u : d;
                in_run = d < 0 ? 0 : in_run + 1;
                if (d < 0)
                        out[n++] = '\n';
                if (in_run <= skip)
                        continue;
                bits = bits << 6 | (uint32_t) d;
                if ((in_run - skip) % 4 != 1) /* the digit before this one left bits over */
                        out[n++] = (uint8_t) (bits >> (6 - 2 * ((in_run - skip - 1) % 4)));
        }
        return n;
}

static bool has_sentinel(const uint8_t *p, size_t size) {
        return memmem(p, size, SENTINEL, strlen(SENTINEL));
}

static bool has_in_any_form(const uint8_t *p, size_t size) {
        uint8_t *out = malloc(2 * size + 1);
        bool found;

        assert(out);
        found = has_sentinel(p, size) || has_sentinel(out, undo_percent(p, size, out)) || has_sentinel(out, undo_json(p, size, out));
        for (size_t skip = 0; skip < 4 && !found; skip++)
                found = has_sentinel(out, undo_base64(p, size, skip, out));
        free(out);
        return found;
}

/* The oracle is no use if it finds nothing. */
static void check_oracle(void) {
        static const char *const forms[] = {
                "x" SENTINEL "x", "%74ok_Sentinel012345678%39", "\"to\\u006b_Sentinel0123456789", "u: dTp0b2tfU2VudGluZWwwMTIzNDU2Nzg5", "a dG9rX1NlbnRpbmVsMDEyMzQ1Njc4OQ==",
                "/YWF0b2tfU2VudGluZWwwMTIzNDU2Nzg5/", "YXRva19TZW50aW5lbDAxMjM0NTY3ODk",
        };

        for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++)
                assert(has_in_any_form((const uint8_t *) forms[i], strlen(forms[i])));
        assert(!has_in_any_form((const uint8_t *) "tok_Sentinel012345678", 21));
}

/* ---- the rewriter ---- */

static RunSecrets *secrets;
static InjectCredential credential[3];

static void make(size_t i, const char *more) {
        _cleanup_free_ char *text = NULL;
        _cleanup_json_ json_t *j = NULL;

        if (asprintf(&text, rule, more) < 0 || json_parse(text, strlen(text), &j, NULL) < 0 ||
            run_secrets_set_credential(secrets, i, "a", SENTINEL, j, NULL) < 0 ||
            secret_new(&secrets->credentials[i].secret, SECRET, strlen(SECRET)) < 0 ||
            inject_credential_init(&credential[i], &secrets->credentials[i]) < 0)
                __builtin_trap();
}

/* A body that stays as it was but for its values. */
static void check_body(const BodyRewrite *b, const uint8_t *body, size_t size) {
        size_t changed = 0, at = 0;
        Buffer out = {};

        assert(body_place_write(b, body, size, &out) == 0);
        for (size_t i = 0; i < b->n_spans; i++) {
                assert(b->spans[i].begin >= at && b->spans[i].end >= b->spans[i].begin && b->spans[i].end <= size);
                at = b->spans[i].end;
                changed += b->spans[i].end - b->spans[i].begin;
        }
        assert(buffer_size(&out) >= size - changed);
        if (b->n_spans == 0)
                assert(buffer_size(&out) == size && memcmp(buffer_data(&out), body, size) == 0);
        assert(!has_in_any_form(buffer_data(&out), buffer_size(&out)));
        buffer_done(&out);
}

static void run(const InjectCredential *c, const HttpHead *head, const uint8_t *body, size_t size) {
        SubstitutePlan plan;
        BodyRewrite rewrite = {};
        Buffer out = {};
        int r;

        substitute_plan(c, 1, "a.example", 443, head, &plan);
        if (plan.verdict != SUBSTITUTE_PLAIN && plan.verdict != SUBSTITUTE_REPLACE)
                return;
        if (plan.n_body > 0) {
                r = body_place_judge(c, 1, head, &plan, body, size, &rewrite);
                assert(r >= 0);
                if (r != 0)
                        return;
                check_body(&rewrite, body, size);
        }
        assert(substitute_write(head, &plan, "a.example", 443, &out) == 0);
        assert(!has_in_any_form(buffer_data(&out), buffer_size(&out)));
        buffer_done(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_(http_reader_freep) HttpReader *reader = NULL;
        const uint8_t *body;
        size_t used, body_size;
        HttpEvent event;

        if (!secrets) {
                if (run_secrets_new(&secrets, "r0123456789ab", "i", "w", "work", 1, 3) < 0)
                        __builtin_trap();
                check_oracle();
                make(0, "");
                make(1, ",\"on_foreign\":\"pass\"");
                make(2, ",\"on_foreign\":\"replace\"");
        }
        if (http_reader_new(&reader, HTTP_KIND_REQUEST) < 0 || http_reader_feed(reader, data, size, &used, &event, &body, &body_size) < 0 ||
            event != HTTP_EVENT_HEAD)
                return 0;
        for (size_t i = 0; i < 3; i++)
                run(&credential[i], http_reader_head(reader), data + used, size - used);
        return 0;
}
