/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/credential.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "policy/policy.h"

static int read_place(CredentialPlace *place, const json_t *value) {
        const char *header = json_string_value(json_object_get(value, "header"));

        if (header && *header)
                *place = (CredentialPlace) { .header = header };
        else if (json_is_true(json_object_get(value, "bearer")))
                *place = (CredentialPlace) { .header = "authorization", .bearer = true };
        else
                return -EBADMSG;
        return 0;
}

int inject_credential_init(InjectCredential *c, const RunCredential *source) {
        const json_t *rule = source->rule, *places = json_object_get(rule, "places");
        int r;

        *c = (InjectCredential) {
                .source = source,
                .hosts = json_object_get(rule, "hosts"),
                .ports = json_object_get(rule, "ports"),
                .methods = json_object_get(rule, "methods"),
                .paths = json_object_get(rule, "paths"),
        };
        if (!json_is_array(c->hosts) || !json_is_array(c->ports) || !json_is_array(places) ||
            json_array_size(places) > CREDENTIAL_PLACES_MAX)
                return -EBADMSG;

        for (size_t i = 0; i < json_array_size(places); i++) {
                r = read_place(&c->places[c->n_places++], json_array_get(places, i));
                if (r < 0)
                        return r;
        }
        return 0;
}

void inject_credential_done(InjectCredential *c) {
        for (size_t i = 0; i < CREDENTIAL_FORMER_MAX; i++)
                c->former[i] = secret_free(c->former[i]);
}

CredentialChange inject_credential_update(InjectCredential *c, RunCredential *source, Secret **value) {
        bool was_revoked = c->revoked || !source->secret;
        SecretView v;

        if (!*value) {
                c->revoked = true;
                return was_revoked ? CREDENTIAL_SAME : CREDENTIAL_GONE;
        }

        c->revoked = false;
        v = secret_view(*value);
        if (source->secret && secret_equals(source->secret, v.bytes, v.size))
                return was_revoked ? CREDENTIAL_CHANGED : CREDENTIAL_SAME;

        if (source->secret) {
                secret_free(c->former[CREDENTIAL_FORMER_MAX - 1]);
                memmove(c->former + 1, c->former, (CREDENTIAL_FORMER_MAX - 1) * sizeof(c->former[0]));
                c->former[0] = source->secret;
        }
        source->secret = TAKE_PTR(*value);
        return CREDENTIAL_CHANGED;
}

bool inject_credential_covers_host(const InjectCredential *c, const char *host, uint16_t port) {
        bool has_host = false, has_port = false;

        for (size_t i = 0; i < json_array_size(c->hosts); i++) {
                const char *s = json_string_value(json_array_get(c->hosts, i));

                has_host = has_host || (s && strcasecmp(s, host) == 0);
        }
        for (size_t i = 0; i < json_array_size(c->ports); i++)
                has_port = has_port || json_integer_value(json_array_get(c->ports, i)) == port;
        return has_host && has_port;
}

bool inject_credential_covers_request(const InjectCredential *c, const char *method, const char *target) {
        bool has_method = !c->methods;

        for (size_t i = 0; i < json_array_size(c->methods); i++) {
                const char *s = json_string_value(json_array_get(c->methods, i));

                has_method = has_method || (s && strcmp(s, method) == 0);
        }
        return has_method && policy_path_matches(c->paths, target);
}
