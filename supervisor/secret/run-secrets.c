/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "secret/run-secrets-api.h"

#include <errno.h>
#include <string.h>

#include "util/json.h"
#include "util/text.h"

int run_secrets_new(RunSecrets **ret, const char *run, const char *item, const char *workflow, const char *stage,
                    uint64_t expires_usec, size_t n_credentials) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL;

        if (!text_is_id('r', run) || n_credentials > RUN_CREDENTIALS_MAX)
                return -EINVAL;

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;

        memcpy(s->run, run, ID_LENGTH + 1);
        s->expires_usec = expires_usec;
        s->item = strdup(item);
        s->workflow = strdup(workflow);
        s->stage = strdup(stage);
        s->credentials = calloc(n_credentials + 1, sizeof(*s->credentials));
        if (!s->item || !s->workflow || !s->stage || !s->credentials)
                return -ENOMEM;

        s->n_credentials = n_credentials;
        *ret = TAKE_PTR(s);
        return 0;
}

RunSecrets *run_secrets_free(RunSecrets *s) {
        if (!s)
                return NULL;

        for (size_t i = 0; i < s->n_credentials; i++) {
                RunCredential *c = &s->credentials[i];

                json_unref(c->provider);
                json_unref(c->rule);
                secret_free(c->secret);
                free(c->sentinel);
                free(c->name);
        }
        free(s->credentials);
        secret_free(s->ca_key);
        free(s->ca_pem);
        free(s->repository);
        free(s->stage);
        free(s->workflow);
        free(s->item);
        free(s);
        return NULL;
}

int run_secrets_set_repository(RunSecrets *s, const char *repository) {
        s->repository = *repository ? strdup(repository) : NULL;
        return *repository && !s->repository ? -ENOMEM : 0;
}

int run_secrets_set_credential(RunSecrets *s, size_t i, const char *name, const char *sentinel,
                               const json_t *rule, const json_t *provider) {
        RunCredential *c = &s->credentials[i];

        c->name = strdup(name);
        c->sentinel = strdup(sentinel);
        /* only the reference count of a borrowed document changes */
        c->rule = json_incref((json_t *) rule);
        c->provider = json_incref((json_t *) provider);
        return c->name && c->sentinel ? 0 : -ENOMEM;
}

json_t *run_secrets_sentinels(const RunSecrets *s) {
        json_t *sentinels = json_object();

        for (size_t i = 0; sentinels && i < s->n_credentials; i++)
                if (json_object_set_new(sentinels, s->credentials[i].name, json_string(s->credentials[i].sentinel)) < 0)
                        return json_unref(sentinels);
        return sentinels;
}

char *run_secrets_format_guest(const RunSecrets *s, const char *upstream_pem) {
        _cleanup_json_ json_t *sentinels = run_secrets_sentinels(s), *root = NULL;
        _cleanup_free_ char *pem = NULL;

        if (!sentinels)
                return NULL;
        pem = text_format("%s%s", s->ca_pem ?: "", upstream_pem ?: "");
        if (!pem)
                return NULL;

        root = json_pack("{s:s?, s:O}", "ca_pem", *pem ? pem : NULL, "sentinels", sentinels);
        return root ? json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
}
