/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/credential.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "policy/policy.h"

static int read_content_place(CredentialPlace *place, const json_t *value) {
        static const struct {
                const char *key;
                CredentialPlaceKind kind;
        } kinds[] = { { "query", PLACE_QUERY }, { "json", PLACE_JSON }, { "form", PLACE_FORM } };

        *place = (CredentialPlace) {
                .method = json_string_value(json_object_get(value, "method")),
                .path = json_string_value(json_object_get(value, "path")),
        };
        for (size_t i = 0; i < ELEMENTSOF(kinds); i++) {
                const char *name = json_string_value(json_object_get(value, kinds[i].key));

                if (name) {
                        place->kind = kinds[i].kind;
                        place->name = name;
                }
        }
        return place->name && *place->name && place->method && place->path ? 0 : -EBADMSG;
}

static int read_place(CredentialPlace *place, const json_t *value) {
        const char *header = json_string_value(json_object_get(value, "header")), *half = json_string_value(json_object_get(value, "basic")),
                   *user = json_string_value(json_object_get(value, "git"));

        if (header && *header)
                *place = (CredentialPlace) { .kind = PLACE_HEADER, .name = header };
        else if (json_is_true(json_object_get(value, "bearer")))
                *place = (CredentialPlace) { .kind = PLACE_BEARER, .name = "authorization" };
        else if (user && *user)
                *place = (CredentialPlace) { .kind = PLACE_GIT, .name = user };
        else if (half)
                *place = (CredentialPlace) {
                        .kind = PLACE_BASIC, .name = "authorization", .user = strcmp(half, "password") != 0, .password = strcmp(half, "user") != 0,
                };
        else
                return read_content_place(place, value);
        return 0;
}

static CredentialForeign read_foreign(const json_t *rule) {
        const char *text = json_string_value(json_object_get(rule, "on_foreign"));

        if (text && strcmp(text, "pass") == 0)
                return FOREIGN_PASS;
        return text && strcmp(text, "replace") == 0 ? FOREIGN_REPLACE : FOREIGN_REFUSE;
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
                .on_foreign = read_foreign(rule),
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

bool credential_place_applies(const CredentialPlace *place, const char *method, const char *target) {
        size_t n = strcspn(target, "?");

        return !place->path || (strcmp(place->method, method) == 0 && strlen(place->path) == n && memcmp(place->path, target, n) == 0);
}
