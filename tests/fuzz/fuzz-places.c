/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The rewriter of requests: a head and a body, against a credential with every kind of place. Whatever comes in, what would leave has
 * the sentinel in none of the forms that are looked for, and differs from what came in the places alone.
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
static void check_body(const BodyRewrite *b, const uint8_t *body, size_t size, const SubstitutePlan *plan) {
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
        if (credential[0].on_foreign == FOREIGN_REFUSE)
                assert(plan->n_items == 0 || !memmem(buffer_data(&out), buffer_size(&out), SENTINEL, strlen(SENTINEL)));
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
                check_body(&rewrite, body, size, &plan);
        }
        assert(substitute_write(head, &plan, "a.example", 443, &out) == 0);
        assert(!memmem(buffer_data(&out), buffer_size(&out), SENTINEL, strlen(SENTINEL)));
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
