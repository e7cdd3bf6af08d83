/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "secret/bundle-api.h"

#include <errno.h>
#include <string.h>

#include "util/json.h"

/* The place of a secret of that size behind those that are already there, or null for none. */
static json_t *span_of(const Secret *secret, size_t *offset) {
        json_t *span;
        size_t size;

        if (!secret)
                return json_null();

        size = secret_view(secret).size;
        span = json_pack("[I, I]", (json_int_t) *offset, (json_int_t) size);
        *offset += size;
        return span;
}

static const Secret *included(const RunCredential *c, BundleFlags flags) {
        return flags & BUNDLE_WITH_SECRETS ? c->secret : NULL;
}

static json_t *describe_minted(const RunCredential *c) {
        return c->minted ? json_pack("{s:I}", "expires_usec", (json_int_t) c->expires_usec) : json_null();
}

static json_t *describe(const RunSecrets *s, BundleFlags flags, size_t *offset) {
        _cleanup_json_ json_t *credentials = NULL;
        json_t *ca_key = span_of(s->ca_key, offset);

        credentials = json_array();
        for (size_t i = 0; i < s->n_credentials; i++) {
                const RunCredential *c = &s->credentials[i];

                if (json_array_append_new(credentials,
                                          json_pack("{s:s, s:s, s:O, s:O?, s:o, s:o}", "name", c->name, "sentinel", c->sentinel,
                                                    "rule", c->rule, "provider", c->provider, "minted", describe_minted(c),
                                                    "secret", span_of(included(c, flags), offset))) < 0) {
                        json_unref(ca_key);
                        return NULL;
                }
        }

        return json_pack("{s:s, s:s, s:s, s:s, s:s?, s:I, s:s?, s:o, s:O}", "run", s->run, "item", s->item,
                         "workflow", s->workflow, "stage", s->stage, "repository", s->repository, "expires_usec", (json_int_t) s->expires_usec,
                         "ca_pem", s->ca_pem, "ca_key", ca_key, "credentials", credentials);
}

static char *append_secret(char *p, const Secret *secret) {
        SecretView v;

        if (!secret)
                return p;
        v = secret_view(secret);
        return mempcpy(p, v.bytes, v.size);
}

int bundle_format(const RunSecrets *s, BundleFlags flags, char **ret, size_t *ret_size) {
        _cleanup_json_ json_t *head = NULL;
        _cleanup_free_ char *text = NULL;
        size_t text_size, tail = 0;
        char *data, *p;

        head = describe(s, flags, &tail);
        if (!head)
                return -ENOMEM;

        text = json_dumps(head, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENSURE_ASCII);
        if (!text)
                return -ENOMEM;

        text_size = strlen(text);
        if (text_size + 1 + tail > BUNDLE_MAX)
                return -EFBIG;

        data = malloc(text_size + 1 + tail);
        if (!data)
                return -ENOMEM;

        p = mempcpy(data, text, text_size);
        *p++ = '\n';
        p = append_secret(p, s->ca_key);
        for (size_t i = 0; i < s->n_credentials; i++)
                p = append_secret(p, included(&s->credentials[i], flags));

        *ret = data;
        *ret_size = (size_t) (p - data);
        return 0;
}

static int read_span(const json_t *span, const uint8_t *tail, size_t tail_size, Secret **ret) {
        json_int_t offset, size;

        if (!span)
                return -EBADMSG;
        if (json_is_null(span))
                return 0;
        if (json_array_size(span) != 2 || !json_is_integer(json_array_get(span, 0)) || !json_is_integer(json_array_get(span, 1)))
                return -EBADMSG;

        offset = json_integer_value(json_array_get(span, 0));
        size = json_integer_value(json_array_get(span, 1));
        if (offset < 0 || size <= 0 || size > SECRET_MAX || (uint64_t) offset > tail_size ||
            (uint64_t) size > tail_size - (uint64_t) offset)
                return -EBADMSG;

        return secret_new(ret, tail + offset, (size_t) size);
}

static int read_credential(RunSecrets *s, size_t i, const json_t *c, const uint8_t *tail, size_t tail_size) {
        const char *name, *sentinel;
        const json_t *rule, *provider, *minted, *expires;
        int r;

        name = json_string_value(json_object_get(c, "name"));
        sentinel = json_string_value(json_object_get(c, "sentinel"));
        rule = json_object_get(c, "rule");
        provider = json_object_get(c, "provider");
        if (!text_is_name(name) || !sentinel || !*sentinel || !json_is_object(rule))
                return -EBADMSG;
        if (json_is_null(provider))
                provider = NULL;
        if (provider && !json_is_object(provider))
                return -EBADMSG;

        minted = json_object_get(c, "minted");
        expires = json_object_get(minted, "expires_usec");
        if (minted && !json_is_null(minted) && (!json_is_integer(expires) || json_integer_value(expires) < 0))
                return -EBADMSG;

        r = run_secrets_set_credential(s, i, name, sentinel, rule, provider);
        if (r < 0)
                return r;
        s->credentials[i].minted = json_is_object(minted);
        s->credentials[i].expires_usec = (uint64_t) json_integer_value(expires);
        return read_span(json_object_get(c, "secret"), tail, tail_size, &s->credentials[i].secret);
}

static int read_head(RunSecrets **ret, const json_t *head, const uint8_t *tail, size_t tail_size) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL;
        const char *run, *item, *workflow, *stage;
        const json_t *credentials, *ca_pem, *expires, *repository;
        int r;

        run = json_string_value(json_object_get(head, "run"));
        item = json_string_value(json_object_get(head, "item"));
        workflow = json_string_value(json_object_get(head, "workflow"));
        stage = json_string_value(json_object_get(head, "stage"));
        expires = json_object_get(head, "expires_usec");
        credentials = json_object_get(head, "credentials");
        ca_pem = json_object_get(head, "ca_pem");
        repository = json_object_get(head, "repository");
        if (!text_is_id('r', run) || !item || !workflow || !stage || !json_is_integer(expires) ||
            json_integer_value(expires) < 0 || !json_is_array(credentials) ||
            json_array_size(credentials) > RUN_CREDENTIALS_MAX || !(json_is_null(ca_pem) || json_is_string(ca_pem)))
                return -EBADMSG;

        r = run_secrets_new(&s, run, item, workflow, stage, (uint64_t) json_integer_value(expires), json_array_size(credentials));
        if (r < 0)
                return r;

        r = run_secrets_set_repository(s, json_string_value(repository) ?: "");
        if (r < 0)
                return r;
        if (json_is_string(ca_pem)) {
                s->ca_pem = strdup(json_string_value(ca_pem));
                if (!s->ca_pem)
                        return -ENOMEM;
        }

        r = read_span(json_object_get(head, "ca_key"), tail, tail_size, &s->ca_key);
        if (r < 0)
                return r;
        if (!s->ca_key != !s->ca_pem)
                return -EBADMSG;

        for (size_t i = 0; i < s->n_credentials; i++) {
                r = read_credential(s, i, json_array_get(credentials, i), tail, tail_size);
                if (r < 0)
                        return r;
        }

        *ret = TAKE_PTR(s);
        return 0;
}

int bundle_parse(RunSecrets **ret, const void *data, size_t size) {
        _cleanup_json_ json_t *head = NULL;
        const uint8_t *bytes = data, *newline;
        int r;

        if (size > BUNDLE_MAX)
                return -EBADMSG;
        newline = memchr(bytes, '\n', size);
        if (!newline)
                return -EBADMSG;

        r = json_parse(data, (size_t) (newline - bytes), &head, NULL);
        if (r == -ENOMEM)
                return r;
        if (r < 0 || !json_is_object(head))
                return -EBADMSG;

        return read_head(ret, head, newline + 1, size - (size_t) (newline + 1 - bytes));
}
