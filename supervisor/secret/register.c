/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "secret/register.h"

#include <errno.h>
#include <string.h>

#include "secret/app-key.h"
#include "secret/bundle-api.h"
#include "secret/run-ca.h"
#include "secret/sentinel.h"

#define HOUR_USEC (3600ULL * 1000 * 1000)
#define EXPIRES_MAX_USEC (31 * 24 * HOUR_USEC)

static int check_request(const RegisterRequest *q, uint64_t now_usec, char **ret_reason) {
        const char *wrong = NULL;

        if (!text_is_id('r', q->run))
                wrong = "run: not a run's id";
        else if (!text_is_id('i', q->item))
                wrong = "item: not an item's id";
        else if (!text_is_name(q->workflow))
                wrong = "workflow: not a workflow's name";
        else if (strcmp(q->stage, "work") != 0 && strcmp(q->stage, "verify") != 0)
                wrong = "stage: neither \"work\" nor \"verify\"";
        else if (q->repository && !policy_is_repository(q->repository))
                wrong = "repository: not OWNER/NAME";
        else if (q->expires_usec <= now_usec || q->expires_usec - now_usec > EXPIRES_MAX_USEC)
                wrong = "expires_usec: not within the next 31 days";

        if (!wrong)
                return 0;
        *ret_reason = strdup(wrong);
        return -EINVAL;
}

/* Does the value fit the kind? And may this item have a token? */
static int check_value(const PolicyCredential *c, const Secret *value, const char *repository, char **ret_reason) {
        bool app = strcmp(c->kind, "github-app") == 0;
        PolicyApp parts;

        if (app != app_key_is_pem(value))
                *ret_reason = text_format(app ? "credential %s: its value is not the private key of an app"
                                              : "credential %s: its value is a private key, which no run gets; of the kind \"github-app\" it would mint tokens",
                                          c->name);
        else if (!app)
                return 0;
        else if (!repository)
                *ret_reason = text_format("credential %s mints tokens for the repository of an item, and this one names none (anchorctl submit --upstream=OWNER/NAME)",
                                          c->name);
        else if (policy_app_read(c->document, &parts) < 0 || !policy_app_covers(&parts, repository))
                *ret_reason = text_format("credential %s mints no token for the repository %s", c->name, repository);
        else
                return 0;
        return -ENOKEY;
}

static int add_credential(RunSecrets *s, size_t i, const Policy *policy, const CredentialStore *store,
                          const char *name, char **ret_reason) {
        const json_t *provider = NULL;
        _cleanup_free_ char *sentinel = NULL;
        const PolicyCredential *c;
        const char *why = NULL;
        int r;

        c = policy_find_credential(policy, name, &why);
        if (c && c->provider) {
                provider = policy_find_provider(policy, c->provider, &why);
                if (!provider)
                        c = NULL;
        }
        if (!c) {
                *ret_reason = text_format("credential %s: %s", name, why ? why : "its policy does not load");
                return -ENOENT;
        }
        if (!credential_store_find(store, name)) {
                *ret_reason = text_format("credential %s is not on this host; to add it: anchorctl credential add %s", name, name);
                return -ENOKEY;
        }

        r = check_value(c, credential_store_find(store, name), s->repository, ret_reason);
        if (r < 0)
                return r;
        r = sentinel_make(c->prefix, c->alphabet, c->length, c->checksum, &sentinel);
        if (r == -EINVAL) {
                *ret_reason = text_format("credential %s: the shape of its sentinel leaves fewer than 128 random bits", name);
                return -ENOENT;
        }
        if (r < 0)
                return r;

        return run_secrets_set_credential(s, i, name, sentinel, c->document, provider);
}

static int add_ca(RunSecrets *s, const EgressPolicy *egress, uint64_t now_usec) {
        const char *const *names;
        size_t n;

        n = egress_policy_inspected(egress, &names);
        if (n == 0)
                return 0;
        return run_ca_make(s->run, names, n, now_usec - HOUR_USEC, s->expires_usec, &s->ca_pem, &s->ca_key);
}

/* Whatever values the credentials will have: each may be rotated to the longest. Found here, and not by an inject that does not start. */
static int check_size(const RunSecrets *s, char **ret_reason) {
        enum { EACH = CREDENTIAL_MAX_SIZE + 64 /* where it stands */ };
        size_t size = 0, all;
        char *data;
        int r;

        r = bundle_format(s, 0, &data, &size);
        if (r >= 0)
                secret_erase(data, size);
        all = size + s->n_credentials * EACH;
        if (r == -EFBIG || (r >= 0 && all > BUNDLE_MAX)) {
                *ret_reason = text_format("workflow %s: its credentials, their providers' files and the certificate for what is inspected are more than %d bytes",
                                          s->workflow, (int) BUNDLE_MAX);
                return -EFBIG;
        }
        return r;
}

int register_run(RunSecrets **ret, const Policy *policy, const CredentialStore *store,
                 const RegisterRequest *q, uint64_t now_usec, char **ret_reason) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL;
        const EgressPolicy *egress = NULL;
        const PolicyWorkflow *w;
        const char *why = NULL, *egress_name;
        bool verify;
        size_t n;
        int r;

        r = check_request(q, now_usec, ret_reason);
        if (r < 0)
                return r;

        w = policy_find_workflow(policy, q->workflow, &why);
        if (!w) {
                *ret_reason = text_format("workflow %s: %s", q->workflow, why ? why : "its policy does not load");
                return -ENOENT;
        }

        verify = strcmp(q->stage, "verify") == 0;
        egress_name = verify ? w->verify_egress : w->egress;
        if (egress_name) {
                egress = policy_find_egress(policy, egress_name, &why);
                if (!egress) {
                        *ret_reason = text_format("egress %s: %s", egress_name, why ? why : "its policy does not load");
                        return -ENOENT;
                }
        }

        n = verify ? 0 : json_array_size(w->credentials);
        r = run_secrets_new(&s, q->run, q->item, q->workflow, q->stage, q->expires_usec, n);
        if (r < 0)
                return r;
        r = run_secrets_set_repository(s, verify ? "" : q->repository ?: "");
        if (r < 0)
                return r;
        for (size_t i = 0; i < n; i++) {
                r = add_credential(s, i, policy, store, json_string_value(json_array_get(w->credentials, i)), ret_reason);
                if (r < 0)
                        return r;
        }
        if (egress) {
                r = add_ca(s, egress, now_usec);
                if (r < 0)
                        return r;
        }
        r = check_size(s, ret_reason);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(s);
        return 0;
}
