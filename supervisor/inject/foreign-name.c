/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Names by which APIs and those who stand before them take a key, a token or a signature. A list, and no rule for what a name may end in:
 * "Idempotency-Key", "X-CSRF-Token" and "page_token" are nobody's credential. Cookies are not in it, since clients send back
 * those that a load balancer gave them.
 */

#include "inject/foreign-name.h"

#include <strings.h>

#include "egress/agreement-api.h"
#include "util/text.h"

bool foreign_is_field(const char *name) {
        static const char *const names[] = {
                "authorization", "proxy-authorization", "x-authorization", "x-serverless-authorization", "x-goog-iam-authorization-token",
                "api-key", "apikey", "x-api-key", "x-apikey", "x-auth-key", "x-goog-api-key", "x-nuget-apikey", "x-functions-key", "x-jfrog-art-api", "ocp-apim-subscription-key",
                "api-token", "x-api-token", "auth-token", "x-auth-token", "access-token", "x-access-token", "x-session-token", "x-security-token",
                "private-token", "job-token", "deploy-token", "circle-token", "x-github-token", "x-figma-token", "x-shopify-access-token",
                "x-vault-token", "x-consul-token", "x-amz-security-token", "x-ms-client-principal", "x-client-secret",
        };

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (agreement_same_field(name, names[i]))
                        return true;
        return false;
}

/* "key" is the name of many things, but where a key of Google's is at home it is that key. */
static bool knows_google(const InjectCredential *c) {
        for (size_t i = 0; i < c->n_places; i++)
                if (c->places[i].kind == PLACE_HEADER && strcasecmp(c->places[i].name, "x-goog-api-key") == 0)
                        return true;
        return false;
}

bool foreign_is_parameter(const InjectCredential *c, const char *name) {
        static const char *const names[] = {
                "access_token", "private_token", "job_token", "deploy_token", "auth_token", "oauth_token", "id_token", "bearer_token", "api_token", "session_token",
                "api_key", "apikey", "x_api_key", "subscription_key", "client_secret", "authorization", "x_goog_api_key",
                /* of a target that somebody has signed */
                "x_amz_credential", "x_amz_signature", "x_amz_security_token", "x_goog_credential", "x_goog_signature", "awsaccesskeyid",
        };

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (agreement_same_field(name, names[i]))
                        return true;
        return strcasecmp(name, "key") == 0 && knows_google(c);
}
